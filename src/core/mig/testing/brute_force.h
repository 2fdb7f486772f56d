// SPDX-License-Identifier: Apache-2.0
//
// What geometry.h and planner.h compute, a second time and in the plainest way, for tests: every
// row of the table (a profile at one start) is taken or not, every tenant put on every instance.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "core/mig/planner.h"

namespace gpumux::core::mig::testing {

using Set = std::set<std::pair<uint32_t, uint32_t>>;  // of instances: start, id

// All legal sets. What "+me" and "-me" mean is not asked: the engines of all instances must be
// no more than those of the GPU, which its largest instance has.
class EveryLayout {
 public:
  explicit EveryLayout(const gpu::MigModel& model) : model_(model) {
    for (const gpu::MigProfile& profile : model.profiles) {
      for (const uint32_t start : profile.starts) rows_.push_back({&profile, start});
      if (profile.memory_slices == model.memory_slices) all_ = *profile.engines;
    }
    Decide(0);
  }
  std::set<Set> found;

 private:
  struct Row {
    const gpu::MigProfile* profile;
    uint32_t start;
  };
  bool Legal() const {
    uint32_t slices = 0, compute = 0;
    gpu::MigEngines sum;
    std::map<const gpu::MigProfile*, uint32_t> count;
    for (const Row* row : taken_) {
      const uint32_t mask = ((1u << *row->profile->memory_slices) - 1) << row->start;
      if (slices & mask) return false;
      slices |= mask;
      compute += row->profile->compute_slices;
      if (++count[row->profile] > row->profile->max_instances) return false;
      const gpu::MigEngines& engines = *row->profile->engines;
      sum.nvdec += engines.nvdec;
      sum.nvenc += engines.nvenc;
      sum.jpeg += engines.jpeg;
      sum.ofa += engines.ofa;
      sum.copy += engines.copy;
    }
    return compute <= model_.compute_slices && slices < 1u << *model_.memory_slices &&
           sum.nvdec <= all_.nvdec && sum.nvenc <= all_.nvenc && sum.jpeg <= all_.jpeg &&
           sum.ofa <= all_.ofa && sum.copy <= all_.copy;
  }
  void Decide(size_t row) {
    if (!Legal()) return;
    if (row == rows_.size()) {
      Set layout;
      for (const Row* one : taken_) layout.insert({one->start, *one->profile->id});
      found.insert(layout);
      return;
    }
    Decide(row + 1);
    taken_.push_back(&rows_[row]);
    Decide(row + 1);
    taken_.pop_back();
  }

  const gpu::MigModel& model_;
  gpu::MigEngines all_;
  std::vector<Row> rows_;
  std::vector<const Row*> taken_;
};

// The best score for one GPU.
class EveryPlan {
 public:
  EveryPlan(const gpu::MigModel& model, const std::set<Set>& legal) : model_(model) {
    for (const Set& set : legal) {
      uint32_t open = 0;
      for (const gpu::MigProfile& profile : model.profiles) {
        for (const uint32_t start : profile.starts) {
          Set more = set;
          open += more.insert({start, *profile.id}).second && legal.contains(more);
        }
      }
      sets_.push_back({set, open});
    }
  }

  Score Best(const std::vector<Present>& present, const std::vector<Want>& wants, bool may_disturb) {
    tenants_.clear();
    for (const Want& want : wants) tenants_.insert(tenants_.end(), want.count, &want);
    best_.reset();
    for (const auto& [set, open] : sets_) {
      Score score;
      score.open_places = open;
      std::vector<const Present*> homeless;
      instances_.clear();
      for (const Present& there : present) {
        const bool stays = set.contains({there.instance.start, there.instance.profile});
        score.destroyed += !stays;
        if (!stays && !there.users.empty()) homeless.push_back(&there);
      }
      for (const auto& [start, id] : set) {
        const auto there = std::ranges::find(present, Placed{start, id}, &Present::instance);
        score.created += there == present.end();
        if (there == present.end() || there->users.empty()) instances_.push_back({model_.FindProfile(id)});
      }
      // One that is made and that nobody uses only makes a plan worse.
      if (score.created > tenants_.size() + homeless.size()) continue;
      if (!homeless.empty() && !may_disturb) continue;
      Rehouse(homeless, 0, score);
    }
    return *best_;
  }

 private:
  struct Instance {
    const gpu::MigProfile* profile;
    bool reserved = false;  // for somebody who was disturbed
    std::vector<const Want*> whom = {};
  };

  void Rehouse(const std::vector<const Present*>& homeless, size_t next, Score score) {
    if (next == homeless.size()) {
      SeatFrom(0, 0, score);
      return;
    }
    score.disturbed += static_cast<uint32_t>(homeless[next]->users.size());
    for (Instance& instance : instances_) {
      if (instance.reserved || instance.profile->id != homeless[next]->instance.profile) continue;
      instance.reserved = true;
      Rehouse(homeless, next + 1, score);
      instance.reserved = false;
    }
  }

  bool Fits(const Instance& instance, const Want& want) const {
    const gpu::MigProfile& profile = *instance.profile;
    if (!want.profile.empty() && profile.name != want.profile) return false;
    uint64_t bytes = 0;
    double share = 0;
    for (const Want* other : instance.whom) {
      if (!other->shares || !want.shares) return false;
      bytes += other->bytes;
      share += other->share;
    }
    return bytes + want.bytes <= *profile.bytes &&
           share + want.share <= static_cast<double>(*profile.sms) / *model_.whole_sms + 1e-6;
  }

  // Tenants from this one on; those that are alike take instances in order, or none.
  void SeatFrom(size_t tenant, size_t from, const Score& score) {
    if (best_ && score.placed + (tenants_.size() - tenant) < best_->placed) return;
    if (tenant == tenants_.size()) {
      Judge(score);
      return;
    }
    const bool next_alike = tenant + 1 < tenants_.size() && tenants_[tenant + 1] == tenants_[tenant];
    for (size_t i = from; i < instances_.size(); ++i) {
      if (instances_[i].reserved || !Fits(instances_[i], *tenants_[tenant])) continue;
      instances_[i].whom.push_back(tenants_[tenant]);
      Score more = score;
      ++more.placed;
      SeatFrom(tenant + 1, next_alike ? i : 0, more);
      instances_[i].whom.pop_back();
    }
    SeatFrom(tenant + 1, next_alike ? instances_.size() : 0, score);
  }

  void Judge(Score score) {
    for (const Instance& instance : instances_) {
      if (instance.whom.empty()) continue;
      score.memory_slices += *instance.profile->memory_slices;
      score.compute_slices += instance.profile->compute_slices;
      score.special += instance.profile->attribute != gpu::MigAttribute::kNone;
    }
    if (!best_ || score.BetterThan(*best_)) best_ = score;
  }

  const gpu::MigModel& model_;
  std::vector<std::pair<Set, uint32_t>> sets_;
  std::vector<Instance> instances_;
  std::vector<const Want*> tenants_;
  std::optional<Score> best_;
};

}  // namespace gpumux::core::mig::testing

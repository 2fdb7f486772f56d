// SPDX-License-Identifier: Apache-2.0
//
// Random histories of a machine: requests with quotas, priorities and time
// limits come, wait, start, are cancelled, change their promise, use memory and
// end, while strangers take memory and give it back. After every step the sums
// are made anew from a flat list of what was granted.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/change.h"
#include "core/ledger.h"
#include "core/queue.h"

namespace gpumux::core {
namespace {

using Time = Forecast::Time;
using std::chrono::seconds;

constexpr uint64_t kTotal = 100 * kGiB;
constexpr uint64_t kReserve = kGiB;

// Holds for a failed history: which one, and what happened in it.
#define HOLDS(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      ADD_FAILURE() << "seed " << seed_ << ", step " << step_ << ": " #condition "\n" << log_; \
      return false;                                                                            \
    }                                                                                          \
  } while (false)

struct Tenant {
  Request request;
  Placement placement;
  Time started{};
  std::optional<Time> ends_by;    // as the model has it
  std::optional<Time> killed_at;  // being stopped
};

class History {
 public:
  explicit History(uint64_t seed) : seed_(seed), random_(seed) {
    const size_t gpus = 1 + Below(4);
    ledgers_.assign(gpus, Ledger(kTotal, kReserve));
    outside_.assign(gpus, 0);
    for (const char* user : {"anna", "ben", "chris"}) {
      if (Below(3) == 0) policy_.users[user] = AnyRule();
    }
    for (const char* group : {"vision", "speech"}) {
      if (Below(3) == 0) policy_.groups[group] = AnyRule();
    }
    if (Below(3) == 0) policy_.every_user = AnyRule();
    if (Below(2)) policy_.fill = Fill::kSpread;
    // Half of the histories without what breaks an estimate from outside.
    calm_ = Below(2) == 0;
  }

  bool Run(int steps) {
    for (step_ = 0; step_ < steps; ++step_) {
      Step();
      if (!Settle()) return false;
    }
    return LetEverythingEnd();
  }

  static inline size_t backfilled = 0, told = 0, waited_for_quota = 0, changed = 0, refused_changes = 0,
                       denied = 0, stopped = 0;

 private:
  uint64_t Below(uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random_); }
  template <typename T>
  T OneOf(std::initializer_list<T> list) {
    return *(list.begin() + Below(list.size()));
  }

  Rule AnyRule() {
    Rule rule;
    if (Below(2)) rule.quota.guaranteed_bytes = Below(kTotal * 2);
    if (Below(3) == 0) rule.quota.tenants = static_cast<unsigned>(Below(4));
    if (Below(3) == 0) rule.quota.gpus = static_cast<unsigned>(Below(4));
    if (Below(3) == 0) rule.priority = static_cast<int>(Below(3)) - 1;
    return rule;
  }

  Request AnyRequest() {
    Request request;
    request.id = next_id_++;
    request.user = OneOf({"anna", "ben", "chris"});
    if (Below(2)) request.groups.push_back("vision");
    if (Below(3) == 0) request.groups.push_back("speech");
    request.priority = PriorityOf(policy_, request.user, request.groups);
    switch (Below(5)) {
      case 0:
        break;
      case 1:
        request.mem = MemorySize{.bytes = 0, .ratio = static_cast<double>(1 + Below(100)) / 100};
        break;
      default:
        request.mem = MemorySize{.bytes = kGiB + Below(kTotal), .ratio = 0};
    }
    if (request.mem && Below(3) == 0) request.mem_limit = MemorySize{.bytes = 0, .ratio = 1};
    if (Below(3) == 0)
      request.gpu_list = {std::to_string(Below(ledgers_.size()))};
    else if (Below(2))
      request.gpu_count = 1 + static_cast<unsigned>(Below(ledgers_.size()));
    if (Below(5) == 0) request.mode = Mode::kExclusive;
    if (Below(4) == 0) request.fill = OneOf({Fill::kPack, Fill::kSpread});
    if (Below(3)) request.time_limit = seconds(1 + Below(200));
    return request;
  }

  bool HasRules() const { return policy_.every_user || !policy_.users.empty() || !policy_.groups.empty(); }

  // Every promise that was given so far may be broken from now on.
  void Disturb() { promised_start_.clear(); }

  void Step() {
    switch (Below(calm_ ? 10 : 13)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        const Request request = AnyRequest();
        log_ += fmt_("ask ", request.id, request.time_limit ? " limited" : "");
        for (const auto& waiting : queue_.waiting()) {
          if (waiting.request.priority < request.priority) promised_start_.erase(waiting.request.id);
        }
        // Others of the same owner may come to use up the quota.
        if (HasRules()) Disturb();
        EXPECT_TRUE(queue_.Push(request));
        break;
      }
      case 4:
        if (!queue_.waiting().empty()) {
          const uint64_t id = queue_.waiting()[Below(queue_.waiting().size())].request.id;
          log_ += fmt_("cancel ", id, "");
          queue_.Remove(id);
          promised_start_.erase(id);
        }
        break;
      case 5:
        if (!tenants_.empty()) End(Below(tenants_.size()));
        break;
      case 6:
      case 7:
        Advance();
        break;
      case 8:
        UseMemory();
        break;
      case 9:
        Stop();
        break;
      case 10: {
        const size_t i = Below(ledgers_.size());
        const uint64_t before = outside_[i];
        outside_[i] = Below(2) ? 0 : Below(kTotal + kTotal / 4);
        log_ += fmt_("outside ", outside_[i] / kGiB, " GiB");
        ledgers_[i].SetOutside(outside_[i] / 2, outside_[i] - outside_[i] / 2);
        if (outside_[i] > before) Disturb();
        break;
      }
      default:
        Change();
    }
  }

  static std::string fmt_(const char* what, uint64_t number, const char* more) {
    return std::string(what) + std::to_string(number) + more + "\n";
  }

  void End(size_t index) {
    log_ += fmt_("end ", tenants_[index].request.id, "");
    for (Ledger& ledger : ledgers_) ledger.RemoveTenant(std::to_string(tenants_[index].request.id));
    tenants_.erase(tenants_.begin() + static_cast<ptrdiff_t>(index));
  }

  // Any time until SIGKILL, which a second stop cannot put off; 5 s later the driver is done.
  void Stop() {
    if (tenants_.empty()) return;
    Tenant& tenant = tenants_[Below(tenants_.size())];
    const Time kill = now_ + seconds(Below(100));
    log_ += fmt_("stop ", tenant.request.id, "");
    if (!tenant.killed_at || kill < *tenant.killed_at) tenant.killed_at = kill;
    if (!tenant.ends_by || kill + seconds(5) < *tenant.ends_by) tenant.ends_by = kill + seconds(5);
    ++stopped;
  }

  // To the next end of a time limit, or somewhere before it.
  void Advance() {
    std::optional<Time> next;
    for (const Tenant& tenant : tenants_) {
      if (tenant.ends_by && (!next || *tenant.ends_by < *next)) next = tenant.ends_by;
    }
    if (!next) return;
    if (Below(3) == 0) {
      now_ += (*next - now_) / 2;
      return;
    }
    now_ = *next;
    log_ += fmt_("time ", static_cast<uint64_t>(now_.count()) / 1000000000, "");
    for (size_t i = tenants_.size(); i-- > 0;) {
      if (tenants_[i].ends_by && *tenants_[i].ends_by <= now_) End(i);
    }
  }

  void UseMemory() {
    if (tenants_.empty()) return;
    const Tenant& tenant = tenants_[Below(tenants_.size())];
    const std::string id = std::to_string(tenant.request.id);
    for (const Share& share : tenant.placement.shares) {
      Ledger& ledger = LedgerOf(share.gpu);
      const uint64_t available = ledger.AvailableBytes(id);
      if (Below(3) == 0)
        ledger.TakeBack(id, 1, UINT64_MAX);
      else
        EXPECT_EQ(ledger.GrantCredit(id, 1, available ? Below(available) : 0, Below(2)).verdict,
                  Verdict::kGranted);
    }
  }

  // Raises or lowers the promise of a tenant, as `set` does.
  void Change() {
    if (tenants_.empty()) return;
    Tenant& tenant = tenants_[Below(tenants_.size())];
    if (tenant.killed_at) return;  // the daemon refuses
    core::Change change;
    if (Below(3)) change.mem = MemorySize{.bytes = kGiB + Below(kTotal), .ratio = 0};
    if (change.mem && Below(3) == 0) change.mem_limit = MemorySize{.bytes = 0, .ratio = 1};
    if (Below(3) == 0) change.time_limit = seconds(1 + Below(300));
    change.as_it_frees = Below(2);
    const std::string id = std::to_string(tenant.request.id);
    core::Changeable now{.name = id,
                         .mode = tenant.placement.mode,
                         .shares = tenant.placement.shares,
                         .used_bytes = {},
                         .time_limit = tenant.request.time_limit,
                         .ran = now_ - tenant.started};
    std::map<gpu::Uuid, std::string> kept;
    for (const auto& waiting : queue_.waiting()) {
      for (const auto& gpu : waiting.wait.wants) kept[gpu] = "somebody";
    }
    for (const Share& share : now.shares) now.used_bytes.push_back(LedgerOf(share.gpu).Find(id)->used_bytes);
    const auto after = JudgeChange(
        change, now, Gpus(),
        QuotaBook(policy_, RunningNow()).BoundsOf(tenant.request.user, tenant.request.groups), kept);
    ++(after ? changed : refused_changes);
    if (!after) return;
    log_ += fmt_("change ", tenant.request.id, "");
    for (const Share& share : *after)
      EXPECT_TRUE(LedgerOf(share.gpu).ChangeTenant(id, share.guaranteed_bytes, share.limit_bytes)) << log_;
    tenant.placement.shares = *after;
    if (change.time_limit) {
      tenant.request.time_limit = change.time_limit;
      tenant.ends_by = tenant.started + *change.time_limit + seconds(15);
    }
    // What its owner's others were told supposed the quota as it was.
    if (HasRules()) Disturb();
  }

  Ledger& LedgerOf(const gpu::Uuid& uuid) { return ledgers_[uuid.bytes[0] - 1u]; }

  std::vector<GpuSnapshot> Gpus() const {
    std::vector<GpuSnapshot> gpus;
    for (size_t i = 0; i < ledgers_.size(); ++i) {
      GpuSnapshot gpu;
      gpu.uuid.bytes[0] = static_cast<uint8_t>(i + 1);
      gpu.index = static_cast<unsigned>(i);
      gpu.name = "NVIDIA H200";
      gpu.total_bytes = kTotal;
      gpu.reserve_bytes = kReserve;
      gpu.unmanaged_bytes = ledgers_[i].UnmanagedBytes();
      gpu.unexplained_bytes = ledgers_[i].UnexplainedBytes();
      gpu.promisable_bytes = ledgers_[i].PromisableBytes();
      gpu.guaranteed_bytes = ledgers_[i].GuaranteedBytes();
      for (const Tenant& tenant : tenants_) {
        for (const Share& share : tenant.placement.shares) {
          if (share.gpu != gpu.uuid) continue;
          gpu.mode = tenant.placement.mode;
          ++gpu.tenants;
        }
      }
      gpu.context = ContextCostOf(gpu.name);
      gpus.push_back(gpu);
    }
    return gpus;
  }

  std::vector<Running> RunningNow() {
    std::vector<Running> all;
    for (const Tenant& tenant : tenants_) {
      const std::string id = std::to_string(tenant.request.id);
      Running running{.name = id,
                      .user = tenant.request.user,
                      .groups = tenant.request.groups,
                      .mode = tenant.placement.mode,
                      .on = {},
                      .ends_by = EndsBy(tenant.started, tenant.request.time_limit, tenant.killed_at)};
      for (const Share& share : tenant.placement.shares) {
        running.on.push_back({share.gpu, share.guaranteed_bytes, LedgerOf(share.gpu).Find(id)->ChargedBytes(),
                              share.limit_bytes});
      }
      all.push_back(std::move(running));
    }
    return all;
  }

  // Starts what can start, and looks at everything.
  bool Settle() {
    while (true) {
      const Situation situation{policy_, Gpus(), RunningNow(), now_};
      const std::vector<Queue::Waiting> before(queue_.waiting().begin(), queue_.waiting().end());
      auto outcome = queue_.Next(situation);
      if (!outcome) break;
      promised_start_.erase(outcome->request.id);
      if (std::holds_alternative<Error>(outcome->decision)) {
        ++denied;
        continue;
      }
      const auto& placement = std::get<Placement>(outcome->decision);
      if (!CheckOvertaking(outcome->request, placement, before, situation)) return false;
      if (!Start(outcome->request, placement)) return false;
      if (!CheckSums()) return false;
    }
    if (!CheckSums()) return false;
    const Situation situation{policy_, Gpus(), RunningNow(), now_};
    for (size_t i = 0; i < tenants_.size(); ++i) HOLDS(situation.running[i].ends_by == tenants_[i].ends_by);
    queue_.MakeEstimates(situation);
    for (const auto& waiting : queue_.waiting()) {
      waited_for_quota += waiting.wait.for_quota;
      HOLDS(!waiting.reason.empty());
      HOLDS(waiting.estimate.at_the_latest.has_value() == waiting.estimate.why_not.empty());
      // What was said once stays true.
      if (const auto it = promised_start_.find(waiting.request.id); it != promised_start_.end())
        HOLDS(now_ < it->second);
      if (waiting.estimate.at_the_latest) {
        ++told;
        auto& at =
            promised_start_.try_emplace(waiting.request.id, *waiting.estimate.at_the_latest).first->second;
        at = std::min(at, *waiting.estimate.at_the_latest);
      }
    }
    for (size_t i = 1; i < queue_.waiting().size(); ++i) {
      const Request &a = queue_.waiting()[i - 1].request, &b = queue_.waiting()[i].request;
      HOLDS(a.priority > b.priority || (a.priority == b.priority && a.id < b.id));
    }
    return true;
  }

  bool Start(const Request& request, const Placement& placement) {
    log_ += fmt_("start ", request.id, "");
    const std::string id = std::to_string(request.id);
    std::set<gpu::Uuid> used;
    for (const Share& share : placement.shares) {
      HOLDS(used.insert(share.gpu).second);
      Ledger& ledger = LedgerOf(share.gpu);
      HOLDS(ledger.AddTenant(id, share.guaranteed_bytes, share.limit_bytes));
      HOLDS(ledger.AddProcess(id, 1));
      // Whatever strangers hold: it was promised from what is there.
      HOLDS(ledger.Holds());
      for (const Tenant& tenant : tenants_) {
        for (const Share& other : tenant.placement.shares) {
          if (other.gpu == share.gpu)
            HOLDS(placement.mode == Mode::kTimeslice && tenant.placement.mode == Mode::kTimeslice);
        }
      }
    }
    HOLDS(used.size() == (request.gpu_list.empty() ? request.gpu_count : request.gpu_list.size()));
    std::optional<Time> ends_by;
    if (request.time_limit) ends_by = now_ + *request.time_limit + seconds(15);
    tenants_.push_back({request, placement, now_, ends_by, {}});
    return true;
  }

  bool CheckSums() {
    struct Sum {
      uint64_t bytes = 0;
      size_t tenants = 0;
      std::set<gpu::Uuid> gpus;
    };
    std::map<gpu::Uuid, uint64_t> guaranteed;
    std::map<std::string, Sum> users, groups;
    for (const Tenant& tenant : tenants_) {
      std::vector<Sum*> sums = {&users[tenant.request.user]};
      for (const std::string& group : tenant.request.groups) sums.push_back(&groups[group]);
      for (Sum* sum : sums) ++sum->tenants;
      for (const Share& share : tenant.placement.shares) {
        guaranteed[share.gpu] += share.guaranteed_bytes;
        for (Sum* sum : sums) {
          sum->bytes += share.guaranteed_bytes;
          sum->gpus.insert(share.gpu);
        }
      }
    }
    for (const auto& [gpu, bytes] : guaranteed) HOLDS(bytes + kReserve <= kTotal);
    const auto within = [](const Sum& sum, const Quota& quota) {
      return sum.bytes <= quota.guaranteed_bytes.value_or(UINT64_MAX) &&
             sum.tenants <= quota.tenants.value_or(1000) && sum.gpus.size() <= quota.gpus.value_or(1000);
    };
    for (const auto& [name, sum] : users) {
      if (policy_.users.contains(name))
        HOLDS(within(sum, policy_.users.at(name).quota));
      else if (policy_.every_user)
        HOLDS(within(sum, policy_.every_user->quota));
    }
    for (const auto& [name, sum] : groups) {
      if (policy_.groups.contains(name)) HOLDS(within(sum, policy_.groups.at(name).quota));
    }
    return true;
  }

  // By the time limits, and by what is charged now: tries every moment and every set of GPUs.
  std::optional<Time> ModelStart(const Request& request, const Situation& situation) const {
    std::vector<Time> moments = {now_};
    for (const Running& tenant : situation.running) {
      if (tenant.ends_by) moments.push_back(*tenant.ends_by);
    }
    std::sort(moments.begin(), moments.end());
    for (const Time moment : moments) {
      size_t fits = 0;
      for (const GpuSnapshot& gpu : situation.gpus) {
        if (!request.gpu_list.empty() && request.gpu_list[0] != gpu.index.Label()) continue;
        uint64_t taken = kReserve + outside_[gpu.index.gpu];
        bool alone = true, exclusive = request.mode == Mode::kExclusive;
        for (const Running& tenant : situation.running) {
          if (tenant.ends_by && *tenant.ends_by <= moment) continue;
          for (const auto& on : tenant.on) {
            if (on.gpu != gpu.uuid) continue;
            taken += on.charged_bytes;
            alone = false;
            exclusive |= tenant.mode == Mode::kExclusive;
          }
        }
        uint64_t needs = gpu.context.ChargeBytes() + kMinimumBeyondContextBytes;
        if (request.mem)
          needs = request.mem->bytes
                      ? request.mem->bytes
                      : static_cast<uint64_t>(request.mem->ratio * static_cast<double>(kTotal - kReserve));
        fits += (alone || !exclusive) && taken + needs <= kTotal;
      }
      if (fits >= (request.gpu_list.empty() ? request.gpu_count : 1)) return moment;
    }
    return std::nullopt;
  }

  // Nobody ahead is made to wait longer: not at all, or not beyond what the time limits say.
  bool CheckOvertaking(const Request& started, const Placement& placement,
                       const std::vector<Queue::Waiting>& before, const Situation& situation) {
    std::set<gpu::Uuid> of_others;
    for (const auto& waiting : before) {
      const Request& other = waiting.request;
      if (other.id == started.id) break;
      const Decision alone =
          Admit(other, situation.gpus, {},
                {policy_.fill, QuotaBook(policy_, situation.running).BoundsOf(other.user, other.groups)});
      const Wait* wait = std::get_if<Wait>(&alone);
      if (!wait) continue;
      const bool head = std::none_of(wait->wants.begin(), wait->wants.end(),
                                     [&](const auto& gpu) { return of_others.contains(gpu); });
      const bool in_its_way =
          std::any_of(placement.shares.begin(), placement.shares.end(),
                      [&](const Share& share) { return wait->wants.contains(share.gpu); });
      of_others.insert(wait->wants.begin(), wait->wants.end());
      if (!in_its_way) continue;
      HOLDS(started.time_limit.has_value());
      ++backfilled;
      // Quotas of GPUs narrow the choice in a way that the model does not know.
      if (!head || QuotaOfGpus()) continue;
      const auto start = ModelStart(other, situation);
      HOLDS(start.has_value());
      HOLDS(now_ + *started.time_limit + kEndingTakes <= *start);
    }
    return true;
  }

  bool QuotaOfGpus() const {
    const auto has = [](const auto& rules) {
      return std::any_of(rules.begin(), rules.end(), [](const auto& r) { return r.second.quota.gpus; });
    };
    return has(policy_.users) || has(policy_.groups) ||
           (policy_.every_user && policy_.every_user->quota.gpus);
  }

  // Nobody waits for ever: with no newcomers and nobody in the way all start.
  bool LetEverythingEnd() {
    for (size_t i = 0; i < ledgers_.size(); ++i) {
      outside_[i] = 0;
      ledgers_[i].SetOutside(0, 0);
    }
    for (int round = 0; !queue_.waiting().empty(); ++round) {
      HOLDS(round < 100);
      if (!Settle()) return false;
      while (!tenants_.empty()) End(0);
    }
    return true;
  }

  uint64_t seed_;
  std::mt19937_64 random_;
  int step_ = 0;
  std::string log_;
  Policy policy_;
  bool calm_ = false;
  std::vector<Ledger> ledgers_;
  std::vector<uint64_t> outside_;
  std::vector<Tenant> tenants_;
  Queue queue_;
  Time now_ = seconds(1000);
  uint64_t next_id_ = 1;
  std::map<uint64_t, Time> promised_start_;
};

TEST(AdmissionProperty, KeepsSumsQuotasOrderAndWhatItSaid) {
  for (uint64_t seed = 1; seed <= 10000; ++seed) {
    if (!History(seed).Run(20)) return;
  }
  // Histories in which these do not happen prove nothing.
  EXPECT_GT(History::backfilled, 500u);
  EXPECT_GT(History::told, 5000u);
  EXPECT_GT(History::waited_for_quota, 5000u);
  EXPECT_GT(History::changed, 1000u);
  EXPECT_GT(History::refused_changes, 1000u);
  EXPECT_GT(History::denied, 1000u);
  EXPECT_GT(History::stopped, 5000u);
  RecordProperty("backfilled", static_cast<int>(History::backfilled));
  RecordProperty("told", static_cast<int>(History::told));
}

}  // namespace
}  // namespace gpumux::core

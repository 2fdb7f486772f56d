// SPDX-License-Identifier: Apache-2.0
#include "core/mig/seating.h"

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <tuple>

namespace gpumux::core::mig {
namespace {

using gpu::MigModel;
using gpu::MigProfile;

// Ways to fill one instance that are looked at before the search is cut short. A request of
// people (a few kinds of tenants) needs some hundreds.
constexpr int kMostFills = 20'000;
constexpr double kRounding = 1e-9;

struct Problem {
  const MigModel& model;
  const std::vector<Want>& wants;
  const std::vector<uint32_t>& counts;

  const MigProfile& ProfileAt(const Seat& seat) const { return ProfileOf(model, seat.instance.profile); }
  bool Serves(const Seat& seat, size_t want) const {
    return mig::Serves(model, ProfileAt(seat), wants[want]);
  }
};

using Weight = std::tuple<uint32_t, uint32_t, uint32_t>;  // memory slices, compute slices, with an attribute
Weight WeightOf(const MigProfile& profile) {
  return {*profile.memory_slices, profile.compute_slices,
          profile.attribute != gpu::MigAttribute::kNone ? 1 : 0};
}
Weight Sum(Weight a, Weight b) {
  return {std::get<0>(a) + std::get<0>(b), std::get<1>(a) + std::get<1>(b), std::get<2>(a) + std::get<2>(b)};
}

// Tenants with an instance of their own: the largest matching. Instances are tried one
// after the other, those that have to be used first, then the light ones. One that is matched
// stays so, and the sets that can be matched are a matroid: so this greedy order gives the lightest of the
// largest.
class Matching {
 public:
  Matching(const Problem& problem, const std::vector<Seat>& seats)
      : problem_(problem), seats_(seats), of_seat_(seats.size()), taken_(problem.wants.size()) {}

  bool Add(size_t seat) {
    std::vector<bool> seen(problem_.wants.size());
    return Find(seat, seen);
  }
  std::optional<size_t> Of(size_t seat) const { return of_seat_[seat]; }

 private:
  bool Find(size_t seat, std::vector<bool>& seen) {
    for (size_t want = 0; want < problem_.wants.size(); ++want) {
      if (seen[want] || problem_.wants[want].shares || problem_.counts[want] == 0) continue;
      if (!problem_.Serves(seats_[seat], want)) continue;
      seen[want] = true;
      if (taken_[want].size() < problem_.counts[want]) {
        Take(seat, want);
        return true;
      }
      // Each of its instances might be for another.
      for (const size_t other : std::vector<size_t>(taken_[want])) {
        if (!Find(other, seen)) continue;
        Take(seat, want);
        return true;
      }
    }
    return false;
  }
  void Take(size_t seat, size_t want) {
    if (of_seat_[seat]) std::erase(taken_[*of_seat_[seat]], seat);
    of_seat_[seat] = want;
    taken_[want].push_back(seat);
  }

  const Problem& problem_;
  const std::vector<Seat>& seats_;
  std::vector<std::optional<size_t>> of_seat_;
  std::vector<std::vector<size_t>> taken_;  // by want
};

// What is left of an instance that several share.
struct Room {
  uint64_t bytes = 0;
  double share = 0;

  uint64_t For(const Want& want) const {
    uint64_t most = UINT64_MAX;
    if (want.bytes > 0) most = bytes / want.bytes;
    if (want.share > 0) most = std::min(most, static_cast<uint64_t>((share + kRounding) / want.share));
    return most;
  }
  Room Less(const Want& want, uint32_t count) const {
    return {bytes - count * want.bytes, std::max(0.0, share - count * want.share)};
  }
};

// Tenants that share: as many as can be on `seats`, each of which must get one at least.
class Packing {
 public:
  Packing(const Problem& problem, const std::vector<Seat>& seats) : problem_(problem), seats_(seats) {
    left_ = problem.counts;
    for (size_t want = 0; want < left_.size(); ++want) {
      if (!problem.wants[want].shares) left_[want] = 0;
    }
  }

  // By seat; nullopt: one stays empty.
  std::optional<std::vector<std::vector<uint32_t>>> Run() {
    const auto best = Best(0);
    if (!best) return std::nullopt;
    std::vector<std::vector<uint32_t>> fills;
    for (size_t seat = 0; seat < seats_.size(); ++seat) {
      fills.push_back(known_.at({seat, left_}).fill);
      for (size_t want = 0; want < left_.size(); ++want) left_[want] -= fills.back()[want];
    }
    return fills;
  }
  bool exact() const { return fills_ < kMostFills; }

 private:
  struct Answer {
    std::optional<uint32_t> placed;
    std::vector<uint32_t> fill;
  };
  using State = std::pair<size_t, std::vector<uint32_t>>;

  // From this seat on, with those who are left.
  std::optional<uint32_t> Best(size_t seat) {
    if (seat == seats_.size()) return 0;
    const State state{seat, left_};
    if (const auto known = known_.find(state); known != known_.end()) return known->second.placed;
    Answer answer;
    std::vector<uint32_t> fill(left_.size());
    const MigProfile& profile = problem_.ProfileAt(seats_[seat]);
    Fill(seat, 0, fill, {profile.bytes.value_or(0), ShareOf(problem_.model, profile)}, answer);
    known_[state] = answer;
    return answer.placed;
  }

  // Every way to fill the rest of this seat with wants from `want` on, the fullest first.
  void Fill(size_t seat, size_t want, std::vector<uint32_t>& fill, Room room, Answer& answer) {
    if (want == fill.size()) {
      if (IsFull(seat, fill, room)) Try(seat, fill, answer);
      return;
    }
    for (uint32_t count = Most(seat, want, room) + 1; count-- > 0;) {
      if (fills_ >= kMostFills && answer.placed) return;
      fill[want] = count;
      Fill(seat, want + 1, fill, room.Less(problem_.wants[want], count), answer);
    }
    fill[want] = 0;
  }

  // Whoever fits has been taken in. Leaving room for nothing helps nobody: a later seat
  // that stays empty for it makes a layout without that seat the better one.
  bool IsFull(size_t seat, const std::vector<uint32_t>& fill, Room room) const {
    for (size_t want = 0; want < fill.size(); ++want) {
      if (left_[want] > fill[want] && problem_.Serves(seats_[seat], want) &&
          room.For(problem_.wants[want]) > 0)
        return false;
    }
    return true;
  }

  uint32_t Most(size_t seat, size_t want, Room room) const {
    if (left_[want] == 0 || !problem_.Serves(seats_[seat], want)) return 0;
    return static_cast<uint32_t>(std::min<uint64_t>(left_[want], room.For(problem_.wants[want])));
  }

  void Try(size_t seat, const std::vector<uint32_t>& fill, Answer& answer) {
    const uint32_t here = std::accumulate(fill.begin(), fill.end(), 0u);
    if (here == 0) return;
    ++fills_;
    for (size_t want = 0; want < fill.size(); ++want) left_[want] -= fill[want];
    const auto rest = Best(seat + 1);
    for (size_t want = 0; want < fill.size(); ++want) left_[want] += fill[want];
    if (rest && (!answer.placed || here + *rest > *answer.placed)) answer = {here + *rest, fill};
  }

  const Problem& problem_;
  const std::vector<Seat>& seats_;
  std::vector<uint32_t> left_;  // by want
  std::map<State, Answer> known_;
  int fills_ = 0;
};

struct Candidate {
  Seating seating;
  Weight weight;
};

std::vector<size_t> InOrder(const Problem& problem, const std::vector<Seat>& seats) {
  std::vector<size_t> order(seats.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t seat) {
    return std::pair(seats[seat].existing, WeightOf(problem.ProfileAt(seats[seat])));
  });
  return order;
}

// With the seats of `shared` (a bit each) for those who share, and the others for those who do not.
std::optional<Candidate> With(const Problem& problem, const std::vector<Seat>& seats, uint32_t shared) {
  Candidate candidate;
  candidate.seating.whom.resize(seats.size());
  std::vector<Seat> together;
  std::vector<size_t> where;
  for (size_t seat = 0; seat < seats.size(); ++seat) {
    if ((shared >> seat & 1) == 0) continue;
    together.push_back(seats[seat]);
    where.push_back(seat);
  }
  if (!together.empty()) {
    Packing packing(problem, together);
    const auto fills = packing.Run();
    if (!fills) return std::nullopt;
    candidate.seating.exact = packing.exact();
    for (size_t i = 0; i < where.size(); ++i) {
      for (size_t want = 0; want < problem.wants.size(); ++want)
        candidate.seating.whom[where[i]].insert(candidate.seating.whom[where[i]].end(), (*fills)[i][want],
                                                want);
    }
  }
  Matching matching(problem, seats);
  for (const size_t seat : InOrder(problem, seats)) {
    if (shared >> seat & 1) continue;
    if (!matching.Add(seat) && !seats[seat].existing) return std::nullopt;
  }
  for (size_t seat = 0; seat < seats.size(); ++seat) {
    auto& whom = candidate.seating.whom[seat];
    if (const auto want = matching.Of(seat)) whom.push_back(*want);
    candidate.seating.placed += static_cast<uint32_t>(whom.size());
    if (!whom.empty()) candidate.weight = Sum(candidate.weight, WeightOf(problem.ProfileAt(seats[seat])));
  }
  return candidate;
}

uint32_t Tenants(const Problem& problem, bool shares) {
  uint32_t sum = 0;
  for (size_t want = 0; want < problem.wants.size(); ++want) {
    if (problem.wants[want].shares == shares) sum += problem.counts[want];
  }
  return sum;
}

// Which seats are for those who share: sets that leave no seat without use for want of tenants, and of
// seats that are alike always the first ones.
std::vector<uint32_t> SharedSets(const Problem& problem, const std::vector<Seat>& seats) {
  const uint32_t sharing = Tenants(problem, true), owning = Tenants(problem, false);
  std::vector<uint32_t> sets;
  for (uint32_t set = 0; set < (sharing > 0 ? 1u << seats.size() : 1); ++set) {
    uint32_t new_ones = 0;
    bool first_ones = true;
    for (size_t i = 0; i < seats.size(); ++i) {
      const bool in = set >> i & 1;
      new_ones += !in && !seats[i].existing;
      for (size_t j = 0; in && j < i; ++j) {
        const bool alike =
            seats[j].existing == seats[i].existing && seats[j].instance.profile == seats[i].instance.profile;
        first_ones = first_ones && !(alike && (set >> j & 1) == 0);
      }
    }
    if (first_ones && new_ones <= owning && static_cast<uint32_t>(std::popcount(set)) <= sharing)
      sets.push_back(set);
  }
  return sets;
}

}  // namespace

std::optional<Seating> SeatTenants(const MigModel& model, const std::vector<Seat>& seats,
                                   const std::vector<Want>& wants, const std::vector<uint32_t>& counts) {
  const Problem problem{model, wants, counts};
  std::optional<Candidate> best;
  bool exact = true;
  for (const uint32_t shared : SharedSets(problem, seats)) {
    auto candidate = With(problem, seats, shared);
    if (!candidate) continue;
    exact = exact && candidate->seating.exact;
    const auto better = [&] {
      if (candidate->seating.placed != best->seating.placed)
        return candidate->seating.placed > best->seating.placed;
      return candidate->weight < best->weight;
    };
    if (!best || better()) best = std::move(candidate);
  }
  if (!best) return std::nullopt;
  best->seating.exact = exact;
  return best->seating;
}

}  // namespace gpumux::core::mig

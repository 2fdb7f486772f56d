// SPDX-License-Identifier: Apache-2.0
#include "core/turns.h"

#include <algorithm>
#include <numeric>

namespace gpumux::core {

namespace {

using Time = Turns::Time;

// Not to be asked again sooner: the caller's thread has to sleep.
constexpr Time kSoonest = std::chrono::microseconds(50);
// After the first turn that was not used; doubles with each.
constexpr Time kUnusedFirst = std::chrono::milliseconds(10);
// A part that only rounds to something must not divide by nothing.
constexpr double kLeastPart = 1e-3;
// In tags: what one of two equal tenants is behind by when its turn begins.
constexpr Time kMostCredit = 2 * Turns::kOthers;

double Ns(Time time) { return static_cast<double>(time.count()); }
Time Ns(double ns) { return Time(static_cast<Time::rep>(ns)); }

}  // namespace

const char* Name(TurnEnd why) {
  switch (why) {
    case TurnEnd::kOver:
      return "over";
    case TurnEnd::kIdle:
      return "idle";
    case TurnEnd::kUnused:
      return "unused";
    case TurnEnd::kCeiling:
      return "ceiling";
    case TurnEnd::kMadeWay:
      return "made-way";
    case TurnEnd::kOverran:
      return "overran";
    case TurnEnd::kLeft:
      return "left";
  }
  return "?";
}

Turns::Turns(size_t tenants, Times times) : times_(times), tenants_(tenants) {
  there_.reserve(tenants);
  order_.reserve(tenants);
  keys_.resize(tenants);
  shares_.reserve(tenants);
  parts_.resize(tenants);
  events_.reserve(4 * tenants);  // a tenant's drain, its new turn and that one's end, and one that left
  left_.reserve(tenants);
}

void Turns::Add(size_t tenant, const TurnShare& share, const Gpus& gpus) {
  Tenant& t = tenants_[tenant] = {};
  t.there = true;
  t.idle_since = now_ - kOthers;  // it has not been busy yet
  t.share = share;
  t.gpu_set = gpus;
  for (size_t gpu = 0; gpu < gpus.size(); ++gpu) {
    if (!gpus[gpu]) continue;
    t.gpus.push_back(gpu);
    t.tags.push_back(gpus_[gpu].least_tag);
    t.credits.push_back(0);
  }
  t.parts.assign(t.gpus.size(), 1);
  t.bucket_ns = Ns(kBurst);
  there_.insert(std::lower_bound(there_.begin(), there_.end(), tenant), tenant);
}

void Turns::Change(size_t tenant, const TurnShare& share) {
  Tenant& t = tenants_[tenant];
  t.share = share;
  if (!share.HasCeiling()) {
    t.at_ceiling = false;
    t.bucket_ns = Ns(kBurst);
  }
  divided_ = false;
}

void Turns::Remove(size_t tenant) {
  Tenant& t = tenants_[tenant];
  if (t.state == TurnState::kHolding && t.contended) left_.push_back(Report(t, TurnEnd::kLeft));
  t.there = false;
  std::erase(there_, tenant);
  divided_ = false;
}

double Turns::PartOf(const Tenant& tenant) {
  const auto& parts = tenant.parts;
  return parts.empty() ? 1 : *std::min_element(parts.begin(), parts.end());
}

Turns::Answer Turns::Update(Time now, std::span<const Seen> seen) {
  events_.assign(left_.begin(), left_.end());
  left_.clear();
  const Time interval = std::clamp(now - now_, Time(0), times_.longest_interval);
  now_ = std::max(now, now_);
  Bill(interval, seen);
  for (const size_t i : there_) See(tenants_[i], seen[i]);
  if (!divided_) Divide();
  AdvanceTags();
  for (const size_t i : there_) ComeOrGo(tenants_[i]);
  Choose();
  SetGates();
  return {Next(), events_};
}

// --- What was used since the last time

// A turn counts as a whole. Else what was in flight is seen at both ends of the
// interval, and who has its gate open and work at the end had it all the time.
double Turns::UsedOf(const Tenant& tenant, const Seen& seen) {
  const bool holds = tenant.state == TurnState::kHolding;
  if (holds && (tenant.contended || seen.in_flight)) return 1;
  return (tenant.seen.in_flight + seen.in_flight) / 2.0;
}

void Turns::Bill(Time interval, std::span<const Seen> seen) {
  for (auto& gpu : gpus_) gpu.users = 0;
  for (const size_t i : there_) {
    if (UsedOf(tenants_[i], seen[i]) == 0) continue;
    for (const size_t gpu : tenants_[i].gpus) ++gpus_[gpu].users;
  }
  for (const size_t i : there_) {
    Tenant& tenant = tenants_[i];
    if (tenant.share.HasCeiling())
      tenant.bucket_ns = std::min(tenant.bucket_ns + Ns(interval) * tenant.share.max_ratio, Ns(kBurst));
    size_t users = 1;
    for (const size_t gpu : tenant.gpus) users = std::max(users, gpus_[gpu].users);
    const bool free_of_charge = tenant.state == TurnState::kHolding && tenant.behind;
    const double used_ns = Ns(interval) * UsedOf(tenant, seen[i]);
    if (used_ns == 0) continue;
    const double spent_ns = used_ns / static_cast<double>(users);
    Charge(tenant, spent_ns, !free_of_charge);
    if (!tenant.share.HasCeiling()) continue;
    // A holder's maximum counts in full what it had, whoever overruns beside it.
    tenant.bucket_ns -= tenant.state == TurnState::kHolding ? used_ns : spent_ns;
    if (tenant.bucket_ns <= 0) tenant.at_ceiling = true;
  }
}

void Turns::Charge(Tenant& tenant, double spent_ns, bool to_tags) {
  tenant.billed += Ns(spent_ns);
  for (size_t k = 0; k < tenant.gpus.size() && to_tags; ++k)
    tenant.tags[k] += spent_ns / std::max(tenant.parts[k], kLeastPart);
}

// --- What the tenants do

void Turns::See(Tenant& tenant, const Seen& seen) {
  tenant.arrived = false;
  if (seen.progress != tenant.seen.progress || !seen.wants) {
    tenant.progress_at = now_;
    tenant.given_up_until = {};
    tenant.unused = 0;
  }
  const bool was_busy = tenant.busy;
  tenant.seen = seen;
  tenant.busy = seen.in_flight || (seen.wants && now_ >= tenant.given_up_until);
  if (tenant.busy != was_busy) {
    divided_ = false;
    tenant.idle_since = now_;
  }
  if (tenant.at_ceiling && tenant.bucket_ns >= Ns(kRefill)) {
    tenant.at_ceiling = false;
    tenant.arrived = tenant.state != TurnState::kIdle;
  }
  switch (tenant.state) {
    case TurnState::kIdle:
      if (tenant.busy) Arrive(tenant);
      break;
    case TurnState::kWaiting:
      if (!tenant.busy) tenant.state = TurnState::kIdle;
      break;
    case TurnState::kHolding:
      break;
    case TurnState::kDraining:
    case TurnState::kOverrunning:
      SeeDrain(tenant);
  }
  const bool late = tenant.state == TurnState::kIdle || tenant.state == TurnState::kWaiting;
  if (late && seen.in_flight && !tenant.open) Drain(tenant);
}

void Turns::Arrive(Tenant& tenant) {
  tenant.state = TurnState::kWaiting;
  tenant.waiting_since = now_;
  tenant.arrived = true;
}

void Turns::SeeDrain(Tenant& tenant) {
  if (!tenant.seen.in_flight) {
    const bool drained = tenant.state == TurnState::kDraining;
    if (drained && tenant.contended) events_.push_back(Report(tenant, tenant.why));
    tenant.state = TurnState::kIdle;
    if (tenant.busy) Arrive(tenant);
    if (drained) tenant.arrived = false;  // it has competed all along
  } else if (tenant.state == TurnState::kDraining && now_ - tenant.closed_since >= times_.grace) {
    events_.push_back(Report(tenant, TurnEnd::kOverran));
    tenant.state = TurnState::kOverrunning;
  }
}

void Turns::Divide() {
  divided_ = true;
  Gpus wanted;
  for (const size_t i : there_) {
    if (tenants_[i].Wants()) wanted |= tenants_[i].gpu_set;
  }
  for (size_t gpu = 0; gpu < kMaxGpus; ++gpu) {
    if (!wanted[gpu]) continue;
    shares_.clear();
    for (const size_t i : there_) {
      if (tenants_[i].Wants() && tenants_[i].gpu_set[gpu]) shares_.push_back(tenants_[i].share);
    }
    DivideGpu(shares_, parts_);
    size_t next = 0;
    gpus_[gpu].smallest_part = 1;
    for (const size_t i : there_) {
      Tenant& tenant = tenants_[i];
      if (!tenant.Wants() || !tenant.gpu_set[gpu]) continue;
      const auto at = std::lower_bound(tenant.gpus.begin(), tenant.gpus.end(), gpu) - tenant.gpus.begin();
      tenant.parts[static_cast<size_t>(at)] = parts_[next];
      gpus_[gpu].smallest_part = std::min(gpus_[gpu].smallest_part, parts_[next]);
      ++next;
    }
  }
}

// The least tag of those that compete for a GPU: who arrives starts from there.
void Turns::AdvanceTags() {
  std::array<double, kMaxGpus> least;
  least.fill(-1);
  for (const size_t i : there_) {
    const Tenant& tenant = tenants_[i];
    if (!tenant.Competes() || tenant.arrived || tenant.state == TurnState::kOverrunning) continue;
    for (size_t k = 0; k < tenant.gpus.size(); ++k) {
      double& tag = least[tenant.gpus[k]];
      tag = tag < 0 ? tenant.tags[k] : std::min(tag, tenant.tags[k]);
    }
  }
  for (size_t gpu = 0; gpu < kMaxGpus; ++gpu)
    gpus_[gpu].least_tag = std::max(gpus_[gpu].least_tag, least[gpu]);
}

// Who comes back is behind by what it was when it went, but by no more than a turn.
void Turns::ComeOrGo(Tenant& tenant) {
  const bool competes = tenant.Competes();
  for (size_t k = 0; k < tenant.gpus.size(); ++k) {
    const double least = gpus_[tenant.gpus[k]].least_tag;
    double& tag = tenant.tags[k];
    if (tenant.arrived && !tenant.competed) {
      tag = std::max(tag, least - tenant.credits[k]);
    } else if (tenant.competed && !competes) {
      tenant.credits[k] = std::clamp(least - tag, 0., Ns(kMostCredit));
    }
  }
  tenant.competed = competes;
}

// --- Who is next

double Turns::Key(const Tenant& tenant) const {
  double key = -1e300;
  for (size_t k = 0; k < tenant.gpus.size(); ++k)
    key = std::max(key, tenant.tags[k] - gpus_[tenant.gpus[k]].least_tag);
  return key;
}

bool Turns::HasRival(const Tenant& tenant) const {
  return std::any_of(there_.begin(), there_.end(), [&](size_t i) {
    const Tenant& other = tenants_[i];
    return &other != &tenant && other.Competes() && other.Shares(tenant);
  });
}

Turns::Time Turns::TurnOf(const Tenant& tenant) const {
  double shortest_ns = Ns(kForever);
  for (size_t k = 0; k < tenant.gpus.size(); ++k) {
    const double others = std::max(1 - gpus_[tenant.gpus[k]].smallest_part, kLeastPart);
    shortest_ns = std::min(shortest_ns, Ns(kOthers) * std::min(tenant.parts[k] / others, 1.0));
  }
  return std::max(Ns(shortest_ns), kShortest);
}

// No longer than until its tags are those of the first of the others.
Turns::Time Turns::FurtherTurnOf(const Tenant& holder) const {
  double ahead_ns = Ns(kForever);
  for (const size_t i : there_) {
    const Tenant& other = tenants_[i];
    if (&other == &holder || !other.Eligible() || !other.Shares(holder)) continue;
    ahead_ns = std::min(ahead_ns, Key(other) - Key(holder));
  }
  const Time turn = TurnOf(holder);
  const double equal_ns = ahead_ns * PartOf(holder);
  return equal_ns < Ns(turn) ? std::max(Ns(equal_ns), kShortest) : turn;
}

void Turns::EndTurn(Tenant& holder) {
  const bool rival = HasRival(holder);
  holder.contended |= rival;
  if (!holder.busy) {
    if (!rival || now_ - holder.idle_since >= times_.idle_after) Close(holder, TurnEnd::kIdle);
  } else if (holder.at_ceiling) {
    Close(holder, TurnEnd::kCeiling);
  } else if (rival && !holder.seen.in_flight &&
             now_ - std::max(holder.held_since, holder.progress_at) >= times_.unused_after) {
    holder.given_up_until =
        now_ + std::min(kUnusedFirst * (1u << std::min(holder.unused, 20u)), times_.unused_again);
    ++holder.unused;
    holder.busy = false;
    Close(holder, TurnEnd::kUnused);
  }
}

// Of a turn that is under way, and others have come.
void Turns::LimitTurn(Tenant& holder) const {
  const double key = Key(holder);
  for (const size_t i : there_) {
    const Tenant& other = tenants_[i];
    if (&other == &holder || !other.Eligible() || !other.Shares(holder)) continue;
    if (other.arrived && Key(other) <= key)
      holder.until = std::min(holder.until, std::max(now_, holder.held_since + kShortest));
    else if (holder.until == kForever)
      holder.until = now_ + TurnOf(holder);
  }
}

void Turns::Choose() {
  for (const size_t i : there_) {
    if (tenants_[i].state == TurnState::kHolding) EndTurn(tenants_[i]);
  }
  for (const size_t i : there_) {
    if (tenants_[i].state == TurnState::kHolding) LimitTurn(tenants_[i]);
  }
  PrepareGpus();
  MakeOrder();
  for (const size_t i : order_) ChooseFor(i);
}

void Turns::PrepareGpus() {
  for (auto& gpu : gpus_) {
    gpu.taken = false;
    gpu.draining = 0;
    gpu.kept_from = kForever;
  }
  for (const size_t i : there_) {
    const Tenant& tenant = tenants_[i];
    if (tenant.state == TurnState::kHolding && !MayYield(tenant)) Take(i, tenant.until);
    if (tenant.state != TurnState::kDraining) continue;
    for (const size_t gpu : tenant.gpus) ++gpus_[gpu].draining;
  }
}

void Turns::MakeOrder() {
  order_.clear();
  for (const size_t i : there_) {
    Tenant& tenant = tenants_[i];
    const bool holds = tenant.state == TurnState::kHolding;
    tenant.next &= tenant.Eligible();
    if (!tenant.Eligible() && !(holds && MayYield(tenant))) continue;
    // A further turn is for who is behind by one; or who is as good as level would get
    // two turns in a row, and the others wait twice as long.
    keys_[i] = Key(tenant) + (holds ? Ns(kShortest) / std::max(PartOf(tenant), kLeastPart) : 0);
    order_.push_back(i);
  }
  std::sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    const Tenant &ta = tenants_[a], &tb = tenants_[b];
    if (ta.next != tb.next) return ta.next;
    if (keys_[a] != keys_[b]) return keys_[a] < keys_[b];
    const bool holds_a = ta.state == TurnState::kHolding, holds_b = tb.state == TurnState::kHolding;
    if (holds_a != holds_b) return holds_b;
    if (ta.waiting_since != tb.waiting_since) return ta.waiting_since < tb.waiting_since;
    return a < b;
  });
}

void Turns::ChooseFor(size_t i) {
  Tenant& tenant = tenants_[i];
  const bool holds = tenant.state == TurnState::kHolding;
  bool taken = false, others_drain = false;
  Time free_at = now_, kept_from = kForever;
  for (const size_t gpu : tenant.gpus) {
    if (gpus_[gpu].taken) free_at = std::max(free_at, gpus_[gpu].free_at);
    taken |= gpus_[gpu].taken;
    others_drain |= gpus_[gpu].draining > (tenant.state == TurnState::kDraining ? 1u : 0u);
    kept_from = std::min(kept_from, gpus_[gpu].kept_from);
  }
  if (taken) {
    for (const size_t gpu : tenant.gpus) gpus_[gpu].kept_from = std::min(gpus_[gpu].kept_from, free_at);
    if (holds) Close(tenant, tenant.behind ? TurnEnd::kMadeWay : TurnEnd::kOver);
  } else if (holds) {
    StayOrYield(i, kept_from);
  } else {
    StartOrWait(i, others_drain, kept_from);
  }
}

void Turns::StayOrYield(size_t i, Time kept_from) {
  Tenant& tenant = tenants_[i];
  if (kept_from <= now_) return Close(tenant, TurnEnd::kMadeWay);
  tenant.behind = kept_from != kForever;
  tenant.until = HasRival(tenant) ? std::min(now_ + FurtherTurnOf(tenant), kept_from) : kForever;
  Take(i, tenant.until);
}

void Turns::StartOrWait(size_t i, bool others_drain, Time kept_from) {
  Tenant& tenant = tenants_[i];
  // A switch is not worth less.
  if (kept_from != kForever && kept_from < now_ + kShortest) return;
  for (const size_t k : there_) {
    Tenant& other = tenants_[k];
    if (k == i || other.state != TurnState::kHolding || !other.Shares(tenant)) continue;
    // It comes later in the order, or the GPU would be taken.
    Close(other, other.behind ? TurnEnd::kMadeWay : TurnEnd::kOver);
    others_drain |= other.seen.in_flight;
  }
  const Time length = TurnOf(tenant);
  Take(i, std::min(now_ + length, kept_from));
  // What it was chosen as holds, also if those before it are served meanwhile.
  tenant.behind = kept_from != kForever || (tenant.next && tenant.behind);
  tenant.next = others_drain;
  if (others_drain) return;
  if (tenant.state == TurnState::kDraining && tenant.contended) events_.push_back(Report(tenant, tenant.why));
  tenant.state = TurnState::kHolding;
  tenant.held_since = now_;
  tenant.billed_before = tenant.billed;
  tenant.contended = HasRival(tenant);
  tenant.until = tenant.contended ? std::min(now_ + length, kept_from) : kForever;
}

void Turns::Take(size_t i, Time free_at) {
  for (const size_t gpu : tenants_[i].gpus) {
    gpus_[gpu].taken = true;
    gpus_[gpu].free_at = free_at;
  }
}

// --- Ends

void Turns::Close(Tenant& tenant, TurnEnd why) {
  tenant.why = why;
  tenant.closed_since = now_;
  tenant.waiting_since = now_;
  divided_ = false;
  if (tenant.seen.in_flight) {
    tenant.state = TurnState::kDraining;
    for (const size_t gpu : tenant.gpus) ++gpus_[gpu].draining;
    return;
  }
  if (tenant.contended) events_.push_back(Report(tenant, why));
  tenant.state = tenant.busy ? TurnState::kWaiting : TurnState::kIdle;
}

// Work of a tenant without a turn is past its closed gate.
void Turns::Drain(Tenant& tenant) {
  if (tenant.state == TurnState::kIdle) tenant.waiting_since = now_;
  tenant.state = TurnState::kDraining;
  tenant.contended = false;
  tenant.held_since = tenant.closed_since = now_;
  tenant.billed_before = tenant.billed;
}

Turns::Event Turns::Report(const Tenant& tenant, TurnEnd why) const {
  const bool holds = tenant.state == TurnState::kHolding && why == TurnEnd::kLeft;
  const Time closed = holds ? now_ : tenant.closed_since;
  return {static_cast<size_t>(&tenant - tenants_.data()), why, closed - tenant.held_since, now_ - closed,
          tenant.billed - tenant.billed_before};
}

bool Turns::WasBusy(const Tenant& tenant) const {
  return !tenant.Wants() && now_ - tenant.idle_since < kOthers;
}

void Turns::SetGates() {
  for (auto& gpu : gpus_) gpu.competing = gpu.concerned = 0;
  for (const size_t i : there_) {
    const Tenant& tenant = tenants_[i];
    for (const size_t gpu : tenant.gpus) {
      gpus_[gpu].competing += tenant.Competes();
      gpus_[gpu].concerned += tenant.Competes() || WasBusy(tenant);
    }
  }
  for (const size_t i : there_) {
    Tenant& tenant = tenants_[i];
    bool open = tenant.state == TurnState::kIdle && !tenant.at_ceiling;
    const size_t others = WasBusy(tenant) ? 0 : 1;
    for (const size_t gpu : tenant.gpus) open &= gpus_[gpu].competing <= others;
    open |= tenant.state == TurnState::kHolding;
    if (tenant.open && !open && tenant.seen.in_flight && tenant.state != TurnState::kDraining) Drain(tenant);
    tenant.open = open;
  }
}

Turns::Time Turns::Next() const {
  if (there_.empty()) return kForever;
  Time next = now_ + times_.ask_free;
  for (const size_t i : there_) {
    const Tenant& tenant = tenants_[i];
    if (tenant.state == TurnState::kDraining) return now_ + times_.ask_draining;
    if (tenant.share.HasCeiling()) next = std::min(next, now_ + times_.ask_ceiling);
    for (const size_t gpu : tenant.gpus) {
      if (gpus_[gpu].concerned > 1) next = std::min(next, now_ + times_.ask_held);
    }
    if (tenant.state == TurnState::kHolding) next = std::min(next, std::max(tenant.until, now_ + kSoonest));
  }
  return next;
}

}  // namespace gpumux::core

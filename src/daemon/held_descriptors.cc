// SPDX-License-Identifier: Apache-2.0
#include "daemon/held_descriptors.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "base/kill_point.h"
#include "base/log.h"
#include "daemon/gpu_descriptor.h"
#include "daemon/process_tree.h"
#include "gpumux/abi/keeper.h"

namespace gpumux::daemon {

namespace {

constexpr unsigned kTimesTheBacklog = 3;
// Nothing was launched, or all of it has ended: a copy may still be under way.
constexpr Time kHoldIdle = std::chrono::milliseconds(200);
// The keeper saw the death a little before the daemon did.
constexpr Time kAboutOver = std::chrono::milliseconds(100);
// Of the keeper's items: one for the process and one for each message.
constexpr size_t kMostItems = GPUMUX_KEEPER_MAX_ITEMS / 2;

size_t ItemsOf(uint32_t descriptors) {
  return descriptors == 0 ? 0 : 1 + (descriptors + GPUMUX_KEEPER_MAX_FDS - 1) / GPUMUX_KEEPER_MAX_FDS;
}

std::string Seconds(Time time) {
  return fmt::format("{:.1f} s", std::chrono::duration<double>(time).count());
}

std::string PrefixOf(const ProcessName& process) {
  return fmt::format("devices {} {} ", process.pid, process.start_time);
}

// For trials of what holding is good for.
bool IsSwitchedOff() {
  static const char* const set = std::getenv("GPUMUX_HOLD_DESCRIPTORS");
  return set && std::string_view(set) == "never";
}

// Worth telling the keeper: a quarter more or less.
bool Differs(Time told, Time now) { return now > told + told / 4 || now < told - told / 4; }

}  // namespace

Time HoldTimes::For(const WorkWords& work) const {
  const uint64_t under_way = work.launches - work.done;
  if (under_way == 0) return std::min(kHoldIdle, least);
  const auto most_ns = static_cast<uint64_t>(most.count());
  if (work.launch_ns > most_ns / kTimesTheBacklog / under_way) return most;
  return std::clamp(Time(static_cast<int64_t>(kTimesTheBacklog * under_way * work.launch_ns)), least, most);
}

std::string HeldDescriptors::NewGroup(const Member& member) {
  // Another daemon's rounds may still be there.
  return fmt::format("{}{}.{}", PrefixOf(member.process), ::getpid(), member.held.round);
}

bool HeldDescriptors::IsFull() const {
  size_t items = 0;
  for (const auto& [id, tenant] : tenants_.live()) {
    for (const auto& [key, member] : tenant->members)
      items += ItemsOf(member.held.held) + ItemsOf(member.held.came);
  }
  return items >= kMostItems;
}

void HeldDescriptors::StartRound(Member& member, uint32_t count) {
  HeldOfProcess& held = member.held;
  if (held.IsWhole()) {
    held.group_before = held.group;
  } else {
    Release(held.group);
  }
  ++held.round;
  held.lost = false;
  held.coming = count;
  held.came = 0;
  held.group = count > 0 ? NewGroup(member) : std::string();
  held.failed = count > 0 && !keeper_.Watch(held.group, member.pidfd.get());
}

void HeldDescriptors::Release(const std::string& group) {
  if (!group.empty() && !keeper_.Release(group)) unreleased_.push_back(group);
}

bool HeldDescriptors::Pass(const Tenant& tenant, Member& member, const gpumux_hold_descriptors& message,
                           const std::vector<UniqueFd>& fds) {
  if (IsFull()) {
    LogWarning("tenant {}: no room for the descriptors of pid {}: too many are held", tenant.id,
               member.process.pid);
    return false;
  }
  std::vector<int> numbers;
  for (const UniqueFd& fd : fds) numbers.push_back(fd.get());
  member.held.hold = times_.WhileItLives(member.page->Work());
  return keeper_.Linger(member.held.group, message.first, numbers, member.held.hold);
}

void HeldDescriptors::EndRound(Member& member) {
  HeldOfProcess& held = member.held;
  held.held = held.coming;
  Release(held.group_before);
  held.group_before.clear();
  // What the daemon before this one was sent.
  const std::string prefix = PrefixOf(member.process);
  std::erase_if(lingering_, [&](const std::string& group) {
    if (!group.starts_with(prefix)) return false;
    Release(group);
    return true;
  });
}

bool HeldDescriptors::Receive(Tenant& tenant, Member& member, const gpumux_hold_descriptors& message,
                              const std::vector<UniqueFd>& fds) {
  HeldOfProcess& held = member.held;
  const bool first = message.first == 0;
  const bool in_order = first || (message.count == held.coming && message.first == held.came);
  if (!tenant.pages->IsMps() || !in_order || message.count > GPUMUX_MAX_HELD || fds.size() > GPUMUX_MAX_FDS ||
      (fds.empty() && message.count > 0) || message.first + fds.size() > message.count)
    return false;
  for (const UniqueFd& fd : fds) {
    if (!IsOfGpu(fd.get(), machine_.source().simulated)) return false;
  }
  if (IsSwitchedOff()) return true;
  if (first) StartRound(member, message.count);
  // The rest of a round that has failed is of no use: with a keeper again, the guard is called
  // for all of it, and until then what it sent before is held.
  if (!fds.empty() && !held.failed) {
    held.failed = !Pass(tenant, member, message, fds);
    KillPoint("descriptors-came");
  }
  held.came = message.first + static_cast<uint32_t>(fds.size());
  if (held.IsWhole()) EndRound(member);
  return true;
}

void HeldDescriptors::ProgramGone(Tenant& tenant, Member& member) {
  HeldOfProcess& held = member.held;
  if (held.group.empty() || !member.page) return;
  const Time hold = times_.For(member.page->Work());
  // Without the keeper: at the next look.
  if (!LingerFor(held, hold, /*dead=*/true)) return;
  LogInfo("tenant {}: pid {} has executed another program: its {} descriptors are held for {}", tenant.id,
          member.process.pid, held.held, Seconds(hold));
  const unsigned round = held.round;
  held = {};
  held.round = round;
}

bool HeldDescriptors::LingerFor(const HeldOfProcess& held, Time hold, bool dead) {
  return keeper_.LingerFor(held.group, hold, dead) &&
         (held.group_before.empty() || keeper_.LingerFor(held.group_before, hold, dead));
}

bool HeldDescriptors::LeftByEarlierDaemon(const ProcessName& process) const {
  return std::any_of(
      lingering_.begin(), lingering_.end(),
      [prefix = PrefixOf(process)](const std::string& group) { return group.starts_with(prefix); });
}

void HeldDescriptors::Died(Tenant& tenant, Member& member) {
  HeldOfProcess& held = member.held;
  if (!tenant.pages || !tenant.pages->IsMps()) return;
  if (!member.page) {
    // Its guard never came to this daemon: the keeper lets go by the word of the one before.
    if (LeftByEarlierDaemon(member.process)) held.hold = times_.most;
    return;
  }
  const WorkWords work = member.page->Work();
  // With a lasting error, or without a context, it has no work any more, whatever it launched.
  const bool over = member.page->FirstError() != 0 ||
                    std::all_of(member.gpus.begin(), member.gpus.end(), [](const Member::Gpu& gpu) {
                      return gpu.contexts + gpu.pending_contexts == 0;
                    });
  const Time hold = over ? std::min(kHoldIdle, times_.least) : times_.For(work);
  held.under_way = !over && work.launches > work.done;
  uint32_t have = held.held > 0 || held.failed ? held.held : held.came;
  // Without the keeper it is as that was told last.
  if (have > 0 && LingerFor(held, hold, /*dead=*/false)) held.hold = hold;
  if (held.lost) have = 0;
  if (have == 0) held.hold = {};
  if (!held.under_way) return;
  events_.Note(
      About(EventKind::kDiedAtWork, tenant,
            have > 0 ? fmt::format("pid {} died with work under way: {} descriptors held for {}",
                                   member.process.pid, have, Seconds(held.hold))
                     : fmt::format("pid {} died with work under way and no descriptors of it are held: its "
                                   "neighbours may get error 700",
                                   member.process.pid)));
}

void HeldDescriptors::Freed(const Tenant& tenant, const Member& member) {
  // Perhaps because the keeper has died.
  keeper_.Look();
  const HeldOfProcess& held = member.held;
  if (held.under_way && held.hold != Time{} && member.died) {
    const Time after = clock_.Now() - *member.died;
    const bool early = !held.lost && after + kAboutOver < held.hold;
    events_.Note(
        About(EventKind::kLetGo, tenant,
              fmt::format("pid {}: let go, and its memory is free again after {}{}", member.process.pid,
                          Seconds(after), early ? ", before the end of the hold" : "")));
  }
  if (on_let_go) on_let_go(member);
}

void HeldDescriptors::KeeperGone() {
  for (const auto& [id, tenant] : tenants_.live()) {
    for (auto& [key, member] : tenant->members) {
      HeldOfProcess& held = member.held;
      if (held.held + held.came > 0) held.lost = true;
      held.held = 0;
      held.failed = held.coming > 0;
      held.group_before.clear();
      if (!member.died || !held.under_way || held.hold == Time{}) continue;
      const Time gone = clock_.Now() - *member.died;
      if (gone + kAboutOver >= held.hold) continue;
      held.hold = gone;
      if (on_let_go) on_let_go(member);
      events_.Note(About(EventKind::kLetGo, *tenant,
                         fmt::format("pid {}: let go after {}, for the keeper has died: the work of its "
                                     "neighbours may be lost, by error 700",
                                     member.process.pid, Seconds(gone))));
    }
  }
}

void HeldDescriptors::CallAgain() {
  for (std::string& group : keeper_.TakeLingering()) lingering_.push_back(std::move(group));
  for (const auto& [id, tenant] : tenants_.live()) {
    if (tenant->pages && tenant->pages->IsMps()) tenant->pages->CallForDescriptors();
  }
}

void HeldDescriptors::Tick() {
  for (const std::string& group : std::exchange(unreleased_, {})) Release(group);
  for (std::string& group : keeper_.TakeLingering()) lingering_.push_back(std::move(group));
  for (const auto& [id, tenant] : tenants_.live()) {
    for (auto& [key, member] : tenant->members) {
      if (member.died || member.held.group.empty() || !member.page) continue;
      if (member.sessions == 0 && !MayHaveProcessPage(member.process.pid)) {
        ProgramGone(*tenant, member);
        continue;
      }
      const Time hold = times_.WhileItLives(member.page->Work());
      if (Differs(member.held.hold, hold) && LingerFor(member.held, hold, /*dead=*/false))
        member.held.hold = hold;
    }
  }
}

}  // namespace gpumux::daemon

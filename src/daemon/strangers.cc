// SPDX-License-Identifier: Apache-2.0
#include "daemon/strangers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "base/process.h"
#include "base/units.h"
#include "daemon/container.h"
#include "daemon/machine.h"
#include "daemon/usage.h"
#include "daemon/user_name.h"

namespace gpumux::daemon {

namespace {

// A promise counts as covered again when every reading for so long said so:
// programs that free and take again would make a pair of events each time.
constexpr Time kCalm = std::chrono::seconds(1);

Stranger LookAt(pid_t pid) {
  Stranger stranger;
  stranger.process.pid = pid;
  const auto stat = ReadProcessStat(pid);
  if (!stat) return stranger;
  stranger.process.start_time = stat->start_time;
  // Its own choice: any bytes.
  for (const char c : stat->name) stranger.name += c >= ' ' && c < 0x7f ? c : '?';
  if (const auto owner = ProcessOwner(pid)) stranger.owner = *owner;
  stranger.container = ContainerOfProcess(pid);
  return stranger;
}

Event AboutStranger(EventKind kind, const GpuState& gpu, const Stranger& stranger, std::string text) {
  Event event;
  event.kind = kind;
  event.text = std::move(text);
  // Whoever starts them by the thousand is held to their own allowance.
  event.owner = stranger.owner;
  event.gpus = {gpu.device.uuid};
  return event;
}

// Who takes what was promised: the largest strangers first.
std::string WhoTakes(const GpuState& gpu) {
  std::vector<const Stranger*> by_size;
  for (const auto& [pid, stranger] : gpu.strangers) by_size.push_back(&stranger);
  std::stable_sort(by_size.begin(), by_size.end(),
                   [](const Stranger* a, const Stranger* b) { return a->bytes > b->bytes; });
  constexpr size_t kNamed = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kNamed, by_size.size()); ++i) {
    text += fmt::format("{}{} holds {} without a lease", i ? ", " : "", by_size[i]->Describe(),
                        FormatBytes(by_size[i]->bytes));
  }
  if (by_size.size() > kNamed) text += fmt::format(" and {} more", by_size.size() - kNamed);
  if (text.empty())
    text = gpu.ledger.UnexplainedBytes() > 0 ? fmt::format("{} are in use that no process shows",
                                                           FormatBytes(gpu.ledger.UnexplainedBytes()))
                                             : "its neighbours use more than was foreseen";
  return text;
}

}  // namespace

std::string Stranger::Describe() const {
  std::string about = name;
  if (owner) about += (about.empty() ? "of " : " of ") + UserName(*owner);
  if (!container.empty()) about += ", " + container;
  return about.empty() ? fmt::format("pid {}", process.pid) : fmt::format("pid {} ({})", process.pid, about);
}

void NoteStrangers(GpuState& gpu, const std::map<pid_t, uint64_t>& found, EventLog& events) {
  for (auto it = gpu.strangers.begin(); it != gpu.strangers.end();) {
    const auto now = NameProcess(it->first);
    const bool same = found.contains(it->first) && (now ? now->start_time : it->second.process.start_time) ==
                                                       it->second.process.start_time;
    if (!same) {
      events.Note(
          AboutStranger(EventKind::kStrangerGone, gpu, it->second,
                        fmt::format("{} is off GPU {}", it->second.Describe(), gpu.device.index.Label())));
    }
    it = same ? std::next(it) : gpu.strangers.erase(it);
  }
  for (const auto& [pid, bytes] : found) {
    const auto [it, is_new] = gpu.strangers.try_emplace(pid);
    if (is_new) it->second = LookAt(pid);
    it->second.bytes = bytes;
    if (!is_new) continue;
    events.Note(
        AboutStranger(EventKind::kStrangerSeen, gpu, it->second,
                      fmt::format("{} is on GPU {} without a lease and holds {}", it->second.Describe(),
                                  gpu.device.index.Label(), FormatBytes(bytes))));
  }
}

void WatchRisk(const GpuState& gpu, size_t gpu_index, Tenants& tenants, EventLog& events, Time now) {
  const bool holds = gpu.ledger.Holds();  // nearly always
  for (const auto& [id, entry] : gpu.ledger.Tenants()) {
    Tenant* tenant = tenants.Find(id);
    const auto slot = tenant ? SlotOf(*tenant, gpu_index) : std::nullopt;
    if (!slot) continue;
    tenant->risks.resize(tenant->gpus.size());
    Risk& risk = tenant->risks[*slot];
    risk.bytes = holds ? 0 : gpu.ledger.AtRiskBytes(id);
    if (risk.bytes > 0) {
      risk.why = WhoTakes(gpu);
      risk.covered_since.reset();
      if (risk.told) continue;
      risk.told = true;
      Event event =
          About(EventKind::kAtRisk, *tenant,
                fmt::format("up to {} of its {} are not covered on GPU {}: {}", FormatBytes(risk.bytes),
                            FormatBytes(entry.guaranteed_bytes), gpu.device.index.Label(), risk.why));
      event.gpus = {gpu.device.uuid};
      events.Note(std::move(event));
      continue;
    }
    if (!risk.told) continue;
    if (!risk.covered_since) risk.covered_since = now;
    if (now - *risk.covered_since < kCalm) continue;
    risk = {};
    Event event = About(EventKind::kCovered, *tenant,
                        fmt::format("its promise on GPU {} is covered again", gpu.device.index.Label()));
    event.gpus = {gpu.device.uuid};
    events.Note(std::move(event));
  }
}

}  // namespace gpumux::daemon

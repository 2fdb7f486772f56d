// SPDX-License-Identifier: Apache-2.0
#include "tui/daemon.h"

#include <fmt/format.h>

#include "base/clock.h"

namespace gpumux::tui {
namespace {

Result<Sample> Read(const Result<std::string>& body) {
  if (!body) return tl::unexpected(body.error());
  return ReadSample(*body);
}

// All that there are since; what cannot be had is left out, and asked for again.
std::optional<EventsSample> GatherEvents(Daemon& daemon, uint64_t after) {
  constexpr int kMostAnswers = 8;
  std::optional<EventsSample> all;
  for (int i = 0; i < kMostAnswers; ++i) {
    const auto body = daemon.AskEvents(after);
    if (!body) return all;
    auto events = ReadEvents(*body);
    if (!events) return all;
    after = events->next_after;
    const bool more = events->more;
    if (all) {
      all->next_after = after;
      for (EventSample& event : events->events) all->events.push_back(std::move(event));
    } else {
      all = std::move(*events);
    }
    if (!more) return all;
  }
  return all;
}

}  // namespace

Update Gather(Daemon& daemon, uint64_t events_after) {
  Update update;
  update.sample = Read(daemon.AskStatus());
  update.at = SystemClock().Now();
  if (update.sample) {
    update.events = GatherEvents(daemon, events_after);
    return update;
  }
  update.lost = update.sample.error().message;
  update.sample = Read(daemon.AskNvml());
  if (update.sample) update.lost += ": these figures are NVML's alone";
  return update;
}

void Apply(Update update, Model& model) {
  if (update.sample) model.Take(std::move(*update.sample), update.at);
  if (update.events) model.TakeEvents(std::move(*update.events));
  if (!update.lost.empty()) model.Lose(std::move(update.lost));
}

std::string CarryOut(Daemon& daemon, const Action& action) {
  std::string failed;
  size_t done = 0;
  for (const std::string& tenant : action.tenants) {
    const Status status = action.what == Action::What::kStop        ? daemon.Stop(tenant)
                          : action.what == Action::What::kSetMemory ? daemon.SetMemory(tenant, action.value)
                                                                    : daemon.SetTime(tenant, action.value);
    if (status)
      ++done;
    else
      failed += (failed.empty() ? "" : "; ") + tenant + ": " + status.error().ToString();
  }
  if (!failed.empty()) return failed;
  const char* what = action.what == Action::What::kStop ? "asked to end" : "changed";
  return fmt::format("{}: {}", what, done == 1 ? action.tenants[0] : fmt::format("{} tenants", done));
}

}  // namespace gpumux::tui

// SPDX-License-Identifier: Apache-2.0
#include "core/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace gpumux::core {

namespace {

using Candidates = std::vector<const GpuSnapshot*>;

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

// An index ("0", "0:2" for an instance), a UUID, or the beginning of one with at least one digit of it.
Result<const GpuSnapshot*> Select(const std::string& text, const std::vector<GpuSnapshot>& gpus) {
  const auto index = gpu::ParseIndex(text);
  const GpuSnapshot* found = nullptr;
  for (const GpuSnapshot& gpu : gpus) {
    if (gpu.absent) continue;
    const std::string uuid = gpu.uuid.ToString();
    const bool matches = index ? gpu.index == *index
                               : text.size() > 4 && text.size() <= uuid.size() &&
                                     EqualsIgnoringCase(text, std::string_view(uuid).substr(0, text.size()));
    if (!matches) continue;
    if (found)
      return Fail(Code::kInvalid, fmt::format("GPU \"{}\" names more than one GPU", text),
                  "write more of its UUID");
    found = &gpu;
  }
  if (found) return found;
  return Fail(Code::kNotFound, fmt::format("there is no GPU \"{}\" on this machine", text),
              "see them with: gpumux status");
}

// The GPUs that the request may be given at all, whether or not they fit now.
Result<Candidates> FindCandidates(const Request& request, const std::vector<GpuSnapshot>& gpus) {
  Candidates candidates;
  if (request.gpu_list.empty()) {
    for (const GpuSnapshot& gpu : gpus) {
      if (!gpu.absent) candidates.push_back(&gpu);
    }
    return candidates;
  }
  for (const std::string& text : request.gpu_list) {
    auto gpu = Select(text, gpus);
    if (!gpu) return tl::unexpected(gpu.error());
    if (std::find(candidates.begin(), candidates.end(), *gpu) != candidates.end()) {
      return Fail(Code::kInvalid, fmt::format("GPU \"{}\" is asked for twice", text));
    }
    candidates.push_back(*gpu);
  }
  return candidates;
}

uint64_t MinimumBytes(const GpuSnapshot& gpu) {
  return gpu.context.ChargeBytes() + kMinimumBeyondContextBytes;
}

// What must be promisable there for the request to start. A server of MPS that
// is not there yet takes its part before anybody's program starts.
uint64_t NeededBytes(const Request& request, Mode mode, const GpuSnapshot& gpu) {
  const uint64_t server = mode == Mode::kMps ? gpu.mps.server_bytes : 0;
  return server + (request.mem ? BytesOf(*request.mem, gpu.UsableBytes()) : MinimumBytes(gpu));
}

// Those that keep what was asked, the one that keeps it best first.
Result<std::vector<Mode>> ModesFor(const Request& request) {
  if (request.mode == Mode::kMps && request.isolation != Isolation::kNone) {
    return Fail(Code::kUnsupported,
                "mps cannot isolate: a neighbour's GPU fault ends the work of every client of its server",
                "use --isolate none if these programs may take each other down, or --mode timeslice");
  }
  if (request.isolation == Isolation::kFull) {
    if (request.mode == Mode::kTimeslice || request.mode == Mode::kTurns) {
      return Fail(Code::kUnsupported,
                  fmt::format("{} cannot isolate fully: a neighbour's load takes turns with this program",
                              Name(*request.mode)),
                  "use --mode exclusive, or --isolate fault");
    }
    if (request.mode) return std::vector{*request.mode};
    return std::vector{Mode::kMig, Mode::kExclusive};
  }
  if (request.mode) return std::vector{*request.mode};
  if (request.isolation == Isolation::kNone) return std::vector{Mode::kMps, Mode::kTimeslice, Mode::kTurns};
  return std::vector{Mode::kTimeslice, Mode::kTurns};
}

std::string ModeReason(const Request& request, Mode mode, const Candidates& chosen) {
  if (request.mode) return "asked for";
  if (mode == Mode::kExclusive) return "--isolate full: no neighbour at all";
  if (mode == Mode::kMig) return "--isolate full: an instance of its own";
  if (mode == Mode::kMps)
    return "auto: kernels run beside those of neighbours, whose GPU faults may end this program "
           "(--isolate none)";
  const char* const isolated = "a neighbour's GPU fault does not reach this program";
  if (mode == Mode::kTurns)
    return fmt::format("auto: GPU {} takes turns already, and {}", chosen.front()->index.Label(), isolated);
  return fmt::format("auto: neighbours take turns, and {}", isolated);
}

// Of the GPU's time: nullopt if there is so much.
std::optional<std::string> WhyNotTurns(const Request& request, const GpuSnapshot& gpu) {
  constexpr double kRounding = 1e-6;
  constexpr size_t kShown = 3;
  const double wanted = request.share_min.value_or(0);
  if (wanted == 0 || gpu.turns.min_ratio + wanted <= 1 + kRounding) return std::nullopt;
  std::string names;
  for (size_t i = 0; i < std::min(kShown, gpu.turns.names.size()); ++i)
    names += (i ? ", " : "") + gpu.turns.names[i];
  if (gpu.turns.names.size() > kShown) names += fmt::format(" and {} more", gpu.turns.names.size() - kShown);
  return fmt::format("needs {:.4g} % of GPU {}'s time, of which {:.4g} % are guaranteed to others ({})",
                     100 * wanted, gpu.index.Label(), 100 * gpu.turns.min_ratio, names);
}

// Nullopt: fits now. Else why it does not.
std::optional<std::string> WhyNot(const Request& request, Mode mode, const GpuSnapshot& gpu,
                                  const std::set<gpu::Uuid>& taken) {
  if (gpu.Closed()) return gpu.closed_error.message;
  if (taken.contains(gpu.uuid))
    return fmt::format("GPU {} is kept for a request ahead in the queue", gpu.index.Label());
  if (!Shares(mode) && gpu.tenants > 0) {
    return fmt::format("needs GPU {} to itself, which has {} tenant{}", gpu.index.Label(), gpu.tenants,
                       gpu.tenants == 1 ? "" : "s");
  }
  if (gpu.mode && *gpu.mode != mode) {
    return fmt::format("GPU {} is in mode {}, not {}", gpu.index.Label(), Name(*gpu.mode), Name(mode));
  }
  if (mode == Mode::kMps) {
    if (auto why = WhyNotMps(request.processes, gpu.mps, gpu.index)) return why;
  }
  if (mode == Mode::kTurns) {
    if (auto why = WhyNotTurns(request, gpu)) return why;
  }
  const uint64_t needed = NeededBytes(request, mode, gpu);
  if (needed > gpu.promisable_bytes)
    return fmt::format("needs {}, {}", FormatBytes(needed), DescribeRoom(gpu));
  return std::nullopt;
}

Share Promise(const Request& request, Mode mode, const GpuSnapshot& gpu) {
  if (!Shares(mode)) return {gpu.uuid, gpu.promisable_bytes, gpu.promisable_bytes};
  return ShareOn(request, gpu);
}

// Those among the candidates that could ever serve it; an error when they are too few.
Result<Candidates> FindPossible(const Request& request, Mode mode, const Candidates& candidates,
                                size_t count) {
  std::optional<Error> never;
  Candidates possible;
  for (const GpuSnapshot* gpu : candidates) {
    if (auto error = NeverHere(request, mode, *gpu)) {
      if (!request.gpu_list.empty()) return tl::unexpected(*error);
      // Of several reasons the one that more memory on the GPU would mend says most.
      if (!never || never->code != Code::kDenied) never = error;
    } else {
      possible.push_back(gpu);
    }
  }
  if (possible.size() >= count) return possible;
  if (possible.empty() || count == 1) return tl::unexpected(*never);
  return Fail(never->code,
              fmt::format("needs {} GPUs, {} could serve it: {}", count, possible.size(), never->message),
              never->hint);
}

Placement Place(const Request& request, Mode mode, const Candidates& chosen) {
  Placement placement{.mode = mode, .mode_reason = ModeReason(request, mode, chosen), .shares = {}};
  for (const GpuSnapshot* gpu : chosen) {
    placement.shares.push_back(Promise(request, mode, *gpu));
    if (!Shares(mode) && gpu->unmanaged_bytes > 0) {
      placement.mode_reason += fmt::format("; but unmanaged processes hold {} of GPU {}",
                                           FormatBytes(gpu->unmanaged_bytes), gpu->index.Label());
    }
  }
  return placement;
}

// What it would be guaranteed there.
uint64_t GuaranteeOn(const Request& request, Mode mode, const GpuSnapshot& gpu) {
  if (!Shares(mode)) return gpu.UsableBytes();
  return request.mem ? BytesOf(*request.mem, gpu.UsableBytes()) : 0;
}

// On the `count` GPUs where that is least.
uint64_t LeastGuarantee(const Request& request, Mode mode, const Candidates& possible, size_t count) {
  std::vector<uint64_t> bytes;
  for (const GpuSnapshot* gpu : possible) bytes.push_back(GuaranteeOn(request, mode, *gpu));
  std::sort(bytes.begin(), bytes.end());
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += bytes[i];
  return sum;
}

// A request that its owner's quota forbids even when nothing of theirs runs.
std::optional<Error> BeyondQuota(const Bound& bound, uint64_t bytes, size_t count) {
  const Quota& quota = bound.quota;
  if (bytes > 0 && quota.guaranteed_bytes && bytes > *quota.guaranteed_bytes) {
    return Error{Code::kDenied,
                 fmt::format("needs {} guaranteed, the quota of {} is {}", FormatBytes(bytes), bound.whose,
                             FormatBytes(*quota.guaranteed_bytes)),
                 HowToRaise(bound, "memory")};
  }
  if (quota.gpus && count > *quota.gpus) {
    return Error{Code::kDenied,
                 fmt::format("needs {} GPU{}, the quota of {} is {}", count, count == 1 ? "" : "s",
                             bound.whose, *quota.gpus),
                 HowToRaise(bound, "gpus")};
  }
  if (quota.tenants && *quota.tenants == 0) {
    return Error{Code::kDenied, fmt::format("the quota of {} allows no tenant", bound.whose),
                 HowToRaise(bound, "tenants")};
  }
  return std::nullopt;
}

bool MayUse(const std::vector<Bound>& bounds, const GpuSnapshot& gpu, uint64_t bytes) {
  return std::all_of(bounds.begin(), bounds.end(), [&](const Bound& bound) {
    return bound.HasRoomFor(bytes) && (bound.use.gpus.contains(gpu.uuid) || bound.FurtherGpus() > 0);
  });
}

// The first `count` in the order given that all quotas allow together; fewer
// if there are not so many. Quotas of several groups may be so entangled that
// another choice had fitted: then it waits, and none is exceeded.
Candidates Choose(const Candidates& ordered, size_t count, const Request& request, Mode mode,
                  std::vector<Bound> bounds) {
  Candidates chosen;
  for (const GpuSnapshot* gpu : ordered) {
    if (chosen.size() == count) break;
    const uint64_t bytes = GuaranteeOn(request, mode, *gpu);
    if (!MayUse(bounds, *gpu, bytes)) continue;
    for (Bound& bound : bounds) {
      bound.use.guaranteed_bytes += bytes;
      bound.use.gpus.insert(gpu->uuid);
    }
    chosen.push_back(gpu);
  }
  return chosen;
}

// GPUs first that quotas count already, then those where it takes least of them.
Candidates CheapestForQuotas(Candidates gpus, const Request& request, Mode mode,
                             const std::vector<Bound>& bounds) {
  const auto price = [&](const GpuSnapshot* gpu) {
    const auto counts = std::count_if(bounds.begin(), bounds.end(), [&](const Bound& bound) {
      return bound.quota.gpus && !bound.use.gpus.contains(gpu->uuid);
    });
    return std::pair(counts, GuaranteeOn(request, mode, *gpu));
  };
  std::stable_sort(gpus.begin(), gpus.end(),
                   [&](const auto* a, const auto* b) { return price(a) < price(b); });
  return gpus;
}

// Why the owner's tenants that run leave no room for this one; empty: they do.
std::string QuotaInUse(const Request& request, Mode mode, const Candidates& possible, size_t count,
                       const std::vector<Bound>& bounds) {
  const uint64_t bytes = LeastGuarantee(request, mode, possible, count);
  for (const Bound& bound : bounds) {
    if (!bound.HasRoomForATenant()) return "its quota is in use: " + DescribeTenants(bound);
    if (!bound.HasRoomFor(bytes))
      return fmt::format("its quota is in use: needs {}, {}", FormatBytes(bytes), DescribeBytes(bound));
  }
  if (Choose(CheapestForQuotas(possible, request, mode, bounds), count, request, mode, bounds).size() ==
      count)
    return {};
  for (const Bound& bound : bounds) {
    if (bound.quota.gpus)
      return fmt::format("its quota is in use: needs {} GPU{}, {}", count, count == 1 ? "" : "s",
                         DescribeGpus(bound));
  }
  return "its quota is in use";
}

// In which order GPUs that fit are taken.
void Order(Candidates& fitting, const Request& request, Mode mode, Fill policy) {
  const bool no_guarantee = Shares(mode) && !request.mem;
  // The smallest instance that holds it: what it is given is all of it.
  const Fill fill = mode == Mode::kMig ? Fill::kPack : request.fill.value_or(policy);
  // Who has no guarantee lives on what is left, so goes where most is.
  const bool most_room = no_guarantee && !request.fill && policy == Fill::kPack;
  std::stable_sort(fitting.begin(), fitting.end(), [&](const GpuSnapshot* a, const GpuSnapshot* b) {
    if (most_room) return a->promisable_bytes > b->promisable_bytes;
    if (fill == Fill::kPack) return a->promisable_bytes < b->promisable_bytes;
    if (a->tenants != b->tenants) return a->tenants < b->tenants;
    return a->promisable_bytes > b->promisable_bytes;
  });
}

std::optional<Error> TooLittle(const Request& request, Mode mode, uint64_t guarantee,
                               const GpuSnapshot& gpu) {
  const unsigned processes = mode == Mode::kMps ? request.processes : 1;
  const uint64_t least = processes * MinimumBytes(gpu);
  if (guarantee >= least) return std::nullopt;
  std::string whom = "any program";
  if (processes > 1) whom = fmt::format("{} processes", processes);
  return Error{Code::kDenied,
               fmt::format("{} is too little for {}: a context alone takes {} on a {}, and {} beyond it "
                           "are the least that is promised",
                           FormatBytes(guarantee), whom, FormatBytes(gpu.context.ChargeBytes()), gpu.name,
                           FormatBytes(kMinimumBeyondContextBytes)),
               fmt::format("ask for {} or more", FormatBytes(least + kMiB - least % kMiB))};
}

// All GPUs of a tenant are served by one control daemon of MPS. Leaves those of
// one domain, or those without one, that are enough; else says why they are not.
std::string KeepToOneDomain(Candidates& fitting, size_t count, bool listed) {
  if (fitting.size() < count || count < 2) return {};
  std::map<std::vector<gpu::Uuid>, Candidates> by_domain;
  for (const GpuSnapshot* gpu : fitting) by_domain[gpu->mps.domain].push_back(gpu);
  for (const GpuSnapshot* gpu : fitting) {
    Candidates& together = by_domain[gpu->mps.domain];
    if (together.size() < count) continue;
    fitting = together;
    return {};
  }
  std::string text = listed ? "its GPUs are" : "the GPUs that have room are";
  return text + " served by different MPS control daemons: one that has no tenants any more makes way";
}

// As Admit, in this mode.
Decision AdmitIn(Mode mode, const Request& request, const std::vector<GpuSnapshot>& gpus,
                 const std::set<gpu::Uuid>& taken, const Rules& rules) {
  auto candidates = FindCandidates(request, gpus);
  if (!candidates) return candidates.error();
  const bool listed = !request.gpu_list.empty();
  const size_t count = listed ? candidates->size() : request.gpu_count;
  if (count == 0 || candidates->size() < count) {
    return Error{Code::kDenied, fmt::format("needs {} GPUs, this machine has {}", count, candidates->size()),
                 "ask for fewer"};
  }
  auto possible = FindPossible(request, mode, *candidates, count);
  if (!possible) return possible.error();
  for (const Bound& bound : rules.bounds) {
    if (auto error = BeyondQuota(bound, LeastGuarantee(request, mode, *possible, count), count))
      return *std::move(error);
  }

  Wait wait;
  wait.needs = {mode, count, {}, request.share_min.value_or(0)};
  for (const GpuSnapshot* gpu : *possible) wait.needs.bytes[gpu->uuid] = NeededBytes(request, mode, *gpu);
  wait.reason = QuotaInUse(request, mode, *possible, count, rules.bounds);
  wait.for_quota = !wait.reason.empty();
  if (wait.for_quota) return wait;

  Candidates fitting;
  for (const GpuSnapshot* gpu : *possible) {
    auto why = WhyNot(request, mode, *gpu, taken);
    if (!MayUse(rules.bounds, *gpu, GuaranteeOn(request, mode, *gpu))) {
      wait.needs.bytes.erase(gpu->uuid);
      why = "its owner's quota leaves no room there";
    } else {
      wait.wants.insert(gpu->uuid);
    }
    if (!why) {
      fitting.push_back(gpu);
      continue;
    }
    if (!wait.reason.empty()) wait.reason += "; ";
    if (possible->size() > 1) wait.reason += fmt::format("GPU {}: ", gpu->index.Label());
    wait.reason += *why;
  }
  Order(fitting, request, mode, rules.fill);
  if (mode == Mode::kMps) {
    if (auto apart = KeepToOneDomain(fitting, count, listed); !apart.empty()) {
      wait.reason = apart;
      return wait;
    }
  }
  Candidates chosen = Choose(fitting, count, request, mode, rules.bounds);
  if (chosen.size() < count)
    chosen =
        Choose(CheapestForQuotas(fitting, request, mode, rules.bounds), count, request, mode, rules.bounds);
  if (chosen.size() < count) {
    if (count > 1)
      wait.reason = fmt::format("{} of {} GPUs are free for it: {}", chosen.size(), count, wait.reason);
    return wait;
  }
  std::sort(chosen.begin(), chosen.end(), [](const auto* a, const auto* b) { return a->index < b->index; });
  if (listed) chosen = *candidates;  // in the order that the user wrote
  return Place(request, mode, chosen);
}

// What is to be hoped for: nothing; to wait; to wait for a GPU that has the mode already.
int Prospect(const Decision& decision, const std::vector<GpuSnapshot>& gpus) {
  const auto* wait = std::get_if<Wait>(&decision);
  if (!wait) return 0;
  const bool joins = std::any_of(gpus.begin(), gpus.end(), [&](const GpuSnapshot& gpu) {
    return gpu.mode == wait->needs.mode && wait->wants.contains(gpu.uuid);
  });
  return joins ? 2 : 1;
}

}  // namespace

std::optional<Error> NeverHere(const Request& request, Mode mode, const GpuSnapshot& gpu) {
  if (gpu.Closed() && !gpu.opens_soon) return gpu.closed_error;
  if (gpu.index.instance && std::max<size_t>(request.gpu_count, request.gpu_list.size()) > 1) {
    return Error{Code::kUnsupported,
                 fmt::format("GPU {} is a MIG instance, and a program has one at a time", gpu.index.Label()),
                 "ask for one, or for whole GPUs"};
  }
  if (const auto it = gpu.forbidden_modes.find(mode); it != gpu.forbidden_modes.end()) {
    return Error{it->second.code,
                 fmt::format("GPU {} cannot be used in mode {}: {}", gpu.index.Label(), Name(mode),
                             it->second.message),
                 it->second.hint};
  }
  if (mode == Mode::kMps && request.processes > gpu.mps.most_clients) {
    return Error{Code::kDenied,
                 fmt::format("needs {} MPS clients, GPU {} can have {}", request.processes, gpu.index.Label(),
                             gpu.mps.most_clients),
                 "write a smaller --processes"};
  }
  if (!request.mem) return std::nullopt;
  const uint64_t needed = NeededBytes(request, mode, gpu);
  if (needed > gpu.UsableBytes()) {
    return Error{Code::kDenied,
                 fmt::format("needs {}, GPU {} ({}) can never promise more than {} ({} less {} of reserve)",
                             FormatBytes(needed), gpu.index.Label(), gpu.name, FormatBytes(gpu.UsableBytes()),
                             FormatBytes(gpu.total_bytes), FormatBytes(gpu.reserve_bytes)),
                 "ask for less"};
  }
  const uint64_t guarantee = BytesOf(*request.mem, gpu.UsableBytes());
  if (auto little = TooLittle(request, mode, guarantee, gpu)) return little;
  if (request.mem_limit && BytesOf(*request.mem_limit, gpu.UsableBytes()) < guarantee) {
    return Error{
        Code::kInvalid,
        fmt::format("the limit {} is below the guarantee {}",
                    FormatBytes(BytesOf(*request.mem_limit, gpu.UsableBytes())), FormatBytes(guarantee)),
        "write --mem GUARANTEE:LIMIT with the larger one last"};
  }
  return std::nullopt;
}

Share ShareOn(const Request& request, const GpuSnapshot& gpu) {
  if (!request.mem) return {gpu.uuid, 0, std::nullopt};
  const uint64_t guaranteed = BytesOf(*request.mem, gpu.UsableBytes());
  const uint64_t limit = request.mem_limit ? BytesOf(*request.mem_limit, gpu.UsableBytes()) : guaranteed;
  // A program is never told more than the GPU has.
  return {gpu.uuid, guaranteed, std::clamp(limit, guaranteed, std::max(guaranteed, gpu.UsableBytes()))};
}

std::string DescribeRoom(const GpuSnapshot& gpu) {
  const std::string usable = FormatBytes(gpu.UsableBytes());
  std::string guaranteed = FormatBytes(gpu.guaranteed_bytes);
  // "61.2 of 139.8 GiB": a common unit is written once.
  const std::string unit = usable.substr(std::min(usable.find(' '), usable.size()));
  if (!unit.empty() && guaranteed.ends_with(unit)) guaranteed.resize(guaranteed.size() - unit.size());
  std::string text = fmt::format("{} can be promised ({} of {} guaranteed", FormatBytes(gpu.promisable_bytes),
                                 guaranteed, usable);
  if (gpu.burst_bytes > 0) text += fmt::format(", {} used beyond guarantees", FormatBytes(gpu.burst_bytes));
  if (gpu.unmanaged_bytes > 0) {
    text += fmt::format(", {} held by unmanaged", FormatBytes(gpu.unmanaged_bytes));
    constexpr size_t kShown = 3;
    for (size_t i = 0; i < std::min(kShown, gpu.strangers.size()); ++i) {
      text += fmt::format("{} {}", i ? "," : "", gpu.strangers[i]);
    }
    if (gpu.strangers.size() > kShown) text += fmt::format(" and {} more", gpu.strangers.size() - kShown);
  }
  if (gpu.unexplained_bytes > 0) text += fmt::format(", {} unexplained", FormatBytes(gpu.unexplained_bytes));
  return text + ")";
}

Decision Admit(const Request& request, const std::vector<GpuSnapshot>& gpus, const std::set<gpu::Uuid>& taken,
               const Rules& rules) {
  const auto modes = ModesFor(request);
  if (!modes) return modes.error();
  std::optional<Decision> best;
  const bool instances = std::any_of(gpus.begin(), gpus.end(),
                                     [](const GpuSnapshot& gpu) { return gpu.index.instance.has_value(); });
  for (const Mode mode : *modes) {
    if (mode == Mode::kMig && !request.mode && !instances) continue;
    Decision decision = AdmitIn(mode, request, gpus, taken, rules);
    if (std::holds_alternative<Placement>(decision)) return decision;
    if (!best || Prospect(decision, gpus) > Prospect(*best, gpus)) best = std::move(decision);
  }
  return *std::move(best);
}

}  // namespace gpumux::core

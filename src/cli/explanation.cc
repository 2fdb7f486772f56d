// SPDX-License-Identifier: Apache-2.0
#include "cli/explanation.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/cpu_list.h"
#include "base/units.h"
#include "cli/envelope.h"
#include "cli/refusal_line.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
constexpr size_t kWidth = 300;

std::optional<uint64_t> NumberAt(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number_unsigned() ? std::optional(value.get<uint64_t>()) : std::nullopt;
}

std::string Memory(const std::optional<uint64_t>& bytes) { return bytes ? FormatBytes(*bytes) : "–"; }

const Json& ListAt(const Json& object, const char* key) {
  static const Json kEmpty = Json::array();
  const Json& value = At(object, key);
  return value.is_array() ? value : kEmpty;
}

// `remedy`: what to do about it; "" when there is nothing to do.
Json Part(const char* part, const Json& by, const char* status, const std::string& why,
          const std::string& remedy = "") {
  return {{"part", part},
          {"by", by},
          {"status", status},
          {"why", why},
          {"remedy", remedy.empty() ? Json() : Json(remedy)}};
}

bool IsWaiting(const Json& tenant) { return At(tenant, "waiting").is_object(); }
bool HasEnded(const Json& tenant) { return At(tenant, "ended").is_object(); }

// Only GPUs that this tenant has.
std::vector<const Json*> GpusOf(const Json& tenant, const Json& status) {
  std::vector<const Json*> found;
  for (const Json& own : ListAt(tenant, "gpus")) {
    for (const Json& gpu : ListAt(status, "gpus")) {
      if (TextAt(gpu, "uuid") == TextAt(own, "uuid")) found.push_back(&gpu);
    }
  }
  return found;
}

size_t UnmanagedOn(const Json& tenant, const Json& status) {
  size_t count = 0;
  for (const Json* gpu : GpusOf(tenant, status)) count += ListAt(*gpu, "unmanaged_pids").size();
  return count;
}

bool EveryGuardIsInForce(const Json& tenant) {
  bool any = false, all = true;
  for (const Json& member : ListAt(tenant, "members")) {
    if (At(member, "alive") != true) continue;
    any = true;
    all &= TextAt(member, "guard") == "in force";
  }
  return any && all;
}

Json MemoryLimit(const Json& tenant) {
  const Json& enforced = At(tenant, "enforced");
  const std::string by = TextAt(enforced, "memory"), reason = TextAt(enforced, "memory_reason", kWidth);
  if (by == "not enforced" && At(tenant, "reservation_pid").is_number())
    return Part("memory limit", nullptr, "not enforced", reason, "start the program with gpumux run instead");
  if (by == "not enforced" && TextAt(tenant, "mode") == "mps" && EveryGuardIsInForce(tenant)) {
    return Part("memory limit", nullptr, "not enforced", reason,
                "leave the CUDA_MPS_ variables as gpumux run sets them for the program; gpumux run --strict "
                "stops one that is not served as promised");
  }
  if (by == "not enforced") {
    return Part("memory limit", nullptr, "not enforced", reason,
                "gpumux ps shows which process has no guard in force; start it dynamically linked and "
                "without set-user-id, or use gpumux run --strict, which refuses such a program");
  }
  if (by.empty()) return Part("memory limit", nullptr, "nothing to enforce", reason);
  size_t in_force = 0;
  for (const Json& member : ListAt(tenant, "members")) {
    in_force += At(member, "alive") == true && TextAt(member, "guard") == "in force" ? 1 : 0;
  }
  if (in_force == 0)
    return Part("memory limit", by, "unproven",
                HasEnded(tenant) ? "the tenant has ended; its guard was in force"
                                 : "no process of it shows its guard in force now");
  return Part(
      "memory limit", by, "proven",
      fmt::format("the guard says that it is in force in {} process{}, and NVML shows none without it",
                  in_force, in_force == 1 ? "" : "es"));
}

// What of its promise is not covered; "" when all is.
std::string AtRisk(const Json& tenant) {
  std::string text;
  for (const Json& gpu : ListAt(tenant, "gpus")) {
    const uint64_t bytes = NumberAt(gpu, "mem_at_risk_bytes").value_or(0);
    if (bytes == 0) continue;
    text += fmt::format("{}at risk: up to {} are not covered on GPU {}: {}", text.empty() ? "" : "; ",
                        FormatBytes(bytes), GpuLabel(gpu), TextAt(gpu, "at_risk_why", kWidth));
  }
  return text;
}

Json MemoryGuarantee(const Json& tenant, const Json& status) {
  constexpr const char* kPart = "memory guarantee";
  if (NumberAt(tenant, "mem_guaranteed_bytes").value_or(1) == 0)
    return Part(kPart, nullptr, "not promised", "it was started without --mem");
  if (IsWaiting(tenant)) return Part(kPart, nullptr, "nothing to enforce", "it waits");
  if (HasEnded(tenant)) return Part(kPart, nullptr, "nothing to enforce", "it has ended");
  const Json by = TextAt(tenant, "mem_guaranteed_by");
  if (const std::string why = AtRisk(tenant); !why.empty()) {
    return Part(
        kPart, nullptr, "not enforced", why,
        "end what runs on this GPU outside gpumux (gpumux status shows whose it is), or keep room for "
        "it from the beginning: gpumux reserve");
  }
  std::string why;
  for (const Json* gpu : GpusOf(tenant, status)) {
    const auto total = NumberAt(*gpu, "mem_total_bytes"), all = NumberAt(*gpu, "mem_guaranteed_bytes"),
               reserve = NumberAt(*gpu, "mem_reserve_bytes"),
               unmanaged = NumberAt(*gpu, "mem_unmanaged_bytes"),
               unexplained = NumberAt(*gpu, "mem_unexplained_bytes");
    const std::string index = GpuLabel(*gpu);
    if (!total || !all || !reserve || !unmanaged || !unexplained) {
      return Part(kPart, by, "unproven",
                  fmt::format("NVML does not say what GPU {} has left: {}", index,
                              TextAt(*gpu, "mem_unmanaged_bytes_reason", kWidth)),
                  TextAt(*gpu, "remedy", kWidth));
    }
    const std::string figures =
        fmt::format("GPU {}: {} guaranteed to all + {} reserve + {} unmanaged + {} unexplained", index,
                    Memory(all), Memory(reserve), Memory(unmanaged), Memory(unexplained));
    if (*all + *reserve + *unmanaged + *unexplained > *total) {
      return Part(kPart, nullptr, "not enforced",
                  fmt::format("{} are more than its {}", figures, Memory(total)),
                  "end what runs on this GPU outside gpumux (gpumux status shows its pids)");
    }
    why += fmt::format("{}{} are within its {}", why.empty() ? "" : "; ", figures, Memory(total));
  }
  if (why.empty()) return Part(kPart, by, "unproven", "its GPU is not among those that the daemon shows");
  return Part(kPart, by, "proven", why);
}

double NumberOr0(const Json& object, const char* key) {
  const Json& value = At(object, key);
  return value.is_number() ? value.get<double>() : 0.0;
}

// Of mode turns: what it is promised, and what it has had.
std::string TurnsSoFar(const Json& tenant) {
  const Json& turns = At(tenant, "turns");
  std::string text = fmt::format(
      "at least {:.4g} % and at most {:.4g} % of the GPU's time; {:.1f} s of it so far, {} turn(s) ended "
      "while "
      "others wanted it",
      100 * NumberOr0(tenant, "share_min_ratio"), 100 * NumberOr0(tenant, "share_max_ratio"),
      NumberOr0(turns, "gpu_seconds"), NumberAt(turns, "turns").value_or(0));
  if (const auto overran = NumberAt(turns, "overran").value_or(0); overran > 0)
    text += fmt::format("; {} time(s) what it had on the GPU did not end in time", overran);
  if (const auto unused = NumberAt(turns, "unused").value_or(0); unused > 0)
    text += fmt::format("; {} turn(s) were taken because nothing of it ran", unused);
  return text;
}

Json Compute(const Json& tenant, const Json& status) {
  const Json& enforced = At(tenant, "enforced");
  const std::string reason = TextAt(enforced, "compute_reason", kWidth);
  const bool turns = TextAt(tenant, "mode") == "turns";
  constexpr const char* kEndOthers =
      "end what runs on this GPU outside gpumux (gpumux status shows its pids)";
  if (turns && !IsWaiting(tenant) && UnmanagedOn(tenant, status) > 0)
    return Part("compute", nullptr, "not enforced",
                "processes outside gpumux are on its GPU, and take no turns", kEndOthers);
  if (const Json& by = At(enforced, "compute"); by.is_string())
    return Part("compute", by, "proven",
                turns ? TurnsSoFar(tenant) : "NVML shows no process outside gpumux on its GPU");
  if (IsWaiting(tenant)) return Part("compute", nullptr, "nothing to enforce", reason);
  if (turns) return Part("compute", nullptr, "nothing to enforce", reason);
  if (At(tenant, "share_min_ratio").is_null()) return Part("compute", nullptr, "not promised", reason);
  return Part("compute", nullptr, "not enforced", reason, kEndOthers);
}

// Of a tenant with a priority: what it holds back, or what holds it back.
Json Priority(const Json& tenant) {
  constexpr const char* kPart = "priority";
  const Json& gate = At(tenant, "gate");
  const bool first = TextAt(tenant, "priority") == "latency";
  if (IsWaiting(tenant) || !gate.is_object())
    return Part(kPart, nullptr, "nothing to enforce", "no process of it has a context on a GPU");
  if (!first) {
    const std::string by = TextAt(gate, "held_by");
    const std::string why = fmt::format(
        "its kernels wait while a latency-critical neighbour works: closed for {:.1f} s so far, opened {} "
        "time(s) for its minimum",
        At(gate, "closed_seconds").is_number() ? At(gate, "closed_seconds").get<double>() : 0.0,
        NumberAt(gate, "forced_open").value_or(0));
    if (by == "not yet")
      return Part(kPart, nullptr, "nothing to enforce",
                  "no latency-critical neighbour closed its gate so far");
    return Part(kPart, by == "gpu" ? "gate, by waits in its streams" : "gate, before its launches", "proven",
                why);
  }
  if (const auto without = NumberAt(gate, "processes_without_bit").value_or(0); without > 0)
    return Part(kPart, nullptr, "not enforced",
                fmt::format("{} process(es) of it close no gates: too many do already", without),
                "start fewer latency-critical processes on this machine");
  std::string why =
      fmt::format("closed {} time(s) while it worked; neighbours of priority normal are not held back",
                  NumberAt(gate, "busy_periods").value_or(0));
  if (const auto windows = NumberAt(gate, "windows").value_or(0); windows > 0)
    why += fmt::format(
        "; in {} of them they stayed open at first (now for {:.1f} ms), for its requests are bound by its "
        "launches and take no longer so",
        windows,
        At(gate, "window_seconds").is_number() ? At(gate, "window_seconds").get<double>() * 1e3 : 0.0);
  return Part(kPart, "gates of best-effort neighbours", "proven", why);
}

Json FaultIsolation(const Json& tenant, const Json& status) {
  constexpr const char* kPart = "isolation";
  if (TextAt(tenant, "isolation") == "none")
    return Part(kPart, nullptr, "not promised", "it was started with --isolate none");
  const std::string fault = TextAt(At(tenant, "neighbours"), "fault", kWidth);
  if (fault.empty()) return Part(kPart, nullptr, "nothing to enforce", "it has no neighbours yet");
  if (TextAt(tenant, "mode") == "exclusive" && UnmanagedOn(tenant, status) == 0)
    return Part(kPart, "admission", "proven", "NVML shows no neighbour on its GPU");
  return Part(
      kPart, TextAt(tenant, "mode") == "mig" ? "the GPU's partition" : "the driver", "unproven",
      fmt::format("a neighbour's GPU fault {}. That is a property of the mode; it is not tried on this "
                  "machine",
                  fault));
}

// What its own death does to its neighbours: under MPS they would lose their work.
Json OwnDeath(const Json& tenant) {
  constexpr const char* kPart = "its death";
  uint64_t clients = 0, held = 0;
  for (const Json& member : ListAt(tenant, "members")) {
    const auto here = NumberAt(member, "descriptors_held");
    const bool client = std::ranges::any_of(
        ListAt(member, "gpus"), [](const Json& gpu) { return NumberAt(gpu, "contexts").value_or(0) > 0; });
    if (!client || At(member, "alive") != true) continue;
    if (here.value_or(0) == 0)
      return Part(
          kPart, nullptr, "not enforced",
          fmt::format(
              "the keeper has no descriptor of pid {}: if it dies at work, its neighbours get error 700",
              At(member, "pid").dump()),
          "see whether gpumux-keeper runs: gpumux doctor");
    ++clients;
    held += *here;
  }
  if (clients == 0) return Part(kPart, nullptr, "nothing to enforce", "no process of it is a client of MPS");
  return Part(
      kPart, "the keeper", "proven",
      fmt::format("it has {} descriptors of {} process{}, and keeps them open until its work has ended: its "
                  "neighbours go on. Work longer than mps.hold_max reaches them all the same; memory by HMM "
                  "or ATS was not tried",
                  held, clients, clients == 1 ? "" : "es"));
}

Json CpuAffinity(const Json& tenant) {
  constexpr const char* kPart = "cpu affinity";
  const Json& affinity = At(tenant, "cpu_affinity");
  if (TextAt(affinity, "asked") != "auto") {
    return Part(kPart, nullptr, IsWaiting(tenant) ? "nothing to enforce" : "not promised",
                IsWaiting(tenant) ? "it waits" : "it was started without --cpu-affinity auto");
  }
  const std::string near = TextAt(affinity, "near_cpus", kWidth), now = TextAt(affinity, "cpus", kWidth);
  if (near.empty()) return Part(kPart, nullptr, "not enforced", TextAt(affinity, "near_cpus_reason", kWidth));
  const std::string where =
      fmt::format("near its GPU are the processors {} (by {})", near, TextAt(affinity, "near_by"));
  if (now.empty()) return Part(kPart, nullptr, "nothing to enforce", where + "; its program does not run");
  const auto near_cpus = ParseCpuList(near), cpus = ParseCpuList(now);
  if (near_cpus && cpus && Intersection(*near_cpus, *cpus) == *cpus)
    return Part(kPart, "the kernel", "proven", fmt::format("{}; its program may run on {}", where, now));
  return Part(kPart, nullptr, "not enforced", fmt::format("{}; its program may run on {}", where, now));
}

Json Processes(const Json& tenant) {
  Json out = Json::array();
  for (const Json& member : ListAt(tenant, "members")) {
    Json gpus = Json::array();
    for (const Json& gpu : ListAt(member, "gpus")) {
      const auto committed = NumberAt(gpu, "mem_committed_bytes"),
                 overhead = NumberAt(gpu, "mem_overhead_bytes");
      Json figures{{"uuid", TextAt(gpu, "uuid")},
                   {"mem_ledger_bytes", committed && overhead ? Json(*committed + *overhead) : Json()},
                   {"mem_nvml_bytes", At(gpu, "mem_nvml_bytes")}};
      if (figures["mem_nvml_bytes"].is_null())
        figures["mem_nvml_bytes_reason"] = TextAt(gpu, "mem_nvml_bytes_reason", kWidth);
      gpus.push_back(std::move(figures));
    }
    out.push_back({{"pid", At(member, "pid")},
                   {"name", TextAt(member, "name")},
                   {"guard", TextAt(member, "guard")},
                   {"gpus", std::move(gpus)}});
  }
  return out;
}

std::string NeighboursNow(const Json& tenant, const Json& status) {
  std::string names;
  for (const Json& other : ListAt(status, "tenants")) {
    if (TextAt(other, "id") == TextAt(tenant, "id")) continue;
    if (!GpusOf(tenant, Json{{"gpus", ListAt(other, "gpus")}}).empty())
      names += (names.empty() ? "" : ", ") + TextAt(other, "name", 24);
  }
  const size_t unmanaged = UnmanagedOn(tenant, status);
  return fmt::format("On its GPU now: {}; {} process{} outside gpumux.",
                     names.empty() ? "no other tenant" : names, unmanaged, unmanaged == 1 ? "" : "es");
}

Json Risks(const Json& tenant, const Json& status) {
  Json out = Json::array();
  const auto add = [&out](const char* risk, const std::string& text) {
    out.push_back({{"risk", risk}, {"text", text}});
  };
  const Json& neighbours = At(tenant, "neighbours");
  if (neighbours.is_object() && !HasEnded(tenant)) {
    add("neighbours", NeighboursNow(tenant, status));
    add("neighbour_fault", "A neighbour's GPU fault: " + TextAt(neighbours, "fault", kWidth) + ".");
    add("neighbour_death", "A neighbour's death: " + TextAt(neighbours, "death", kWidth) + ".");
    add("neighbour_load", "A neighbour's load: " + TextAt(neighbours, "load", kWidth) + ".");
  }
  if (const std::string at_risk = AtRisk(tenant); !at_risk.empty())
    add("at_risk",
        fmt::format("Its promise is {}. gpumux refuses it nothing of it, but the driver may have no more.",
                    at_risk));
  const auto guaranteed = NumberAt(tenant, "mem_guaranteed_bytes"),
             limit = NumberAt(tenant, "mem_limit_bytes");
  if (guaranteed && (!limit || *limit > *guaranteed))
    add("burst", fmt::format("What it uses above {} is there only while nobody else is promised it.",
                             Memory(guaranteed)));
  const Json& reclaim = At(tenant, "reclaim");
  if (const uint64_t listening = NumberAt(reclaim, "listening").value_or(0); listening > 0)
    add("reclaim",
        fmt::format("{} process{} give{} back what it only caches when others need it: asked {} time{}, "
                    "gave {} in all.",
                    listening, listening == 1 ? "" : "es", listening == 1 ? "s" : "",
                    NumberAt(reclaim, "asked").value_or(0),
                    NumberAt(reclaim, "asked").value_or(0) == 1 ? "" : "s",
                    Memory(NumberAt(reclaim, "given_bytes"))));
  const std::string above = TextAt(tenant, "above_limit_reason", kWidth);
  add("above_limit", At(tenant, "above_limit") == true
                         ? "It is above its limit (" + above + "): no further allocation until it is below."
                         : "If it is found above its limit, it gets no further allocation until it is below; "
                           "nobody is killed.");
  add("unseen",
      "The guard does not charge beforehand: code that the driver loads when a kernel is first used, "
      "variables of "
      "compressed fat binaries, imported memory. NVML shows them and they are counted as this tenant's.");
  add("hostile",
      "The guard does not see statically linked programs, programs with set-user-id, direct system calls to "
      "the driver, Vulkan and OpenGL. It guards against greedy programs, not against hostile ones.");
  return out;
}

std::string GpuLine(const Json& gpu) {
  const auto guaranteed = NumberAt(gpu, "mem_guaranteed_bytes"), limit = NumberAt(gpu, "mem_limit_bytes");
  return fmt::format("  GPU {} ({}): {} guaranteed, limit {}\n", GpuLabel(gpu), TextAt(gpu, "name", 60),
                     guaranteed.value_or(0) == 0 ? "nothing" : Memory(guaranteed),
                     limit ? Memory(limit) : TextAt(gpu, "mem_limit_bytes_reason", kWidth));
}

std::string ProcessLines(const Json& explanation) {
  std::string out;
  for (const Json& process : ListAt(explanation, "processes")) {
    out += fmt::format("  pid {} ({}): guard {}", NumberAt(process, "pid").value_or(0),
                       TextAt(process, "name", 30), TextAt(process, "guard"));
    for (const Json& gpu : ListAt(process, "gpus"))
      out += fmt::format("; {} in the ledger, {} by NVML's last reading",
                         Memory(NumberAt(gpu, "mem_ledger_bytes")), Memory(NumberAt(gpu, "mem_nvml_bytes")));
    out += "\n";
  }
  return out;
}

std::string WaitingLines(const Json& waiting) {
  if (!waiting.is_object()) return "";
  const std::string at = TextAt(waiting, "estimated_start_at", 30);
  return fmt::format("\nWaits, place {}\n  {}\n  {}\n", NumberAt(waiting, "position").value_or(0),
                     TextAt(waiting, "reason", 600),
                     at.empty()
                         ? "nobody knows until when: " + TextAt(waiting, "estimated_start_at_reason", kWidth)
                         : "it starts by " + at + " at the latest");
}

}  // namespace

Json Explanation(const Json& tenant, const Json& status) {
  Json out;
  for (const char* key : {"id", "name", "owner", "state"}) out[key] = TextAt(tenant, key);
  out["waiting"] = At(tenant, "waiting");
  Json& promise = out["promise"];
  for (const char* key :
       {"mode", "mode_reason", "share_min_ratio", "share_min_ratio_reason", "share_max_ratio",
        "share_max_ratio_reason", "priority", "isolation", "strict", "mem_guaranteed_bytes",
        "mem_guaranteed_bytes_reason", "mem_limit_bytes", "mem_limit_bytes_reason"}) {
    if (tenant.contains(key)) promise[key] = tenant[key];
  }
  promise["gpus"] = Json::array();
  for (const Json& gpu : ListAt(tenant, "gpus")) {
    Json own;
    for (const char* key : {"uuid", "index", "label", "name", "mem_guaranteed_bytes", "mem_limit_bytes",
                            "mem_limit_bytes_reason"}) {
      if (gpu.contains(key)) own[key] = gpu[key];
    }
    promise["gpus"].push_back(std::move(own));
  }
  out["parts"] = {MemoryLimit(tenant), MemoryGuarantee(tenant, status), Compute(tenant, status),
                  FaultIsolation(tenant, status)};
  if (const std::string priority = TextAt(tenant, "priority", 20);
      priority == "latency" || priority == "best-effort")
    out["parts"].push_back(Priority(tenant));
  if (TextAt(tenant, "mode") == "mps") out["parts"].push_back(OwnDeath(tenant));
  out["parts"].push_back(CpuAffinity(tenant));
  out["refusals"] = At(tenant, "refusals");
  const std::string refused = RefusalReason(tenant, At(status, "gpus"));
  out["out_of_memory"] = refused.empty() ? Json() : Json(refused);
  if (refused.empty()) out["out_of_memory_reason"] = "it was refused nothing";
  out["processes"] = Processes(tenant);
  out["risks"] = Risks(tenant, status);
  return out;
}

std::string RenderExplanation(const Json& explanation) {
  const Json& promise = At(explanation, "promise");
  std::string out =
      fmt::format("{} ({}), of {}, {}\n", TextAt(explanation, "name", 64), TextAt(explanation, "id"),
                  TextAt(explanation, "owner", 32), TextAt(explanation, "state"));
  out += WaitingLines(At(explanation, "waiting")) + "\nPromised\n";
  const Json& gpus = ListAt(promise, "gpus");
  for (const Json& gpu : gpus) out += GpuLine(gpu);
  if (gpus.empty())
    out += fmt::format("  no GPU yet: {} guaranteed, limit {}\n",
                       Memory(NumberAt(promise, "mem_guaranteed_bytes")),
                       Memory(NumberAt(promise, "mem_limit_bytes")));
  const std::string mode = TextAt(promise, "mode"), reason = TextAt(promise, "mode_reason", kWidth);
  out += fmt::format("  mode {}{}; isolation {}; priority {}\n", mode.empty() ? "–" : mode,
                     reason.empty() ? "" : " (" + reason + ")", TextAt(promise, "isolation"),
                     TextAt(promise, "priority"));
  out += "\nWhat keeps it\n";
  for (const Json& part : ListAt(explanation, "parts")) {
    const std::string by = TextAt(part, "by", kWidth), remedy = TextAt(part, "remedy", kWidth);
    out += fmt::format("  {}: {}{}\n    {}\n", TextAt(part, "part"), TextAt(part, "status"),
                       by.empty() ? "" : ", by " + by, TextAt(part, "why", 600));
    if (!remedy.empty()) out += "    to do: " + remedy + "\n";
  }
  const std::string processes = ProcessLines(explanation);
  out += "\nProcesses on a GPU\n" + (processes.empty() ? "  none\n" : processes);
  if (const std::string why = TextAt(explanation, "out_of_memory", 1000); !why.empty())
    out += fmt::format("\nOut of memory\n  {}: {}\n", RefusalCount(At(explanation, "refusals")), why);
  out += "\nWhat may happen to it\n";
  for (const Json& risk : ListAt(explanation, "risks")) out += "  " + TextAt(risk, "text", 600) + "\n";
  return out;
}

}  // namespace gpumux::cli

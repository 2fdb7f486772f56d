// SPDX-License-Identifier: Apache-2.0
#include "targets.h"

#include <elf.h>

#include <cstdlib>
#include <cstring>

#include "base/process.h"
#include "base/units.h"
#include "cli/mig/file.h"
#include "cli/mig/plan_document.h"
#include "cli/mig/request.h"
#include "cli/run_options.h"
#include "cli/run_request.h"
#include "config/configuration.h"
#include "config/meaning.h"
#include "daemon/mig_api.h"
#include "daemon/mig_record.h"
#include "daemon/run_request.h"
#include "guard/image_globals.h"
#include "ipc/frame.h"
#include "sim/gpu_spec_parser.h"
#include "softgpu/driver/ptx.h"
#include "softgpu/faults.h"

namespace gpumux::test {

namespace {

using Seeds = std::vector<std::string>;

// The input between two pages that nobody may read would be better still; under
// ASan a heap block of its exact size is as good.
std::string Exactly(std::string_view input) {
  std::string copy(input);
  copy.shrink_to_fit();
  return copy;
}

void Must(bool holds) {
  if (!holds) std::abort();
}

template <typename T>
std::string FrameOf(gpumux_message type, const T& payload) {
  const auto packet = ipc::EncodeStruct(type, 7, payload);
  return {reinterpret_cast<const char*>(packet.data()), packet.size()};
}

Seeds FrameSeeds() {
  const auto text = *ipc::EncodeText(GPUMUX_RUN_STARTED, 1, "{\"pid\":12}");
  return {FrameOf(GPUMUX_GUARD_HELLO, gpumux_guard_hello{}),
          FrameOf(GPUMUX_CREDIT_REQUEST, gpumux_credit_request{}), FrameOf(GPUMUX_REFUSED, gpumux_refused{}),
          FrameOf(GPUMUX_CONTEXT_NOTICE, gpumux_context_notice{}),
          std::string(reinterpret_cast<const char*>(text.data()), text.size())};
}

void RunFrame(std::string_view input) {
  const std::string copy = Exactly(input);
  const auto frame = ipc::DecodeFrame(std::as_bytes(std::span(copy.data(), copy.size())));
  if (!frame) return;
  Must(frame->payload.size() + sizeof(gpumux_frame) == copy.size());
  (void)ipc::PayloadAs<gpumux_guard_hello>(*frame);
  if (frame->type >= GPUMUX_RUN_REQUEST) Must(!frame->Text().empty());
}

const char kRun[] =
    R"({"name":"a","command":["/bin/true","x"],"cwd":"/","gpus":{"count":1},"mem":{"bytes":1073741824},)"
    R"("mem_limit":{"ratio":0.5},"mode":"auto","isolate":"fault","strict":false,"wait":true,)"
    R"("wait_seconds":1.5,"time_seconds":null,"labels":{"a":"b"}})";
const char kStrictRun[] =
    R"({"name":"a","command":["x"],"cwd":"/","gpus":{"list":["GPU-1"]},"mem":null,"mem_limit":null,)"
    R"("mode":"exclusive","isolate":"none","strict":true,"wait":false,"wait_seconds":null,)"
    R"("time_seconds":10,"labels":{}})";

Seeds RunRequestSeeds() {
  return {kRun, kStrictRun, R"({"signal":15,"grace_seconds":10})", R"({"pid":12})",
          R"({"exit_code":null,"signal":9})"};
}

void RunRunRequest(std::string_view input) {
  const auto request = daemon::ParseRunRequest(input);
  if (request) Must(request->command.size() <= daemon::RunRequest::kMaxCommandBytes);
  (void)daemon::ParseStopRequest(input);
  (void)daemon::ParseRunStarted(input);
  (void)daemon::ParseRunEnded(input);
}

const char kQueued[] =
    R"({"position":1,"reason":"needs 60 GiB","holders":[{"id":"t-1","name":"a","mem_guaranteed_bytes":5}]})";
const char kGranted[] =
    R"({"tenant_id":"t-1","name":"a","mode":"timeslice","mode_reason":"x","simulated":true,)"
    R"("waited_seconds":0.5,"gpus":[{"uuid":"GPU-1","index":0,"name":"H200","mem_guaranteed_bytes":1,)"
    R"("mem_limit_bytes":null}],"env":{"GPUMUX_TENANT":"t-1"},"env_prepend":{"LD_PRELOAD":"/x"}})";

Seeds AnswerSeeds() { return {kQueued, kGranted}; }

void RunAnswer(std::string_view input) {
  const std::string text(input);
  if (const auto queued = cli::ParseQueued(text)) (void)cli::QueuedLine(*queued, {});
  if (const auto granted = cli::ParseGranted(text)) (void)cli::GrantedLine(*granted);
}

Seeds OptionSeeds() {
  return {"--mem\n8GiB:20GiB\n--name\ntrain\n--wait=10s\n--\ntrue",
          "--mem\n50%\n--gpus\n2\n--strict\n--\ntrue\nx",
          "--gpu\n0,1\n--mode\nexclusive\n--time\n1h\n--label\na=b\n--no-wait\n--json\n--\ntrue"};
}

void RunOptionValues(std::string_view input) {
  std::vector<std::string> arguments;
  for (size_t at = 0; at <= input.size() && arguments.size() < 1000;) {
    const size_t end = std::min(input.find('\n', at), input.size());
    arguments.emplace_back(input.substr(at, end - at));
    at = end + 1;
  }
  if (const auto options = cli::ParseRunOptions(arguments)) Must(options->help || !options->command.empty());
  for (const std::string& argument : arguments) {
    (void)ParseMemorySize(argument);
    if (const auto time = ParseDuration(argument)) Must(time->count() >= 0);
  }
}

Seeds SpecSeeds() {
  return {"H200", "2xA30,1xL4", "8xH100-80",
          R"({"gpus":[{"model":"H200"},{"model":"A30","memory_bytes":1000000000}]})",
          R"({"gpus":[{"model":"L4","count":3,"name":"x"}],"driver":"580"})"};
}

void RunSpec(std::string_view input) {
  if (const auto machine = sim::ParseGpuList(input)) Must(machine->gpus.size() <= sim::kMaxSpecGpus);
  if (const auto machine = sim::ParseGpuDocument(input)) Must(machine->gpus.size() <= sim::kMaxSpecGpus);
}

Seeds FaultSeeds() {
  return {"fail cuMemAlloc_v2 with CUDA_ERROR_OUT_OF_MEMORY on 3; slow cuMemcpy* by 20ms",
          "lack cuMemCreate\nlost after 1s for 2s",
          "driver 535.104.05 cuda 12.2 # old\nfail nvml* with 999 from 2 every 3", "lost"};
}

void RunFaults(std::string_view input) {
  auto script = softgpu::ParseFaults(input);
  if (!script) return;
  Must(script->rules.size() <= softgpu::kMaxFaultRules);
  softgpu::FaultRun run(std::move(*script), std::chrono::steady_clock::time_point{});
  for (int i = 0; i < 5; ++i) (void)run.OnCall("cuMemAlloc_v2", std::chrono::steady_clock::time_point{});
  (void)run.Lacks("cuMemCreate");
}

// A cubin with the sections that hold variables.
std::string Cubin() {
  const char names[] = "\0.nv.global\0.nv.global.init\0.shstrtab";
  std::string image(sizeof(Elf64_Ehdr) + 4 * sizeof(Elf64_Shdr), '\0');
  auto* header = reinterpret_cast<Elf64_Ehdr*>(image.data());
  std::memcpy(header->e_ident, ELFMAG, SELFMAG);
  header->e_ident[EI_CLASS] = ELFCLASS64;
  header->e_shoff = sizeof(Elf64_Ehdr);
  header->e_shentsize = sizeof(Elf64_Shdr);
  header->e_shnum = 4;
  header->e_shstrndx = 3;
  auto* sections = reinterpret_cast<Elf64_Shdr*>(image.data() + header->e_shoff);
  const Elf64_Word at[] = {0, 1, 12, 28};
  for (int i = 0; i < 4; i++) {
    sections[i].sh_name = at[i];
    sections[i].sh_size = i == 3 ? sizeof names : 5000;
  }
  sections[3].sh_offset = image.size();
  return image + std::string(names, sizeof names);
}

std::string FatBinary() {
  const std::string ptx = ".version 7.8\n.target sm_80\n.global .b8 a[100];\n";
  const struct {
    uint32_t magic = 0xba55ed50;
    uint16_t version = 1, header = 16;
    uint64_t bytes = 0;
  } head{.bytes = 2 * 24 + ptx.size() + Cubin().size()};
  const auto entry = [](uint16_t kind, const std::string& content) {
    const struct {
      uint16_t kind, unknown = 0;
      uint32_t header = 24;
      uint64_t bytes;
      uint32_t compressed = 0, more = 0;
    } e{.kind = kind, .bytes = content.size()};
    return std::string(reinterpret_cast<const char*>(&e), sizeof e) + content;
  };
  return std::string(reinterpret_cast<const char*>(&head), sizeof head) + entry(1, ptx) + entry(2, Cubin());
}

const char kPtx[] =
    ".version 7.8\n.target sm_80\n.address_size 64\n.visible .global .align 16 .v4 .f32 big[100][2] = {1, "
    "2};\n"
    ".const .b8 c[10];\n.visible .entry k(.param .u64 p, .param .align 8 .b8 s[24]) { .local .align 8 .b8 "
    "l[64]; "
    "ret; }\n";

Seeds ImageSeeds() { return {Cubin(), FatBinary(), kPtx}; }

void RunImage(std::string_view input) {
  const std::string copy = Exactly(input);
  (void)guard::GlobalsOf(copy.data(), copy.size());
}

Seeds PtxSeeds() { return {kPtx, ".version 1.0\n.target sm_10\n.entry k { }"}; }
void RunPtx(std::string_view input) { (void)softgpu::ParsePtx(Exactly(input)); }

Seeds StatSeeds() { return {"12 (a (b) c) S 1 12 12 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 1 1"}; }
void RunStat(std::string_view input) { (void)ParseProcessStat(Exactly(input)); }

Seeds ConfigSeeds() {
  return {"[placement]\nfill = \"spread\"\n[quota.user.\"a b\"]\nmemory = \"60GiB\"\ntenants = 4\n",
          "quota = { every-user = { gpus = 2, priority = -1 } } # x\nrun.wait = false\nrun.mem = '1GiB:2GiB'",
          "[run]\nwait = \"10m\"\nsummary = true\n[[a.b]]\nc = [1, 2.5, 1979-05-27T07:32:00Z, \"\\u00e9\"]\n",
          "daemon.idle_exit = \"\"\"\n30s\"\"\"\ndaemon.log_level = 0x1f\n"};
}

void RunConfig(std::string_view input) {
  config::Settings settings;
  std::vector<config::Problem> problems;
  config::ReadText("x", Exactly(input), settings, problems);
  for (const config::Problem& problem : problems) Must(!problem.message.empty());
  // What was accepted has a meaning, and is accepted again as it is shown.
  (void)config::PolicyOf(settings);
  (void)config::RunDefaultsOf(settings);
  (void)config::DaemonKeysOf(settings);
  for (const auto& [path, setting] : settings) {
    config::Settings again;
    config::ReadText("y", config::FormatPath(path) + " = " + config::FormatValue(setting.value), again,
                     problems);
    Must(again.contains(path) && again.at(path).value == setting.value);
  }
}

Seeds MigFileSeeds() {
  return {
      "version: v1\nmig-configs:\n  \"a.b\":\n    - device-filter: [\"0x20B010DE\", "
      "\"0x20B210DE:0x147F10DE\"]\n"
      "      devices: all\n      mig-enabled: true\n      mig-devices:\n        \"1c.3g.71gb\": 3\n",
      "{version: v1, mig-configs: {a: [&x {devices: [0, 1], mig-enabled: false}, *x]}} # so\n"};
}

// What was accepted is written so that it is read as the same.
void RunMigFile(std::string_view input) {
  const auto file = cli::ParseMigFile(Exactly(input));
  if (!file) {
    Must(!file.error().message.empty());
    return;
  }
  const auto again = cli::ParseMigFile(cli::MigFileText(*file));
  Must(again && *again == *file);
}

Seeds MigRequestSeeds() {
  return {
      R"({"tenants": [{"name": "a", "count": 2, "mem": "14GiB", "share": "20%", "isolate": "none"}]})",
      R"([{"profile": "3g.71gb"}])", "3x1g.18gb,1x3g.71gb", "2xH200,NVIDIA A100-SXM4-40GB,0x233510DE",
      R"({"schema": "gpumux.mig-plan/1", "data": {"gpus": [{"name": "GPU 0", "model": "H200", "uuid": null, )"
      R"("instances": [{"profile_id": 9, "start": 4, "compute_instances": [2, 1]}]}]}})"};
}

void RunMigRequest(std::string_view input) {
  const std::string text = Exactly(input);
  if (const auto wants = cli::ParseMigTenants(text)) {
    for (const auto& want : *wants)
      Must(want.count > 0 && (want.bytes > 0 || want.share > 0 || !want.profile.empty()));
  }
  if (const auto wants = cli::ParseMigWants(text)) Must(!wants->empty());
  if (const auto gpus = cli::ParseMigGpus(text)) Must(gpus->size() <= cli::kMostPlannedGpus);
  if (const auto plan = cli::ReadMigPlan(text)) Must(!plan->empty());
}

Seeds MigChangeSeeds() {
  return {
      R"({"gpu":"0","instances":[{"profile":19,"start":2}],"drain":"wait","wait_seconds":1.5,"dry_run":true,"keep":false})",
      R"({"version":1,"gpu":"GPU-01234567-89ab-cdef-0011-2233445566ff","before":[{"start":0,"profile":19,"compute":[0]}],)"
      R"("wanted":[{"start":4,"profile":9}],"by":0})",
      R"({"version":1,"gpus":{"GPU-01234567-89ab-cdef-0011-2233445566ff":[{"start":4,"profile":9,"compute":[1,1,0]}]}})"};
}

// What a peer asks for, and what lies on the disk.
void RunMigChange(std::string_view input) {
  const std::string text = Exactly(input);
  if (const auto request = daemon::ParseMigChangeRequest(text)) {
    Must(request->wanted.size() <= 64 && (!request->wait || request->wait->count() >= 0));
  }
  if (const auto change = daemon::ParseMigChange(text))
    Must(*daemon::ParseMigChange(daemon::FormatMigChange(*change)) == *change);
  if (const auto kept = daemon::ParseMigKept(text))
    Must(*daemon::ParseMigKept(daemon::FormatMigKept(*kept)) == *kept);
}

}  // namespace

const std::vector<FuzzTarget>& FuzzTargets() {
  static const std::vector<FuzzTarget> targets = {
      {"session_frame", FrameSeeds, RunFrame},      {"run_request", RunRequestSeeds, RunRunRequest},
      {"daemon_answer", AnswerSeeds, RunAnswer},    {"run_options", OptionSeeds, RunOptionValues},
      {"softgpu_spec", SpecSeeds, RunSpec},         {"softgpu_faults", FaultSeeds, RunFaults},
      {"module_image", ImageSeeds, RunImage},       {"ptx", PtxSeeds, RunPtx},
      {"process_stat", StatSeeds, RunStat},         {"config", ConfigSeeds, RunConfig},
      {"mig_file", MigFileSeeds, RunMigFile},       {"mig_request", MigRequestSeeds, RunMigRequest},
      {"mig_change", MigChangeSeeds, RunMigChange},
  };
  return targets;
}

}  // namespace gpumux::test

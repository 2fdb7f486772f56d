// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <charconv>

#include "base/units.h"
#include "cli/api_client.h"
#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/daemon_start.h"
#include "cli/envelope.h"
#include "cli/terminal.h"

namespace gpumux::cli {
namespace {

using Json = nlohmann::json;
using Takes = OptionSpec::Takes;

struct ReserveOptions {
  int pid = 0;
  Json body;  // of the request
  bool release = false;
  bool json = false;
};

Result<int> TakePid(const ParsedCommandLine& line) {
  const auto text = line.Value("--pid");
  if (!text)
    return Fail(Code::kInvalid, "--pid is missing",
                "write for example gpumux reserve --pid 4711 --mem 20GiB");
  int pid = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), pid);
  if (error != std::errc() || end != text->data() + text->size() || pid < 1)
    return Fail(Code::kInvalid, fmt::format("--pid '{}': not a process's number", Plain(*text, 40)),
                "write for example --pid 4711");
  return pid;
}

Result<ReserveOptions> Judge(const ParsedCommandLine& line) {
  ReserveOptions options;
  options.release = line.Has("--release");
  options.json = line.Has("--json");
  const auto pid = TakePid(line);
  if (!pid) return tl::unexpected(pid.error());
  options.pid = *pid;
  const auto mem = line.Value("--mem");
  if (options.release) {
    for (const char* option : {"--mem", "--gpu", "--name"}) {
      if (line.Has(option))
        return Fail(Code::kInvalid, fmt::format("{} means nothing with --release", option));
    }
    return options;
  }
  if (!mem) return Fail(Code::kInvalid, "--mem is missing", "write for example --mem 20GiB");
  const auto size = ParseMemorySize(*mem);
  if (!size) return Fail(Code::kInvalid, "--mem: " + size.error().message, size.error().hint);
  options.body = {{"pid", options.pid},
                  {"mem", size->bytes > 0 ? Json{{"bytes", size->bytes}} : Json{{"ratio", size->ratio}}}};
  if (const auto name = line.Value("--name")) options.body["name"] = *name;
  if (const auto text = line.Value("--gpu"); text && *text != "auto") {
    options.body["gpus"] = {{"list", GpuListOf(*text)}};
  }
  return options;
}

Result<Json> FindReservation(const ApiClient& client, int pid) {
  const auto body = client.Get("/v1/tenants");
  if (!body) return tl::unexpected(body.error());
  const Json json = Json::parse(*body, nullptr, false);
  const Json& tenants = At(At(json, "data"), "tenants");
  if (tenants.is_array()) {
    for (const Json& tenant : tenants) {
      if (At(tenant, "reservation_pid") == pid) return tenant;
    }
  }
  return Fail(Code::kNotFound, fmt::format("nothing is reserved for pid {}", pid), "see gpumux status");
}

int Release(const ApiClient& client, const ReserveOptions& options) {
  const auto tenant = FindReservation(client, options.pid);
  if (!tenant) return Report(tenant.error(), options.json);
  const std::string id = TextAt(*tenant, "id");
  const auto body = client.Post("/v1/tenants/" + PathPart(id) + "/release", "{}");
  if (!body) return Report(body.error(), options.json);
  if (options.json) return Print(*body) ? 0 : 1;
  return Print(fmt::format("{} ({}): released\n", TextAt(*tenant, "name", 64), id)) ? 0 : 1;
}

int Reserve(const ApiClient& client, const ReserveOptions& options) {
  const auto body =
      client.Post("/v1/reservations", options.body.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (!body) return Report(body.error(), options.json);
  if (options.json) return Print(*body) ? 0 : 1;
  const Json json = Json::parse(*body, nullptr, false);
  const Json& tenant = At(json, "data");
  std::string gpus;
  if (At(tenant, "gpus").is_array()) {
    for (const Json& gpu : At(tenant, "gpus")) {
      if (!At(gpu, "index").is_number_unsigned() || !At(gpu, "mem_guaranteed_bytes").is_number_unsigned())
        continue;
      gpus +=
          fmt::format("{}{} on GPU {}", gpus.empty() ? "" : ", ",
                      FormatBytes(gpu["mem_guaranteed_bytes"].get<uint64_t>()), gpu["index"].get<uint64_t>());
    }
  }
  return Print(fmt::format("{} ({}): {} kept for pid {}; nothing limits what it takes\n",
                           TextAt(tenant, "name", 64), TextAt(tenant, "id"), gpus, options.pid))
             ? 0
             : 1;
}

}  // namespace

const CommandSpec& ReserveSpec() {
  static const CommandSpec spec{
      .usage = "gpumux reserve --pid N --mem SIZE [options]",
      .summary = "Keeps room for a program that runs outside gpumux, until it ends.",
      .options = {{"--pid", Takes::kValue, "N", "the process; what it starts counts too"},
                  {"--mem", Takes::kValue, "SIZE",
                   "room on each of its GPUs, what it has already included: 20GiB, 40%"},
                  {"--gpu", Takes::kValue, "WHICH", "indices (0,2) or UUIDs; default: where the process is"},
                  {"--name", Takes::kValue, "NAME",
                   "how the reservation is called; default: the program's name"},
                  {"--release", Takes::kNothing, "", "give the room of this process up"},
                  {"--json", Takes::kNothing, "",
                   "the reservation as one JSON object (schema gpumux.tenant/1)"}},
      .footer =
          "Others are promised what is left. The program itself is not limited: if it takes more, that is "
          "shown.\n\n"
          "Examples:\n  gpumux reserve --pid 4711 --mem 20GiB\n  gpumux reserve --pid 4711 --release\n",
      .words = CommandSpec::Words::kNone};
  return spec;
}

int ReserveMain(const std::vector<std::string>& arguments) {
  const auto line = ParseArguments(ReserveSpec(), arguments);
  if (!line) return Report(line.error());
  if (line->help) return Print(HelpText(ReserveSpec())) ? 0 : 1;
  const auto options = Judge(*line);
  if (!options) return Report(options.error(), line->Has("--json"));
  const auto endpoints = FindEndpoints();
  if (!endpoints) return Report(endpoints.error(), options->json);
  const auto client = options->release ? ApiClient::Connect(*endpoints) : ConnectOrStart(*endpoints);
  if (!client) return Report(client.error(), options->json);
  return options->release ? Release(*client, *options) : Reserve(*client, *options);
}

}  // namespace gpumux::cli

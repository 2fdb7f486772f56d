// SPDX-License-Identifier: Apache-2.0
#include "cli/endpoints.h"

#include <cstdlib>

#include "gpumux/abi/session.h"

namespace gpumux::cli {

bool SoftwareGpuWasAskedFor() {
  const char* spec = std::getenv("GPUMUX_SOFTGPU");
  return spec && *spec;
}

std::vector<RuntimePaths> PlacesOfDaemons(const std::string& session, const std::string& machine,
                                          const RuntimePaths& own, bool simulated) {
  std::vector<RuntimePaths> all;
  const size_t slash = session.rfind('/');
  if (slash != std::string::npos && session.substr(0, slash) != own.dir)
    all.push_back(PathsIn(session.substr(0, slash)));
  all.push_back(own);
  if (machine.starts_with('/'))
    all.push_back(PathsIn(machine));
  else if (!simulated)
    all.push_back(MachinePaths());
  return all;
}

Result<Endpoints> FindEndpoints() {
  Endpoints endpoints;
  auto source = gpu::FindGpuSource();
  if (!source) return tl::unexpected(source.error());
  endpoints.source = *source;
  auto own = FindRuntimePaths(source->simulated);
  if (!own) return tl::unexpected(own.error());
  endpoints.own = *own;
  const char* session = std::getenv(GPUMUX_ENV_SESSION);
  const char* machine = std::getenv("GPUMUX_SYSTEM_DIR");
  endpoints.all = PlacesOfDaemons(session ? session : "", machine ? machine : "", *own, source->simulated);
  return endpoints;
}

}  // namespace gpumux::cli

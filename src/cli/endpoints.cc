// SPDX-License-Identifier: Apache-2.0
#include "cli/endpoints.h"

#include <cstdlib>

#include "gpumux/abi/session.h"

namespace gpumux::cli {

bool SoftwareGpuWasAskedFor() {
  const char* spec = std::getenv("GPUMUX_SOFTGPU");
  return spec && *spec;
}

Result<Endpoints> FindEndpoints() {
  Endpoints endpoints;
  auto source = gpu::FindGpuSource();
  if (!source) return tl::unexpected(source.error());
  endpoints.source = *source;
  auto own = FindRuntimePaths(source->simulated);
  if (!own) return tl::unexpected(own.error());
  endpoints.own = *own;
  if (const char* session = std::getenv(GPUMUX_ENV_SESSION); session && *session) {
    const std::string path = session;
    const size_t slash = path.rfind('/');
    if (slash != std::string::npos && path.substr(0, slash) != own->dir)
      endpoints.all.push_back(PathsIn(path.substr(0, slash)));
  }
  endpoints.all.push_back(*own);
  const char* machine = std::getenv("GPUMUX_SYSTEM_DIR");
  if (machine && *machine == '/')
    endpoints.all.push_back(PathsIn(machine));
  else if (!source->simulated)
    endpoints.all.push_back(MachinePaths());
  return endpoints;
}

}  // namespace gpumux::cli

// SPDX-License-Identifier: Apache-2.0
#include "gpu/source.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "base/paths.h"

namespace gpumux::gpu {

namespace fs = std::filesystem;

namespace {

constexpr const char* kDefaultSpec = "H200";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Result<GpuSource> SoftwareGpu(std::string spec) {
  GpuSource source{
      .simulated = true, .spec = std::move(spec), .dir = Variable("GPUMUX_SOFTGPU_DIR"), .libraries_dir = {}};
  if (source.dir.empty()) {
    auto runtime = FindRuntimeDir();
    if (!runtime) return tl::unexpected(runtime.error());
    source.dir = *runtime + "/softgpu";
  }
  if (source.dir.front() != '/') {
    return Fail(Code::kInvalid, "GPUMUX_SOFTGPU_DIR is \"" + source.dir + "\", not an absolute path");
  }
  // bin/ and test/ of a build tree and bin/ of an installation are all one
  // step below the prefix.
  std::error_code error;
  const fs::path exe = fs::read_symlink("/proc/self/exe", error);
  const fs::path libraries = exe.parent_path().parent_path() / "lib/gpumux/softgpu";
  if (error || !fs::exists(libraries / "libnvidia-ml.so.1", error)) {
    return Fail(Code::kInternal, "the software GPU's libraries are not in " + libraries.string(),
                "install gpumux again, or set GPUMUX_SOFTGPU=off to use the driver alone");
  }
  source.libraries_dir = libraries.string();
  return source;
}

}  // namespace

bool HasNvidiaDriver() {
  std::error_code error;
  if (fs::exists("/dev/nvidiactl", error) || fs::exists("/proc/driver/nvidia", error)) return true;
  void* library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library) dlclose(library);
  return library != nullptr;
}

Result<GpuSource> FindGpuSource() {
  const std::string spec = Variable("GPUMUX_SOFTGPU");
  if (spec == "off") {
    if (HasNvidiaDriver()) return GpuSource{};
    return Fail(Code::kUnsupported, "this machine has no NVIDIA driver and GPUMUX_SOFTGPU is off",
                "unset GPUMUX_SOFTGPU to use the software GPU");
  }
  if (!spec.empty()) return SoftwareGpu(spec);
  if (HasNvidiaDriver()) return GpuSource{};
  return SoftwareGpu(kDefaultSpec);
}

}  // namespace gpumux::gpu

// SPDX-License-Identifier: Apache-2.0
#include "workload/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace gpumux::workload {
namespace {

// Stands in for an entry point that the driver lacks.
template <typename Function>
struct Missing;
template <typename... Args>
struct Missing<cuda::CUresult (*)(Args...)> {
  static cuda::CUresult Call(Args...) { return cuda::CUDA_ERROR_NOT_FOUND; }
};

template <typename Function>
void LookUp(void* library, const char* symbol, Function& member) {
  void* address = ::dlsym(library, symbol);
  member = address ? reinterpret_cast<Function>(address) : &Missing<Function>::Call;
}

}  // namespace

Result<Driver> Driver::Open() {
  // Never closed: the driver has threads of its own.
  void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return Fail(Code::kUnavailable, fmt::format("cannot open the CUDA driver: {}", ::dlerror()),
                "start this with `gpumux run`, or put a libcuda.so.1 into LD_LIBRARY_PATH");
  }
  if (!::dlsym(library, "cuInit")) return Fail(Code::kUnavailable, "libcuda.so.1 has no cuInit");
  Driver driver;
#define GPUMUX_WORKLOAD_LOOK_UP(member, symbol, arguments) LookUp(library, symbol, driver.member);
  GPUMUX_WORKLOAD_ENTRIES(GPUMUX_WORKLOAD_LOOK_UP)
#undef GPUMUX_WORKLOAD_LOOK_UP
  return driver;
}

std::string Driver::Name(cuda::CUresult result) const {
  const char* name = nullptr;
  if (GetErrorName(result, &name) == cuda::CUDA_SUCCESS && name) return name;
  // A driver without this call cannot name its own absence.
  if (result == cuda::CUDA_ERROR_NOT_FOUND) return "CUDA_ERROR_NOT_FOUND";
  return fmt::format("CUresult {}", static_cast<int>(result));
}

tl::unexpected<Error> DriverError(const Driver& driver, const char* call, cuda::CUresult result) {
  return Fail(Code::kInternal, fmt::format("{}: {}", call, driver.Name(result)));
}

}  // namespace gpumux::workload

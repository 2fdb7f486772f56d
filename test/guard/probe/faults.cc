// SPDX-License-Identifier: Apache-2.0
#include "faults.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "rows.h"

namespace gpumux::probe {

namespace {

int faults = -1;

// Not enough memory, an unknown error, an earlier kernel's illegal address, an
// argument that the driver does not like.
constexpr const char* kCodes[] = {"2", "999", "700", "1"};

// What the guard asks the driver on its own account.
constexpr const char* kInner[] = {
#define GPUMUX_USE(name, params) #name,
#include "guard/uses.inc"
#undef GPUMUX_USE
    // Hooked functions that the guard calls as well: a twin of an array, the
    // device's free memory, and what undoes a call that went too far.
    "cuMemGetInfo_v2",         "cuArray3DCreate_v2",       "cuArrayDestroy", "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy", "cuMemPoolTrimTo",          "cuMemFreeAsync", "cuMemFreeAsync_ptsz",
    "cuStreamSynchronize",     "cuStreamSynchronize_ptsz", "cuModuleUnload", "cuLibraryUnload",
};

}  // namespace

// A file in memory: on a disk each script would wait for the disk.
void OpenFaults() {
  faults = memfd_create("faults", MFD_CLOEXEC);
  setenv("GPUMUX_SOFTGPU_FAULTS", ("@/proc/self/fd/" + std::to_string(faults)).c_str(), 1);
}

void SetFault(const std::string& rules) {
  // A script is read again when its file's size or time has changed, and the time
  // is coarse: so no script is as long as the one before.
  static size_t round = 0;
  const std::string script = rules + std::string(1 + round++ % 64, ' ');
  if (ftruncate(faults, 0) != 0 ||
      pwrite(faults, script.data(), script.size(), 0) != static_cast<ssize_t>(script.size())) {
    std::exit(9);
  }
}

bool HidesTheNeed(const std::string& rules) {
  for (const char* function : {"cuGraphGetNodes", "cuGraphNodeGetType", "cuGraphKernelNodeGetParams_v2",
                               "cuGraphMemAllocNodeGetParams", "cuFuncGetAttribute"}) {
    if (rules.find(function) != std::string::npos) return true;
  }
  return false;
}

std::vector<std::string> OwnFaults(const std::string& hook) {
  std::vector<std::string> rules;
  for (const char* code : kCodes) rules.push_back("fail " + hook + " with " + code);
  return rules;
}

std::vector<std::string> InnerFaults(const std::string& hook, const std::string& code) {
  std::vector<std::string> rules;
  for (const char* inner : kInner) {
    if (hook != inner) rules.push_back(std::string("fail ") + inner + " with " + code);
  }
  return rules;
}

}  // namespace gpumux::probe

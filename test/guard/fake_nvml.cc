// SPDX-License-Identifier: Apache-2.0
//
// An NVML as other releases have it, for the tests of who reads its process
// lists. It lists FAKE_NVML_PIDS ("11,12": pid 11 has 1 MiB, 12 has 2), in
// entries of FAKE_NVML_ENTRY_BYTES whatever the version; "self" in the list is
// the calling process's own pid, where the driver answers in its namespace.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "gpumux/abi/nvml/nvml.h"

using namespace gpumux::nvml;

namespace {

constexpr unsigned long long kMiB = 1 << 20;

std::vector<unsigned> Pids() {
  std::vector<unsigned> pids;
  const char* text = getenv("FAKE_NVML_PIDS");
  std::istringstream list(text ? text : "");
  for (std::string item; std::getline(list, item, ',');)
    pids.push_back(item == "self" ? static_cast<unsigned>(getpid())
                                  : static_cast<unsigned>(std::stoul(item)));
  return pids;
}

size_t EntryBytes() {
  const char* text = getenv("FAKE_NVML_ENTRY_BYTES");
  return text ? std::stoul(text) : sizeof(nvmlProcessInfo_t);
}

nvmlReturn_t List(unsigned* count, void* out) {
  if (!count || (*count > 0 && !out)) return NVML_ERROR_INVALID_ARGUMENT;
  const auto pids = Pids();
  const auto listed = static_cast<unsigned>(pids.size());
  const unsigned room = *count;
  *count = listed;
  if (listed > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < listed; i++) {
    nvmlProcessDetail_v1_t entry = {pids[i], (i + 1) * kMiB, ~0u, ~0u, 0};
    memcpy(static_cast<unsigned char*>(out) + i * EntryBytes(), &entry, EntryBytes());
  }
  return NVML_SUCCESS;
}

nvmlReturn_t Copy(const char* text, char* out, unsigned length) {
  if (strlen(text) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, text, strlen(text) + 1);
  return NVML_SUCCESS;
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default"))) nvmlReturn_t

EXPORT nvmlInit_v2() { return NVML_SUCCESS; }
EXPORT nvmlShutdown() { return NVML_SUCCESS; }
EXPORT nvmlDeviceGetCount_v2(unsigned* count) { return *count = 1, NVML_SUCCESS; }
EXPORT nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t* device) {
  if (index != 0) return NVML_ERROR_INVALID_ARGUMENT;
  *device = reinterpret_cast<nvmlDevice_t>(0x1000);
  return NVML_SUCCESS;
}
EXPORT nvmlDeviceGetUUID(nvmlDevice_t, char* out, unsigned length) {
  return Copy("GPU-00112233-4455-6677-8899-aabbccddeeff", out, length);
}
EXPORT nvmlDeviceGetName(nvmlDevice_t, char* out, unsigned length) { return Copy("fake", out, length); }

EXPORT nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t, unsigned* count, void* out) {
  return List(count, out);
}
EXPORT nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t, unsigned* count, void* out) {
  return List(count, out);
}
EXPORT nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t, unsigned* count, void* out) {
  return List(count, out);
}

// Of one size in all releases; asked with no room it tells the number.
EXPORT nvmlDeviceGetEncoderSessions(nvmlDevice_t, unsigned* count, nvmlEncoderSessionInfo_t* out) {
  const auto pids = Pids();
  const unsigned room = *count;
  *count = static_cast<unsigned>(pids.size());
  if (room == 0) return NVML_SUCCESS;
  if (pids.size() > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  for (unsigned i = 0; i < pids.size(); i++) {
    out[i] = {};
    out[i].sessionId = i + 1;
    out[i].pid = pids[i];
  }
  return NVML_SUCCESS;
}

EXPORT nvmlDeviceGetAccountingPids(nvmlDevice_t, unsigned* count, unsigned* out) {
  const auto pids = Pids();
  const unsigned room = *count;
  *count = static_cast<unsigned>(pids.size());
  if (pids.size() > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  if (out) memcpy(out, pids.data(), pids.size() * sizeof(unsigned));
  return NVML_SUCCESS;
}
EXPORT nvmlDeviceGetAccountingStats(nvmlDevice_t, unsigned pid, nvmlAccountingStats_t* stats) {
  const auto pids = Pids();
  for (unsigned i = 0; i < pids.size(); i++) {
    if (pids[i] != pid) continue;
    *stats = {};
    stats->maxMemoryUsage = (i + 1) * kMiB;
    return NVML_SUCCESS;
  }
  return NVML_ERROR_NOT_FOUND;
}

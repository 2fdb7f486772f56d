// SPDX-License-Identifier: Apache-2.0
//
// NVML's lists of processes, as a tenant's program sees them: the processes of
// its tenant, with what NVML says of each, and nobody else's.
//
//   the driver's whole list ─▶ keep the tenant's (the daemon says which) ─▶ the
//   pid in the program's own pid namespace ─▶ the caller's buffer, under the
//   driver's own protocol for buffers that are too small
//
// How large an entry is, the driver shows by what it writes: the same name
// filled 16, 24 and 32 bytes in different releases.
#include <string.h>
#include <sys/mman.h>

#include "guard/driver.h"
#include "guard/session.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

namespace {

constexpr unsigned kLargestEntry = 64;
constexpr unsigned kFirstRoom = 64;
constexpr unsigned kMostEntries = 1u << 16;
constexpr unsigned char kUntouched = 0x5a;  // no pid, size or instance has this in its last byte

// Memory of its own: the program's malloc may be anybody's.
class Buffer {
 public:
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    data_ = p == MAP_FAILED ? nullptr : static_cast<unsigned char*>(p);
  }
  ~Buffer() {
    if (data_) munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  unsigned char* data() const { return data_; }
  // Bytes up to the last one that was written since Mark().
  void Mark() { memset(data_, kUntouched, bytes_); }
  size_t Written() const {
    size_t n = bytes_;
    while (n > 0 && data_[n - 1] == kUntouched) n--;
    return n;
  }

 private:
  unsigned char* data_;
  size_t bytes_;
};

// Which listed pids are the tenant's. NVML answers with the machine's pids, or,
// from some drivers on, with those of the caller's namespace: what fits more of
// the list decides.
class Own {
 public:
  Own() { RequestProcesses(&list_); }
  unsigned count() const { return list_.count; }

  template <typename PidAt>
  void LearnNames(unsigned entries, PidAt&& pid_at) {
    unsigned outside = 0, there = 0;
    for (unsigned i = 0; i < entries; i++) {
      outside += Find(pid_at(i), false) != nullptr;
      there += Find(pid_at(i), true) != nullptr;
    }
    by_own_name_ = there > outside;
  }
  // The pid that the program knows; 0: none of the tenant's, or out of its sight.
  unsigned Translate(unsigned pid) const {
    const gpumux_process_id* id = Find(pid, by_own_name_);
    return id ? static_cast<unsigned>(id->pid_there) : 0;
  }
  // The other way: what NVML may know `pid` of the program as.
  bool Outside(unsigned pid, unsigned* outside) const {
    const gpumux_process_id* id = Find(pid, true);
    if (id) *outside = static_cast<unsigned>(id->pid);
    return id != nullptr;
  }

 private:
  const gpumux_process_id* Find(unsigned pid, bool there) const {
    for (uint32_t i = 0; pid != 0 && i < list_.count; i++) {
      const gpumux_process_id& id = list_.processes[i];
      if (static_cast<unsigned>(there ? id.pid_there : id.pid) == pid) return &id;
    }
    return nullptr;
  }
  gpumux_process_list list_;
  bool by_own_name_ = false;
};

unsigned ReadUnsigned(const unsigned char* p) {
  unsigned value;
  memcpy(&value, p, sizeof value);
  return value;
}

// Keeps the tenant's entries of `data`, in order, under the program's pids.
unsigned Keep(unsigned char* data, unsigned count, unsigned stride, unsigned pid_offset) {
  if (count == 0) return 0;
  Own own;
  own.LearnNames(count, [&](unsigned i) { return ReadUnsigned(data + size_t{i} * stride + pid_offset); });
  unsigned kept = 0;
  for (unsigned i = 0; i < count; i++) {
    const unsigned char* entry = data + size_t{i} * stride;
    const unsigned pid = own.Translate(ReadUnsigned(entry + pid_offset));
    if (pid == 0) continue;
    unsigned char* to = data + size_t{kept++} * stride;
    memmove(to, entry, stride);
    memcpy(to + pid_offset, &pid, sizeof pid);
  }
  return kept;
}

bool Applies() {
  Attach();
  return InForce();
}

// What the driver wrote for `count` entries. Anything that is no layout known:
// what the name stands for.
unsigned StrideOf(size_t written, unsigned count, unsigned declared) {
  const unsigned layouts[] = {4, 16, 24, 32};
  for (const unsigned stride : layouts) {
    if (size_t{stride} * count == written) return stride;
  }
  return declared;
}

// call(room, buffer) as the driver's function with `*room` entries of room;
// `declared` is the size of an entry by its name. `pid_offset` 0: a list whose
// entries may be of another size.
template <typename Call>
nvmlReturn_t Filtered(Call&& call, unsigned* count, void* out, unsigned declared, unsigned pid_offset = 0) {
  const unsigned room = *count;
  unsigned entries = kFirstRoom;
  bool exact = false;  // asked for as many as there are: what is written then tells the size of one
  for (int tries = 0; tries < 16 && entries <= kMostEntries; tries++) {
    Buffer all(size_t{entries} * kLargestEntry);
    if (!all.data()) return NVML_ERROR_UNKNOWN;
    all.Mark();
    unsigned listed = entries;
    const nvmlReturn_t r = call(&listed, all.data());
    if (r == NVML_ERROR_INSUFFICIENT_SIZE) {
      entries = (listed > entries ? listed : entries) + 16;
      exact = false;
      continue;
    }
    if (r != NVML_SUCCESS) return r;
    if (listed > entries) return NVML_ERROR_UNKNOWN;
    if (listed > 0 && !(exact && listed == entries)) {
      entries = listed;
      exact = true;
      continue;
    }
    const unsigned stride = pid_offset == 0 ? StrideOf(all.Written(), listed, declared) : declared;
    const unsigned kept = Keep(all.data(), listed, stride, pid_offset);
    *count = kept;
    if (kept > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    if (kept > 0) memcpy(out, all.data(), size_t{kept} * stride);
    return NVML_SUCCESS;
  }
  return NVML_ERROR_UNKNOWN;
}

template <typename Info>
nvmlReturn_t List(nvmlReturn_t (*NvmlTable::*function)(nvmlDevice_t, unsigned*, Info*), nvmlDevice_t device,
                  unsigned* count, Info* infos) {
  auto* real = BindNvml() ? g_nvml.*function : nullptr;
  if (!real) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (!Applies() || !count || (*count > 0 && !infos)) return real(device, count, infos);
  return Filtered([&](unsigned* room,
                      unsigned char* buffer) { return real(device, room, reinterpret_cast<Info*>(buffer)); },
                  count, infos, sizeof(Info));
}

// Sessions of the video engines: asked with no room, NVML tells their number as
// a success, not as an error.
template <typename Info>
nvmlReturn_t Sessions(nvmlReturn_t (*NvmlTable::*function)(nvmlDevice_t, unsigned*, Info*),
                      nvmlDevice_t device, unsigned* count, Info* infos) {
  auto* real = BindNvml() ? g_nvml.*function : nullptr;
  if (!real) return NVML_ERROR_FUNCTION_NOT_FOUND;
  if (!Applies() || !count || (*count > 0 && !infos)) return real(device, count, infos);
  const unsigned room = *count;
  const nvmlReturn_t r =
      Filtered([&](unsigned* entries,
                   unsigned char* buffer) { return real(device, entries, reinterpret_cast<Info*>(buffer)); },
               count, infos, sizeof(Info), offsetof(Info, pid));
  return room == 0 && r == NVML_ERROR_INSUFFICIENT_SIZE ? NVML_SUCCESS : r;
}

// Samples of use: a call without a buffer tells how many there could be, and
// none at all is an error of its own.
template <typename Sample, typename Call>
nvmlReturn_t Samples(Call&& call, unsigned* count, Sample* out) {
  unsigned entries = 0;
  nvmlReturn_t r = call(&entries, nullptr);
  if (!out) {
    Own own;
    const unsigned most = own.count() > 0 ? own.count() : 1;
    *count = entries < most ? entries : most;
    return r;
  }
  if (r != NVML_SUCCESS && r != NVML_ERROR_INSUFFICIENT_SIZE) return r;
  entries += 16;
  if (entries > kMostEntries) return NVML_ERROR_UNKNOWN;
  Buffer all(entries * sizeof(Sample));
  if (!all.data()) return NVML_ERROR_UNKNOWN;
  const unsigned most = entries;
  r = call(&entries, reinterpret_cast<Sample*>(all.data()));
  if (r == NVML_ERROR_NOT_FOUND) *count = 0;
  if (r != NVML_SUCCESS) return r;
  const unsigned kept =
      Keep(all.data(), entries < most ? entries : most, sizeof(Sample), offsetof(Sample, pid));
  const unsigned room = *count;
  *count = kept;
  if (kept == 0) return NVML_ERROR_NOT_FOUND;
  if (kept > room) return NVML_ERROR_INSUFFICIENT_SIZE;
  memcpy(out, all.data(), kept * sizeof(Sample));
  return NVML_SUCCESS;
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

extern "C" {

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                  nvmlProcessInfo_v1_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetComputeRunningProcesses, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_v2_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetComputeRunningProcesses_v2, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetComputeRunningProcesses_v3, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                   nvmlProcessInfo_v1_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                      nvmlProcessInfo_v2_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses_v2, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                      nvmlProcessInfo_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetGraphicsRunningProcesses_v3, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses(nvmlDevice_t device, unsigned* count,
                                                     nvmlProcessInfo_v1_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v2(nvmlDevice_t device, unsigned* count,
                                                        nvmlProcessInfo_v2_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses_v2, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned* count,
                                                        nvmlProcessInfo_t* infos) {
  return List(&NvmlTable::nvmlDeviceGetMPSComputeRunningProcesses_v3, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t* list) {
  if (!BindNvml() || !g_nvml.nvmlDeviceGetRunningProcessDetailList) return NVML_ERROR_FUNCTION_NOT_FOUND;
  auto* real = g_nvml.nvmlDeviceGetRunningProcessDetailList;
  // A version that we do not know has fields that we do not know.
  if (!Applies() || !list || list->version != kProcessDetailListV1 ||
      (list->numProcArrayEntries > 0 && !list->procArray)) {
    return real(device, list);
  }
  return Filtered(
      [&](unsigned* room, unsigned char* buffer) {
        nvmlProcessDetailList_t all = *list;
        all.numProcArrayEntries = *room;
        all.procArray = reinterpret_cast<nvmlProcessDetail_v1_t*>(buffer);
        const nvmlReturn_t r = real(device, &all);
        *room = all.numProcArrayEntries;
        return r;
      },
      &list->numProcArrayEntries, list->procArray, sizeof(nvmlProcessDetail_v1_t));
}

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t* samples,
                                             unsigned* count, unsigned long long last_seen) {
  if (!BindNvml() || !g_nvml.nvmlDeviceGetProcessUtilization) return NVML_ERROR_FUNCTION_NOT_FOUND;
  auto* real = g_nvml.nvmlDeviceGetProcessUtilization;
  if (!Applies() || !count) return real(device, samples, count, last_seen);
  return Samples(
      [&](unsigned* room, nvmlProcessUtilizationSample_t* buffer) {
        return real(device, buffer, room, last_seen);
      },
      count, samples);
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t* info) {
  if (!BindNvml() || !g_nvml.nvmlDeviceGetProcessesUtilizationInfo) return NVML_ERROR_FUNCTION_NOT_FOUND;
  auto* real = g_nvml.nvmlDeviceGetProcessesUtilizationInfo;
  if (!Applies() || !info || info->version != kProcessesUtilizationV1) return real(device, info);
  return Samples(
      [&](unsigned* room, nvmlProcessUtilizationInfo_v1_t* buffer) {
        nvmlProcessesUtilizationInfo_t all = *info;
        all.processSamplesCount = *room;
        all.procUtilArray = buffer;
        const nvmlReturn_t r = real(device, &all);
        *room = all.processSamplesCount;
        return r;
      },
      &info->processSamplesCount, info->procUtilArray);
}

nvmlReturn_t nvmlDeviceGetEncoderSessions(nvmlDevice_t device, unsigned* count,
                                          nvmlEncoderSessionInfo_t* infos) {
  return Sessions(&NvmlTable::nvmlDeviceGetEncoderSessions, device, count, infos);
}

nvmlReturn_t nvmlDeviceGetFBCSessions(nvmlDevice_t device, unsigned* count, nvmlFBCSessionInfo_t* infos) {
  return Sessions(&NvmlTable::nvmlDeviceGetFBCSessions, device, count, infos);
}

// Who was on the GPU since accounting was switched on. The tenant's dead are
// nobody's any more, and are left out with the others.
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned* count, unsigned* pids) {
  if (!BindNvml() || !g_nvml.nvmlDeviceGetAccountingPids) return NVML_ERROR_FUNCTION_NOT_FOUND;
  auto* real = g_nvml.nvmlDeviceGetAccountingPids;
  if (!Applies() || !count || (*count > 0 && !pids)) return real(device, count, pids);
  return Filtered(
      [&](unsigned* room, unsigned char* buffer) {
        return real(device, room, reinterpret_cast<unsigned*>(buffer));
      },
      count, pids, sizeof(unsigned));
}

nvmlReturn_t nvmlDeviceGetAccountingStats(nvmlDevice_t device, unsigned pid, nvmlAccountingStats_t* stats) {
  if (!BindNvml() || !g_nvml.nvmlDeviceGetAccountingStats) return NVML_ERROR_FUNCTION_NOT_FOUND;
  auto* real = g_nvml.nvmlDeviceGetAccountingStats;
  if (!Applies()) return real(device, pid, stats);
  Own own;
  unsigned outside = 0;
  if (!own.Outside(pid, &outside)) return NVML_ERROR_NOT_FOUND;
  const nvmlReturn_t r = real(device, outside, stats);
  return r == NVML_ERROR_NOT_FOUND && outside != pid ? real(device, pid, stats) : r;
}

}  // extern "C"

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdint.h>

#include "gpumux/abi/cuda/driver.h"
#include "gpumux/abi/pages.h"
#include "gpumux/abi/session.h"

namespace gpumux::guard {

// This process's session with gpumuxd: the connection, the three pages, and
// which device ordinal is which of the tenant's GPUs.
//
//            Attach() fails            hang-up, time-out
//   kIdle ───────────────▶ kOff ┐     ┌───────────────▶ kOrphan
//     │  no GPUMUX_SESSION      │     │                   │ a request, at most
//     │  nobody for 5 s         │     │                   │ once a second
//     └──── Attach() ──────▶ kInForce ◀───────────────────┘ reconnects
//
//   kOff      nothing is guarded; every wrapper passes straight through
//   kInForce  limits hold; requests go to the daemon
//   kOrphan   limits hold; no daemon answers, so bytes beyond local credit are
//             taken under the rule of gpumux_tenant_page
//   kRefused  as kOff, but the tenant is strict: cuInit fails
//
// Threads: any. One request is under way at a time.
enum class State : uint32_t { kIdle = 0, kInForce = 1, kOrphan = 2, kOff = 3, kRefused = 4 };

extern constinit uint32_t g_state;  // a State, for the atomic operations

inline State CurrentState() { return static_cast<State>(__atomic_load_n(&g_state, __ATOMIC_ACQUIRE)); }
inline bool InForce() {
  const State s = CurrentState();
  return s == State::kInForce || s == State::kOrphan;
}

// The process's launch counter; null while no limits are in force. For the hot
// path, which has no time for Counters().
extern constinit uint64_t* g_launches;
// The limits page's `launch`, for the same path, while limits are in force; else a word
// that says that there is nothing to do beside launching.
extern constinit const uint32_t* g_launch;
inline uint32_t LaunchWord() {
  return __atomic_load_n(__atomic_load_n(&g_launch, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

// Connects, once a process (again after a fork). Returns the state reached.
State Attach();

const gpumux_limits_page* Limits();
gpumux_tenant_page* TenantPage();
// The process's own page, while limits are in force.
gpumux_process_page* OwnPage();
// The process's counters of one of its GPUs.
gpumux_process_gpu* Counters(int slot);

// No slot: the tenant has no promise on that GPU (kNotOurs), or there is no
// such device or no current context (kNoDevice: the driver shall say so).
inline constexpr int kNoDevice = -1;
inline constexpr int kNotOurs = -2;
int SlotOfDevice(cuda::CUdevice device);
int SlotOfCurrentContext();
int SlotOfUuid(const uint8_t uuid[16]);
// The first device that is this GPU; -1: not known.
int DeviceOfSlot(int slot);
// How many devices CUDA shows to this process, ours or not; -1 where the driver
// does not answer.
int VisibleDevices();

// Requests. False: no daemon answered (the state is kOrphan then).

// For bytes: what nobody answers, `alone` decides. What it refuses waits for the next daemon,
// as long as one may be on its way.
using Alone = bool (*)(int slot, uint64_t bytes);
struct CreditAnswer {
  bool granted;
  bool device_full;
};
// `reclaim`: before a refusal other programs may be asked for what they cache,
// which takes up to 3 s.
bool RequestCredit(int slot, uint64_t bytes, bool reclaim, Alone alone, CreditAnswer* answer);
bool RequestContext(int slot, uint64_t bytes, Alone alone, bool* granted);
struct MemoryAnswer {
  uint64_t total, used, free;
};
bool RequestMemoryInfo(int slot, MemoryAnswer* answer);
// The tenant's living processes. False: nobody says, and `list` has this one
// alone.
bool RequestProcesses(gpumux_process_list* list);
// How many contexts there are now; none is under way.
void NoticeContexts(int slot, uint32_t contexts);
// `driver_error`, `answer`: as in gpumux_mps_place_request and its reply.
bool RequestMpsPlace(int slot, uint32_t driver_error, uint32_t* answer);
// The tenant's processes are to be clients of MPS.
bool ToBeMpsClient();
// They are to have gate pages (gate.h).
bool ToHaveGate();
// `own`: this process's page, or -1. `fds`: GPUMUX_MAX_FDS; those that came are the caller's.
bool RequestGate(uint32_t first, int own, gpumux_gate_reply* reply, int* fds, int* fd_count);
// Descriptors of GPUs for the daemon to keep, and what the page says of them. False: it did
// not get them.
bool HoldDescriptors(const gpumux_hold_descriptors& message, const int* fds, uint32_t count);
void TellDescriptors(uint32_t open, uint32_t sent);
// Connects anew where the daemon has gone, or the program has closed the socket: for those
// that have nothing to ask of it and are asked by it (gates_call).
void LookAtConnection();
// Another one each time that this process has connected to a daemon.
uint32_t ConnectionNumber();
// So many launches have ended; one took `launch_ns` (0: none did).
void TellBacklog(uint64_t launches_done, uint64_t launch_ns);
// A hint in the process page: what the program does now must not wait.
void MarkLatencyCritical(bool on);

}  // namespace gpumux::guard

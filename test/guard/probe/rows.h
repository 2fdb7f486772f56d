// SPDX-License-Identifier: Apache-2.0
//
// One row for each entry point that the guard stands in front of and that takes,
// maps or gives back device memory. A row says how to get to the moment of the
// call, the call, and the way back; table.cc makes the cells: found by name and
// by cuGetProcAddress, with a current context and without, within, at and over
// the cap, and with every fault of the driver.
//
// A row for a new hook: one entry in the rows_*.cc of its subject. The test
// GuardTable.EveryHookHasARowOrAReason fails until there is one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "driver.h"

namespace gpumux::probe {

namespace calls {
// The entry points that the guard hooks or calls, as a program finds them.
struct Hooked {
#define GPUMUX_HOOK(name, params) CUresult(*name) params = nullptr;
#define GPUMUX_USE(name, params) CUresult(*name) params = nullptr;
#include "guard/hooks.inc"
#include "guard/uses.inc"
#undef GPUMUX_HOOK
#undef GPUMUX_USE
};
}  // namespace calls
using calls::Hooked;

extern Hooked named;  // found by dlsym: for the steps before and after the call

// What the call under test gives out: address, handle or pointer. Rows hand
// &out to the driver, cast to the type that it wants.
constexpr cuda::CUdeviceptr kUntouched = 0x5e5e5e5e5e5e5e5e;
extern cuda::CUdeviceptr out;
// What a row made before the call.
extern cuda::CUdeviceptr held;

template <typename T>
T* Out() {
  return reinterpret_cast<T*>(&out);
}
template <typename T>
T As(cuda::CUdeviceptr value) {
  T t;
  static_assert(sizeof t <= sizeof value);
  __builtin_memcpy(&t, &value, sizeof t);
  return t;
}

struct Row {
  std::string hook;
  std::string variant = {};  // tells rows of one hook apart; may be empty
  // What the call takes from the device as NVML counts for the process, and what
  // the guard charges for it. Negative: gives back.
  int64_t takes = 0;
  int64_t charges = 0;
  // Free bytes that the call wants where that is more than it charges: nobody can
  // say beforehand what it will take.
  int64_t needs = 0;
  // Of it, charged by the daemon (contexts), which the process's own page does not show.
  int64_t by_daemon = 0;
  void (*prepare)() = nullptr;
  // Of the call, if not that of the whole table.
  cuda::CUcontext (*context)() = nullptr;
  cuda::CUresult (*call)(const Hooked& driver) = nullptr;
  void (*undo)() = nullptr;     // after a call that succeeded
  void (*instead)() = nullptr;  // after one that fails even without a fault: the driver lacks it
  void (*clean)() = nullptr;    // after either
};

// Ends the program if a step before or after the call fails: the row is wrong then.
void Must(cuda::CUresult r, const char* step);
#define MUST(step) Must(step, #step)

std::vector<Row> AllRows();
void AddPlainRows(std::vector<Row>* rows);
void AddStreamRows(std::vector<Row>* rows);
void AddVirtualMemoryRows(std::vector<Row>* rows);
void AddArrayRows(std::vector<Row>* rows);
void AddGraphRows(std::vector<Row>* rows);
void AddModuleRows(std::vector<Row>* rows);
void AddContextRows(std::vector<Row>* rows);
void AddGreenRows(std::vector<Row>* rows);
void AddLaunchRows(std::vector<Row>* rows);

}  // namespace gpumux::probe

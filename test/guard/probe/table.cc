// SPDX-License-Identifier: Apache-2.0
//
// The cells of the table: prints one JSON object a line for each. Run as a tenant
// and bare; test/guard/table_test.cc compares the two.
#include "table.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>

#include "books.h"
#include "commands.h"
#include "faults.h"
#include "rows.h"

namespace gpumux::probe {

using namespace gpumux::cuda;

Hooked named;
CUdeviceptr out = kUntouched, held = 0;

namespace {

constexpr uint64_t kPage = 2 * kMiB;

struct EntryPoint {
  const char* stem;
  int version;
  bool per_thread;
  const char* symbol;
};
constexpr bool kLegacy = false, kPerThread = true;
constexpr EntryPoint kEntryPoints[] = {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) {#stem, version, flavour, #symbol},
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
};

// By the stem, the version and the stream flavour that lead to `symbol`.
void* ByProcAddress(const char* symbol) {
  using Fn = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);
  static const auto find = Find<Fn>("cuGetProcAddress_v2");
  for (const EntryPoint& entry : kEntryPoints) {
    if (std::strcmp(entry.symbol, symbol) != 0) continue;
    void* address = nullptr;
    CUdriverProcAddressQueryResult status;
    MUST(find(entry.stem, &address, entry.version, entry.per_thread ? 2 : 0, &status));
    return address;
  }
  return nullptr;
}

Hooked FindAll(const std::function<void*(const char*)>& find) {
  Hooked all;
#define GPUMUX_HOOK(name, params) all.name = reinterpret_cast<decltype(all.name)>(find(#name));
#define GPUMUX_USE(name, params) GPUMUX_HOOK(name, params)
#include "guard/hooks.inc"
#include "guard/uses.inc"
#undef GPUMUX_HOOK
#undef GPUMUX_USE
  return all;
}

// The table runs in a context of its own: rows make and end the primary one.
void Enter(CUcontext context) {
  CUcontext popped;
  while (api.cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS) {
  }
  if (context) MUST(api.cuCtxSetCurrent(context));
}
void Home() { Enter(primary); }

// Takes all that is free but `leave` bytes, rounded up to the device's pages.
class Filler {
 public:
  explicit Filler(uint64_t leave) {
    const uint64_t free = Free();
    if (free < leave + kPage) return;
    const CUmemAllocationProp prop = DeviceProp();
    MUST(named.cuMemCreate(&handle_, (free - leave) / kPage * kPage, &prop, 0));
  }
  ~Filler() {
    if (handle_) MUST(named.cuMemRelease(handle_));
  }
  Filler(const Filler&) = delete;
  Filler& operator=(const Filler&) = delete;

 private:
  CUmemGenericAllocationHandle handle_ = 0;
};

}  // namespace

void Must(CUresult r, const char* step) {
  if (r == CUDA_SUCCESS) return;
  std::printf("{\"broken\": \"%s gave %d\"}\n", step, r);
  std::fflush(stdout);
  _Exit(8);
}

std::vector<Row> AllRows() {
  std::vector<Row> rows;
  AddPlainRows(&rows);
  AddStreamRows(&rows);
  AddVirtualMemoryRows(&rows);
  AddArrayRows(&rows);
  AddGraphRows(&rows);
  AddModuleRows(&rows);
  AddContextRows(&rows);
  AddGreenRows(&rows);
  AddLaunchRows(&rows);
  return rows;
}

void StartTable() {
  OpenFaults();
#define PROBE_CALL(name, params) api.name = Find<decltype(api.name)>(#name);
#include "driver_calls.inc"
#undef PROBE_CALL
  named = FindAll([](const char* name) { return dlsym(Driver(), name); });
  MUST(named.cuInit(0));
  MUST(named.cuDeviceGet(&device, 0));
  MUST(named.cuCtxCreate_v2(&primary, 0, device));
  Home();
}

uint64_t Needs(const Row& row) {
  return static_cast<uint64_t>(std::max({row.charges, row.needs, int64_t{0}}));
}

// What one call did: its code, whether it wrote its output, and the figures'
// change by the call and after everything was undone.
CellResult RunCell(const Books& books, const Row& row, const Cell& cell) {
  CellResult result;
  Home();
  const Figures start = books.Read();
  if (row.prepare) row.prepare();
  Home();
  {
    const uint64_t need = Needs(row);
    const Filler filler(cell.room == Room::kWithin ? ~0ull / 2
                        : cell.room == Room::kAt   ? need
                                                   : need - kPage);
    result.room = Free();
    const Figures before = books.Read();
    out = kUntouched;
    Enter(!cell.context ? nullptr : row.context ? row.context() : primary);
    if (cell.fault) SetFault(*cell.fault);
    result.code = row.call(*cell.driver);
    if (cell.fault) SetFault("");
    result.wrote = out != kUntouched;
    Home();
    result.by_call = books.Read() - before;
  }
  // What failed works once nothing stands in its way.
  result.then = result.code;
  if (result.code != CUDA_SUCCESS) {
    out = kUntouched;
    if (row.context) Enter(row.context());
    result.then = row.call(named);
    Home();
  }
  if (result.then == CUDA_SUCCESS && row.undo) row.undo();
  if (result.then != CUDA_SUCCESS && row.instead) row.instead();
  if (row.clean) row.clean();
  Home();
  if (cell.fault) {
    // What the guard could not learn in time it learns at the next such call.
    MUST(named.cuDeviceGraphMemTrim(device));
    MUST(named.cuCtxSynchronize());
  }
  result.left = books.Read() - start;
  return result;
}

namespace {

const char* Name(Room room) { return room == Room::kWithin ? "within" : room == Room::kAt ? "at" : "over"; }

void Print(const Row& row, const Cell& cell, const CellResult& r) {
  const nlohmann::json json = {
      {"hook", row.hook},
      {"variant", row.variant},
      {"by", cell.driver == &named ? "name" : "cuGetProcAddress"},
      {"context", cell.context},
      {"room", Name(cell.room)},
      {"fault", cell.fault ? *cell.fault : ""},
      {"takes", row.takes},
      {"charges", row.charges},
      {"by_daemon", row.by_daemon},
      {"needs", Needs(row)},
      {"had", r.room},
      {"code", r.code},
      {"wrote", r.wrote},
      {"taken", r.by_call.taken},
      {"charged", r.by_call.charged},
      {"told", r.by_call.used},
      {"then", r.then},
      {"left_taken", r.left.taken},
      {"left_charged", r.left.charged},
      {"left_told", r.left.used},
  };
  std::printf("%s\n", json.dump().c_str());
}

}  // namespace

int Table() {
  StartTable();
  const Hooked by_address = FindAll(ByProcAddress);
  const Books books;
  for (const Row& row : AllRows()) {
    for (const Hooked* driver : std::initializer_list<const Hooked*>{&named, &by_address}) {
      for (const bool context : {true, false}) {
        for (const Room room : {Room::kWithin, Room::kAt, Room::kOver}) {
          if (room == Room::kOver && (Needs(row) == 0 || !books.guarded())) continue;
          if (room == Room::kAt && !books.guarded()) continue;
          const Cell cell = {driver, context, room, nullptr};
          Print(row, cell, RunCell(books, row, cell));
        }
      }
    }
  }
  return 0;
}

int Hold(const char* until) {
  StartTable();
  const Books books;
  CUdeviceptr p = 0;
  MUST(named.cuMemAlloc_v2(&p, 3 * kMiB));
  MUST(named.cuMemAllocAsync(&p, 5 * kMiB, nullptr));
  MUST(named.cuMemAllocManaged(&p, 7 * kMiB, CU_MEM_ATTACH_GLOBAL));
  const Figures figures = books.Read();
  std::printf("%s\n", nlohmann::json({{"charged", figures.charged}, {"told", figures.used}}).dump().c_str());
  std::fflush(stdout);
  while (access(until, F_OK) != 0) usleep(2000);
  return 0;
}

// In a process of its own: the driver fails a question from the start on.
int FirstFault(const std::string& fault) {
  OpenFaults();
  SetFault(fault);
  named = FindAll([](const char* name) { return dlsym(Driver(), name); });
#define PROBE_CALL(name, params) api.name = Find<decltype(api.name)>(#name);
#include "driver_calls.inc"
#undef PROBE_CALL
  const Truth truth;
  nlohmann::json json = {{"fault", fault}, {"init", named.cuInit(0)}};
  CUdeviceptr p = 0;
  json["context"] = named.cuCtxCreate_v2(&primary, 0, device);
  json["large"] = named.cuMemAlloc_v2(&p, 8ull << 30);
  json["small"] = named.cuMemAlloc_v2(&p, 100 * kMiB);
  json["taken"] = truth.Own();
  SetFault("");
  CUdeviceptr q = 0;
  if (json["context"] != CUDA_SUCCESS) json["context"] = named.cuCtxCreate_v2(&primary, 0, device);
  if (json["small"] != CUDA_SUCCESS) json["small"] = named.cuMemAlloc_v2(&p, 100 * kMiB);
  json["then"] = named.cuMemAlloc_v2(&q, 8ull << 30);
  size_t free = 0, total = 0;
  MUST(named.cuMemGetInfo_v2(&free, &total));
  json["used"] = total - free;
  json["own"] = truth.Own();
  std::printf("%s\n", json.dump().c_str());
  return 0;
}

int FirstFaults(const std::string& code) {
  for (const std::string& fault : InnerFaults("cuInit", code)) {
    const pid_t child = fork();
    if (child == 0) {
      const int code = FirstFault(fault);
      std::fflush(stdout);
      _exit(code);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) return 8;
  }
  return 0;
}

int Faults(const std::string& kind, const std::string& code) {
  if (kind == "first") return FirstFaults(code);

  StartTable();
  const Books books;
  for (const Row& row : AllRows()) {
    for (const std::string& fault : kind == "own" ? OwnFaults(row.hook) : InnerFaults(row.hook, code)) {
      const Cell cell = {&named, true, Room::kWithin, &fault};
      Print(row, cell, RunCell(books, row, cell));
      if (kind == "own" || Needs(row) == 0 || !books.guarded() || HidesTheNeed(fault)) {
        continue;
      }
      const Cell over = {&named, true, Room::kOver, &fault};
      Print(row, over, RunCell(books, row, over));
    }
  }
  return 0;
}

}  // namespace gpumux::probe

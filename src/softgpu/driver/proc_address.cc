// SPDX-License-Identifier: Apache-2.0
//
// The answers of cuGetProcAddress. The rules are those at the head of entry_points.inc.
#include "softgpu/driver/proc_address.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string_view>

#include "softgpu/driver/driver_version.h"
#include "softgpu/faults.h"

#define GPUMUX_ENTRY(stem, version, flavour, symbol) extern "C" int symbol();
namespace gpumux::softgpu::table {
#include "gpu/entry_points.inc"
}
#undef GPUMUX_ENTRY

namespace gpumux::softgpu {

using namespace gpumux::cuda;

namespace {

enum Flavour { kLegacy, kPerThread };
struct Row {
  std::string_view stem;
  int version;
  Flavour flavour;
  int (*function)();
  const char* symbol;
};
constexpr Row kRows[] = {
#define GPUMUX_ENTRY(stem, version, flavour, symbol) {#stem, version, flavour, &table::symbol, #symbol},
#include "gpu/entry_points.inc"
#undef GPUMUX_ENTRY
};

// The file is in the order of its exported symbols, not of its stems.
struct ByStem {
  Row rows[std::size(kRows)];
  ByStem() {
    std::copy(std::begin(kRows), std::end(kRows), rows);
    std::stable_sort(std::begin(rows), std::end(rows),
                     [](const Row& a, const Row& b) { return a.stem < b.stem; });
  }
};

}  // namespace

CUresult FindEntryPoint(const char* name, int version, cuuint64_t flags, void** out,
                        CUdriverProcAddressQueryResult* status) {
  if (name == nullptr || out == nullptr || version > CudaVersion()) return CUDA_ERROR_INVALID_VALUE;
  static const ByStem& by_stem = *new ByStem;
  const std::string_view stem(name);
  auto begin = std::lower_bound(std::begin(by_stem.rows), std::end(by_stem.rows), stem,
                                [](const Row& row, std::string_view s) { return row.stem < s; });
  auto end = begin;
  // An older driver has no row that is newer than itself, nor a stem that
  // has newer ones alone.
  const FaultRun* faults = CurrentFaults();
  const int cuda_version = CudaVersion();
  const auto lacks = [&](const Row& row) {
    return row.version > cuda_version || TakenOut(row.symbol) ||
           (faults != nullptr && faults->Lacks(row.symbol));
  };
  bool per_thread = false, exists = false;
  for (; end != std::end(by_stem.rows) && end->stem == stem; ++end) {
    if (lacks(*end)) continue;
    exists = true;
    per_thread |= end->flavour == kPerThread;
  }
  const Flavour wanted =
      per_thread && (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) ? kPerThread : kLegacy;
  const Row* best = nullptr;
  for (auto row = begin; row != end; ++row) {
    if (!lacks(*row) && row->flavour == wanted && row->version <= version &&
        (best == nullptr || row->version > best->version)) {
      best = row;
    }
  }
  *out = best != nullptr ? reinterpret_cast<void*>(best->function) : nullptr;
  if (status != nullptr) {
    *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
              : exists        ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                              : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  }
  return CUDA_SUCCESS;
}

}  // namespace gpumux::softgpu

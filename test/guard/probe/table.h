// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "books.h"
#include "rows.h"

namespace gpumux::probe {

// How much is free when the call is made.
enum class Room {
  kWithin,  // plenty
  kAt,      // exactly what the call takes
  kOver,    // one page of the device less
};

struct Cell {
  const Hooked* driver;  // as the function under test was found
  bool context;          // whether one is current
  Room room;
  const std::string* fault;  // rules of GPUMUX_SOFTGPU_FAULTS while the call runs
};

struct CellResult {
  cuda::CUresult code = cuda::CUDA_SUCCESS;
  uint64_t room = 0;                         // free bytes when the call was made
  bool wrote = false;                        // the call's output
  Figures by_call;                           // change by the call
  cuda::CUresult then = cuda::CUDA_SUCCESS;  // of the call made again, if it failed
  Figures left;                              // change after everything was undone
};

CellResult RunCell(const Books& books, const Row& row, const Cell& cell);

}  // namespace gpumux::probe

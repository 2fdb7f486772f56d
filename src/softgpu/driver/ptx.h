// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace gpumux::softgpu {

// What a module's text declares. The code itself is not read: kernels do what
// their names say (kernels.h).
struct PtxModule {
  struct Parameter {
    uint64_t offset = 0;
    uint64_t size = 0;
  };
  struct Kernel {
    std::string name;
    std::vector<Parameter> parameters;
    uint64_t local_bytes = 0;   // of one thread
    uint64_t shared_bytes = 0;  // of one block, as declared
  };
  struct Global {
    std::string name;
    uint64_t bytes = 0;
    uint64_t alignment = 1;
    std::vector<uint8_t> initial;  // shorter than bytes: the rest is zero
  };
  std::vector<Kernel> kernels;
  std::vector<Global> globals;  // .global and .const
  bool uses_heap = false;       // calls the device's malloc
};

// Nothing if the text is not PTX: no version or target, braces that do not
// match, a declaration that cannot be read.
std::optional<PtxModule> ParsePtx(std::string_view text);

}  // namespace gpumux::softgpu

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpumux {

// Numbers of processors or of memory nodes, ascending, each once.
using CpuList = std::vector<unsigned>;

// Beyond any machine of today; a longer list is none.
inline constexpr unsigned kMaxCpus = 8192;

// As the kernel writes it: "0-3,8,10-11\n". Empty text: no processors. kInvalid.
Result<CpuList> ParseCpuList(std::string_view text);
std::string FormatCpuList(const CpuList& cpus);

// Bits as NVML and the kernel's calls have them: bit 0 of word 0 is processor 0.
CpuList CpusOfWords(const std::vector<unsigned long>& words);
std::vector<unsigned long> WordsOfCpus(const CpuList& cpus);

CpuList Intersection(const CpuList& a, const CpuList& b);
CpuList Union(const CpuList& a, const CpuList& b);

}  // namespace gpumux

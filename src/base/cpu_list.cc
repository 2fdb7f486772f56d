// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <climits>
#include <iterator>

namespace gpumux {
namespace {

constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

bool TakeNumber(std::string_view& text, unsigned& number) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || number >= kMaxCpus) return false;
  text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
  return true;
}

}  // namespace

Result<CpuList> ParseCpuList(std::string_view text) {
  const auto wrong = [] { return Fail(Code::kInvalid, "not a list such as 0-3,8"); };
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::vector<bool> there(kMaxCpus);
  while (!text.empty()) {
    unsigned first = 0;
    if (!TakeNumber(text, first)) return wrong();
    unsigned last = first;
    if (text.starts_with('-')) {
      text.remove_prefix(1);
      if (!TakeNumber(text, last) || last < first) return wrong();
    }
    std::fill(there.begin() + first, there.begin() + last + 1, true);
    if (text.empty()) break;
    if (text.size() == 1 || text.front() != ',') return wrong();
    text.remove_prefix(1);
  }
  CpuList cpus;
  for (unsigned cpu = 0; cpu < kMaxCpus; ++cpu) {
    if (there[cpu]) cpus.push_back(cpu);
  }
  return cpus;
}

std::string FormatCpuList(const CpuList& cpus) {
  std::string out;
  for (size_t i = 0; i < cpus.size();) {
    size_t end = i;
    while (end + 1 < cpus.size() && cpus[end + 1] == cpus[end] + 1) ++end;
    out += fmt::format("{}{}", out.empty() ? "" : ",", cpus[i]);
    if (end > i) out += fmt::format("-{}", cpus[end]);
    i = end + 1;
  }
  return out;
}

CpuList CpusOfWords(const std::vector<unsigned long>& words) {
  CpuList cpus;
  for (size_t word = 0; word < words.size(); ++word) {
    for (size_t bit = 0; bit < kWordBits; ++bit) {
      if (words[word] >> bit & 1) cpus.push_back(static_cast<unsigned>(word * kWordBits + bit));
    }
  }
  return cpus;
}

std::vector<unsigned long> WordsOfCpus(const CpuList& cpus) {
  std::vector<unsigned long> words(cpus.empty() ? 1 : cpus.back() / kWordBits + 1);
  for (const unsigned cpu : cpus) words[cpu / kWordBits] |= 1ul << cpu % kWordBits;
  return words;
}

CpuList Intersection(const CpuList& a, const CpuList& b) {
  CpuList out;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

CpuList Union(const CpuList& a, const CpuList& b) {
  CpuList out;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(out));
  return out;
}

}  // namespace gpumux

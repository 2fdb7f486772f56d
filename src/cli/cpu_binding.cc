// SPDX-License-Identifier: Apache-2.0
#include "cli/cpu_binding.h"

#include <fmt/format.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

namespace gpumux::cli {
namespace {

constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

// Not glibc's: its set has 1024 processors.
CpuList Allowed() {
  std::vector<unsigned long> words(kMaxCpus / kWordBits);
  const long bytes = ::syscall(SYS_sched_getaffinity, 0, words.size() * sizeof(unsigned long), words.data());
  return bytes > 0 ? CpusOfWords(words) : CpuList{};
}

bool Allow(const CpuList& cpus) {
  const auto words = WordsOfCpus(cpus);
  return ::syscall(SYS_sched_setaffinity, 0, words.size() * sizeof(unsigned long), words.data()) == 0;
}

// Whoever chose a policy before (numactl) knows better.
bool HasDefaultMemoryPolicy() {
  int mode = -1;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0, nullptr, 0) == 0 && mode == MPOL_DEFAULT;
}

bool Prefer(unsigned node) {
  const auto words = WordsOfCpus({node});
  // The kernel reads one bit less than it is told.
  return ::syscall(SYS_set_mempolicy, MPOL_PREFERRED, words.data(), words.size() * kWordBits + 1) == 0;
}

}  // namespace

CpuBinding::CpuBinding(const NearGpu& near) {
  if (near.cpus.empty()) {
    not_bound_ = near.unknown.empty() ? "which processors are near its GPU is not known" : near.unknown;
    return;
  }
  const CpuList allowed = Allowed();
  const CpuList cpus = Intersection(near.cpus, allowed);
  if (cpus.empty()) {
    not_bound_ = fmt::format("near its GPU are the processors {}, and it may use {} alone",
                             FormatCpuList(near.cpus), FormatCpuList(allowed));
    return;
  }
  if (!Allow(cpus)) {
    not_bound_ = fmt::format("the kernel refuses: {}", std::strerror(errno));
    return;
  }
  before_ = allowed;
  if (near.memory_nodes.size() == 1 && HasDefaultMemoryPolicy())
    prefers_node_ = Prefer(near.memory_nodes.front());
}

CpuBinding::~CpuBinding() {
  if (prefers_node_) (void)::syscall(SYS_set_mempolicy, MPOL_DEFAULT, nullptr, 0);
  if (!before_.empty()) (void)Allow(before_);
}

}  // namespace gpumux::cli

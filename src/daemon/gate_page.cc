// SPDX-License-Identifier: Apache-2.0
#include "daemon/gate_page.h"

#include <algorithm>
#include <atomic>

#include "gpumux/abi/pages.h"

namespace gpumux::daemon {

namespace {

uint64_t Load(uint64_t& word) { return std::atomic_ref<uint64_t>(word).load(std::memory_order_acquire); }
uint32_t Load(uint32_t& word) { return std::atomic_ref<uint32_t>(word).load(std::memory_order_acquire); }
void Store(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_release);
}

}  // namespace

Result<GatePage> GatePage::Create() {
  auto memory = SharedMemory::Create("gpumux-gate", GPUMUX_PAGE_BYTES, SharedMemory::Others::kMayWrite);
  if (!memory) return tl::unexpected(memory.error());
  GatePage page;
  page.memory_ = std::move(*memory);
  page.page()->magic = GPUMUX_GATE_MAGIC;
  page.page()->version = GPUMUX_GATE_VERSION;
  page.page()->owner_bit = GPUMUX_GATE_NO_BIT;
  return page;
}

Result<GatePage> GatePage::Adopt(UniqueFd fd) {
  auto memory = SharedMemory::Map(std::move(fd), GPUMUX_PAGE_BYTES, /*writable=*/true);
  if (!memory) return tl::unexpected(memory.error());
  GatePage page;
  page.memory_ = std::move(*memory);
  if (page.page()->magic != GPUMUX_GATE_MAGIC || page.page()->version != GPUMUX_GATE_VERSION)
    return Fail(Code::kInvalid, "not a gate page of ours");
  return page;
}

void GatePage::SetOwnerBit(uint32_t bit) { std::atomic_ref<uint32_t>(page()->owner_bit).store(bit); }

uint32_t GatePage::OwnerBit() const { return Load(page()->owner_bit); }

void GatePage::Beat(uint64_t now_ns) { Store(page()->turn_beat_ns, now_ns); }

void GatePage::OpenForGood() {
  // No opener is left: whoever has not heard of the death yet shall not close it either.
  std::atomic_ref<uint64_t>(page()->forced).store(1);
  std::atomic_ref<uint64_t>(page()->want).store(0);
  std::atomic_ref<uint64_t>(page()->closed).store(0);
}

GatePage::Work GatePage::Look() const {
  gpumux_gate_page& own = *page();
  Work work{.wants = Load(own.wants) != 0, .in_flight = false, .progress = Load(own.waits)};
  if (!work.wants) return work;
  const uint64_t closed = Load(own.closed);
  // While a latency-critical neighbour works it could not use a turn.
  work.wants = (closed & ~GPUMUX_GATE_TURN) == 0;
  // Where nothing is told: what it has is on the GPU while its gate is open.
  if (Load(own.how) == GPUMUX_GATE_ON_CPU || Load(own.untracked) != 0) work.in_flight = closed == 0;
  const uint32_t streams = std::min(Load(own.streams), GPUMUX_GATE_STREAMS);
  for (uint32_t i = 0; i < streams; ++i) {
    const uint64_t entered = Load(own.segments[i].entered), passed = Load(own.segments[i].passed);
    work.in_flight |= entered != passed;
    work.progress += entered + passed;
  }
  return work;
}

void GatePage::Figures::Add(const Figures& other) {
  const auto add = [](uint64_t& sum, uint64_t value) { sum = sum + value < sum ? UINT64_MAX : sum + value; };
  // The weakest of them.
  if (processes == 0 || other.how == GPUMUX_GATE_ON_CPU) how = other.how;
  add(waits, other.waits);
  add(forcings, other.forcings);
  add(closed_ns, other.closed_ns);
  add(dead_bits, other.dead_bits);
  add(busy_periods, other.busy_periods);
  add(busy_ns, other.busy_ns);
  window_ns = std::max(window_ns, other.window_ns);
  add(windows, other.windows);
  processes += other.processes;
}

GatePage::Figures GatePage::Read() const {
  gpumux_gate_page& own = *page();
  Figures figures;
  figures.how = Load(own.how);
  figures.waits = Load(own.waits);
  figures.forcings = Load(own.forcings);
  figures.closed_ns = Load(own.closed_ns);
  figures.dead_bits = Load(own.dead_bits);
  figures.busy_periods = Load(own.busy_periods);
  figures.busy_ns = Load(own.busy_ns);
  figures.window_ns = Load(own.window_ns);
  figures.windows = Load(own.windows);
  figures.closed = Load(own.closed) != 0;
  figures.processes = 1;
  return figures;
}

}  // namespace gpumux::daemon

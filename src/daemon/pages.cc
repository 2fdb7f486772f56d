// SPDX-License-Identifier: Apache-2.0
#include "daemon/pages.h"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace gpumux::daemon {

namespace {

uint64_t Load(uint64_t& word) { return std::atomic_ref<uint64_t>(word).load(); }
void Store(uint64_t& word, uint64_t value) {
  std::atomic_ref<uint64_t>(word).store(value, std::memory_order_relaxed);
}

// A change takes some nanoseconds, or as long as its thread is not run in its middle.
constexpr int kReadings = 10'000;

uint64_t Clamp(int64_t free, uint64_t granted) {
  return free <= 0 ? 0 : std::min<uint64_t>(static_cast<uint64_t>(free), granted);
}

}  // namespace

Result<ProcessPage> ProcessPage::Create() {
  auto memory = SharedMemory::Create(kProcessPageName, GPUMUX_PAGE_BYTES, SharedMemory::Others::kMayWrite);
  if (!memory) return tl::unexpected(memory.error());
  ProcessPage page;
  page.memory_ = std::move(*memory);
  page.page().magic = GPUMUX_PROCESS_MAGIC;
  page.page().version = GPUMUX_PAGES_VERSION;
  return page;
}

Result<ProcessPage> ProcessPage::Adopt(UniqueFd fd) {
  auto memory = SharedMemory::Map(std::move(fd), GPUMUX_PAGE_BYTES, /*writable=*/true);
  if (!memory) return tl::unexpected(memory.error());
  ProcessPage page;
  page.memory_ = std::move(*memory);
  if (page.page().magic != GPUMUX_PROCESS_MAGIC || page.page().version != GPUMUX_PAGES_VERSION)
    return Fail(Code::kInvalid, "not a process page of ours");
  return page;
}

std::optional<uint64_t> ProcessPage::Held(unsigned slot) const {
  gpumux_process_gpu& gpu = page().gpus[slot];
  const std::atomic_ref<uint32_t> begun(gpu.transfers_begun), ended(gpu.transfers_ended);
  for (int tries = 0; tries < kReadings; ++tries) {
    const uint32_t before = ended.load();
    const uint64_t in_use = Load(gpu.in_use_bytes);
    const int64_t free = std::atomic_ref<int64_t>(gpu.credit_free_bytes).load();
    if (begun.load() != before) continue;
    // Both may be garbage; below zero in all is nothing.
    const uint64_t held = in_use + static_cast<uint64_t>(free);
    return static_cast<int64_t>(held) < 0 ? 0 : held;
  }
  return std::nullopt;
}

void ProcessPage::SetOverhead(unsigned slot, uint64_t bytes) {
  Store(page().gpus[slot].overhead_bytes, bytes);
}

void ProcessPage::OfferGrant(uint32_t request_id) {
  std::atomic_ref<uint64_t>(page().granted_request).store(request_id);
}

bool ProcessPage::WithdrawGrant(uint32_t request_id) {
  uint64_t id = request_id;
  return std::atomic_ref<uint64_t>(page().granted_request).compare_exchange_strong(id, 0);
}

ProcessWords ProcessPage::Read(unsigned slot, uint64_t granted_bytes, uint64_t device_bytes) const {
  gpumux_process_gpu& gpu = page().gpus[slot];
  ProcessWords words;
  words.free_bytes = Clamp(std::atomic_ref<int64_t>(gpu.credit_free_bytes).load(), granted_bytes);
  words.committed_bytes = std::min(Load(gpu.committed_bytes), device_bytes);
  words.peak_bytes = std::min(Load(gpu.peak_bytes), device_bytes);
  words.contexts = std::min<uint64_t>(Load(gpu.contexts), 1024);
  words.refused_own_limit = Load(gpu.refused_own_limit);
  words.refused_device_full = Load(gpu.refused_device_full);
  words.refused_own_part = Load(gpu.refused_own_part);
  words.last_refused_bytes = Load(gpu.last_refused_bytes);
  words.contexts_under_way = std::atomic_ref<uint32_t>(gpu.contexts_under_way).load() != 0;
  words.launches = Load(gpu.launches);
  words.unrouted = Load(gpu.unrouted);
  words.mps = std::atomic_ref<uint32_t>(gpu.mps).load();
  words.mps_sms = std::atomic_ref<uint32_t>(gpu.mps_sms).load();
  words.mps_free_bytes = Load(gpu.mps_free_bytes);
  return words;
}

uint64_t ProcessPage::Debt(unsigned slot) const {
  const int64_t free = std::atomic_ref<int64_t>(page().gpus[slot].credit_free_bytes).load();
  return free < 0 ? ~static_cast<uint64_t>(free) + 1 : 0;
}

void ProcessPage::AddCredit(unsigned slot, uint64_t bytes) {
  if (bytes > 0)
    std::atomic_ref<int64_t>(page().gpus[slot].credit_free_bytes).fetch_add(static_cast<int64_t>(bytes));
}

uint64_t ProcessPage::TakeCredit(unsigned slot, uint64_t granted_bytes) {
  return Clamp(std::atomic_ref<int64_t>(page().gpus[slot].credit_free_bytes).exchange(0), granted_bytes);
}

void ProcessPage::Clear(unsigned slot) {
  gpumux_process_gpu& gpu = page().gpus[slot];
  std::atomic_ref<int64_t>(gpu.credit_free_bytes).store(0);
  Store(gpu.committed_bytes, 0);
  Store(gpu.in_use_bytes, 0);
  Store(gpu.contexts, 0);
  std::atomic_ref<uint32_t>(gpu.contexts_under_way).store(0);
  std::atomic_ref<uint32_t>(gpu.transfers_begun).store(0);
  std::atomic_ref<uint32_t>(gpu.transfers_ended).store(0);
  OfferGrant(0);
}

bool ProcessPage::InForce() const {
  return std::atomic_ref<uint32_t>(page().flags).load() & GPUMUX_GUARD_IN_FORCE;
}

uint32_t ProcessPage::FirstError() const { return std::atomic_ref<uint32_t>(page().first_error).load(); }

uint64_t ProcessPage::FirstErrorNs() const { return Load(page().first_error_ns); }

WorkWords ProcessPage::Work() const {
  WorkWords words;
  words.launches = Load(page().gpus[0].launches);
  const uint64_t done = Load(page().launches_done);
  words.done = std::min(done, words.launches);
  // Two threads may lose a count of each other's: then it is not known.
  words.all_ended = done == words.launches;
  words.launch_ns = Load(page().launch_ns);
  words.descriptors_open = std::atomic_ref<uint32_t>(page().descriptors_open).load();
  return words;
}

void CloseOrphanPage(UniqueFd fd) {
  const auto memory = SharedMemory::Map(std::move(fd), GPUMUX_PAGE_BYTES, /*writable=*/true);
  if (!memory) return;
  auto& page = *memory->as<gpumux_tenant_page>();
  if (page.magic != GPUMUX_TENANT_MAGIC || page.version != GPUMUX_PAGES_VERSION) return;
  for (uint64_t& taken : page.orphan_taken_bytes)
    std::atomic_ref<uint64_t>(taken).store(GPUMUX_ORPHANS_CLOSED);
}

Result<TenantPages> TenantPages::Create(const std::string& tenant_id, const std::vector<Gpu>& gpus,
                                        bool strict, bool simulated) {
  TenantPages pages;
  auto limits = SharedMemory::Create("gpumux-limits", GPUMUX_PAGE_BYTES, SharedMemory::Others::kMayOnlyRead);
  if (!limits) return tl::unexpected(limits.error());
  pages.limits_ = std::move(*limits);
  auto read_only = pages.limits_.ReadOnlyFd();
  if (!read_only) return tl::unexpected(read_only.error());
  pages.limits_read_only_ = std::move(*read_only);
  auto tenant = SharedMemory::Create("gpumux-tenant", GPUMUX_PAGE_BYTES, SharedMemory::Others::kMayWrite);
  if (!tenant) return tl::unexpected(tenant.error());
  pages.tenant_ = std::move(*tenant);

  gpumux_limits_page& page = pages.limits();
  page.magic = GPUMUX_LIMITS_MAGIC;
  page.version = GPUMUX_PAGES_VERSION;
  page.gpu_count = static_cast<uint32_t>(gpus.size());
  page.state = GPUMUX_STATE_RUNNING;
  page.strict = strict ? 1 : 0;
  page.simulated = simulated ? 1 : 0;
  std::memcpy(page.tenant_id, tenant_id.data(), std::min(tenant_id.size(), sizeof(page.tenant_id) - 1));
  for (size_t i = 0; i < gpus.size(); ++i) {
    std::copy(gpus[i].uuid.bytes.begin(), gpus[i].uuid.bytes.end(), page.gpus[i].uuid);
    page.gpus[i].device_total_bytes = gpus[i].device_total_bytes;
    page.gpus[i].context_bytes = gpus[i].context_bytes;
  }
  auto& own = *pages.tenant_.as<gpumux_tenant_page>();
  own.magic = GPUMUX_TENANT_MAGIC;
  own.version = GPUMUX_PAGES_VERSION;
  return pages;
}

void TenantPages::SetLimits(unsigned slot, uint64_t guaranteed_bytes, uint64_t limit_bytes,
                            uint64_t granted_bytes) {
  gpumux_gpu_limit& gpu = limits().gpus[slot];
  Store(gpu.guaranteed_bytes, guaranteed_bytes);
  Store(gpu.limit_bytes, limit_bytes);
  Store(gpu.granted_bytes, granted_bytes);
}

void TenantPages::SetState(uint32_t state) { std::atomic_ref<uint32_t>(limits().state).store(state); }

void TenantPages::SetMps() { std::atomic_ref<uint32_t>(limits().flags).fetch_or(GPUMUX_LIMITS_MPS); }

bool TenantPages::IsMps() const {
  return std::atomic_ref<uint32_t>(limits().flags).load() & GPUMUX_LIMITS_MPS;
}

void TenantPages::SetGate(bool on) {
  std::atomic_ref<uint32_t> flags(limits().flags);
  if (on) {
    flags.fetch_or(GPUMUX_LIMITS_GATE);
  } else {
    flags.fetch_and(~GPUMUX_LIMITS_GATE);
  }
}

void TenantPages::SetLaunch(uint32_t bits) {
  std::atomic_ref<uint32_t> launch(limits().launch);
  if (launch.load(std::memory_order_relaxed) != bits) launch.store(bits);
}

void TenantPages::CallForGates() { std::atomic_ref<uint32_t>(limits().gates_call).fetch_add(1); }

uint32_t TenantPages::GatesCall() const { return std::atomic_ref<uint32_t>(limits().gates_call).load(); }

void TenantPages::CallForDescriptors() { std::atomic_ref<uint32_t>(limits().descriptors_call).fetch_add(1); }

void TenantPages::SetHeartbeat(uint64_t monotonic_ns) { Store(limits().daemon_heartbeat, monotonic_ns); }

}  // namespace gpumux::daemon

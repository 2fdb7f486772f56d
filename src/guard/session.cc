// SPDX-License-Identifier: Apache-2.0
#include "guard/session.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "gpumux/abi/session.h"
#include "guard/allocations.h"
#include "guard/backlog.h"
#include "guard/clock.h"
#include "guard/current_context.h"
#include "guard/descriptors.h"
#include "guard/driver.h"
#include "guard/gate.h"
#include "guard/lock.h"
#include "guard/own_part.h"
#include "guard/reclaim.h"
#include "guard/wire.h"

namespace gpumux::guard {

constinit uint32_t g_state = static_cast<uint32_t>(State::kIdle);
constinit uint64_t* g_launches = nullptr;
static constinit const uint32_t g_nothing = 0;
constinit const uint32_t* g_launch = &g_nothing;

namespace {

constexpr uint64_t kReconnectIntervalNs = 1'000'000'000;
// As long as for an answer (wire.cc). Where a daemon died the next one is there in a
// second or two.
constexpr uint64_t kPatienceNs = 5'000'000'000;
constexpr long kNapNs = 20'000'000;
constexpr int kMaxOrdinals = 64;

struct Session {
  Lock attach_lock;
  Lock request_lock;
  int fd;
  uint64_t fd_inode;  // to notice that the program closed our descriptor and reused its number
  uint32_t next_request_id;
  uint32_t connection;  // atomic; how many there were
  uint32_t unanswered;  // the last request, if it went out and no answer came; else 0
  uint64_t last_reconnect_ns;
  uint64_t patience_ends_ns;  // until then the next daemon is waited for, rather than to refuse
  // Of the process page and the tenant page, for the daemon after this one; and
  // what they are, since the program may close any descriptor.
  int page_fds[2];
  uint64_t page_inodes[2];
  const gpumux_limits_page* limits;  // replaced when another daemon takes over, as `tenant` is
  gpumux_tenant_page* tenant;
  gpumux_process_page* process;
  int gpu_count;
  int32_t pid_outside;  // this process's, as the daemon sees it
  int slot_of_ordinal[kMaxOrdinals];
  int ordinal_count;
  bool fork_handler_set;
};
constinit Session s = {};

void SetState(State state) { __atomic_store_n(&g_state, static_cast<uint32_t>(state), __ATOMIC_RELEASE); }

void Nap() {
  const timespec nap = {0, kNapNs};
  nanosleep(&nap, nullptr);
}

bool SocketIsOurs() { return s.fd > 0 && InodeOf(s.fd) == s.fd_inode; }

// Under request_lock.
void LoseConnection() {
  if (SocketIsOurs()) close(s.fd);
  s.fd = -1;
  if (CurrentState() != State::kInForce) return;
  SetState(State::kOrphan);
  s.patience_ends_ns = NowNs() + kPatienceNs;
}

// Keeps the descriptors of the pages. The old ones are closed if they are still ours.
void KeepPages(int process_fd, int tenant_fd) {
  const int fds[2] = {process_fd, tenant_fd};
  for (int i = 0; i < 2; i++) {
    if (fds[i] < 0) continue;
    if (s.page_fds[i] > 0 && InodeOf(s.page_fds[i]) == s.page_inodes[i]) close(s.page_fds[i]);
    s.page_fds[i] = MoveUp(fds[i]);
    s.page_inodes[i] = InodeOf(s.page_fds[i]);
  }
}

bool HavePages() {
  for (int i = 0; i < 2; i++) {
    if (s.page_fds[i] <= 0 || InodeOf(s.page_fds[i]) != s.page_inodes[i]) return false;
  }
  return true;
}

void* Map(int fd, int protection) {
  void* p = mmap(nullptr, GPUMUX_PAGE_BYTES, protection, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) return nullptr;
  // The child of a fork is another process: it must not touch these counters.
  madvise(p, GPUMUX_PAGE_BYTES, MADV_DONTFORK);
  return p;
}

enum class Greeting { kWelcome, kRefused, kNobody };

// Says hello on `fd` and takes what comes back, with the pages that this process
// has already: another daemon may answer.
Greeting Greet(int fd, gpumux_guard_welcome* welcome, int fds[3]) {
  gpumux_guard_hello hello = {};
  hello.pages_version = GPUMUX_PAGES_VERSION;
  hello.ns_pid = static_cast<int32_t>(getpid());
  if (s.limits) hello.flags = GPUMUX_HELLO_HAS_PAGES;
  if (const char* hint = getenv(GPUMUX_ENV_TENANT))
    strncpy(hello.tenant_hint, hint, sizeof hello.tenant_hint - 1);
  const uint32_t id = ++s.next_request_id;
  if (!Send(fd, GPUMUX_GUARD_HELLO, id, &hello, sizeof hello, s.page_fds, s.process && HavePages() ? 2 : 0))
    return Greeting::kNobody;
  char payload[sizeof(gpumux_refused) + sizeof(gpumux_guard_welcome)];
  uint32_t bytes = 0;
  int count = 0;
  const uint16_t type = Receive(fd, id, payload, sizeof payload, &bytes, fds, 3, &count);
  memcpy(welcome, payload, sizeof *welcome);
  if (type == GPUMUX_GUARD_WELCOME && bytes == sizeof *welcome && count == 3 &&
      welcome->pages_version == GPUMUX_PAGES_VERSION && welcome->gpu_count <= GPUMUX_MAX_GPUS) {
    return Greeting::kWelcome;
  }
  for (int i = 0; i < count; i++) close(fds[i]);
  return type == 0 ? Greeting::kNobody : Greeting::kRefused;
}

// The first hello of this process. A daemon that is dying has a next one: until its
// time is over nobody is asked again. Returns the connection, or -1.
int MeetDaemon(gpumux_guard_welcome* welcome, int fds[3]) {
  const uint64_t end = NowNs() + kPatienceNs;
  for (;;) {
    const int fd = Connect();
    const Greeting greeting = fd >= 0 ? Greet(fd, welcome, fds) : Greeting::kNobody;
    if (greeting == Greeting::kWelcome) return fd;
    if (fd >= 0) close(fd);
    if (greeting == Greeting::kRefused || NowNs() >= end) return -1;
    Nap();
  }
}

bool MapPages(const int fds[3]) {
  auto* limits = static_cast<gpumux_limits_page*>(Map(fds[0], PROT_READ));
  auto* tenant = static_cast<gpumux_tenant_page*>(Map(fds[1], PROT_READ | PROT_WRITE));
  auto* process = static_cast<gpumux_process_page*>(Map(fds[2], PROT_READ | PROT_WRITE));
  if (!limits || !tenant || !process || limits->magic != GPUMUX_LIMITS_MAGIC ||
      limits->version != GPUMUX_PAGES_VERSION || tenant->magic != GPUMUX_TENANT_MAGIC ||
      process->magic != GPUMUX_PROCESS_MAGIC) {
    if (limits) munmap(limits, GPUMUX_PAGE_BYTES);
    if (tenant) munmap(tenant, GPUMUX_PAGE_BYTES);
    if (process) munmap(process, GPUMUX_PAGE_BYTES);
    return false;
  }
  s.limits = limits;
  s.tenant = tenant;
  s.process = process;
  __atomic_store_n(&g_launches, &process->gpus[0].launches, __ATOMIC_RELEASE);
  __atomic_store_n(&g_launch, &limits->launch, __ATOMIC_RELEASE);
  return true;
}

// Another daemon answers: its limits and its tenant page instead of those that
// nobody writes any more. The old ones stay mapped, as other threads may be
// reading them.
bool TakeNewPages(const int fds[3]) {
  auto* limits = static_cast<gpumux_limits_page*>(Map(fds[0], PROT_READ));
  auto* tenant = static_cast<gpumux_tenant_page*>(Map(fds[1], PROT_READ | PROT_WRITE));
  bool same = limits && tenant && limits->magic == GPUMUX_LIMITS_MAGIC &&
              limits->version == GPUMUX_PAGES_VERSION && tenant->magic == GPUMUX_TENANT_MAGIC &&
              limits->gpu_count == static_cast<uint32_t>(s.gpu_count);
  for (int i = 0; same && i < s.gpu_count; i++) {
    same = memcmp(limits->gpus[i].uuid, s.limits->gpus[i].uuid, sizeof limits->gpus[i].uuid) == 0;
  }
  if (!same) {
    if (limits) munmap(limits, GPUMUX_PAGE_BYTES);
    if (tenant) munmap(tenant, GPUMUX_PAGE_BYTES);
    return false;
  }
  __atomic_store_n(&s.limits, limits, __ATOMIC_SEQ_CST);
  __atomic_store_n(&s.tenant, tenant, __ATOMIC_SEQ_CST);
  __atomic_store_n(&g_launch, &limits->launch, __ATOMIC_RELEASE);
  return true;
}

// A connection to whoever is the daemon now, under request_lock. False: nobody,
// or somebody who does not know this process.
bool Reconnect() {
  int fd = Connect();
  gpumux_guard_welcome welcome;
  int fds[3];
  if (fd < 0) return false;
  bool ours = Greet(fd, &welcome, fds) == Greeting::kWelcome;
  if (ours) {
    ours = welcome.resumed == GPUMUX_RESUMED_SAME ||
           (welcome.resumed == GPUMUX_RESUMED_TAKEN_OVER && TakeNewPages(fds));
    if (ours && welcome.resumed == GPUMUX_RESUMED_TAKEN_OVER) {
      KeepPages(-1, fds[1]);
      fds[1] = -1;
    }
    for (int f : fds) {
      if (f >= 0) close(f);
    }
  }
  if (!ours) {
    close(fd);
    return false;
  }
  s.fd = fd;
  s.fd_inode = InodeOf(fd);
  __atomic_add_fetch(&s.connection, 1, __ATOMIC_RELAXED);
  SetState(State::kInForce);
  return true;
}

// Which ordinal is which GPU: asked once, since CUDA_VISIBLE_DEVICES is read by
// cuInit alone.
// False: the driver failed to answer, and is asked again next time.
bool MapOrdinals() {
  s.ordinal_count = 0;
  int count = 0;
  if (!Real().cuDeviceGetCount) return true;
  const cuda::CUresult r = Real().cuDeviceGetCount(&count);
  if (r != cuda::CUDA_SUCCESS)
    return r == cuda::CUDA_ERROR_NOT_INITIALIZED || r == cuda::CUDA_ERROR_NO_DEVICE;
  if (count > kMaxOrdinals) count = kMaxOrdinals;
  for (int i = 0; i < count; i++) {
    s.slot_of_ordinal[i] = kNotOurs;
    cuda::CUdevice device = 0;
    cuda::CUuuid uuid = {};
    if (Real().cuDeviceGet(&device, i) != cuda::CUDA_SUCCESS) return false;
    auto* get_uuid = Real().cuDeviceGetUuid_v2 ? Real().cuDeviceGetUuid_v2 : Real().cuDeviceGetUuid;
    if (!get_uuid || get_uuid(&uuid, device) != cuda::CUDA_SUCCESS) return false;
    if (device >= 0 && device < kMaxOrdinals) {
      s.slot_of_ordinal[device] = SlotOfUuid(reinterpret_cast<const uint8_t*>(uuid.bytes));
    }
  }
  __atomic_store_n(&s.ordinal_count, count, __ATOMIC_RELEASE);
  return true;
}

void InForkedChild() {
  // The pages are not mapped here (MADV_DONTFORK) and the connection is the
  // parent's. CUDA itself does not work in this child if the parent had
  // initialised it; if not, the child attaches as a process of its own.
  s.attach_lock.Reset();
  s.request_lock.Reset();
  if (SocketIsOurs()) close(s.fd);
  s.fd = -1;
  for (int i = 0; i < 2; i++) {
    if (s.page_fds[i] > 0 && InodeOf(s.page_fds[i]) == s.page_inodes[i]) close(s.page_fds[i]);
    s.page_fds[i] = 0;
  }
  g_launches = nullptr;
  g_launch = &g_nothing;
  s.limits = nullptr;
  s.tenant = nullptr;
  s.process = nullptr;
  s.ordinal_count = 0;
  ForgetAllAllocations();
  ForgetParts();
  ForgetReclaim();
  ForgetDescriptors();
  ForgetBacklog();
  ForgetGate();
  SetState(State::kIdle);
}

// One request and its reply, under request_lock. False: the connection is gone.
bool Call(uint16_t type, const void* request, uint32_t request_bytes, uint16_t reply_type, void* reply,
          uint32_t reply_bytes, const int* fds = nullptr, size_t fd_count = 0, int* fds_back = nullptr,
          int* fds_back_count = nullptr) {
  s.unanswered = 0;
  if (s.fd > 0 && !SocketIsOurs()) s.fd = -1;  // the program closed it
  if (s.fd <= 0) {
    const uint64_t now = NowNs();
    if (now - s.last_reconnect_ns < kReconnectIntervalNs) {
      LoseConnection();
      return false;
    }
    s.last_reconnect_ns = now;
    if (!Reconnect()) {
      LoseConnection();
      return false;
    }
  }
  const uint32_t id = ++s.next_request_id;
  if (!Send(s.fd, type, id, request, request_bytes, fds, fd_count)) {
    // Of what it was to carry, one is closed by now, or too many are under way.
    const bool passing = fd_count > 0 && (errno == EBADF || errno == ETOOMANYREFS) && SocketIsOurs();
    if (!passing) LoseConnection();
    return false;
  }
  if (reply_type == 0) return true;
  const uint64_t sent = NowNs();
  uint32_t bytes = 0;
  const uint16_t got = Receive(s.fd, id, reply, reply_bytes, &bytes, fds_back,
                               fds_back ? static_cast<int>(GPUMUX_MAX_FDS) : 0, fds_back_count);
  if (got != reply_type || bytes != reply_bytes) {
    for (int i = 0; fds_back && i < *fds_back_count; i++) close(fds_back[i]);
    s.unanswered = id;
    LoseConnection();
    // One that hangs was waited for already.
    if (NowNs() - sent >= kPatienceNs) s.patience_ends_ns = 0;
    return false;
  }
  return true;
}

// The daemon granted the last request and could not say so any more.
bool TakeGrantFromPage() {
  uint64_t id = s.unanswered;
  s.unanswered = 0;
  return id != 0 && __atomic_compare_exchange_n(&s.process->granted_request, &id, 0, false, __ATOMIC_SEQ_CST,
                                                __ATOMIC_SEQ_CST);
}

bool AnotherDaemonAnswers(int slot) {
  return __atomic_load_n(&s.tenant->orphan_taken_bytes[slot], __ATOMIC_SEQ_CST) >= GPUMUX_ORPHANS_CLOSED;
}

// A request for bytes, under request_lock: nobody says hello while `alone` decides.
// False: no daemon answers, and none is waited for any more.
template <typename Request, typename Reply>
bool CallForBytes(uint16_t type, const Request& request, uint16_t reply_type, Reply* reply, uint64_t bytes,
                  Alone alone) {
  const int slot = static_cast<int>(request.gpu_slot);
  for (bool told = false;;) {
    if (Call(type, &request, sizeof request, reply_type, reply, sizeof *reply)) return true;
    if (TakeGrantFromPage() || alone(slot, bytes)) {
      *reply = {};
      reply->granted = 1;
      return true;
    }
    if (!told && AnotherDaemonAnswers(slot)) {
      told = true;
    } else if (NowNs() < s.patience_ends_ns) {
      Nap();
    } else {
      return false;
    }
    s.last_reconnect_ns = 0;
  }
}

}  // namespace

State Attach() {
  State state = CurrentState();
  if (state != State::kIdle) return state;
  Held held(s.attach_lock);
  state = CurrentState();
  if (state != State::kIdle) return state;

  const int saved_errno = errno;
  const char* strict = getenv(GPUMUX_ENV_STRICT);
  const bool is_strict = strict && strict[0] == '1';
  State result = State::kOff;
  if (getenv(GPUMUX_ENV_SESSION)) {
    if (is_strict) result = State::kRefused;
    gpumux_guard_welcome welcome;
    int fds[3];
    int fd = MeetDaemon(&welcome, fds);
    if (fd >= 0) {
      if (MapPages(fds)) {
        s.fd = fd;
        s.fd_inode = InodeOf(fd);
        s.gpu_count = static_cast<int>(welcome.gpu_count);
        s.pid_outside = welcome.pid;
        fd = -1;
        KeepPages(fds[2], fds[1]);
        fds[1] = fds[2] = -1;
        s.process->pid = static_cast<int32_t>(getpid());
        if (!s.fork_handler_set) {
          s.fork_handler_set = true;
          pthread_atfork(nullptr, nullptr, InForkedChild);
        }
        __atomic_or_fetch(&s.process->flags, GPUMUX_GUARD_IN_FORCE, __ATOMIC_SEQ_CST);
        result = State::kInForce;
      }
      for (int f : fds) {
        if (f >= 0) close(f);
      }
    }
    if (fd >= 0) close(fd);
  }
  SetState(result);
  errno = saved_errno;
  return result;
}

const gpumux_limits_page* Limits() { return __atomic_load_n(&s.limits, __ATOMIC_ACQUIRE); }
gpumux_tenant_page* TenantPage() { return __atomic_load_n(&s.tenant, __ATOMIC_ACQUIRE); }
gpumux_process_page* OwnPage() { return s.process; }
gpumux_process_gpu* Counters(int slot) { return &s.process->gpus[slot]; }

int SlotOfUuid(const uint8_t uuid[16]) {
  for (int i = 0; i < s.gpu_count; i++) {
    if (memcmp(s.limits->gpus[i].uuid, uuid, 16) == 0) return i;
  }
  return kNotOurs;
}

int VisibleDevices() {
  const int known = __atomic_load_n(&s.ordinal_count, __ATOMIC_ACQUIRE);
  if (known != 0) return known;
  Held held(s.attach_lock);
  if (s.ordinal_count == 0 && !MapOrdinals()) return -1;
  return s.ordinal_count;
}

int SlotOfDevice(cuda::CUdevice device) {
  const int visible = VisibleDevices();
  // A GPU that cannot be told from others is not the tenant's.
  if (visible < 0) return kNotOurs;
  if (device < 0 || device >= visible) return kNoDevice;
  return s.slot_of_ordinal[device];
}

int DeviceOfSlot(int slot) {
  for (int device = 0; device < VisibleDevices(); device++) {
    if (s.slot_of_ordinal[device] == slot) return device;
  }
  return -1;
}

int SlotOfCurrentContext() {
  cuda::CUdevice device;
  return CurrentDevice(&device) ? SlotOfDevice(device) : kNoDevice;
}

bool RequestCredit(int slot, uint64_t bytes, bool reclaim, Alone alone, CreditAnswer* answer) {
  gpumux_credit_request request = {static_cast<uint32_t>(slot), reclaim ? 0 : GPUMUX_CREDIT_WITHOUT_RECLAIM,
                                   bytes};
  gpumux_credit_reply reply;
  Held held(s.request_lock);
  if (!CallForBytes(GPUMUX_CREDIT_REQUEST, request, GPUMUX_CREDIT_REPLY, &reply, bytes, alone)) return false;
  answer->granted = reply.granted == 1;
  answer->device_full = reply.reason == GPUMUX_REASON_DEVICE_FULL;
  // Before anybody can say hello: the next daemon has to know of it.
  if (answer->granted) __atomic_add_fetch(&Counters(slot)->in_use_bytes, bytes, __ATOMIC_SEQ_CST);
  return true;
}

bool RequestContext(int slot, uint64_t bytes, Alone alone, bool* granted) {
  gpumux_context_request request = {static_cast<uint32_t>(slot), 0};
  gpumux_context_reply reply;
  Held held(s.request_lock);
  if (!CallForBytes(GPUMUX_CONTEXT_REQUEST, request, GPUMUX_CONTEXT_REPLY, &reply, bytes, alone))
    return false;
  *granted = reply.granted == 1;
  if (*granted) __atomic_store_n(&Counters(slot)->contexts_under_way, 1, __ATOMIC_SEQ_CST);
  return true;
}

bool RequestMemoryInfo(int slot, MemoryAnswer* answer) {
  gpumux_memory_info_request request = {static_cast<uint32_t>(slot), 0};
  gpumux_memory_info reply;
  Held held(s.request_lock);
  if (!Call(GPUMUX_MEMORY_INFO_REQUEST, &request, sizeof request, GPUMUX_MEMORY_INFO, &reply, sizeof reply)) {
    return false;
  }
  *answer = {reply.total_bytes, reply.used_bytes, reply.free_bytes};
  return true;
}

bool RequestProcesses(gpumux_process_list* list) {
  gpumux_process_list_request request = {};
  {
    Held held(s.request_lock);
    if (Call(GPUMUX_PROCESS_LIST_REQUEST, &request, sizeof request, GPUMUX_PROCESS_LIST, list,
             sizeof *list) &&
        list->count <= GPUMUX_MAX_LISTED) {
      return true;
    }
  }
  list->count = 1;
  list->processes[0] = {s.pid_outside, static_cast<int32_t>(getpid())};
  return false;
}

bool RequestMpsPlace(int slot, uint32_t driver_error, uint32_t* answer) {
  gpumux_mps_place_request request = {static_cast<uint32_t>(slot), driver_error};
  gpumux_mps_place_reply reply;
  Held held(s.request_lock);
  if (!Call(GPUMUX_MPS_PLACE_REQUEST, &request, sizeof request, GPUMUX_MPS_PLACE_REPLY, &reply, sizeof reply))
    return false;
  *answer = reply.answer;
  return true;
}

bool ToBeMpsClient() {
  return InForce() && (__atomic_load_n(&Limits()->flags, __ATOMIC_RELAXED) & GPUMUX_LIMITS_MPS) != 0;
}

bool ToHaveGate() {
  return InForce() && (__atomic_load_n(&Limits()->flags, __ATOMIC_RELAXED) & GPUMUX_LIMITS_GATE) != 0;
}

bool RequestGate(uint32_t first, int own, gpumux_gate_reply* reply, int* fds, int* fd_count) {
  const gpumux_gate_request request = {first, 0};
  Held held(s.request_lock);
  return Call(GPUMUX_GATE_REQUEST, &request, sizeof request, GPUMUX_GATE_REPLY, reply, sizeof *reply,
              own >= 0 ? &own : nullptr, own >= 0 ? 1 : 0, fds, fd_count);
}

bool HoldDescriptors(const gpumux_hold_descriptors& message, const int* fds, uint32_t count) {
  Held held(s.request_lock);
  // A later message of a daemon that has not seen the first would be out of place.
  if (message.first != 0 && !SocketIsOurs()) return false;
  return Call(GPUMUX_HOLD_DESCRIPTORS, &message, sizeof message, 0, nullptr, 0, fds, count);
}

void TellDescriptors(uint32_t open, uint32_t sent) {
  __atomic_store_n(&s.process->descriptors_open, open, __ATOMIC_RELAXED);
  __atomic_store_n(&s.process->descriptors_sent, sent, __ATOMIC_RELAXED);
}

void LookAtConnection() {
  // Without the lock, which is held while a daemon is waited for.
  pollfd look = {__atomic_load_n(&s.fd, __ATOMIC_RELAXED), POLLRDHUP, 0};
  if (!InForce() || (SocketIsOurs() && poll(&look, 1, 0) == 0)) return;
  Held held(s.request_lock);
  look.fd = s.fd;
  if (SocketIsOurs() && poll(&look, 1, 0) == 0) return;
  LoseConnection();
  const uint64_t now = NowNs();
  if (now - s.last_reconnect_ns < kReconnectIntervalNs) return;
  s.last_reconnect_ns = now;
  Reconnect();
}

uint32_t ConnectionNumber() { return __atomic_load_n(&s.connection, __ATOMIC_RELAXED); }

void TellBacklog(uint64_t launches_done, uint64_t launch_ns) {
  uint64_t* done = &s.process->launches_done;
  uint64_t* longest = &s.process->launch_ns;
  if (__atomic_load_n(done, __ATOMIC_RELAXED) < launches_done)
    __atomic_store_n(done, launches_done, __ATOMIC_RELAXED);
  if (__atomic_load_n(longest, __ATOMIC_RELAXED) < launch_ns)
    __atomic_store_n(longest, launch_ns, __ATOMIC_RELAXED);
}

void MarkLatencyCritical(bool on) {
  uint32_t* flags = &s.process->flags;
  if (on) {
    __atomic_or_fetch(flags, GPUMUX_GUARD_LATENCY_CRITICAL, __ATOMIC_RELAXED);
  } else {
    __atomic_and_fetch(flags, ~GPUMUX_GUARD_LATENCY_CRITICAL, __ATOMIC_RELAXED);
  }
}

void NoticeContexts(int slot, uint32_t contexts) {
  gpumux_context_notice notice = {static_cast<uint32_t>(slot), contexts};
  Held held(s.request_lock);
  __atomic_store_n(&s.process->gpus[slot].contexts, contexts, __ATOMIC_SEQ_CST);
  __atomic_store_n(&s.process->gpus[slot].contexts_under_way, 0, __ATOMIC_SEQ_CST);
  Call(GPUMUX_CONTEXT_NOTICE, &notice, sizeof notice, 0, nullptr, 0);
}

}  // namespace gpumux::guard

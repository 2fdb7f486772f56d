// SPDX-License-Identifier: Apache-2.0
#include "guard/gate_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpumux/abi/session.h"
#include "guard/clock.h"
#include "guard/current_context.h"
#include "guard/driver.h"
#include "guard/lock.h"
#include "guard/session.h"
#include "guard/wire.h"

namespace gpumux::guard {

namespace {

constexpr unsigned kMaxGates = 512;
constexpr uint64_t kAskAgainNs = 1'000'000'000;
constexpr uint64_t kAskForLockNs = 100'000'000;
constexpr uint32_t kAlreadyRegistered = 712;                    // CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
constexpr unsigned kRegisterPortable = 1, kRegisterMapped = 2;  // CU_MEMHOSTREGISTER_*

// One that this process may close. The descriptor carries the lock that says that it lives.
struct Gate {
  gpumux_gate_page* page;
  int fd;
  uint64_t inode;
  bool listed;  // in the answer that is being read
};

struct Pages {
  Lock lock;        // of `gates`, `bit` and `closed`
  Lock fetch_lock;  // one asks at a time
  gpumux_gate_page* own;
  int own_fd;
  uint64_t own_inode;
  long own_pid;
  uint64_t bit;   // of the own word of others; 0: none
  bool closed;    // by this process
  bool unlocked;  // a gate's lock is another's still
  Gate gates[kMaxGates];
  unsigned count;
  uint32_t call;        // of the limits page, at the last answer
  uint32_t connection;  // that it came by
  uint64_t ask_again_ns;
  Lock register_lock;
  cuda::CUdeviceptr address;
  cuda::CUcontext registered_in;
  bool refused;
  uint64_t min_open_ns, max_closed_ns, budget_ns;  // atomic
  uint64_t missing;                                // bits that nobody locked at the last look
};
constinit Pages p = {};

gpumux_gate_page* Map(int fd) {
  void* page = mmap(nullptr, GPUMUX_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (page == MAP_FAILED) return nullptr;
  madvise(page, GPUMUX_PAGE_BYTES, MADV_DONTFORK);
  auto* gate = static_cast<gpumux_gate_page*>(page);
  if (gate->magic == GPUMUX_GATE_MAGIC && gate->version == GPUMUX_GATE_VERSION) return gate;
  munmap(page, GPUMUX_PAGE_BYTES);
  return nullptr;
}

unsigned NumberOf(uint64_t bit) { return static_cast<unsigned>(__builtin_ctzll(bit)); }

flock ByteOf(uint64_t bit) {
  flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = NumberOf(bit);
  lock.l_len = 1;
  return lock;
}

// Of a process, and given back when it closes any descriptor of the file: so each time anew.
void LockByte(const Gate& gate) {
  if (p.bit == 0) return;
  flock lock = ByteOf(p.bit);
  // Somebody has it still who had the bit under another daemon, and will be given another.
  if (fcntl(gate.fd, F_SETLK, &lock) != 0) p.unlocked = true;
}

// Under the lock. Takes the descriptor.
void AddGate(int fd) {
  const uint64_t inode = InodeOf(fd);
  for (unsigned i = 0; i < p.count; i++) {
    if (p.gates[i].inode != inode) continue;
    p.gates[i].listed = true;
    if (InodeOf(p.gates[i].fd) == inode) close(p.gates[i].fd);
    p.gates[i].fd = MoveUp(fd);
    LockByte(p.gates[i]);
    // Without its lock it may have been taken for dead.
    if (p.closed) gpumux_gate_close(p.gates[i].page, p.bit);
    return;
  }
  gpumux_gate_page* page = p.count < kMaxGates ? Map(fd) : nullptr;
  if (!page) {
    close(fd);
    return;
  }
  Gate& gate = p.gates[p.count++];
  gate = {page, MoveUp(fd), inode, true};
  LockByte(gate);
  if (p.closed) gpumux_gate_close(page, p.bit);
}

// Under the lock: those that were not listed are gone, or were the daemon's to take away.
void DropUnlisted() {
  for (unsigned i = 0; i < p.count;) {
    Gate& gate = p.gates[i];
    if (gate.listed) {
      i++;
      continue;
    }
    if (p.bit) gpumux_gate_open(gate.page, p.bit);
    munmap(gate.page, GPUMUX_PAGE_BYTES);
    if (InodeOf(gate.fd) == gate.inode) close(gate.fd);
    gate = p.gates[--p.count];
  }
}

// Under the lock.
void SetBit(uint32_t number) {
  const uint64_t bit = number < GPUMUX_GATE_OWNERS ? uint64_t{1} << number : 0;
  if (bit == p.bit) return;
  for (unsigned i = 0; i < p.count; i++) {
    if (p.bit) gpumux_gate_open(p.gates[i].page, p.bit);
  }
  p.bit = bit;
}

bool TakeOwn(int fd) {
  if (p.own) {
    // The program closed the one that there was.
    if (InodeOf(p.own_fd) != p.own_inode && InodeOf(fd) == p.own_inode) {
      p.own_fd = MoveUp(fd);
    } else {
      close(fd);
    }
    return true;
  }
  gpumux_gate_page* page = Map(fd);
  if (!page) {
    close(fd);
    return false;
  }
  p.own_fd = MoveUp(fd);
  p.own_inode = InodeOf(p.own_fd);
  p.own_pid = syscall(SYS_getpid);
  // What a program said that this process executed before.
  __atomic_store_n(&page->wants, 0, __ATOMIC_RELAXED);
  for (gpumux_gate_segments& told : page->segments) {
    __atomic_store_n(&told.entered, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&told.passed, 0, __ATOMIC_RELAXED);
  }
  __atomic_store_n(&p.own, page, __ATOMIC_RELEASE);
  return true;
}

// Under the fetch lock: one message of an answer. False: that was no answer.
bool FetchFrom(uint32_t first, gpumux_gate_reply* reply) {
  int fds[GPUMUX_MAX_FDS];
  int count = 0;
  // A new daemon has not seen it yet; to the one that made it, it says nothing new.
  const bool have = p.own && InodeOf(p.own_fd) == p.own_inode;
  if (!RequestGate(first, have && first == 0 ? p.own_fd : -1, reply, fds, &count)) return false;
  int at = 0;
  bool sound = true;
  if (reply->own == 1 && count > 0) sound = TakeOwn(fds[at++]);
  Held held(p.lock);
  if (first == 0) {
    for (unsigned i = 0; i < p.count; i++) p.gates[i].listed = false;
    SetBit(reply->owner_bit);
  }
  for (; at < count; at++) AddGate(fds[at]);
  return sound;
}

}  // namespace

long GatePid() { return p.own_pid; }

gpumux_gate_page* OwnGate() { return __atomic_load_n(&p.own, __ATOMIC_ACQUIRE); }

bool GatesAreStale() {
  if (!ToHaveGate() && !OwnGate()) return false;
  // The next daemon knows of no gates until it is told.
  return !OwnGate() || CurrentState() == State::kOrphan ||
         __atomic_load_n(&Limits()->gates_call, __ATOMIC_ACQUIRE) !=
             __atomic_load_n(&p.call, __ATOMIC_RELAXED) ||
         ConnectionNumber() != __atomic_load_n(&p.connection, __ATOMIC_RELAXED);
}

bool FetchGates() {
  const int saved_errno = errno;
  Held held(p.fetch_lock);
  if (InForce() && GatesAreStale() && NowNs() >= p.ask_again_ns) {
    gpumux_gate_reply reply = {};
    uint32_t next = 0, call = 0;
    bool answered = false;
    p.unlocked = false;
    do {
      answered = FetchFrom(next, &reply);
      // Of the first answer: what has changed since is asked for again.
      if (next == 0) call = reply.call;
      if (!answered || reply.count == 0) break;
      next += reply.count;
    } while (next < reply.total && next < kMaxGates);
    if (answered) {
      Held pages(p.lock);
      DropUnlisted();
      if (p.unlocked) {
        call--;
        p.ask_again_ns = NowNs() + kAskForLockNs;
      }
      __atomic_store_n(&p.min_open_ns, reply.min_open_ns, __ATOMIC_RELAXED);
      __atomic_store_n(&p.max_closed_ns, reply.max_closed_ns, __ATOMIC_RELAXED);
      __atomic_store_n(&p.budget_ns, reply.budget_ns, __ATOMIC_RELAXED);
      __atomic_store_n(&p.call, call, __ATOMIC_RELAXED);
      __atomic_store_n(&p.connection, ConnectionNumber(), __ATOMIC_RELAXED);
    } else {
      p.ask_again_ns = NowNs() + kAskAgainNs;
    }
  }
  errno = saved_errno;
  return p.own != nullptr;
}

cuda::CUdeviceptr GateAddress() {
  const cuda::CUdeviceptr known = __atomic_load_n(&p.address, __ATOMIC_ACQUIRE);
  if (known || __atomic_load_n(&p.refused, __ATOMIC_RELAXED)) return known;
  Held held(p.register_lock);
  if (p.address || p.refused || !p.own) return p.address;
  if (!Real().cuMemHostRegister_v2 || !Real().cuMemHostGetDevicePointer_v2) {
    p.refused = true;
    return 0;
  }
  // Another thread may be capturing: this has nothing to do with it.
  cuda::CUstreamCaptureMode mode = cuda::CU_STREAM_CAPTURE_MODE_RELAXED;
  auto* exchange = Real().cuThreadExchangeStreamCaptureMode;
  if (exchange) exchange(&mode);
  cuda::CUdeviceptr address = 0;
  const auto registered =
      Real().cuMemHostRegister_v2(p.own, GPUMUX_PAGE_BYTES, kRegisterPortable | kRegisterMapped);
  const bool made = registered == cuda::CUDA_SUCCESS || registered == kAlreadyRegistered;
  if (!made || Real().cuMemHostGetDevicePointer_v2(&address, p.own, 0) != cuda::CUDA_SUCCESS) {
    if (made && Real().cuMemHostUnregister) Real().cuMemHostUnregister(p.own);
    address = 0;
    __atomic_store_n(&p.refused, true, __ATOMIC_RELAXED);
  }
  if (exchange) exchange(&mode);
  p.registered_in = CurrentContext();
  __atomic_store_n(&p.address, address, __ATOMIC_RELEASE);
  return address;
}

bool GateAddressGone(cuda::CUcontext context) {
  Held held(p.register_lock);
  if (context && context != p.registered_in) return false;
  p.registered_in = nullptr;
  __atomic_store_n(&p.address, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&p.refused, false, __ATOMIC_RELAXED);
  return true;
}

GateBounds Bounds() {
  return {__atomic_load_n(&p.min_open_ns, __ATOMIC_RELAXED),
          __atomic_load_n(&p.max_closed_ns, __ATOMIC_RELAXED)};
}

uint64_t GateBudgetNs() { return __atomic_load_n(&p.budget_ns, __ATOMIC_RELAXED); }

bool IsOwner() { return __atomic_load_n(&p.bit, __ATOMIC_RELAXED) != 0; }

void CloseGates() {
  Held held(p.lock);
  p.closed = true;
  for (unsigned i = 0; i < p.count; i++) gpumux_gate_close(p.gates[i].page, p.bit);
}

void OpenGates() {
  Held held(p.lock);
  p.closed = false;
  for (unsigned i = 0; i < p.count; i++) gpumux_gate_open(p.gates[i].page, p.bit);
}

unsigned ClearDeadOwners() {
  const uint64_t owners = (uint64_t{1} << GPUMUX_GATE_OWNERS) - 1;
  uint64_t missing = 0;
  uint64_t bits =
      (__atomic_load_n(&p.own->want, __ATOMIC_SEQ_CST) | __atomic_load_n(&p.own->closed, __ATOMIC_SEQ_CST)) &
      owners;
  // Without the descriptor nobody can be asked about: then none is dead.
  if (bits == 0 || InodeOf(p.own_fd) != p.own_inode) {
    p.missing = 0;
    return 0;
  }
  for (; bits; bits &= bits - 1) {
    const uint64_t bit = bits & ~(bits - 1);
    flock lock = ByteOf(bit);
    if (fcntl(p.own_fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK) missing |= bit;
  }
  const uint64_t dead = missing & p.missing;
  p.missing = missing;
  if (dead) gpumux_gate_open(p.own, dead);
  return static_cast<unsigned>(__builtin_popcountll(dead));
}

void ForgetGatePages() {
  // Not mapped here (MADV_DONTFORK); the descriptors are the parent's, and closing them here
  // leaves the parent's locks.
  for (unsigned i = 0; i < p.count; i++) {
    if (InodeOf(p.gates[i].fd) == p.gates[i].inode) close(p.gates[i].fd);
  }
  if (p.own_fd > 0 && InodeOf(p.own_fd) == p.own_inode) close(p.own_fd);
  p = {};
}

}  // namespace gpumux::guard

// SPDX-License-Identifier: Apache-2.0
#include "guard/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "gpumux/abi/session.h"
#include "guard/clock.h"
#include "guard/lock.h"
#include "guard/session.h"
#include "guard/wire.h"

namespace gpumux::guard {

namespace {

// What the links of /proc/self/fd of all of them have in common: /dev/nvidiactl,
// /dev/nvidia0, /dev/nvidia-uvm, and the software GPU's, which are in its directory.
constexpr char kMark[] = "/dev/nvidia";
// Looking may take this part of the time, and no more: a program with thousands
// of descriptors makes thousands of streams as well.
constexpr uint64_t kShareOfTime = 20;
constexpr uint64_t kAskAgainNs = 1'000'000'000;

struct Descriptors {
  Lock lock;
  int fds[GPUMUX_MAX_HELD];
  uint32_t count;
  uint64_t set;       // what identifies them
  uint64_t set_sent;  // 0: none, or not all of it arrived
  uint32_t call;      // limits page's, when they were sent
  uint32_t connection;
  uint64_t look_again_ns;
  uint64_t ask_again_ns;
};
constinit Descriptors d = {};

void Mix(uint64_t value) { d.set = (d.set ^ value) * 1099511628211u; }

bool IsOfGpu(int dir, const char* name) {
  char link[512];
  const ssize_t length = readlinkat(dir, name, link, sizeof link - 1);
  if (length <= 0) return false;
  link[length] = 0;
  return strstr(link, kMark) != nullptr;
}

// opendir() allocates. The layout is the kernel's linux_dirent64.
void FindIn(int dir) {
  struct Entry {
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
  };
  alignas(Entry) char buffer[4096];
  for (;;) {
    const long bytes = syscall(SYS_getdents64, dir, buffer, sizeof buffer);
    if (bytes <= 0) return;
    for (long at = 0; at < bytes;) {
      const auto* entry = reinterpret_cast<const Entry*>(buffer + at);
      at += entry->size;
      if (entry->name[0] < '0' || entry->name[0] > '9' || !IsOfGpu(dir, entry->name)) continue;
      int fd = 0;
      for (const char* digit = entry->name; *digit; ++digit) fd = fd * 10 + (*digit - '0');
      if (d.count == GPUMUX_MAX_HELD) return;
      d.fds[d.count++] = fd;
      Mix(static_cast<uint64_t>(fd));
      Mix(InodeOf(fd));
    }
  }
}

// Under the lock.
void Find() {
  d.count = 0;
  d.set = 14695981039346656037u;
  const uint64_t before = NowNs();
  const int dir = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    FindIn(dir);
    close(dir);
  }
  const uint64_t now = NowNs();
  d.look_again_ns = now + (now - before) * kShareOfTime;
}

// Under the lock. One that the program closes meanwhile makes its message fail.
void Send() {
  const uint32_t call = __atomic_load_n(&Limits()->descriptors_call, __ATOMIC_ACQUIRE);
  gpumux_hold_descriptors message = {0, d.count};
  bool sent = true;
  do {
    const uint32_t rest = d.count - message.first;
    const uint32_t now = rest < GPUMUX_MAX_FDS ? rest : GPUMUX_MAX_FDS;
    sent = HoldDescriptors(message, d.fds + message.first, now);
    message.first += now;
  } while (sent && message.first < d.count);
  d.set_sent = sent ? d.set : 0;
  d.call = call;
  d.connection = ConnectionNumber();
  d.ask_again_ns = NowNs() + kAskAgainNs;
  TellDescriptors(d.count, sent ? d.count : 0);
}

void LookAndSend(bool anyway) {
  const int saved_errno = errno;
  {
    Held held(d.lock);
    if (anyway || NowNs() >= d.look_again_ns) {
      Find();
      if (anyway || d.set != d.set_sent) Send();
    }
  }
  errno = saved_errno;
}

}  // namespace

void SendDescriptors() {
  if (ToBeMpsClient()) LookAndSend(true);
}

void LookAtDescriptors() {
  if (!ToBeMpsClient()) return;
  LookAndSend(false);
  AnswerDescriptorsCall();
}

void AnswerDescriptorsCall() {
  if (!ToBeMpsClient()) return;
  const uint32_t call = __atomic_load_n(&Limits()->descriptors_call, __ATOMIC_RELAXED);
  const uint64_t sent = __atomic_load_n(&d.set_sent, __ATOMIC_RELAXED);
  if (__builtin_expect(sent != 0 && call == __atomic_load_n(&d.call, __ATOMIC_RELAXED) &&
                           ConnectionNumber() == __atomic_load_n(&d.connection, __ATOMIC_RELAXED),
                       1)) {
    return;
  }
  // Nobody was asked for any before the first context.
  if (__atomic_load_n(&d.set, __ATOMIC_RELAXED) == 0) return;
  // What could not be sent is not tried at every call.
  if (sent == 0 && NowNs() < __atomic_load_n(&d.ask_again_ns, __ATOMIC_RELAXED)) return;
  LookAndSend(true);
}

void ForgetDescriptors() { d = {}; }

}  // namespace gpumux::guard

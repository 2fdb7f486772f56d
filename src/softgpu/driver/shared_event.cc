// SPDX-License-Identifier: Apache-2.0
#include "softgpu/driver/shared_event.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

#include "softgpu/driver/driver.h"

namespace gpumux::softgpu {

struct SharedEvent::Page {
  std::atomic<uint64_t> recorded;
  std::atomic<uint64_t> completed;
  // Who recorded it last; pids are compared within one namespace alone.
  std::atomic<uint64_t> pid;
  std::atomic<uint64_t> pid_namespace;
};

namespace {

constexpr size_t kBytes = 4096;

uint64_t PidNamespace() {
  static const uint64_t inode = [] {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? static_cast<uint64_t>(st.st_ino) : 0;
  }();
  return inode;
}

void* MapPage(int file) {
  void* page = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return page != MAP_FAILED ? page : nullptr;
}

}  // namespace

std::shared_ptr<SharedEvent> SharedEvent::Create() {
  const int file = memfd_create("gpumux-softgpu", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  void* page = ftruncate(file, kBytes) == 0 ? MapPage(file) : nullptr;
  if (page == nullptr) {
    close(file);
    return nullptr;
  }
  return std::shared_ptr<SharedEvent>(new SharedEvent(static_cast<Page*>(page), file));
}

std::shared_ptr<SharedEvent> SharedEvent::Open(int file, uint64_t key) {
  // The page of another process: it may be anything, but not too short.
  struct stat st;
  void* page = fstat(file, &st) == 0 && st.st_size >= static_cast<off_t>(kBytes) ? MapPage(file) : nullptr;
  if (page == nullptr) {
    close(file);
    return nullptr;
  }
  auto event = std::shared_ptr<SharedEvent>(new SharedEvent(static_cast<Page*>(page), file));
  event->key_ = key;
  event->imported_ = true;
  return event;
}

SharedEvent::~SharedEvent() {
  munmap(page_, kBytes);
  close(file_);
  if (key_ != 0) Driver::Get().AskShare(imported_ ? Op::kDetach : Op::kUnshare, nullptr, 0, key_);
}

uint64_t SharedEvent::Record() {
  page_->pid = static_cast<uint64_t>(getpid());
  page_->pid_namespace = PidNamespace();
  return ++page_->recorded;
}

void SharedEvent::Complete(uint64_t number) {
  uint64_t now = page_->completed;
  while (now < number && !page_->completed.compare_exchange_weak(now, number)) continue;
}

uint64_t SharedEvent::Recorded() const { return page_->recorded; }

bool SharedEvent::IsComplete(uint64_t number) const {
  if (page_->completed >= number) return true;
  const auto pid = static_cast<pid_t>(page_->pid.load());
  return page_->pid_namespace == PidNamespace() && pid > 0 && kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace gpumux::softgpu

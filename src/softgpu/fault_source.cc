// SPDX-License-Identifier: Apache-2.0
//
// Where the script of a process comes from, and the question that front.S asks
// for each call while there is one.
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#include "softgpu/faults.h"

namespace gpumux::softgpu {

// The exported names of this library in the order of front.S.
extern const char* const kFrontNames[];

namespace {

// front.S reads it: 0 not known yet, 1 there will never be a fault, 2 ask.
enum FrontState : int { kUnknown = 0, kNever = 1, kAsk = 2 };

struct Source {
  std::mutex mutex;
  bool read = false;
  std::string path;       // empty: the text was in the environment
  struct stat seen = {};  // of the file, as it was read; zeros: there was none
  std::atomic<FaultRun*> current{nullptr};
};
std::atomic<Source*> of_process{nullptr};
Source& Get() {
  Source* now = of_process.load(std::memory_order_acquire);
  if (now != nullptr) return *now;
  auto* made = new Source;
  if (of_process.compare_exchange_strong(now, made)) return *made;
  delete made;
  return *now;
}

// A script that is none must not pass for one that does nothing.
FaultScript Broken() {
  FaultScript script;
  for (const char* functions : {"cu*", "nvml*"}) {
    FaultRule rule;
    rule.function = functions;
    rule.code = 999;
    script.rules.push_back(rule);
  }
  return script;
}

FaultRun* Make(std::string_view text, const std::string& name) {
  auto script = ParseFaults(text);
  if (!script) {
    fprintf(stderr, "gpumux software GPU: %s: %s\n", name.c_str(), script.error().ToString().c_str());
    script = Broken();
  }
  if (script->rules.empty() && script->driver_version.empty() && !script->mps_hangs) return nullptr;
  return new FaultRun(std::move(*script), std::chrono::steady_clock::now());
}

bool Same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

void ReadFile(Source& source) {
  struct stat now = {};
  if (stat(source.path.c_str(), &now) != 0) now = {};
  if (source.read && Same(now, source.seen)) return;
  source.seen = now;
  source.read = true;
  FaultRun* run = nullptr;
  if (now.st_ino != 0) {
    std::string text;
    const int fd = open(source.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    bool good = fd >= 0 && S_ISREG(now.st_mode);
    while (good) {
      char buffer[4096];
      const ssize_t n = read(fd, buffer, sizeof(buffer));
      if (n == 0) break;
      good = n > 0 && text.size() <= kMaxFaultScript;
      if (good) text.append(buffer, static_cast<size_t>(n));
    }
    if (fd >= 0) close(fd);
    run = Make(good ? text : std::string(kMaxFaultScript + 1, ' '), source.path);
  }
  source.current.store(run, std::memory_order_release);
}

}  // namespace

extern "C" {
__attribute__((visibility("hidden"))) std::atomic<int> gpumux_softgpu_front_state{kUnknown};
}

// Found by its first words in the file of the library. Volatile: what stands
// behind them is not known when this is compiled.
static volatile char lacking[kLackingBytes] = "gpumux software GPU lacks:\n";

bool TakenOut(std::string_view symbol) {
  static const std::string* const names = [] {
    auto* text = new std::string;
    for (size_t i = 0; i < kLackingBytes && lacking[i] != 0; ++i) *text += lacking[i];
    return text;
  }();
  return names->find("\n" + std::string(symbol) + "\n") != std::string::npos;
}

// A forked child is a process of its own: it reads the environment and counts
// anew. (Its parent's lock may be held for good, and is left behind.)
static void OnFork() {
  of_process.store(new Source);
  gpumux_softgpu_front_state.store(kUnknown);
}

FaultRun* CurrentFaults() {
  if (gpumux_softgpu_front_state.load(std::memory_order_acquire) == kNever) return nullptr;
  const int saved_errno = errno;
  Source& source = Get();
  // A thread that finds another one reading goes on with what there is, unless
  // nothing was read at all.
  std::unique_lock lock(source.mutex, std::defer_lock);
  if (gpumux_softgpu_front_state.load(std::memory_order_acquire) == kUnknown) {
    lock.lock();
    if (!source.read) {
      static const bool registered = pthread_atfork(nullptr, nullptr, OnFork) == 0;
      (void)registered;
      const char* value = getenv("GPUMUX_SOFTGPU_FAULTS");
      const std::string_view text = value != nullptr ? value : "";
      if (text.starts_with("@")) {
        source.path = text.substr(1);
        ReadFile(source);
      } else {
        source.current.store(Make(text, "GPUMUX_SOFTGPU_FAULTS"), std::memory_order_release);
        source.read = true;
      }
      const bool never = source.path.empty() && source.current.load() == nullptr;
      gpumux_softgpu_front_state.store(never ? kNever : kAsk, std::memory_order_release);
    }
  } else if (!source.path.empty() && lock.try_lock()) {
    ReadFile(source);
  }
  errno = saved_errno;
  return source.current.load(std::memory_order_acquire);
}

// What the exported name `index` returns at once, or -1: it goes on.
extern "C" __attribute__((visibility("hidden"))) int gpumux_softgpu_fault(unsigned index) {
  FaultRun* run = CurrentFaults();
  if (run == nullptr) return -1;
  const FaultRun::Verdict verdict = run->OnCall(kFrontNames[index], std::chrono::steady_clock::now());
  if (verdict.delay.count() > 0) {
    const int saved_errno = errno;
    timespec left = {verdict.delay.count() / 1'000'000'000, verdict.delay.count() % 1'000'000'000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &left, &left) == EINTR) continue;
    errno = saved_errno;
  }
  return verdict.code;
}

}  // namespace gpumux::softgpu

// SPDX-License-Identifier: Apache-2.0
#include "guard/session_environment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "gpumux/abi/session.h"

namespace gpumux::guard {

namespace {

constexpr char kGuardFile[] = "libgpumux-guard.so";
constexpr char kPreload[] = "LD_PRELOAD";
constexpr char kLibraryPath[] = "LD_LIBRARY_PATH";
constexpr char kSoftGpuDir[] = "GPUMUX_SOFTGPU_DIR";

// Put back wherever they are missing.
constexpr const char* kAlways[] = {GPUMUX_ENV_SESSION, GPUMUX_ENV_TENANT, GPUMUX_ENV_STRICT};
// Put back when the session was missing too: alone, a program left it out on purpose.
constexpr const char* kWithSession[] = {"CUDA_VISIBLE_DEVICES",
                                        "CUDA_MPS_PIPE_DIRECTORY",
                                        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                                        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
                                        "CUDA_MPS_CLIENT_PRIORITY",
                                        "GPUMUX_SOFTGPU",
                                        kSoftGpuDir};
static_assert(sizeof kAlways / sizeof *kAlways + sizeof kWithSession / sizeof *kWithSession <=
              MissingVariables::kMost);

// The value in "NAME=value", or null if the entry is of another name.
const char* ValueIn(const char* entry, const char* name) {
  const size_t n = strlen(name);
  return strncmp(entry, name, n) == 0 && entry[n] == '=' ? entry + n + 1 : nullptr;
}

const char* EntryOf(char* const* envp, const char* name) {
  for (; envp && *envp; envp++) {
    if (ValueIn(*envp, name)) return *envp;
  }
  return nullptr;
}

const char* ValueOf(char* const* envp, const char* name) {
  const char* entry = EntryOf(envp, name);
  return entry ? ValueIn(entry, name) : nullptr;
}

// The guard's own entry in a list of LD_PRELOAD; the length in `bytes`.
const char* GuardIn(const char* list, size_t* bytes) {
  constexpr size_t kNameBytes = sizeof kGuardFile - 1;
  while (list && *list) {
    const size_t n = strcspn(list, ": ");
    if (n >= kNameBytes && memcmp(list + n - kNameBytes, kGuardFile, kNameBytes) == 0 &&
        (n == kNameBytes || list[n - kNameBytes - 1] == '/')) {
      *bytes = n;
      return list;
    }
    list += n;
    list += strspn(list, ": ");
  }
  return nullptr;
}

bool HasEntry(const char* list, const char* entry) {
  const size_t bytes = strlen(entry);
  while (list && *list) {
    const size_t n = strcspn(list, ":");
    if (n == bytes && memcmp(list, entry, bytes) == 0) return true;
    list += n + (list[n] == ':');
  }
  return false;
}

// The environment that the process was started with, as long as the object
// lives. Some programs write their title over it: then it lacks the session.
class FirstEnvironment {
 public:
  FirstEnvironment() {
    const int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    // One page more than the content, so that it ends with a zero.
    for (size_t capacity = 1 << 17; capacity <= kMostBytes && !Read(fd, capacity); capacity *= 4) {
    }
    close(fd);
  }
  ~FirstEnvironment() {
    if (text_) munmap(text_, capacity_);
  }
  FirstEnvironment(const FirstEnvironment&) = delete;
  FirstEnvironment& operator=(const FirstEnvironment&) = delete;

  const char* Entry(const char* name) const {
    for (size_t at = 0; at < bytes_; at += strlen(text_ + at) + 1) {
      if (ValueIn(text_ + at, name)) return text_ + at;
    }
    return nullptr;
  }

 private:
  static constexpr size_t kMostBytes = size_t{1} << 25;

  // False: there is more than `capacity`.
  bool Read(int fd, size_t capacity) {
    void* p = mmap(nullptr, capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return true;
    size_t bytes = 0;
    ssize_t n;
    do {
      n = pread(fd, static_cast<char*>(p) + bytes, capacity - 1 - bytes, static_cast<off_t>(bytes));
      if (n > 0) bytes += static_cast<size_t>(n);
    } while (n > 0 || (n < 0 && errno == EINTR));
    if (bytes == capacity - 1) {
      munmap(p, capacity);
      return false;
    }
    text_ = static_cast<char*>(p);
    capacity_ = capacity;
    bytes_ = bytes;
    return true;
  }

  char* text_ = nullptr;
  size_t capacity_ = 0;
  size_t bytes_ = 0;
};

// A copy in `m`, or null if there is no room.
const char* Keep(MissingVariables* m, const char* text, size_t bytes) {
  if (m->used + bytes + 1 > sizeof m->storage) return nullptr;
  char* copy = m->storage + m->used;
  memcpy(copy, text, bytes);
  copy[bytes] = 0;
  m->used += bytes + 1;
  return copy;
}

// What `envp` lacks, where `entry_of(name)` gives the session's own.
template <typename EntryOfName>
void Collect(char* const* envp, EntryOfName&& entry_of, MissingVariables* m) {
  const bool had_session = EntryOf(envp, GPUMUX_ENV_SESSION) != nullptr;
  const auto add = [&](const char* name) {
    const char* entry = EntryOf(envp, name) ? nullptr : entry_of(name);
    const char* copy = entry ? Keep(m, entry, strlen(entry)) : nullptr;
    if (copy) m->entries[m->count++] = copy;
  };
  for (const char* name : kAlways) add(name);
  if (!had_session) {
    for (const char* name : kWithSession) add(name);
  }
  size_t bytes = 0;
  const char* list = entry_of(kPreload);
  const char* guard = list ? GuardIn(ValueIn(list, kPreload), &bytes) : nullptr;
  size_t unused = 0;
  if (guard && !GuardIn(ValueOf(envp, kPreload), &unused)) {
    m->preload = Keep(m, guard, bytes);
    // Where the file is not to be seen (another root directory), the loader of
    // every program would complain.
    if (m->preload && access(m->preload, R_OK) != 0) m->preload = nullptr;
  }
  // With the software GPU the driver is found by a variable as well.
  if (!had_session && entry_of(kSoftGpuDir)) {
    const char* path = entry_of(kLibraryPath);
    const char* value = path ? ValueIn(path, kLibraryPath) : "";
    const char* first = Keep(m, value, strcspn(value, ":"));
    if (first && *first && !HasEntry(ValueOf(envp, kLibraryPath), first)) m->path_of_libraries = first;
  }
}

}  // namespace

bool HasSession(char* const* envp) {
  for (const char* name : kAlways) {
    if (!EntryOf(envp, name)) return false;
  }
  size_t bytes = 0;
  return GuardIn(ValueOf(envp, kPreload), &bytes) != nullptr;
}

void FindMissing(char* const* envp, MissingVariables* missing) {
  missing->count = 0;
  missing->preload = nullptr;
  missing->path_of_libraries = nullptr;
  missing->used = 0;
  if (HasSession(envp)) return;
  const int saved_errno = errno;
  if (HasSession(environ)) {
    Collect(envp, [](const char* name) { return EntryOf(environ, name); }, missing);
  } else {
    const FirstEnvironment first;
    if (first.Entry(GPUMUX_ENV_SESSION))
      Collect(envp, [&](const char* name) { return first.Entry(name); }, missing);
  }
  errno = saved_errno;
}

EnvironmentSize SizeOf(char* const* envp, const MissingVariables& missing) {
  size_t pointers = 1;
  for (char* const* e = envp; e && *e; e++) pointers++;
  size_t text = 0;
  const auto joined = [&](const char* name, const char* front) {
    if (!front) return;
    const char* value = ValueOf(envp, name);
    text += strlen(name) + 1 + strlen(front) + 1 + (value ? strlen(value) : 0) + 1;
    pointers++;
  };
  joined(kPreload, missing.preload);
  joined(kLibraryPath, missing.path_of_libraries);
  return {pointers + static_cast<size_t>(missing.count), text};
}

void Complete(char* const* envp, const MissingVariables& missing, char** pointers, char* text) {
  const auto append = [&](const char* part) {
    const size_t bytes = strlen(part);
    memcpy(text, part, bytes);
    text += bytes;
  };
  const auto joined = [&](const char* name, const char* front) {
    if (!front) return;
    *pointers++ = text;
    const char* value = ValueOf(envp, name);
    append(name);
    append("=");
    append(front);
    if (value && *value) {
      append(":");
      append(value);
    }
    *text++ = 0;
  };
  for (char* const* e = envp; e && *e; e++) {
    if (missing.preload && ValueIn(*e, kPreload)) continue;
    if (missing.path_of_libraries && ValueIn(*e, kLibraryPath)) continue;
    *pointers++ = *e;
  }
  for (int i = 0; i < missing.count; i++) *pointers++ = const_cast<char*>(missing.entries[i]);
  joined(kPreload, missing.preload);
  joined(kLibraryPath, missing.path_of_libraries);
  *pointers = nullptr;
}

}  // namespace gpumux::guard

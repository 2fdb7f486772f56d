// SPDX-License-Identifier: Apache-2.0
//
// Programs that start programs. An environment that has the session goes on to
// the next function of the same name untouched, be it the C library's or another
// preload's. Where it lacks the session (env -i, an envp of the program's own),
// the call is made with the session put back; system() and popen() let the shell
// do that, since they take no environment.
//
// These run in the children of fork and vfork: no allocation, no lock, and
// nothing written but our own cached addresses. What is larger than a small
// stack allows is mapped for the call.
#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard/loaded_objects.h"
#include "guard/session_environment.h"

#define GPUMUX_EXPORT extern "C" __attribute__((visibility("default")))

namespace gpumux::guard {

namespace {

using Strings = char* const*;

// Threads may start with 16 KiB of stack.
constexpr size_t kMostOnStack = 4096;

void* Next(void** cache, const char* name) {
  void* p = __atomic_load_n(cache, __ATOMIC_RELAXED);
  if (!p) {
    p = NextSymbol(name);
    if (!p) p = FindSymbol("libc.so", name);
    __atomic_store_n(cache, p, __ATOMIC_RELAXED);
  }
  return p;
}

// The function behind ours, called with `args`; as a kernel without it if there is none.
template <typename R, typename... A>
R CallNext(void** cache, const char* name, A... args) {
  auto* next = reinterpret_cast<R (*)(A...)>(Next(cache, name));
  if (next) return next(args...);
  errno = ENOSYS;
  return R(-1);
}

// Mapped memory. In the child of vfork it is the parent's, and stays when the
// child becomes another program; so each thread remembers its last and unmaps it
// when it comes here again.
class Memory {
 public:
  explicit Memory(size_t bytes) {
    End();
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return;
    start_ = static_cast<char*>(p);
    bytes_ = bytes;
  }
  ~Memory() {
    const int saved_errno = errno;
    End();
    errno = saved_errno;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  char* start() const { return start_; }

 private:
  static void End() {
    if (start_) munmap(start_, bytes_);
    start_ = nullptr;
  }

  static constinit thread_local char* start_;
  static constinit thread_local size_t bytes_;
};
constinit thread_local char* Memory::start_ = nullptr;
constinit thread_local size_t Memory::bytes_ = 0;

template <typename Call>
int CallWith(Strings envp, const MissingVariables& missing, size_t pointers, char* memory, Call&& call) {
  auto** completed = reinterpret_cast<char**>(memory);
  Complete(envp, missing, completed, memory + pointers * sizeof(char*));
  const int r = call(completed);
  // The kernel has a limit, and our variables shall not be what breaks it.
  return r == E2BIG || (r == -1 && errno == E2BIG) ? call(envp) : r;
}

template <typename Call>
__attribute__((noinline)) int WithSession(Strings envp, Call&& call) {
  MissingVariables missing;
  FindMissing(envp, &missing);
  if (!missing.any()) return call(envp);
  const EnvironmentSize size = SizeOf(envp, missing);
  const size_t bytes = size.pointers * sizeof(char*) + size.text_bytes;
  if (bytes <= kMostOnStack) {
    return CallWith(envp, missing, size.pointers, static_cast<char*>(__builtin_alloca(bytes)), call);
  }
  const Memory memory(bytes);
  if (!memory.start()) return call(envp);
  return CallWith(envp, missing, size.pointers, memory.start(), call);
}

constinit void* g_execve = nullptr;
constinit void* g_execv = nullptr;
constinit void* g_execvp = nullptr;
constinit void* g_execvpe = nullptr;
constinit void* g_fexecve = nullptr;
constinit void* g_execveat = nullptr;
constinit void* g_posix_spawn = nullptr;
constinit void* g_posix_spawnp = nullptr;
constinit void* g_system = nullptr;
constinit void* g_popen = nullptr;

int Execve(const char* path, Strings argv, Strings envp) {
  const auto call = [&](Strings e) { return CallNext<int>(&g_execve, "execve", path, argv, e); };
  return HasSession(envp) ? call(envp) : WithSession(envp, call);
}

int Execvpe(const char* file, Strings argv, Strings envp) {
  const auto call = [&](Strings e) { return CallNext<int>(&g_execvpe, "execvpe", file, argv, e); };
  return HasSession(envp) ? call(envp) : WithSession(envp, call);
}

int Execv(const char* path, Strings argv) {
  if (HasSession(environ)) return CallNext<int>(&g_execv, "execv", path, argv);
  return Execve(path, argv, environ);
}

int Execvp(const char* file, Strings argv) {
  if (HasSession(environ)) return CallNext<int>(&g_execvp, "execvp", file, argv);
  return Execvpe(file, argv, environ);
}

// The arguments of execl() and its kind, up to and with the null pointer.
size_t CountArguments(const char* first, va_list rest) {
  size_t n = 1;
  for (const char* a = first; a; a = va_arg(rest, const char*)) n++;
  return n;
}

void ReadArguments(const char* first, va_list rest, char** argv) {
  *argv++ = const_cast<char*>(first);
  for (const char* a = first; a;) {
    a = va_arg(rest, const char*);
    *argv++ = const_cast<char*>(a);
  }
}

// Shell text that puts the session's variables back, in front of a command.
// Counts only while `out` is null.
class ShellText {
 public:
  explicit ShellText(char* out) : out_(out) {}
  size_t bytes() const { return bytes_; }
  void Plain(const char* text) {
    const size_t n = strlen(text);
    if (out_) memcpy(out_ + bytes_, text, n);
    bytes_ += n;
  }
  void Quoted(const char* text) {
    Plain("'");
    for (; *text; text++) {
      const char one[2] = {*text, 0};
      Plain(*text == '\'' ? "'\\''" : one);
    }
    Plain("'");
  }
  // export NAME='value';
  void Export(const char* entry) {
    char name[64];
    const size_t n = strcspn(entry, "=");
    if (n >= sizeof name) return;
    memcpy(name, entry, n);
    name[n] = 0;
    Plain("export ");
    Plain(name);
    Plain("=");
    Quoted(entry + n + 1);
    Plain("; ");
  }
  void InFront(const char* name, const char* value) {
    if (!value) return;
    Plain("export ");
    Plain(name);
    Plain("=");
    Quoted(value);
    Plain("\"${");
    Plain(name);
    Plain(":+:$");
    Plain(name);
    Plain("}\"; ");
  }

 private:
  char* out_;
  size_t bytes_ = 0;
};

size_t WriteCommand(const MissingVariables& missing, const char* command, char* out) {
  ShellText text(out);
  for (int i = 0; i < missing.count; i++) text.Export(missing.entries[i]);
  text.InFront("LD_PRELOAD", missing.preload);
  text.InFront("LD_LIBRARY_PATH", missing.path_of_libraries);
  text.Plain(command);
  if (out) out[text.bytes()] = 0;
  return text.bytes() + 1;
}

template <typename Call>
auto InShell(const char* command, Call&& call) -> decltype(call(command)) {
  MissingVariables missing;
  if (!command || HasSession(environ)) return call(command);
  FindMissing(environ, &missing);
  if (!missing.any()) return call(command);
  const Memory memory(WriteCommand(missing, command, nullptr));
  if (!memory.start()) return call(command);
  WriteCommand(missing, command, memory.start());
  return call(memory.start());
}

}  // namespace

}  // namespace gpumux::guard

using namespace gpumux::guard;

GPUMUX_EXPORT int execve(const char* path, char* const argv[], char* const envp[]) noexcept {
  return Execve(path, argv, envp);
}

GPUMUX_EXPORT int execv(const char* path, char* const argv[]) noexcept { return Execv(path, argv); }

GPUMUX_EXPORT int execvp(const char* file, char* const argv[]) noexcept { return Execvp(file, argv); }

GPUMUX_EXPORT int execvpe(const char* file, char* const argv[], char* const envp[]) noexcept {
  return Execvpe(file, argv, envp);
}

GPUMUX_EXPORT int fexecve(int fd, char* const argv[], char* const envp[]) noexcept {
  const auto call = [&](Strings e) { return CallNext<int>(&g_fexecve, "fexecve", fd, argv, e); };
  return HasSession(envp) ? call(envp) : WithSession(envp, call);
}

GPUMUX_EXPORT int execveat(int dir, const char* path, char* const argv[], char* const envp[],
                           int flags) noexcept {
  const auto call = [&](Strings e) {
    return CallNext<int>(&g_execveat, "execveat", dir, path, argv, e, flags);
  };
  return HasSession(envp) ? call(envp) : WithSession(envp, call);
}

GPUMUX_EXPORT int execl(const char* path, const char* arg, ...) noexcept {
  va_list count, read;
  va_start(count, arg);
  va_copy(read, count);
  auto** argv = static_cast<char**>(__builtin_alloca(CountArguments(arg, count) * sizeof(char*)));
  ReadArguments(arg, read, argv);
  va_end(read);
  va_end(count);
  return Execv(path, argv);
}

GPUMUX_EXPORT int execlp(const char* file, const char* arg, ...) noexcept {
  va_list count, read;
  va_start(count, arg);
  va_copy(read, count);
  auto** argv = static_cast<char**>(__builtin_alloca(CountArguments(arg, count) * sizeof(char*)));
  ReadArguments(arg, read, argv);
  va_end(read);
  va_end(count);
  return Execvp(file, argv);
}

// The environment comes after the null pointer.
GPUMUX_EXPORT int execle(const char* path, const char* arg, ...) noexcept {
  va_list count, read;
  va_start(count, arg);
  va_copy(read, count);
  auto** argv = static_cast<char**>(__builtin_alloca(CountArguments(arg, count) * sizeof(char*)));
  ReadArguments(arg, read, argv);
  auto* envp = va_arg(count, char* const*);
  va_end(read);
  va_end(count);
  return Execve(path, argv, envp);
}

GPUMUX_EXPORT int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                              const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  const auto call = [&](Strings e) {
    return CallNext<int>(&g_posix_spawn, "posix_spawn", pid, path, actions, attributes, argv, e);
  };
  return HasSession(envp) ? call(envp) : WithSession(envp, call);
}

GPUMUX_EXPORT int posix_spawnp(pid_t* pid, const char* file, const posix_spawn_file_actions_t* actions,
                               const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  const auto call = [&](Strings e) {
    return CallNext<int>(&g_posix_spawnp, "posix_spawnp", pid, file, actions, attributes, argv, e);
  };
  return HasSession(envp) ? call(envp) : WithSession(envp, call);
}

GPUMUX_EXPORT int system(const char* command) {
  return InShell(command, [](const char* c) { return CallNext<int>(&g_system, "system", c); });
}

GPUMUX_EXPORT FILE* popen(const char* command, const char* mode) {
  return InShell(command, [&](const char* c) -> FILE* {
    auto* next = reinterpret_cast<FILE* (*)(const char*, const char*)>(Next(&g_popen, "popen"));
    return next ? next(c, mode) : nullptr;
  });
}

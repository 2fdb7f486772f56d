// SPDX-License-Identifier: Apache-2.0
//
// How a program's look-ups reach the guard.
//
//   linked with -lcuda      our exported symbols come first in the search order;
//                           if a library behind us has the same one, it is
//                           called, as without us, and reaches ours by RTLD_NEXT
//   dlsym(handle, name)     the real answer is asked for; if it is the driver's
//                           own function, ours is returned instead
//   dlsym(RTLD_NEXT, ...)   from behind us: the same for names we have. From in
//                           front of us, and for any other name: the real dlsym
//                           by a jump that keeps the caller's return address
//                           (front.S), because RTLD_NEXT means "after the caller"
//   dlsym(RTLD_DEFAULT, ..) what is first in the search order: our exported
//                           symbol, or a preload's that stands in front of us
//   cuGetProcAddress        the driver answers; its answer, an address, is
//                           mapped to our function. So version and stream
//                           flavour are right by construction.
//
// A name that we have no function for is never touched.
#include <dlfcn.h>
#include <errno.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpumux/abi/session.h"
#include "guard/driver.h"
#include "guard/loaded_objects.h"
#include "guard/lock.h"
#include "guard/wrappers.h"

namespace gpumux::guard {

constinit DriverTable g_driver = {};
constinit NvmlTable g_nvml = {};
constinit bool g_driver_bound = false;

namespace {

constexpr char kDriverFile[] = "libcuda.so";
constexpr char kNvmlFile[] = "libnvidia-ml.so";

// Tables of addresses: filled by the loader's relocations, no constructor runs
// (tools/check-glibc-floor refuses an .init_array of ours).
struct Hook {
  const char* name;
  void* wrapper;
  void** real;
};

const Hook g_hooks[] = {
#define GPUMUX_HOOK(name, params) \
  {#name, reinterpret_cast<void*>(&::name), reinterpret_cast<void**>(&g_driver.name)},
#include "guard/hooks.inc"
#undef GPUMUX_HOOK
};

const Hook g_nvml_hooks[] = {
#define GPUMUX_NVML_HOOK(name, params) \
  {#name, reinterpret_cast<void*>(&::name), reinterpret_cast<void**>(&g_nvml.name)},
#include "guard/nvml_hooks.inc"
#undef GPUMUX_NVML_HOOK
};

struct Use {
  const char* name;
  void** real;
};
const Use g_uses[] = {
#define GPUMUX_USE(name, params) {#name, reinterpret_cast<void**>(&g_driver.name)},
#include "guard/uses.inc"
#undef GPUMUX_USE
};

// Driver address -> wrapper: open addressing, filled under g_bind_lock before
// g_driver_bound is set, never changed afterwards.
constexpr size_t kRouteSlots = 512;
static_assert(sizeof(g_hooks) / sizeof(g_hooks[0]) < kRouteSlots / 2);
struct Route {
  void* real;
  void* wrapper;
};
constinit Route g_routes[kRouteSlots] = {};

constinit Lock g_bind_lock;
constinit bool g_nvml_bound = false;
constinit void* g_real_dlsym = nullptr;
constinit void* g_real_dlvsym = nullptr;

using DlsymFn = void* (*)(void*, const char*);
using DlvsymFn = void* (*)(void*, const char*, const char*);
using DlopenFn = void* (*)(const char*, int);

void* FromLibc(const char* name) {
  void* p = FindSymbol("libc.so", name);
  return p ? p : FindSymbol("libdl.so", name);  // glibc before 2.34
}

// Handle of a loaded object, without loading it.
void* HandleOf(const char* file_prefix) {
  char path[4096];
  if (!FindObject(file_prefix, path, sizeof path)) return nullptr;
  auto real_dlopen = reinterpret_cast<DlopenFn>(FromLibc("dlopen"));
  return real_dlopen ? real_dlopen(path, RTLD_LAZY | RTLD_NOLOAD) : nullptr;
}

size_t RouteIndex(const void* address) {
  return (reinterpret_cast<uintptr_t>(address) >> 4) * 0x9e3779b97f4a7c15u >> 56;
}

void AddRoute(void* real, void* wrapper) {
  if (!real) return;
  for (size_t i = RouteIndex(real);; i = (i + 1) % kRouteSlots) {
    if (g_routes[i].real == real) return;
    if (!g_routes[i].real) {
      g_routes[i] = {real, wrapper};
      return;
    }
  }
}

const Hook* FindHook(const char* name) {
  for (const Hook& hook : g_hooks) {
    if (strcmp(hook.name, name) == 0) return &hook;
  }
  return nullptr;
}

const Hook* FindNvmlHook(const char* name) {
  for (const Hook& hook : g_nvml_hooks) {
    if (strcmp(hook.name, name) == 0) return &hook;
  }
  return nullptr;
}

constexpr char kGuardFile[] = "libgpumux-guard.so";

// What a look-up of a name that we have gives, if the real answer is `real`.
void* Answer(const Hook* hook, const char* file, bool bound, void* real) {
  // Our own export, though there is no driver, or an older one.
  if (real && (!bound || !*hook->real) && InObject(real, kGuardFile)) return nullptr;
  if (!real || !bound) return real;
  if (real == *hook->real || InObject(real, file)) return hook->wrapper;
  return real;  // our export, or another library's function of the same name, which will call the driver's
}

}  // namespace

void* RealDlsym() {
  void* p = __atomic_load_n(&g_real_dlsym, __ATOMIC_ACQUIRE);
  if (!p) {
    p = FromLibc("dlsym");
    __atomic_store_n(&g_real_dlsym, p, __ATOMIC_RELEASE);
  }
  return p;
}

void* RealDlvsym() {
  void* p = __atomic_load_n(&g_real_dlvsym, __ATOMIC_ACQUIRE);
  if (!p) {
    p = FromLibc("dlvsym");
    __atomic_store_n(&g_real_dlvsym, p, __ATOMIC_RELEASE);
  }
  return p;
}

bool BindDriver() {
  if (__atomic_load_n(&g_driver_bound, __ATOMIC_ACQUIRE)) return true;
  void* handle = HandleOf(kDriverFile);
  auto dlsym_fn = reinterpret_cast<DlsymFn>(RealDlsym());
  if (!handle || !dlsym_fn) return false;
  Held held(g_bind_lock);
  if (g_driver_bound) return true;
  for (const Hook& hook : g_hooks) {
    void* real = dlsym_fn(handle, hook.name);
    // A handle's search includes the object's dependencies, never our exports.
    *hook.real = real;
    AddRoute(real, hook.wrapper);
  }
  for (const Use& use : g_uses) *use.real = dlsym_fn(handle, use.name);
  __atomic_store_n(&g_driver_bound, true, __ATOMIC_RELEASE);
  return true;
}

bool BindNvml() {
  if (__atomic_load_n(&g_nvml_bound, __ATOMIC_ACQUIRE)) return true;
  void* handle = HandleOf(kNvmlFile);
  auto dlsym_fn = reinterpret_cast<DlsymFn>(RealDlsym());
  if (!handle || !dlsym_fn) return false;
  Held held(g_bind_lock);
  if (g_nvml_bound) return true;
  for (const Hook& hook : g_nvml_hooks) *hook.real = dlsym_fn(handle, hook.name);
  g_nvml.nvmlDeviceGetUUID =
      reinterpret_cast<decltype(g_nvml.nvmlDeviceGetUUID)>(dlsym_fn(handle, "nvmlDeviceGetUUID"));
  __atomic_store_n(&g_nvml_bound, true, __ATOMIC_RELEASE);
  return true;
}

void* RouteDriverAddress(void* address) {
  for (size_t i = RouteIndex(address); g_routes[i].real; i = (i + 1) % kRouteSlots) {
    if (g_routes[i].real == address) return g_routes[i].wrapper;
  }
  return address;
}

}  // namespace gpumux::guard

namespace gpumux::guard {

namespace {

// Functions of the C library that a program reaches the driver or another
// program by, as the guard has them.
struct Front {
  const char* name;
  void* ours;
};
const Front g_fronts[] = {
    {"dlsym", reinterpret_cast<void*>(&::dlsym)},
    {"dlvsym", reinterpret_cast<void*>(&::dlvsym)},
    {"dlopen", reinterpret_cast<void*>(&::dlopen)},
    {"execve", reinterpret_cast<void*>(&::execve)},
    {"execv", reinterpret_cast<void*>(&::execv)},
    {"execvp", reinterpret_cast<void*>(&::execvp)},
    {"execvpe", reinterpret_cast<void*>(&::execvpe)},
    {"posix_spawn", reinterpret_cast<void*>(&::posix_spawn)},
    {"posix_spawnp", reinterpret_cast<void*>(&::posix_spawnp)},
    {"system", reinterpret_cast<void*>(&::system)},
    {"popen", reinterpret_cast<void*>(&::popen)},
};

// For a reference of a deep-bound object: ours, if it leads to what ours stands in front of.
void* InstalledFor(const char* name, void* current) {
  for (const Front& front : g_fronts) {
    if (strcmp(front.name, name) != 0) continue;
    const bool is_librarys = !current || InObject(current, "libc.so") || InObject(current, "libdl.so");
    return is_librarys ? front.ours : nullptr;
  }
  const Hook* hook = nullptr;
  if (name[0] == 'c' && name[1] == 'u' && BindDriver()) hook = FindHook(name);
  if (name[0] == 'n' && name[1] == 'v' && BindNvml()) hook = FindNvmlHook(name);
  if (!hook || !*hook->real || (current && current != *hook->real)) return nullptr;
  return hook->wrapper;
}

}  // namespace

}  // namespace gpumux::guard

// Called by front.S for every dlopen(), with the caller's return address. Of one
// without RTLD_DEEPBIND, or without a session, nothing is changed. Else the
// object's references are led to the guard once it is loaded; where the file that
// is found depends on the caller, which only a jump preserves, the flag is dropped.
extern "C" __attribute__((visibility("hidden"))) gpumux::guard::LookUp gpumux_guard_open(const char* file,
                                                                                         int flags,
                                                                                         const void* caller) {
  using namespace gpumux::guard;
  static constinit void* next = nullptr;
  void* real = __atomic_load_n(&next, __ATOMIC_RELAXED);
  if (!real) {
    real = NextSymbol("dlopen");
    if (!real) real = FromLibc("dlopen");
    __atomic_store_n(&next, real, __ATOMIC_RELAXED);
  }
  if (!real) return {nullptr, 1};
  if (!(flags & RTLD_DEEPBIND) || !file || !getenv(GPUMUX_ENV_SESSION)) return {real, 0};
  if ((!strchr(file, '/') || strchr(file, '$')) && HasSearchPath(caller)) return {real, 2};
  const LoadedObjects before = ObjectsNow();
  void* handle = reinterpret_cast<DlopenFn>(real)(file, flags);
  const int saved_errno = errno;
  if (handle) RebindNewObjects(before, InstalledFor);
  errno = saved_errno;
  return {handle, 1};
}

// Called by front.S for the first call of an exported name: where it leads.
// Without a driver nothing is decided, since one may be loaded later.
extern "C" __attribute__((visibility("hidden"))) void* gpumux_guard_front(size_t index, void** target) {
  using namespace gpumux::guard;
  constexpr size_t kHooks = sizeof g_hooks / sizeof *g_hooks;
  const bool is_driver = index < kHooks;
  const Hook& hook = is_driver ? g_hooks[index] : g_nvml_hooks[index - kHooks];
  const auto real_dlsym = reinterpret_cast<DlsymFn>(RealDlsym());
  if (!(is_driver ? BindDriver() : BindNvml()) || !real_dlsym) return hook.wrapper;
  void* next = real_dlsym(RTLD_NEXT, hook.name);  // after the guard
  void* leads_to = Answer(&hook, is_driver ? kDriverFile : kNvmlFile, true, next);
  if (!leads_to) leads_to = hook.wrapper;
  __atomic_store_n(target, leads_to, __ATOMIC_RELEASE);
  return leads_to;
}

// Called by front.S for every dlsym() and dlvsym() of the process, with the
// caller's return address. Cheap for names that are not ours: two characters decide.
extern "C" __attribute__((visibility("hidden"))) gpumux::guard::LookUp gpumux_guard_look_up(
    void* handle, const char* name, const char* version, const void* caller) {
  using namespace gpumux::guard;
  void* real = version ? RealDlvsym() : RealDlsym();
  if (!name || !real) return {real, real == nullptr};  // without the real one: "not found"
  if (name[0] == 'd' && name[1] == 'l') {
    // A program that asks for dlsym to look the driver up by it.
    if (strcmp(name, "dlsym") == 0 && handle != RTLD_NEXT) return {reinterpret_cast<void*>(&::dlsym), 1};
    if (strcmp(name, "dlvsym") == 0 && handle != RTLD_NEXT) return {reinterpret_cast<void*>(&::dlvsym), 1};
    return {real, 0};
  }
  const Hook* hook = nullptr;
  const char* file = nullptr;
  bool bound = false;
  if (name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z') {
    hook = FindHook(name);
    file = kDriverFile;
    if (hook) bound = BindDriver();
  } else if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l') {
    hook = FindNvmlHook(name);
    file = kNvmlFile;
    if (hook) bound = BindNvml();
  }
  if (!hook) return {real, 0};
  if (handle == RTLD_NEXT) {
    // Not loaded: as without us.
    if (!bound || !*hook->real) return {nullptr, 1};
    if (IsInFrontOf(caller, kGuardFile)) return {real, 0};
    return {hook->wrapper, 1};
  }
  void* found = version ? reinterpret_cast<DlvsymFn>(real)(handle, name, version)
                        : reinterpret_cast<DlsymFn>(real)(handle, name);
  return {Answer(hook, file, bound, found), 1};
}

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace gpumux::guard {

// What the dynamic loader has in memory, read from the objects' own tables.
// The guard exports `dlsym` and `dlvsym` itself, so it cannot call them to find
// the C library's; glibc-private names for that purpose come and go between
// releases. Reading the tables works on every glibc since 2.17.

// Address of `symbol` in the first loaded object whose file name starts with
// `file_prefix` ("libc.so"), or null; its default version if it has several.
void* FindSymbol(const char* file_prefix, const char* symbol);

// Address of `symbol` in the first object behind the guard that has it: what
// RTLD_NEXT means, for the child of a fork or vfork. It takes no lock of the
// loader (another thread may have held it at the fork) and ends at the C
// library at the latest, before any object that may be unloaded meanwhile.
void* NextSymbol(const char* symbol);

// Path of the loaded object whose file name starts with `file_prefix`, copied
// into `out`; false if there is none.
bool FindObject(const char* file_prefix, char* out, size_t out_bytes);

// Makes every reference to the guarded names of the objects that were loaded
// after `last` lead to the guard: `replace(name, current)` gives the new address,
// or null to leave it. `current` is null where the reference is not bound yet.
struct LoadedObjects {
  uintptr_t last;  // where the object is that was loaded last
};
LoadedObjects ObjectsNow();
using Replacement = void* (*)(const char* name, void* current);
void RebindNewObjects(const LoadedObjects& before, Replacement replace);

// Whether looking a library up by file name may depend on who asks: the asking
// object has a search path of its own, or is in another namespace.
bool HasSearchPath(const void* address);

// Whether `address` lies in a loaded object whose file name starts with `file_prefix`.
bool InObject(const void* address, const char* file_prefix);

// Whether the object with `address` comes before that one in the search order.
bool IsInFrontOf(const void* address, const char* file_prefix);

}  // namespace gpumux::guard

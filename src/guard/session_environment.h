// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stddef.h>

namespace gpumux::guard {

// The variables that make a program a part of its tenant (docs/reference/environment.md).
// A program that starts another with an environment of its own making (env -i,
// sudo -E's like, a job runner) leaves them out; the guard puts them back.
//
// Safe in the child of fork and vfork: no allocation, no lock, no look-up; it
// reads the environment that this process has now or was started with.

// What is missing in an environment; nothing in a program without a session.
struct MissingVariables {
  static constexpr int kMost = 12;
  const char* entries[kMost];  // "NAME=value", to be added
  int count;
  // In front of what the environment has in LD_PRELOAD and LD_LIBRARY_PATH.
  const char* preload;
  const char* path_of_libraries;
  // Whether anything is to be done.
  bool any() const { return count > 0 || preload || path_of_libraries; }
  // Copies of values that only the first environment of the process still has.
  char storage[4096];
  size_t used;
};
// Whether `envp` has all of it, as nearly every environment does.
bool HasSession(char* const* envp);
void FindMissing(char* const* envp, MissingVariables* missing);

// How many pointers, and how many bytes of text, the completed environment needs.
struct EnvironmentSize {
  size_t pointers;
  size_t text_bytes;
};
EnvironmentSize SizeOf(char* const* envp, const MissingVariables& missing);
// Writes it. `envp` is not changed; its strings are used.
void Complete(char* const* envp, const MissingVariables& missing, char** pointers, char* text);

}  // namespace gpumux::guard

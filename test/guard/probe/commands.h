// SPDX-License-Identifier: Apache-2.0
//
// The sub-commands of guard_probe. Each returns the program's exit code.
#pragma once

#include <cstdint>
#include <string>

namespace gpumux::probe {

// Look-ups (lookups.cc)
int LookUp(const std::string& way, uint64_t bytes);
int Absent();
int Untouched();

// Ways to memory, step by step (families.cc, more_families.cc). `over` is more
// than the promise, a multiple of 1 GiB.
int Families(uint64_t over);
int MoreFamilies(uint64_t over);
// What comes without being asked for (growth.cc)
int Growth();
// Green contexts, and where one does not fit (green.cc)
int Green();
int GreenOver();

int Told();

// Every hooked way to memory, cell by cell (table.cc). `kind`: "own" makes the
// call itself fail with several codes, "inner" what the guard asks the driver
// meanwhile with `code`, "first" the same from the process's start on.
int Table();
// Holds memory of three families until the file `until` is there.
int Hold(const char* until);
int Faults(const std::string& kind, const std::string& code);

// Many processes at the cap (race.cc)
int Race(const char* self, int count, uint64_t bytes);
int RaceMember(int index, uint64_t bytes, uint64_t start_ns);

// Deaths (deaths.cc)
int Killed(uint64_t seed, uint64_t us);
int Survive(uint64_t bytes, const char* stop);
int Orphan();

// Forks (forks.cc)
int ForkBefore(uint64_t bytes);
int ForkAfter();

}  // namespace gpumux::probe

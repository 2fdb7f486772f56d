// SPDX-License-Identifier: Apache-2.0
//
// The part of its tenant's limit that a program set for its own process
// (gpumux_set_memory_fraction). It only ever narrows what the process may take:
// the daemon knows nothing of it, and nothing is kept for the process.
//
//   committed + under way + overhead + n <= fraction * limit
//
// `under way` counts the reservations that were made while a part was set. They
// are settled by the thread that made them, so each thread remembers how much of
// its own was counted: a call that began before does not disturb the sum.
//
// Threads: any. Nothing here costs an allocation more than one compare as long as
// no part is set.
#pragma once

#include <stdint.h>

namespace gpumux::guard {

extern constinit uint32_t g_parts_set;       // slots with a part
extern constinit uint32_t g_parts_ever_set;  // 1 once there was one

inline bool PartsAreSet() { return __atomic_load_n(&g_parts_set, __ATOMIC_SEQ_CST) != 0; }
inline bool PartsWereSet() { return __atomic_load_n(&g_parts_ever_set, __ATOMIC_RELAXED) != 0; }

// `fraction` is within 0 to 1; 1 takes the part away.
void SetPart(int slot, double fraction);
// Bytes of the part as the limit is now; ~0: none is set.
uint64_t PartBytes(int slot);
// What this process has: committed, under way, its contexts and what they load.
uint64_t OwnBytes(int slot);

// Reserves. Waits, bounded, for calls under way if it depends on how they end.
bool TakeFromPart(int slot, uint64_t bytes);
// `bytes` that this thread reserved are committed, or not wanted any more.
void SettlePart(int slot, uint64_t bytes);
// For a context, which is charged as overhead by the daemon.
bool PartHasRoom(int slot, uint64_t bytes);

// In the child of a fork.
void ForgetParts();

}  // namespace gpumux::guard

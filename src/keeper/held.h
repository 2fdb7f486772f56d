// SPDX-License-Identifier: Apache-2.0
//
// What the keeper holds: descriptors by group and name, at most
// GPUMUX_KEEPER_MAX_ITEMS names. No allocation; one thread, but for closing what
// lingered (closer.h). Memory that was never used costs nothing.
#pragma once

#include <stdint.h>

#include "gpumux/abi/keeper.h"

namespace gpumux::keeper {

struct Held {
  unsigned fd_count;
  int fds[GPUMUX_KEEPER_MAX_FDS];  // one, unless it lingers
  bool watched;                    // a process; let go when it is dead
  bool lingers;                    // with its process, whoever is connected
  bool dead;                       // lingers, and no process of the group is left
  int holder;                      // the connection that sent it; -1 once that is closed
  uint32_t linger_ms;
  uint64_t dead_since_ms;
  uint32_t group_hash;
  char group[GPUMUX_KEEPER_FIELD];
  char name[GPUMUX_KEEPER_FIELD];

  // What is left of its time.
  uint32_t LeftMs(uint64_t now_ms) const;
};

class HeldItems {
 public:
  unsigned count() const { return count_; }
  const Held& at(unsigned index) const { return items_[index]; }

  // Takes the descriptors. False: no room, they are closed.
  bool Hold(const gpumux_keeper_frame& frame, const int* fds, unsigned fd_count, int holder, uint64_t now_ms);
  // Without a name: the whole group.
  void Release(const char* group, const char* name);
  void LingerFor(const char* group, uint32_t linger_ms, bool dead, uint64_t now_ms);
  void ReleaseAllBut(int holder);
  // The process that is watched at `index` has died. Moves the last item there.
  void Died(unsigned index, uint64_t now_ms);
  void HolderGone(int holder);
  // Closes every group of which no process lives, but for what lingers.
  void ReleaseUnwatched();
  // Closes what has lingered long enough.
  void LetGo(uint64_t now_ms);
  // Until LetGo has something to do; -1: nothing lingers.
  int NextMs(uint64_t now_ms) const;

 private:
  void Remove(unsigned index);
  bool InGroup(unsigned index, const char* group, uint32_t hash) const;
  bool AnyWatched(const char* group, uint32_t hash) const;
  void GroupDied(const char* group, uint32_t hash, uint64_t now_ms);

  Held items_[GPUMUX_KEEPER_MAX_ITEMS];
  unsigned count_ = 0;
};

}  // namespace gpumux::keeper

// SPDX-License-Identifier: Apache-2.0
//
// What the keeper holds: descriptors by group and name, at most
// GPUMUX_KEEPER_MAX_ITEMS. One thread; no allocation.
#pragma once

#include "gpumux/abi/keeper.h"

namespace gpumux::keeper {

struct Held {
  int fd;
  bool watched;  // a process; let go when it is dead
  int holder;    // the connection that sent it; -1 once that is closed
  char group[GPUMUX_KEEPER_FIELD];
  char name[GPUMUX_KEEPER_FIELD];
};

class HeldItems {
 public:
  unsigned count() const { return count_; }
  const Held& at(unsigned index) const { return items_[index]; }

  // Takes `fd`. False: no room, `fd` is closed.
  bool Hold(const char* group, const char* name, int fd, bool watched, int holder);
  // Without a name: the whole group.
  void Release(const char* group, const char* name);
  void ReleaseAllBut(int holder);
  // Moves the last item to `index`.
  void Remove(unsigned index);
  void HolderGone(int holder);
  // Closes every group of which no process lives.
  void ReleaseUnwatched();

 private:
  bool AnyWatched(const char* group) const;

  Held items_[GPUMUX_KEEPER_MAX_ITEMS];
  unsigned count_ = 0;
};

}  // namespace gpumux::keeper

// SPDX-License-Identifier: Apache-2.0
#include "keeper/held.h"

#include <string.h>
#include <unistd.h>

namespace gpumux::keeper {

bool HeldItems::Hold(const char* group, const char* name, int fd, bool watched, int holder) {
  Held* item = nullptr;
  for (unsigned i = 0; i < count_ && !item; ++i) {
    if (strcmp(items_[i].group, group) == 0 && strcmp(items_[i].name, name) == 0) item = &items_[i];
  }
  if (item) {
    close(item->fd);
  } else if (count_ < GPUMUX_KEEPER_MAX_ITEMS) {
    item = &items_[count_++];
    memcpy(item->group, group, sizeof item->group);
    memcpy(item->name, name, sizeof item->name);
  } else {
    close(fd);
    return false;
  }
  item->fd = fd;
  item->watched = watched;
  item->holder = holder;
  return true;
}

void HeldItems::Remove(unsigned index) {
  close(items_[index].fd);
  if (index != --count_) items_[index] = items_[count_];
}

void HeldItems::Release(const char* group, const char* name) {
  for (unsigned i = count_; i-- > 0;) {
    if (strcmp(items_[i].group, group) == 0 && (!*name || strcmp(items_[i].name, name) == 0)) Remove(i);
  }
}

void HeldItems::ReleaseAllBut(int holder) {
  for (unsigned i = count_; i-- > 0;) {
    if (items_[i].holder != holder) Remove(i);
  }
}

void HeldItems::HolderGone(int holder) {
  for (unsigned i = 0; i < count_; ++i) {
    if (items_[i].holder == holder) items_[i].holder = -1;
  }
}

bool HeldItems::AnyWatched(const char* group) const {
  for (unsigned i = 0; i < count_; ++i) {
    if (items_[i].watched && strcmp(items_[i].group, group) == 0) return true;
  }
  return false;
}

void HeldItems::ReleaseUnwatched() {
  for (unsigned i = count_; i-- > 0;) {
    if (!items_[i].watched && !AnyWatched(items_[i].group)) Remove(i);
  }
}

}  // namespace gpumux::keeper

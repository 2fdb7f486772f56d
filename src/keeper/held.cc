// SPDX-License-Identifier: Apache-2.0
#include "keeper/held.h"

#include <string.h>
#include <unistd.h>

#include "base/kill_point.h"
#include "keeper/closer.h"

namespace gpumux::keeper {

namespace {

uint32_t Hash(const char* text) {
  uint32_t hash = 2166136261u;
  for (; *text; ++text) hash = (hash ^ static_cast<unsigned char>(*text)) * 16777619u;
  return hash;
}

void Close(const Held& item) {
  for (unsigned i = 0; i < item.fd_count; ++i) {
    if (item.lingers && !item.watched) {
      CloseElsewhere(item.fds[i]);
    } else {
      close(item.fds[i]);
    }
  }
}

}  // namespace

uint32_t Held::LeftMs(uint64_t now_ms) const {
  if (!dead) return linger_ms;
  const uint64_t gone = now_ms - dead_since_ms;
  return gone < linger_ms ? linger_ms - static_cast<uint32_t>(gone) : 0;
}

bool HeldItems::InGroup(unsigned index, const char* group, uint32_t hash) const {
  return items_[index].group_hash == hash && strcmp(items_[index].group, group) == 0;
}

bool HeldItems::Hold(const gpumux_keeper_frame& frame, const int* fds, unsigned fd_count, int holder,
                     uint64_t now_ms) {
  const uint32_t hash = Hash(frame.group);
  Held* item = nullptr;
  for (unsigned i = 0; i < count_ && !item; ++i) {
    if (InGroup(i, frame.group, hash) && strcmp(items_[i].name, frame.name) == 0) item = &items_[i];
  }
  if (item) {
    Close(*item);
  } else if (count_ < GPUMUX_KEEPER_MAX_ITEMS) {
    item = &items_[count_++];
    memcpy(item->group, frame.group, sizeof item->group);
    memcpy(item->name, frame.name, sizeof item->name);
    item->group_hash = hash;
  } else {
    for (unsigned i = 0; i < fd_count; ++i) close(fds[i]);
    return false;
  }
  memcpy(item->fds, fds, fd_count * sizeof *fds);
  item->fd_count = fd_count;
  item->watched = frame.flags & GPUMUX_KEEPER_WATCH;
  item->lingers = frame.flags & GPUMUX_KEEPER_LINGER;
  item->holder = holder;
  item->linger_ms = frame.linger_ms;
  item->dead = item->lingers && !item->watched && !AnyWatched(frame.group, hash);
  item->dead_since_ms = now_ms;
  return true;
}

void HeldItems::Remove(unsigned index) {
  Close(items_[index]);
  if (index != --count_) items_[index] = items_[count_];
}

void HeldItems::Release(const char* group, const char* name) {
  const uint32_t hash = Hash(group);
  for (unsigned i = count_; i-- > 0;) {
    if (InGroup(i, group, hash) && (!*name || strcmp(items_[i].name, name) == 0)) Remove(i);
  }
}

void HeldItems::LingerFor(const char* group, uint32_t linger_ms, bool dead, uint64_t now_ms) {
  const uint32_t hash = Hash(group);
  for (unsigned i = count_; i-- > 0;) {
    if (!items_[i].lingers || !InGroup(i, group, hash)) continue;
    if (dead && items_[i].watched) {
      Remove(i);
    } else {
      items_[i].linger_ms = linger_ms;
    }
  }
  if (dead) GroupDied(group, hash, now_ms);
}

void HeldItems::ReleaseAllBut(int holder) {
  for (unsigned i = count_; i-- > 0;) {
    if (items_[i].holder != holder && !items_[i].lingers) Remove(i);
  }
}

void HeldItems::Died(unsigned index, uint64_t now_ms) {
  char group[GPUMUX_KEEPER_FIELD];
  memcpy(group, items_[index].group, sizeof group);
  const uint32_t hash = items_[index].group_hash;
  Remove(index);
  if (!AnyWatched(group, hash)) GroupDied(group, hash, now_ms);
}

void HeldItems::GroupDied(const char* group, uint32_t hash, uint64_t now_ms) {
  for (unsigned i = 0; i < count_; ++i) {
    if (!items_[i].lingers || items_[i].dead || !InGroup(i, group, hash)) continue;
    KillPoint("keeper-lingering");
    items_[i].dead = true;
    items_[i].dead_since_ms = now_ms;
  }
}

void HeldItems::HolderGone(int holder) {
  for (unsigned i = 0; i < count_; ++i) {
    if (items_[i].holder == holder) items_[i].holder = -1;
  }
}

bool HeldItems::AnyWatched(const char* group, uint32_t hash) const {
  for (unsigned i = 0; i < count_; ++i) {
    if (items_[i].watched && InGroup(i, group, hash)) return true;
  }
  return false;
}

void HeldItems::ReleaseUnwatched() {
  for (unsigned i = count_; i-- > 0;) {
    const Held& item = items_[i];
    if (!item.watched && !item.lingers && !AnyWatched(item.group, item.group_hash)) Remove(i);
  }
}

void HeldItems::LetGo(uint64_t now_ms) {
  for (unsigned i = count_; i-- > 0;) {
    if (!items_[i].dead || items_[i].LeftMs(now_ms) > 0) continue;
    KillPoint("keeper-letting-go");
    Remove(i);
  }
}

int HeldItems::NextMs(uint64_t now_ms) const {
  int next = -1;
  for (unsigned i = 0; i < count_; ++i) {
    if (!items_[i].dead) continue;
    const int left = static_cast<int>(items_[i].LeftMs(now_ms));
    if (next < 0 || left < next) next = left;
  }
  return next;
}

}  // namespace gpumux::keeper

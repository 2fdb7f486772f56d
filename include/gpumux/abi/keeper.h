/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper's protocol: what gpumuxd says to gpumux-keeper, which holds
 * descriptors for it so that they outlive it (docs/design/keeper.md).
 *
 * Transport: a Unix socket of type SOCK_SEQPACKET that its user and root alone
 * may use; every packet is one gpumux_keeper_frame, with at most one descriptor,
 * or GPUMUX_KEEPER_MAX_FDS that linger.
 *
 *   Hold {group, name} + fd  ──▶            kept under that name, in place of an earlier one
 *   Release {group, name}    ──▶            closed; without a name: the whole group
 *   Linger {group, time}     ──▶            how long its descriptors linger from now on
 *   ForgetOthers             ──▶            what this connection did not Hold is closed
 *   Take                     ──▶
 *                          ◀── Item + fd    each that is held; a watched one, and those that
 *                                           linger, without fds
 *                          ◀── End
 *
 * A descriptor held with GPUMUX_KEEPER_WATCH is of a process (a pidfd) and is
 * let go when it becomes readable: the process is dead. As long as anybody is
 * connected nothing else is let go unasked. When nobody is, a group is closed
 * as soon as none of its processes lives; a keeper that holds nothing then ends.
 *
 * Descriptors held with GPUMUX_KEEPER_LINGER are their process's alone, whoever is
 * connected: ForgetOthers leaves them and that process's pidfd, which has the flag
 * too, and `linger_ms` after the group's last process has died they are closed. A
 * group that no process is left of counts as dead when they come.
 *
 * Replies come in the order of the requests; Hold, Release, Linger and ForgetOthers
 * have none. A frame that is not as described ends the connection. All text is
 * NUL-terminated inside of its field. A new version of these 144 bytes can take
 * nothing from a keeper of the old one: they change last.
 */
#ifndef GPUMUX_ABI_KEEPER_H_
#define GPUMUX_ABI_KEEPER_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMUX_KEEPER_MAGIC 0x504b4d47u /* "GMKP" */
#define GPUMUX_KEEPER_VERSION 2u
#define GPUMUX_KEEPER_MAX_ITEMS 4096u
#define GPUMUX_KEEPER_MAX_PEERS 8u
#define GPUMUX_KEEPER_FIELD 64u
#define GPUMUX_KEEPER_MAX_FDS 32u /* of one Hold that lingers */
#define GPUMUX_KEEPER_MAX_LINGER_MS 600000u
/* The listening socket, from whoever starts the keeper: systemd or gpumuxd. */
#define GPUMUX_KEEPER_LISTEN_FD 3

enum gpumux_keeper_message {
  GPUMUX_KEEPER_HOLD = 1,
  GPUMUX_KEEPER_RELEASE = 2,
  GPUMUX_KEEPER_FORGET_OTHERS = 3,
  GPUMUX_KEEPER_TAKE = 4,
  GPUMUX_KEEPER_ITEM = 5,
  GPUMUX_KEEPER_END = 6,
  GPUMUX_KEEPER_LINGER_FOR = 7,
};

enum gpumux_keeper_flag {
  GPUMUX_KEEPER_WATCH = 1,
  GPUMUX_KEEPER_LINGER = 2,
  /* In a Linger: the group's program is gone though its process lives (it has
   * executed another). In an Item: its last process is. */
  GPUMUX_KEEPER_DEAD = 4,
};

struct gpumux_keeper_frame {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t flags;
  uint32_t linger_ms; /* of what lingers, else 0; in an Item of a dead process: what is left */
  char group[GPUMUX_KEEPER_FIELD];
  char name[GPUMUX_KEEPER_FIELD];
};

#ifdef __cplusplus
}
static_assert(offsetof(gpumux_keeper_frame, magic) == 0);
static_assert(offsetof(gpumux_keeper_frame, version) == 4);
static_assert(offsetof(gpumux_keeper_frame, type) == 6);
static_assert(offsetof(gpumux_keeper_frame, flags) == 8);
static_assert(offsetof(gpumux_keeper_frame, linger_ms) == 12);
static_assert(offsetof(gpumux_keeper_frame, group) == 16);
static_assert(offsetof(gpumux_keeper_frame, name) == 80);
static_assert(sizeof(gpumux_keeper_frame) == 144);
#endif

#endif /* GPUMUX_ABI_KEEPER_H_ */

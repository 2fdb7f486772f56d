/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper's protocol: what gpumuxd says to gpumux-keeper, which holds
 * descriptors for it so that they outlive it (docs/design/keeper.md).
 *
 * Transport: a Unix socket of type SOCK_SEQPACKET that its user and root alone
 * may use; every packet is one gpumux_keeper_frame, with at most one descriptor.
 *
 *   Hold {group, name} + fd  ──▶            kept under that name, in place of an earlier one
 *   Release {group, name}    ──▶            closed; without a name: the whole group
 *   ForgetOthers             ──▶            what this connection did not Hold is closed
 *   Take                     ──▶
 *                          ◀── Item + fd    each that is held; a watched one without its fd
 *                          ◀── End
 *
 * A descriptor held with GPUMUX_KEEPER_WATCH is of a process (a pidfd) and is
 * let go when it becomes readable: the process is dead. As long as anybody is
 * connected nothing else is let go unasked. When nobody is, a group is closed
 * as soon as none of its processes lives; a keeper that holds nothing then ends.
 *
 * Replies come in the order of the requests; Hold, Release and ForgetOthers have
 * none. A frame that is not as described ends the connection. All text is
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
#define GPUMUX_KEEPER_VERSION 1u
#define GPUMUX_KEEPER_MAX_ITEMS 4096u
#define GPUMUX_KEEPER_MAX_PEERS 8u
#define GPUMUX_KEEPER_FIELD 64u
/* The listening socket, from whoever starts the keeper: systemd or gpumuxd. */
#define GPUMUX_KEEPER_LISTEN_FD 3

enum gpumux_keeper_message {
  GPUMUX_KEEPER_HOLD = 1,
  GPUMUX_KEEPER_RELEASE = 2,
  GPUMUX_KEEPER_FORGET_OTHERS = 3,
  GPUMUX_KEEPER_TAKE = 4,
  GPUMUX_KEEPER_ITEM = 5,
  GPUMUX_KEEPER_END = 6,
};

enum gpumux_keeper_flag {
  GPUMUX_KEEPER_WATCH = 1,
};

struct gpumux_keeper_frame {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t flags;
  uint32_t reserved; /* 0 */
  char group[GPUMUX_KEEPER_FIELD];
  char name[GPUMUX_KEEPER_FIELD];
};

#ifdef __cplusplus
}
static_assert(offsetof(gpumux_keeper_frame, magic) == 0);
static_assert(offsetof(gpumux_keeper_frame, version) == 4);
static_assert(offsetof(gpumux_keeper_frame, type) == 6);
static_assert(offsetof(gpumux_keeper_frame, flags) == 8);
static_assert(offsetof(gpumux_keeper_frame, reserved) == 12);
static_assert(offsetof(gpumux_keeper_frame, group) == 16);
static_assert(offsetof(gpumux_keeper_frame, name) == 80);
static_assert(sizeof(gpumux_keeper_frame) == 144);
#endif

#endif /* GPUMUX_ABI_KEEPER_H_ */

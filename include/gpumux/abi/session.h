/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The session protocol: what `gpumux run` and the guard say to gpumuxd.
 *
 * Transport: a Unix socket of type SOCK_SEQPACKET, one packet a message, so a
 * message is whole or absent. Every packet is a gpumux_frame and at most
 * GPUMUX_MAX_PAYLOAD bytes after it. Numbers are in the host's byte order: both
 * ends are on one machine. The daemon takes the peer's pid, uid and gid from
 * SO_PEERCRED (in its own pid namespace), never from a message.
 *
 * Two kinds of client
 *
 *   guard (payloads are the structs below)          run (payloads are JSON)
 *   ───────────────────────────────────────         ────────────────────────
 *   GuardHello [+ 2 fds] ──▶                        RunRequest      ──▶
 *                       ◀── GuardWelcome + 3 fds                    ◀── RunQueued (0..n)
 *                        or Refused                                 ◀── RunGranted + lock fds
 *   CreditRequest       ──▶                                          or Refused
 *                       ◀── CreditReply             RunStarted      ──▶
 *   MemoryInfoRequest   ──▶                         RunEnded        ──▶
 *                       ◀── MemoryInfo                              ◀── RunSummary
 *   ContextRequest      ──▶
 *                       ◀── ContextReply
 *   ContextNotice       ──▶   (no reply)
 *   ProcessListRequest  ──▶
 *                       ◀── ProcessList
 *   HoldDescriptors + fds ──▶ (no reply)
 *   MpsPlaceRequest     ──▶
 *                       ◀── MpsPlaceReply
 *   GateRequest [+ fd]  ──▶
 *                       ◀── GateReply + fds
 *
 *   listener: a process's second connection, on which it is asked for memory that it only caches
 *   ────────────────────────────────────────────────────────────────────────────────────────────
 *   ReclaimListen       ──▶
 *                       ◀── ReclaimListening or Refused
 *                       ◀── ReclaimRequest   (0..n, one at a time)
 *   ReclaimDone         ──▶                  (with the request's id)
 *
 * RunResume is the first message to a daemon that took over; RunResumed or Refused answers it,
 * and then all is as if the daemon had never changed.
 *
 * A guard has one request under way at a time and matches the reply by
 * `request_id`. `run` keeps its connection open as long as the tenant lives: a
 * hang-up while it waits cancels the request.
 *
 * Which tenant is a guard's process of? The daemon walks from the peer's pid to
 * its ancestors until it meets a `run` that holds a lease or a known member of a
 * tenant; `tenant_hint` is used when no ancestor is left, and only for a tenant
 * of the same uid.
 *
 * Old, broken or hostile peer: a frame with a wrong magic, a length that is not
 * the packet's, an unknown type or a payload of the wrong size ends the
 * connection and is counted; nothing of it is used. A guard that meets another
 * version leaves itself out of force.
 */
#ifndef GPUMUX_ABI_SESSION_H_
#define GPUMUX_ABI_SESSION_H_

#include <stddef.h>
#include <stdint.h>

#include "gpumux/abi/pages.h"

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMUX_SESSION_MAGIC 0x58554d47u /* "GMUX" */
#define GPUMUX_SESSION_VERSION 7u
/* A RunRequest carries the command line and labels; 60 KiB and the header stay
 * under the default socket buffer (208 KiB) with room for several. */
#define GPUMUX_MAX_PAYLOAD 61440u
#define GPUMUX_MAX_FDS 32
/* Processes in one ProcessList. No GPU has channels for as many. */
#define GPUMUX_MAX_LISTED 1024u

/* Where a tenant's processes find the session: set by `run`, kept by the
 * guard's exec wrappers. Absent: the guard does nothing at all. */
#define GPUMUX_ENV_SESSION "GPUMUX_SESSION" /* path of the socket */
#define GPUMUX_ENV_TENANT "GPUMUX_TENANT"   /* tenant id: a hint, see above */
#define GPUMUX_ENV_STRICT "GPUMUX_STRICT"   /* "1": no CUDA without enforcement */

struct gpumux_frame {
  uint32_t magic;
  uint16_t version;
  uint16_t type;
  uint32_t payload_bytes;
  uint32_t request_id; /* the reply carries the request's; 0 in notices */
};

enum gpumux_message {
  GPUMUX_GUARD_HELLO = 1,
  GPUMUX_GUARD_WELCOME = 2, /* fds: limits (read-only), tenant, process */
  GPUMUX_REFUSED = 3,
  GPUMUX_CREDIT_REQUEST = 4,
  GPUMUX_CREDIT_REPLY = 5,
  GPUMUX_MEMORY_INFO_REQUEST = 6,
  GPUMUX_MEMORY_INFO = 7,
  GPUMUX_CONTEXT_REQUEST = 8,
  GPUMUX_CONTEXT_REPLY = 9,
  GPUMUX_CONTEXT_NOTICE = 10,
  GPUMUX_PROCESS_LIST_REQUEST = 11,
  GPUMUX_PROCESS_LIST = 12,
  GPUMUX_RECLAIM_LISTEN = 13,
  GPUMUX_RECLAIM_LISTENING = 14,
  GPUMUX_RECLAIM_REQUEST = 15,
  GPUMUX_RECLAIM_DONE = 16,
  GPUMUX_HOLD_DESCRIPTORS = 17, /* fds: of GPUs; no reply */
  GPUMUX_MPS_PLACE_REQUEST = 18,
  GPUMUX_MPS_PLACE_REPLY = 19,
  GPUMUX_GATE_REQUEST = 20, /* fd: the gate page that the process has already */
  GPUMUX_GATE_REPLY = 21,   /* fds: its gate page, if it sent none; then those that it may close */
  GPUMUX_RUN_REQUEST = 32,  /* JSON from here on */
  GPUMUX_RUN_QUEUED = 33,
  GPUMUX_RUN_GRANTED = 34, /* fds: one lock socket a GPU, to be held as long as the tenant lives */
  GPUMUX_RUN_STARTED = 35,
  GPUMUX_RUN_ENDED = 36,
  GPUMUX_RUN_SUMMARY = 37,
  GPUMUX_RUN_RESUME = 38, /* to a new daemon; fds: the lock sockets that `run` holds */
  GPUMUX_RUN_RESUMED = 39,
  GPUMUX_RUN_NOTED =
      40, /* the end is known, also to the next daemon; the summary follows, or has come instead */
};

/* Why a guard or a request was refused. */
enum gpumux_reason {
  GPUMUX_REASON_NONE = 0,
  GPUMUX_REASON_NOT_A_TENANT = 1, /* no lease covers this process */
  GPUMUX_REASON_OTHER_VERSION = 2,
  GPUMUX_REASON_LIMIT = 3,       /* the tenant's own limit */
  GPUMUX_REASON_DEVICE_FULL = 4, /* within the limit, but the GPU has no promisable bytes left */
  GPUMUX_REASON_STOPPING = 5,
  GPUMUX_REASON_TOO_MANY = 6, /* processes or requests of this peer */
  GPUMUX_REASON_INTERNAL = 7,
};

/* gpumux_guard_hello.flags. Absent in a process that the daemon knows: it has
 * executed another program, and what the one before had on the GPU is gone. */
#define GPUMUX_HELLO_HAS_PAGES 1u /* a reconnect: the pages of the session before are mapped */

/* A process that had a session before says hello with two descriptors, its process
 * page and its tenant page. */
enum gpumux_resumed {
  GPUMUX_RESUMED_NOT = 0,       /* all three pages are new */
  GPUMUX_RESUMED_SAME = 1,      /* with the same daemon: the pages are the same */
  GPUMUX_RESUMED_TAKEN_OVER = 2 /* by another: limits and tenant page are new, the process page goes on */
};

struct gpumux_guard_hello {
  uint32_t pages_version;
  int32_t ns_pid; /* getpid(): differs from SO_PEERCRED in a pid namespace */
  char tenant_hint[GPUMUX_TENANT_ID_BYTES];
  uint64_t flags; /* GPUMUX_HELLO_* */
  uint64_t reserved[3];
};

struct gpumux_guard_welcome {
  uint32_t pages_version;
  uint32_t gpu_count;
  uint32_t strict;
  uint32_t resumed; /* enum gpumux_resumed */
  char tenant_id[GPUMUX_TENANT_ID_BYTES];
  int32_t pid; /* of this process, as gpumuxd sees it */
  uint32_t reserved32;
  uint64_t reserved[3];
};

struct gpumux_refused {
  uint32_t reason;   /* enum gpumux_reason */
  int32_t exit_code; /* for `run` */
  char text[512];    /* for a person; NUL-terminated */
};

/* gpumux_credit_request.flags: answer from what is there; no other program is asked
 * to give back what it caches. */
#define GPUMUX_CREDIT_WITHOUT_RECLAIM 1u

struct gpumux_credit_request {
  uint32_t gpu_slot;
  uint32_t flags;
  uint64_t bytes;
};

struct gpumux_credit_reply {
  uint32_t granted; /* 1: `bytes` of the request belong to the asking call now */
  uint32_t reason;
  uint64_t limit_bytes;
  uint64_t used_bytes;       /* of the whole tenant, overheads included */
  uint64_t promisable_bytes; /* of the GPU */
};

struct gpumux_memory_info_request {
  uint32_t gpu_slot;
  uint32_t reserved;
};

struct gpumux_memory_info {
  uint64_t total_bytes; /* the limit */
  uint64_t used_bytes;  /* of the whole tenant */
  uint64_t free_bytes;  /* min(own rest, what the GPU can give) */
};

/* Before a context is created: may its cost be charged? The daemon charges
 * `context_bytes` to the process and replies; after the driver call the guard
 * sends a ContextNotice with what came of it. */
struct gpumux_context_request {
  uint32_t gpu_slot;
  uint32_t reserved;
};

struct gpumux_context_reply {
  uint32_t granted;
  uint32_t reason;
  uint64_t charged_bytes;
};

/* `contexts` is how many contexts of this GPU the process has now; beyond those
 * that were granted it counts as far as NVML's figure has room for them. The daemon
 * sets the overhead to what NVML shows beyond committed_bytes plus its
 * allowance for code that is loaded lazily, or to 0 when `contexts` is 0. */
struct gpumux_context_notice {
  uint32_t gpu_slot;
  uint32_t contexts;
};

struct gpumux_process_list_request {
  uint64_t reserved;
};

/* One process under two names: NVML answers with pids of the machine, and a
 * program in a pid namespace knows others. */
struct gpumux_process_id {
  int32_t pid;       /* as gpumuxd sees it */
  int32_t pid_there; /* in the asking process's pid namespace; 0: not visible there */
};

/* The living processes of the asking process's tenant, those on a GPU first. */
struct gpumux_process_list {
  uint32_t count;
  uint32_t reserved;
  struct gpumux_process_id processes[GPUMUX_MAX_LISTED];
};

/* Duplicates of the process's descriptors of GPUs, to be held when it dies with work
 * under way (docs/design/mps.md). At most GPUMUX_MAX_FDS a message: `first` is the
 * number of the first of them among all `count`; those of an earlier round are let
 * go when the last message of this one has come. */
struct gpumux_hold_descriptors {
  uint32_t first;
  uint32_t count;
};
/* Of one process, at most. */
#define GPUMUX_MAX_HELD 512u

/* Of a process of mode mps without a context on the GPU: may it become a client
 * of the server there? Asked before its first context, and again as long as the
 * answer is WAIT; and once more with what came of an attempt that failed. */
struct gpumux_mps_place_request {
  uint32_t gpu_slot;
  uint32_t driver_error; /* of the attempt; 0: none was made since the last question */
};

enum gpumux_mps_place {
  GPUMUX_MPS_PLACE_YES = 1,  /* it has a place until its ContextNotice says how many contexts it has */
  GPUMUX_MPS_PLACE_WAIT = 2, /* ask again, some tenths of a second later */
  GPUMUX_MPS_PLACE_NO = 3,   /* and there is nothing to wait for */
};

struct gpumux_mps_place_reply {
  uint32_t answer; /* enum gpumux_mps_place */
  uint32_t reserved;
};

/* Of a process with a context: for its gate page (gate.h), and for those that it may
 * close, from the `first` of them on. Asked again until all have come, from 0 when
 * `gates_call` of the limits page has changed. */
struct gpumux_gate_request {
  uint32_t first;
  uint32_t reserved;
};

/* At most GPUMUX_MAX_FDS come at once. */
struct gpumux_gate_reply {
  uint32_t call;      /* gates_call, when this was true */
  uint32_t owner_bit; /* of the asking process; GPUMUX_GATE_NO_BIT: it closes none */
  uint32_t total;     /* gates that it may close */
  uint32_t first;     /* of those whose pages come with this */
  uint32_t count;
  uint32_t own; /* 1: the first descriptor is its own page */
  /* Of its own gate, by latency-critical owners: of each second it is open for so long, and
   * closed no longer than so without a break. Not in the page, which owners may write. */
  uint64_t min_open_ns;
  uint64_t max_closed_ns;
  uint64_t budget_ns; /* predicted work of one of its streams between two waits at the gate */
};

/* The process can give back memory that it only caches. It must have said hello on
 * another connection; of several listeners of one process the newest counts. */
struct gpumux_reclaim_listen {
  uint64_t reserved[2];
};

struct gpumux_reclaim_listening {
  uint64_t reserved;
};

/* Others need memory: never more is wanted than the process itself holds. */
struct gpumux_reclaim_request {
  uint32_t gpu_slot;
  uint32_t reserved;
  uint64_t wanted_bytes;
};

/* What could be given is given. How much that was, the pages say. */
struct gpumux_reclaim_done {
  uint64_t reserved;
};

#ifdef __cplusplus
}

static_assert(sizeof(gpumux_frame) == 16);
static_assert(sizeof(gpumux_guard_hello) == 8 + GPUMUX_TENANT_ID_BYTES + 32);
static_assert(sizeof(gpumux_guard_welcome) == 16 + GPUMUX_TENANT_ID_BYTES + 32);
static_assert(sizeof(gpumux_refused) == 520);
static_assert(sizeof(gpumux_credit_request) == 16);
static_assert(sizeof(gpumux_credit_reply) == 32);
static_assert(sizeof(gpumux_memory_info) == 24);
static_assert(sizeof(gpumux_context_reply) == 16);
static_assert(sizeof(gpumux_hold_descriptors) == 8);
static_assert(sizeof(gpumux_mps_place_request) == 8);
static_assert(sizeof(gpumux_mps_place_reply) == 8);
static_assert(sizeof(gpumux_gate_request) == 8);
static_assert(sizeof(gpumux_gate_reply) == 48);
static_assert(sizeof(gpumux_reclaim_listen) == 16);
static_assert(sizeof(gpumux_reclaim_listening) == 8);
static_assert(sizeof(gpumux_reclaim_request) == 16);
static_assert(offsetof(gpumux_reclaim_request, wanted_bytes) == 8);
static_assert(sizeof(gpumux_reclaim_done) == 8);
static_assert(sizeof(gpumux_process_list) == 8 + 8 * GPUMUX_MAX_LISTED);
static_assert(sizeof(gpumux_process_list) <= GPUMUX_MAX_PAYLOAD);
#endif

#endif /* GPUMUX_ABI_SESSION_H_ */

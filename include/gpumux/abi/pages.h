/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared pages between gpumuxd and the guard inside a tenant's processes.
 *
 * Glossary
 *   tenant   a process tree that was granted a promise
 *   credit   bytes of the tenant that one of its processes may commit without
 *            asking the daemon
 *   slot     index of one of the tenant's GPUs, 0..gpu_count-1; the GPU itself
 *            is its UUID, never an ordinal
 *
 * Picture (one tenant with two processes)
 *
 *        gpumuxd                           process A            process B
 *   ┌───────────────┐   read-only fd
 *   │ LimitsPage    │ ───────────────────▶ PROT_READ            PROT_READ
 *   ├───────────────┤   read-write fd
 *   │ TenantPage    │ ◀──────────────────▶ rw                   rw
 *   ├───────────────┤
 *   │ ProcessPage A │ ◀──────────────────▶ rw
 *   │ ProcessPage B │ ◀───────────────────────────────────────▶ rw
 *   └───────────────┘
 *
 * Who writes what
 *   LimitsPage    the daemon alone. Processes get a read-only descriptor of a
 *                 memfd sealed with F_SEAL_FUTURE_WRITE, so none can map it
 *                 for writing.
 *   ProcessPage   `credit_free_bytes` and `granted_request`: both, by atomic
 *                 operations only (see below). `overhead_bytes`: the daemon.
 *                 Everything else: the guard.
 *   TenantPage    the guards of the tenant, and only while no daemon answers.
 *
 * Life of a credit (all operations sequentially consistent; one word decides,
 * so there is no lock that a dying process could hold)
 *
 *   guard, reserve n:   in_use_bytes += n; free = credit_free_bytes; CAS
 *                       free -> free - n, if free >= n (else in_use_bytes -= n).
 *                       Else a CreditRequest; the reply grants n to the asking
 *                       call directly (in_use_bytes += n) and puts what it
 *                       grants beyond n into credit_free_bytes.
 *   guard, commit:      committed_bytes += n
 *   guard, cancel:      in_use_bytes -= n, credit_free_bytes += n
 *   guard, free:        committed_bytes -= n, in_use_bytes -= n, then
 *                       credit_free_bytes += n
 *   daemon, recall:     taken = exchange(credit_free_bytes, 0), clamped to what
 *                       it granted; granted(process) -= taken
 *   daemon, death:      all of granted(process) returns to the tenant, whatever
 *                       the page says
 *
 * Held by a process, and kept by all of these but grants and recalls:
 *   in_use_bytes + credit_free_bytes. What goes from one to the other is between a
 *   `transfers_begun` and a `transfers_ended`, so that a daemon that takes over can
 *   read both at one moment: `transfers_ended` before it, equal to `transfers_begun`
 *   after it. What an earlier daemon meant to give it and could not is then nobody's.
 *
 * A grant that the daemon could not say any more is in `granted_request`: the
 * guard, without its answer, takes it with an exchange of its request's number for 0; a
 * daemon that could not send the answer takes it back in the same way. One of
 * them has it.
 *
 * The daemon keeps granted(process) in its own memory. It never trusts a page
 * for a decision about another tenant: a guard that lies about its credit can
 * only break its own tenant's limit, and NVML shows it.
 *
 * Uncommitted bytes of a tenant are granted - committed - free: calls that are
 * under way. The daemon refuses a request at once only if it would not fit even
 * were all of these cancelled; else it waits (bounded) until that is known.
 *
 * Compatibility: `version` changes with any change of layout. The daemon offers
 * its version in the Welcome; a guard of another version leaves itself out of
 * force, says so (kGuardOtherVersion), and the program runs not enforced.
 *
 * Peer dead or hostile: either side may find any bytes at any time. Copy a
 * value once, check it, then use it.
 */
#ifndef GPUMUX_ABI_PAGES_H_
#define GPUMUX_ABI_PAGES_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMUX_PAGES_VERSION 4u
#define GPUMUX_LIMITS_MAGIC 0x4d494c47u  /* "GLIM" */
#define GPUMUX_TENANT_MAGIC 0x4e455447u  /* "GTEN" */
#define GPUMUX_PROCESS_MAGIC 0x43525047u /* "GPRC" */

/* GPUs of one tenant. 16 is what one host of today carries (HGX B300 x2). */
#define GPUMUX_MAX_GPUS 16
/* "t-" + 12 characters and a NUL fit; room for longer ids later. */
#define GPUMUX_TENANT_ID_BYTES 40
/* Every page is this large, whatever the host's page size: 64 KiB covers 4, 16
 * and 64 KiB pages. */
#define GPUMUX_PAGE_BYTES 65536u

/* LimitsPage.state */
#define GPUMUX_STATE_RUNNING 1u
#define GPUMUX_STATE_STOPPING 2u /* no further allocation, launches drain */
#define GPUMUX_STATE_FROZEN 3u   /* found above its limit: no further allocation until below */

/* LimitsPage.flags */
#define GPUMUX_LIMITS_MPS 1u  /* the tenant's processes are to be clients of MPS */
#define GPUMUX_LIMITS_GATE 2u /* they are to have gate pages (gate.h) */

/* LimitsPage.launch: what a launch has to do beside the launch; 0: nothing. One word, so
 * that a launch which has nothing to do reads one word. */
#define GPUMUX_LAUNCH_STOPS 1u   /* a client of MPS whose time to end by itself is over: no launch */
#define GPUMUX_LAUNCH_GATED 2u   /* a latency-critical neighbour may close its gate */
#define GPUMUX_LAUNCH_TURNS 4u   /* its turn may be over, and its segments are told */
#define GPUMUX_LAUNCH_LATENCY 8u /* it closes the gates of others while it works */

/* One GPU of the tenant as the daemon sees it. Written by the daemon with
 * relaxed stores; each field is meaningful by itself. 128 bytes. */
struct gpumux_gpu_limit {
  uint8_t uuid[16];            /* as cuDeviceGetUuid returns it */
  uint64_t guaranteed_bytes;   /* never taken back while the lease lives */
  uint64_t limit_bytes;        /* what the program is told as the total */
  uint64_t granted_bytes;      /* credit of all its processes and their overheads, at the last change */
  uint64_t device_total_bytes; /* physical, as NVML says */
  uint64_t context_bytes;      /* charged beforehand for a context of one process */
  uint64_t reserved[9];
};

struct gpumux_limits_page {
  uint32_t magic;
  uint32_t version;
  uint32_t gpu_count;
  uint32_t state;            /* GPUMUX_STATE_*; atomic */
  uint32_t strict;           /* 1: never run without enforcement */
  uint32_t simulated;        /* 1: software GPU */
  uint64_t daemon_heartbeat; /* CLOCK_MONOTONIC ns of the daemon's last tick; atomic */
  char tenant_id[GPUMUX_TENANT_ID_BYTES];
  uint32_t flags;            /* GPUMUX_LIMITS_*; atomic */
  uint32_t descriptors_call; /* atomic; when it changes, GPU descriptors are sent anew */
  uint32_t launch;           /* GPUMUX_LAUNCH_*; atomic */
  uint32_t gates_call;       /* atomic; when it changes, a process with a gate page asks anew */
  uint64_t reserved[5];
  struct gpumux_gpu_limit gpus[GPUMUX_MAX_GPUS];
};

/* Bytes that processes granted themselves while no daemon answered. A process
 * adds (never subtracts) under the rule
 *   granted_bytes + orphan_taken_bytes + n <= max(guaranteed_bytes, granted_bytes)
 * with the limits page's figures: burst bytes beyond the guarantee are the
 * daemon's to give, since two tenants could take the same. A death can only lose
 * room, never exceed the promise. The next daemon closes the page
 * (GPUMUX_ORPHANS_CLOSED) and counts what the processes hold. */
struct gpumux_tenant_page {
  uint32_t magic;
  uint32_t version;
  uint64_t reserved[7];
  uint64_t orphan_taken_bytes[GPUMUX_MAX_GPUS]; /* atomic */
};

/* In orphan_taken_bytes: another daemon answers, nobody takes bytes here any more. */
#define GPUMUX_ORPHANS_CLOSED (1ull << 62)

/* ProcessPage.flags, set by the guard */
#define GPUMUX_GUARD_IN_FORCE 1u         /* symbols routed and limits mapped */
#define GPUMUX_GUARD_LATENCY_CRITICAL 2u /* a hint of the program: what it does now must not wait */

/* gpumux_process_gpu.mps: whether CUDA says that the process is a client of MPS */
enum gpumux_mps_attached {
  GPUMUX_MPS_NOT_ASKED = 0,
  GPUMUX_MPS_ATTACHED = 1,
  GPUMUX_MPS_NOT_ATTACHED = 2,
};

/* One GPU of one process. 128 bytes: two cache lines, so that two GPUs of a
 * process never share one. */
struct gpumux_process_gpu {
  int64_t credit_free_bytes;    /* atomic, both sides: see the head of this file */
  uint64_t committed_bytes;     /* atomic; what the device took for this process's calls */
  uint64_t peak_bytes;          /* atomic maximum of committed_bytes */
  uint64_t refused_own_limit;   /* atomic count: the tenant's limit was the reason */
  uint64_t refused_device_full; /* atomic count: the driver itself said out of memory */
  uint64_t last_refused_bytes;  /* atomic */
  uint64_t contexts;            /* atomic; contexts that are charged */
  uint64_t launches;            /* relaxed count of kernel and graph launches */
  uint64_t unrouted;            /* look-ups of a hooked name that led to an unknown address */
  uint64_t in_use_bytes;        /* atomic; committed, and under way: reserved for calls that have not ended */
  /* Contexts, loaded code and what is kept ahead of it. Written by the daemon; the
   * guard adds a context that it makes while none answers. */
  uint64_t overhead_bytes;
  uint64_t refused_own_part; /* atomic count: the part that the program set for this process was the reason */
  /* What the driver told the guard once the first context was there: */
  uint32_t mps;                /* atomic; enum gpumux_mps_attached */
  uint32_t mps_sms;            /* multiprocessors that it may use; 0: not asked yet */
  uint64_t mps_free_bytes;     /* free memory then, of this process's limit if that is less */
  uint32_t transfers_begun;    /* atomic count, of in_use_bytes from and to credit_free_bytes */
  uint32_t transfers_ended;    /* atomic count */
  uint32_t contexts_under_way; /* atomic; that may be made, and are not among `contexts` yet */
  uint32_t reserved32;
};

struct gpumux_process_page {
  uint32_t magic;
  uint32_t version;
  uint32_t flags;            /* GPUMUX_GUARD_*; atomic */
  int32_t pid;               /* in the process's own pid namespace; for display */
  uint32_t first_error;      /* atomic; the first error of CUDA that every later call returns too; 0: none */
  uint32_t descriptors_open; /* atomic; of GPUs, at the last look */
  uint32_t descriptors_sent; /* atomic; of these */
  uint32_t reserved32;
  uint64_t first_error_ns; /* CLOCK_MONOTONIC */
  /* What the work under way is expected to take, when the process is dead: the
   * launches of gpus[0] beyond `launches_done`, times `launch_ns`. */
  uint64_t launch_ns;       /* atomic; the longest time that a launch took so far; 0: nothing is known */
  uint64_t launches_done;   /* atomic; so many launches are known to have ended */
  uint64_t granted_request; /* atomic, both sides: see the head of this file; 0: none */
  uint64_t reserved[8];
  struct gpumux_process_gpu gpus[GPUMUX_MAX_GPUS];
};

#ifdef __cplusplus
}

static_assert(sizeof(gpumux_gpu_limit) == 128);
static_assert(offsetof(gpumux_gpu_limit, guaranteed_bytes) == 16);
static_assert(offsetof(gpumux_gpu_limit, limit_bytes) == 24);
static_assert(offsetof(gpumux_gpu_limit, granted_bytes) == 32);
static_assert(offsetof(gpumux_gpu_limit, device_total_bytes) == 40);
static_assert(offsetof(gpumux_gpu_limit, context_bytes) == 48);
static_assert(offsetof(gpumux_limits_page, state) == 12);
static_assert(offsetof(gpumux_limits_page, daemon_heartbeat) == 24);
static_assert(offsetof(gpumux_limits_page, tenant_id) == 32);
static_assert(offsetof(gpumux_limits_page, launch) == 80);
static_assert(offsetof(gpumux_limits_page, gpus) == 128);
static_assert(sizeof(gpumux_limits_page) == 128 + 128 * GPUMUX_MAX_GPUS);
static_assert(offsetof(gpumux_tenant_page, orphan_taken_bytes) == 64);
static_assert(sizeof(gpumux_process_gpu) == 128);
static_assert(offsetof(gpumux_process_gpu, committed_bytes) == 8);
static_assert(offsetof(gpumux_process_gpu, launches) == 56);
static_assert(offsetof(gpumux_process_gpu, in_use_bytes) == 72);
static_assert(offsetof(gpumux_process_gpu, overhead_bytes) == 80);
static_assert(offsetof(gpumux_process_gpu, refused_own_part) == 88);
static_assert(offsetof(gpumux_limits_page, flags) == 72);
static_assert(offsetof(gpumux_process_gpu, mps) == 96);
static_assert(offsetof(gpumux_process_gpu, mps_free_bytes) == 104);
static_assert(offsetof(gpumux_process_gpu, transfers_begun) == 112);
static_assert(offsetof(gpumux_process_gpu, contexts_under_way) == 120);
static_assert(offsetof(gpumux_process_page, first_error) == 16);
static_assert(offsetof(gpumux_process_page, first_error_ns) == 32);
static_assert(offsetof(gpumux_process_page, launch_ns) == 40);
static_assert(offsetof(gpumux_process_page, launches_done) == 48);
static_assert(offsetof(gpumux_process_page, granted_request) == 56);
static_assert(offsetof(gpumux_process_page, flags) == 8);
static_assert(offsetof(gpumux_process_page, gpus) == 128);
static_assert(sizeof(gpumux_process_page) <= GPUMUX_PAGE_BYTES);
#endif

#endif /* GPUMUX_ABI_PAGES_H_ */

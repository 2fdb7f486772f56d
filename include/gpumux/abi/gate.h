/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate page: one of each process whose work on GPUs may be held back, for a
 * latency-critical neighbour or because it is not its turn (docs/design/gate.md).
 *
 * Glossary
 *   gated process   puts waits into its streams: the GPU goes on when `closed` is 0
 *   owner           has a bit of the word: a process of a latency-critical tenant while it
 *                   has work under way, or the daemon, whose bit says "not your turn"
 *   opener          a thread of the gated process's guard; makes no CUDA call
 *   segment         work of one stream between two waits
 *
 * Picture
 *
 *     owner A ──┐ want |= bit, closed |= bit         GPU of the gated process
 *     owner B ──┤                                    stream 1: [wait closed == 0] k k k [wait] k k
 *     daemon ───┘        ┌──────────┐                stream 2: [wait closed == 0] k [wait] k k k
 *                        │ gate page│ ◀── polled ──
 *     opener ───────────▶│ want     │
 *        repairs, clears │ closed   │     `closed` is what the GPU waits for, `want` what owners
 *        bits of the dead└──────────┘     said; they differ while the gate is forced open
 *
 * Rules (all operations on want, closed and forced sequentially consistent)
 *
 *   close(bit)    want |= bit;   if (!forced) closed |= bit
 *   open(bit)     want &= ~bit;  closed &= ~bit
 *   force()       forced = 1;    closed &= TURN               (the opener alone)
 *   unforce()     forced = 0;    repair
 *   repair()      w = want; if (!forced) closed |= w; closed &= want | ~w
 *                 every tick of the opener; what two owners' and its own steps left
 *                 behind is right after the next tick
 *
 * An owner lives as long as it holds the record lock (fcntl, F_SETLK) of the byte with
 * its bit's number in the page's file: the kernel gives it back when the process ends,
 * whichever way, and needs no daemon for it. The opener clears bits that nobody locks.
 * TURN has no lock: it is cleared when `turn_beat_ns` is older than
 * GPUMUX_TURN_STALE_NS.
 *
 * Who writes what
 *   daemon    owner_bit, turn_beat_ns; its bit
 *   owners    their bits of want and closed
 *   guard     everything else; `forced`
 *   GPU       segments[].passed, segments[].entered
 *
 * Peer dead or hostile: an owner can close the gate for good, which the opener bounds;
 * a gated process can open its own gate, which harms nobody's memory. The daemon reads
 * each word once and believes none of them about another tenant.
 */
#ifndef GPUMUX_ABI_GATE_H_
#define GPUMUX_ABI_GATE_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define GPUMUX_GATE_MAGIC 0x54414747u /* "GGAT" */
#define GPUMUX_GATE_VERSION 1u

/* Bits of latency-critical processes are 0..61. */
#define GPUMUX_GATE_OWNERS 62u
#define GPUMUX_GATE_TURN (1ull << 63)
#define GPUMUX_GATE_NO_BIT 0xffffffffu
/* The daemon says that it lives at least four times as often. */
#define GPUMUX_TURN_STALE_NS 250000000ull

/* Streams of one process whose segments are told apart; those beyond only wait. */
#define GPUMUX_GATE_STREAMS 512u

/* gate_page.how, by the guard */
enum gpumux_gate_how {
  GPUMUX_GATE_NOT_YET = 0,
  GPUMUX_GATE_ON_GPU = 1, /* by waits in the streams */
  GPUMUX_GATE_ON_CPU = 2, /* before the launch: the driver refuses the waits */
};

/* Of one stream: `entered` segments began, `passed` ended. entered == passed: it has
 * nothing on the GPU, or waits at the gate. */
struct gpumux_gate_segments {
  uint64_t entered; /* by the GPU */
  uint64_t passed;  /* by the GPU */
};

struct gpumux_gate_page {
  uint32_t magic;
  uint32_t version;
  uint32_t reserved32;
  uint32_t owner_bit; /* of this process as an owner of others' gates; GPUMUX_GATE_NO_BIT: none */
  uint64_t reserved64[2];
  uint64_t turn_beat_ns; /* CLOCK_MONOTONIC; atomic */
  uint64_t reserved0[3];

  /* A cache line of its own: the GPU polls it. */
  uint64_t closed; /* atomic; 0: open */
  uint64_t want;   /* atomic; who wants it closed */
  uint64_t forced; /* atomic; 1: open although somebody wants it closed */
  uint64_t reserved1[5];

  uint32_t how;          /* atomic; enum gpumux_gate_how */
  uint32_t wants;        /* atomic; 1: the process has work of which it is not known that it has ended */
  uint64_t waits;        /* atomic count of waits put into streams */
  uint64_t forcings;     /* atomic count: opened for the minimum or the longest closure */
  uint64_t closed_ns;    /* atomic; time closed by latency-critical owners */
  uint64_t dead_bits;    /* atomic count: bits cleared whose owner was dead */
  uint64_t busy_periods; /* as an owner: times that it became busy; atomic */
  uint64_t busy_ns;      /* as an owner: in all; atomic */
  uint32_t streams;      /* atomic; segments in use */
  uint32_t untracked;    /* atomic; 1: streams beyond these */
  /* As an owner whose requests are bound by their launches: for how long after the first launch
   * the gates of others stay open now, 0: not at all; and requests in which they did. */
  uint64_t window_ns; /* atomic */
  uint64_t windows;   /* atomic */

  uint64_t reserved2[486];
  struct gpumux_gate_segments segments[GPUMUX_GATE_STREAMS];
};

/* One owner's steps. */
static inline void gpumux_gate_close(struct gpumux_gate_page* page, uint64_t bit) {
  __atomic_or_fetch(&page->want, bit, __ATOMIC_SEQ_CST);
  if (!__atomic_load_n(&page->forced, __ATOMIC_SEQ_CST) || bit == GPUMUX_GATE_TURN)
    __atomic_or_fetch(&page->closed, bit, __ATOMIC_SEQ_CST);
}

static inline void gpumux_gate_open(struct gpumux_gate_page* page, uint64_t bit) {
  __atomic_and_fetch(&page->want, ~bit, __ATOMIC_SEQ_CST);
  __atomic_and_fetch(&page->closed, ~bit, __ATOMIC_SEQ_CST);
}

/* The opener's steps. */
static inline void gpumux_gate_repair(struct gpumux_gate_page* page) {
  const uint64_t wanted = __atomic_load_n(&page->want, __ATOMIC_SEQ_CST);
  const uint64_t may = __atomic_load_n(&page->forced, __ATOMIC_SEQ_CST) ? GPUMUX_GATE_TURN : ~0ull;
  const uint64_t closed = __atomic_or_fetch(&page->closed, wanted & may, __ATOMIC_SEQ_CST);
  const uint64_t stale = closed & ~(__atomic_load_n(&page->want, __ATOMIC_SEQ_CST) & may);
  if (stale) __atomic_and_fetch(&page->closed, ~stale, __ATOMIC_SEQ_CST);
}

static inline void gpumux_gate_force(struct gpumux_gate_page* page) {
  __atomic_store_n(&page->forced, 1, __ATOMIC_SEQ_CST);
  __atomic_and_fetch(&page->closed, GPUMUX_GATE_TURN, __ATOMIC_SEQ_CST);
}

static inline void gpumux_gate_unforce(struct gpumux_gate_page* page) {
  __atomic_store_n(&page->forced, 0, __ATOMIC_SEQ_CST);
  gpumux_gate_repair(page);
}

#ifdef __cplusplus
}

static_assert(offsetof(gpumux_gate_page, owner_bit) == 12);
static_assert(offsetof(gpumux_gate_page, turn_beat_ns) == 32);
static_assert(offsetof(gpumux_gate_page, closed) == 64);
static_assert(offsetof(gpumux_gate_page, want) == 72);
static_assert(offsetof(gpumux_gate_page, forced) == 80);
static_assert(offsetof(gpumux_gate_page, how) == 128);
static_assert(offsetof(gpumux_gate_page, streams) == 184);
static_assert(offsetof(gpumux_gate_page, segments) == 4096);
static_assert(sizeof(gpumux_gate_page) == 4096 + 16 * GPUMUX_GATE_STREAMS);
#endif

#endif /* GPUMUX_ABI_GATE_H_ */

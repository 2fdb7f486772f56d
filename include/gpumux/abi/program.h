/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program and the guard in it say to each other: the types of
 * gpumux/gpumux.h, and the names under which the guard exports its functions.
 * A name that ends in _v1 keeps its meaning for ever; a change gets a new name.
 */
#ifndef GPUMUX_ABI_PROGRAM_H_
#define GPUMUX_ABI_PROGRAM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum gpumux_result {
  GPUMUX_SUCCESS = 0,
  GPUMUX_ERROR_NOT_A_TENANT = 1,   /* the program was not started by `gpumux run`, or no limit is in force */
  GPUMUX_ERROR_INVALID_VALUE = 2,  /* a pointer is null, a fraction is not within 0 to 1, a size is wrong */
  GPUMUX_ERROR_INVALID_DEVICE = 3, /* there is no such device, or the tenant has no promise on it */
  GPUMUX_ERROR_NOT_READY = 4,      /* which device is which is known after cuInit only */
  GPUMUX_ERROR_TIMEOUT = 5,        /* nothing was asked for within the time */
  GPUMUX_ERROR_CANCELLED = 6,      /* gpumux_reclaim_stop was called */
  GPUMUX_ERROR_BUSY = 7,           /* another thread waits already */
  GPUMUX_ERROR_NOT_IN_EFFECT = 8,  /* recorded, but nothing acts on it in this tenant */
};

/* Of one GPU, in bytes. `size` is set by the caller to sizeof(struct gpumux_memory):
 * a later guard fills no more than that. */
struct gpumux_memory {
  uint32_t size;
  uint32_t reserved;
  uint64_t total_bytes;      /* what the program is told as the GPU's total */
  uint64_t free_bytes;       /* what may be allocated now */
  uint64_t used_bytes;       /* of the whole tenant; of this process alone once it has set a fraction */
  uint64_t peak_bytes;       /* the most that this process had at once, its context included */
  uint64_t guaranteed_bytes; /* the tenant's, used or not; 0: no guarantee */
};

/* Others want memory that this process may only cache. */
struct gpumux_reclaim {
  uint32_t size;  /* sizeof(struct gpumux_reclaim), set by the caller */
  uint32_t id;    /* for gpumux_reclaim_done */
  int32_t device; /* CUDA's ordinal in this process; -1: not known */
  uint32_t reserved;
  uint64_t wanted_bytes; /* never more than the process holds */
};

#ifdef __cplusplus
}

static_assert(sizeof(gpumux_memory) == 48);
static_assert(offsetof(gpumux_memory, total_bytes) == 8);
static_assert(offsetof(gpumux_memory, free_bytes) == 16);
static_assert(offsetof(gpumux_memory, used_bytes) == 24);
static_assert(offsetof(gpumux_memory, peak_bytes) == 32);
static_assert(offsetof(gpumux_memory, guaranteed_bytes) == 40);
static_assert(sizeof(gpumux_reclaim) == 24);
static_assert(offsetof(gpumux_reclaim, id) == 4);
static_assert(offsetof(gpumux_reclaim, device) == 8);
static_assert(offsetof(gpumux_reclaim, wanted_bytes) == 16);
#endif

#endif /* GPUMUX_ABI_PROGRAM_H_ */

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpumux for programs that want to say or know more than they have to. Nothing
 * here is needed: a program that never heard of gpumux is served as well.
 *
 * Header only. The functions are looked up in the process when they are called
 * first: the guard has them in every program under `gpumux run`, whatever its
 * language. In a program without it each returns GPUMUX_ERROR_NOT_A_TENANT and
 * does nothing, so the same binary runs with and without gpumux. Before glibc
 * 2.34 link with -ldl.
 *
 * Threads: any function from any thread. A child of fork() starts anew: no
 * fraction, no listener. Sizes are bytes, devices are CUDA's ordinals as this
 * process sees them. Every function returns an enum gpumux_result; none of them
 * prints, raises a signal, or changes errno for good.
 *
 * docs/guide/python.md is about the same functions from Python.
 */
#ifndef GPUMUX_GPUMUX_H_
#define GPUMUX_GPUMUX_H_

#include <dlfcn.h>
#include <string.h>

#include "gpumux/abi/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Fills a function pointer with the guard's function in this process, or null without one. (RTLD_DEFAULT is
 * null, and a macro of _GNU_SOURCE alone. A weak symbol would be null for good in
 * an executable that is not position independent.) */
static inline void gpumux_guard_find(const char* name, void* function) {
  void* address = dlsym((void*)0, name);      /* NOLINT: RTLD_DEFAULT */
  memcpy(function, &address, sizeof address); /* C has no cast from one to the other */
}

/* Memory of `device` as this program is told it; see struct gpumux_memory. Works
 * before cuInit too if CUDA_VISIBLE_DEVICES is what `gpumux run` made it, else
 * GPUMUX_ERROR_NOT_READY. Asks the daemon: some ten microseconds. */
static inline int gpumux_memory_info(int device, struct gpumux_memory* memory) {
  int (*function)(int, struct gpumux_memory*);
  gpumux_guard_find("gpumux_memory_info_v1", &function);
  return function ? function(device, memory) : GPUMUX_ERROR_NOT_A_TENANT;
}

/* From now on this process gets no more than `fraction` (0 to 1; 1: no such limit)
 * of the tenant's limit on `device`, whatever framework allocates: beyond it an
 * allocation fails with CUDA_ERROR_OUT_OF_MEMORY, counted as refused by the
 * program's own part. Contexts and loaded code count. The process is told its
 * part as the GPU's total. May be called at any time; what the process has beyond
 * the part already stays, and nothing is added until it has less. Other processes
 * of the tenant are not concerned, and nothing is kept for this one. */
static inline int gpumux_set_memory_fraction(double fraction, int device) {
  int (*function)(double, int);
  gpumux_guard_find("gpumux_set_memory_fraction_v1", &function);
  return function ? function(fraction, device) : GPUMUX_ERROR_NOT_A_TENANT;
}

/* Blocks until memory is wanted that this process may only cache (GPUMUX_SUCCESS:
 * `wanted` says how much and where), `timeout_ms` are over (negative: never;
 * GPUMUX_ERROR_TIMEOUT), or gpumux_reclaim_stop is called (GPUMUX_ERROR_CANCELLED).
 * The first call makes the process one that is asked; a new daemon is told by
 * itself. One thread at a time (GPUMUX_ERROR_BUSY).
 *
 * Give back what can be spared, then call gpumux_reclaim_done, whether or not it
 * was enough: who waits is refused 3 s after the question, and a process is not
 * asked again before it has answered. It is asked when another tenant finds the GPU full
 * or waits for room, if its own tenant uses more than its guarantee; and when another
 * process of its own tenant finds the tenant's limit. Never while one of its own
 * allocations waits for the daemon, so the answer may take the allocator's locks. */
static inline int gpumux_reclaim_wait(struct gpumux_reclaim* wanted, int timeout_ms) {
  int (*function)(struct gpumux_reclaim*, int);
  gpumux_guard_find("gpumux_reclaim_wait_v1", &function);
  return function ? function(wanted, timeout_ms) : GPUMUX_ERROR_NOT_A_TENANT;
}

/* The answer to what gpumux_reclaim_wait said. Too late is no error. */
static inline int gpumux_reclaim_done(const struct gpumux_reclaim* wanted) {
  int (*function)(const struct gpumux_reclaim*);
  gpumux_guard_find("gpumux_reclaim_done_v1", &function);
  return function ? function(wanted) : GPUMUX_ERROR_NOT_A_TENANT;
}

/* The process is asked no more; the thread that waits, or the next that would, returns. */
static inline int gpumux_reclaim_stop(void) {
  int (*function)(void);
  gpumux_guard_find("gpumux_reclaim_stop_v1", &function);
  return function ? function() : GPUMUX_ERROR_NOT_A_TENANT;
}

/* What the process does now must not wait for others (`on` 1), or may again (0).
 * In a tenant of `gpumux run --priority latency` best-effort neighbours are held back
 * from here on, rather than from the first launch; without any work on the GPU for a
 * second it counts as taken back. GPUMUX_ERROR_NOT_IN_EFFECT: another tenant's; it is
 * recorded, and nothing acts on it. */
static inline int gpumux_latency_critical(int on) {
  int (*function)(int);
  gpumux_guard_find("gpumux_latency_critical_v1", &function);
  return function ? function(on) : GPUMUX_ERROR_NOT_A_TENANT;
}

/* One line for a person, never null. */
static inline const char* gpumux_result_text(int result) {
  switch (result) {
    case GPUMUX_SUCCESS:
      return "success";
    case GPUMUX_ERROR_NOT_A_TENANT:
      return "this program was not started by gpumux run, or its limits are not in force";
    case GPUMUX_ERROR_INVALID_VALUE:
      return "an argument is wrong";
    case GPUMUX_ERROR_INVALID_DEVICE:
      return "there is no such device, or nothing of it is promised to this tenant";
    case GPUMUX_ERROR_NOT_READY:
      return "which device is which is not known before CUDA is initialised";
    case GPUMUX_ERROR_TIMEOUT:
      return "nothing was asked for within the time";
    case GPUMUX_ERROR_CANCELLED:
      return "stopped";
    case GPUMUX_ERROR_BUSY:
      return "another thread waits already";
    case GPUMUX_ERROR_NOT_IN_EFFECT:
      return "recorded, but nothing acts on it: the tenant is not of priority latency";
    default:
      return "unknown result";
  }
}

#ifdef __cplusplus
}
#endif

#endif /* GPUMUX_GPUMUX_H_ */

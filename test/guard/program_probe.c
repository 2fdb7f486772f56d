/* SPDX-License-Identifier: Apache-2.0 */
/* A program in C that knows of gpumux (gpumux/gpumux.h), with and without a tenant. One
 * line a call: its name, the result, what it filled. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "gpumux/gpumux.h"

static void* Stop(void* result) {
  /* Before the other thread waits or while it does: it has to see it either way. */
  *(int*)result = gpumux_reclaim_stop();
  return NULL;
}

static void* Wait(void* result) {
  struct gpumux_reclaim wanted = {.size = sizeof wanted};
  do {
    *(int*)result = gpumux_reclaim_wait(&wanted, -1);
  } while (*(int*)result == GPUMUX_ERROR_BUSY); /* main looked at that moment */
  return NULL;
}

static int WaitsOnce(void) {
  struct gpumux_reclaim wanted = {.size = sizeof wanted};
  int first = -1;
  pthread_t one;
  if (pthread_create(&one, NULL, Wait, &first)) return 1;
  int second;
  do {
    second = gpumux_reclaim_wait(&wanted, 0);
  } while (second == GPUMUX_ERROR_TIMEOUT); /* the other thread was not there yet */
  printf("second %d\n", second);
  printf("stop %d\n", gpumux_reclaim_stop());
  pthread_join(one, NULL);
  printf("first %d\n", first);
  return 0;
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (argc > 1 && strcmp(argv[1], "one-place") == 0) return WaitsOnce();
  errno = 77;
  struct gpumux_memory memory = {.size = sizeof memory};
  int result = gpumux_memory_info(0, &memory);
  printf("memory %d %llu %llu\n", result, (unsigned long long)memory.total_bytes,
         (unsigned long long)memory.guaranteed_bytes);
  memory.size = 8;
  printf("short %d\n", gpumux_memory_info(0, &memory));
  printf("null %d\n", gpumux_memory_info(0, NULL));
  printf("device %d %d\n", gpumux_memory_info(-1, &memory) != GPUMUX_SUCCESS,
         gpumux_set_memory_fraction(0.5, -1));
  printf("fraction %d %d\n", gpumux_set_memory_fraction(0.5, 0), gpumux_set_memory_fraction(1.5, 0));
  memory.size = sizeof memory;
  result = gpumux_memory_info(0, &memory);
  printf("half %d %llu\n", result, (unsigned long long)memory.total_bytes);
  struct gpumux_reclaim wanted = {.size = sizeof wanted};
  printf("wait %d\n", gpumux_reclaim_wait(&wanted, 50));
  pthread_t other;
  int stop = -1;
  if (pthread_create(&other, NULL, Stop, &stop)) return 1;
  printf("stopped %d\n", gpumux_reclaim_wait(&wanted, 20000));
  pthread_join(other, NULL);
  printf("stop %d\n", stop);
  printf("again %d\n", gpumux_reclaim_wait(&wanted, 50)); /* one stop ends one wait */
  printf("done %d\n", gpumux_reclaim_done(&wanted));
  printf("latency %d %d\n", gpumux_latency_critical(1), gpumux_latency_critical(0));
  printf("errno %d\n", errno);
  printf("text %d\n", gpumux_result_text(result) != NULL && gpumux_result_text(-5) != NULL);
  return 0;
}

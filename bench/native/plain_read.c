// The plain read that decode speed is held against: every byte of anonymous memory in 4 KiB pages
// is loaded once, each thread its own contiguous part. Compiled by plain_read.py for this CPU.
#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { kMaxThreads = 256 };

struct part {
  const uint64_t* words;
  size_t n_words;
  uint64_t sum;
};

// Anonymous memory in 4 KiB pages, every page written; NULL if the system refuses.
uint64_t* plain_read_new(size_t n_bytes) {
  void* memory =
      mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return NULL;
  if (madvise(memory, n_bytes, MADV_NOHUGEPAGE) != 0) return NULL;
  memset(memory, 1, n_bytes);
  return memory;
}

// The compiler turns this sum into full-width loads and adds; the adds are far from the limit.
static void* read_part(void* argument) {
  struct part* part = argument;
  uint64_t sum = 0;
  for (size_t i = 0; i < part->n_words; ++i) sum += part->words[i];
  part->sum = sum;
  return NULL;
}

// Seconds for one pass over `memory` by `n_threads`, the starting of threads included;
// -1 if a thread cannot start. `sum` keeps the loads alive.
double plain_read(const uint64_t* memory, size_t n_bytes, size_t n_threads, uint64_t* sum) {
  struct part parts[kMaxThreads];
  pthread_t threads[kMaxThreads];
  if (n_threads == 0 || n_threads > kMaxThreads) return -1;
  const size_t n_words = n_bytes / sizeof *memory;

  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  for (size_t i = 0; i < n_threads; ++i) {
    const size_t first = n_words * i / n_threads;
    parts[i] = (struct part){memory + first, n_words * (i + 1) / n_threads - first, 0};
    if (i > 0 && pthread_create(&threads[i], NULL, read_part, &parts[i]) != 0) return -1;
  }
  read_part(&parts[0]);
  *sum = parts[0].sum;
  for (size_t i = 1; i < n_threads; ++i) {
    pthread_join(threads[i], NULL);
    *sum += parts[i].sum;
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  return (double)(end.tv_sec - start.tv_sec) + 1e-9 * (double)(end.tv_nsec - start.tv_nsec);
}

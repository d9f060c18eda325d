#include "core/threads.h"

#include <sched.h>

#include <cstdio>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/guard.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace wkvm {
namespace {

// Long enough to bridge the serial work between two regions of one forward, short enough that
// an idle engine costs nothing: some 20 to 50 microseconds.
constexpr int kSpins = 2000;

inline void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__x86_64__)
constexpr uint64_t kContractEnvironment = 0x1F80;  // MXCSR: nearest, no FTZ, no DAZ, all masked
uint64_t read_environment() { return _mm_getcsr(); }
void write_environment(uint64_t value) { _mm_setcsr(static_cast<unsigned>(value)); }
#elif defined(__aarch64__)
constexpr uint64_t kContractEnvironment = 0;  // FPCR: nearest, no FZ, no traps
uint64_t read_environment() {
  uint64_t value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void write_environment(uint64_t value) { asm volatile("msr fpcr, %0" ::"r"(value)); }
#else
#error "the floating-point environment of this processor is not known to wkvm"
#endif

// "max 100000" or "50000 100000" -> cores, rounded up; 0 if there is no limit.
uint32_t cgroup_quota_cores() {
  long long quota = 0;
  long long period = 0;
  if (FILE* file = std::fopen("/sys/fs/cgroup/cpu.max", "r")) {
    const int fields = std::fscanf(file, "%lld %lld", &quota, &period);
    std::fclose(file);
    if (fields != 2) quota = 0;
  } else if (FILE* v1 = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r")) {
    if (std::fscanf(v1, "%lld", &quota) != 1) quota = 0;
    std::fclose(v1);
    if (FILE* p = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r")) {
      if (std::fscanf(p, "%lld", &period) != 1) period = 0;
      std::fclose(p);
    }
  }
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<uint32_t>((quota + period - 1) / period);
}

// An integer file of one CPU's topology, or `otherwise` where the system has none.
int topology(int cpu, const char* leaf, int otherwise) {
  const std::string path =
      "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + leaf;
  FILE* file = std::fopen(path.c_str(), "r");
  if (!file) return otherwise;
  int value = otherwise;
  if (std::fscanf(file, "%d", &value) != 1) value = otherwise;
  std::fclose(file);
  return value;
}

}  // namespace

FloatEnvironment::FloatEnvironment() : saved_(read_environment()) {
  write_environment(kContractEnvironment);
}

FloatEnvironment::~FloatEnvironment() { write_environment(saved_); }

ThreadPool::ThreadPool(size_t n_threads) {
  if (n_threads < 1 || n_threads > 1024) {
    fail(WKVM_INVALID_ARGUMENT, "threads: %zu is not between 1 and 1024", n_threads);
  }
  workers_.reserve(n_threads - 1);
  try {
    for (size_t thread = 1; thread < n_threads; ++thread) {
      workers_.emplace_back([this, thread] { work(thread); });
    }
  } catch (...) {
    stop_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_region(size_t n_chunks, Call call, void* context) {
  const uint64_t region = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  call_.store(call, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  n_done_.store(0, std::memory_order_relaxed);
  ticket_.store(region << 32 | uint64_t{n_chunks} << 16, std::memory_order_release);
  // Sequentially consistent with a worker's n_sleeping_ and its wait on wake_: either it sees the
  // new count and does not sleep, or this sees it sleeping and wakes it.
  wake_.fetch_add(1);
  if (n_sleeping_.load() != 0) wake_.notify_all();
  take_chunks(0);
  while (n_done_.load(std::memory_order_acquire) != n_chunks) {
    for (int spin = 0; spin < kSpins; ++spin) {
      if (n_done_.load(std::memory_order_acquire) == n_chunks) return;
      pause_briefly();
    }
    sched_yield();  // a worker holds a chunk and not a core: give it this one
  }
}

void ThreadPool::take_chunks(size_t thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  for (;;) {
    const size_t chunk = ticket & 0xFFFF;
    if (chunk >= ((ticket >> 16) & 0xFFFF)) return;
    const Call call = call_.load(std::memory_order_relaxed);
    void* context = context_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    call(context, chunk, thread);
    n_done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

void ThreadPool::work(size_t thread) {
  const FloatEnvironment environment;
  uint32_t seen = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    uint32_t now = wake_.load(std::memory_order_acquire);
    for (int spin = 0; now == seen && spin < kSpins; ++spin) {
      pause_briefly();
      now = wake_.load(std::memory_order_acquire);
    }
    if (now == seen) {
      n_sleeping_.fetch_add(1);
      wake_.wait(seen);
      n_sleeping_.fetch_sub(1);
      continue;
    }
    seen = now;
    take_chunks(thread);
  }
}

uint32_t default_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::pair<int, int>> cores;  // (package, core): hyperthreads of one core count once
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    cores.emplace(topology(cpu, "physical_package_id", 0), topology(cpu, "core_id", cpu));
  }
  uint32_t n = static_cast<uint32_t>(cores.size());
  if (const uint32_t quota = cgroup_quota_cores(); quota != 0 && quota < n) n = quota;
  return n < 1 ? 1 : n;
}

}  // namespace wkvm

wkvm_status wkvm_default_threads(uint32_t* out) {
  return wkvm::guard([&] {
    wkvm::require(out, "wkvm_default_threads", "out");
    *out = wkvm::default_threads();
  });
}

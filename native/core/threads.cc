#include "core/threads.h"

#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>
#include <system_error>

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

// The first line of a file; "" if there is none.
std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// This process's cgroup below the mount point, of version 2 or of version 1's cpu controller.
std::string own_cgroup(const std::string& root, bool is_v2) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "0::/a/b" or "4:cpu,cpuacct:/a/b"
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    std::string controllers(1, ',');
    controllers.append(line, first + 1, second - first - 1).push_back(',');
    const bool matches =
        is_v2 ? controllers == ",," : controllers.find(",cpu,") != std::string::npos;
    if (matches) return line.substr(second + 1);
  }
  return "/";
}

// Cores, rounded up, of one cgroup's quota; 0 if it has none.
uint32_t quota_cores(const std::string& folder, bool is_v2) {
  long long quota = 0;
  long long period = 0;
  if (is_v2) {  // "max 100000" or "50000 100000"
    if (std::sscanf(first_line(folder + "/cpu.max").c_str(), "%lld %lld", &quota, &period) != 2) {
      return 0;
    }
  } else {
    quota = std::atoll(first_line(folder + "/cpu.cfs_quota_us").c_str());
    period = std::atoll(first_line(folder + "/cpu.cfs_period_us").c_str());
  }
  if (quota <= 0 || period <= 0) return 0;
  return static_cast<uint32_t>((quota + period - 1) / period);
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
  } catch (const std::system_error& error) {
    const size_t n_started = workers_.size() + 1;
    stop();
    fail(WKVM_OUT_OF_MEMORY, "thread %zu of %zu cannot start: %s; ask for fewer threads",
         n_started + 1, n_threads, error.what());
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() {
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

uint32_t cgroup_cores(const std::string& root) {
  const bool is_v2 = std::ifstream(root + "/sys/fs/cgroup/cgroup.controllers").good();
  const std::string mount = root + (is_v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu");
  std::string group = own_cgroup(root, is_v2);
  uint32_t least = 0;
  for (;;) {  // from the process's own group up to the root: the smallest quota holds
    const uint32_t cores = quota_cores(mount + group, is_v2);
    if (cores != 0 && (least == 0 || cores < least)) least = cores;
    const size_t slash = group.rfind('/');
    if (group.empty() || slash == std::string::npos) return least;
    group.resize(slash);
  }
}

uint32_t default_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
  std::set<std::string> cores;  // by the list of their CPUs: hyperthreads of one core count once
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    const std::string folder = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
    std::string core = first_line(folder + "core_cpus_list");
    if (core.empty()) core = first_line(folder + "thread_siblings_list");
    cores.insert(core.empty() ? std::to_string(cpu) : core);
  }
  uint32_t n = static_cast<uint32_t>(cores.size());
  if (const uint32_t quota = cgroup_cores(""); quota != 0 && quota < n) n = quota;
  return n < 1 ? 1 : n;
}

}  // namespace wkvm

wkvm_status wkvm_default_threads(uint32_t* out) {
  return wkvm::guard([&] {
    wkvm::require(out, "wkvm_default_threads", "out");
    *out = wkvm::default_threads();
  });
}

// A pool for parallel regions that last microseconds.
//
// The thread that calls run() works too, and takes every chunk that no worker has claimed. So a
// region waits only for chunks that are really running: a worker that sleeps, or whose core some
// other process has taken, delays nothing that it has not begun. Workers spin briefly between
// regions, then sleep in the kernel.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace wkvm {

// The floating-point environment of the contract (numerics.md): round to nearest, subnormals
// kept, exceptions masked. The constructor saves the thread's own and sets it; the destructor
// restores it.
class FloatEnvironment {
 public:
  FloatEnvironment();
  ~FloatEnvironment();
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

 private:
  uint64_t saved_;
};

class ThreadPool {
 public:
  explicit ThreadPool(size_t n_threads);  // the caller of run() is one of them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t size() const { return workers_.size() + 1; }

  // Calls body(chunk, thread) once for each chunk in [0, n_chunks), thread in [0, size()), and
  // returns when all have returned. One region at a time; body must not throw. n_chunks < 2^16.
  template <class Body>
  void run(size_t n_chunks, Body&& body) {
    if (n_chunks == 0) return;
    if (workers_.empty() || n_chunks == 1) {
      for (size_t chunk = 0; chunk < n_chunks; ++chunk) body(chunk, size_t{0});
      return;
    }
    run_region(
        n_chunks,
        [](void* context, size_t chunk, size_t thread) {
          (*static_cast<Body*>(context))(chunk, thread);
        },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  using Call = void (*)(void* context, size_t chunk, size_t thread);

  void run_region(size_t n_chunks, Call call, void* context);
  void work(size_t thread);
  void stop();
  // Claims and runs chunks of the open region until none is left.
  void take_chunks(size_t thread);

  std::vector<std::thread> workers_;
  // The open region. ticket_ = region number << 32 | n_chunks << 16 | next chunk. A chunk is
  // claimed by compare-and-swap on all three, so a late worker cannot claim from a region other
  // than the one it read, and call_ and context_, which change only between regions, belong to its
  // claim.
  std::atomic<Call> call_{nullptr};
  std::atomic<void*> context_{nullptr};
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> n_done_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};  // counts regions; workers sleep on it
  std::atomic<uint32_t> n_sleeping_{0};
  std::atomic<bool> stop_{false};
};

// The smallest CPU quota on this process's path of cgroups, in cores, rounded up; 0: none. `root`
// is put before every path, for tests.
uint32_t cgroup_cores(const std::string& root);

// Physical cores that this process may use: affinity and cgroup quota respected, at least 1.
uint32_t default_threads();

}  // namespace wkvm

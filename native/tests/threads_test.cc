// The pool runs every chunk exactly once, however late its workers are, and leaves the caller's
// floating-point environment alone.
#include "core/threads.h"

#include <cfenv>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <vector>

#include "check.h"

namespace {

double cpu_seconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void every_chunk_runs_once() {
  for (size_t n_threads : {1, 2, 3, 8}) {
    wkvm::ThreadPool pool(n_threads);
    for (size_t region = 0; region < 3000; ++region) {
      const size_t n = region % 37;
      std::vector<int> runs(n, 0);
      pool.run(n, [&](size_t chunk, size_t thread) {
        CHECK(thread < n_threads);
        ++runs[chunk];
      });
      for (int count : runs) CHECK(count == 1);
      // Now and then long enough for the workers to fall asleep.
      if (region % 500 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
}

void what_the_workers_wrote_is_seen_by_the_caller() {
  wkvm::ThreadPool pool(4);
  std::vector<uint64_t> values(1000, 0);
  for (uint64_t round = 1; round <= 500; ++round) {
    pool.run(values.size(), [&](size_t i, size_t) { values[i] += round * i; });
  }
  for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == i * 500 * 501 / 2);
}

void an_idle_pool_uses_no_processor() {
  wkvm::ThreadPool pool(4);
  pool.run(8, [](size_t, size_t) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const double before = cpu_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  // Three spinning workers would use 1.2 s; sleeping ones, next to nothing.
  CHECK(cpu_seconds() - before < 0.1);
}

// By arithmetic: fegetround() may look at a control word that vector code does not use.
float third() {
  volatile float one = 1.0f;
  volatile float three = 3.0f;
  return one / three;
}

void the_callers_float_environment_is_restored() {
  const float nearest = third();
  std::fesetround(FE_DOWNWARD);
  const float down = third();
  CHECK(down < nearest);
  {
    const wkvm::FloatEnvironment environment;
    CHECK(third() == nearest);
  }
  CHECK(third() == down);
  std::fesetround(FE_TONEAREST);
}

void write_file(const std::filesystem::path& path, const char* text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

void the_smallest_quota_on_the_path_of_cgroups_holds() {
  char name[] = "/tmp/wkvm_cgroup_XXXXXX";
  CHECK(mkdtemp(name));
  const std::filesystem::path root = name;
  CHECK(wkvm::cgroup_cores(root.string()) == 0);  // no cgroups at all
  // Version 2: the parent's quota is the smaller one; the process's own has none.
  write_file(root / "proc/self/cgroup", "0::/slice/unit\n");
  write_file(root / "sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  write_file(root / "sys/fs/cgroup/slice/unit/cpu.max", "max 100000\n");
  CHECK(wkvm::cgroup_cores(root.string()) == 0);
  write_file(root / "sys/fs/cgroup/slice/cpu.max", "150000 100000\n");
  CHECK(wkvm::cgroup_cores(root.string()) == 2);
  write_file(root / "sys/fs/cgroup/slice/unit/cpu.max", "50000 100000\n");
  CHECK(wkvm::cgroup_cores(root.string()) == 1);
  // Version 1.
  std::filesystem::remove_all(root);
  write_file(root / "proc/self/cgroup", "5:memory:/other\n4:cpu,cpuacct:/box\n");
  write_file(root / "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us", "300000\n");
  write_file(root / "sys/fs/cgroup/cpu/box/cpu.cfs_period_us", "100000\n");
  CHECK(wkvm::cgroup_cores(root.string()) == 3);
  std::filesystem::remove_all(root);
}

}  // namespace

int main() {
  the_smallest_quota_on_the_path_of_cgroups_holds();
  every_chunk_runs_once();
  what_the_workers_wrote_is_seen_by_the_caller();
  an_idle_pool_uses_no_processor();
  the_callers_float_environment_is_restored();
  CHECK(wkvm::default_threads() >= 1);
  return 0;
}

// wkvm_forward allocates nothing after an engine's first step: malloc itself is counted.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>

#include "check.h"
#include "random_model.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define WKVM_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define WKVM_SANITIZED
#endif
#endif

#ifdef WKVM_SANITIZED

int main() {
  std::puts("not run: a sanitizer owns malloc in this build");
  return 0;
}

#else

namespace {
std::atomic<long> n_allocations{0};
}

// glibc's own entry points, under the names that an interposed malloc may call.
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t n) {
  ++n_allocations;
  return __libc_malloc(n);
}
void* calloc(size_t n, size_t size) {
  ++n_allocations;
  return __libc_calloc(n, size);
}
void* realloc(void* p, size_t n) {
  ++n_allocations;
  return __libc_realloc(p, n);
}
void* aligned_alloc(size_t alignment, size_t n) {
  ++n_allocations;
  return __libc_memalign(alignment, n);
}
void* memalign(size_t alignment, size_t n) {
  ++n_allocations;
  return __libc_memalign(alignment, n);
}
int posix_memalign(void** out, size_t alignment, size_t n) {
  ++n_allocations;
  *out = __libc_memalign(alignment, n);
  return *out ? 0 : ENOMEM;
}
}

int main() {
  CHECK((n_allocations = 0, std::free(std::malloc(1)), n_allocations > 0));
  void* aligned = nullptr;
  CHECK((n_allocations = 0, ::posix_memalign(&aligned, 64, 1) == 0 && n_allocations > 0));
  std::free(aligned);
  const std::vector<RandomTensor> tensors = random_checkpoint(4, 2, 107);
  for (uint32_t dtype : {WKVM_BF16, WKVM_I8}) {
    wkvm_model* model = build_model(tensors, dtype);
    for (uint32_t policy : {WKVM_FULL, WKVM_MOBA, WKVM_WINDOW, WKVM_MEMORY}) {
      wkvm_engine_options options = small_options(policy, 3, 2);
      options.memory_keep_tokens = 2;  // of the longest row's 3
      wkvm_engine* engine = nullptr;
      OK(wkvm_engine_new(model, &options, &engine));
      std::vector<wkvm_row> rows;
      const uint32_t tokens[] = {3, 1, 4, 1, 5, 9, 2, 6};
      for (size_t i = 0; i < 3; ++i) {
        uint32_t slot = 0;
        OK(wkvm_slot_acquire(engine, &slot));
        rows.push_back({slot, WKVM_LOGITS_LAST, tokens + i, 1 + i});
      }
      std::vector<float> logits(3 * 107);
      OK(wkvm_forward(engine, rows.data(), 3, logits.data(), logits.size()));
      n_allocations = 0;
      for (int step = 0; step < 100; ++step) {
        OK(wkvm_forward(engine, rows.data(), 3, logits.data(), logits.size()));
        OK(wkvm_forward(engine, rows.data(), 1, logits.data(), 107));
      }
      if (n_allocations != 0) std::fprintf(stderr, "%ld allocations\n", n_allocations.load());
      CHECK(n_allocations == 0);
      OK(wkvm_engine_free(engine));
    }
    OK(wkvm_model_free(model));
  }
  return 0;
}

#endif

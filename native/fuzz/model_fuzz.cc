// A model file from a stranger, converted or not: a typed error, or a model that describes itself
// and runs. The corpus is made by model_corpus.py.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "wkvm.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void run(wkvm_model* model) {
  wkvm_model_info info{};
  info.struct_size = sizeof info;
  require(wkvm_model_get_info(model, &info) == WKVM_OK);
  size_t n_tensors = 0;
  require(wkvm_model_tensor_count(model, &n_tensors) == WKVM_OK && n_tensors > 0);
  volatile uint8_t sink = 0;
  for (size_t i = 0; i < n_tensors; ++i) {
    wkvm_tensor tensor{};
    require(wkvm_model_tensor(model, i, &tensor) == WKVM_OK && tensor.name[0] != '\0');
    for (uint64_t at = 0; at < tensor.n_bytes; ++at) {
      sink = static_cast<uint8_t>(sink ^ static_cast<const uint8_t*>(tensor.data)[at]);
    }
  }
  wkvm_engine_options options{};
  options.struct_size = sizeof options;
  options.n_slots = 1;
  options.n_threads = 1;
  options.kv_dtype = WKVM_F16;
  options.max_cache_len = 8;
  wkvm_engine* engine = nullptr;
  require(wkvm_engine_new(model, &options, &engine) == WKVM_OK);
  uint32_t slot = 0;
  require(wkvm_slot_acquire(engine, &slot) == WKVM_OK);
  const uint32_t tokens[] = {0, static_cast<uint32_t>(info.n_vocab - 1), 0};
  std::vector<float> logits(3 * info.n_vocab);
  const wkvm_row row{slot, WKVM_LOGITS_ALL, tokens, 3};
  const wkvm_status status = wkvm_forward(engine, &row, 1, logits.data(), logits.size());
  require(status == WKVM_OK || status == WKVM_NUMERIC);
  wkvm_engine_free(engine);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = memfd_create("model", MFD_CLOEXEC);
  require(fd >= 0);
  require(write(fd, data, size) == static_cast<ssize_t>(size));
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  for (const uint32_t dtype : {WKVM_DTYPE_AUTO, static_cast<uint32_t>(WKVM_I8)}) {
    const wkvm_model_options options{sizeof options, dtype};
    wkvm_model* model = nullptr;
    const wkvm_status status = wkvm_model_open(path.c_str(), &options, &model);
    require(status != WKVM_INTERNAL && status != WKVM_IO);
    if (status != WKVM_OK) continue;
    run(model);
    wkvm_model_free(model);
  }
  close(fd);
  return 0;
}

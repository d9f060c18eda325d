// An exported sampler state from a stranger: refused with a typed error, or taken exactly and then
// able to sample.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/isa.h"
#include "core/sampler.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint32_t kVocab = 24;
  static wkvm::Sampler sampler(wkvm::kernels_for("scalar"), kVocab, {}, 0);
  try {
    sampler.import_state(data, size);
  } catch (const wkvm::Error&) {
    return 0;
  }
  std::vector<uint8_t> state(sampler.export_size());
  sampler.export_state(state.data());
  if (state.size() != size || std::memcmp(state.data(), data, size) != 0) std::abort();
  std::vector<float> logits(kVocab);
  for (uint32_t id = 0; id < kVocab; ++id) logits[id] = static_cast<float>(id % 7) - 3;
  try {
    sampler.accept(sampler.sample(logits.data()));
  } catch (const wkvm::Error& error) {
    if (error.status() == WKVM_INTERNAL) std::abort();
  }
  return 0;
}

// A slot's state from a stranger: refused with a typed error and the slot as it was, or taken and
// then able to run. The input edits the state that a real slot exports:
//
//   u8 policy and KV type | u8 tokens seen | u64 tokens claimed, 0: those seen | edits...
//   an edit: u8 tensor | u8 what | u64 value
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/random_model.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool is_empty() const { return size_ == 0; }
  template <class T>
  T take() {
    T value{};
    const size_t n = std::min(sizeof value, size_);
    std::memcpy(&value, data_, n);
    data_ += n;
    size_ -= n;
    return value;
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

struct State {
  std::vector<wkvm_tensor> tensors;
  std::vector<std::vector<char>> data;
};

State export_state(wkvm_engine* engine, uint32_t slot) {
  State state;
  size_t n = 0;
  OK(wkvm_slot_tensor_count(engine, slot, &n));
  state.tensors.resize(n);
  state.data.resize(n);
  for (size_t i = 0; i < n; ++i) {
    wkvm_tensor& tensor = state.tensors[i];
    OK(wkvm_slot_tensor(engine, slot, i, &tensor));
    state.data[i].resize(tensor.n_bytes);
    OK(wkvm_slot_export(engine, slot, i, state.data[i].data(), tensor.n_bytes));
    tensor.data = state.data[i].data();
  }
  return state;
}

// Makes the data as long as the tensor says, as far as that can be, and of the same bytes.
void resize(wkvm_tensor& tensor, std::vector<char>& data, uint64_t n_bytes) {
  constexpr uint64_t kMost = 1 << 20;
  tensor.n_bytes = std::min(n_bytes, kMost);
  std::vector<char> resized(tensor.n_bytes);  // no spare capacity that would hide an overrun
  std::copy_n(data.begin(), std::min(data.size(), resized.size()), resized.begin());
  data = std::move(resized);
  tensor.data = data.data();
}

void edit(State& state, Bytes& input) {
  const size_t index = input.take<uint8_t>() % state.tensors.size();
  const auto what = input.take<uint8_t>();
  const auto value = input.take<uint64_t>();
  wkvm_tensor& tensor = state.tensors[index];
  std::vector<char>& data = state.data[index];
  switch (what % 8) {
    case 0:
      tensor.name = state.tensors[value % state.tensors.size()].name;
      break;
    case 1:
      tensor.dtype = static_cast<uint32_t>(value);
      break;
    case 2:
      tensor.n_dims = static_cast<uint32_t>(value % (WKVM_MAX_DIMS + 1));
      break;
    case 3:
      tensor.shape[what / 8 % WKVM_MAX_DIMS] = value;
      break;
    case 4:  // rows of a cache, with the bytes that they need
      if (tensor.n_dims != 2 || tensor.shape[0] == 0) break;
      resize(tensor, data, tensor.n_bytes / tensor.shape[0] * (value % 128));
      tensor.shape[0] = value % 128;
      break;
    case 5:
      resize(tensor, data, value);
      break;
    case 6:  // an odd address
      if (tensor.n_bytes == 0) break;
      tensor.data = static_cast<const char*>(tensor.data) + 1;
      tensor.n_bytes -= 1;
      break;
    case 7:
      if (data.size() >= 4) std::memcpy(data.data() + value % (data.size() - 3), &value, 4);
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  constexpr uint32_t kVocab = 16;
  static wkvm_model* const model = build_model(random_checkpoint(1, 1, kVocab), WKVM_F32);
  Bytes input(bytes, size);
  const auto kind = input.take<uint8_t>();
  wkvm_engine_options options = small_options(kind % 4, 2, 1);
  options.kv_dtype = kind & 4 ? WKVM_F32 : WKVM_F16;
  options.max_cache_len = 64;
  wkvm_engine* engine = nullptr;
  OK(wkvm_engine_new(model, &options, &engine));
  uint32_t from = 0, to = 0;
  OK(wkvm_slot_acquire(engine, &from));
  OK(wkvm_slot_acquire(engine, &to));
  std::vector<uint32_t> tokens(1 + input.take<uint8_t>() % 48);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<uint32_t>(i * 5 % kVocab);
  const wkvm_row prefill{from, WKVM_LOGITS_NONE, tokens.data(), tokens.size()};
  OK(wkvm_forward(engine, &prefill, 1, nullptr, 0));

  const auto claimed = input.take<uint64_t>();
  State state = export_state(engine, from);
  while (!input.is_empty()) edit(state, input);
  const State before = export_state(engine, to);
  const wkvm_status status = wkvm_slot_import(engine, to, claimed ? claimed : tokens.size(),
                                              state.tensors.data(), state.tensors.size());
  if (status == WKVM_OK) {
    const uint32_t some[] = {3, 1, 2};
    std::vector<float> logits(3 * kVocab);
    const wkvm_row row{to, WKVM_LOGITS_ALL, some, 3};
    const wkvm_status ran = wkvm_forward(engine, &row, 1, logits.data(), logits.size());
    require(ran == WKVM_OK || ran == WKVM_NUMERIC || ran == WKVM_CACHE_FULL);
  } else {
    require(status == WKVM_STATE_MISMATCH || status == WKVM_CACHE_FULL ||
            status == WKVM_INVALID_ARGUMENT);
    require(export_state(engine, to).data == before.data);
  }
  OK(wkvm_engine_free(engine));
  return 0;
}

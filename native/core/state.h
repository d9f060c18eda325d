// Slots: where the states of running sessions live.
//
// One slot is one stretch of address space with a fixed layout; memory is taken as it is touched.
//
//   recurrent part, float32                              attention block i
//   +------------------------------------------------+   +----------------------------------+
//   | RWKV block i: att_shift [D] | ffn_shift [D] |  |   | K tiles [cap/16][D][16]          |
//   |               wkv [H][key][value]              |   | V rows  [cap][D]                 |
//   | attention block i: ffn_shift [D]               |   | moba: mean tiles [n/16][D][16],  |
//   | x_last [D]                                     |   |       open block's sum [D]       |
//   +------------------------------------------------+   | memory: k, v of the RWKV block   |
//                                                        |       before, [cap][D] each      |
//                                                        +----------------------------------+
//
// A position's index in the cache: itself (full, moba); sinks, then a ring (window); its place
// in the last prefill (memory). The ring is longer than the window by one pass of the forward, so
// that a pass may store all its keys before its first query looks back.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/model.h"
#include "kernels/kernels.h"
#include "wkvm.h"

namespace wkvm {

constexpr size_t kPassTokens = 256;  // tokens that one pass through the blocks carries at most

enum class Policy : uint32_t {
  kFull = WKVM_FULL,
  kMoba = WKVM_MOBA,
  kWindow = WKVM_WINDOW,
  kMemory = WKVM_MEMORY
};

struct StateOptions {
  size_t n_slots = 1;
  DType kv_type = DType::kF16;
  Policy policy = Policy::kFull;
  size_t max_cache_len = 65536;
  size_t moba_chunk_size = 2048;
  size_t moba_topk = 3;
  size_t window_sinks = 4;
  size_t window_size = 2048;
  size_t memory_keep_tokens = 128;
  double memory_keep_ratio = 0;  // 0: memory_keep_tokens
};

class Slots {
 public:
  Slots(std::shared_ptr<const Model> model, const StateOptions& options, const Kernels& kernels);
  ~Slots();
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  struct Slot {
    bool in_use = false;
    bool is_spoilt = false;
    uint64_t n_tokens = 0;  // tokens that the state has seen
    uint64_t n_kept = 0;    // memory: rows of the cache
  };

  const StateOptions& options() const { return options_; }
  size_t bytes_per_slot() const { return slot_bytes_; }
  size_t n_used() const;

  uint32_t acquire();
  void release(uint32_t slot);
  void reset(uint32_t slot);
  void copy(uint32_t from, uint32_t to);
  // The slot, if it is in use; throws WKVM_INVALID_ARGUMENT otherwise.
  Slot& used(uint32_t slot);
  const Slot& used(uint32_t slot) const { return const_cast<Slots*>(this)->used(slot); }
  // The same, and WKVM_NUMERIC if a numeric error has spoilt it.
  const Slot& sound(uint32_t slot) const;

  float* att_shift(uint32_t slot, size_t block) { return recurrent(slot, block * rwkv_floats_); }
  float* ffn_shift(uint32_t slot, size_t block) { return att_shift(slot, block) + d_; }
  float* wkv(uint32_t slot, size_t block) { return att_shift(slot, block) + 2 * d_; }
  float* attention_ffn_shift(uint32_t slot, size_t block) {
    return recurrent(slot, n_rwkv_ * rwkv_floats_ + block * d_);
  }
  float* x_last(uint32_t slot) { return recurrent(slot, n_rwkv_ * rwkv_floats_ + n_attn_ * d_); }

  // Whether `n` more tokens fit the slot's cache.
  bool fits(uint32_t slot, size_t n) const;
  // The cache index of a position (not for memory, whose indices count from the prefill's start).
  size_t cache_index(uint64_t position) const;
  // window: one past the last index of the ring.
  size_t ring_end() const { return options_.window_sinks + ring_; }
  // Stores one token's key and value at a cache index. False if one does not fit the KV type.
  bool store(uint32_t slot, size_t block, size_t index, const float* k, const float* v);
  // Adds the key at `position` to its block's running sum; closes the block at its last token.
  void add_to_block_mean(uint32_t slot, size_t block, uint64_t position);
  KvHead kv_head(uint32_t slot, size_t block, size_t head) const;
  // The means of complete blocks as keys of one head.
  KvHead mean_head(uint32_t slot, size_t block, size_t head) const;

  // memory: the k and v that the RWKV block before attention block `block` used at `index` of the
  // running prefill.
  void store_trail(uint32_t slot, size_t block, size_t index, const float* k, const float* v);
  // memory: ends a prefill of n tokens: keeps the most surprising rows of every attention block.
  void keep_surprising(uint32_t slot, size_t n);

  // A slot's state as named tensors (wkvm_slot_tensor).
  size_t n_tensors() const { return tensor_names_.size(); }
  wkvm_tensor describe(uint32_t slot, size_t index) const;
  void export_tensor(uint32_t slot, size_t index, void* data, uint64_t n_bytes) const;
  void import_tensors(uint32_t slot, uint64_t n_tokens, const wkvm_tensor* tensors, size_t n);

 private:
  enum class Kind { kAttShift, kWkv, kFfnShift, kKeys, kValues, kAttentionFfnShift, kXLast };
  struct TensorRef {
    Kind kind;
    size_t block;
  };

  char* base(uint32_t slot) const { return memory_ + slot * slot_bytes_; }
  float* recurrent(uint32_t slot, size_t offset) const {
    return reinterpret_cast<float*>(base(slot)) + offset;
  }
  char* kv(uint32_t slot, size_t block) const {
    return base(slot) + recurrent_bytes_ + block * kv_bytes_;
  }
  char* values(uint32_t slot, size_t block) const {
    return kv(slot, block) + capacity_ * d_ * kv_element_;
  }
  float* means(uint32_t slot, size_t block) const {
    return reinterpret_cast<float*>(kv(slot, block) + 2 * capacity_ * d_ * kv_element_);
  }
  float* open_sum(uint32_t slot, size_t block) const {
    return means(slot, block) + mean_tiles_ * kLanes * d_;
  }
  float* trail_k(uint32_t slot, size_t block) const { return means(slot, block); }
  float* trail_v(uint32_t slot, size_t block) const { return means(slot, block) + capacity_ * d_; }
  size_t cache_rows(const Slot& slot) const;  // indices in use, as they lie
  size_t exported_rows(uint64_t n_tokens, uint64_t n_kept) const;
  size_t exported_index(uint64_t n_tokens, size_t row) const;  // cache index of an exported row
  wkvm_tensor describe_for(uint64_t n_tokens, uint64_t n_kept, size_t index) const;
  void copy_key(uint32_t slot, size_t block, size_t from, size_t to);

  std::shared_ptr<const Model> model_;
  StateOptions options_;
  const Kernels& kernels_;
  size_t d_, n_rwkv_, n_attn_;
  size_t rwkv_floats_;      // per RWKV block
  size_t recurrent_bytes_;  // per slot
  size_t kv_element_;
  size_t capacity_;    // cache indices per attention block, a multiple of 16
  size_t ring_;        // window: length of the ring
  size_t mean_tiles_;  // moba
  size_t kv_bytes_;    // per attention block
  size_t slot_bytes_;
  char* memory_ = nullptr;
  std::vector<Slot> slots_;
  // memory: scratch of keep_surprising, so that a forward allocates nothing.
  std::unique_ptr<float[]> value_key_;  // [H][value][key]
  std::unique_ptr<float[]> restored_;   // [N]
  std::unique_ptr<float[]> loss_;       // [max_cache_len]
  std::unique_ptr<uint32_t[]> rows_;    // [max_cache_len]
  std::vector<std::string> tensor_names_;
  std::vector<TensorRef> tensor_refs_;
};

}  // namespace wkvm

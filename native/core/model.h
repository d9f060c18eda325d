// An immutable model: its shape, its blocks in running order, and its packed weights.
//
//   canonical tensors --(Layout: which are expected, what shape, where each goes)-->
//   packed tensors, in one block of memory or in a mapped file --> Model, pointers into them
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/pack.h"
#include "core/safetensors.h"
#include "wkvm.h"

namespace wkvm {

enum class Family : uint32_t { kRwkv7 = WKVM_RWKV7, kRwkvX = WKVM_RWKVX };

struct LayerNorm {
  const float* weight = nullptr;  // [D]
  const float* bias = nullptr;
};

struct TimeMix {
  const float *x_r = nullptr, *x_w = nullptr, *x_k = nullptr, *x_v = nullptr, *x_a = nullptr,
              *x_g = nullptr;                                  // [D] each
  Matrix receptance, key, value, output;                       // [D, D]
  Matrix w1, w2, a1, a2, v1, v2, g1, g2;                       // LoRA: [rank, D], [D, rank]
  const float *w0 = nullptr, *a0 = nullptr, *v0 = nullptr;     // [D]; block 0 has no v
  const float *k_k = nullptr, *k_a = nullptr, *r_k = nullptr;  // [D]
  LayerNorm ln_x;
};

struct ChannelMix {
  const float* x_k = nullptr;  // [D]
  Matrix key, value;           // [F, D], [D, F]
};

struct RwkvBlock {
  LayerNorm ln1, ln2;
  TimeMix att;
  ChannelMix ffn;
};

struct AttentionBlock {
  LayerNorm ln1, ln2;
  Matrix receptance, key, value, output;  // q, k, v, o: [D, D]
  ChannelMix ffn;
};

struct BlockRef {
  bool is_attention;
  size_t index;  // into Model::rwkv or Model::attention
};

struct ModelShape {
  Family family = Family::kRwkv7;
  size_t n_vocab = 0;    // V
  size_t n_embd = 0;     // D
  size_t head_size = 0;  // N
  size_t n_ffn = 0;      // F
  size_t n_rwkv = 0;     // blocks that run
  size_t n_attn = 0;
  size_t n_unused = 0;  // RWKV blocks of the file that the block order leaves out
  size_t max_rank = 0;  // largest LoRA rank
  size_t n_head() const { return n_embd / head_size; }
};

class Model {
 public:
  static constexpr float kLayerNormEps = 1e-5f;
  static constexpr float kGroupNormEps = 64e-5f;  // the official literal, for every head size
  static constexpr size_t kAttentionHeadSize = 64;

  // Opens one file: a converted one is mapped and used in place, any other is packed.
  static std::shared_ptr<Model> open(const char* path, uint32_t dtype);

  ModelShape shape;
  DType dtype = DType::kF32;  // of the big matrices
  bool is_packed = false;
  uint64_t n_params = 0;
  uint64_t bytes_per_token = 0;
  std::vector<BlockRef> order;
  std::string block_order;    // "R0 R1 A0 ..."
  std::string packed_header;  // value of the metadata entry kPackedKey

  DType embedding_type = DType::kF32;
  const void* embedding = nullptr;  // [V, D]
  LayerNorm ln0, ln_out;
  Matrix head;  // [V, D]
  std::vector<RwkvBlock> rwkv;
  std::vector<AttentionBlock> attention;

  std::vector<wkvm_tensor> packed_tensors;  // in name order; names live in packed_names
  std::vector<std::string> packed_names;

  // What the pointers above point into: one of these.
  std::shared_ptr<void> memory;
  std::shared_ptr<SafetensorsFile> file;

  static constexpr const char* kPackedKey = "wkvm.packed";

  void get_info(wkvm_model_info* out) const;
};

// Takes the canonical tensors one at a time. The whole set is checked before any data is needed.
class ModelBuilder {
 public:
  // dtype: a wkvm_dtype of the big matrices, or WKVM_DTYPE_AUTO.
  ModelBuilder(const wkvm_tensor* tensors, size_t n_tensors, uint32_t dtype);
  ~ModelBuilder();

  const Model& model() const { return *model_; }
  bool needs(size_t index) const;
  void add(size_t index, const void* data, uint64_t n_bytes);
  std::shared_ptr<Model> finish();

 private:
  struct Part;  // one expected tensor: where it comes from, where it goes

  char* memory();

  std::shared_ptr<Model> model_;
  std::vector<Part> parts_;
  std::vector<int64_t> part_of_tensor_;  // -1: not needed
  std::vector<wkvm_tensor> tensors_;     // descriptions; names are not kept
  size_t memory_size_ = 0;
  char* memory_ = nullptr;
  const Kernels& kernels_;  // what packs: as $WKVM_ISA says
  ThreadPool pool_;
  bool is_finished_ = false;

  friend class Model;
};

}  // namespace wkvm

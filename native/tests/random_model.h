// A small random RWKV-X checkpoint with awkward sizes, made through wkvm_builder_*.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "wkvm.h"

// Exits unless the call succeeds.
#define OK(call)                                                               \
  do {                                                                         \
    if ((call) != WKVM_OK) {                                                   \
      const char* why = "";                                                    \
      wkvm_last_error(&why);                                                   \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, why); \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)

// Uniform in [-1, 1), the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  float uniform() { return static_cast<float>(next()) / 1073741824.0f - 1.0f; }

 private:
  uint64_t state_;
};

struct RandomTensor {
  std::string name;
  std::vector<uint64_t> shape;
  std::vector<float> data;
};

// n_rwkv RWKV blocks and n_attn attention blocks, two heads of 64, LoRA ranks 24, 8, 40, 16.
inline std::vector<RandomTensor> random_checkpoint(size_t n_rwkv, size_t n_attn, size_t n_vocab) {
  constexpr size_t d = 128;
  constexpr size_t f = 176;
  std::vector<RandomTensor> tensors;
  Random random(7);
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape, float scale,
                       float mean) {
    size_t n = 1;
    for (uint64_t side : shape) n *= side;
    std::vector<float> data(n);
    for (float& x : data) x = mean + scale * random.uniform();
    tensors.push_back({name, std::move(shape), std::move(data)});
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {d}, 0.2f, 1.0f);
    add(name + ".bias", {d}, 0.1f, 0.0f);
  };
  const auto channel_mix = [&](const std::string& block) {
    add(block + "x_k", {1, 1, d}, 0.5f, 0.5f);
    add(block + "key.weight", {f, d}, 0.15f, 0.0f);
    add(block + "value.weight", {d, f}, 0.15f, 0.0f);
  };
  add("rwkv.emb.weight", {n_vocab, d}, 1.0f, 0.0f);
  norm("rwkv.blocks.0.ln0");
  for (size_t i = 0; i < n_rwkv; ++i) {
    const std::string block = "rwkv.blocks." + std::to_string(i) + ".";
    const std::string att = block + "att.";
    norm(block + "ln1");
    norm(block + "ln2");
    norm(att + "ln_x");
    for (const char* leaf : {"x_r", "x_w", "x_k", "x_v", "x_a", "x_g", "k_k", "k_a", "w0", "a0"}) {
      add(att + leaf, {1, 1, d}, 0.5f, 0.5f);
    }
    add(att + "r_k", {2, 64}, 0.2f, 0.0f);
    const std::pair<const char*, size_t> ranks[] = {{"w", 24}, {"a", 8}, {"g", 40}, {"v", 16}};
    for (const auto& [gate, rank] : ranks) {
      if (i == 0 && gate[0] == 'v') continue;
      add(att + gate + "1", {d, rank}, 0.2f, 0.0f);
      add(att + gate + "2", {rank, d}, 0.2f, 0.0f);
    }
    if (i > 0) add(att + "v0", {1, 1, d}, 0.5f, 0.5f);
    for (const char* leaf : {"receptance", "key", "value", "output"}) {
      add(att + leaf + ".weight", {d, d}, 0.15f, 0.0f);
    }
    channel_mix(block + "ffn.");
  }
  for (size_t i = 0; i < n_attn; ++i) {
    const std::string block = "moba." + std::to_string(i) + ".";
    norm(block + "ln1");
    norm(block + "ln2");
    for (const char* leaf : {"receptance", "key", "value", "output"}) {
      add(block + "att." + leaf + ".weight", {d, d}, 0.15f, 0.0f);
    }
    channel_mix(block + "ffn.");
  }
  norm("rwkv.ln_out");
  add("rwkv.head.weight", {n_vocab, d}, 0.2f, 0.0f);
  return tensors;
}

inline std::vector<wkvm_tensor> describe(const std::vector<RandomTensor>& tensors) {
  std::vector<wkvm_tensor> described;
  for (const RandomTensor& tensor : tensors) {
    wkvm_tensor t{};
    t.name = tensor.name.c_str();
    t.dtype = WKVM_F32;
    t.n_dims = static_cast<uint32_t>(tensor.shape.size());
    for (size_t i = 0; i < tensor.shape.size(); ++i) t.shape[i] = tensor.shape[i];
    described.push_back(t);
  }
  return described;
}

inline wkvm_model* build_model(const std::vector<RandomTensor>& tensors, uint32_t dtype) {
  const std::vector<wkvm_tensor> described = describe(tensors);
  const wkvm_model_options options{sizeof(wkvm_model_options), dtype};
  wkvm_builder* builder = nullptr;
  OK(wkvm_builder_new(described.data(), described.size(), &options, &builder));
  for (size_t i = 0; i < tensors.size(); ++i) {
    OK(wkvm_builder_add(builder, i, tensors[i].data.data(), tensors[i].data.size() * 4));
  }
  wkvm_model* model = nullptr;
  OK(wkvm_builder_finish(builder, &model));
  OK(wkvm_builder_free(builder));
  return model;
}

// Policies small enough that a hundred tokens cross many blocks and leave most of the window
// behind. The ring is 256 longer than the window (core/state.h): it wraps at 3 + 21 + 256 = 280
// tokens.
inline wkvm_engine_options small_options(uint32_t policy, uint32_t n_slots, uint32_t n_threads) {
  wkvm_engine_options options{};
  options.struct_size = sizeof options;
  options.n_slots = n_slots;
  options.n_threads = n_threads;
  options.kv_dtype = WKVM_F16;
  options.policy = policy;
  options.max_cache_len = 1000;
  options.moba_chunk_size = 8;
  options.moba_topk = 3;
  options.window_sinks = 3;
  options.window_size = 21;
  options.memory_keep_tokens = 10;
  return options;
}

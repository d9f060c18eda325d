// Choosing the next token from logits. docs/sampling.md is the definition; in short:
//
//   logits --penalties, bias, bans--> adjusted --cuts--> candidates --temperature--> weights
//
// Adjusted logits order the tokens (descending, then by id); a cut keeps the front of that order.
// Every number is a function of the logits, the options, the counts and (seed, index) alone, and
// has the same bits on every machine: the sums behind top-p are integers, every other sum runs in
// order of the ids, and exp and log come from the kernel table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "wkvm.h"

namespace wkvm {

enum class SamplingOrder : uint32_t { kRwkv = WKVM_ORDER_RWKV, kOpenai = WKVM_ORDER_OPENAI };

struct SamplerOptions {
  SamplingOrder order = SamplingOrder::kRwkv;
  double temperature = 1;  // 0: greedy
  double top_p = 1;        // 1: off
  double min_p = 0;        // 0: off
  uint64_t top_k = 0;      // 0: off
  double presence_penalty = 0;
  double frequency_penalty = 0;
  double repetition_penalty = 1;
  double penalty_decay = 1;
  std::vector<uint32_t> bias_ids = {};  // strictly ascending, as the two lists below
  std::vector<double> biases = {};      // one for each of bias_ids
  std::vector<uint32_t> banned = {};
  std::vector<uint32_t> exempt = {};  // generating one of these adds 0 to its count, not 1
};

class Sampler {
 public:
  static constexpr uint32_t kMaxVocab = 1u << 24;

  Sampler(const Kernels& kernels, uint32_t n_vocab, SamplerOptions options, uint64_t seed);

  uint32_t n_vocab() const { return n_vocab_; }
  const SamplerOptions& options() const { return options_; }
  uint64_t seed() const { return seed_; }
  uint64_t index() const { return index_; }

  void set_options(SamplerOptions options);
  void set_generator(uint64_t seed, uint64_t index);
  void clear_counts() { counts_.clear(); }

  // The functions of logits [V] leave options, counts and generator as they are.
  uint32_t sample(const float* logits);
  // Writes the candidates, ids ascending, and their probabilities; returns how many.
  size_t probabilities(const float* logits, uint32_t* ids, float* values);
  void adjusted(const float* logits, float* out);
  // Log-softmax of the logits as they are: returns that of `token`, writes the n largest.
  float logprobs(const float* logits, uint32_t token, size_t n, uint32_t* ids, float* values);

  // Counts `token` as generated, and moves the generator to the next index.
  void accept(uint32_t token);

  size_t export_size() const;
  void export_state(uint8_t* out) const;  // export_size() bytes
  void import_state(const uint8_t* data, size_t n_bytes);

 private:
  struct TokenCount {
    uint32_t id;
    double count;
  };
  // `key` is the one at which a mass was reached; `above`, the mass of all greater keys.
  struct Reached {
    uint32_t key;
    uint64_t above;
  };

  void check_token(uint32_t token) const;
  void adjust(const float* logits);
  uint32_t greedy() const;
  float find_candidates();
  void keep_all();
  void keep_probable();
  void keep_first(const float* logits, uint64_t n);
  void weigh(float* values, size_t n, double temperature) const;
  template <class MassOf>
  Reached reach(const float* logits, uint64_t target, MassOf mass_of);

  const Kernels& kernels_;
  const uint32_t n_vocab_;  // V
  SamplerOptions options_;
  uint64_t seed_;
  uint64_t index_ = 0;              // of the next token to generate, since the seed was set
  std::vector<TokenCount> counts_;  // of generated tokens, ids ascending; capacity V

  // Scratch of one call, [V] each.
  std::unique_ptr<float[]> adjusted_;       // by id
  float top_ = 0;                           // max of adjusted_
  std::unique_ptr<uint32_t[]> candidates_;  // ids, ascending
  size_t n_candidates_ = 0;
  std::unique_ptr<float[]> weights_;       // by id while top-p cuts, then by place in candidates_
  std::unique_ptr<uint32_t[]> survivors_;  // places in candidates_
};

}  // namespace wkvm

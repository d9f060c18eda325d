// The engine: ragged rows (slot, tokens) through the blocks of a model. forward.cc reads in the
// order of the equations.
#pragma once

#include <memory>
#include <vector>

#include "core/model.h"
#include "core/state.h"
#include "core/threads.h"
#include "kernels/kernels.h"

namespace wkvm {

class Engine {
 public:
  // Every buffer is allocated here: forward() allocates nothing.
  Engine(std::shared_ptr<const Model> model, const StateOptions& options, size_t n_threads,
         const char* isa);

  const Model& model() const { return *model_; }
  const Kernels& kernels() const { return kernels_; }
  size_t n_threads() const { return pool_.size(); }
  Slots& slots() { return slots_; }
  const Slots& slots() const { return slots_; }

  // wkvm_forward
  void forward(const wkvm_row* rows, size_t n_rows, float* logits, size_t logits_len);
  // wkvm_slot_logits
  void logits_of_slot(uint32_t slot, float* logits, size_t logits_len);

  uint64_t n_forward() const { return n_forward_; }
  uint64_t n_tokens() const { return n_tokens_; }
  uint64_t nanoseconds() const { return nanoseconds_; }

 private:
  // A stretch of one row in one pass: tokens [begin, begin + n) of the pass.
  struct Segment {
    size_t row;
    uint32_t slot;
    size_t begin;
    size_t n;
    uint64_t position;  // of its first token, in the session
    size_t offset;      // of its first token, in the row
    bool is_last;       // of its row
    bool is_prefill;    // memory: its row has more than one token
  };

  // One vector per token, as floats and, where an int8 matrix reads it, quantised.
  struct Inputs {
    float* x = nullptr;  // [kPassTokens][width]
    size_t width = 0;
    int8_t* q = nullptr;     // the same in int8
    float* scale = nullptr;  // [kPassTokens]
    int32_t* sum = nullptr;  // [kPassTokens]
  };

  struct MatmulJob {
    const Matrix& matrix;
    const Inputs& in;
    float* y;  // [n_tokens][y_stride]
    size_t y_stride;
    bool add = false;
  };

  struct Scratch {   // per thread
    float* panel;    // [kPassTokens][kPanel]: a last panel that is wider than its matrix
    float* scores;   // of one query
    float* gate;     // moba: scores of the complete blocks
    uint32_t* best;  // moba: the chosen blocks
    KvRange* ranges;
  };

  struct Failure {  // of one row
    bool failed = false;
    bool is_kv = false;
    size_t stage = 0;    // 0: the embedding; i + 1: the i-th block in running order
    uint64_t token = 0;  // in the row
  };

  void check_rows(const wkvm_row* rows, size_t n_rows, const float* logits, size_t logits_len);
  void run_pass(const wkvm_row* rows, float* logits);
  void finish_row(const Segment& segment);
  [[noreturn]] void report_failures(size_t n_rows);

  void embed(const wkvm_row* rows);
  void layer_norm(const LayerNorm& ln, size_t stage);
  void time_mix(size_t block, const RwkvBlock& weights);
  void time_mix_head(const Segment& segment, size_t block, const TimeMix& att, size_t head);
  void attention(size_t block, const AttentionBlock& weights, size_t previous_rwkv);
  void attend(const Segment& segment, size_t token, size_t block, size_t head, size_t thread);
  void channel_mix(const LayerNorm& ln, const ChannelMix& ffn);
  void write_logits(const wkvm_row* rows, float* logits);

  // Runs every job over the first n_tokens tokens, panel by panel over the threads.
  void matmul(std::initializer_list<MatmulJob> jobs, size_t n_tokens);
  void run_panel(const MatmulJob& job, size_t panel, size_t n_tokens, size_t thread);
  void quantize(const Inputs& in, size_t token);
  // The ranges of the cache that a query sees, in ascending position; returns how many.
  size_t visible(const Segment& segment, size_t token, size_t block, size_t head, Scratch& scratch);
  size_t moba_visible(const Segment& segment, uint64_t position, const float* q, size_t block,
                      size_t head, Scratch& scratch);
  void note_failures(size_t stage, bool is_kv);
  float* ffn_shift(uint32_t slot);
  // Calls body(begin, end, thread) over stretches that cover [0, n).
  template <class Body>
  void for_stretches(size_t n, Body&& body);
  // Calls body(token, thread) for every token of the pass.
  template <class Body>
  void for_tokens(Body&& body);

  template <class T>
  T* allocate(size_t n);
  Inputs make_inputs(size_t width, bool is_quantized);

  std::shared_ptr<const Model> model_;
  const Kernels& kernels_;
  ThreadPool pool_;
  Slots slots_;
  size_t d_;

  struct FreeDeleter {
    void operator()(void* p) const;
  };
  std::vector<std::unique_ptr<void, FreeDeleter>> memory_;
  float *x_, *xx_;                            // residual stream and normed input, [T][D]
  Inputs xr_, xw_, xk_, xv_, xa_, xg_;        // shifted inputs, [T][D]
  Inputs w_rank_, a_rank_, v_rank_, g_rank_;  // inside the LoRA pairs, [T][rank]
  float *r_, *k_, *v_, *v_first_;             // [T][D]
  float *w_, *a_, *v_gate_, *g_;              // outputs of the LoRA pairs, [T][D]
  Inputs y_;                                  // what the output matrix reads, [T][D]
  Inputs hidden_;                             // what ffn.value reads, [T][F]
  Inputs head_in_;                            // what the head reads, one vector per logits row
  std::vector<Scratch> scratch_;

  // The running call and pass.
  std::vector<Segment> segments_;
  std::vector<uint32_t> segment_of_token_;
  std::vector<Failure> failures_;   // per row
  std::vector<uint8_t> bad_token_;  // in this pass, since the last note_failures
  std::atomic<bool> any_bad_{false};
  std::vector<uint64_t> named_in_call_;  // per slot: the last call that named it
  size_t n_pass_ = 0;                    // tokens in the pass
  size_t running_block_ = 0;             // in running order
  size_t n_logits_rows_ = 0;             // written by the passes so far

  uint64_t n_calls_ = 0;
  uint64_t n_forward_ = 0;
  uint64_t n_tokens_ = 0;
  uint64_t nanoseconds_ = 0;
};

}  // namespace wkvm

#include "core/forward.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "core/error.h"
#include "core/isa.h"

namespace wkvm {
namespace {

constexpr size_t kStretchesPerThread = 8;  // small enough to even out threads that fall behind

// Blocks that moba adds to a query's own.
size_t n_chosen(const StateOptions& options) { return options.moba_topk - 1; }

}  // namespace

void Engine::FreeDeleter::operator()(void* p) const { std::free(p); }

template <class T>
T* Engine::allocate(size_t n) {
  void* p = std::aligned_alloc(64, round_up(n * sizeof(T) + 1, 64));
  if (!p) throw std::bad_alloc();
  memory_.emplace_back(p);  // not cleared: what a long cache could need stays untouched
  return static_cast<T*>(p);
}

Engine::Inputs Engine::make_inputs(size_t width, bool is_quantized) {
  Inputs in;
  in.width = width;
  in.x = allocate<float>(kPassTokens * width);
  if (is_quantized) {
    in.q = allocate<int8_t>(kPassTokens * width);
    in.scale = allocate<float>(kPassTokens);
    in.sum = allocate<int32_t>(kPassTokens);
  }
  return in;
}

Engine::Engine(std::shared_ptr<const Model> model, const StateOptions& options, size_t n_threads,
               const char* isa)
    : model_(std::move(model)),
      kernels_(kernels_for(isa)),
      pool_(n_threads ? n_threads : default_threads()),
      slots_(model_, options, kernels_),
      d_(model_->shape.n_embd) {
  const ModelShape& shape = model_->shape;
  const bool is_int8 = model_->dtype == DType::kI8;
  const size_t rank = round_up(shape.max_rank, kLanes);
  for (float** buffer : {&x_, &xx_, &r_, &k_, &v_, &v_first_, &w_, &a_, &v_gate_, &g_}) {
    *buffer = allocate<float>(kPassTokens * d_);
  }
  for (Inputs* in : {&xr_, &xk_, &xv_, &y_, &head_in_}) *in = make_inputs(d_, is_int8);
  for (Inputs* in : {&xw_, &xa_, &xg_}) *in = make_inputs(d_, false);
  for (Inputs* in : {&w_rank_, &a_rank_, &v_rank_, &g_rank_}) *in = make_inputs(rank, false);
  hidden_ = make_inputs(shape.n_ffn, is_int8);

  // The longest list of ranges and of scores that a query may see.
  const bool is_moba = options.policy == Policy::kMoba;
  const size_t n_blocks = is_moba ? options.max_cache_len / options.moba_chunk_size + 1 : 0;
  const size_t n_best = is_moba ? std::min(n_chosen(options), n_blocks) : 0;
  const size_t n_ranges = n_best + 3;
  const size_t n_visible = options.policy == Policy::kWindow
                               ? options.window_sinks + options.window_size
                               : options.max_cache_len;
  const size_t n_scores = shape.n_attn ? n_visible + n_ranges * 2 * kLanes : 0;
  scratch_.resize(pool_.size());
  for (Scratch& scratch : scratch_) {
    scratch.panel = allocate<float>(kPassTokens * kPanel);
    scratch.scores = allocate<float>(n_scores);
    scratch.gate = allocate<float>(round_up(n_blocks, kLanes));
    scratch.best = allocate<uint32_t>(n_best);
    scratch.ranges = allocate<KvRange>(n_ranges);
  }
  segments_.reserve(kPassTokens);
  segment_of_token_.resize(kPassTokens);
  bad_token_.resize(kPassTokens);
  failures_.reserve(options.n_slots);
  named_in_call_.resize(options.n_slots);
}

// ---------------------------------------------------------------- a call

void Engine::check_rows(const wkvm_row* rows, size_t n_rows, const float* logits,
                        size_t logits_len) {
  if (!rows || n_rows == 0) fail(WKVM_INVALID_ARGUMENT, "wkvm_forward: no rows");
  ++n_calls_;
  size_t n_logits_rows = 0;
  for (size_t i = 0; i < n_rows; ++i) {
    const wkvm_row& row = rows[i];
    const Slots::Slot& slot = slots_.sound(row.slot);
    if (named_in_call_[row.slot] == n_calls_) {
      fail(WKVM_INVALID_ARGUMENT, "row %zu: slot %u appears twice in one call", i, row.slot);
    }
    named_in_call_[row.slot] = n_calls_;
    if (!row.tokens || row.n_tokens == 0) {
      fail(WKVM_INVALID_ARGUMENT, "row %zu has no tokens", i);
    }
    if (row.logits > WKVM_LOGITS_ALL) {
      fail(WKVM_INVALID_ARGUMENT, "row %zu: logits %u is not none, last or all", i, row.logits);
    }
    for (size_t t = 0; t < row.n_tokens; ++t) {
      if (row.tokens[t] >= model_->shape.n_vocab) {
        fail(WKVM_INVALID_ARGUMENT, "row %zu: token %zu is %u; the vocabulary has %zu entries", i,
             t, row.tokens[t], model_->shape.n_vocab);
      }
    }
    if (!slots_.fits(row.slot, row.n_tokens)) {
      fail(WKVM_CACHE_FULL,
           "row %zu: %zu more tokens after %llu exceed max_cache_len %zu: load with a larger "
           "max_cache_len, or with policy \"window\"",
           i, row.n_tokens, static_cast<unsigned long long>(slot.n_tokens),
           slots_.options().max_cache_len);
    }
    if (row.logits == WKVM_LOGITS_LAST) n_logits_rows += 1;
    if (row.logits == WKVM_LOGITS_ALL) n_logits_rows += row.n_tokens;
  }
  const size_t expected = n_logits_rows * model_->shape.n_vocab;
  if (logits_len != expected || (expected && !logits)) {
    fail(WKVM_INVALID_ARGUMENT, "logits hold %zu floats; these rows give %zu", logits_len,
         expected);
  }
}

void Engine::forward(const wkvm_row* rows, size_t n_rows, float* logits, size_t logits_len) {
  const auto start = std::chrono::steady_clock::now();
  check_rows(rows, n_rows, logits, logits_len);
  const FloatEnvironment environment;
  failures_.assign(n_rows, Failure{});
  n_logits_rows_ = 0;

  size_t row = 0;
  size_t offset = 0;
  while (row < n_rows) {
    segments_.clear();
    n_pass_ = 0;
    while (row < n_rows && n_pass_ < kPassTokens) {
      const size_t n = std::min(rows[row].n_tokens - offset, kPassTokens - n_pass_);
      const bool is_last = offset + n == rows[row].n_tokens;
      const uint64_t position = slots_.used(rows[row].slot).n_tokens;
      for (size_t t = 0; t < n; ++t) {
        segment_of_token_[n_pass_ + t] = static_cast<uint32_t>(segments_.size());
      }
      segments_.push_back(
          {row, rows[row].slot, n_pass_, n, position, offset, is_last, rows[row].n_tokens > 1});
      n_pass_ += n;
      offset += n;
      if (is_last) {
        ++row;
        offset = 0;
      }
    }
    run_pass(rows, logits);
    n_tokens_ += n_pass_;
  }

  ++n_forward_;
  nanoseconds_ += static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start)
          .count());
  for (const Failure& failure : failures_) {
    if (failure.failed) report_failures(n_rows);
  }
}

void Engine::run_pass(const wkvm_row* rows, float* logits) {
  embed(rows);
  size_t previous_rwkv = 0;
  for (running_block_ = 0; running_block_ < model_->order.size(); ++running_block_) {
    const BlockRef block = model_->order[running_block_];
    if (block.is_attention) {
      const AttentionBlock& weights = model_->attention[block.index];
      attention(block.index, weights, previous_rwkv);
      channel_mix(weights.ln2, weights.ffn);
    } else {
      const RwkvBlock& weights = model_->rwkv[block.index];
      time_mix(block.index, weights);
      channel_mix(weights.ln2, weights.ffn);
      previous_rwkv = block.index;
    }
  }
  layer_norm(model_->ln_out, model_->order.size());
  for (const Segment& segment : segments_) finish_row(segment);
  write_logits(rows, logits);
}

// Moves the slot past the segment's tokens.
void Engine::finish_row(const Segment& segment) {
  Slots::Slot& slot = slots_.used(segment.slot);
  slot.n_tokens += segment.n;
  const float* last = xx_ + (segment.begin + segment.n - 1) * d_;
  std::memcpy(slots_.x_last(segment.slot), last, d_ * sizeof(float));
  slot.is_spoilt = failures_[segment.row].failed;
  if (slots_.options().policy == Policy::kMemory && segment.is_prefill && segment.is_last &&
      !slot.is_spoilt) {
    slots_.keep_surprising(segment.slot, segment.offset + segment.n);
  }
}

void Engine::report_failures(size_t n_rows) {
  std::string text;
  for (size_t row = 0; row < n_rows; ++row) {
    const Failure& failure = failures_[row];
    if (!failure.failed) continue;
    if (!text.empty()) text.append("; ");
    text.append("row ").append(std::to_string(row));
    text.append(", token ").append(std::to_string(failure.token)).append(": ");
    text.append(failure.is_kv ? "a key or value beyond the KV type (load with kv_dtype=\"fp32\")"
                              : "a non-finite activation");
    if (failure.stage == 0) {
      text.append(" in the embedding");
    } else {
      const BlockRef block = model_->order[failure.stage - 1];
      text.append(block.is_attention ? " in attention block " : " in RWKV block ");
      text.append(std::to_string(block.index));
    }
  }
  throw Error(WKVM_NUMERIC, text +
                                ". The state of these rows is spoilt (reset it, or resume a "
                                "snapshot); other rows are complete");
}

// Blames `stage` for the bad tokens.
void Engine::note_failures(size_t stage, bool is_kv) {
  if (!any_bad_.load(std::memory_order_relaxed)) return;
  any_bad_.store(false, std::memory_order_relaxed);
  for (size_t t = 0; t < n_pass_; ++t) {
    if (!bad_token_[t]) continue;
    bad_token_[t] = 0;
    const Segment& segment = segments_[segment_of_token_[t]];
    Failure& failure = failures_[segment.row];
    if (failure.failed) continue;
    failure = {true, is_kv, stage, segment.offset + t - segment.begin};
  }
}

// ---------------------------------------------------------------- parallel building blocks

template <class Body>
void Engine::for_stretches(size_t n, Body&& body) {
  const size_t length = std::max<size_t>(1, n / (pool_.size() * kStretchesPerThread));
  pool_.run((n + length - 1) / length, [&](size_t stretch, size_t thread) {
    body(stretch * length, std::min(n, (stretch + 1) * length), thread);
  });
}

template <class Body>
void Engine::for_tokens(Body&& body) {
  for_stretches(n_pass_, [&](size_t begin, size_t end, size_t thread) {
    for (size_t t = begin; t < end; ++t) body(t, thread);
  });
}

void Engine::quantize(const Inputs& in, size_t token) {
  if (!in.q) return;
  const size_t offset = token * in.width;
  in.scale[token] = kernels_.quantize_row(in.x + offset, in.width, in.q + offset, &in.sum[token]);
}

void Engine::run_panel(const MatmulJob& job, size_t panel, size_t n_tokens, size_t thread) {
  const Matrix& m = job.matrix;
  const size_t first = panel * kPanel;
  const size_t width = m.panel_width(panel);
  const size_t n_real = std::min(width, m.n_out - first);
  // Padding outputs must not be written over what follows: such a panel goes by way of scratch.
  // (Residuals are added to D outputs, which have no padding.)
  const bool is_padded = n_real < width;
  float* y = is_padded ? scratch_[thread].panel : job.y + first;
  const size_t y_stride = is_padded ? kPanel : job.y_stride;
  if (m.type == DType::kI8) {
    kernels_.matmul_panel_i8({static_cast<const int8_t*>(m.panel(panel)), m.scale + first, width,
                              m.n_in, job.in.q, job.in.width, job.in.scale, job.in.sum, y, y_stride,
                              n_tokens, job.add});
  } else {
    kernels_.matmul_panel({m.type, m.panel(panel), width, m.n_in, job.in.x, job.in.width, y,
                           y_stride, n_tokens, job.add});
  }
  if (!is_padded) return;
  for (size_t t = 0; t < n_tokens; ++t) {
    std::memcpy(job.y + t * job.y_stride + first, y + t * kPanel, n_real * sizeof(float));
  }
}

void Engine::matmul(std::initializer_list<MatmulJob> jobs, size_t n_tokens) {
  size_t n_panels = 0;
  for (const MatmulJob& job : jobs) n_panels += job.matrix.n_panels();
  for_stretches(n_panels, [&](size_t begin, size_t end, size_t thread) {
    size_t first = 0;  // of the job, in the list of all panels
    for (const MatmulJob& job : jobs) {
      const size_t last = first + job.matrix.n_panels();
      for (; begin < std::min(last, end); ++begin) run_panel(job, begin - first, n_tokens, thread);
      first = last;
    }
  });
}

// xx = LN(x). Looks for non-finite values on the way, and blames `stage` for them.
void Engine::layer_norm(const LayerNorm& ln, size_t stage) {
  for_tokens([&](size_t t, size_t) {
    const float* x = x_ + t * d_;
    if (!kernels_.all_finite(x, d_)) {
      bad_token_[t] = 1;
      any_bad_.store(true, std::memory_order_relaxed);
    }
    kernels_.layer_norm(x, d_, ln.weight, ln.bias, Model::kLayerNormEps, xx_ + t * d_);
  });
  note_failures(stage, false);
}

// ---------------------------------------------------------------- the equations (models.md)

// x = LN(emb[token]; ln0)
void Engine::embed(const wkvm_row* rows) {
  const size_t row_bytes = d_ * element_size(model_->embedding_type);
  for_tokens([&](size_t t, size_t) {
    const Segment& segment = segments_[segment_of_token_[t]];
    const uint32_t token = rows[segment.row].tokens[segment.offset + t - segment.begin];
    kernels_.widen(model_->embedding_type,
                   static_cast<const char*>(model_->embedding) + token * row_bytes, d_,
                   xx_ + t * d_);
    kernels_.layer_norm(xx_ + t * d_, d_, model_->ln0.weight, model_->ln0.bias,
                        Model::kLayerNormEps, x_ + t * d_);
  });
}

// x = x + O (timemix(LN(x; ln1)) * g)
void Engine::time_mix(size_t block, const RwkvBlock& weights) {
  const TimeMix& att = weights.att;
  float* v = block == 0 ? v_first_ : v_;  // layer 0's v is v_first
  layer_norm(weights.ln1, running_block_);

  // x_r .. x_g = xx + (shift - xx) * mix
  for_tokens([&](size_t t, size_t) {
    const Segment& segment = segments_[segment_of_token_[t]];
    const float* xx = xx_ + t * d_;
    const float* shift = t == segment.begin ? slots_.att_shift(segment.slot, block) : xx - d_;
    kernels_.token_shift(xx, shift, att.x_r, d_, xr_.x + t * d_);
    kernels_.token_shift(xx, shift, att.x_w, d_, xw_.x + t * d_);
    kernels_.token_shift(xx, shift, att.x_k, d_, xk_.x + t * d_);
    kernels_.token_shift(xx, shift, att.x_v, d_, xv_.x + t * d_);
    kernels_.token_shift(xx, shift, att.x_a, d_, xa_.x + t * d_);
    kernels_.token_shift(xx, shift, att.x_g, d_, xg_.x + t * d_);
    quantize(xr_, t);
    quantize(xk_, t);
    quantize(xv_, t);
  });
  for (const Segment& segment : segments_) {
    std::memcpy(slots_.att_shift(segment.slot, block), xx_ + (segment.begin + segment.n - 1) * d_,
                d_ * sizeof(float));
  }

  // r = R xr, k = K xk, v = V xv; w, a, g, v's gate through their LoRA pairs. In layer 0 the last
  // pair is empty and costs nothing.
  matmul({{att.receptance, xr_, r_, d_},
          {att.key, xk_, k_, d_},
          {att.value, xv_, v, d_},
          {att.w1, xw_, w_rank_.x, w_rank_.width},
          {att.a1, xa_, a_rank_.x, a_rank_.width},
          {att.g1, xg_, g_rank_.x, g_rank_.width},
          {att.v1, xv_, v_rank_.x, v_rank_.width}},
         n_pass_);
  for_tokens([&](size_t t, size_t) {
    float* w = w_rank_.x + t * w_rank_.width;
    float* g = g_rank_.x + t * g_rank_.width;
    kernels_.tanh(w, att.w1.n_out, w);
    kernels_.sigmoid(g, att.g1.n_out, g);
  });
  matmul({{att.w2, w_rank_, w_, d_},
          {att.a2, a_rank_, a_, d_},
          {att.g2, g_rank_, g_, d_},
          {att.v2, v_rank_, v_gate_, d_}},
         n_pass_);

  // y = (groupnorm(WKV) + bonus) * g, head by head
  const size_t n_head = model_->shape.n_head();
  for_stretches(segments_.size() * n_head, [&](size_t begin, size_t end, size_t) {
    for (size_t i = begin; i < end; ++i) {
      time_mix_head(segments_[i / n_head], block, att, i % n_head);
    }
  });
  for_tokens([&](size_t t, size_t) { quantize(y_, t); });

  matmul({{att.output, y_, x_, d_, true}}, n_pass_);
}

void Engine::time_mix_head(const Segment& segment, size_t block, const TimeMix& att, size_t head) {
  const bool is_first = block == 0;
  const size_t n = model_->shape.head_size;
  const size_t c = head * n;  // the head's first channel
  const size_t at = segment.begin * d_ + c;
  TimeMixHead job{};
  job.head_size = n;
  job.n_tokens = segment.n;
  job.stride = d_;
  job.r = r_ + at;
  job.k = k_ + at;
  job.v = (is_first ? v_first_ : v_) + at;
  job.w_lora = w_ + at;
  job.a_lora = a_ + at;
  job.g = g_ + at;
  job.w0 = att.w0 + c;
  job.a0 = att.a0 + c;
  if (!is_first) {
    job.v_lora = v_gate_ + at;
    job.v_first = v_first_ + at;
    job.v0 = att.v0 + c;
  }
  job.k_k = att.k_k + c;
  job.k_a = att.k_a + c;
  job.r_k = att.r_k + c;
  job.ln_weight = att.ln_x.weight + c;
  job.ln_bias = att.ln_x.bias + c;
  job.ln_eps = Model::kGroupNormEps;
  job.state = slots_.wkv(segment.slot, block) + head * n * n;
  job.y = y_.x + at;
  kernels_.time_mix_head(job);
}

// x = x + O att(LN(x; ln1))
void Engine::attention(size_t block, const AttentionBlock& weights, size_t previous_rwkv) {
  const Policy policy = slots_.options().policy;
  const auto cache_index = [&](const Segment& segment, size_t t) -> size_t {
    const size_t i = t - segment.begin;
    return policy == Policy::kMemory ? segment.offset + i
                                     : slots_.cache_index(segment.position + i);
  };
  if (policy == Policy::kMemory) {
    const float* v = previous_rwkv == 0 ? v_first_ : v_;
    for (const Segment& segment : segments_) {
      if (!segment.is_prefill) continue;
      for (size_t t = segment.begin; t < segment.begin + segment.n; ++t) {
        slots_.store_trail(segment.slot, block, cache_index(segment, t), k_ + t * d_, v + t * d_);
      }
    }
  }

  layer_norm(weights.ln1, running_block_);
  for_tokens([&](size_t t, size_t) {
    std::memcpy(xr_.x + t * d_, xx_ + t * d_, d_ * sizeof(float));
    quantize(xr_, t);
  });
  float* q = r_;
  matmul(
      {{weights.receptance, xr_, q, d_}, {weights.key, xr_, k_, d_}, {weights.value, xr_, v_, d_}},
      n_pass_);

  for_tokens([&](size_t t, size_t) {
    const Segment& segment = segments_[segment_of_token_[t]];
    if (policy == Policy::kMemory && !segment.is_prefill) return;  // reads the cache only
    if (!slots_.store(segment.slot, block, cache_index(segment, t), k_ + t * d_, v_ + t * d_)) {
      bad_token_[t] = 1;
      any_bad_.store(true, std::memory_order_relaxed);
    }
  });
  note_failures(running_block_ + 1, true);
  if (policy == Policy::kMoba) {
    pool_.run(segments_.size(), [&](size_t i, size_t) {
      const Segment& segment = segments_[i];
      for (size_t t = 0; t < segment.n; ++t) {
        slots_.add_to_block_mean(segment.slot, block, segment.position + t);
      }
    });
  }

  const size_t n_head = d_ / Model::kAttentionHeadSize;
  for_stretches(n_pass_ * n_head, [&](size_t begin, size_t end, size_t thread) {
    for (size_t i = begin; i < end; ++i) {
      const size_t t = i / n_head;
      attend(segments_[segment_of_token_[t]], t, block, i % n_head, thread);
    }
  });
  for_tokens([&](size_t t, size_t) { quantize(y_, t); });

  matmul({{weights.output, y_, x_, d_, true}}, n_pass_);
}

// y[head] = sum over visible keys of softmax(q . k / sqrt(64)) v
void Engine::attend(const Segment& segment, size_t token, size_t block, size_t head,
                    size_t thread) {
  Scratch& scratch = scratch_[thread];
  const size_t at = token * d_ + head * Model::kAttentionHeadSize;
  const size_t n_ranges = visible(segment, token, block, head, scratch);
  kernels_.attention_head({slots_.kv_head(segment.slot, block, head), Model::kAttentionHeadSize,
                           0.125f, r_ + at, scratch.ranges, n_ranges, scratch.scores, y_.x + at});
}

size_t Engine::visible(const Segment& segment, size_t token, size_t block, size_t head,
                       Scratch& scratch) {
  const StateOptions& options = slots_.options();
  const uint64_t position = segment.position + token - segment.begin;
  KvRange* ranges = scratch.ranges;
  switch (options.policy) {
    case Policy::kFull:
      ranges[0] = {0, static_cast<uint32_t>(position + 1)};
      return 1;
    case Policy::kMoba:
      return moba_visible(segment, position, r_ + token * d_ + head * Model::kAttentionHeadSize,
                          block, head, scratch);
    case Policy::kMemory: {
      const size_t n = segment.is_prefill ? segment.offset + token - segment.begin + 1
                                          : slots_.used(segment.slot).n_kept;
      ranges[0] = {0, static_cast<uint32_t>(n)};
      return n ? 1 : 0;
    }
    case Policy::kWindow:
      break;
  }
  // Sinks, then the window's positions in the ring, which may wrap once.
  const uint64_t sinks = options.window_sinks;
  size_t n = 0;
  if (sinks > 0) ranges[n++] = {0, static_cast<uint32_t>(std::min(sinks, position + 1))};
  if (position < sinks) return n;
  const uint64_t oldest =
      position + 1 > options.window_size ? position + 1 - options.window_size : 0;
  const auto first = static_cast<uint32_t>(slots_.cache_index(std::max(sinks, oldest)));
  const auto last = static_cast<uint32_t>(slots_.cache_index(position));
  if (first <= last) {
    ranges[n++] = {first, last + 1};
    return n;
  }
  ranges[n++] = {first, static_cast<uint32_t>(slots_.ring_end())};
  ranges[n++] = {static_cast<uint32_t>(sinks), last + 1};
  return n;
}

// The query's own block up to itself, and the earlier blocks whose mean key it scores highest,
// ties to the earlier one.
size_t Engine::moba_visible(const Segment& segment, uint64_t position, const float* q, size_t block,
                            size_t head, Scratch& scratch) {
  const StateOptions& options = slots_.options();
  const size_t chunk = options.moba_chunk_size;
  const size_t own = position / chunk;
  KvRange* ranges = scratch.ranges;
  if (own <= n_chosen(options)) {
    ranges[0] = {0, static_cast<uint32_t>(position + 1)};
    return 1;
  }
  kernels_.attention_scores(slots_.mean_head(segment.slot, block, head), Model::kAttentionHeadSize,
                            q, 1.0f, own, scratch.gate);
  // `best` stays sorted by score, best first.
  size_t n_best = 0;
  for (uint32_t b = 0; b < own; ++b) {
    size_t place = n_best;
    while (place > 0 && scratch.gate[b] > scratch.gate[scratch.best[place - 1]]) --place;
    if (place >= n_chosen(options)) continue;
    if (n_best < n_chosen(options)) ++n_best;
    for (size_t i = n_best - 1; i > place; --i) scratch.best[i] = scratch.best[i - 1];
    scratch.best[place] = b;
  }
  std::sort(scratch.best, scratch.best + n_best);
  size_t n = 0;
  for (size_t i = 0; i < n_best; ++i) {
    ranges[n++] = {static_cast<uint32_t>(scratch.best[i] * chunk),
                   static_cast<uint32_t>((scratch.best[i] + 1) * chunk)};
  }
  ranges[n++] = {static_cast<uint32_t>(own * chunk), static_cast<uint32_t>(position + 1)};
  return n;
}

float* Engine::ffn_shift(uint32_t slot) {
  const BlockRef block = model_->order[running_block_];
  return block.is_attention ? slots_.attention_ffn_shift(slot, block.index)
                            : slots_.ffn_shift(slot, block.index);
}

// x = x + V relu(K (xx + (shift - xx) * x_k))^2,  xx = LN(x; ln2)
void Engine::channel_mix(const LayerNorm& ln, const ChannelMix& ffn) {
  layer_norm(ln, running_block_ + 1);
  for_tokens([&](size_t t, size_t) {
    const Segment& segment = segments_[segment_of_token_[t]];
    const float* xx = xx_ + t * d_;
    const float* shift = t == segment.begin ? ffn_shift(segment.slot) : xx - d_;
    kernels_.token_shift(xx, shift, ffn.x_k, d_, xk_.x + t * d_);
    quantize(xk_, t);
  });
  for (const Segment& segment : segments_) {
    std::memcpy(ffn_shift(segment.slot), xx_ + (segment.begin + segment.n - 1) * d_,
                d_ * sizeof(float));
  }
  matmul({{ffn.key, xk_, hidden_.x, hidden_.width}}, n_pass_);
  for_tokens([&](size_t t, size_t) {
    float* hidden = hidden_.x + t * hidden_.width;
    kernels_.relu_squared(hidden, hidden_.width, hidden);
    quantize(hidden_, t);
  });
  matmul({{ffn.value, hidden_, x_, d_, true}}, n_pass_);
}

// logits = head LN(x; ln_out), for the tokens that were asked for
void Engine::write_logits(const wkvm_row* rows, float* logits) {
  size_t n = 0;
  const auto add = [&](size_t t) {
    std::memcpy(head_in_.x + n * d_, xx_ + t * d_, d_ * sizeof(float));
    quantize(head_in_, n);
    ++n;
  };
  for (const Segment& segment : segments_) {
    const uint32_t wanted = rows[segment.row].logits;
    const size_t end = segment.begin + segment.n;
    if (wanted == WKVM_LOGITS_ALL) {
      for (size_t t = segment.begin; t < end; ++t) add(t);
    } else if (wanted == WKVM_LOGITS_LAST && segment.is_last) {
      add(end - 1);
    }
  }
  if (n == 0) return;
  const size_t n_vocab = model_->shape.n_vocab;
  matmul({{model_->head, head_in_, logits + n_logits_rows_ * n_vocab, n_vocab}}, n);
  n_logits_rows_ += n;
}

void Engine::logits_of_slot(uint32_t slot, float* logits, size_t logits_len) {
  const size_t n_vocab = model_->shape.n_vocab;
  if (slots_.sound(slot).n_tokens == 0) {
    fail(WKVM_INVALID_ARGUMENT, "slot %u has seen no token yet: there are no logits", slot);
  }
  if (!logits || logits_len != n_vocab) {
    fail(WKVM_INVALID_ARGUMENT, "logits hold %zu floats, not %zu", logits_len, n_vocab);
  }
  const FloatEnvironment environment;
  std::memcpy(head_in_.x, slots_.x_last(slot), d_ * sizeof(float));
  quantize(head_in_, 0);
  matmul({{model_->head, head_in_, logits, n_vocab}}, 1);
}

}  // namespace wkvm

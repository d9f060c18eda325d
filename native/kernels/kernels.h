// The table of kernels: everything that does arithmetic on activations, once per instruction set.
//
// numerics.md beside this file is the contract that makes the sets agree bit for bit: 16 lanes run
// over outputs, sums over inputs run in ascending order in blocks of kSumBlock, multiply-adds are
// fused where written as fma, reductions use one fixed tree. Kernels never allocate, never throw,
// and promise nothing about NaN beyond not crashing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace wkvm {

constexpr size_t kLanes = 16;
constexpr size_t kPanel = 64;      // outputs in one weight panel; the last one may be 16, 32 or 48
constexpr size_t kSumBlock = 256;  // inputs in one partial sum
constexpr size_t kMaxHeadSize = 256;

// The storage types of weights and KV. Values are those of wkvm_dtype.
enum class DType : uint32_t { kF32 = 0, kF16 = 1, kBF16 = 2, kI8 = 3 };

// One panel of a float matrix W [out, in]: [in][width], so that lane = output.
//   y[t][o] = sum_k x[t][k] * W[o][k]         (fma, blocks of kSumBlock, blocks added in order)
// With `add`, y[t][o] = y[t][o] + that sum.
struct MatmulPanel {
  DType type;         // kF32, kF16, kBF16
  const void* panel;  // width * n_in elements
  size_t width;       // 16, 32, 48, 64: outputs, padding included
  size_t n_in;
  const float* x;  // [n_tokens][x_stride]
  size_t x_stride;
  float* y;  // [n_tokens][y_stride], at the panel's first output; `width` floats are written
  size_t y_stride;
  size_t n_tokens;
  bool add;
};

// One panel of an int8 matrix: [ceil(in/4)][width][4], inputs beyond n_in are zero.
//   y[t][o] = float(sum_k xq[t][k] * Wq[o][k]) * (x_scale[t] * w_scale[o])     (exact int32 sum)
struct MatmulPanelI8 {
  const int8_t* panel;
  const float* w_scale;  // [width]
  size_t width;
  size_t n_in;      // at most 65,536
  const int8_t* x;  // [n_tokens][x_stride]; readable, and zero, up to a multiple of 4
  size_t x_stride;
  const float* x_scale;  // [n_tokens]
  const int32_t* x_sum;  // [n_tokens]: sum of a row of x; lets VNNI take the weights with an offset
  float* y;
  size_t y_stride;
  size_t n_tokens;
  bool add;
};

// The time mix of one head over the tokens of one row, from the projections to the gated output.
// Pointers are at the head's first channel; [T] buffers advance by `stride` floats a token.
struct TimeMixHead {
  size_t head_size;  // N, a multiple of 16, at most kMaxHeadSize
  size_t n_tokens;
  size_t stride;
  const float* r;
  float* k;                   // in: K xk; out: scaled by k_a
  float* v;                   // in: V xv; out: mixed with v_first (untouched in layer 0)
  const float* w_lora;        // tanh(xw w1) w2
  const float* a_lora;        // (xa a1) a2
  const float* v_lora;        // (xv v1) v2; null in layer 0
  const float* v_first;       // layer 0's v of the same tokens; null in layer 0
  const float* g;             // sigmoid(xg g1) g2
  const float *w0, *a0, *v0;  // [N]; v0 null in layer 0
  const float *k_k, *k_a, *r_k;
  const float *ln_weight, *ln_bias;  // ln_x
  float ln_eps;
  float* state;  // [key][value] float32 [N][N], updated
  float* y;      // out: (groupnorm + bonus) * g
};

// Indices [begin, end) of a KV cache, in storage order.
struct KvRange {
  uint32_t begin, end;
};

// The keys and values of one head in one cache.
// K lies in tiles of 16 positions: element (i, d) at k[(i / 16) * k_tile + d * 16 + i % 16].
// V lies in rows: element (i, d) at v[i * v_row + d].
struct KvHead {
  DType type;  // kF16 or kF32
  const void* k;
  size_t k_tile;  // elements from one tile to the next
  const void* v;
  size_t v_row;  // elements from one row to the next
};

// One query of one head. Scores are (sum_d q[d] * k[d]) * scale; two passes: the exact maximum,
// then exp, its sum, and the weighted values, key by key in the order of `ranges`.
// No visible key gives zeros.
struct AttentionHead {
  KvHead kv;
  size_t head_size;
  float scale;
  const float* q;         // [N]
  const KvRange* ranges;  // ascending in position, not empty, disjoint
  size_t n_ranges;
  float* scores;  // scratch, 64-byte aligned: 16 floats for each tile that a range touches
  float* out;     // [N]
};

struct Kernels {
  const char* isa;

  void (*matmul_panel)(const MatmulPanel&);
  void (*matmul_panel_i8)(const MatmulPanelI8&);

  // q = clamp(round_half_even(x / scale), -127, 127), scale = max|x| / 127; zeros give scale 0.
  // Writes zeros up to a multiple of 4. Returns the scale; *sum is the sum of q.
  float (*quantize_row)(const float* x, size_t n, int8_t* q, int32_t* sum);

  // y = (x - mean) / sqrt(var + eps) * weight + bias; biased variance, two passes. n % 16 == 0.
  void (*layer_norm)(const float* x, size_t n, const float* weight, const float* bias, float eps,
                     float* y);
  // y = fma(previous - x, mix, x): one token's shifted input. n % 16 == 0.
  void (*token_shift)(const float* x, const float* previous, const float* mix, size_t n, float* y);

  void (*time_mix_head)(const TimeMixHead&);
  void (*attention_head)(const AttentionHead&);
  // scores[i] = (sum_d q[d] * k(i, d)) * scale for i in [0, n), d ascending; writes whole tiles.
  void (*attention_scores)(const KvHead&, size_t head_size, const float* q, float scale, size_t n,
                           float* scores);

  // In place or out of place, any n.
  void (*exp)(const float* x, size_t n, float* y);
  void (*log)(const float* x, size_t n, float* y);
  void (*tanh)(const float* x, size_t n, float* y);
  void (*sigmoid)(const float* x, size_t n, float* y);
  void (*relu_squared)(const float* x, size_t n, float* y);
  // y = exp(x - shift): softmax's numerators.
  void (*exp_shifted)(const float* x, size_t n, float shift, float* y);
  float (*max)(const float* x, size_t n);  // n >= 1

  // float <-> half types. Narrowing rounds half to even; widening is exact, any bit pattern.
  void (*widen)(DType type, const void* x, size_t n, float* y);
  void (*narrow_f16)(const float* x, size_t n, uint16_t* y);

  bool (*all_finite)(const float* x, size_t n);
  // The largest |x|, for range checks; NaN counts as infinity.
  float (*max_abs)(const float* x, size_t n);
};

// The sets of this build that this CPU and operating system can run, best first.
const Kernels* const* kernels_available(size_t* n);

}  // namespace wkvm

// The kernels, once, over the 16 lanes of the simd_*.h that is included before this file. Every
// translation unit that includes it makes one table; numerics.md says which orders are promises.
//
// Everything here has internal linkage: an inline function shared between units with different
// instruction flags could end up as the copy that this CPU cannot run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

#if defined(__clang__)
#define WKVM_UNROLL _Pragma("unroll")
#else
#define WKVM_UNROLL _Pragma("GCC unroll 16")
#endif

namespace wkvm {
namespace {

constexpr float kInfinity = __builtin_inff();

// ------------------------------------------------------------------------ partial vectors

inline size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// The first n < 16 floats; the other lanes are `rest`.
inline Vec load_part(const float* p, size_t n, float rest) {
  float lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = i < n ? p[i] : rest;
  return load(lanes);
}

inline void store_part(float* p, size_t n, const Vec& a) {
  float lanes[kLanes];
  store(lanes, a);
  for (size_t i = 0; i < n; ++i) p[i] = lanes[i];
}

// y[i] = f(x[i]), in place or out of place.
template <class Function>
inline void map(const float* x, size_t n, float* y, Function f) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, f(load(x + i)));
  if (i < n) store_part(y + i, n - i, f(load_part(x + i, n - i, 0.0f)));
}

// ------------------------------------------------------------------------ functions of one number

// c[0] + x * (c[1] + x * ...)
template <size_t N>
inline Vec polynomial(const Vec& x, const float (&c)[N]) {
  Vec sum = set1(c[N - 1]);
  WKVM_UNROLL
  for (size_t i = 1; i < N; ++i) sum = fma(sum, x, set1(c[N - 1 - i]));
  return sum;
}

inline Vec negate(const Vec& x) { return from_bits(isub(to_bits(x), iset1(INT32_MIN))); }

// The limits are the first operands, so that a NaN passes.
inline Vec exp_lanes(const Vec& x) {
  // 1.5 * 2^23: the sum's last place is 1, its low bits are the integer nearest to x / ln 2.
  const Vec magic = set1(0x1.8p23f);
  const Vec clamped = min(set1(89.0f), max(set1(-104.0f), x));
  const Vec shifted = fma(clamped, set1(0x1.715476p0f), magic);
  const Vec n = sub(shifted, magic);
  Vec r = fma(n, set1(-0x1.62e430p-1f), clamped);
  r = fma(n, set1(0x1.05c610p-29f), r);
  constexpr float kCoefficients[] = {0x1.fffffcp-2f, 0x1.555492p-3f, 0x1.5558eep-5f, 0x1.123a0ep-7f,
                                     0x1.6a28b2p-10f};
  const Vec p = add(set1(1.0f), fma(polynomial(r, kCoefficients), mul(r, r), r));
  // 2^n as two factors, so that subnormal results and infinity come out of the multiplications.
  const Ivec exponent = isub(to_bits(shifted), to_bits(magic));
  const Ivec half = shift_right<1>(exponent);
  const Ivec bias = iset1(127);
  const Vec scale1 = from_bits(shift_left<23>(iadd(half, bias)));
  const Vec scale2 = from_bits(shift_left<23>(iadd(isub(exponent, half), bias)));
  return mul(mul(p, scale1), scale2);
}

inline Vec sigmoid_lanes(const Vec& x) {
  return div(set1(1.0f), add(set1(1.0f), exp_lanes(negate(x))));
}

inline Vec tanh_lanes(const Vec& x) {
  const Ivec sign = iand(to_bits(x), iset1(INT32_MIN));
  const Vec size = from_bits(iand(to_bits(x), iset1(INT32_MAX)));
  const Vec square = mul(size, size);
  constexpr float kCoefficients[] = {-0x1.555532p-2f, 0x1.110726p-3f, -0x1.b83c58p-5f,
                                     0x1.522692p-6f, -0x1.75e1a6p-8f};
  const Vec small = fma(mul(size, square), polynomial(square, kCoefficients), size);
  const Vec large = sub(set1(1.0f), div(set1(2.0f), add(set1(1.0f), exp_lanes(add(size, size)))));
  const Vec magnitude = select_less(size, set1(0.625f), small, large);
  return from_bits(ior(to_bits(magnitude), sign));
}

inline Vec log_lanes(const Vec& x) {
  const Vec is_tiny = select_less(x, set1(0x1p-126f), set1(1.0f), set1(0.0f));
  const Vec normal = select_less(x, set1(0x1p-126f), mul(x, set1(0x1p23f)), x);
  // normal = m * 2^e with m in [sqrt(1/2), sqrt(2)): 0x3F3504F3 is sqrt(1/2).
  const Ivec offset = isub(to_bits(normal), iset1(0x3F3504F3));
  const Vec e = fma(is_tiny, set1(-23.0f), to_float(shift_right<23>(offset)));
  const Ivec mantissa = iadd(iand(offset, iset1(0x7FFFFF)), iset1(0x3F3504F3));
  const Vec f = sub(from_bits(mantissa), set1(1.0f));
  constexpr float kCoefficients[] = {0x1.555554p-2f,  -0x1.000226p-2f, 0x1.99a006p-3f,
                                     -0x1.547246p-3f, 0x1.22da44p-3f,  -0x1.0d8560p-3f,
                                     0x1.055a6cp-3f,  -0x1.38b25ep-4f};
  const Vec square = mul(f, f);
  Vec tail = mul(mul(f, square), polynomial(f, kCoefficients));
  tail = fma(e, set1(-0x1.05c610p-29f), tail);
  tail = fma(square, set1(-0.5f), tail);
  const Vec finite = fma(e, set1(0x1.62e430p-1f), add(f, tail));
  // Infinity is its own logarithm; zero gives -infinity, less gives NaN, NaN stays.
  const Vec large = select_less(set1(0x1.fffffep127f), x, x, finite);
  const Vec other =
      select_less(x, set1(0.0f), from_bits(iset1(0x7FC00000)), add(x, set1(-kInfinity)));
  return select_less(set1(0.0f), x, large, other);
}

void exp_row(const float* x, size_t n, float* y) {
  map(x, n, y, [](const Vec& a) { return exp_lanes(a); });
}
void log_row(const float* x, size_t n, float* y) {
  map(x, n, y, [](const Vec& a) { return log_lanes(a); });
}
void tanh_row(const float* x, size_t n, float* y) {
  map(x, n, y, [](const Vec& a) { return tanh_lanes(a); });
}
void sigmoid_row(const float* x, size_t n, float* y) {
  map(x, n, y, [](const Vec& a) { return sigmoid_lanes(a); });
}
void relu_squared_row(const float* x, size_t n, float* y) {
  map(x, n, y, [](const Vec& a) {
    const Vec positive = max(set1(0.0f), a);
    return mul(positive, positive);
  });
}
void exp_shifted_row(const float* x, size_t n, float shift, float* y) {
  map(x, n, y, [=](const Vec& a) { return exp_lanes(sub(a, set1(shift))); });
}

float max_row(const float* x, size_t n) {
  Vec largest = set1(x[0]);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = max(largest, load(x + i));
  if (i < n) largest = max(largest, load_part(x + i, n - i, x[0]));
  return reduce_max(largest);
}

// The bits of the largest |x|: they order as the values do, infinity and then NaN above all.
inline int32_t max_abs_bits(const float* x, size_t n) {
  Ivec largest = iset1(0);
  const Ivec mask = iset1(INT32_MAX);
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) largest = imax(largest, iand(to_bits(load(x + i)), mask));
  if (i < n) largest = imax(largest, iand(to_bits(load_part(x + i, n - i, 0.0f)), mask));
  return reduce_imax(largest);
}

inline float float_of_bits(int32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

constexpr int32_t kInfinityBits = 0x7F800000;

bool all_finite_row(const float* x, size_t n) { return max_abs_bits(x, n) < kInfinityBits; }

float max_abs_row(const float* x, size_t n) {
  const int32_t bits = max_abs_bits(x, n);
  return float_of_bits(bits < kInfinityBits ? bits : kInfinityBits);
}

// ------------------------------------------------------------------------ storage types

template <DType D>
constexpr size_t kElementSize = D == DType::kF32 ? 4 : 2;

// 16 elements of type D, expanded exactly.
template <DType D>
inline Vec load_elements(const uint8_t* p) {
  if constexpr (D == DType::kF32) {
    return load(reinterpret_cast<const float*>(p));
  } else if constexpr (D == DType::kF16) {
    return load_f16(reinterpret_cast<const uint16_t*>(p));
  } else {
    static_assert(D == DType::kBF16);
    return load_bf16(reinterpret_cast<const uint16_t*>(p));
  }
}

template <DType D>
inline void widen_typed(const uint8_t* x, size_t n, float* y) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, load_elements<D>(x + i * kElementSize<D>));
  if (i < n) {
    uint8_t part[kLanes * kElementSize<D>] = {};
    for (size_t b = 0; b < (n - i) * kElementSize<D>; ++b) part[b] = x[i * kElementSize<D> + b];
    store_part(y + i, n - i, load_elements<D>(part));
  }
}

void widen_row(DType type, const void* x, size_t n, float* y) {
  const uint8_t* bytes = static_cast<const uint8_t*>(x);
  switch (type) {
    case DType::kF32:
      return widen_typed<DType::kF32>(bytes, n, y);
    case DType::kF16:
      return widen_typed<DType::kF16>(bytes, n, y);
    case DType::kBF16:
      return widen_typed<DType::kBF16>(bytes, n, y);
    case DType::kI8:
      return;  // no float type
  }
}

void narrow_f16_row(const float* x, size_t n, uint16_t* y) {
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_f16(y + i, load(x + i));
  if (i < n) {
    uint16_t part[kLanes];
    store_f16(part, load_part(x + i, n - i, 0.0f));
    for (size_t j = 0; i + j < n; ++j) y[i + j] = part[j];
  }
}

float quantize_row(const float* x, size_t n, int8_t* q, int32_t* sum) {
  const float scale = float_of_bits(max_abs_bits(x, n)) / 127.0f;
  const size_t padded = (n + 3) / 4 * 4;
  // Zeros, or subnormals so small that the division rounds to zero; or not finite: the scale alone
  // then carries the NaN or infinity on, and the sums stay within int32.
  if (scale == 0.0f || !(scale <= __FLT_MAX__)) {
    for (size_t i = 0; i < padded; ++i) q[i] = 0;
    *sum = 0;
    return scale;
  }
  const Vec magic = set1(0x1.8p23f);  // as in exp_lanes: rounds half to even
  Ivec total = iset1(0);
  const auto quantize = [&](const Vec& a) {
    const Vec clamped = min(set1(127.0f), max(set1(-127.0f), div(a, set1(scale))));
    const Ivec out = isub(to_bits(add(clamped, magic)), to_bits(magic));
    total = iadd(total, out);
    return out;
  };
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store_i8(q + i, quantize(load(x + i)));
  if (i < n) {
    int8_t part[kLanes];
    store_i8(part, quantize(load_part(x + i, n - i, 0.0f)));
    for (size_t j = 0; i + j < padded; ++j) q[i + j] = part[j];
  }
  *sum = reduce_iadd(total);
  return scale;
}

// ------------------------------------------------------------------------ matrices

constexpr size_t kChunkTokens = 48;  // tokens whose totals lie in the first-level cache

// Asks for one input's weights of the whole panel, kAhead bytes further on in the stream of panels.
// The pass over the first columns does this for all. What lies behind the last panel is harmless.
// Measured (Zen 4): weights that are read once, or while they are still there, want the first-level
// cache alone (kLocality 0): float weights then come at 31 GB/s of 33; by way of the second level,
// at 22. A single token's int8 weights cost hardly a cycle each and decode 9% faster by that way.
template <int kLocality, size_t kAhead>
inline void prefetch(const void* row, size_t n_bytes) {
  const uint8_t* ahead = static_cast<const uint8_t*>(row) + kAhead;
  WKVM_UNROLL
  for (size_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(ahead + i, 0, kLocality);
}

template <DType D>
struct FloatPanel {
  using Input = float;
  using Total = float;
  static constexpr size_t kBlock = kSumBlock;
  const MatmulPanel& m;

  size_t padded_inputs() const { return m.n_in; }

  // totals[T][kPanel] += the sums over inputs [begin, begin + count) for W vectors of outputs.
  template <int T, int W>
  void add_block(const float* x, size_t column, size_t begin, size_t count, float* totals) const {
    const size_t row_bytes = m.width * kElementSize<D>;
    const uint8_t* row =
        static_cast<const uint8_t*>(m.panel) + begin * row_bytes + column * kElementSize<D>;
    Vec sum[T][W];
    WKVM_UNROLL
    for (int t = 0; t < T; ++t) {
      WKVM_UNROLL
      for (int w = 0; w < W; ++w) sum[t][w] = set1(0.0f);
    }
    for (size_t k = 0; k < count; ++k, row += row_bytes) {
      if (column == 0) prefetch<0, 8192>(row, kPanel * kElementSize<D>);
      Vec weights[W];
      WKVM_UNROLL
      for (int w = 0; w < W; ++w) weights[w] = load_elements<D>(row + w * kLanes * kElementSize<D>);
      WKVM_UNROLL
      for (int t = 0; t < T; ++t) {
        const Vec input = set1(x[t * m.x_stride + k]);
        WKVM_UNROLL
        for (int w = 0; w < W; ++w) sum[t][w] = fma(input, weights[w], sum[t][w]);
      }
    }
    WKVM_UNROLL
    for (int t = 0; t < T; ++t) {
      WKVM_UNROLL
      for (int w = 0; w < W; ++w) {
        float* total = totals + t * kPanel + w * kLanes;
        store(total, add(load(total), sum[t][w]));
      }
    }
  }
};

struct Int8Panel {
  using Input = int8_t;
  using Total = int32_t;
  static constexpr size_t kBlock = 512;  // 32 KiB of weights; integer sums may be cut anywhere
  const MatmulPanelI8& m;

  size_t padded_inputs() const { return (m.n_in + 3) / 4 * 4; }

  template <int T, int W>
  void add_block(const int8_t* x, size_t column, size_t begin, size_t count,
                 int32_t* totals) const {
    const int8_t* row = m.panel + begin * m.width + column * 4;
    Ivec sum[T][W];
    WKVM_UNROLL
    for (int t = 0; t < T; ++t) {
      WKVM_UNROLL
      for (int w = 0; w < W; ++w) sum[t][w] = iload(totals + t * kPanel + w * kLanes);
    }
    for (size_t k = 0; k < count; k += 4, row += 4 * m.width) {
      if (column == 0) prefetch<T == 1 ? 2 : 0, T == 1 ? 4096 : 8192>(row, kPanel * 4);
      I8Weights weights[W];
      WKVM_UNROLL
      for (int w = 0; w < W; ++w) weights[w] = load_i8_weights(row + w * kLanes * 4);
      WKVM_UNROLL
      for (int t = 0; t < T; ++t) {
        const I8Inputs inputs = load_i8_inputs(x + t * m.x_stride + k);
        WKVM_UNROLL
        for (int w = 0; w < W; ++w) sum[t][w] = dot(sum[t][w], weights[w], inputs);
      }
    }
    WKVM_UNROLL
    for (int t = 0; t < T; ++t) {
      WKVM_UNROLL
      for (int w = 0; w < W; ++w) istore(totals + t * kPanel + w * kLanes, sum[t][w]);
    }
  }
};

// One block of inputs for T tokens and the whole width of the panel.
template <int T, class Panel>
inline void add_tile(const Panel& panel, size_t token, size_t begin, size_t count,
                     typename Panel::Total* totals) {
  const typename Panel::Input* x = panel.m.x + token * panel.m.x_stride + begin;
  constexpr int kVectors = tile_vectors(T);
  size_t column = 0;
  for (; column + kVectors * kLanes <= panel.m.width; column += kVectors * kLanes) {
    panel.template add_block<T, kVectors>(x, column, begin, count, totals + column);
  }
  for (; column < panel.m.width; column += kLanes) {
    panel.template add_block<T, 1>(x, column, begin, count, totals + column);
  }
}

// add_tile for a number of tokens that is known at run time, T <= n_tokens <= kTileTokens.
template <int T, class Panel>
inline void add_tiles(size_t n_tokens, const Panel& panel, size_t token, size_t begin, size_t count,
                      typename Panel::Total* totals) {
  if constexpr (T == kTileTokens) {
    add_tile<T>(panel, token, begin, count, totals);
  } else if (n_tokens == T) {
    add_tile<T>(panel, token, begin, count, totals);
  } else {
    add_tiles<T + 1>(n_tokens, panel, token, begin, count, totals);
  }
}

// totals[n_tokens][kPanel] += the sums over all inputs. Blocks are outermost, so that the weights
// of a block come from memory once for all tokens.
template <class Panel>
inline void add_panel(const Panel& panel, size_t token, size_t n_tokens,
                      typename Panel::Total* totals) {
  const size_t n_in = panel.padded_inputs();
  for (size_t begin = 0; begin < n_in; begin += Panel::kBlock) {
    const size_t count = smaller(Panel::kBlock, n_in - begin);
    for (size_t t = 0; t < n_tokens;) {
      const size_t n_tiles = (n_tokens - t + kTileTokens - 1) / kTileTokens;
      const size_t tile = (n_tokens - t + n_tiles - 1) / n_tiles;  // even tiles: 7 = 4 + 3
      add_tiles<1>(tile, panel, token + t, begin, count, totals + t * kPanel);
      t += tile;
    }
  }
}

inline void write_output(float* y, const Vec& value, bool accumulate) {
  store(y, accumulate ? add(load(y), value) : value);
}

template <DType D>
inline void matmul_panel_typed(const MatmulPanel& m) {
  alignas(64) float totals[kChunkTokens * kPanel];
  for (size_t token = 0; token < m.n_tokens; token += kChunkTokens) {
    const size_t n_tokens = smaller(kChunkTokens, m.n_tokens - token);
    for (size_t i = 0; i < n_tokens * kPanel; ++i) totals[i] = 0.0f;
    add_panel(FloatPanel<D>{m}, token, n_tokens, totals);
    for (size_t t = 0; t < n_tokens; ++t) {
      float* y = m.y + (token + t) * m.y_stride;
      for (size_t i = 0; i < m.width; i += kLanes) {
        write_output(y + i, load(totals + t * kPanel + i), m.add);
      }
    }
  }
}

void matmul_panel(const MatmulPanel& m) {
  switch (m.type) {
    case DType::kF32:
      return matmul_panel_typed<DType::kF32>(m);
    case DType::kF16:
      return matmul_panel_typed<DType::kF16>(m);
    case DType::kBF16:
      return matmul_panel_typed<DType::kBF16>(m);
    case DType::kI8:
      return;  // matmul_panel_i8's
  }
}

void matmul_panel_i8(const MatmulPanelI8& m) {
  alignas(64) int32_t totals[kChunkTokens * kPanel];
  for (size_t token = 0; token < m.n_tokens; token += kChunkTokens) {
    const size_t n_tokens = smaller(kChunkTokens, m.n_tokens - token);
    for (size_t t = 0; t < n_tokens; ++t) {
      const int32_t offset = kDotOffset * m.x_sum[token + t];
      for (size_t i = 0; i < kPanel; ++i) totals[t * kPanel + i] = -offset;
    }
    add_panel(Int8Panel{m}, token, n_tokens, totals);
    for (size_t t = 0; t < n_tokens; ++t) {
      float* y = m.y + (token + t) * m.y_stride;
      const Vec x_scale = set1(m.x_scale[token + t]);
      for (size_t i = 0; i < m.width; i += kLanes) {
        const Vec scale = mul(x_scale, load(m.w_scale + i));
        write_output(y + i, mul(to_float(iload(totals + t * kPanel + i)), scale), m.add);
      }
    }
  }
}

// ------------------------------------------------------------------------ norms and shift

// y = (x - mean) / sqrt(variance + eps) * weight + bias
void layer_norm_row(const float* x, size_t n, const float* weight, const float* bias, float eps,
                    float* y) {
  Vec sum = set1(0.0f);
  for (size_t i = 0; i < n; i += kLanes) sum = add(sum, load(x + i));
  const Vec mean = set1(reduce_add(sum) / static_cast<float>(n));
  Vec squares = set1(0.0f);
  for (size_t i = 0; i < n; i += kLanes) {
    const Vec d = sub(load(x + i), mean);
    squares = fma(d, d, squares);
  }
  const float variance = reduce_add(squares) / static_cast<float>(n);
  const Vec inverse = set1(1.0f / __builtin_sqrtf(variance + eps));
  for (size_t i = 0; i < n; i += kLanes) {
    const Vec d = sub(load(x + i), mean);
    store(y + i, fma(mul(d, inverse), load(weight + i), load(bias + i)));
  }
}

void token_shift_row(const float* x, const float* previous, const float* mix, size_t n, float* y) {
  for (size_t i = 0; i < n; i += kLanes) {
    const Vec now = load(x + i);
    store(y + i, fma(sub(load(previous + i), now), load(mix + i), now));
  }
}

// ------------------------------------------------------------------------ time mix

// Sums over keys run as 4 partial sums, over keys j with j mod 4 = 0, 1, 2, 3, each ascending, and
// end as (0 + 1) + (2 + 3). 4 divides every head size.
constexpr size_t kKeySums = 4;

// What one token does to the state of one head; [N] each.
struct Step {
  const float* decay;    // w
  const float* remove;   // -kk
  const float* replace;  // kk * a
  const float* k;
  const float* v;
  const float* r;
};

template <int W>
inline void merge(const Vec (&sum)[kKeySums][W], Vec (&out)[W]) {
  WKVM_UNROLL
  for (int i = 0; i < W; ++i) out[i] = add(add(sum[0][i], sum[1][i]), add(sum[2][i], sum[3][i]));
}

template <int W>
inline void clear(Vec (&sum)[kKeySums][W]) {
  WKVM_UNROLL
  for (size_t p = 0; p < kKeySums; ++p) {
    WKVM_UNROLL
    for (int i = 0; i < W; ++i) sum[p][i] = set1(0.0f);
  }
}

// Values [column, column + 16 W) of one head and token. S is [key][value]: lanes run over values,
// both sums run over keys.
//   sa[i]   = sum_j S[j][i] * -kk[j]
//   S[j][i] = S[j][i] * w[j] + sa[i] * (kk[j] * a[j]) + v[i] * k[j]
//   y[i]    = sum_j S[j][i] * r[j]
template <int W>
inline void time_mix_columns(float* state, size_t n, size_t column, const Step& step, float* y) {
  Vec sum[kKeySums][W], sa[W], v[W], out[W];
  clear(sum);
  const float* from = state + column;
  for (size_t j = 0; j < n; j += kKeySums) {
    WKVM_UNROLL
    for (size_t p = 0; p < kKeySums; ++p, from += n) {
      const Vec remove = set1(step.remove[j + p]);
      WKVM_UNROLL
      for (int i = 0; i < W; ++i) sum[p][i] = fma(load(from + i * kLanes), remove, sum[p][i]);
    }
  }
  merge(sum, sa);
  clear(sum);
  WKVM_UNROLL
  for (int i = 0; i < W; ++i) v[i] = load(step.v + column + i * kLanes);
  float* row = state + column;
  for (size_t j = 0; j < n; j += kKeySums) {
    WKVM_UNROLL
    for (size_t p = 0; p < kKeySums; ++p, row += n) {
      const Vec decay = set1(step.decay[j + p]);
      const Vec replace = set1(step.replace[j + p]);
      const Vec k = set1(step.k[j + p]);
      const Vec r = set1(step.r[j + p]);
      WKVM_UNROLL
      for (int i = 0; i < W; ++i) {
        Vec s = mul(load(row + i * kLanes), decay);
        s = fma(sa[i], replace, s);
        s = fma(v[i], k, s);
        store(row + i * kLanes, s);
        sum[p][i] = fma(s, r, sum[p][i]);
      }
    }
  }
  merge(sum, out);
  WKVM_UNROLL
  for (int i = 0; i < W; ++i) store(y + column + i * kLanes, out[i]);
}

void time_mix_head(const TimeMixHead& m) {
  const size_t n = m.head_size;
  alignas(64) float decay[kMaxHeadSize], remove[kMaxHeadSize], replace[kMaxHeadSize];
  alignas(64) float sums[kMaxHeadSize];
  const Vec one = set1(1.0f);
  for (size_t t = 0; t < m.n_tokens; ++t) {
    const size_t at = t * m.stride;
    const float* r = m.r + at;
    float* k = m.k + at;
    float* v = m.v + at;
    float* y = m.y + at;

    Vec squares = set1(0.0f);
    for (size_t i = 0; i < n; i += kLanes) {
      const Vec kk = mul(load(k + i), load(m.k_k + i));
      squares = fma(kk, kk, squares);
      store(remove + i, kk);
    }
    const float norm = __builtin_sqrtf(reduce_add(squares));
    const Vec divisor = set1(norm > 1e-12f ? norm : 1e-12f);

    Vec bonus_lanes = set1(0.0f);
    for (size_t i = 0; i < n; i += kLanes) {
      const Vec s = sigmoid_lanes(add(load(m.w0 + i), load(m.w_lora + at + i)));
      store(decay + i, exp_lanes(mul(set1(-0.606531f), s)));
      const Vec a = sigmoid_lanes(add(load(m.a0 + i), load(m.a_lora + at + i)));
      const Vec kk = div(load(remove + i), divisor);
      store(remove + i, negate(kk));
      store(replace + i, mul(kk, a));
      const Vec scaled_k = mul(load(k + i), fma(sub(a, one), load(m.k_a + i), one));
      store(k + i, scaled_k);
      if (m.v_first) {
        const Vec old = load(v + i);
        const Vec gate = sigmoid_lanes(add(load(m.v0 + i), load(m.v_lora + at + i)));
        store(v + i, fma(sub(load(m.v_first + at + i), old), gate, old));
      }
      bonus_lanes = fma(mul(load(r + i), scaled_k), load(m.r_k + i), bonus_lanes);
    }
    const Vec bonus = set1(reduce_add(bonus_lanes));

    const Step step = {decay, remove, replace, k, v, r};
    size_t column = 0;
    for (; column + kKeyVectors * kLanes <= n; column += kKeyVectors * kLanes) {
      time_mix_columns<kKeyVectors>(m.state, n, column, step, sums);
    }
    for (; column < n; column += kLanes) time_mix_columns<1>(m.state, n, column, step, sums);

    layer_norm_row(sums, n, m.ln_weight, m.ln_bias, m.ln_eps, sums);
    for (size_t i = 0; i < n; i += kLanes) {
      store(y + i, mul(fma(bonus, load(v + i), load(sums + i)), load(m.g + at + i)));
    }
  }
}

// ------------------------------------------------------------------------ attention

// Scores of `kTiles` consecutive tiles of 16 keys.
template <DType D, int kTiles>
inline void score_tiles(const KvHead& kv, size_t head_size, const float* q, float scale,
                        size_t tile, float* scores) {
  const uint8_t* k = static_cast<const uint8_t*>(kv.k) + tile * kv.k_tile * kElementSize<D>;
  const size_t tile_bytes = kv.k_tile * kElementSize<D>;
  Vec sum[kTiles];
  WKVM_UNROLL
  for (int i = 0; i < kTiles; ++i) sum[i] = set1(0.0f);
  for (size_t d = 0; d < head_size; ++d, k += kLanes * kElementSize<D>) {
    const Vec query = set1(q[d]);
    WKVM_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      sum[i] = fma(query, load_elements<D>(k + i * tile_bytes), sum[i]);
    }
  }
  WKVM_UNROLL
  for (int i = 0; i < kTiles; ++i) store(scores + i * kLanes, mul(sum[i], set1(scale)));
}

// Scores of tiles [begin, end), from scores[0] on.
template <DType D>
inline void score_typed(const KvHead& kv, size_t head_size, const float* q, float scale,
                        size_t begin, size_t end, float* scores) {
  size_t tile = begin;
  for (; tile + kScoreTiles <= end; tile += kScoreTiles) {
    score_tiles<D, kScoreTiles>(kv, head_size, q, scale, tile, scores + (tile - begin) * kLanes);
  }
  for (; tile < end; ++tile) {
    score_tiles<D, 1>(kv, head_size, q, scale, tile, scores + (tile - begin) * kLanes);
  }
}

inline size_t first_tile(const KvRange& range) { return range.begin / kLanes; }
inline size_t last_tile(const KvRange& range) { return (range.end + kLanes - 1) / kLanes; }

// out[column .. column + 16 W) = sum of weights * values / sum of weights, key by key.
template <DType D, int W>
inline void weigh_values(const AttentionHead& m, size_t column) {
  float total = 0.0f;
  Vec sum[W];
  WKVM_UNROLL
  for (int i = 0; i < W; ++i) sum[i] = set1(0.0f);
  const float* tile_weights = m.scores;
  for (size_t j = 0; j < m.n_ranges; ++j) {
    const KvRange& range = m.ranges[j];
    const size_t count = range.end - range.begin;
    const float* weights = tile_weights + range.begin % kLanes;
    const uint8_t* v =
        static_cast<const uint8_t*>(m.kv.v) + (range.begin * m.kv.v_row + column) * kElementSize<D>;
    for (size_t i = 0; i < count; ++i, v += m.kv.v_row * kElementSize<D>) {
      total = total + weights[i];
      const Vec weight = set1(weights[i]);
      WKVM_UNROLL
      for (int c = 0; c < W; ++c) {
        sum[c] = fma(weight, load_elements<D>(v + c * kLanes * kElementSize<D>), sum[c]);
      }
    }
    tile_weights += (last_tile(range) - first_tile(range)) * kLanes;
  }
  WKVM_UNROLL
  for (int i = 0; i < W; ++i) store(m.out + column + i * kLanes, div(sum[i], set1(total)));
}

template <DType D>
inline void attention_typed(const AttentionHead& m) {
  if (m.n_ranges == 0) {
    for (size_t i = 0; i < m.head_size; ++i) m.out[i] = 0.0f;
    return;
  }
  float largest = -kInfinity;
  float* scores = m.scores;
  for (size_t j = 0; j < m.n_ranges; ++j) {
    const KvRange& range = m.ranges[j];
    score_typed<D>(m.kv, m.head_size, m.q, m.scale, first_tile(range), last_tile(range), scores);
    const float here = max_row(scores + range.begin % kLanes, range.end - range.begin);
    largest = largest > here ? largest : here;
    scores += (last_tile(range) - first_tile(range)) * kLanes;
  }
  // Lanes outside the ranges are computed too, and never read.
  exp_shifted_row(m.scores, static_cast<size_t>(scores - m.scores), largest, m.scores);
  size_t column = 0;
  for (; column + 4 * kLanes <= m.head_size; column += 4 * kLanes) weigh_values<D, 4>(m, column);
  for (; column < m.head_size; column += kLanes) weigh_values<D, 1>(m, column);
}

void attention_head(const AttentionHead& m) {
  if (m.kv.type == DType::kF16) {
    attention_typed<DType::kF16>(m);
  } else {
    attention_typed<DType::kF32>(m);
  }
}

void attention_scores(const KvHead& kv, size_t head_size, const float* q, float scale, size_t n,
                      float* scores) {
  const size_t tiles = (n + kLanes - 1) / kLanes;
  if (kv.type == DType::kF16) {
    score_typed<DType::kF16>(kv, head_size, q, scale, 0, tiles, scores);
  } else {
    score_typed<DType::kF32>(kv, head_size, q, scale, 0, tiles, scores);
  }
}

constexpr Kernels make_table(const char* isa) {
  return {isa,
          matmul_panel,
          matmul_panel_i8,
          quantize_row,
          layer_norm_row,
          token_shift_row,
          time_mix_head,
          attention_head,
          attention_scores,
          exp_row,
          log_row,
          tanh_row,
          sigmoid_row,
          relu_squared_row,
          exp_shifted_row,
          max_row,
          widen_row,
          narrow_f16_row,
          all_finite_row,
          max_abs_row};
}

}  // namespace
}  // namespace wkvm

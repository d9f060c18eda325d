// 16 float lanes as a plain array: the set that every CPU has, and the meaning of all the others.
#pragma once

#include <cstdint>
#include <cstring>

namespace wkvm {
namespace {

struct Vec {
  float lane[16];
};
struct Ivec {
  int32_t lane[16];
};

// Register tile of a matmul over T tokens: how many vectors of outputs it holds.
constexpr int kTileTokens = 6;
constexpr int tile_vectors(int n_tokens) { return n_tokens == 1 ? 4 : 1; }
constexpr int kKeyVectors = 1;  // vectors of values that the time mix holds
constexpr int kScoreTiles = 1;  // tiles of keys that are scored together

template <class Operation>
inline Vec map_lanes(Operation operation) {
  Vec out;
  for (int i = 0; i < 16; ++i) out.lane[i] = operation(i);
  return out;
}

template <class Operation>
inline Ivec map_ints(Operation operation) {
  Ivec out;
  for (int i = 0; i < 16; ++i) out.lane[i] = operation(i);
  return out;
}

// Unsigned arithmetic: wraps like the vector instructions.
inline int32_t wrap(uint32_t x) { return static_cast<int32_t>(x); }
inline uint32_t bits(int32_t x) { return static_cast<uint32_t>(x); }

inline uint32_t float_bits(float x) {
  uint32_t out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}

inline float bits_float(uint32_t x) {
  float out;
  std::memcpy(&out, &x, sizeof out);
  return out;
}

inline Vec set1(float x) {
  return map_lanes([=](int) { return x; });
}
inline Vec load(const float* p) {
  return map_lanes([=](int i) { return p[i]; });
}
inline void store(float* p, const Vec& a) { std::memcpy(p, a.lane, sizeof a.lane); }

inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return map_lanes([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], c.lane[i]); });
}
inline Vec add(const Vec& a, const Vec& b) {
  return map_lanes([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vec sub(const Vec& a, const Vec& b) {
  return map_lanes([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Vec mul(const Vec& a, const Vec& b) {
  return map_lanes([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vec div(const Vec& a, const Vec& b) {
  return map_lanes([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline Vec max(const Vec& a, const Vec& b) {
  return map_lanes([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline Vec min(const Vec& a, const Vec& b) {
  return map_lanes([&](int i) { return a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]; });
}
// a < b ? x : y
inline Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
  return map_lanes([&](int i) { return a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]; });
}

inline Ivec to_bits(const Vec& a) {
  Ivec out;
  std::memcpy(&out, &a, sizeof out);
  return out;
}
inline Vec from_bits(const Ivec& a) {
  Vec out;
  std::memcpy(&out, &a, sizeof out);
  return out;
}
inline Vec to_float(const Ivec& a) {
  return map_lanes([&](int i) { return static_cast<float>(a.lane[i]); });
}
inline Ivec iset1(int32_t x) {
  return map_ints([=](int) { return x; });
}
inline Ivec iload(const int32_t* p) {
  return map_ints([=](int i) { return p[i]; });
}
inline void istore(int32_t* p, const Ivec& a) { std::memcpy(p, a.lane, sizeof a.lane); }
inline Ivec iadd(const Ivec& a, const Ivec& b) {
  return map_ints([&](int i) { return wrap(bits(a.lane[i]) + bits(b.lane[i])); });
}
inline Ivec isub(const Ivec& a, const Ivec& b) {
  return map_ints([&](int i) { return wrap(bits(a.lane[i]) - bits(b.lane[i])); });
}
inline Ivec iand(const Ivec& a, const Ivec& b) {
  return map_ints([&](int i) { return a.lane[i] & b.lane[i]; });
}
inline Ivec ior(const Ivec& a, const Ivec& b) {
  return map_ints([&](int i) { return a.lane[i] | b.lane[i]; });
}
inline Ivec imax(const Ivec& a, const Ivec& b) {
  return map_ints([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
template <int N>
inline Ivec shift_left(const Ivec& a) {
  return map_ints([&](int i) { return wrap(bits(a.lane[i]) << N); });
}
template <int N>
inline Ivec shift_right(const Ivec& a) {  // keeps the sign
  return map_ints([&](int i) { return a.lane[i] >> N; });
}

// float16 by integer arithmetic, with the results of the hardware's conversions.
inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u;
  const uint32_t mantissa = h & 0x3FFu;
  if (exponent == 31) {  // infinity; a NaN comes out quiet
    return bits_float(sign | 0x7F800000u | mantissa << 13 | (mantissa ? 0x400000u : 0u));
  }
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exactly
    return bits_float(sign | float_bits(static_cast<float>(mantissa) * 0x1p-24f));
  }
  return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t sign = float_bits(x) >> 16 & 0x8000u;
  const uint32_t magnitude = float_bits(x) & 0x7FFFFFFFu;
  uint32_t out;
  if (magnitude > 0x7F800000u) {  // NaN
    out = 0x7E00u | (magnitude >> 13 & 0x3FFu);
  } else if (magnitude >= 0x47800000u) {  // 2^16 and more
    out = 0x7C00u;
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14, the result is a multiple of 2^-24, which is the last place of 0.5: adding 0.5
    // rounds half to even.
    out = float_bits(bits_float(magnitude) + 0.5f) - 0x3F000000u;
  } else {
    // Half of the last place, less one unless the kept bit is odd; a carry may reach infinity.
    out = (magnitude - 0x38000000u + 0xFFFu + (magnitude >> 13 & 1u)) >> 13;
  }
  return static_cast<uint16_t>(sign | out);
}

inline Vec load_f16(const uint16_t* p) {
  return map_lanes([=](int i) { return f16_to_f32(p[i]); });
}
inline Vec load_bf16(const uint16_t* p) {
  return map_lanes([=](int i) { return bits_float(static_cast<uint32_t>(p[i]) << 16); });
}
inline void store_f16(uint16_t* p, const Vec& a) {
  for (int i = 0; i < 16; ++i) p[i] = f32_to_f16(a.lane[i]);
}
inline void store_i8(int8_t* p, const Ivec& a) {  // lanes in [-128, 127]
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.lane[i]);
}

// The one tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
template <class T, class Operation>
inline T reduce(const T* lanes, Operation operation) {
  T a[16];
  for (int i = 0; i < 16; ++i) a[i] = lanes[i];
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a[i] = operation(a[i], a[i + half]);
  }
  return a[0];
}
inline float reduce_add(const Vec& a) {
  return reduce(a.lane, [](float x, float y) { return x + y; });
}
inline float reduce_max(const Vec& a) {
  return reduce(a.lane, [](float x, float y) { return x > y ? x : y; });
}
inline int32_t reduce_iadd(const Ivec& a) {
  return reduce(a.lane, [](int32_t x, int32_t y) { return wrap(bits(x) + bits(y)); });
}
inline int32_t reduce_imax(const Ivec& a) {
  return reduce(a.lane, [](int32_t x, int32_t y) { return x > y ? x : y; });
}

// 16 outputs x 4 inputs of int8 weights, and the dot product with 4 inputs of one token. The sum
// is off by kDotOffset * (sum of the inputs).
constexpr int32_t kDotOffset = 0;
struct I8Weights {
  const int8_t* at;
};
struct I8Inputs {
  int32_t at[4];
};
inline I8Weights load_i8_weights(const int8_t* p) { return {p}; }
inline I8Inputs load_i8_inputs(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
inline Ivec dot(const Ivec& sum, const I8Weights& w, const I8Inputs& x) {
  return map_ints([&](int i) {
    const int8_t* q = w.at + 4 * i;
    return sum.lane[i] + (q[0] * x.at[0] + q[1] * x.at[1] + q[2] * x.at[2] + q[3] * x.at[3]);
  });
}

}  // namespace
}  // namespace wkvm

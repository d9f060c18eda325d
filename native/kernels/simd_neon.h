// 16 float lanes in four q registers: the baseline of 64-bit ARM.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace wkvm {
namespace {

struct Vec {
  float32x4_t q[4];
};
struct Ivec {
  int32x4_t q[4];
};

// 32 registers: 6 tokens x 1 vector (24 registers) of sums, 4 of weights, 1 of inputs.
constexpr int kTileTokens = 6;
constexpr int tile_vectors(int n_tokens) { return n_tokens == 1 ? 4 : n_tokens <= 3 ? 2 : 1; }
constexpr int kKeyVectors = 1;
constexpr int kScoreTiles = 4;

template <class Operation>
inline Vec map_quarters(Operation operation) {
  return {{operation(0), operation(1), operation(2), operation(3)}};
}
template <class Operation>
inline Ivec map_int_quarters(Operation operation) {
  return {{operation(0), operation(1), operation(2), operation(3)}};
}

inline Vec set1(float x) {
  return map_quarters([=](int) { return vdupq_n_f32(x); });
}
inline Vec load(const float* p) {
  return map_quarters([=](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, const Vec& a) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.q[i]);
}

inline Vec fma(const Vec& a, const Vec& b, const Vec& c) {
  return map_quarters([&](int i) { return vfmaq_f32(c.q[i], a.q[i], b.q[i]); });
}
inline Vec add(const Vec& a, const Vec& b) {
  return map_quarters([&](int i) { return vaddq_f32(a.q[i], b.q[i]); });
}
inline Vec sub(const Vec& a, const Vec& b) {
  return map_quarters([&](int i) { return vsubq_f32(a.q[i], b.q[i]); });
}
inline Vec mul(const Vec& a, const Vec& b) {
  return map_quarters([&](int i) { return vmulq_f32(a.q[i], b.q[i]); });
}
inline Vec div(const Vec& a, const Vec& b) {
  return map_quarters([&](int i) { return vdivq_f32(a.q[i], b.q[i]); });
}
// Comparisons, because the instructions treat zeros and NaN in another way.
inline Vec max(const Vec& a, const Vec& b) {
  return map_quarters([&](int i) { return vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]); });
}
inline Vec min(const Vec& a, const Vec& b) {
  return map_quarters([&](int i) { return vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]); });
}
// a < b ? x : y
inline Vec select_less(const Vec& a, const Vec& b, const Vec& x, const Vec& y) {
  return map_quarters([&](int i) { return vbslq_f32(vcltq_f32(a.q[i], b.q[i]), x.q[i], y.q[i]); });
}

inline Ivec to_bits(const Vec& a) {
  return map_int_quarters([&](int i) { return vreinterpretq_s32_f32(a.q[i]); });
}
inline Vec from_bits(const Ivec& a) {
  return map_quarters([&](int i) { return vreinterpretq_f32_s32(a.q[i]); });
}
inline Vec to_float(const Ivec& a) {
  return map_quarters([&](int i) { return vcvtq_f32_s32(a.q[i]); });
}
inline Ivec iset1(int32_t x) {
  return map_int_quarters([=](int) { return vdupq_n_s32(x); });
}
inline Ivec iload(const int32_t* p) {
  return map_int_quarters([=](int i) { return vld1q_s32(p + 4 * i); });
}
inline void istore(int32_t* p, const Ivec& a) {
  for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, a.q[i]);
}
inline Ivec iadd(const Ivec& a, const Ivec& b) {
  return map_int_quarters([&](int i) { return vaddq_s32(a.q[i], b.q[i]); });
}
inline Ivec isub(const Ivec& a, const Ivec& b) {
  return map_int_quarters([&](int i) { return vsubq_s32(a.q[i], b.q[i]); });
}
inline Ivec iand(const Ivec& a, const Ivec& b) {
  return map_int_quarters([&](int i) { return vandq_s32(a.q[i], b.q[i]); });
}
inline Ivec ior(const Ivec& a, const Ivec& b) {
  return map_int_quarters([&](int i) { return vorrq_s32(a.q[i], b.q[i]); });
}
inline Ivec imax(const Ivec& a, const Ivec& b) {
  return map_int_quarters([&](int i) { return vmaxq_s32(a.q[i], b.q[i]); });
}
template <int N>
inline Ivec shift_left(const Ivec& a) {
  return map_int_quarters([&](int i) { return vshlq_n_s32(a.q[i], N); });
}
template <int N>
inline Ivec shift_right(const Ivec& a) {  // keeps the sign
  return map_int_quarters([&](int i) { return vshrq_n_s32(a.q[i], N); });
}

inline Vec load_f16(const uint16_t* p) {
  return map_quarters(
      [=](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Vec load_bf16(const uint16_t* p) {
  return map_quarters(
      [=](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
inline void store_f16(uint16_t* p, const Vec& a) {
  for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}
inline void store_i8(int8_t* p, const Ivec& a) {  // lanes in [-128, 127]
  const int16x8_t low = vcombine_s16(vmovn_s32(a.q[0]), vmovn_s32(a.q[1]));
  const int16x8_t high = vcombine_s16(vmovn_s32(a.q[2]), vmovn_s32(a.q[3]));
  vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}

// The one tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float reduce_add(const Vec& a) {
  const float32x4_t b = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
  const float32x2_t c = vadd_f32(vget_low_f32(b), vget_high_f32(b));
  return vget_lane_f32(c, 0) + vget_lane_f32(c, 1);
}
inline float reduce_max(const Vec& a) {
  const auto larger = [](float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); };
  const float32x4_t b = larger(larger(a.q[0], a.q[2]), larger(a.q[1], a.q[3]));
  const float32x4_t c = larger(b, vextq_f32(b, b, 2));
  const float x = vgetq_lane_f32(c, 0), y = vgetq_lane_f32(c, 1);
  return x > y ? x : y;
}
inline int32_t reduce_iadd(const Ivec& a) {
  return vaddvq_s32(vaddq_s32(vaddq_s32(a.q[0], a.q[1]), vaddq_s32(a.q[2], a.q[3])));
}
inline int32_t reduce_imax(const Ivec& a) {
  return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.q[0], a.q[1]), vmaxq_s32(a.q[2], a.q[3])));
}

// 16 outputs x 4 inputs of int8 weights, and the dot product with 4 inputs of one token. The sum
// is off by kDotOffset * (sum of the inputs).
constexpr int32_t kDotOffset = 0;
struct I8Weights {
  int8x16_t q[4];
};
using I8Inputs = int8x16_t;
inline I8Weights load_i8_weights(const int8_t* p) {
  return {{vld1q_s8(p), vld1q_s8(p + 16), vld1q_s8(p + 32), vld1q_s8(p + 48)}};
}
inline I8Inputs load_i8_inputs(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
inline Ivec dot(const Ivec& sum, const I8Weights& w, I8Inputs x) {
  return map_int_quarters([&](int i) {
    const int16x8_t low = vmull_s8(vget_low_s8(w.q[i]), vget_low_s8(x));
    const int16x8_t high = vmull_high_s8(w.q[i], x);
    // A pair is at most 2 * 127 * 127 and fits int16.
    return vpadalq_s16(sum.q[i], vpaddq_s16(low, high));
  });
}

}  // namespace
}  // namespace wkvm

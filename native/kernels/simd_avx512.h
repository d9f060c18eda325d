// 16 float lanes in one zmm register. Needs AVX-512 F, BW, DQ, VL; uses VNNI if the flags have it.
#pragma once

// gcc 12 takes the undefined operands inside its own intrinsics for mistakes (its bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstdint>

namespace wkvm {
namespace {

using Vec = __m512;
using Ivec = __m512i;

// A tile of a matmul: 6 tokens x 4 vectors of outputs, whose sums take 24 of 32 registers.
constexpr int kTileTokens = 6;
constexpr int tile_vectors(int) { return 4; }
constexpr int kKeyVectors = 2;
constexpr int kScoreTiles = 8;

inline Vec set1(float x) { return _mm512_set1_ps(x); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a); }

inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }  // a > b ? a : b
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }  // a < b ? a : b
// a < b ? x : y
inline Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

inline Ivec to_bits(Vec a) { return _mm512_castps_si512(a); }
inline Vec from_bits(Ivec a) { return _mm512_castsi512_ps(a); }
inline Vec to_float(Ivec a) { return _mm512_cvtepi32_ps(a); }
inline Ivec iset1(int32_t x) { return _mm512_set1_epi32(x); }
inline Ivec iload(const int32_t* p) { return _mm512_loadu_si512(p); }
inline void istore(int32_t* p, Ivec a) { _mm512_storeu_si512(p, a); }
inline Ivec iadd(Ivec a, Ivec b) { return _mm512_add_epi32(a, b); }
inline Ivec isub(Ivec a, Ivec b) { return _mm512_sub_epi32(a, b); }
inline Ivec iand(Ivec a, Ivec b) { return _mm512_and_si512(a, b); }
inline Ivec ior(Ivec a, Ivec b) { return _mm512_or_si512(a, b); }
inline Ivec imax(Ivec a, Ivec b) { return _mm512_max_epi32(a, b); }
template <int N>
inline Ivec shift_left(Ivec a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
inline Ivec shift_right(Ivec a) {  // keeps the sign
  return _mm512_srai_epi32(a, N);
}

inline Vec load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Vec load_bf16(const uint16_t* p) {
  // Word i goes to the upper half of lane i, zeros below it: one instruction.
  const __m512i from = _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0,
                                        6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return from_bits(_mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, from, _mm512_castsi256_si512(half)));
}
inline void store_f16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store_i8(int8_t* p, Ivec a) {  // lanes in [-128, 127]
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
}

// The one tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float reduce_add(Vec a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float reduce_max(Vec a) {
  const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
inline int32_t reduce_iadd(Ivec a) { return _mm512_reduce_add_epi32(a); }
inline int32_t reduce_imax(Ivec a) { return _mm512_reduce_max_epi32(a); }

// 16 outputs x 4 inputs of int8 weights, and the dot product with 4 inputs of one token. The sum
// is off by kDotOffset * (sum of the inputs).
using I8Inputs = Ivec;
inline I8Inputs load_i8_inputs(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

#ifdef __AVX512VNNI__

// vpdpbusd multiplies unsigned by signed: the weights go in as w + 128.
constexpr int32_t kDotOffset = 128;
using I8Weights = Ivec;
inline I8Weights load_i8_weights(const int8_t* p) {
  return _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(-128));
}
// Assembly, because gcc 12 copies the accumulator around the intrinsic.
inline Ivec dot(Ivec sum, I8Weights w, I8Inputs x) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
  return sum;
}

#else

// |w| * (x with the sign of w): a pair is at most 2 * 127 * 127 and fits the int16 of vpmaddubsw.
constexpr int32_t kDotOffset = 0;
struct I8Weights {
  Ivec magnitude;
  __mmask64 negative;
};
inline I8Weights load_i8_weights(const int8_t* p) {
  const Ivec w = _mm512_loadu_si512(p);
  return {_mm512_abs_epi8(w), _mm512_movepi8_mask(w)};
}
inline Ivec dot(Ivec sum, const I8Weights& w, I8Inputs x) {
  const Ivec signed_x = _mm512_mask_sub_epi8(x, w.negative, _mm512_setzero_si512(), x);
  const Ivec pairs = _mm512_maddubs_epi16(w.magnitude, signed_x);
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}

#endif

}  // namespace
}  // namespace wkvm

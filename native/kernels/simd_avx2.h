// 16 float lanes in two ymm registers. Needs AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace wkvm {
namespace {

struct Vec {
  __m256 low, high;
};
struct Ivec {
  __m256i low, high;
};

// 16 registers: 6 tokens x 1 vector (12 registers) of sums, 2 of weights, 1 of inputs.
constexpr int kTileTokens = 6;
constexpr int tile_vectors(int n_tokens) { return n_tokens == 1 ? 4 : n_tokens <= 3 ? 2 : 1; }
constexpr int kKeyVectors = 1;
constexpr int kScoreTiles = 4;

inline Vec set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}

inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Vec add(Vec a, Vec b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Vec sub(Vec a, Vec b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Vec mul(Vec a, Vec b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Vec div(Vec a, Vec b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Vec max(Vec a, Vec b) {  // a > b ? a : b
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
inline Vec min(Vec a, Vec b) {  // a < b ? a : b
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
// a < b ? x : y
inline Vec select_less(Vec a, Vec b, Vec x, Vec y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

inline __m256i load_ymm(const void* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
inline __m128i load_xmm(const void* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

inline Ivec to_bits(Vec a) { return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)}; }
inline Vec from_bits(Ivec a) { return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)}; }
inline Vec to_float(Ivec a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }
inline Ivec iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ivec iload(const int32_t* p) { return {load_ymm(p), load_ymm(p + 8)}; }
inline void istore(int32_t* p, Ivec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.high);
}
inline Ivec iadd(Ivec a, Ivec b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
inline Ivec isub(Ivec a, Ivec b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}
inline Ivec iand(Ivec a, Ivec b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
inline Ivec ior(Ivec a, Ivec b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}
inline Ivec imax(Ivec a, Ivec b) {
  return {_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}
template <int N>
inline Ivec shift_left(Ivec a) {
  return {_mm256_slli_epi32(a.low, N), _mm256_slli_epi32(a.high, N)};
}
template <int N>
inline Ivec shift_right(Ivec a) {  // keeps the sign
  return {_mm256_srai_epi32(a.low, N), _mm256_srai_epi32(a.high, N)};
}

inline Vec load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(load_xmm(p)), _mm256_cvtph_ps(load_xmm(p + 8))};
}
inline Vec load_bf16(const uint16_t* p) {
  return from_bits(
      shift_left<16>({_mm256_cvtepu16_epi32(load_xmm(p)), _mm256_cvtepu16_epi32(load_xmm(p + 8))}));
}
inline void store_f16(uint16_t* p, Vec a) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.low, kNearest));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.high, kNearest));
}
inline void store_i8(int8_t* p, Ivec a) {  // lanes in [-128, 127]
  // Both packs work within 128-bit halves: 64-bit groups come out as 0, 2, 1, 3.
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.low, a.high), 0xD8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

// The one tree: lanes i and i + 8, then i + 4, i + 2, i + 1.
inline float reduce_add(Vec a) {
  const __m256 b = _mm256_add_ps(a.low, a.high);
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
}
inline float reduce_max(Vec a) {
  const __m256 b = _mm256_max_ps(a.low, a.high);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
}
inline int32_t reduce_iadd(Ivec a) {
  const __m256i b = _mm256_add_epi32(a.low, a.high);
  const __m128i c = _mm_add_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  const __m128i d = _mm_add_epi32(c, _mm_shuffle_epi32(c, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(d, _mm_shuffle_epi32(d, 0xB1)));
}
inline int32_t reduce_imax(Ivec a) {
  const __m256i b = _mm256_max_epi32(a.low, a.high);
  const __m128i c = _mm_max_epi32(_mm256_castsi256_si128(b), _mm256_extracti128_si256(b, 1));
  const __m128i d = _mm_max_epi32(c, _mm_shuffle_epi32(c, 0x4E));
  return _mm_cvtsi128_si32(_mm_max_epi32(d, _mm_shuffle_epi32(d, 0xB1)));
}

// 16 outputs x 4 inputs of int8 weights, and the dot product with 4 inputs of one token. The sum
// is off by kDotOffset * (sum of the inputs).
// |w| * (x with the sign of w): a pair is at most 2 * 127 * 127 and fits the int16 of vpmaddubsw.
constexpr int32_t kDotOffset = 0;
using I8Weights = Ivec;
using I8Inputs = __m256i;
inline I8Weights load_i8_weights(const int8_t* p) { return {load_ymm(p), load_ymm(p + 32)}; }
inline I8Inputs load_i8_inputs(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return _mm256_set1_epi32(four);
}
inline __m256i dot(__m256i sum, __m256i w, __m256i x) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline Ivec dot(Ivec sum, I8Weights w, I8Inputs x) {
  return {dot(sum.low, w.low, x), dot(sum.high, w.high, x)};
}

}  // namespace
}  // namespace wkvm

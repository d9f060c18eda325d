// Every kernel of every instruction set that this machine has, byte for byte against scalar, over
// sizes that hit every tail; scalar against the definitions of kernels/numerics.md. Buffers have
// exact sizes, so that the address sanitizer sees a read or write beyond an end.
#include "kernels/kernels.h"

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/isa.h"
#include "tests/check.h"

using wkvm::DType;
using wkvm::Kernels;
using wkvm::kernels_available;
using wkvm::kernels_for;

namespace {

using Floats = std::vector<float>;

std::vector<const Kernels*> all_tables() {
  size_t n;
  const Kernels* const* tables = kernels_available(&n);
  return {tables, tables + n};
}

const Kernels& scalar() { return kernels_for("scalar"); }

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

#define CHECK_SAME(k, a, b)                                                                \
  do {                                                                                     \
    if (!same(a, b)) std::fprintf(stderr, "%s differs from the expected bits\n", (k).isa); \
    CHECK(same(a, b));                                                                     \
  } while (0)

// FNV-1a over the expected bits of all that is computed in floating point, so that this test says
// the same on every architecture.
struct Digest {
  uint64_t value = 0xCBF29CE484222325u;
  void add(const Floats& x) {
    for (float lane : x) {
      uint32_t bits;
      std::memcpy(&bits, &lane, sizeof bits);
      for (int i = 0; i < 32; i += 8) value = (value ^ (bits >> i & 255)) * 0x100000001B3u;
    }
  }
};
Digest digest;

// splitmix64
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t n) { return next() % n; }
  float unit() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  // Bell-shaped, with a standard deviation near 1.
  float normal() { return (unit() + unit() + unit() + unit() - 2) * 1.7f; }
  // Mostly ordinary values; zeros of both signs, subnormals and large ones among them.
  float value() {
    switch (below(12)) {
      case 0:
        return 0.0f;
      case 1:
        return -0.0f;
      case 2:
        return normal() * 0x1p-140f;
      case 3:
        return normal() * 0x1p+12f;
      case 4:
        return normal() * 0x1p-60f;
      default:
        return normal();
    }
  }
  Floats values(size_t n) {
    Floats out(n);
    for (float& x : out) x = value();
    return out;
  }
  Floats normals(size_t n, float scale = 1) {
    Floats out(n);
    for (float& x : out) x = normal() * scale;
    return out;
  }
};

uint32_t float_bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

float bits_float(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// ------------------------------------------------------------------------ functions of rows

using RowFunction = void (*Kernels::*)(const float*, size_t, float*);
constexpr RowFunction kRowFunctions[] = {&Kernels::exp, &Kernels::log, &Kernels::tanh,
                                         &Kernels::sigmoid, &Kernels::relu_squared};

void row_functions_are_equal_on_every_set() {
  // Every 4,093rd finite float, both signs: 1,044,000 of them. log gives NaN for the negative
  // ones, by definition with one bit pattern.
  Floats sweep;
  for (uint64_t bits = 0; bits < 0x7F800000u; bits += 4093) {
    sweep.push_back(bits_float(static_cast<uint32_t>(bits)));
    sweep.push_back(-sweep.back());
  }
  for (float x :
       {bits_float(0x7F7FFFFFu), 0x1p-126f, bits_float(0x007FFFFFu), bits_float(1), 88.72f, 88.73f,
        -103.9f, -104.0f, 0.625f, std::nextafter(0.625f, 0.0f), INFINITY}) {
    sweep.push_back(x);
    sweep.push_back(-x);
  }
  Random random{1};
  for (RowFunction f : kRowFunctions) {
    Floats expected(sweep.size()), out(sweep.size());
    (scalar().*f)(sweep.data(), sweep.size(), expected.data());
    digest.add(expected);
    for (const Kernels* k : all_tables()) {
      (k->*f)(sweep.data(), sweep.size(), out.data());
      CHECK_SAME(*k, out, expected);
      for (size_t n = 1; n <= 67; ++n) {
        const Floats x = random.values(n);
        Floats a(n), b(n), in_place = x;
        (scalar().*f)(x.data(), n, a.data());
        (k->*f)(x.data(), n, b.data());
        (k->*f)(in_place.data(), n, in_place.data());
        CHECK_SAME(*k, b, a);
        CHECK_SAME(*k, in_place, a);
      }
    }
  }
}

void row_functions_keep_nan_and_limits() {
  for (const Kernels* k : all_tables()) {
    for (RowFunction f : kRowFunctions) {
      float y;
      const float nan = NAN;
      (k->*f)(&nan, 1, &y);
      CHECK(std::isnan(y));
    }
    const Floats x = {INFINITY, -INFINITY, 0.0f, 1.0f, -1.0f};
    Floats y(x.size());
    k->exp(x.data(), x.size(), y.data());
    CHECK(y[0] == INFINITY && y[1] == 0 && y[2] == 1);
    k->log(x.data(), x.size(), y.data());
    CHECK(y[0] == INFINITY && std::isnan(y[1]) && y[2] == -INFINITY && y[3] == 0 &&
          std::isnan(y[4]));
    k->tanh(x.data(), x.size(), y.data());
    CHECK(y[0] == 1 && y[1] == -1 && y[2] == 0);
    k->sigmoid(x.data(), x.size(), y.data());
    CHECK(y[0] == 1 && y[1] == 0 && y[2] == 0.5f);
    k->relu_squared(x.data(), x.size(), y.data());
    CHECK(y[0] == INFINITY && y[1] == 0 && y[3] == 1 && y[4] == 0);
  }
}

void reductions_of_rows_are_equal_on_every_set() {
  Random random{2};
  for (size_t n = 1; n <= 131; ++n) {
    const Floats x = random.values(n);
    float largest = x[0], size = 0;
    for (float value : x) {
      largest = value > largest ? value : largest;
      size = std::fabs(value) > size ? std::fabs(value) : size;
    }
    const float expected = scalar().max(x.data(), n);
    CHECK(expected == largest);
    for (const Kernels* k : all_tables()) {
      CHECK(float_bits(k->max(x.data(), n)) == float_bits(expected));
      CHECK(float_bits(k->max_abs(x.data(), n)) == float_bits(size));
      CHECK(k->all_finite(x.data(), n));
      Floats shifted(n), wanted(n);
      scalar().exp_shifted(x.data(), n, largest, wanted.data());
      k->exp_shifted(x.data(), n, largest, shifted.data());
      CHECK_SAME(*k, shifted, wanted);
      for (float bad : {INFINITY, -INFINITY, NAN}) {
        Floats spoilt = x;
        spoilt[random.below(n)] = bad;
        CHECK(!k->all_finite(spoilt.data(), n));
        CHECK(k->max_abs(spoilt.data(), n) == INFINITY);
      }
    }
  }
}

// ------------------------------------------------------------------------ half types

void every_half_widens_to_the_same_bits() {
  std::vector<uint16_t> all(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  for (DType type : {DType::kF16, DType::kBF16}) {
    Floats expected(all.size()), out(all.size());
    scalar().widen(type, all.data(), all.size(), expected.data());
    for (size_t i = 0; i < all.size(); ++i) {
      // By definition; NaN only has to be one.
      const int exponent = static_cast<int>(i >> 10 & 31), mantissa = static_cast<int>(i & 1023);
      float want = bits_float(static_cast<uint32_t>(i) << 16);
      if (type == DType::kF16) {
        want = exponent == 31  ? (mantissa ? NAN : INFINITY)
               : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                               : std::ldexp(static_cast<float>(mantissa + 1024), exponent - 25);
        if (i & 0x8000) want = -want;
      }
      CHECK(std::isnan(want) ? std::isnan(expected[i])
                             : float_bits(want) == float_bits(expected[i]));
    }
    for (const Kernels* k : all_tables()) {
      k->widen(type, all.data(), all.size(), out.data());
      CHECK_SAME(*k, out, expected);
      for (size_t n = 1; n < 35; ++n) {
        const std::vector<uint16_t> few(all.begin(), all.begin() + static_cast<long>(n));
        Floats a(n), b(n);
        scalar().widen(type, few.data(), n, a.data());
        k->widen(type, few.data(), n, b.data());
        CHECK_SAME(*k, b, a);
      }
    }
  }
}

void narrowing_rounds_half_to_even() {
  // Each float16, the midpoint to the next one, and the floats on either side of that midpoint.
  std::vector<uint16_t> half(0x7C00);
  for (size_t i = 0; i < half.size(); ++i) half[i] = static_cast<uint16_t>(i);
  Floats exact(half.size());
  scalar().widen(DType::kF16, half.data(), half.size(), exact.data());
  Floats x;
  std::vector<uint16_t> expected;
  for (size_t i = 0; i < half.size(); ++i) {
    const float next = i + 1 < half.size() ? exact[i + 1] : 65536.0f;
    const float middle = exact[i] + (next - exact[i]) / 2;
    const auto up = static_cast<uint16_t>(i + 1), down = static_cast<uint16_t>(i);
    x.insert(x.end(),
             {exact[i], std::nextafter(middle, 0.0f), middle, std::nextafter(middle, INFINITY)});
    expected.insert(expected.end(), {down, down, i % 2 ? up : down, up});
  }
  for (float large : {65536.0f, 1e30f, INFINITY}) {
    x.push_back(large);
    expected.push_back(0x7C00);
  }
  x.push_back(1e-40f);
  expected.push_back(0);
  const size_t n = x.size();
  for (size_t i = 0; i < n; ++i) {
    x.push_back(-x[i]);
    expected.push_back(expected[i] | 0x8000);
  }
  for (const Kernels* k : all_tables()) {
    std::vector<uint16_t> out(x.size());
    k->narrow_f16(x.data(), x.size(), out.data());
    CHECK_SAME(*k, out, expected);
    for (size_t few = 1; few < 35; ++few) {
      const Floats some(x.begin(), x.begin() + static_cast<long>(few));
      std::vector<uint16_t> a(few);
      k->narrow_f16(some.data(), few, a.data());
      CHECK(std::memcmp(a.data(), expected.data(), few * 2) == 0);
    }
  }
}

// ------------------------------------------------------------------------ int8 rows

void quantizing_follows_its_definition() {
  Random random{3};
  for (size_t n = 1; n <= 70; ++n) {
    for (int kind = 0; kind < 6; ++kind) {
      Floats x = random.normals(n);
      if (kind == 1) x = Floats(n, 0.0f);
      if (kind == 2) x = random.values(n);
      if (kind == 3) {  // exact ties
        for (float& value : x) value = static_cast<float>(random.below(509)) / 2 - 127;
        x[random.below(n)] = 127;
      }
      if (kind == 4) {  // a subnormal scale: quotients beyond 127 are clipped
        for (float& value : x) value *= 0x1p-143f;
      }
      if (kind == 5) {  // the scale rounds to zero
        for (float& value : x) value = random.below(2) ? 0x1p-149f : -0.0f;
      }
      float largest = 0;
      for (float value : x) largest = std::fabs(value) > largest ? std::fabs(value) : largest;
      const float scale = largest / 127;
      std::vector<int8_t> expected((n + 3) / 4 * 4, 0);
      int32_t total = 0;
      for (size_t i = 0; i < n && scale != 0; ++i) {
        float q = std::nearbyint(x[i] / scale);
        q = q > 127 ? 127 : q < -127 ? -127 : q;
        expected[i] = static_cast<int8_t>(q);
        total += expected[i];
      }
      for (const Kernels* k : all_tables()) {
        std::vector<int8_t> q(expected.size(), 99);
        int32_t sum = -1;
        const float got = k->quantize_row(x.data(), n, q.data(), &sum);
        CHECK(float_bits(got) == float_bits(scale));
        CHECK(sum == total);
        CHECK_SAME(*k, q, expected);
      }
    }
  }
}

// Its scale carries the fault on; q and sum stay small, so that no product overflows.
void a_row_that_is_not_finite_quantizes_to_zeros() {
  Random random{13};
  for (size_t n : {1, 4, 16, 17, 50}) {
    for (float bad : {INFINITY, -INFINITY, NAN}) {
      Floats x = random.values(n);
      x[random.below(n)] = bad;
      for (const Kernels* k : all_tables()) {
        std::vector<int8_t> q((n + 3) / 4 * 4, 99);
        int32_t sum = -1;
        CHECK(!std::isfinite(k->quantize_row(x.data(), n, q.data(), &sum)));
        CHECK(sum == 0);
        CHECK_SAME(*k, q, std::vector<int8_t>(q.size(), 0));
      }
    }
  }
}

// ------------------------------------------------------------------------ matrices

std::vector<uint8_t> float_panel(Random& random, DType type, size_t n) {
  std::vector<uint8_t> out(n * (type == DType::kF32 ? 4 : 2));
  for (size_t i = 0; i < n; ++i) {
    const float value = random.value();
    if (type == DType::kF32) {
      std::memcpy(out.data() + 4 * i, &value, 4);
    } else {
      uint16_t half = static_cast<uint16_t>(float_bits(value) >> 16);
      if (type == DType::kF16) scalar().narrow_f16(&value, 1, &half);
      std::memcpy(out.data() + 2 * i, &half, 2);
    }
  }
  return out;
}

void float_matmul_is_its_definition_for_any_set_and_batch() {
  Random random{4};
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (size_t width : {16, 32, 48, 64}) {
      for (size_t n_in : {1, 2, 63, 255, 256, 257, 600}) {
        const size_t n_tokens = n_in == 600 && width >= 48 ? 101 : 20;
        const size_t x_stride = n_in + 3, y_stride = width + 5;
        const std::vector<uint8_t> panel = float_panel(random, type, n_in * width);
        Floats wide(n_in * width);
        scalar().widen(type, panel.data(), wide.size(), wide.data());
        const Floats x = random.values(n_tokens * x_stride - 3);
        const Floats before = random.values(n_tokens * y_stride - 5);
        for (bool add : {false, true}) {
          Floats expected = before;
          for (size_t t = 0; t < n_tokens; ++t) {
            for (size_t o = 0; o < width; ++o) {
              float total = 0;
              for (size_t begin = 0; begin < n_in; begin += 256) {
                float sum = 0;
                for (size_t i = begin; i < n_in && i < begin + 256; ++i) {
                  sum = __builtin_fmaf(x[t * x_stride + i], wide[i * width + o], sum);
                }
                total = total + sum;
              }
              float& y = expected[t * y_stride + o];
              y = add ? y + total : total;
            }
          }
          for (const Kernels* k : all_tables()) {
            const size_t largest = k == &scalar() ? 7 : 20;
            for (size_t batch = 1; batch <= largest; ++batch) {
              Floats y = before;
              // The last batch takes all that is left: 101 tokens fill several chunks.
              for (size_t t = 0; t < n_tokens;) {
                const size_t n = batch == largest       ? n_tokens
                                 : t + batch < n_tokens ? batch
                                                        : n_tokens - t;
                k->matmul_panel({type, panel.data(), width, n_in, x.data() + t * x_stride, x_stride,
                                 y.data() + t * y_stride, y_stride, n, add});
                t += n;
              }
              CHECK_SAME(*k, y, expected);
            }
          }
        }
      }
    }
  }
}

void int8_matmul_is_exact_for_any_set_and_batch() {
  Random random{5};
  for (size_t width : {16, 32, 48, 64}) {
    for (size_t n_in : {1, 3, 4, 5, 511, 513, 1025}) {
      for (bool extreme : {false, true}) {
        const size_t n_tokens = n_in == 1025 ? 101 : 20;
        const size_t padded = (n_in + 3) / 4 * 4, x_stride = padded + 1, y_stride = width + 5;
        std::vector<int8_t> panel(padded * width, 0), x(n_tokens * x_stride - 1, 0);
        const auto value = [&] {
          return static_cast<int8_t>(extreme ? (random.below(8) ? 127 : -127)
                                             : static_cast<int>(random.below(255)) - 127);
        };
        for (size_t i = 0; i < n_in; ++i) {
          for (size_t o = 0; o < width; ++o) panel[(i / 4 * width + o) * 4 + i % 4] = value();
        }
        std::vector<int32_t> x_sum(n_tokens, 0);
        for (size_t t = 0; t < n_tokens; ++t) {
          for (size_t i = 0; i < n_in; ++i) x_sum[t] += x[t * x_stride + i] = value();
        }
        const Floats w_scale = random.values(width), x_scale = random.values(n_tokens);
        const Floats before = random.values(n_tokens * y_stride - 5);
        for (bool add : {false, true}) {
          Floats expected = before;
          for (size_t t = 0; t < n_tokens; ++t) {
            for (size_t o = 0; o < width; ++o) {
              int64_t sum = 0;
              for (size_t i = 0; i < n_in; ++i) {
                sum += x[t * x_stride + i] * panel[(i / 4 * width + o) * 4 + i % 4];
              }
              const float value_here = static_cast<float>(sum) * (x_scale[t] * w_scale[o]);
              float& y = expected[t * y_stride + o];
              y = add ? y + value_here : value_here;
            }
          }
          for (const Kernels* k : all_tables()) {
            for (size_t batch = 1; batch <= 20; ++batch) {
              Floats y = before;
              for (size_t t = 0; t < n_tokens;) {
                const size_t n = batch == 20            ? n_tokens
                                 : t + batch < n_tokens ? batch
                                                        : n_tokens - t;
                k->matmul_panel_i8({panel.data(), w_scale.data(), width, n_in,
                                    x.data() + t * x_stride, x_stride, x_scale.data() + t,
                                    x_sum.data() + t, y.data() + t * y_stride, y_stride, n, add});
                t += n;
              }
              CHECK_SAME(*k, y, expected);
            }
          }
        }
      }
    }
  }
}

void int8_sums_of_the_longest_rows_do_not_overflow() {
  const size_t n_in = 65536, width = 16;
  for (int w : {127, -127}) {
    for (int q : {127, -127}) {
      const std::vector<int8_t> panel(n_in * width, static_cast<int8_t>(w));
      const std::vector<int8_t> x(n_in, static_cast<int8_t>(q));
      const Floats w_scale(width, 1.0f);
      const float x_scale = 1.0f;
      const int32_t x_sum = q * static_cast<int32_t>(n_in);
      const Floats expected(width, static_cast<float>(w * q) * 65536.0f);
      for (const Kernels* k : all_tables()) {
        Floats y(width);
        k->matmul_panel_i8({panel.data(), w_scale.data(), width, n_in, x.data(), n_in, &x_scale,
                            &x_sum, y.data(), width, 1, false});
        CHECK_SAME(*k, y, expected);
      }
    }
  }
}

// ------------------------------------------------------------------------ norms

void norms_and_shifts_are_equal_on_every_set() {
  Random random{6};
  for (size_t n : {16, 32, 48, 64, 80, 768, 1040}) {
    const Floats x = random.values(n), weight = random.values(n), bias = random.values(n);
    const Floats previous = random.values(n);
    for (float eps : {1e-5f, 64e-5f}) {
      Floats expected(n), y(n);
      scalar().layer_norm(x.data(), n, weight.data(), bias.data(), eps, expected.data());
      digest.add(expected);
      for (const Kernels* k : all_tables()) {
        k->layer_norm(x.data(), n, weight.data(), bias.data(), eps, y.data());
        CHECK_SAME(*k, y, expected);
      }
    }
    for (const Kernels* k : all_tables()) {
      Floats y(n), expected(n);
      for (size_t i = 0; i < n; ++i) {
        expected[i] = __builtin_fmaf(previous[i] - x[i], weight[i], x[i]);
      }
      k->token_shift(x.data(), previous.data(), weight.data(), n, y.data());
      CHECK_SAME(*k, y, expected);
    }
  }
}

// ------------------------------------------------------------------------ time mix

struct TimeMixCase {
  size_t head_size, n_tokens, stride;
  bool first_layer;
  Floats r, k, v, w_lora, a_lora, v_lora, v_first, g, w0, a0, v0, k_k, k_a, r_k, ln_weight, ln_bias;
  Floats state, y;

  TimeMixCase(Random& random, size_t n, size_t tokens, bool first)
      : head_size(n), n_tokens(tokens), stride(n + 16), first_layer(first) {
    for (Floats* row : {&r, &k, &v, &w_lora, &a_lora, &v_lora, &v_first, &g}) {
      *row = random.normals(tokens * stride - 16);
    }
    for (Floats* vector : {&w0, &a0, &v0, &k_k, &k_a, &r_k, &ln_weight, &ln_bias}) {
      *vector = random.normals(n);
    }
    state = random.values(n * n);
    y = Floats(r.size(), 7.0f);
  }

  void run(const Kernels& kernels, size_t begin, size_t end) {
    const size_t at = begin * stride;
    wkvm::TimeMixHead m = {};
    m.head_size = head_size;
    m.n_tokens = end - begin;
    m.stride = stride;
    m.r = r.data() + at;
    m.k = k.data() + at;
    m.v = v.data() + at;
    m.w_lora = w_lora.data() + at;
    m.a_lora = a_lora.data() + at;
    m.v_lora = first_layer ? nullptr : v_lora.data() + at;
    m.v_first = first_layer ? nullptr : v_first.data() + at;
    m.g = g.data() + at;
    m.w0 = w0.data();
    m.a0 = a0.data();
    m.v0 = first_layer ? nullptr : v0.data();
    m.k_k = k_k.data();
    m.k_a = k_a.data();
    m.r_k = r_k.data();
    m.ln_weight = ln_weight.data();
    m.ln_bias = ln_bias.data();
    m.ln_eps = 64e-5f;
    m.state = state.data();
    m.y = y.data() + at;
    kernels.time_mix_head(m);
  }
};

void time_mix_is_equal_on_every_set_and_for_every_cut() {
  Random random{7};
  for (size_t n : {16, 32, 48, 64, 80, 128, 256}) {
    for (bool first : {false, true}) {
      const TimeMixCase start(random, n, 7, first);
      TimeMixCase expected = start;
      expected.run(scalar(), 0, 7);
      digest.add(expected.y);
      digest.add(expected.state);
      CHECK(scalar().all_finite(expected.y.data(), expected.y.size()));
      CHECK(!same(expected.state, start.state));
      CHECK(same(expected.v, start.v) == first);
      for (const Kernels* k : all_tables()) {
        for (size_t cut = 0; cut < 7; ++cut) {
          TimeMixCase got = start;
          if (cut > 0) got.run(*k, 0, cut);
          got.run(*k, cut, 7);
          CHECK_SAME(*k, got.y, expected.y);
          CHECK_SAME(*k, got.k, expected.k);
          CHECK_SAME(*k, got.v, expected.v);
          CHECK_SAME(*k, got.state, expected.state);
        }
      }
    }
  }
}

// ------------------------------------------------------------------------ attention

// `order[i]` is where the key of position i lies; places that hold none are NaN.
struct Cache {
  DType type;
  size_t k_tile, v_row;
  std::vector<uint8_t> k, v;

  Cache(DType dtype, size_t head_size, size_t capacity, const Floats& keys, const Floats& values,
        const std::vector<size_t>& order)
      : type(dtype), k_tile(16 * head_size + 32), v_row(head_size + 16) {
    const size_t size = type == DType::kF32 ? 4 : 2;
    const size_t tiles = (capacity + 15) / 16;
    k.assign(((tiles - 1) * k_tile + 16 * head_size) * size, 0xFF);
    v.assign(((capacity - 1) * v_row + head_size) * size, 0xFF);
    for (size_t i = 0; i < order.size(); ++i) {
      for (size_t d = 0; d < head_size; ++d) {
        const size_t at = order[i];
        put(k, at / 16 * k_tile + d * 16 + at % 16, keys[i * head_size + d]);
        put(v, at * v_row + d, values[i * head_size + d]);
      }
    }
  }

  void put(std::vector<uint8_t>& bytes, size_t index, float value) const {
    if (type == DType::kF32) {
      std::memcpy(bytes.data() + index * 4, &value, 4);
    } else {
      uint16_t half;
      scalar().narrow_f16(&value, 1, &half);
      std::memcpy(bytes.data() + index * 2, &half, 2);
    }
  }

  wkvm::KvHead head() const { return {type, k.data(), k_tile, v.data(), v_row}; }
};

Floats attend(const Kernels& k, const Cache& cache, size_t head_size, const Floats& q,
              const std::vector<wkvm::KvRange>& ranges) {
  size_t tiles = 0;
  for (const wkvm::KvRange& range : ranges) tiles += (range.end + 15) / 16 - range.begin / 16;
  auto* scores = static_cast<float*>(std::aligned_alloc(64, tiles * 64 + 64));
  Floats out(head_size, 7.0f);
  k.attention_head({cache.head(), head_size, 0.125f, q.data(), ranges.data(), ranges.size(), scores,
                    out.data()});
  std::free(scores);
  return out;
}

void attention_depends_on_positions_alone() {
  Random random{8};
  for (DType type : {DType::kF16, DType::kF32}) {
    for (size_t head_size : {16, 48, 64, 80, 128}) {
      for (size_t n : {1, 15, 16, 17, 100, 213}) {
        const Floats keys = random.normals(n * head_size, 2), values = random.values(n * head_size);
        const Floats q = random.normals(head_size);
        std::vector<size_t> straight(n), ring(n);
        const size_t capacity = n + 5, start = n / 3 + 2;
        for (size_t i = 0; i < n; ++i) {
          straight[i] = i;
          ring[i] = (i + start) % capacity;
        }
        const Cache plain(type, head_size, n, keys, values, straight);
        const Cache wrapped(type, head_size, capacity, keys, values, ring);
        const auto count = static_cast<uint32_t>(n);
        const std::vector<wkvm::KvRange> whole = {{0, count}};
        const std::vector<wkvm::KvRange> halves = {{0, count / 2}, {count / 2, count}};
        std::vector<wkvm::KvRange> wrapped_ranges;
        for (size_t i = 0; i < n; ++i) {  // one range up to the end of the ring, one from 0 on
          const auto at = static_cast<uint32_t>(ring[i]);
          if (wrapped_ranges.empty() || wrapped_ranges.back().end != at) {
            wrapped_ranges.push_back({at, at});
          }
          ++wrapped_ranges.back().end;
        }

        // By definition, in order of position.
        const auto stored = [&](float value) {
          if (type == DType::kF32) return value;
          uint16_t half;
          scalar().narrow_f16(&value, 1, &half);
          scalar().widen(DType::kF16, &half, 1, &value);
          return value;
        };
        Floats scores(n), expected(head_size, 0.0f);
        for (size_t i = 0; i < n; ++i) {
          for (size_t d = 0; d < head_size; ++d) {
            scores[i] = __builtin_fmaf(q[d], stored(keys[i * head_size + d]), scores[i]);
          }
          scores[i] *= 0.125f;
        }
        Floats tile_scores((n + 15) / 16 * 16);
        scalar().attention_scores(plain.head(), head_size, q.data(), 0.125f, n, tile_scores.data());
        CHECK(std::memcmp(tile_scores.data(), scores.data(), n * 4) == 0);
        scalar().exp_shifted(scores.data(), n, scalar().max(scores.data(), n), scores.data());
        float total = 0;
        for (size_t i = 0; i < n; ++i) {
          total += scores[i];
          for (size_t d = 0; d < head_size; ++d) {
            expected[d] = __builtin_fmaf(scores[i], stored(values[i * head_size + d]), expected[d]);
          }
        }
        for (float& value : expected) value /= total;
        digest.add(expected);

        for (const Kernels* k : all_tables()) {
          CHECK_SAME(*k, attend(*k, plain, head_size, q, whole), expected);
          if (n > 1) {
            CHECK_SAME(*k, attend(*k, plain, head_size, q, halves), expected);
          }
          CHECK_SAME(*k, attend(*k, wrapped, head_size, q, wrapped_ranges), expected);
          CHECK_SAME(*k, attend(*k, plain, head_size, q, {}), Floats(head_size, 0.0f));
          Floats tiles((n + 15) / 16 * 16);
          k->attention_scores(plain.head(), head_size, q.data(), 0.125f, n, tiles.data());
          CHECK(std::memcmp(tiles.data(), tile_scores.data(), n * 4) == 0);
        }
      }
    }
  }
}

// ------------------------------------------------------------------------ dispatch

void the_set_that_is_asked_for_is_the_one_that_runs() {
  std::string names;
  for (const Kernels* k : all_tables()) {
    CHECK(&kernels_for(k->isa) == k);
    setenv("WKVM_ISA", k->isa, 1);
    CHECK(&kernels_for(nullptr) == k);
    CHECK(&kernels_for("") == k);
    CHECK(&kernels_for("scalar") == &scalar());
    if (!names.empty()) names += ',';
    names += k->isa;
  }
  CHECK(all_tables().back() == &scalar());
  const char* text;
  CHECK(wkvm_isa_list(&text) == WKVM_OK && names == text);

  setenv("WKVM_ISA", "sse9", 1);
  CHECK_ERROR(WKVM_UNSUPPORTED, names.c_str(), kernels_for(nullptr));
  CHECK_ERROR(WKVM_UNSUPPORTED, "WKVM_ISA", kernels_for(nullptr));
  CHECK_ERROR(WKVM_UNSUPPORTED, "AVX2", kernels_for("AVX2"));
  CHECK(wkvm_isa_resolve(nullptr, &text) == WKVM_UNSUPPORTED);
  CHECK(wkvm_isa_resolve("scalar", &text) == WKVM_OK && std::string(text) == "scalar");
  CHECK(wkvm_isa_list(nullptr) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_isa_resolve("scalar", nullptr) == WKVM_INVALID_ARGUMENT);
  unsetenv("WKVM_ISA");
  CHECK(&kernels_for(nullptr) == all_tables().front());
}

}  // namespace

int main() {
  the_set_that_is_asked_for_is_the_one_that_runs();
  row_functions_are_equal_on_every_set();
  row_functions_keep_nan_and_limits();
  reductions_of_rows_are_equal_on_every_set();
  every_half_widens_to_the_same_bits();
  narrowing_rounds_half_to_even();
  quantizing_follows_its_definition();
  a_row_that_is_not_finite_quantizes_to_zeros();
  float_matmul_is_its_definition_for_any_set_and_batch();
  int8_matmul_is_exact_for_any_set_and_batch();
  int8_sums_of_the_longest_rows_do_not_overflow();
  norms_and_shifts_are_equal_on_every_set();
  time_mix_is_equal_on_every_set_and_for_every_cut();
  attention_depends_on_positions_alone();
  CHECK(digest.value == 0xF48247D91ADD8094u);  // of x86-64 and of aarch64 (gcc 12)
  return 0;
}

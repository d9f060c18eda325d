// _kernels: the stateless kernels over NumPy arrays, each with an explicit instruction set.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/isa.h"
#include "core/pack.h"
#include "core/threads.h"
#include "kernels/kernels.h"

namespace py = pybind11;

namespace wkvm {
namespace {

// C order and aligned elements: anything else is copied on the way in.
constexpr int kLayout = static_cast<int>(py::array::c_style) |
                        static_cast<int>(py::detail::npy_api::NPY_ARRAY_ALIGNED_);
using Array = py::array_t<float, kLayout>;
using Int8Array = py::array_t<int8_t, kLayout>;
using RowFunction = void (*Kernels::*)(const float*, size_t, float*);

struct Free {
  void operator()(void* p) const { std::free(p); }
};

// n zeros at a multiple of 64 bytes.
template <class T>
std::unique_ptr<T[], Free> aligned(size_t n) {
  const size_t bytes = round_up(n * sizeof(T) + 1, 64);
  void* p = std::aligned_alloc(64, bytes);
  if (!p) throw std::bad_alloc();
  std::memset(p, 0, bytes);
  return std::unique_ptr<T[], Free>(static_cast<T*>(p));
}

size_t extent(const py::array& a, int axis) { return static_cast<size_t>(a.shape(axis)); }

std::string shape_text(const py::array& a) {
  std::string out = "[";
  for (py::ssize_t i = 0; i < a.ndim(); ++i) {
    if (i > 0) out += ", ";
    out += std::to_string(a.shape(i));
  }
  return out + "]";
}

// Refuses an array whose shape is not `shape`.
void require_shape(const char* name, const py::array& a, const std::vector<size_t>& shape) {
  bool same = static_cast<size_t>(a.ndim()) == shape.size();
  for (size_t i = 0; same && i < shape.size(); ++i) {
    same = extent(a, static_cast<int>(i)) == shape[i];
  }
  if (same) return;
  std::string wanted;
  for (size_t n : shape) {
    if (!wanted.empty()) wanted += ", ";
    wanted += std::to_string(n);
  }
  fail(WKVM_INVALID_ARGUMENT, "%s has shape %s, expected [%s]", name, shape_text(a).c_str(),
       wanted.c_str());
}

void require_dimensions(const char* name, const py::array& a, int n) {
  if (a.ndim() == n) return;
  fail(WKVM_INVALID_ARGUMENT, "%s has shape %s, expected %d dimensions", name,
       shape_text(a).c_str(), n);
}

void require_lanes(const char* what, size_t n, size_t limit) {
  if (n > 0 && n % kLanes == 0 && n <= limit) return;
  fail(WKVM_INVALID_ARGUMENT, "%s is %zu, expected a multiple of 16 from 16 to %zu", what, n,
       limit);
}

// float32, float16, or uint16 as bfloat16.
DType float_type(const char* name, const py::array& a) {
  if (!a.dtype().attr("isnative").cast<bool>()) {
    fail(WKVM_INVALID_ARGUMENT, "%s is not in this machine's byte order", name);
  }
  const char kind = a.dtype().kind();
  const py::ssize_t size = a.dtype().itemsize();
  if (kind == 'f' && size == 4) return DType::kF32;
  if (kind == 'f' && size == 2) return DType::kF16;
  if (kind == 'u' && size == 2) return DType::kBF16;
  fail(WKVM_INVALID_ARGUMENT, "%s must be float32, float16, or uint16 that holds bfloat16", name);
}

template <RowFunction F>
Array map_array(const Array& x, const std::string& isa) {
  const FloatEnvironment environment;
  Array y(std::vector<py::ssize_t>(x.shape(), x.shape() + x.ndim()));
  (kernels_for(isa.c_str()).*F)(x.data(), static_cast<size_t>(x.size()), y.mutable_data());
  return y;
}

Array layer_norm(const Array& x, const Array& weight, const Array& bias, float eps,
                 const std::string& isa) {
  const FloatEnvironment environment;
  const Kernels& kernels = kernels_for(isa.c_str());
  require_dimensions("x", x, 2);
  const size_t n = extent(x, 1);
  require_lanes("the last dimension of x", n, size_t{1} << 30);
  require_shape("weight", weight, {n});
  require_shape("bias", bias, {n});
  Array y({x.shape(0), x.shape(1)});
  for (size_t t = 0; t < extent(x, 0); ++t) {
    kernels.layer_norm(x.data() + t * n, n, weight.data(), bias.data(), eps,
                       y.mutable_data() + t * n);
  }
  return y;
}

// Rows of x as int8, each with its scale and sum. Row t starts at q + t * stride.
struct Quantized {
  size_t stride;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> sum;

  Quantized(const Kernels& kernels, const Array& x)
      : stride(round_up(extent(x, 1), 4)),
        q(extent(x, 0) * stride),
        scale(extent(x, 0)),
        sum(extent(x, 0)) {
    for (size_t t = 0; t < extent(x, 0); ++t) {
      scale[t] = kernels.quantize_row(x.data() + t * extent(x, 1), extent(x, 1),
                                      q.data() + t * stride, &sum[t]);
    }
  }
};

std::pair<Int8Array, Array> quantize(const Array& x, const std::string& isa) {
  const FloatEnvironment environment;
  require_dimensions("x", x, 2);
  const Quantized rows(kernels_for(isa.c_str()), x);
  Int8Array q({x.shape(0), x.shape(1)});
  for (size_t t = 0; t < extent(x, 0); ++t) {
    std::memcpy(q.mutable_data() + t * extent(x, 1), rows.q.data() + t * rows.stride, extent(x, 1));
  }
  Array scale(x.shape(0));
  std::memcpy(scale.mutable_data(), rows.scale.data(), rows.scale.size() * sizeof(float));
  return {q, scale};
}

// The first n_out columns of y [n_tokens, padded].
Array without_padding(const float* y, size_t n_tokens, size_t n_out, size_t padded) {
  Array out({n_tokens, n_out});
  for (size_t t = 0; t < n_tokens; ++t) {
    std::memcpy(out.mutable_data() + t * n_out, y + t * padded, n_out * sizeof(float));
  }
  return out;
}

Matrix matrix_for(DType type, const py::array& w, const Array& x) {
  require_dimensions("w", w, 2);
  require_dimensions("x", x, 2);
  require_shape("x", x, {extent(x, 0), extent(w, 1)});
  Matrix matrix;
  matrix.type = type;
  matrix.n_out = extent(w, 0);
  matrix.n_in = extent(w, 1);
  return matrix;
}

Array matmul(const py::array& weights, const Array& x, const std::string& isa) {
  const FloatEnvironment environment;
  const Kernels& kernels = kernels_for(isa.c_str());
  Matrix matrix = matrix_for(float_type("w", weights), weights, x);
  const py::array w = py::array::ensure(weights, kLayout);
  const auto panels = aligned<uint8_t>(matrix.bytes());
  ThreadPool pool(1);
  if (!pack_matrix(kernels, {matrix.type, w.data()}, false, matrix, panels.get(), nullptr, pool)) {
    fail(WKVM_INVALID_ARGUMENT, "w holds a value that is not finite");
  }
  matrix.panels = panels.get();
  const size_t n_tokens = extent(x, 0), padded = matrix.packed_out();
  const auto y = aligned<float>(n_tokens * padded);
  for (size_t i = 0; i < matrix.n_panels(); ++i) {
    kernels.matmul_panel({matrix.type, matrix.panel(i), matrix.panel_width(i), matrix.n_in,
                          x.data(), matrix.n_in, y.get() + i * kPanel, padded, n_tokens, false});
  }
  return without_padding(y.get(), n_tokens, matrix.n_out, padded);
}

Array matmul_i8(const Int8Array& w, const Array& w_scale, const Array& x, const std::string& isa) {
  const FloatEnvironment environment;
  const Kernels& kernels = kernels_for(isa.c_str());
  Matrix matrix = matrix_for(DType::kI8, w, x);
  require_shape("w_scale", w_scale, {matrix.n_out});
  if (matrix.n_in > 65536) {
    fail(WKVM_INVALID_ARGUMENT, "w has %zu inputs; int8 sums are exact up to 65536", matrix.n_in);
  }
  const auto panels = aligned<int8_t>(matrix.bytes());
  const auto scale = aligned<float>(matrix.packed_out());
  std::memcpy(scale.get(), w_scale.data(), matrix.n_out * sizeof(float));
  matrix.panels = panels.get();
  for (size_t out = 0; out < matrix.n_out; ++out) {
    const size_t index = out / kPanel, width = matrix.panel_width(index);
    int8_t* panel = panels.get() + index * kPanel * matrix.packed_in();
    for (size_t k = 0; k < matrix.n_in; ++k) {
      const int8_t value = w.data()[out * matrix.n_in + k];
      if (value == -128) {
        fail(WKVM_INVALID_ARGUMENT, "w[%zu, %zu] is -128; int8 weights lie in [-127, 127]", out, k);
      }
      panel[(k / 4 * width + out % kPanel) * 4 + k % 4] = value;
    }
  }
  const Quantized rows(kernels, x);
  const size_t n_tokens = extent(x, 0), padded = matrix.packed_out();
  const auto y = aligned<float>(n_tokens * padded);
  for (size_t i = 0; i < matrix.n_panels(); ++i) {
    kernels.matmul_panel_i8({static_cast<const int8_t*>(matrix.panel(i)), scale.get() + i * kPanel,
                             matrix.panel_width(i), matrix.n_in, rows.q.data(), rows.stride,
                             rows.scale.data(), rows.sum.data(), y.get() + i * kPanel, padded,
                             n_tokens, false});
  }
  return without_padding(y.get(), n_tokens, matrix.n_out, padded);
}

std::vector<float> transposed(const float* x, size_t n) {
  std::vector<float> out(n * n);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) out[j * n + i] = x[i * n + j];
  }
  return out;
}

std::pair<Array, Array> time_mix(const Array& r, const Array& k, const Array& v,
                                 const Array& w_lora, const Array& a_lora, const Array& g,
                                 const Array& w0, const Array& a0, const Array& k_k,
                                 const Array& k_a, const Array& r_k, const Array& ln_weight,
                                 const Array& ln_bias, const Array& state,
                                 const std::optional<Array>& v_first,
                                 const std::optional<Array>& v_lora, const std::optional<Array>& v0,
                                 float ln_eps, const std::string& isa) {
  const FloatEnvironment environment;
  require_dimensions("r", r, 2);
  const size_t n_tokens = extent(r, 0), n = extent(r, 1);
  require_lanes("the head size", n, kMaxHeadSize);
  const std::pair<const char*, const Array*> rows[] = {
      {"k", &k}, {"v", &v}, {"w_lora", &w_lora}, {"a_lora", &a_lora}, {"g", &g}};
  for (const auto& [name, array] : rows) require_shape(name, *array, {n_tokens, n});
  const std::pair<const char*, const Array*> vectors[] = {
      {"w0", &w0},          {"a0", &a0},   {"k_k", &k_k},
      {"k_a", &k_a},        {"r_k", &r_k}, {"ln_weight", &ln_weight},
      {"ln_bias", &ln_bias}};
  for (const auto& [name, array] : vectors) require_shape(name, *array, {n});
  require_shape("state", state, {n, n});
  if (v_first.has_value() != v_lora.has_value() || v_first.has_value() != v0.has_value()) {
    fail(WKVM_INVALID_ARGUMENT, "v_first, v_lora and v0 come together: all, or none for layer 0");
  }
  if (v_first) {
    require_shape("v_first", *v_first, {n_tokens, n});
    require_shape("v_lora", *v_lora, {n_tokens, n});
    require_shape("v0", *v0, {n});
  }
  std::vector<float> scaled_k(k.data(), k.data() + k.size());
  std::vector<float> mixed_v(v.data(), v.data() + v.size());
  std::vector<float> by_key = transposed(state.data(), n);
  Array y({n_tokens, n});
  kernels_for(isa.c_str())
      .time_mix_head({n,
                      n_tokens,
                      n,
                      r.data(),
                      scaled_k.data(),
                      mixed_v.data(),
                      w_lora.data(),
                      a_lora.data(),
                      v_lora ? v_lora->data() : nullptr,
                      v_first ? v_first->data() : nullptr,
                      g.data(),
                      w0.data(),
                      a0.data(),
                      v0 ? v0->data() : nullptr,
                      k_k.data(),
                      k_a.data(),
                      r_k.data(),
                      ln_weight.data(),
                      ln_bias.data(),
                      ln_eps,
                      by_key.data(),
                      y.mutable_data()});
  Array after({n, n});
  std::memcpy(after.mutable_data(), transposed(by_key.data(), n).data(), n * n * sizeof(float));
  return {y, after};
}

Array attention(const Array& q, const py::array& keys, const py::array& values,
                const std::string& isa) {
  const FloatEnvironment environment;
  const Kernels& kernels = kernels_for(isa.c_str());
  require_dimensions("q", q, 1);
  const size_t n = extent(q, 0);
  require_lanes("the head size", n, kMaxHeadSize);
  require_dimensions("k", keys, 2);
  const size_t n_keys = extent(keys, 0);
  require_shape("k", keys, {n_keys, n});
  require_shape("v", values, {n_keys, n});
  const DType type = float_type("k", keys);
  if (type == DType::kBF16 || float_type("v", values) != type) {
    fail(WKVM_INVALID_ARGUMENT, "k and v must be both float32 or both float16");
  }
  const py::array k = py::array::ensure(keys, kLayout);
  const py::array v = py::array::ensure(values, kLayout);
  const size_t tiles = (n_keys + kLanes - 1) / kLanes, size = element_size(type);
  const auto tiled = aligned<uint8_t>(tiles * kLanes * n * size);
  for (size_t i = 0; i < n_keys; ++i) {
    for (size_t d = 0; d < n; ++d) {
      std::memcpy(tiled.get() + ((i / kLanes * n + d) * kLanes + i % kLanes) * size,
                  static_cast<const uint8_t*>(k.data()) + (i * n + d) * size, size);
    }
  }
  const auto scores = aligned<float>(tiles * kLanes);
  const KvRange range = {0, static_cast<uint32_t>(n_keys)};
  Array out(static_cast<py::ssize_t>(n));
  kernels.attention_head({{type, tiled.get(), n * kLanes, v.data(), n},
                          n,
                          1.0f / std::sqrt(static_cast<float>(n)),
                          q.data(),
                          &range,
                          n_keys > 0 ? size_t{1} : size_t{0},
                          scores.get(),
                          out.mutable_data()});
  return out;
}

std::vector<std::string> isas() {
  size_t n;
  const Kernels* const* tables = kernels_available(&n);
  std::vector<std::string> names;
  for (size_t i = 0; i < n; ++i) names.emplace_back(tables[i]->isa);
  return names;
}

// Error -> the class of wkvm.errors with the same status.
void translate(std::exception_ptr pending) {
  try {
    std::rethrow_exception(pending);
  } catch (const Error& error) {
    const py::object by_status = py::module_::import("wkvm.errors").attr("BY_STATUS");
    const py::object type = by_status[py::int_(static_cast<int>(error.status()))];
    PyErr_SetString(type.ptr(), error.what());
  }
}

}  // namespace
}  // namespace wkvm

PYBIND11_MODULE(_kernels, m) {
  using namespace py::literals;
  using wkvm::Kernels;
  m.doc() =
      "The stateless kernels over NumPy arrays, each with an explicit instruction set.\n\n"
      "Arrays are float32 in C order where nothing else is said; another element type is a "
      "TypeError.\nA wrong shape or value raises InvalidArgumentError (a ValueError), an isa that "
      "isas() does\nnot list UnsupportedError. Every isa gives the same bits.";
  py::register_exception_translator(wkvm::translate);
  const py::kw_only named;

  m.def("isas", wkvm::isas, "The instruction sets that this machine can run, best first.");
  m.def("exp", wkvm::map_array<&Kernels::exp>, "x"_a, named, "isa"_a, "e ** x, any shape.");
  m.def("log", wkvm::map_array<&Kernels::log>, "x"_a, named, "isa"_a,
        "The natural logarithm of x, any shape; -inf for 0, NaN below.");
  m.def("tanh", wkvm::map_array<&Kernels::tanh>, "x"_a, named, "isa"_a, "tanh(x), any shape.");
  m.def("sigmoid", wkvm::map_array<&Kernels::sigmoid>, "x"_a, named, "isa"_a,
        "1 / (1 + exp(-x)), any shape.");
  m.def("relu_squared", wkvm::map_array<&Kernels::relu_squared>, "x"_a, named, "isa"_a,
        "max(0, x) ** 2, any shape.");
  m.def("layer_norm", wkvm::layer_norm, "x"_a, "weight"_a, "bias"_a, named, "eps"_a, "isa"_a,
        "(x - mean) / sqrt(var + eps) * weight + bias over the rows of x [T, n], n a multiple of "
        "16;\nweight and bias are [n].");
  m.def("quantize", wkvm::quantize, "x"_a, named, "isa"_a,
        "The rows of x [T, n] as int8 [T, n] and their scales [T]: max|row| / 127.");
  m.def("matmul", wkvm::matmul, "w"_a, "x"_a, named, "isa"_a,
        "x w^T [T, out] for w [out, in], float32, float16, or uint16 that holds bfloat16, and x "
        "[T, in].");
  m.def("matmul_i8", wkvm::matmul_i8, "w"_a, "w_scale"_a, "x"_a, named, "isa"_a,
        "x w^T [T, out] for int8 w [out, in] in [-127, 127], in <= 65536, its scales w_scale "
        "[out],\nand x [T, in], which is quantized by row; the sums are exact.");
  m.def("time_mix", wkvm::time_mix, named, "r"_a, "k"_a, "v"_a, "w_lora"_a, "a_lora"_a, "g"_a,
        "w0"_a, "a0"_a, "k_k"_a, "k_a"_a, "r_k"_a, "ln_weight"_a, "ln_bias"_a, "state"_a,
        "v_first"_a = py::none(), "v_lora"_a = py::none(), "v0"_a = py::none(), "ln_eps"_a = 64e-5f,
        "isa"_a,
        "RWKV-7's time mix of one head: the gated output [T, N] and the state [value, key] after "
        "it.\n\nr, k, v, w_lora, a_lora, g and, but for layer 0, v_first and v_lora are [T, N]; "
        "state is [N, N];\nthe others are [N]. N is a multiple of 16, at most 256.");
  m.def("attention", wkvm::attention, "q"_a, "k"_a, "v"_a, named, "isa"_a,
        "softmax(k q / sqrt(N)) v [N] for one query q [N] over k and v [T, N], both float32 or "
        "both\nfloat16; zeros if T is 0. N is a multiple of 16, at most 256.");
}

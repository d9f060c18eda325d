#include "core/pack.h"

#include <cstring>
#include <vector>

namespace wkvm {
namespace {

// Every set gives the same bits, so packing may use the best one whatever the engine will run.
const Kernels& kernels() {
  size_t n = 0;
  return *kernels_available(&n)[0];
}

uint16_t narrow_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Stores one row of finite floats as `type`. False if a value overflows.
bool narrow(const float* x, size_t n, DType type, void* out) {
  if (!kernels().all_finite(x, n)) return false;
  switch (type) {
    case DType::kF32:
      std::memcpy(out, x, n * sizeof(float));
      return true;
    case DType::kF16: {
      auto* y = static_cast<uint16_t*>(out);
      kernels().narrow_f16(x, n, y);
      bool fits = true;
      for (size_t i = 0; i < n; ++i) fits &= (y[i] & 0x7C00) != 0x7C00;
      return fits;
    }
    case DType::kBF16: {
      auto* y = static_cast<uint16_t*>(out);
      bool fits = true;
      for (size_t i = 0; i < n; ++i) {
        y[i] = narrow_bf16(x[i]);
        fits &= (y[i] & 0x7F80) != 0x7F80;
      }
      return fits;
    }
    case DType::kI8:
      break;
  }
  return false;
}

// Row `out` of the source as float32. A transposed source is gathered column-wise.
void read_row(const Stored& source, bool transposed, size_t n_out, size_t n_in, size_t out,
              std::vector<char>& bytes, float* row) {
  const size_t size = element_size(source.type);
  const char* data = static_cast<const char*>(source.data);
  if (transposed) {
    for (size_t k = 0; k < n_in; ++k) {
      std::memcpy(bytes.data() + k * size, data + (k * n_out + out) * size, size);
    }
  } else {
    std::memcpy(bytes.data(), data + out * n_in * size, n_in * size);
  }
  kernels().widen(source.type, bytes.data(), n_in, row);
}

// Spreads one output's row over its lane of the panel: element k to panel[k * width].
template <class T>
void scatter(const T* row, size_t n_in, size_t width, T* lane) {
  for (size_t k = 0; k < n_in; ++k) lane[k * width] = row[k];
}

}  // namespace

size_t element_size(DType type) {
  switch (type) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI8:
      return 1;
  }
  return 0;
}

const char* dtype_name(DType type) {
  switch (type) {
    case DType::kF32:
      return "fp32";
    case DType::kF16:
      return "fp16";
    case DType::kBF16:
      return "bf16";
    case DType::kI8:
      return "int8";
  }
  return "?";
}

bool pack_matrix(const Stored& source, bool transposed, const Matrix& matrix, void* panels,
                 float* scale) {
  const size_t n_in = matrix.n_in;
  const size_t packed_in = matrix.packed_in();
  std::memset(panels, 0, matrix.bytes());
  std::vector<char> bytes(n_in * 4);
  std::vector<float> row(n_in);
  std::vector<char> stored(packed_in * 4);
  for (size_t out = 0; out < matrix.n_out; ++out) {
    read_row(source, transposed, matrix.n_out, n_in, out, bytes, row.data());
    const size_t panel = out / kPanel;
    const size_t width = matrix.panel_width(panel);
    const size_t lane = out % kPanel;
    char* base = static_cast<char*>(panels) +
                 panel * kPanel * packed_in * element_size(matrix.type);
    switch (matrix.type) {
      case DType::kF32:
        if (!narrow(row.data(), n_in, matrix.type, stored.data())) return false;
        scatter(reinterpret_cast<const uint32_t*>(stored.data()), n_in, width,
                reinterpret_cast<uint32_t*>(base) + lane);
        break;
      case DType::kF16:
      case DType::kBF16:
        if (!narrow(row.data(), n_in, matrix.type, stored.data())) return false;
        scatter(reinterpret_cast<const uint16_t*>(stored.data()), n_in, width,
                reinterpret_cast<uint16_t*>(base) + lane);
        break;
      case DType::kI8: {
        if (!kernels().all_finite(row.data(), n_in)) return false;
        int32_t sum;
        auto* q = reinterpret_cast<int8_t*>(stored.data());
        scale[out] = kernels().quantize_row(row.data(), n_in, q, &sum);
        // Four inputs of one output lie together: [in / 4][width][4].
        for (size_t k = 0; k < packed_in; k += 4) {
          std::memcpy(base + k * width + lane * 4, q + k, 4);
        }
        break;
      }
    }
  }
  if (scale) {
    for (size_t out = matrix.n_out; out < matrix.packed_out(); ++out) scale[out] = 0.0f;
  }
  return true;
}

bool convert(const Stored& source, size_t n, DType type, void* out) {
  constexpr size_t kBlock = 4096;
  const size_t from = element_size(source.type);
  const size_t to = element_size(type);
  std::vector<char> bytes(kBlock * 4);
  std::vector<float> wide(kBlock);
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t m = n - i < kBlock ? n - i : kBlock;
    std::memcpy(bytes.data(), static_cast<const char*>(source.data) + i * from, m * from);
    kernels().widen(source.type, bytes.data(), m, wide.data());
    if (!narrow(wide.data(), m, type, static_cast<char*>(out) + i * to)) return false;
  }
  return true;
}

}  // namespace wkvm

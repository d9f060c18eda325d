#include "core/pack.h"

#include <atomic>
#include <cstring>
#include <vector>

namespace wkvm {
namespace {

uint16_t narrow_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

// Stores one row of finite floats as `type`. False if a value overflows.
bool narrow(const Kernels& kernels, const float* x, size_t n, DType type, void* out) {
  if (!kernels.all_finite(x, n)) return false;
  switch (type) {
    case DType::kF32:
      std::memcpy(out, x, n * sizeof(float));
      return true;
    case DType::kF16: {
      auto* y = static_cast<uint16_t*>(out);
      kernels.narrow_f16(x, n, y);
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

// Row `out` of the source as float32, by way of `bytes`. A transposed source is gathered.
void read_row(const Kernels& kernels, const Stored& source, bool transposed, size_t n_out,
              size_t n_in, size_t out, char* bytes, float* row) {
  const size_t size = element_size(source.type);
  const char* data = static_cast<const char*>(source.data);
  if (transposed) {
    for (size_t k = 0; k < n_in; ++k) {
      std::memcpy(bytes + k * size, data + (k * n_out + out) * size, size);
    }
  } else {
    std::memcpy(bytes, data + out * n_in * size, n_in * size);
  }
  kernels.widen(source.type, bytes, n_in, row);
}

// Spreads one output's row over its lane of the panel: element k to lane[k * width].
template <class T>
void scatter(const char* row, size_t n_in, size_t width, size_t index, char* panel) {
  const T* from = reinterpret_cast<const T*>(row);
  T* lane = reinterpret_cast<T*>(panel) + index;
  for (size_t k = 0; k < n_in; ++k) lane[k * width] = from[k];
}

struct RowBuffers {  // of one thread
  explicit RowBuffers(size_t n_in) : bytes(n_in * 4), wide(n_in), narrow((n_in + 3) * 4) {}
  std::vector<char> bytes;
  std::vector<float> wide;
  std::vector<char> narrow;
};

// One row of the matrix into its lane of `panel`. False if a value does not fit.
bool pack_row(const Kernels& kernels, const Stored& source, bool transposed, const Matrix& matrix,
              size_t out, char* panel, float* scale, RowBuffers& buffers) {
  const size_t n_in = matrix.n_in;
  const size_t width = matrix.panel_width(out / kPanel);
  const size_t lane = out % kPanel;
  float* wide = buffers.wide.data();
  char* row = buffers.narrow.data();
  read_row(kernels, source, transposed, matrix.n_out, n_in, out, buffers.bytes.data(), wide);
  if (matrix.type != DType::kI8) {
    if (!narrow(kernels, wide, n_in, matrix.type, row)) return false;
    if (matrix.type == DType::kF32) {
      scatter<uint32_t>(row, n_in, width, lane, panel);
    } else {
      scatter<uint16_t>(row, n_in, width, lane, panel);
    }
    return true;
  }
  // Four inputs of one output lie together: [in / 4][width][4].
  if (!kernels.all_finite(wide, n_in)) return false;
  int32_t sum;
  scale[out] = kernels.quantize_row(wide, n_in, reinterpret_cast<int8_t*>(row), &sum);
  for (size_t k = 0; k < n_in; k += 4) std::memcpy(panel + k * width + lane * 4, row + k, 4);
  return true;
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

bool pack_matrix(const Kernels& kernels, const Stored& source, bool transposed,
                 const Matrix& matrix, void* panels, float* scale, ThreadPool& pool) {
  std::vector<RowBuffers> buffers(pool.size(), RowBuffers(matrix.n_in));
  std::atomic<bool> fits{true};
  const size_t panel_bytes = kPanel * matrix.packed_in() * element_size(matrix.type);
  const size_t n_panels = matrix.n_panels();
  const auto pack_panel = [&](size_t index, size_t thread) {
    char* panel = static_cast<char*>(panels) + index * panel_bytes;
    const size_t begin = index * kPanel;
    const size_t padded_end = begin + matrix.panel_width(index);
    const size_t end = padded_end < matrix.n_out ? padded_end : matrix.n_out;
    if (end < padded_end || matrix.packed_in() != matrix.n_in) {
      std::memset(panel, 0, panel_bytes / kPanel * (padded_end - begin));
    }
    for (size_t out = begin; out < end; ++out) {
      if (!pack_row(kernels, source, transposed, matrix, out, panel, scale, buffers[thread])) {
        fits.store(false, std::memory_order_relaxed);
        return;
      }
    }
    for (size_t out = end; scale && out < padded_end; ++out) scale[out] = 0.0f;
  };
  constexpr size_t kMaxChunks = 4096;  // panels come in stretches where there are very many
  const size_t stretch = (n_panels + kMaxChunks - 1) / kMaxChunks;
  pool.run((n_panels + stretch - 1) / stretch, [&](size_t chunk, size_t thread) {
    const size_t last = (chunk + 1) * stretch;
    for (size_t i = chunk * stretch; i < last && i < n_panels; ++i) pack_panel(i, thread);
  });
  return fits.load(std::memory_order_relaxed);
}

bool convert(const Kernels& kernels, const Stored& source, size_t n, DType type, void* out) {
  constexpr size_t kBlock = 4096;
  const size_t from = element_size(source.type);
  const size_t to = element_size(type);
  std::vector<char> bytes(kBlock * 4);
  std::vector<float> wide(kBlock);
  for (size_t i = 0; i < n; i += kBlock) {
    const size_t m = n - i < kBlock ? n - i : kBlock;
    std::memcpy(bytes.data(), static_cast<const char*>(source.data) + i * from, m * from);
    kernels.widen(source.type, bytes.data(), m, wide.data());
    if (!narrow(kernels, wide.data(), m, type, static_cast<char*>(out) + i * to)) return false;
  }
  return true;
}

}  // namespace wkvm

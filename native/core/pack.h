// Weights in panels: the layout that the matmul kernels read (kernels/kernels.h), made once, at
// load or at conversion.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/threads.h"
#include "kernels/kernels.h"

namespace wkvm {

constexpr size_t round_up(size_t n, size_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

size_t element_size(DType type);
const char* dtype_name(DType type);

// W [n_out, n_in], y = W x, in panels of kPanel outputs.
struct Matrix {
  DType type = DType::kF32;
  size_t n_out = 0;
  size_t n_in = 0;
  const void* panels = nullptr;  // packed_out() x packed_in() elements
  const float* scale = nullptr;  // int8: [packed_out()]

  size_t packed_out() const { return round_up(n_out, kLanes); }
  size_t packed_in() const { return type == DType::kI8 ? round_up(n_in, 4) : n_in; }
  size_t bytes() const { return packed_out() * packed_in() * element_size(type); }
  size_t n_panels() const { return (n_out + kPanel - 1) / kPanel; }
  size_t panel_width(size_t panel) const {
    const size_t left = packed_out() - panel * kPanel;
    return left < kPanel ? left : kPanel;
  }
  const void* panel(size_t index) const {
    return static_cast<const char*>(panels) + index * kPanel * packed_in() * element_size(type);
  }
};

// A stored tensor's element type and bytes; the bytes may lie at any address.
struct Stored {
  DType type;
  const void* data;
};

// Fills `panels` and, for int8, `scale` of a matrix whose other fields are set. `source` holds
// [n_out, n_in], or [n_in, n_out] if `transposed`. Padding outputs are zero. Narrowing rounds half
// to even. Returns false if a value is not finite or does not fit the type.
bool pack_matrix(const Kernels& kernels, const Stored& source, bool transposed,
                 const Matrix& matrix, void* panels, float* scale, ThreadPool& pool);

// Converts n elements to `type` (not int8) with the same rule and result.
bool convert(const Kernels& kernels, const Stored& source, size_t n, DType type, void* out);

}  // namespace wkvm

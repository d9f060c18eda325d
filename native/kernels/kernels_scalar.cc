#include "kernels/simd_scalar.h"
// After the lanes that it is written over.
#include "kernels/kernels_impl.h"
#include "kernels/tables.h"

namespace wkvm {
const Kernels kKernelsScalar = make_table("scalar");
}  // namespace wkvm

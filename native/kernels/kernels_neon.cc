#include "kernels/simd_neon.h"
// After the lanes that it is written over.
#include "kernels/kernels_impl.h"
#include "kernels/tables.h"

namespace wkvm {
const Kernels kKernelsNeon = make_table("neon");
}  // namespace wkvm

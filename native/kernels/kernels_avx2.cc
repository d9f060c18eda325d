#include "kernels/simd_avx2.h"
// After the lanes that it is written over.
#include "kernels/kernels_impl.h"
#include "kernels/tables.h"

namespace wkvm {
const Kernels kKernelsAvx2 = make_table("avx2");
}  // namespace wkvm

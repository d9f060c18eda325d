#include "kernels/simd_avx512.h"
// After the lanes that it is written over.
#include "kernels/kernels_impl.h"
#include "kernels/tables.h"

namespace wkvm {
const Kernels kKernelsAvx512 = make_table("avx512");
}  // namespace wkvm

#include "kernels/simd_avx512.h"
// After the lanes that it is written over.
#include "kernels/kernels_impl.h"
#include "kernels/tables.h"

namespace wkvm {
const Kernels kKernelsAvx512Vnni = make_table("avx512vnni");
}  // namespace wkvm

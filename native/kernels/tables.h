// The tables of all instruction sets; dispatch.cc alone may know whether this machine can run them.
#pragma once

#include "kernels/kernels.h"

namespace wkvm {

extern const Kernels kKernelsScalar;
extern const Kernels kKernelsAvx2;
extern const Kernels kKernelsAvx512;
extern const Kernels kKernelsAvx512Vnni;
extern const Kernels kKernelsNeon;

}  // namespace wkvm

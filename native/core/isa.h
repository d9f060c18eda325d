// The instruction set that a name, or $WKVM_ISA, selects.
#pragma once

#include "kernels/kernels.h"

namespace wkvm {

// The set called `name`; null or empty: $WKVM_ISA, or else the best one. Throws Error
// (WKVM_UNSUPPORTED) for an unknown set and for one that this machine lacks.
const Kernels& kernels_for(const char* name);

}  // namespace wkvm

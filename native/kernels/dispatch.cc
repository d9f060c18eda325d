// Which sets this build has and this machine can run.
#include "kernels/kernels.h"
#include "kernels/tables.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace wkvm {
namespace {

// One entry per set that this build has.
struct Entry {
  const Kernels* table;
  bool runs_here;
};

#if defined(__x86_64__)

// Everything that the flags of the translation units in native/CMakeLists.txt allow the compiler
// to use, and the operating system's promise to save the registers.
struct Cpu {
  bool avx2 = false, avx512 = false, vnni = false;

  Cpu() {
    unsigned a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return;
    // SSE3, SSSE3, FMA, SSE4.1, SSE4.2, POPCNT, OSXSAVE, AVX, F16C
    const unsigned leaf1 =
        1u | 1u << 9 | 1u << 12 | 1u << 19 | 1u << 20 | 1u << 23 | 1u << 27 | 1u << 28 | 1u << 29;
    if ((c & leaf1) != leaf1) return;
    unsigned xcr0, high;
    __asm__("xgetbv" : "=a"(xcr0), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return;
    avx2 = (xcr0 & 0x6) == 0x6 && (b & 1u << 5);
    const unsigned leaf7 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    avx512 = avx2 && (xcr0 & 0xE6) == 0xE6 && (b & leaf7) == leaf7;
    vnni = avx512 && (c & 1u << 11);
  }
};

#endif

struct List {
  const Kernels* tables[4];  // best first
  size_t n = 0;

  List() {
#if defined(__x86_64__)
    const Cpu cpu;
    const Entry entries[] = {{&kKernelsAvx512Vnni, cpu.vnni},
                             {&kKernelsAvx512, cpu.avx512},
                             {&kKernelsAvx2, cpu.avx2},
                             {&kKernelsScalar, true}};
#elif defined(__aarch64__)
    const Entry entries[] = {{&kKernelsNeon, true}, {&kKernelsScalar, true}};
#else
    const Entry entries[] = {{&kKernelsScalar, true}};
#endif
    for (const Entry& entry : entries) {
      if (entry.runs_here) tables[n++] = entry.table;
    }
  }
};

const List& list() {
  static const List instance;
  return instance;
}

}  // namespace

const Kernels* const* kernels_available(size_t* n) {
  *n = list().n;
  return list().tables;
}

}  // namespace wkvm

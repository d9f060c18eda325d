#include "core/isa.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "core/error.h"
#include "core/guard.h"

namespace wkvm {
namespace {

const std::string& names() {
  static const std::string joined = [] {
    std::string text;
    size_t n = 0;
    const Kernels* const* tables = kernels_available(&n);
    for (size_t i = 0; i < n; ++i) {
      if (i) text += ',';
      text += tables[i]->isa;
    }
    return text;
  }();
  return joined;
}

}  // namespace

const Kernels& kernels_for(const char* name) {
  const char* from = "";
  if (!name || !*name) {
    name = std::getenv("WKVM_ISA");
    from = " (from WKVM_ISA)";
  }
  size_t n = 0;
  const Kernels* const* tables = kernels_available(&n);
  if (!name || !*name) return *tables[0];
  for (size_t i = 0; i < n; ++i) {
    if (std::strcmp(name, tables[i]->isa) == 0) return *tables[i];
  }
  fail(WKVM_UNSUPPORTED,
       "instruction set '%.32s'%s cannot run here: this build on this CPU has %s; choose one of "
       "these, or none for the best",
       name, from, names().c_str());
}

}  // namespace wkvm

wkvm_status wkvm_isa_list(const char** out) {
  return wkvm::guard([&] {
    wkvm::require(out, "wkvm_isa_list", "out");
    *out = wkvm::names().c_str();
  });
}

wkvm_status wkvm_isa_resolve(const char* name, const char** out) {
  return wkvm::guard([&] {
    wkvm::require(out, "wkvm_isa_resolve", "out");
    *out = wkvm::kernels_for(name).isa;
  });
}

#include "core/guard.h"

#include <cstring>
#include <new>

#include "core/error.h"

namespace wkvm {
namespace {

thread_local char last_error[1024] = "";

void set_last_error(const char* text) noexcept {
  std::strncpy(last_error, text, sizeof last_error - 1);
  last_error[sizeof last_error - 1] = '\0';
}

}  // namespace

void require(const void* pointer, const char* function, const char* argument) {
  if (!pointer) fail(WKVM_INVALID_ARGUMENT, "%s: %s is NULL", function, argument);
}

wkvm_status record_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    set_last_error(error.what());
    return error.status();
  } catch (const std::bad_alloc&) {
    set_last_error("out of memory");
    return WKVM_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    set_last_error(error.what());
    return WKVM_INTERNAL;
  } catch (...) {
    set_last_error("unknown exception");
    return WKVM_INTERNAL;
  }
}

}  // namespace wkvm

wkvm_status wkvm_last_error(const char** out) {
  return wkvm::guard([&] {
    if (out) *out = wkvm::last_error;
  });
}

wkvm_status wkvm_abi_version(uint32_t* out) {
  return wkvm::guard([&] {
    wkvm::require(out, "wkvm_abi_version", "out");
    *out = WKVM_ABI_VERSION;
  });
}

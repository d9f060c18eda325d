// The one door between C++ and C: every function of wkvm.h runs its body inside guard().
#pragma once

#include "wkvm.h"

namespace wkvm {

// Records the exception that is being handled as this thread's last error; returns its status.
wkvm_status record_current_exception() noexcept;

// Throws WKVM_INVALID_ARGUMENT that names the function and its argument if the pointer is null.
void require(const void* pointer, const char* function, const char* argument);

// Runs `body`; an exception becomes a status and a thread-local message.
template <class Body>
wkvm_status guard(Body&& body) noexcept {
  try {
    body();
    return WKVM_OK;
  } catch (...) {
    return record_current_exception();
  }
}

}  // namespace wkvm

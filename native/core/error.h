// Typed errors: a status code and one line that says what, where and what to do.
#pragma once

#include <exception>
#include <string>
#include <utility>

#include "wkvm.h"

namespace wkvm {

class Error : public std::exception {
 public:
  Error(wkvm_status status, std::string message) : status_(status), message_(std::move(message)) {}
  wkvm_status status() const noexcept { return status_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  wkvm_status status_;
  std::string message_;
};

// Throws Error with a message formatted as printf does.
[[noreturn]] void fail(wkvm_status status, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

}  // namespace wkvm

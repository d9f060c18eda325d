#include "core/error.h"

#include <cstdarg>
#include <cstdio>

namespace wkvm {

void fail(wkvm_status status, const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Error(status, text);
}

}  // namespace wkvm

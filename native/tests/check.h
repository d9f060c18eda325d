// Checks for the native tests: a failed one prints where and what, and the program exits with 1.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                           \
  do {                                                                             \
    if (!(condition)) {                                                            \
      std::fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                                \
    }                                                                              \
  } while (0)

// `expression` must throw wkvm::Error with `status_code`, and a message that contains `text`.
#define CHECK_ERROR(status_code, text, expression)                                    \
  do {                                                                                \
    bool threw = false;                                                               \
    try {                                                                             \
      expression;                                                                     \
    } catch (const wkvm::Error& error) {                                              \
      threw = true;                                                                   \
      if (error.status() != (status_code) || !std::strstr(error.what(), text)) {      \
        std::fprintf(stderr, "%s:%d: unexpected error %d: %s\n", __FILE__, __LINE__,  \
                     static_cast<int>(error.status()), error.what());                 \
        std::exit(1);                                                                 \
      }                                                                               \
    }                                                                                 \
    if (!threw) {                                                                     \
      std::fprintf(stderr, "%s:%d: no error: %s\n", __FILE__, __LINE__, #expression); \
      std::exit(1);                                                                   \
    }                                                                                 \
  } while (0)

// Names and paths from strangers, made fit for a message.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace wkvm {

// At most `max` bytes of `text`, then "..." if it is longer. The result is valid UTF-8 without
// control characters: each of those, and each byte that is not UTF-8, becomes a '?'.
std::string printable(std::string_view text, size_t max);

}  // namespace wkvm

#include "core/printable.h"

#include <algorithm>

#include "core/utf8.h"

namespace wkvm {

std::string printable(std::string_view text, size_t max) {
  std::string out;
  while (!text.empty()) {
    const size_t length = utf8_sequence(text);
    const std::string_view character = text.substr(0, std::max(length, size_t{1}));
    if (out.size() + character.size() > max) return out + "...";
    const auto first = static_cast<unsigned char>(character.front());
    const auto last = static_cast<unsigned char>(character.back());
    const bool is_control = first < 0x20 || first == 0x7F || (first == 0xC2 && last < 0xA0);
    if (length == 0 || is_control) {
      out += '?';
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace wkvm

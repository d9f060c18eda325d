#include "core/json.h"

#include "core/utf8.h"

namespace wkvm {

int JsonReader::peek() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
    ++at_;
  return at_ < text_.size() ? static_cast<unsigned char>(text_[at_]) : -1;
}

void JsonReader::expect(char byte, const char* reason) {
  if (peek() != byte) fail(reason);
  ++at_;
}

void JsonReader::begin_object() {
  expect('{', "'{' expected");
  first_ = true;
}

void JsonReader::begin_array() {
  expect('[', "'[' expected");
  first_ = true;
}

// Steps over the comma before an item, or over the closing bracket. `first_` needs no stack: once
// an inner object or array is complete, its outer one is behind its first item.
bool JsonReader::next_item(char close) {
  const bool first = first_;
  first_ = false;
  if (peek() == close) {
    ++at_;
    return false;
  }
  if (!first) expect(',', "',' or a closing bracket expected");
  return true;
}

bool JsonReader::next_key(std::string& key) {
  if (!next_item('}')) return false;
  key = string();
  expect(':', "':' expected");
  return true;
}

bool JsonReader::next_element() { return next_item(']'); }

std::string JsonReader::string() {
  expect('"', "a string expected");
  std::string out;
  for (;;) {
    if (at_ == text_.size()) fail("a string without an end");
    const unsigned char byte = static_cast<unsigned char>(text_[at_]);
    if (byte == '"') {
      ++at_;
      return out;
    }
    if (byte < 0x20) fail("a control character in a string");
    if (byte == '\\') {
      append_escape(out);
    } else {
      const size_t length = utf8_sequence(text_.substr(at_, 4));
      if (length == 0) fail("a string is not UTF-8");
      out.append(text_, at_, length);
      at_ += length;
    }
  }
}

uint32_t JsonReader::four_hex_digits() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const int digit = at_ < text_.size() ? text_[at_] : 0;
    value <<= 4;
    if (digit >= '0' && digit <= '9') {
      value |= static_cast<uint32_t>(digit - '0');
    } else if (digit >= 'a' && digit <= 'f') {
      value |= static_cast<uint32_t>(digit - 'a' + 10);
    } else if (digit >= 'A' && digit <= 'F') {
      value |= static_cast<uint32_t>(digit - 'A' + 10);
    } else {
      fail("four hexadecimal digits expected");
    }
    ++at_;
  }
  return value;
}

void JsonReader::append_escape(std::string& out) {
  ++at_;  // the backslash
  const char letter = at_ < text_.size() ? text_[at_++] : '\0';
  switch (letter) {
    case '"':
    case '\\':
    case '/':
      out += letter;
      return;
    case 'b':
      out += '\b';
      return;
    case 'f':
      out += '\f';
      return;
    case 'n':
      out += '\n';
      return;
    case 'r':
      out += '\r';
      return;
    case 't':
      out += '\t';
      return;
    case 'u':
      break;
    default:
      fail("an unknown escape in a string");
  }
  uint32_t code = four_hex_digits();
  if (code >= 0xD800 && code <= 0xDFFF) {
    if (code >= 0xDC00 || text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
    at_ += 2;
    const uint32_t low = four_hex_digits();
    if (low < 0xDC00 || low > 0xDFFF) fail("half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10 | (low - 0xDC00));
  }
  append_utf8(out, code);
}

uint64_t JsonReader::unsigned_integer() {
  const int head = peek();
  if (head < '0' || head > '9') fail("a whole number, zero or more, expected");
  uint64_t value = 0;
  const size_t start = at_;
  for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
    const uint64_t digit = static_cast<uint64_t>(text_[at_] - '0');
    if (__builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, digit, &value))
      fail("a number beyond 64 bits");
  }
  if (head == '0' && at_ - start > 1) fail("a number with leading zeros");
  if (at_ < text_.size() && (text_[at_] == '.' || text_[at_] == 'e' || text_[at_] == 'E'))
    fail("a whole number, zero or more, expected");
  return value;
}

void JsonReader::end() {
  if (peek() != -1) fail("bytes behind the end");
}

}  // namespace wkvm

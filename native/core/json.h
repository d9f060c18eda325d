// A strict reader (RFC 8259) of JSON texts whose structure the caller knows: it asks for what must
// come next, so nothing recurses and nothing is built that was not asked for. A text from a
// stranger costs at most its own length in memory.
//
//   JsonReader json(text);
//   json.begin_object();
//   while (json.next_key(key)) values[key] = json.string();
//   json.end();
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace wkvm {

class JsonError : public std::exception {
 public:
  JsonError(size_t offset, const char* reason) : offset_(offset), reason_(reason) {}
  size_t offset() const noexcept { return offset_; }  // byte of the text
  const char* what() const noexcept override { return reason_; }

 private:
  size_t offset_;
  const char* reason_;
};

// Every member throws JsonError when the text holds anything else.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  void begin_object();
  bool next_key(std::string& key);  // false: the object is complete
  void begin_array();
  bool next_element();   // false: the array is complete
  std::string string();  // valid UTF-8
  uint64_t unsigned_integer();
  void end();  // nothing but white space is left

 private:
  [[noreturn]] void fail(const char* reason) const { throw JsonError(at_, reason); }
  int peek();  // next byte that is not white space, or -1
  void expect(char byte, const char* reason);
  bool next_item(char close);
  uint32_t four_hex_digits();
  void append_escape(std::string& out);

  std::string_view text_;
  size_t at_ = 0;
  bool first_ = false;  // right behind an opening bracket, where no comma may come
};

}  // namespace wkvm

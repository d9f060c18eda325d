// A .safetensors file, mapped read-only.
//
//   u64 little-endian n | n bytes of JSON, an object | data
//   {"__metadata__": {"key": "value"}, "name": {"dtype": "F32", "shape": [2, 3],
//                                               "data_offsets": [begin, end]}, ...}
//
// Opening checks every byte of the header and that the tensors tile the data without gap or
// overlap, so a tensor of an open file is always complete. What it cannot rule out: another
// process that truncates or overwrites the file in place while it is mapped. Reading a page that
// is gone then raises SIGBUS, and reading a rewritten one yields the new bytes. Replacing a file
// by rename is safe: the map keeps the old one.
//
// The format allows no gaps. A writer that wants its tensors aligned fills them with tensors of
// their own, "__pad.N", U8 and shorter than 64 bytes; they are not listed here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "wkvm.h"

namespace wkvm {

// What the header of a .safetensors file says, checked against the size of the file.
struct SafetensorsHeader {
  // In the order of their data. `name` points into `names`, `data` into the parsed bytes.
  std::vector<wkvm_tensor> tensors;
  std::map<std::string, size_t, std::less<>> names;           // name -> index into `tensors`
  std::vector<std::pair<std::string, std::string>> metadata;  // sorted by key
};

// Parses the `size` bytes of a whole file. `path` only serves messages. Throws WKVM_FORMAT, or
// WKVM_UNSUPPORTED for another container or an element type that wkvm does not read.
SafetensorsHeader parse_safetensors(const char* path, const unsigned char* bytes, size_t size);

// The bytes of one regular file, mapped read-only; not of an empty one. Throws WKVM_IO or
// WKVM_FORMAT; `kind` is what the message asks for in place of a folder, pipe or device.
class MappedFile {
 public:
  MappedFile(const char* path, const char* kind);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const unsigned char* bytes() const { return bytes_; }
  size_t size() const { return size_; }

 private:
  unsigned char* bytes_;
  size_t size_;
};

class SafetensorsFile {
 public:
  // Throws what MappedFile and parse_safetensors throw.
  static std::shared_ptr<SafetensorsFile> open(const char* path);

  size_t count() const { return header_.tensors.size(); }
  // Tensors in the order of their data; throws WKVM_INVALID_ARGUMENT for index >= count().
  // `data` may have any alignment in a foreign file: read elements with memcpy. In the files
  // that wkvm writes it is a multiple of 64.
  const wkvm_tensor& tensor(size_t index) const;
  const wkvm_tensor* find(const char* name) const;     // nullptr: no such tensor
  const std::string* metadata(const char* key) const;  // nullptr: no such entry
  const std::vector<std::pair<std::string, std::string>>& metadata() const {
    return header_.metadata;  // sorted by key
  }
  // Lets the kernel drop the resident pages that hold only this tensor's bytes; they come back
  // from disk when touched.
  void evict(size_t index) const;

 private:
  explicit SafetensorsFile(const char* path);

  std::string path_;
  MappedFile file_;
  SafetensorsHeader header_;
};

}  // namespace wkvm

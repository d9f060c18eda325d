#include "core/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/json.h"
#include "core/printable.h"

namespace wkvm {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // bytes; the limit of the format's own library

constexpr uint64_t kAlign = 64;  // bytes, of the tensors in our own files
constexpr std::string_view kPadding = "__pad.";

struct DtypeName {
  const char* name;
  wkvm_dtype dtype;
  uint64_t size;  // bytes of one element
};
constexpr DtypeName kDtypes[] = {
    {"F32", WKVM_F32, 4}, {"F16", WKVM_F16, 2}, {"BF16", WKVM_BF16, 2}, {"I8", WKVM_I8, 1},
    {"U8", WKVM_U8, 1},   {"I32", WKVM_I32, 4}, {"U32", WKVM_U32, 4},   {"I64", WKVM_I64, 8},
    {"U64", WKVM_U64, 8}, {"F64", WKVM_F64, 8}, {"BOOL", WKVM_BOOL, 1}, {"I16", WKVM_I16, 2},
    {"U16", WKVM_U16, 2},
};

// Names and paths for messages, not longer than what leaves room for the rest of the sentence.
std::string shown_name(std::string_view name) { return printable(name, 120); }
std::string shown_path(std::string_view path) {
  constexpr size_t kLongest = 300;  // the end of a path says most
  if (path.size() <= kLongest) return printable(path, kLongest);
  path.remove_prefix(path.size() - kLongest);
  while (!path.empty() && (path[0] & 0xC0) == 0x80) path.remove_prefix(1);  // a cut character's end
  return "..." + printable(path, kLongest);
}

struct Magic {
  size_t offset;
  std::string_view bytes;
  wkvm_status status;
  const char* explanation;
};
using namespace std::string_view_literals;
const Magic kMagics[] = {
    {0, "PK\x03\x04"sv, WKVM_UNSUPPORTED,
     "a zip file, as PyTorch's .pth are; make a .safetensors of it with `wkvm convert`"},
    {0, "\x80\x02"sv, WKVM_UNSUPPORTED,
     "a bare pickle, as PyTorch wrote before 1.6; load it with PyTorch and save it again"},
    {257, "ustar"sv, WKVM_UNSUPPORTED,
     "a tar file, as the first PyTorch versions wrote; load it with PyTorch and save it again"},
    {0, "GGUF"sv, WKVM_UNSUPPORTED, "a GGUF file; get the model as .safetensors or .pth"},
    {0, "fmgg"sv, WKVM_UNSUPPORTED, "a file of rwkv.cpp; get the model as .safetensors or .pth"},
    {0, "\x1F\x8B"sv, WKVM_UNSUPPORTED, "compressed by gzip; unpack it with gunzip"},
    {0, "version https://git-lfs"sv, WKVM_FORMAT,
     "a Git LFS pointer, not the file itself; fetch it with `git lfs pull`"},
    {0, "{"sv, WKVM_FORMAT, "a JSON text; open the .safetensors file itself"},
    {0, "<"sv, WKVM_FORMAT, "a web page, not the file itself; download it again"},
};

// Called where `bytes` cannot be a .safetensors file: says what else they look like.
[[noreturn]] void fail_as_other_container(const std::string& path, std::string_view bytes,
                                          const char* reason) {
  for (const Magic& magic : kMagics) {
    if (bytes.size() >= magic.offset &&
        bytes.substr(magic.offset, magic.bytes.size()) == magic.bytes)
      fail(magic.status, "%s is not a .safetensors file: it looks like %s", path.c_str(),
           magic.explanation);
  }
  fail(
      WKVM_FORMAT,
      "%s is not a .safetensors file: %s; wkvm opens RWKV-7 and RWKV-X checkpoints as .safetensors "
      "(also sharded by an index) or PyTorch .pth",
      path.c_str(), reason);
}

// One entry of the header, as the JSON text gives it.
struct Entry {
  const std::string* name;
  uint64_t shape[WKVM_MAX_DIMS];
  uint32_t n_dims;
  const DtypeName* dtype;
  uint64_t begin, end;  // bytes from the start of the data
};

// Reads the description of one tensor, behind its name.
Entry read_entry(JsonReader& json, const std::string& path, const std::string& name) {
  const auto bad = [&](const char* reason) {
    fail(WKVM_FORMAT, "%s: tensor %s: %s; download or convert the file again", path.c_str(),
         shown_name(name).c_str(), reason);
  };
  Entry entry{};
  bool has_dtype = false, has_shape = false, has_offsets = false;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    if (key == "dtype" && !has_dtype) {
      has_dtype = true;
      const std::string dtype = json.string();
      for (const DtypeName& known : kDtypes)
        if (dtype == known.name) entry.dtype = &known;
      if (!entry.dtype)
        fail(WKVM_UNSUPPORTED,
             "%s: tensor %s: wkvm does not read elements of type %s; save the model as F32, F16 "
             "or BF16",
             path.c_str(), shown_name(name).c_str(), printable(dtype, 32).c_str());
    } else if (key == "shape" && !has_shape) {
      has_shape = true;
      json.begin_array();
      while (json.next_element()) {
        if (entry.n_dims == WKVM_MAX_DIMS) bad("more than 8 dimensions");
        entry.shape[entry.n_dims++] = json.unsigned_integer();
      }
    } else if (key == "data_offsets" && !has_offsets) {
      has_offsets = true;
      json.begin_array();
      if (!json.next_element()) bad("data_offsets are not two numbers");
      entry.begin = json.unsigned_integer();
      if (!json.next_element()) bad("data_offsets are not two numbers");
      entry.end = json.unsigned_integer();
      if (json.next_element()) bad("data_offsets are not two numbers");
    } else {
      bad("a field other than dtype, shape and data_offsets, or one of them twice");
    }
  }
  if (!has_dtype || !has_shape || !has_offsets) bad("dtype, shape or data_offsets is missing");
  return entry;
}

void check_no_zero_byte(const std::string& path, const std::string& text) {
  if (text.find('\0') != std::string::npos)
    fail(WKVM_FORMAT, "%s: a name or metadata entry holds a zero byte: %s", path.c_str(),
         shown_name(text).c_str());
}

void read_metadata(JsonReader& json, const std::string& path, SafetensorsHeader& header) {
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    std::string value = json.string();
    check_no_zero_byte(path, key);
    check_no_zero_byte(path, value);
    header.metadata.emplace_back(key, std::move(value));
  }
  std::sort(header.metadata.begin(), header.metadata.end());
  const auto same_key = [](const auto& a, const auto& b) { return a.first == b.first; };
  const auto twice = std::adjacent_find(header.metadata.begin(), header.metadata.end(), same_key);
  if (twice != header.metadata.end())
    fail(WKVM_FORMAT, "%s: metadata entry %s appears twice; download or convert the file again",
         path.c_str(), shown_name(twice->first).c_str());
}

// Fills `metadata` and `names`; returns the entries in the order of the text.
std::vector<Entry> read_header(JsonReader& json, const std::string& path,
                               SafetensorsHeader& header) {
  std::vector<Entry> entries;
  std::string key;
  bool has_metadata = false;
  json.begin_object();
  while (json.next_key(key)) {
    check_no_zero_byte(path, key);
    if (key == "__metadata__" && !has_metadata) {
      has_metadata = true;
      read_metadata(json, path, header);
      continue;
    }
    const auto [at, is_new] = header.names.emplace(key, 0);
    if (!is_new || key == "__metadata__")
      fail(WKVM_FORMAT, "%s: %s appears twice; download or convert the file again", path.c_str(),
           shown_name(key).c_str());
    Entry entry = read_entry(json, path, key);
    entry.name = &at->first;
    entries.push_back(entry);
  }
  json.end();
  return entries;
}

}  // namespace

SafetensorsHeader parse_safetensors(const char* raw_path, const unsigned char* bytes, size_t size) {
  const std::string path = shown_path(raw_path);
  const std::string_view text(reinterpret_cast<const char*>(bytes), size);
  if (size == 0) fail(WKVM_FORMAT, "%s is empty; download or convert it again", path.c_str());
  uint64_t header_size = 0;
  if (size < 8) fail_as_other_container(path, text, "it ends within its first 8 bytes");
  for (int i = 7; i >= 0; --i) header_size = header_size << 8 | bytes[i];
  if (header_size > kMaxHeader)
    fail_as_other_container(path, text, "its header would be larger than 100 MB");
  if (header_size > 0 && size > 8 && bytes[8] != '{')
    fail_as_other_container(path, text, "its header is not a JSON object");
  if (header_size > size - 8)
    fail(WKVM_FORMAT,
         "%s is truncated: its header takes %llu bytes, and %zu are there; download it again",
         path.c_str(), static_cast<unsigned long long>(header_size), size - 8);

  SafetensorsHeader header;
  JsonReader json(text.substr(8, header_size));
  std::vector<Entry> entries;
  try {
    entries = read_header(json, path, header);
  } catch (const JsonError& error) {
    fail(WKVM_FORMAT, "%s: the header is not valid at byte %zu: %s; download or convert it again",
         path.c_str(), 8 + error.offset(), error.what());
  }

  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.begin != b.begin ? a.begin < b.begin
           : a.end != b.end   ? a.end < b.end
                              : *a.name < *b.name;
  });
  const uint64_t data_size = size - 8 - header_size;
  const unsigned char* data = bytes + 8 + header_size;
  uint64_t at = 0;  // where the next tensor must begin
  header.tensors.reserve(entries.size());
  for (const Entry& entry : entries) {
    const std::string name = shown_name(*entry.name);
    const auto begin = static_cast<unsigned long long>(entry.begin);
    const auto end = static_cast<unsigned long long>(entry.end);
    if (end < begin)
      fail(WKVM_FORMAT,
           "%s: tensor %s ends at byte %llu, before its start at %llu; download or "
           "convert the file again",
           path.c_str(), name.c_str(), end, begin);
    if (end > data_size)
      fail(WKVM_FORMAT,
           "%s is truncated: tensor %s ends at byte %llu of the data, and %llu are "
           "there; download it again",
           path.c_str(), name.c_str(), end, static_cast<unsigned long long>(data_size));
    if (begin != at)
      fail(WKVM_FORMAT,
           "%s: tensor %s begins at byte %llu of the data, where %llu was expected "
           "(%s); download or convert the file again",
           path.c_str(), name.c_str(), begin, static_cast<unsigned long long>(at),
           begin < at ? "tensors overlap" : "a gap");
    uint64_t n_bytes = entry.dtype->size;
    for (uint32_t i = 0; i < entry.n_dims; ++i)
      if (__builtin_mul_overflow(n_bytes, entry.shape[i], &n_bytes))
        fail(WKVM_FORMAT,
             "%s: tensor %s has a shape beyond 64 bits; download or convert the file "
             "again",
             path.c_str(), name.c_str());
    if (n_bytes != end - begin)
      fail(WKVM_FORMAT,
           "%s: tensor %s needs %llu bytes by its shape and type %s, and has %llu; "
           "download or convert the file again",
           path.c_str(), name.c_str(), static_cast<unsigned long long>(n_bytes), entry.dtype->name,
           end - begin);
    at = end;
    if (std::string_view(*entry.name).substr(0, kPadding.size()) == kPadding &&
        entry.dtype->dtype == WKVM_U8 && n_bytes < kAlign) {
      header.names.erase(*entry.name);
      continue;
    }

    wkvm_tensor tensor{};
    tensor.name = entry.name->c_str();
    tensor.dtype = entry.dtype->dtype;
    tensor.n_dims = entry.n_dims;
    std::copy_n(entry.shape, entry.n_dims, tensor.shape);
    tensor.data = data + begin;
    tensor.n_bytes = n_bytes;
    header.names.find(*entry.name)->second = header.tensors.size();
    header.tensors.push_back(tensor);
  }
  if (at != data_size)
    fail(WKVM_FORMAT, "%s: %llu bytes of data belong to no tensor; download or convert it again",
         path.c_str(), static_cast<unsigned long long>(data_size - at));
  return header;
}

MappedFile::MappedFile(const char* raw_path, const char* kind) {
  const std::string path = shown_path(raw_path);
  const auto fail_with_errno = [&](const char* verb) {
    fail(WKVM_IO, "cannot %s %s: %s", verb, path.c_str(),
         std::system_category().message(errno).c_str());
  };
  // O_NONBLOCK: a named pipe must be refused, not waited for.
  const int fd = ::open(raw_path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) fail_with_errno("open");
  const struct Closer {
    int fd;
    ~Closer() { ::close(fd); }
  } closer{fd};
  struct stat status;
  if (::fstat(fd, &status) != 0) fail_with_errno("read");
  if (!S_ISREG(status.st_mode))
    fail(WKVM_FORMAT, "%s is %s; name a %s", path.c_str(),
         S_ISDIR(status.st_mode) ? "a folder" : "not a regular file", kind);
  if (status.st_size == 0)
    fail(WKVM_FORMAT, "%s is empty; download or convert it again", path.c_str());
  if (static_cast<uint64_t>(status.st_size) > SIZE_MAX)
    fail(WKVM_UNSUPPORTED, "%s is larger than this machine's address space", path.c_str());
  size_ = static_cast<size_t>(status.st_size);
  void* const bytes = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd, 0);
  if (bytes == MAP_FAILED) fail_with_errno("map");
  bytes_ = static_cast<unsigned char*>(bytes);
}

MappedFile::~MappedFile() { ::munmap(bytes_, size_); }

SafetensorsFile::SafetensorsFile(const char* path)
    : path_(path),
      file_(path, ".safetensors file"),
      header_(parse_safetensors(path, file_.bytes(), file_.size())) {}

std::shared_ptr<SafetensorsFile> SafetensorsFile::open(const char* path) {
  return std::shared_ptr<SafetensorsFile>(new SafetensorsFile(path));
}

const wkvm_tensor& SafetensorsFile::tensor(size_t index) const {
  if (index >= count())
    fail(WKVM_INVALID_ARGUMENT, "tensor %zu of %s: it holds %zu", index, shown_path(path_).c_str(),
         count());
  return header_.tensors[index];
}

const wkvm_tensor* SafetensorsFile::find(const char* name) const {
  const auto at = header_.names.find(std::string_view(name));
  return at == header_.names.end() ? nullptr : &header_.tensors[at->second];
}

const std::string* SafetensorsFile::metadata(const char* key) const {
  const auto at = std::lower_bound(
      header_.metadata.begin(), header_.metadata.end(), std::string_view(key),
      [](const auto& entry, std::string_view wanted) { return entry.first < wanted; });
  return at != header_.metadata.end() && at->first == key ? &at->second : nullptr;
}

void SafetensorsFile::evict(size_t index) const {
  const wkvm_tensor& evicted = tensor(index);
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin =
      static_cast<size_t>(static_cast<const unsigned char*>(evicted.data) - file_.bytes());
  const size_t end = begin + static_cast<size_t>(evicted.n_bytes);
  const size_t first = (begin + page - 1) / page * page;
  const size_t last = end == file_.size() ? end : end / page * page;
  // A refusal is harmless: the pages stay.
  if (first < last)
    ::madvise(const_cast<unsigned char*>(file_.bytes()) + first, last - first, MADV_DONTNEED);
}

}  // namespace wkvm

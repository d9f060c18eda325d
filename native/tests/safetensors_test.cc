// The .safetensors reader: what it reads from a right file, and what it says of each wrong one.
#include "core/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "check.h"
#include "core/error.h"
#include "core/json.h"

namespace {

using namespace std::string_literals;
using wkvm::SafetensorsFile;
using wkvm::SafetensorsHeader;

std::string length_prefix(uint64_t n) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(n >> (8 * i) & 0xFF);
  return out;
}

std::string container(const std::string& header, size_t n_data) {
  std::string out = length_prefix(header.size()) + header;
  for (size_t i = 0; i < n_data; ++i) out += static_cast<char>('a' + i % 26);
  return out;
}

SafetensorsHeader parse(const std::string& file) {
  return wkvm::parse_safetensors("m.safetensors",
                                 reinterpret_cast<const unsigned char*>(file.data()), file.size());
}

// {"a": two F32, "b": three U8} and 11 bytes of data.
const std::string kGood =
    R"({"__metadata__":{"k":"v","format":"pt"},"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
    R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}}   )";

void test_reads_names_shapes_types_data_and_metadata() {
  const std::string file = container(kGood, 11);
  const SafetensorsHeader header = parse(file);
  CHECK(header.tensors.size() == 2);
  const wkvm_tensor& a = header.tensors[0];  // first by data, though last by text
  CHECK(a.name == "a"s && a.dtype == WKVM_F32 && a.n_dims == 2 && a.shape[0] == 2);
  CHECK(a.shape[1] == 1 && a.n_bytes == 8 && std::memcmp(a.data, "abcdefgh", 8) == 0);
  const wkvm_tensor& b = header.tensors[1];
  CHECK(b.name == "b"s && b.dtype == WKVM_U8 && b.n_bytes == 3);
  CHECK(std::memcmp(b.data, "ijk", 3) == 0);
  CHECK(header.metadata.size() == 2 && header.metadata[0].first == "format");
  CHECK(header.metadata[1].second == "v");
  CHECK(header.names.at("b") == 1);
}

void test_reads_empty_tensors_scalars_and_files_without_tensors() {
  CHECK(parse(container("{}", 0)).tensors.empty());
  const SafetensorsHeader header =
      parse(container(R"({"none":{"dtype":"F32","shape":[0,4],"data_offsets":[4,4]},)"
                      R"("scalar":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                      4));
  CHECK(header.tensors.size() == 2 && header.tensors[0].n_dims == 0);
  CHECK(header.tensors[1].n_bytes == 0);
}

void test_names_are_unicode_and_escapes_are_read() {
  const SafetensorsHeader header = parse(
      container(R"({"\u00e9\ud83d\ude00\n\"\\\/":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                "\"\xe4\xbd\xa0\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
                2));
  CHECK(header.names.count("\xc3\xa9\xf0\x9f\x98\x80\n\"\\/") == 1);
  CHECK(header.names.count("\xe4\xbd\xa0") == 1);
}

void test_padding_between_aligned_tensors_is_not_listed() {
  const SafetensorsHeader header =
      parse(container(R"({"__pad.0":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
                      R"("__pad.x":{"dtype":"I8","shape":[1],"data_offsets":[3,4]},)"
                      R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                      4));
  CHECK(header.tensors.size() == 2 && header.tensors[0].name == "a"s);
  CHECK(header.names.count("__pad.0") == 0 && header.names.at("__pad.x") == 1);
}

void test_every_wrong_file_is_refused_with_its_reason() {
  const struct {
    std::string file;
    wkvm_status status;
    const char* reason;
  } cases[] = {
      {"", WKVM_FORMAT, "is empty"},
      {"1234567", WKVM_FORMAT, "ends within its first 8 bytes"},
      {length_prefix(0), WKVM_FORMAT, "'{' expected"},
      {length_prefix(2), WKVM_FORMAT, "truncated"},
      {length_prefix(100) + "{}", WKVM_FORMAT, "truncated"},
      {length_prefix(100'000'001) + "{}", WKVM_FORMAT, "larger than 100 MB"},
      {length_prefix(~uint64_t{0}) + "{}", WKVM_FORMAT, "larger than 100 MB"},
      {"PK\x03\x04\0\0\x08\x08 archive"s, WKVM_UNSUPPORTED, "wkvm convert"},
      {"\x80\x02\x8a\nl\xfc\x9c\x46\xf9 old"s, WKVM_UNSUPPORTED, "a bare pickle"},
      {std::string(257, 'x') + "ustar\0"s, WKVM_UNSUPPORTED, "a tar file"},
      {"GGUF\x03\0\0\0 more"s, WKVM_UNSUPPORTED, "a GGUF file"},
      {"fmgg\x65\0\0\0\0\0\1\0"s, WKVM_UNSUPPORTED, "rwkv.cpp"},
      {"\x1f\x8b\x08\0\0\0\0\0\2\xff"s, WKVM_UNSUPPORTED, "gunzip"},
      {"version https://git-lfs.github.com/spec/v1\n", WKVM_FORMAT, "git lfs pull"},
      {"<!DOCTYPE html><html>", WKVM_FORMAT, "a web page"},
      {"{\"weight_map\": {}}", WKVM_FORMAT, "a JSON text"},
      {"random bytes, long enough", WKVM_FORMAT, "not a .safetensors file"},
      {container(" {}", 0), WKVM_FORMAT, "its header is not a JSON object"},
      {container("[]", 0), WKVM_FORMAT, "its header is not a JSON object"},
      {container("{", 0), WKVM_FORMAT, "not valid at byte 9"},
      {container("{}}", 0), WKVM_FORMAT, "bytes behind the end"},
      {container("{} x", 0), WKVM_FORMAT, "bytes behind the end"},
      {container("{,}", 0), WKVM_FORMAT, "a string expected"},
      {container("{\"a\"}", 0), WKVM_FORMAT, "':' expected"},
      {container("{\"a\":1}", 0), WKVM_FORMAT, "'{' expected"},
      {container("{\"a\":null}", 0), WKVM_FORMAT, "'{' expected"},
      {container("{\"a\":{}}", 0), WKVM_FORMAT, "is missing"},
      {container("{\"a\":{},}", 0), WKVM_FORMAT, "is missing"},
      {container("{\"\x01\":{}}", 0), WKVM_FORMAT, "control character"},
      {container("{\"a\x80\":{}}", 0), WKVM_FORMAT, "not UTF-8"},
      {container("{\"\xc0\x80\":{}}", 0), WKVM_FORMAT, "not UTF-8"},
      {container("{\"\xe0\x80\x80\":{}}", 0), WKVM_FORMAT, "not UTF-8"},
      {container("{\"\xed\xa0\x80\":{}}", 0), WKVM_FORMAT, "not UTF-8"},
      {container("{\"\xf4\x90\x80\x80\":{}}", 0), WKVM_FORMAT, "not UTF-8"},
      {container("{\"\xe4\xbd", 0), WKVM_FORMAT, "not UTF-8"},
      {container("{\"abc", 0), WKVM_FORMAT, "a string without an end"},
      {container("{\"\\", 0), WKVM_FORMAT, "unknown escape"},
      {container("{\"\\q\":{}}", 0), WKVM_FORMAT, "unknown escape"},
      {container("{\"\\u12", 0), WKVM_FORMAT, "hexadecimal"},
      {container("{\"\\ud800\":{}}", 0), WKVM_FORMAT, "surrogate"},
      {container("{\"\\udc00\":{}}", 0), WKVM_FORMAT, "surrogate"},
      {container("{\"\\ud800\\u0041\":{}}", 0), WKVM_FORMAT, "surrogate"},
      {container("{\"a\\u0000b\":{}}", 0), WKVM_FORMAT, "zero byte"},
      {container(R"({"__metadata__":{"a":1}})", 0), WKVM_FORMAT, "a string expected"},
      {container(R"({"__metadata__":{"a":{"b":"c"}}})", 0), WKVM_FORMAT, "a string expected"},
      {container(R"({"__metadata__":["a"]})", 0), WKVM_FORMAT, "'{' expected"},
      {container(R"({"__metadata__":{"a":"b","a":"c"}})", 0), WKVM_FORMAT, "appears twice"},
      {container(R"({"__metadata__":{"a":"\u0000"}})", 0), WKVM_FORMAT, "zero byte"},
      {container(R"({"__metadata__":{},"__metadata__":{}})", 0), WKVM_FORMAT, "appears twice"},
  };
  for (const auto& wrong : cases) CHECK_ERROR(wrong.status, wrong.reason, parse(wrong.file));
}

void test_every_wrong_tensor_is_refused_by_name_with_its_reason() {
  const struct {
    const char* description;  // of tensor "w", with 8 bytes of data
    wkvm_status status;
    const char* reason;
  } cases[] = {
      {R"({"dtype":"F33","shape":[2],"data_offsets":[0,8]})", WKVM_UNSUPPORTED, "type F33"},
      {R"({"dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8]})", WKVM_UNSUPPORTED, "F8_E4M3"},
      {R"({"dtype":"f32","shape":[2],"data_offsets":[0,8]})", WKVM_UNSUPPORTED, "type f32"},
      {R"({"dtype":"","shape":[2],"data_offsets":[0,8]})", WKVM_UNSUPPORTED, "type"},
      {R"({"dtype":1,"shape":[2],"data_offsets":[0,8]})", WKVM_FORMAT, "a string expected"},
      {R"({"dtype":"F32","shape":[3],"data_offsets":[0,8]})", WKVM_FORMAT, "needs 12 bytes"},
      {R"({"dtype":"F32","shape":[],"data_offsets":[0,8]})", WKVM_FORMAT, "needs 4 bytes"},
      {R"({"dtype":"F32","shape":[2,0],"data_offsets":[0,8]})", WKVM_FORMAT, "needs 0 bytes"},
      {R"({"dtype":"F32","shape":2,"data_offsets":[0,8]})", WKVM_FORMAT, "'[' expected"},
      {R"({"dtype":"F32","shape":[-2],"data_offsets":[0,8]})", WKVM_FORMAT, "whole number"},
      {R"({"dtype":"F32","shape":[2.0],"data_offsets":[0,8]})", WKVM_FORMAT, "whole number"},
      {R"({"dtype":"F32","shape":[2e0],"data_offsets":[0,8]})", WKVM_FORMAT, "whole number"},
      {R"({"dtype":"F32","shape":[02],"data_offsets":[0,8]})", WKVM_FORMAT, "leading zeros"},
      {R"({"dtype":"F32","shape":["2"],"data_offsets":[0,8]})", WKVM_FORMAT, "whole number"},
      {R"({"dtype":"F32","shape":[2,],"data_offsets":[0,8]})", WKVM_FORMAT, "whole number"},
      {R"({"dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8]})", WKVM_FORMAT,
       "beyond 64 bits"},
      {R"({"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]})", WKVM_FORMAT,
       "shape beyond 64 bits"},
      {R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8]})", WKVM_FORMAT,
       "shape beyond 64 bits"},
      {R"({"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]})", WKVM_FORMAT,
       "more than 8 dimensions"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0]})", WKVM_FORMAT, "not two numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[]})", WKVM_FORMAT, "not two numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8,16]})", WKVM_FORMAT, "not two numbers"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[8,0]})", WKVM_FORMAT, "before its start"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,9]})", WKVM_FORMAT, "truncated"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[4,12]})", WKVM_FORMAT, "truncated"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})", WKVM_FORMAT, "a gap"},
      {R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})", WKVM_FORMAT, "belong to no tensor"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615]})",
       WKVM_FORMAT, "truncated"},
      {R"({"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]})", WKVM_FORMAT, "twice"},
      {R"({"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]})", WKVM_FORMAT, "twice"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"data_offsets":[0,8]})", WKVM_FORMAT,
       "twice"},
      {R"({"dtype":"F32","shape":[2],"data_offsets":[0,8],"extra":1})", WKVM_FORMAT,
       "a field other than"},
      {R"({"shape":[2],"data_offsets":[0,8]})", WKVM_FORMAT, "is missing"},
      {R"({"dtype":"F32","data_offsets":[0,8]})", WKVM_FORMAT, "is missing"},
      {R"({"dtype":"F32","shape":[2]})", WKVM_FORMAT, "is missing"},
  };
  for (const auto& wrong : cases) {
    const std::string file = container("{\"w\":"s + wrong.description + "}", 8);
    CHECK_ERROR(wrong.status, wrong.reason, parse(file));
    CHECK_ERROR(wrong.status, "m.safetensors", parse(file));
  }
  const std::string w = R"("w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  CHECK_ERROR(WKVM_FORMAT, "w appears twice", parse(container("{" + w + "," + w + "}", 8)));
  CHECK_ERROR(
      WKVM_FORMAT, "tensors overlap",
      parse(container("{" + w + R"(,"v":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8)));
  CHECK_ERROR(
      WKVM_FORMAT, "tensors overlap",
      parse(container("{" + w + R"(,"v":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8)));
  CHECK_ERROR(WKVM_FORMAT, "3 bytes of data belong to no tensor",
              parse(container("{" + w + "}", 11)));
}

void test_every_prefix_of_a_right_file_is_refused() {
  const std::string file = container(kGood, 11);
  for (size_t n = 0; n < file.size(); ++n)
    CHECK_ERROR(WKVM_FORMAT, "m.safetensors", parse(file.substr(0, n)));
}

void test_long_and_unprintable_names_stay_one_short_line_in_messages() {
  const std::string name = "x\x7f" + std::string(5000, 'y');
  try {
    parse(container("{\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}",
                    8));
    CHECK(false);
  } catch (const wkvm::Error& error) {
    CHECK(std::strlen(error.what()) < 400);
    CHECK(std::strstr(error.what(), "x?yyy") && std::strstr(error.what(), "again"));
  }
}

// A folder of its own that goes with the test.
struct Folder {
  std::string path = "/tmp/wkvm_safetensors_test_XXXXXX";
  Folder() { CHECK(::mkdtemp(path.data())); }
  ~Folder() { CHECK(std::system(("rm -rf " + path).c_str()) == 0); }
  std::string write(const char* name, const std::string& bytes) const {
    const std::string file_path = path + "/" + name;
    std::FILE* file = std::fopen(file_path.c_str(), "wb");
    CHECK(file && std::fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size());
    CHECK(std::fclose(file) == 0);
    return file_path;
  }
};

void test_an_open_file_outlives_its_replacement_by_rename() {
  const Folder folder;
  const std::string path = folder.write("a.safetensors", container(kGood, 11));
  const auto file = SafetensorsFile::open(path.c_str());
  const std::string other = folder.write("b.safetensors", container("{}", 0));
  CHECK(::rename(other.c_str(), path.c_str()) == 0);
  CHECK(std::memcmp(file->find("a")->data, "abcdefgh", 8) == 0);
  CHECK(file->find("c") == nullptr && *file->metadata("format") == "pt");
  CHECK(file->metadata("nothing") == nullptr);
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "tensor 2", file->tensor(2));
  CHECK(SafetensorsFile::open(path.c_str())->count() == 0);
}

void test_evicted_tensors_read_back_the_same() {
  const Folder folder;
  constexpr size_t kBytes = 1 << 20;
  std::string header = R"({"x":{"dtype":"U8","shape":[1048576],"data_offsets":[0,1048576]},)"
                       R"("y":{"dtype":"U8","shape":[5],"data_offsets":[1048576,1048581]}})";
  const std::string path = folder.write("a.safetensors", container(header, kBytes + 5));
  const auto file = SafetensorsFile::open(path.c_str());
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < file->count(); ++i) {
      const auto* bytes = static_cast<const char*>(file->tensor(i).data);
      for (size_t at = 0; at < file->tensor(i).n_bytes; ++at)
        CHECK(bytes[at] == static_cast<char>('a' + (i * kBytes + at) % 26));
      file->evict(i);
    }
  }
}

void test_what_is_not_a_regular_file_is_refused_without_waiting() {
  const Folder folder;
  CHECK_ERROR(WKVM_IO, "No such file", SafetensorsFile::open((folder.path + "/none").c_str()));
  CHECK_ERROR(WKVM_FORMAT, "a folder", SafetensorsFile::open(folder.path.c_str()));
  CHECK_ERROR(WKVM_FORMAT, "is empty", SafetensorsFile::open(folder.write("e", "").c_str()));
  CHECK_ERROR(WKVM_FORMAT, "not a regular file", SafetensorsFile::open("/dev/null"));
  const std::string pipe = folder.path + "/pipe";
  CHECK(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_ERROR(WKVM_FORMAT, "not a regular file", SafetensorsFile::open(pipe.c_str()));
}

void test_the_c_functions_report_instead_of_throwing() {
  const Folder folder;
  const std::string path = folder.write("a.safetensors", container(kGood, 11));
  wkvm_file* file = nullptr;
  CHECK(wkvm_file_open(nullptr, &file) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_file_open(path.c_str(), nullptr) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_file_open("/nonexistent", &file) == WKVM_IO && !file);
  const char* message = nullptr;
  CHECK(wkvm_last_error(&message) == WKVM_OK && std::strstr(message, "/nonexistent"));
  CHECK(wkvm_file_open(path.c_str(), &file) == WKVM_OK);
  size_t n = 0;
  CHECK(wkvm_file_tensor_count(file, &n) == WKVM_OK && n == 2);
  CHECK(wkvm_file_tensor_count(nullptr, &n) == WKVM_INVALID_ARGUMENT);
  wkvm_tensor tensor;
  CHECK(wkvm_file_tensor(file, 1, &tensor) == WKVM_OK && tensor.name == "b"s);
  CHECK(wkvm_file_tensor(file, 2, &tensor) == WKVM_INVALID_ARGUMENT);
  const char *key = nullptr, *value = nullptr;
  CHECK(wkvm_file_metadata_count(file, &n) == WKVM_OK && n == 2);
  CHECK(wkvm_file_metadata(file, 0, &key, &value) == WKVM_OK && key == "format"s && value == "pt"s);
  CHECK(wkvm_file_metadata(file, 2, &key, &value) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_file_evict(file, 0) == WKVM_OK);
  CHECK(wkvm_file_evict(file, 2) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_file_free(file) == WKVM_OK);
  CHECK(wkvm_file_free(nullptr) == WKVM_OK);
}

}  // namespace

int main() {
  test_reads_names_shapes_types_data_and_metadata();
  test_reads_empty_tensors_scalars_and_files_without_tensors();
  test_names_are_unicode_and_escapes_are_read();
  test_padding_between_aligned_tensors_is_not_listed();
  test_every_wrong_file_is_refused_with_its_reason();
  test_every_wrong_tensor_is_refused_by_name_with_its_reason();
  test_every_prefix_of_a_right_file_is_refused();
  test_long_and_unprintable_names_stay_one_short_line_in_messages();
  test_an_open_file_outlives_its_replacement_by_rename();
  test_evicted_tensors_read_back_the_same();
  test_what_is_not_a_regular_file_is_refused_without_waiting();
  test_the_c_functions_report_instead_of_throwing();
}

// The wkvm_file_* functions of wkvm.h.
#include <memory>

#include "core/error.h"
#include "core/guard.h"
#include "core/safetensors.h"

using wkvm::require;

struct wkvm_file {
  std::shared_ptr<wkvm::SafetensorsFile> file;
};

wkvm_status wkvm_file_open(const char* path, wkvm_file** out) {
  return wkvm::guard([&] {
    require(path, "wkvm_file_open", "path");
    require(out, "wkvm_file_open", "out");
    *out = new wkvm_file{wkvm::SafetensorsFile::open(path)};
  });
}

wkvm_status wkvm_file_free(wkvm_file* file) {
  return wkvm::guard([&] { delete file; });
}

wkvm_status wkvm_file_tensor_count(const wkvm_file* file, size_t* out) {
  return wkvm::guard([&] {
    require(file, "wkvm_file_tensor_count", "file");
    require(out, "wkvm_file_tensor_count", "out");
    *out = file->file->count();
  });
}

wkvm_status wkvm_file_tensor(const wkvm_file* file, size_t index, wkvm_tensor* out) {
  return wkvm::guard([&] {
    require(file, "wkvm_file_tensor", "file");
    require(out, "wkvm_file_tensor", "out");
    *out = file->file->tensor(index);
  });
}

wkvm_status wkvm_file_metadata_count(const wkvm_file* file, size_t* out) {
  return wkvm::guard([&] {
    require(file, "wkvm_file_metadata_count", "file");
    require(out, "wkvm_file_metadata_count", "out");
    *out = file->file->metadata().size();
  });
}

wkvm_status wkvm_file_metadata(const wkvm_file* file, size_t index, const char** key,
                               const char** value) {
  return wkvm::guard([&] {
    require(file, "wkvm_file_metadata", "file");
    require(key, "wkvm_file_metadata", "key");
    require(value, "wkvm_file_metadata", "value");
    const auto& metadata = file->file->metadata();
    if (index >= metadata.size())
      wkvm::fail(WKVM_INVALID_ARGUMENT, "wkvm_file_metadata: entry %zu of %zu", index,
                 metadata.size());
    *key = metadata[index].first.c_str();
    *value = metadata[index].second.c_str();
  });
}

wkvm_status wkvm_file_evict(const wkvm_file* file, size_t index) {
  return wkvm::guard([&] {
    require(file, "wkvm_file_evict", "file");
    file->file->evict(index);
  });
}

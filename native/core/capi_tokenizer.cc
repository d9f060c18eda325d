// The wkvm_tokenizer_* functions of wkvm.h.
#include "core/guard.h"
#include "core/tokenizer.h"

using wkvm::require;

struct wkvm_tokenizer {
  wkvm::Tokenizer tokenizer;
};

namespace {

// A buffer may be NULL when its length is 0.
void require_buffer(const void* pointer, size_t length, const char* function,
                    const char* argument) {
  if (length > 0) require(pointer, function, argument);
}

}  // namespace

wkvm_status wkvm_tokenizer_open(const char* path, wkvm_tokenizer** out) {
  return wkvm::guard([&] {
    require(path, "wkvm_tokenizer_open", "path");
    require(out, "wkvm_tokenizer_open", "out");
    *out = new wkvm_tokenizer{wkvm::Tokenizer::from_file(path)};
  });
}

wkvm_status wkvm_tokenizer_from_bytes(const void* data, size_t n_bytes, wkvm_tokenizer** out) {
  return wkvm::guard([&] {
    require_buffer(data, n_bytes, "wkvm_tokenizer_from_bytes", "data");
    require(out, "wkvm_tokenizer_from_bytes", "out");
    *out = new wkvm_tokenizer{
        wkvm::Tokenizer::from_vocabulary({static_cast<const char*>(data), n_bytes}, "vocabulary")};
  });
}

wkvm_status wkvm_tokenizer_bytes(wkvm_tokenizer** out) {
  return wkvm::guard([&] {
    require(out, "wkvm_tokenizer_bytes", "out");
    *out = new wkvm_tokenizer{wkvm::Tokenizer::byte_level()};
  });
}

wkvm_status wkvm_tokenizer_free(wkvm_tokenizer* tokenizer) {
  return wkvm::guard([&] { delete tokenizer; });
}

wkvm_status wkvm_tokenizer_vocab_size(const wkvm_tokenizer* tokenizer, uint32_t* out) {
  return wkvm::guard([&] {
    require(tokenizer, "wkvm_tokenizer_vocab_size", "tokenizer");
    require(out, "wkvm_tokenizer_vocab_size", "out");
    *out = tokenizer->tokenizer.vocab_size();
  });
}

wkvm_status wkvm_tokenizer_max_id(const wkvm_tokenizer* tokenizer, uint32_t* out) {
  return wkvm::guard([&] {
    require(tokenizer, "wkvm_tokenizer_max_id", "tokenizer");
    require(out, "wkvm_tokenizer_max_id", "out");
    *out = tokenizer->tokenizer.max_id();
  });
}

wkvm_status wkvm_tokenizer_token(const wkvm_tokenizer* tokenizer, uint32_t id, const char** bytes,
                                 size_t* n_bytes) {
  return wkvm::guard([&] {
    require(tokenizer, "wkvm_tokenizer_token", "tokenizer");
    require(bytes, "wkvm_tokenizer_token", "bytes");
    require(n_bytes, "wkvm_tokenizer_token", "n_bytes");
    const std::string_view token = tokenizer->tokenizer.token(id);
    *bytes = token.data();
    *n_bytes = token.size();
  });
}

wkvm_status wkvm_tokenizer_encode(const wkvm_tokenizer* tokenizer, const char* text, size_t n_bytes,
                                  uint32_t* ids, size_t capacity, size_t* n_ids, size_t* n_read) {
  return wkvm::guard([&] {
    require(tokenizer, "wkvm_tokenizer_encode", "tokenizer");
    require_buffer(text, n_bytes, "wkvm_tokenizer_encode", "text");
    require_buffer(ids, capacity, "wkvm_tokenizer_encode", "ids");
    require(n_ids, "wkvm_tokenizer_encode", "n_ids");
    require(n_read, "wkvm_tokenizer_encode", "n_read");
    const auto encoded = tokenizer->tokenizer.encode({text, n_bytes}, ids, capacity);
    *n_ids = encoded.n_ids;
    *n_read = encoded.n_read;
  });
}

wkvm_status wkvm_tokenizer_decode(const wkvm_tokenizer* tokenizer, const uint32_t* ids,
                                  size_t n_ids, char* text, size_t capacity, size_t* n_bytes) {
  return wkvm::guard([&] {
    require(tokenizer, "wkvm_tokenizer_decode", "tokenizer");
    require_buffer(ids, n_ids, "wkvm_tokenizer_decode", "ids");
    require_buffer(text, capacity, "wkvm_tokenizer_decode", "text");
    require(n_bytes, "wkvm_tokenizer_decode", "n_bytes");
    *n_bytes = tokenizer->tokenizer.decoded_size(ids, n_ids);
    if (*n_bytes <= capacity) tokenizer->tokenizer.decode(ids, n_ids, text);
  });
}

// A vocabulary file from a stranger, a zero byte, and text: a typed error, or a tokenizer that
// agrees with a search of its whole vocabulary for the longest match, however the text is cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/tokenizer.h"

namespace {

// The length of the longest token that `text` begins with, and its id; 0 if there is none.
size_t longest_match(const wkvm::Tokenizer& tokenizer, std::string_view text, uint32_t* id) {
  size_t length = 0;
  for (uint32_t candidate = 0; candidate <= tokenizer.max_id(); ++candidate) {
    const std::string_view token = tokenizer.token(candidate);
    if (token.size() > length && text.substr(0, token.size()) == token) {
      length = token.size();
      *id = candidate;
    }
  }
  return length;
}

void check_encode(const wkvm::Tokenizer& tokenizer, std::string_view text) {
  std::vector<uint32_t> expected;
  size_t n_read = 0;
  for (uint32_t id = 0; n_read < text.size();) {
    const size_t length = longest_match(tokenizer, text.substr(n_read), &id);
    if (length == 0) break;
    expected.push_back(id);
    n_read += length;
  }
  std::vector<uint32_t> ids(text.size());
  try {
    const auto encoded = tokenizer.encode(text, ids.data(), ids.size());
    if (encoded.n_read != text.size()) std::abort();
    ids.resize(encoded.n_ids);
    if (n_read != text.size() || ids != expected) std::abort();
  } catch (const wkvm::Error& error) {
    if (error.status() != WKVM_INVALID_ARGUMENT || n_read == text.size()) std::abort();
    return;
  }
  std::string decoded(tokenizer.decoded_size(ids.data(), ids.size()), '\0');
  tokenizer.decode(ids.data(), ids.size(), decoded.data());
  if (decoded != text) std::abort();
  for (size_t i = 0, at = 0; i < ids.size(); ++i) {  // one id at a time
    uint32_t id = 0;
    const auto encoded = tokenizer.encode(text.substr(at), &id, 1);
    if (encoded.n_ids != 1 || id != ids[i]) std::abort();
    at += encoded.n_read;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(end + 1, input.size()));
  try {
    const auto tokenizer = wkvm::Tokenizer::from_vocabulary(input.substr(0, end), "fuzz");
    if (tokenizer.max_id() < 4096) check_encode(tokenizer, text);  // the search is slow
  } catch (const wkvm::Error& error) {
    if (error.status() != WKVM_FORMAT) std::abort();
  }
  return 0;
}

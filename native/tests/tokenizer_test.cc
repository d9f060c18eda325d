// The tokenizer: the vocabulary file and each way it can be wrong, greedy matching against a search
// of the whole vocabulary, and the C interface.
#include "core/tokenizer.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "check.h"
#include "core/error.h"

namespace {

using namespace std::string_literals;
using wkvm::Tokenizer;

const std::string kWorld =
    (std::filesystem::path(__FILE__).parent_path() / "../../vocab/rwkv_vocab_v20230424.txt")
        .string();

Tokenizer parse(const std::string& vocabulary) {
  return Tokenizer::from_vocabulary(vocabulary, "v.txt");
}

std::vector<uint32_t> encode(const Tokenizer& tokenizer, std::string_view text) {
  const std::vector<char> exact(text.begin(), text.end());  // a sanitizer sees a read beyond it
  std::vector<uint32_t> ids(text.size());
  const Tokenizer::Encoded encoded =
      tokenizer.encode({exact.data(), exact.size()}, ids.data(), ids.size());
  CHECK(encoded.n_read == text.size());
  ids.resize(encoded.n_ids);
  return ids;
}

std::string decode(const Tokenizer& tokenizer, const std::vector<uint32_t>& ids) {
  std::string text(tokenizer.decoded_size(ids.data(), ids.size()), '\0');
  tokenizer.decode(ids.data(), ids.size(), text.data());
  return text;
}

// What encode() must give: at every position the longest token of the vocabulary.
class SlowTruth {
 public:
  explicit SlowTruth(const Tokenizer& tokenizer) {
    for (uint32_t id = 0; id <= tokenizer.max_id(); ++id) {
      const std::string token(tokenizer.token(id));
      if (token.empty()) continue;
      ids_[token] = id;
      longest_ = std::max(longest_, token.size());
    }
  }
  std::vector<uint32_t> encode(std::string_view text) const {
    std::vector<uint32_t> ids;
    while (!text.empty()) {
      size_t length = std::min(longest_, text.size());
      while (!ids_.count(std::string(text.substr(0, length)))) --length;
      ids.push_back(ids_.at(std::string(text.substr(0, length))));
      text.remove_prefix(length);
    }
    return ids;
  }

 private:
  std::unordered_map<std::string, uint32_t> ids_;
  size_t longest_ = 0;
};

void test_reads_every_kind_of_literal_and_line_end() {
  const Tokenizer tokenizer = parse(
      "1 'a' 1\r\n"
      "2 \"'\" 1\n"
      "3 '\"' 1\n"
      "4 '\\'\\\\\\n\\r\\t' 5\n"
      "5 '\\x80' 2\n"
      "6 b'\\x80' 1\n"
      "7 b\"\\xff'\" 2\n"
      "8 '\\u4f60\\U0001f600' 7\n"
      "9 '\xe5\xa5\xbd' 3\n"
      "10 '  ' 2\n"
      "1000 'last line without an end' 24");
  CHECK(tokenizer.token(1) == "a" && tokenizer.token(2) == "'" && tokenizer.token(3) == "\"");
  CHECK(tokenizer.token(4) == "'\\\n\r\t");
  CHECK(tokenizer.token(5) == "\xc2\x80" && tokenizer.token(6) == "\x80");
  CHECK(tokenizer.token(7) == "\xff'");
  CHECK(tokenizer.token(8) == "\xe4\xbd\xa0\xf0\x9f\x98\x80" &&
        tokenizer.token(9) == "\xe5\xa5\xbd");
  CHECK(tokenizer.token(10) == "  " && tokenizer.token(1000) == "last line without an end");
  CHECK(tokenizer.token(0).empty() && tokenizer.token(11).empty());
  CHECK(tokenizer.max_id() == 1000 && tokenizer.vocab_size() == 1024);
}

void test_refuses_every_wrong_line_by_its_number() {
  const struct {
    const char* line;
    const char* reason;
  } cases[] = {
      {"", "three fields"},
      {"5", "three fields"},
      {"5 'x'", "three fields"},
      {"x 'x' 1", "id is not a number"},
      {"-5 'x' 1", "id is not a number"},
      {" 'x' 1", "id is not a number"},
      {"1048575 'x' 1", "id is not a number"},
      {"99999999999999999999 'x' 1", "id is not a number"},
      {"0 'x' 1", "id 0 ends a document"},
      {"5 'x' ", "length is not a number"},
      {"5 'x' 0x1", "length is not a number"},
      {"5 'x' -1", "length is not a number"},
      {"5 'xy' 3", "2 bytes long, but the length says 3"},
      {"5 '\xe5\xa5\xbd' 1", "3 bytes long, but the length says 1"},
      {"5 '' 0", "literal is empty"},
      {"5 x 1", "not a quoted"},
      {"5 ' 1", "not a quoted"},
      {"5 b 1", "not a quoted"},
      {"5 'x\" 1", "not a quoted"},
      {"5 u'x' 1", "not a quoted"},
      {"5  'x' 1", "not a quoted"},
      {"5 'x'  1", "not a quoted"},
      {"5 'x'y' 3", "quote inside"},
      {"5 'x\\' 2", "escape"},
      {"5 '\\q' 1", "escape"},
      {"5 '\\101' 1", "escape"},
      {"5 '\\x4' 1", "hexadecimal"},
      {"5 '\\xg0' 1", "hexadecimal"},
      {"5 '\\u12' 1", "hexadecimal"},
      {"5 '\\U0001f60' 4", "hexadecimal"},
      {"5 b'\\u4f60' 6", "escape"},
      {"5 '\\ud800' 3", "not a Unicode character"},
      {"5 '\\U00110000' 4", "not a Unicode character"},
      {"5 '\\Uffffffff' 4", "not a Unicode character"},
      {"5 '\xff' 1", "not UTF-8"},
      {"5 '\xc0\x80' 2", "not UTF-8"},
      {"5 '\xed\xa0\x80' 3", "not UTF-8"},
      {"5 '\xf4\x90\x80\x80' 4", "not UTF-8"},
      {"5 '\xe5\xa5' 2", "not UTF-8"},
      {"5 b'\xe5\xa5\xbd' 3", "beyond ASCII"},
      {"5 '\t' 1", "control character"},
      {"5 '\r' 1", "control character"},
      {"3 'x' 1", "id 3 is also on line 2"},
      {"5 'c' 1", "same bytes as on line 2"},
      {"5 b'\\x63' 1", "same bytes as on line 2"},
  };
  for (const auto& c : cases) {
    const std::string vocabulary = "1 'a' 1\n3 'c' 1\n"s + c.line + "\n9 'i' 1\n";
    CHECK_ERROR(WKVM_FORMAT, "v.txt: line 3: ", parse(vocabulary));
    CHECK_ERROR(WKVM_FORMAT, c.reason, parse(vocabulary));
  }
  CHECK_ERROR(WKVM_FORMAT, "vocabulary is empty", parse(""));
  CHECK_ERROR(WKVM_FORMAT, "at most", parse(std::string(Tokenizer::kMaxFileBytes + 1, ' ')));
}

void test_the_longest_token_wins_even_over_a_gap() {
  const Tokenizer tokenizer = parse("1 'a' 1\n2 'b' 1\n3 'c' 1\n4 'abc' 3\n5 'abcabc' 6\n");
  CHECK((encode(tokenizer, "ab") == std::vector<uint32_t>{1, 2}));
  CHECK((encode(tokenizer, "abcabcabcab") == std::vector<uint32_t>{5, 4, 1, 2}));
  CHECK(encode(tokenizer, "").empty());
}

// Words after a space take a shortcut; a longer token that goes on with anything but a letter, or
// a text that ends within eight bytes, must not be lost by it.
void test_a_word_is_not_cut_where_a_longer_token_goes_on() {
  const Tokenizer tokenizer = parse(
      "1 ' ' 1\n2 'a' 1\n3 'b' 1\n4 '-' 1\n5 ' a' 2\n6 ' ab' 3\n7 ' a-b' 4\n8 ' abababa' 8\n"
      "9 ' abababab' 9\n10 ' aaaaaaa' 8\n11 '\xc3\xa9' 2\n12 ' ab\xc3\xa9' 5\n13 ' b' 2\n");
  const SlowTruth truth(tokenizer);
  CHECK((encode(tokenizer, " a-b a-bbbbbbbbb") ==
         std::vector<uint32_t>{7, 7, 3, 3, 3, 3, 3, 3, 3, 3}));
  CHECK((encode(tokenizer, " b-------") == std::vector<uint32_t>{13, 4, 4, 4, 4, 4, 4, 4}));
  CHECK((encode(tokenizer, " aaaaaaa-") == std::vector<uint32_t>{10, 4}));
  CHECK((encode(tokenizer, " aaaaaaaa") == std::vector<uint32_t>{10, 2}));
  std::mt19937 random(1);
  const char* pieces[] = {" ", "a", "b", "-", "\xc3\xa9", " ab", " abababa", " aaaaaaa"};
  for (int i = 0; i < 20000; ++i) {
    std::string text;
    for (uint32_t n = random() % 12; n > 0; --n) text += pieces[random() % std::size(pieces)];
    CHECK(encode(tokenizer, text) == truth.encode(text));
  }
}

void test_a_byte_without_a_token_is_named_with_its_position() {
  const Tokenizer tokenizer = parse("1 'a' 1\n2 'bcd' 3\n");
  std::vector<uint32_t> ids(16);
  const auto run = [&](std::string_view text) { tokenizer.encode(text, ids.data(), ids.size()); };
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "byte 0x62 at position 2 ", run("aabc"));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "byte 0x62 at position 1 ", run("ab"));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "byte 0xff at position 0 ", run("\xff"));
  CHECK((encode(tokenizer, "abcda") == std::vector<uint32_t>{1, 2, 1}));
}

void test_encoding_continues_where_the_capacity_ended() {
  const Tokenizer tokenizer = Tokenizer::from_file(kWorld.c_str());
  const std::string text = "Hello world! 123 \xf0\x9f\x98\x80 caf\xc3\xa9 the end of the text";
  const std::vector<uint32_t> whole = encode(tokenizer, text);
  for (size_t capacity = 1; capacity <= whole.size(); ++capacity) {
    std::vector<uint32_t> ids, part(capacity);
    for (size_t at = 0; at < text.size();) {
      const auto encoded =
          tokenizer.encode(std::string_view(text).substr(at), part.data(), capacity);
      CHECK(encoded.n_ids > 0);
      ids.insert(ids.end(), part.begin(), part.begin() + static_cast<long>(encoded.n_ids));
      at += encoded.n_read;
    }
    CHECK(ids == whole);
  }
  CHECK(tokenizer.encode(text, nullptr, 0).n_read == 0);
}

void test_byte_level_is_the_bytes() {
  const Tokenizer tokenizer = Tokenizer::byte_level();
  CHECK(tokenizer.vocab_size() == 256 && tokenizer.max_id() == 255);
  std::string text;
  for (int b = 0; b < 256; ++b) text += static_cast<char>(b);
  const std::vector<uint32_t> ids = encode(tokenizer, text);
  for (uint32_t b = 0; b < 256; ++b) CHECK(ids[b] == b);
  CHECK(decode(tokenizer, ids) == text);
}

void test_world_vocabulary_is_whole() {
  const Tokenizer tokenizer = Tokenizer::from_file(kWorld.c_str());
  CHECK(tokenizer.vocab_size() == 65536 && tokenizer.max_id() == 65529);
  CHECK(tokenizer.token(65529) == std::string(128, ' '));
  for (uint32_t b = 0; b < 256; ++b) {
    CHECK(tokenizer.token(b + 1) == std::string(1, static_cast<char>(b)));
  }
  for (uint32_t id = 1; id <= tokenizer.max_id(); ++id) {
    CHECK(encode(tokenizer, tokenizer.token(id)) == std::vector<uint32_t>{id});
  }
  CHECK(decode(tokenizer, {0, 65530, 65535}).empty());
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "token id 65536 at position 1 ",
              decode(tokenizer, {1, 65536}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "token id 65536 ", tokenizer.token(65536));
}

void test_world_encoding_equals_a_search_for_the_longest_token() {
  const Tokenizer tokenizer = Tokenizer::from_file(kWorld.c_str());
  const SlowTruth truth(tokenizer);
  std::mt19937 random(2);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (int i = 0; i < 3000; ++i) {
    std::string text;  // parts of tokens, letters, bytes: every path ends early now and then
    for (uint32_t n = below(30); n > 0; --n) {
      const std::string_view token = tokenizer.token(1 + below(65529));
      switch (below(4)) {
        case 0:
          text += token;
          break;
        case 1:
          text += token.substr(0, 1 + below(static_cast<uint32_t>(token.size())));
          break;
        case 2:
          text += static_cast<char>(below(256));
          break;
        default:
          text += " the cat, it's"s.substr(below(14), 1 + below(8));
      }
    }
    const std::vector<uint32_t> ids = encode(tokenizer, text);
    CHECK(ids == truth.encode(text));
    CHECK(decode(tokenizer, ids) == text);
  }
}

void test_what_is_not_a_readable_file_is_refused() {
  CHECK_ERROR(WKVM_IO, "cannot open /no/such/vocabulary.txt",
              Tokenizer::from_file("/no/such/vocabulary.txt"));
  CHECK_ERROR(WKVM_FORMAT, "/ is a folder; name a vocabulary file", Tokenizer::from_file("/"));
  char folder[] = "/tmp/wkvm-tokenizer-XXXXXX";
  CHECK(::mkdtemp(folder));
  const std::string pipe = std::string(folder) + "/pipe";
  CHECK(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_ERROR(WKVM_FORMAT, "not a regular file", Tokenizer::from_file(pipe.c_str()));
  std::filesystem::remove_all(folder);
}

void test_c_interface() {
  wkvm_tokenizer* tokenizer = nullptr;
  const char* message = nullptr;
  CHECK(wkvm_tokenizer_open(kWorld.c_str(), &tokenizer) == WKVM_OK);
  uint32_t n = 0;
  CHECK(wkvm_tokenizer_vocab_size(tokenizer, &n) == WKVM_OK && n == 65536);
  CHECK(wkvm_tokenizer_max_id(tokenizer, &n) == WKVM_OK && n == 65529);

  uint32_t ids[4] = {};
  size_t n_ids = 0, n_read = 0;
  CHECK(wkvm_tokenizer_encode(tokenizer, "Hello world", 11, ids, 4, &n_ids, &n_read) == WKVM_OK);
  CHECK(n_ids == 2 && n_read == 11 && ids[0] == 33155 && ids[1] == 40213);
  CHECK(wkvm_tokenizer_encode(tokenizer, "Hello world", 11, ids, 1, &n_ids, &n_read) == WKVM_OK);
  CHECK(n_ids == 1 && n_read == 5);
  CHECK(wkvm_tokenizer_encode(tokenizer, nullptr, 0, nullptr, 0, &n_ids, &n_read) == WKVM_OK);
  CHECK(n_ids == 0 && n_read == 0);
  CHECK(wkvm_tokenizer_encode(tokenizer, nullptr, 1, ids, 4, &n_ids, &n_read) ==
        WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_tokenizer_encode(nullptr, "a", 1, ids, 4, &n_ids, &n_read) == WKVM_INVALID_ARGUMENT);

  const uint32_t hello_world[] = {33155, 0, 40213};
  char text[16] = "untouched";
  size_t n_bytes = 0;
  CHECK(wkvm_tokenizer_decode(tokenizer, hello_world, 3, nullptr, 0, &n_bytes) == WKVM_OK);
  CHECK(n_bytes == 11);
  CHECK(wkvm_tokenizer_decode(tokenizer, hello_world, 3, text, 10, &n_bytes) == WKVM_OK);
  CHECK(n_bytes == 11 && std::strcmp(text, "untouched") == 0);
  CHECK(wkvm_tokenizer_decode(tokenizer, hello_world, 3, text, 11, &n_bytes) == WKVM_OK);
  CHECK(std::memcmp(text, "Hello world", 11) == 0);
  const uint32_t beyond = 65536;
  CHECK(wkvm_tokenizer_decode(tokenizer, &beyond, 1, text, 16, &n_bytes) == WKVM_INVALID_ARGUMENT);
  const char* token = nullptr;
  CHECK(wkvm_tokenizer_token(tokenizer, 33155, &token, &n_bytes) == WKVM_OK && n_bytes == 5);
  CHECK(std::memcmp(token, "Hello", 5) == 0);
  CHECK(wkvm_tokenizer_free(tokenizer) == WKVM_OK);
  CHECK(wkvm_tokenizer_free(nullptr) == WKVM_OK);

  CHECK(wkvm_tokenizer_bytes(&tokenizer) == WKVM_OK);
  CHECK(wkvm_tokenizer_token(tokenizer, 7, &token, &n_bytes) == WKVM_OK);
  CHECK(n_bytes == 1 && *token == 7);
  wkvm_tokenizer_free(tokenizer);
  CHECK(wkvm_tokenizer_from_bytes("1 'a' 2", 7, &tokenizer) == WKVM_FORMAT);
  CHECK(wkvm_last_error(&message) == WKVM_OK && std::strstr(message, "line 1"));
  CHECK(wkvm_tokenizer_from_bytes("1 'a' 1", 7, &tokenizer) == WKVM_OK);
  wkvm_tokenizer_free(tokenizer);
  CHECK(wkvm_tokenizer_open(nullptr, &tokenizer) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_tokenizer_open("/no/such/file", &tokenizer) == WKVM_IO);
}

void test_threads_share_one_tokenizer() {
  const Tokenizer tokenizer = Tokenizer::from_file(kWorld.c_str());
  std::string text;
  for (uint32_t id = 1; id < 65530; id += 7) text += tokenizer.token(id);
  const std::vector<uint32_t> expected = encode(tokenizer, text);
  std::vector<std::vector<uint32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) threads.emplace_back([&] { result = encode(tokenizer, text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) CHECK(result == expected);
}

}  // namespace

int main() {
  test_reads_every_kind_of_literal_and_line_end();
  test_refuses_every_wrong_line_by_its_number();
  test_the_longest_token_wins_even_over_a_gap();
  test_a_word_is_not_cut_where_a_longer_token_goes_on();
  test_a_byte_without_a_token_is_named_with_its_position();
  test_encoding_continues_where_the_capacity_ended();
  test_byte_level_is_the_bytes();
  test_world_vocabulary_is_whole();
  test_world_encoding_equals_a_search_for_the_longest_token();
  test_what_is_not_a_readable_file_is_refused();
  test_c_interface();
  test_threads_share_one_tokenizer();
}

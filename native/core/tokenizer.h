// Greedy longest-match tokenizers over bytes: a vocabulary file, or the 256 bytes themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace wkvm {

// At every position the longest token of the vocabulary wins. Immutable once made, so any number
// of threads may use one.
class Tokenizer {
 public:
  static constexpr uint32_t kMaxId = (1u << 20) - 2;
  static constexpr size_t kMaxFileBytes = size_t{4} << 20;

  // `text` holds one token a line, `id literal length`: the literal is a Python str (then encoded
  // as UTF-8) or bytes literal as repr() writes it, the length counts its bytes, lines end with LF
  // or CRLF. `name` is what messages call it. Throws Error (WKVM_FORMAT) that names the line.
  static Tokenizer from_vocabulary(std::string_view text, const char* name);
  static Tokenizer from_file(const char* path);
  // 256 tokens: byte b is id b.
  static Tokenizer byte_level();

  // Every id below it may be decoded. It is the largest defined id + 1, rounded up to a multiple
  // of 128 as the rows of the models' embeddings are: 65,536 for the World vocabulary.
  uint32_t vocab_size() const { return vocab_size_; }
  // The largest id that encode() can yield.
  uint32_t max_id() const { return max_id_; }
  // The bytes of one token; none for an id below vocab_size() that the vocabulary leaves out.
  std::string_view token(uint32_t id) const;

  struct Encoded {
    size_t n_ids;
    size_t n_read;  // bytes of text that became ids
  };
  // Encodes from the front until the text or `capacity` ends; the rest can be encoded by another
  // call. Throws Error (WKVM_INVALID_ARGUMENT) at a byte that no token begins with.
  Encoded encode(std::string_view text, uint32_t* ids, size_t capacity) const;

  // Bytes of all tokens of `ids` together; throws Error (WKVM_INVALID_ARGUMENT) for an id that is
  // not below vocab_size().
  size_t decoded_size(const uint32_t* ids, size_t n_ids) const;
  // Writes them; `out` holds decoded_size() bytes.
  void decode(const uint32_t* ids, size_t n_ids, char* out) const;

 private:
  struct Entry {
    uint32_t id;
    uint32_t offset;  // of its bytes in Vocabulary::bytes
    uint32_t length;
    uint32_t line;  // where the vocabulary file defines it
  };
  struct Vocabulary {
    std::string name;
    std::string bytes;
    std::vector<Entry> entries;
    std::string_view text(const Entry& entry) const {
      return std::string_view(bytes).substr(entry.offset, entry.length);
    }
  };
  class Parser;
  class TrieBuilder;

  explicit Tokenizer(Vocabulary vocabulary);

  // The trie of all tokens. The first two bytes of a text select a pair; each further byte c takes
  // the walk from a node to units_[node.base + c], which belongs to that node if its tag is c.
  //
  //   pairs_["he"]   { base 100, tag 2, id of "he" }       tag: length of the best token so far
  //   units_[100 + 'l'] { base 730, tag 'l', no id }       "hel" is a prefix only
  //   units_[100 + 'y'] { base 0,   tag 'y', id of "hey" } base 0: nothing is longer
  //
  // Bases are unique and 0 is never one, so a tag of another node can never match by accident.
  struct Node {
    uint32_t base;
    uint32_t tag_id;  // tag << kIdBits | id
  };
  static constexpr uint32_t kIdBits = 20;
  static constexpr uint32_t kNoId = (1u << kIdBits) - 1;
  static constexpr uint32_t kNoTag = 0xFFF;

  // A shortcut for the most common tokens: a space and 1 to 7 ASCII letters, of which no longer
  // token goes on with anything but a letter. Where the text goes on so, such a token is the match.
  // A word lies in one of the kWordProbes entries from where its hash points.
  struct Word {
    uint64_t letters;  // the first in the lowest byte; 0: free
    uint32_t id;
  };
  static constexpr size_t kWordProbes = 8;
  size_t word_home(uint64_t letters) const {
    return static_cast<size_t>(letters * 0x9E3779B97F4A7C15u >> word_shift_);
  }
  uint32_t find_word(uint64_t letters) const;

  uint32_t vocab_size_ = 0;
  uint32_t max_id_ = 0;
  std::vector<uint32_t> singles_;  // [256] id of each one-byte token, or kNoId
  std::vector<Node> pairs_;        // [first byte << 8 | second byte]
  std::vector<Node> units_;
  std::vector<Word> words_;
  int word_shift_ = 63;
  std::string bytes_;              // the tokens by id, one after the other
  std::vector<uint32_t> offsets_;  // [vocab_size + 1] into bytes_
};

}  // namespace wkvm

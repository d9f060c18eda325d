#include "core/tokenizer.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "core/safetensors.h"
#include "core/utf8.h"

namespace wkvm {
namespace {

// The value of exactly `digits` in `base` (10 or 16), or -1; at most 8 digits are taken.
int64_t parse_number(std::string_view digits, int base) {
  if (digits.empty() || digits.size() > 8) return -1;
  int64_t value = 0;
  for (const char c : digits) {
    int digit = base;
    if (c >= '0' && c <= '9') digit = c - '0';
    if (c >= 'a' && c <= 'f') digit = c - 'a' + 10;
    if (c >= 'A' && c <= 'F') digit = c - 'A' + 10;
    if (digit >= base) return -1;
    value = value * base + digit;
  }
  return value;
}

bool is_letter(uint8_t c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Eight bytes of text, the first in the lowest byte.
uint64_t load_8(const char* text) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t x;
  std::memcpy(&x, text, sizeof x);
  return x;
}

// The high bit of every byte of x that is not an ASCII letter.
uint64_t non_letters(uint64_t x) {
  constexpr uint64_t kOnes = 0x0101010101010101u, kHighs = 0x80 * kOnes;
  const uint64_t lower = (x | 0x20 * kOnes) & ~kHighs;
  const uint64_t from_a = lower + (0x80 - 'a') * kOnes, beyond_z = lower + (0x7F - 'z') * kOnes;
  return ~(from_a & ~beyond_z & ~x) & kHighs;
}

}  // namespace

// ---------------------------------------------------------------- the vocabulary file

class Tokenizer::Parser {
 public:
  Parser(std::string_view text, const char* name) : rest_(text) { vocabulary_.name = name; }

  Vocabulary parse() {
    if (rest_.size() > kMaxFileBytes) {
      fail(WKVM_FORMAT, "%s: a vocabulary file has at most %zu bytes; this is none",
           vocabulary_.name.c_str(), kMaxFileBytes);
    }
    while (!rest_.empty()) {
      ++line_;
      const size_t end = std::min(rest_.find('\n'), rest_.size());
      std::string_view line = rest_.substr(0, end);
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
      if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
      parse_line(line);
    }
    if (vocabulary_.entries.empty()) {
      fail(WKVM_FORMAT, "%s: the vocabulary is empty; expected lines of `id literal length`",
           vocabulary_.name.c_str());
    }
    return std::move(vocabulary_);
  }

 private:
  [[noreturn]] void refuse(const std::string& reason) const {
    fail(WKVM_FORMAT, "%s: line %u: %s; a line is `id literal length`, e.g. `34 '!' 1`",
         vocabulary_.name.c_str(), line_, reason.c_str());
  }

  void parse_line(std::string_view line) {
    const size_t first = line.find(' '), last = line.rfind(' ');
    if (first == last) refuse("there are not three fields");
    const int64_t id = parse_number(line.substr(0, first), 10);
    const int64_t length = parse_number(line.substr(last + 1), 10);
    if (id < 0 || id > kMaxId) refuse("the id is not a number from 1 to " + std::to_string(kMaxId));
    if (id == 0) refuse("id 0 ends a document and has no literal");
    if (length < 0) refuse("the length is not a number");

    const size_t offset = vocabulary_.bytes.size();
    parse_literal(line.substr(first + 1, last - first - 1));
    const size_t n_bytes = vocabulary_.bytes.size() - offset;
    if (n_bytes == 0) refuse("the literal is empty");
    if (n_bytes != static_cast<size_t>(length)) {
      refuse("the literal is " + std::to_string(n_bytes) + " bytes long, but the length says " +
             std::to_string(length));
    }
    if (line_of_id_.size() <= static_cast<size_t>(id))
      line_of_id_.resize(static_cast<size_t>(id) + 1);
    uint32_t& line_of_id = line_of_id_[static_cast<size_t>(id)];
    if (line_of_id != 0) {
      refuse("id " + std::to_string(id) + " is also on line " + std::to_string(line_of_id));
    }
    line_of_id = line_;
    vocabulary_.entries.push_back({static_cast<uint32_t>(id), static_cast<uint32_t>(offset),
                                   static_cast<uint32_t>(n_bytes), line_});
  }

  // Appends the bytes that a Python literal stands for.
  void parse_literal(std::string_view text) {
    const bool is_bytes = !text.empty() && text.front() == 'b';
    if (is_bytes) text.remove_prefix(1);
    if (text.size() < 2 || (text.front() != '\'' && text.front() != '"') ||
        text.back() != text.front()) {
      refuse("the literal is not a quoted Python str or bytes");
    }
    const char quote = text.front();
    text = text.substr(1, text.size() - 2);
    while (!text.empty()) {
      const auto c = static_cast<unsigned char>(text.front());
      size_t n_read = 1;
      if (c == '\\') {
        n_read = parse_escape(text, is_bytes);
      } else {
        if (text.front() == quote) refuse("a quote inside the literal is not escaped");
        if (c < 0x20) refuse("a control character in the literal is not escaped");
        if (c >= 0x80 && is_bytes) refuse("a bytes literal holds a character beyond ASCII");
        n_read = utf8_sequence(text);
        if (n_read == 0) refuse("the literal is not UTF-8");
        vocabulary_.bytes.append(text.substr(0, n_read));
      }
      text.remove_prefix(n_read);
    }
  }

  // Appends what the escape at the front of `text` stands for; returns its length.
  size_t parse_escape(std::string_view text, bool is_bytes) {
    const char kind = text.size() > 1 ? text[1] : '\0';
    size_t n_digits = 0;
    switch (kind) {
      case '\\':
      case '\'':
      case '"':
        vocabulary_.bytes.push_back(kind);
        return 2;
      case 'n':
        vocabulary_.bytes.push_back('\n');
        return 2;
      case 'r':
        vocabulary_.bytes.push_back('\r');
        return 2;
      case 't':
        vocabulary_.bytes.push_back('\t');
        return 2;
      case 'x':
        n_digits = 2;
        break;
      case 'u':
        if (!is_bytes) n_digits = 4;
        break;
      case 'U':
        if (!is_bytes) n_digits = 8;
        break;
      default:
        break;
    }
    if (n_digits == 0) refuse("the literal holds an escape that repr() does not write");
    const std::string_view digits = text.substr(2, n_digits);
    const int64_t code = digits.size() == n_digits ? parse_number(digits, 16) : -1;
    if (code < 0) refuse("an escape in the literal lacks hexadecimal digits");
    if (is_bytes) {
      vocabulary_.bytes.push_back(static_cast<char>(code));
    } else {
      if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
        refuse("an escape in the literal is not a Unicode character");
      }
      append_utf8(vocabulary_.bytes, static_cast<uint32_t>(code));
    }
    return 2 + n_digits;
  }

  std::string_view rest_;
  uint32_t line_ = 0;
  Vocabulary vocabulary_;
  std::vector<uint32_t> line_of_id_;
};

// ---------------------------------------------------------------- the trie

class Tokenizer::TrieBuilder {
 public:
  TrieBuilder(const Vocabulary& vocabulary, Tokenizer* out) : vocabulary_(vocabulary), out_(*out) {}

  void build() {
    sort_tokens();
    make_pairs();
    make_branches();
    make_words();
    place_branches();
    write_units();
  }

 private:
  // A node of the trie below the pairs: the tokens [begin, end) of the sorted vocabulary, which
  // agree in their first `depth` bytes. Its children lie side by side in branches_.
  struct Branch {
    uint32_t begin, end;
    uint32_t depth;
    uint32_t label;  // the last of those bytes
    uint32_t id;     // of the token that ends here, or kNoId
    uint32_t first_child = 0, n_children = 0;
    uint32_t base = 0;
  };

  std::string_view text(uint32_t rank) const {
    return vocabulary_.text(vocabulary_.entries[order_[rank]]);
  }
  uint8_t byte(uint32_t rank, uint32_t depth) const {
    return static_cast<uint8_t>(text(rank)[depth]);
  }

  void sort_tokens() {
    // The first eight bytes, big-endian, decide nearly every comparison.
    std::vector<uint64_t> heads(vocabulary_.entries.size());
    for (size_t i = 0; i < heads.size(); ++i) {
      const std::string_view token = vocabulary_.text(vocabulary_.entries[i]);
      for (size_t j = 0; j < 8; ++j) {
        heads[i] = heads[i] << 8 | (j < token.size() ? static_cast<uint8_t>(token[j]) : 0);
      }
    }
    order_.resize(heads.size());
    std::iota(order_.begin(), order_.end(), 0u);
    std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
      if (heads[a] != heads[b]) return heads[a] < heads[b];
      return vocabulary_.text(vocabulary_.entries[a]) < vocabulary_.text(vocabulary_.entries[b]);
    });
    for (uint32_t rank = 1; rank < order_.size(); ++rank) {
      if (text(rank - 1) != text(rank)) continue;
      const auto [first, second] = std::minmax(vocabulary_.entries[order_[rank - 1]].line,
                                               vocabulary_.entries[order_[rank]].line);
      fail(WKVM_FORMAT, "%s: line %u: the same bytes as on line %u; a token has one id",
           vocabulary_.name.c_str(), second, first);
    }
  }

  // Calls visit(branch) for each group of the tokens in [begin, end), longer than `depth` bytes,
  // that share the byte at `depth`.
  template <class Visit>
  void for_each_child(uint32_t begin, uint32_t end, uint32_t depth, Visit visit) const {
    while (begin < end) {
      const uint8_t label = byte(begin, depth);
      uint32_t last = begin + 1;
      while (last < end && byte(last, depth) == label) ++last;
      // The shortest token of a group comes first: a prefix sorts before what it begins.
      const bool ends_here = text(begin).size() == depth + 1;
      visit(Branch{begin, last, depth + 1, label,
                   ends_here ? vocabulary_.entries[order_[begin]].id : kNoId});
      begin = last;
    }
  }
  static uint32_t begin_of_children(const Branch& branch) {
    return branch.begin + (branch.id != kNoId);
  }

  void make_pairs() {
    out_.singles_.assign(256, kNoId);
    out_.pairs_.assign(256 * 256, Node{0, kNoId});
    const auto n_tokens = static_cast<uint32_t>(order_.size());
    for_each_child(0, n_tokens, 0, [&](const Branch& single) {
      out_.singles_[single.label] = single.id;
      Node* pairs = &out_.pairs_[size_t{single.label} << 8];
      if (single.id != kNoId) std::fill_n(pairs, 256, Node{0, 1u << kIdBits | single.id});
      for_each_child(begin_of_children(single), single.end, 1, [&](const Branch& pair) {
        if (pair.id != kNoId) pairs[pair.label].tag_id = 2u << kIdBits | pair.id;
        pair_of_root_.push_back(single.label << 8 | pair.label);
        branches_.push_back(pair);
      });
    });
  }

  void make_branches() {
    for (size_t i = 0; i < branches_.size(); ++i) {
      const Branch branch = branches_[i];
      const size_t first_child = branches_.size();
      for_each_child(begin_of_children(branch), branch.end, branch.depth,
                     [&](const Branch& child) { branches_.push_back(child); });
      branches_[i].first_child = static_cast<uint32_t>(first_child);
      branches_[i].n_children = static_cast<uint32_t>(branches_.size() - first_child);
    }
  }

  void make_words() {
    std::vector<Word> words;
    for (const Branch& branch : branches_) {
      const std::string_view word = text(branch.begin);
      const Branch* const children = &branches_[branch.first_child];
      if (branch.id == kNoId || word[0] != ' ' || word.size() > 8 ||
          !std::all_of(word.begin() + 1, word.end(), [](char c) { return is_letter(c); }) ||
          !std::all_of(children, children + branch.n_children,
                       [](const Branch& child) { return is_letter(child.label); })) {
        continue;
      }
      char letters[8] = {};
      std::copy(word.begin() + 1, word.end(), letters);
      words.push_back({load_8(letters), branch.id});
    }
    const int n_bits = std::bit_width(3 * words.size() + 1);  // a third of the entries are taken
    out_.word_shift_ = 64 - n_bits;
    out_.words_.assign((size_t{1} << n_bits) + kWordProbes, Word{0, kNoId});
    for (const Word& word : words) {
      Word* const home = &out_.words_[out_.word_home(word.letters)];
      Word* const place = std::find_if(home, home + kWordProbes,
                                       [](const Word& entry) { return entry.letters == 0; });
      if (place != home + kWordProbes) *place = word;  // else the trie finds it
    }
  }

  // Gives every branch that has children a base of its own, such that its children's units are
  // free: the widest first, near the end of what is used so far, then those of one child into the
  // gaps, in the order of their text, so that the units of one word are neighbours.
  void place_branches() {
    std::vector<uint32_t> widest_first;
    for (uint32_t i = 0; i < branches_.size(); ++i) {
      if (branches_[i].n_children > 0) widest_first.push_back(i);
    }
    std::sort(widest_first.begin(), widest_first.end(), [&](uint32_t i, uint32_t j) {
      const Branch &a = branches_[i], &b = branches_[j];
      if (a.n_children != b.n_children) return a.n_children > b.n_children;
      return std::pair(a.begin, a.depth) < std::pair(b.begin, b.depth);
    });

    std::vector<uint8_t> is_used, is_base;
    size_t gap = 256, top = 256;  // no unit lies below 256, so a base is at least 1
    for (const uint32_t i : widest_first) {
      Branch& branch = branches_[i];
      const Branch* const children = &branches_[branch.first_child];
      const uint32_t first_label = children[0].label;
      const auto fits = [&](size_t base) {
        if (is_base[base]) return false;
        for (uint32_t j = 0; j < branch.n_children; ++j) {
          if (is_used[base + children[j].label]) return false;
        }
        return true;
      };
      size_t slot = branch.n_children == 1 ? gap : std::max<size_t>(256, top - 64);
      for (;; ++slot) {
        if (slot + 256 > is_used.size()) {
          is_used.resize(2 * slot + 512);
          is_base.resize(is_used.size());
        }
        if (fits(slot - first_label)) break;
      }
      if (branch.n_children == 1) gap = slot + 1;
      branch.base = static_cast<uint32_t>(slot - first_label);
      is_base[branch.base] = true;
      for (uint32_t j = 0; j < branch.n_children; ++j) {
        const size_t used = branch.base + children[j].label;
        is_used[used] = true;
        top = std::max(top, used + 1);
      }
    }
    n_units_ = top + 256;  // a step from any base stays inside
  }

  void write_units() {
    out_.units_.assign(n_units_, Node{0, kNoTag << kIdBits | kNoId});
    for (size_t i = 0; i < pair_of_root_.size(); ++i) {
      out_.pairs_[pair_of_root_[i]].base = branches_[i].base;
    }
    for (const Branch& branch : branches_) {
      for (uint32_t j = 0; j < branch.n_children; ++j) {
        const Branch& child = branches_[branch.first_child + j];
        out_.units_[branch.base + child.label] = {child.base, child.label << kIdBits | child.id};
      }
    }
  }

  const Vocabulary& vocabulary_;
  Tokenizer& out_;
  std::vector<uint32_t> order_;         // entries in the order of their bytes
  std::vector<Branch> branches_;        // breadth first; those of depth 2 begin the list
  std::vector<uint32_t> pair_of_root_;  // branch of depth 2 -> index into pairs_
  size_t n_units_ = 0;
};

// ---------------------------------------------------------------- construction

Tokenizer::Tokenizer(Vocabulary vocabulary) {
  TrieBuilder(vocabulary, this).build();
  for (const Entry& entry : vocabulary.entries) max_id_ = std::max(max_id_, entry.id);
  vocab_size_ = (max_id_ / 128 + 1) * 128;

  std::vector<const Entry*> by_id(vocab_size_, nullptr);
  for (const Entry& entry : vocabulary.entries) by_id[entry.id] = &entry;
  bytes_.reserve(vocabulary.bytes.size());
  offsets_.reserve(vocab_size_ + 1);
  for (const Entry* entry : by_id) {
    offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (entry) bytes_.append(vocabulary.text(*entry));
  }
  offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
}

Tokenizer Tokenizer::from_vocabulary(std::string_view text, const char* name) {
  return Tokenizer(Parser(text, name).parse());
}

Tokenizer Tokenizer::from_file(const char* path) {
  const MappedFile file(path, "vocabulary file");
  return from_vocabulary({reinterpret_cast<const char*>(file.bytes()), file.size()}, path);
}

Tokenizer Tokenizer::byte_level() {
  Vocabulary vocabulary;
  for (uint32_t b = 0; b < 256; ++b) {
    vocabulary.bytes.push_back(static_cast<char>(b));
    vocabulary.entries.push_back({b, b, 1, 0});
  }
  return Tokenizer(std::move(vocabulary));
}

// ---------------------------------------------------------------- encode and decode

inline uint32_t Tokenizer::find_word(uint64_t letters) const {
  const Word* word = &words_[word_home(letters)];
  for (size_t i = 0; i < kWordProbes && word->letters != 0; ++i, ++word) {
    if (word->letters == letters) return word->id;
  }
  return kNoId;
}

Tokenizer::Encoded Tokenizer::encode(std::string_view text, uint32_t* ids, size_t capacity) const {
  const char* const begin = text.data();
  const char* const end = begin + text.size();
  const Node* const units = units_.data();
  const auto byte = [](const char* at) -> uint32_t { return static_cast<uint8_t>(*at); };
  const char* p = begin;
  size_t n_ids = 0;
  while (end - p >= 2 && n_ids < capacity) {
    if (*p == ' ' && end - p > 8) {
      const uint64_t next = load_8(p + 1);
      const uint64_t others = non_letters(next);
      if (others != 0) {  // its lowest bit belongs to the byte that ends the word
        const uint64_t letters = next & (((others & -others) >> 7) - 1);
        const uint32_t id = find_word(letters);
        if (id != kNoId) {
          ids[n_ids++] = id;
          p += 1 + std::countr_zero(others) / 8;
          continue;
        }
      }
    }
    Node node = pairs_[byte(p) << 8 | byte(p + 1)];
    uint32_t id = node.tag_id & kNoId;
    const char* match = p + (node.tag_id >> kIdBits);
    for (const char* q = p + 2; q != end; ++q) {
      node = units[node.base + byte(q)];
      if (node.tag_id >> kIdBits != byte(q)) break;
      if ((node.tag_id & kNoId) != kNoId) {
        id = node.tag_id & kNoId;
        match = q + 1;
      }
    }
    if (match == p) break;
    ids[n_ids++] = id;
    p = match;
  }
  if (end - p == 1 && n_ids < capacity && singles_[byte(p)] != kNoId) {
    ids[n_ids++] = singles_[byte(p++)];
  }
  if (p != end && n_ids < capacity) {
    fail(WKVM_INVALID_ARGUMENT,
         "byte 0x%02x at position %zu begins no token of this vocabulary; use one that holds "
         "every single byte",
         byte(p), static_cast<size_t>(p - begin));
  }
  return {n_ids, static_cast<size_t>(p - begin)};
}

std::string_view Tokenizer::token(uint32_t id) const {
  if (id >= vocab_size_) {
    fail(WKVM_INVALID_ARGUMENT, "token id %u is not below the vocabulary's size, %u", id,
         vocab_size_);
  }
  return std::string_view(bytes_).substr(offsets_[id], offsets_[id + 1] - offsets_[id]);
}

size_t Tokenizer::decoded_size(const uint32_t* ids, size_t n_ids) const {
  size_t n_bytes = 0;
  for (size_t i = 0; i < n_ids; ++i) {
    if (ids[i] >= vocab_size_) {
      fail(WKVM_INVALID_ARGUMENT,
           "token id %u at position %zu is not below the vocabulary's size, "
           "%u",
           ids[i], i, vocab_size_);
    }
    n_bytes += offsets_[ids[i] + 1] - offsets_[ids[i]];
  }
  return n_bytes;
}

void Tokenizer::decode(const uint32_t* ids, size_t n_ids, char* out) const {
  for (size_t i = 0; i < n_ids; ++i) {
    const size_t begin = offsets_[ids[i]], end = offsets_[ids[i] + 1];
    out = std::copy(bytes_.data() + begin, bytes_.data() + end, out);
  }
}

}  // namespace wkvm

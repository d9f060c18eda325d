#include "core/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/philox.h"

namespace wkvm {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kMaxPenalty = 1000;  // of presence, frequency and bias, either sign
constexpr double kMaxCount = 0x1p53;

// Weights become integers before top-p sums them, so that the sum does not depend on the order.
// The largest weight is 1: kMaxVocab of them fit in 62 bits.
constexpr double kMassOfOne = 0x1p38;

// Compares as the float does; both zeros have one key.
uint32_t order_key(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x + 0.0f);  // -0 + 0 = +0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

void check_range(const char* name, double value, double low, double high) {
  if (!(value >= low && value <= high))
    fail(WKVM_INVALID_ARGUMENT, "%s is %g; it must be from %g to %g", name, value, low, high);
}

void check_ids(const char* name, const std::vector<uint32_t>& ids, uint32_t n_vocab) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= n_vocab)
      fail(WKVM_INVALID_ARGUMENT, "%s holds token %u; the vocabulary has %u", name, ids[i],
           n_vocab);
    if (i > 0 && ids[i] <= ids[i - 1])
      fail(WKVM_INVALID_ARGUMENT, "%s must be strictly ascending, but %u follows %u", name, ids[i],
           ids[i - 1]);
  }
}

void check_options(const SamplerOptions& options, uint32_t n_vocab) {
  if (options.order != SamplingOrder::kRwkv && options.order != SamplingOrder::kOpenai)
    fail(WKVM_INVALID_ARGUMENT, "order is %u; it must be %d (rwkv) or %d (openai)",
         static_cast<uint32_t>(options.order), WKVM_ORDER_RWKV, WKVM_ORDER_OPENAI);
  if (!(options.temperature >= 0 && std::isfinite(options.temperature)))
    fail(WKVM_INVALID_ARGUMENT, "temperature is %g; it must be finite and at least 0",
         options.temperature);
  check_range("top_p", options.top_p, 0, 1);
  check_range("min_p", options.min_p, 0, 1);
  check_range("presence_penalty", options.presence_penalty, -kMaxPenalty, kMaxPenalty);
  check_range("frequency_penalty", options.frequency_penalty, -kMaxPenalty, kMaxPenalty);
  check_range("repetition_penalty", options.repetition_penalty, 0.01, 100);
  check_range("penalty_decay", options.penalty_decay, 0, 1);
  check_ids("bias_ids", options.bias_ids, n_vocab);
  for (const double bias : options.biases) check_range("bias", bias, -kMaxPenalty, kMaxPenalty);
  check_ids("banned_ids", options.banned, n_vocab);
  check_ids("exempt_ids", options.exempt, n_vocab);
}

// Every logit must be a number or -inf.
void check_logits(const float* logits, size_t n) {
  bool is_bad = false;
  for (size_t i = 0; i < n; ++i) is_bad |= !(logits[i] < kInfinity);
  if (!is_bad) return;
  size_t id = 0;
  while (logits[id] < kInfinity) ++id;
  fail(WKVM_NUMERIC, "the logit of token %zu is %g; it must be a number or -inf", id,
       static_cast<double>(logits[id]));
}

// An adjusted logit that only its adjustment has made infinite is an error, not a ban.
float adjusted_logit(double value, uint32_t id) {
  const float narrow = static_cast<float>(value);
  if (std::isinf(narrow) && !std::isinf(value))
    fail(WKVM_NUMERIC, "the adjusted logit of token %u is %g, beyond float32", id, value);
  return narrow;
}

// The head of an exported state; the arrays follow without gaps: bias_ids, banned, exempt, ids of
// counts (uint32 each), biases, counts (float64 each). All little-endian.
struct StateHeader {
  char magic[8];
  uint32_t version;
  uint32_t n_vocab;
  uint32_t order;
  uint32_t n_biases, n_banned, n_exempt, n_counts;
  uint32_t reserved;  // 0
  uint64_t top_k;
  double temperature, top_p, min_p;
  double presence_penalty, frequency_penalty, repetition_penalty, penalty_decay;
  uint64_t seed, index;
};
static_assert(sizeof(StateHeader) == 120 && std::endian::native == std::endian::little);
constexpr char kStateMagic[8] = {'w', 'k', 'v', 'm', 's', 'a', 'm', 'p'};
constexpr uint32_t kStateVersion = 1;

uint64_t state_size(uint64_t n_biases, uint64_t n_banned, uint64_t n_exempt, uint64_t n_counts) {
  return sizeof(StateHeader) + (n_biases + n_banned + n_exempt + n_counts) * sizeof(uint32_t) +
         (n_biases + n_counts) * sizeof(double);
}

template <class T>
void put(uint8_t*& out, const T& value) {
  std::memcpy(out, &value, sizeof value);
  out += sizeof value;
}

template <class T>
std::vector<T> take(const uint8_t*& data, size_t n) {
  std::vector<T> values(n);
  if (n > 0) std::memcpy(values.data(), data, n * sizeof(T));
  data += n * sizeof(T);
  return values;
}

}  // namespace

Sampler::Sampler(const Kernels& kernels, uint32_t n_vocab, SamplerOptions options, uint64_t seed)
    : kernels_(kernels), n_vocab_(n_vocab), seed_(seed) {
  if (n_vocab < 1 || n_vocab > kMaxVocab)
    fail(WKVM_INVALID_ARGUMENT, "n_vocab is %u; it must be from 1 to %u", n_vocab, kMaxVocab);
  set_options(std::move(options));
  counts_.reserve(n_vocab);
  adjusted_ = std::make_unique_for_overwrite<float[]>(n_vocab);
  candidates_ = std::make_unique_for_overwrite<uint32_t[]>(n_vocab);
  weights_ = std::make_unique_for_overwrite<float[]>(n_vocab);
  survivors_ = std::make_unique_for_overwrite<uint32_t[]>(n_vocab);
}

void Sampler::set_options(SamplerOptions options) {
  check_options(options, n_vocab_);
  options_ = std::move(options);
}

void Sampler::set_generator(uint64_t seed, uint64_t index) {
  seed_ = seed;
  index_ = index;
}

void Sampler::check_token(uint32_t token) const {
  if (token >= n_vocab_)
    fail(WKVM_INVALID_ARGUMENT, "token %u is outside the vocabulary of %u", token, n_vocab_);
}

void Sampler::accept(uint32_t token) {
  check_token(token);
  for (TokenCount& entry : counts_) entry.count *= options_.penalty_decay;
  auto entry = std::lower_bound(counts_.begin(), counts_.end(), token,
                                [](const TokenCount& a, uint32_t id) { return a.id < id; });
  if (entry == counts_.end() || entry->id != token) entry = counts_.insert(entry, {token, 0});
  if (!std::binary_search(options_.exempt.begin(), options_.exempt.end(), token)) entry->count += 1;
  ++index_;
}

// Repetition, presence and frequency, then bias, then bans; each step is rounded to float32 once.
void Sampler::adjust(const float* logits) {
  check_logits(logits, n_vocab_);
  std::memcpy(adjusted_.get(), logits, n_vocab_ * sizeof(float));
  for (const auto& [id, count] : counts_) {
    double x = adjusted_[id];
    x = x > 0 ? x / options_.repetition_penalty : x * options_.repetition_penalty;
    x -= options_.presence_penalty + count * options_.frequency_penalty;
    adjusted_[id] = adjusted_logit(x, id);
  }
  for (size_t i = 0; i < options_.bias_ids.size(); ++i) {
    const uint32_t id = options_.bias_ids[i];
    adjusted_[id] = adjusted_logit(adjusted_[id] + options_.biases[i], id);
  }
  for (const uint32_t id : options_.banned) adjusted_[id] = -kInfinity;
  top_ = kernels_.max(adjusted_.get(), n_vocab_);
  if (top_ == -kInfinity)
    fail(WKVM_INVALID_ARGUMENT, "every token is banned, by banned_ids or by a logit of -inf");
}

void Sampler::adjusted(const float* logits, float* out) {
  adjust(logits);
  std::memcpy(out, adjusted_.get(), n_vocab_ * sizeof(float));
}

uint32_t Sampler::greedy() const {
  uint32_t id = 0;
  while (adjusted_[id] != top_) ++id;
  return id;
}

// values = exp((values - top) / temperature): p ** (1 / temperature) relative to the largest p. So
// the largest weight is 1, however low the temperature.
void Sampler::weigh(float* values, size_t n, double temperature) const {
  if (temperature == 1) {
    kernels_.exp_shifted(values, n, top_, values);
    return;
  }
  for (size_t i = 0; i < n; ++i) values[i] = static_cast<float>((values[i] - top_) / temperature);
  kernels_.exp(values, n, values);
}

// The largest key k for which the candidates with order_key >= k have at least the mass `target`,
// which is at least 1 and at most the mass of all. mass_of(j) is that of candidate j. Radix
// selection, top digit first: each pass goes on with the candidates in the bucket that reaches it.
template <class MassOf>
Sampler::Reached Sampler::reach(const float* logits, uint64_t target, MassOf mass_of) {
  constexpr uint32_t kDigit = 2047;
  std::array<uint64_t, kDigit + 1> bucket_mass;
  Reached reached{0, 0};
  size_t n = n_candidates_;
  for (size_t j = 0; j < n; ++j) survivors_[j] = static_cast<uint32_t>(j);
  for (const int shift : {21, 10, 0}) {  // bit 10 belongs to two digits, which does no harm
    const auto digit = [&](size_t j) {
      return order_key(logits[candidates_[j]]) >> shift & kDigit;
    };
    bucket_mass.fill(0);
    for (size_t s = 0; s < n; ++s) bucket_mass[digit(survivors_[s])] += mass_of(survivors_[s]);
    uint32_t bucket = kDigit;
    while (reached.above + bucket_mass[bucket] < target) reached.above += bucket_mass[bucket--];
    reached.key |= bucket << shift;
    size_t n_in_bucket = 0;
    for (size_t s = 0; s < n; ++s) {
      const uint32_t j = survivors_[s];
      survivors_[n_in_bucket] = j;  // branchless: the branch could not be predicted
      n_in_bucket += digit(j) == bucket;
    }
    n = n_in_bucket;
  }
  return reached;
}

// Keeps the first n candidates in order; equal ones in order of their ids.
void Sampler::keep_first(const float* logits, uint64_t n) {
  if (n >= n_candidates_) return;
  const Reached reached = reach(logits, n, [](size_t) { return uint64_t{1}; });
  uint64_t n_ties = n - reached.above;
  size_t n_kept = 0;
  for (size_t j = 0; j < n_candidates_; ++j) {
    const uint32_t key = order_key(logits[candidates_[j]]);
    if (key < reached.key) continue;
    if (key == reached.key) {
      if (n_ties == 0) continue;
      --n_ties;
    }
    candidates_[n_kept++] = candidates_[j];
  }
  n_candidates_ = n_kept;
}

// Candidates: what top-p and min-p both keep of the whole distribution.
void Sampler::keep_probable() {
  std::memcpy(weights_.get(), adjusted_.get(), n_vocab_ * sizeof(float));
  weigh(weights_.get(), n_vocab_,
        options_.order == SamplingOrder::kRwkv ? 1 : options_.temperature);
  const auto mass = [&](uint32_t id) {
    return static_cast<uint64_t>(static_cast<int64_t>(weights_[id] * kMassOfOne));
  };
  uint64_t target = 0;
  double too_small = 0;
  if (options_.top_p < 1) {
    uint64_t total = 0;
    for (uint32_t id = 0; id < n_vocab_; ++id) total += mass(id);
    const double share = std::ceil(options_.top_p * static_cast<double>(total));
    target = std::clamp(static_cast<uint64_t>(share), uint64_t{1}, total);
    // V weights of this size are half of what may be left out: none is needed to reach the target.
    too_small = static_cast<double>(total - target) / kMassOfOne / (2.0 * n_vocab_);
  }
  n_candidates_ = 0;
  for (uint32_t id = 0; id < n_vocab_; ++id) {
    candidates_[n_candidates_] = id;
    n_candidates_ += weights_[id] > too_small;
  }

  uint32_t least_key = 0;
  if (options_.top_p < 1) {
    const auto mass_at = [&](size_t j) { return mass(candidates_[j]); };
    least_key = reach(adjusted_.get(), target, mass_at).key;
  }
  size_t n_kept = 0;
  for (size_t j = 0; j < n_candidates_; ++j) {
    const uint32_t id = candidates_[j];
    if (order_key(adjusted_[id]) >= least_key && weights_[id] >= options_.min_p)
      candidates_[n_kept++] = id;
  }
  n_candidates_ = n_kept;
}

void Sampler::keep_all() {
  n_candidates_ = 0;
  for (uint32_t id = 0; id < n_vocab_; ++id)
    if (adjusted_[id] > -kInfinity) candidates_[n_candidates_++] = id;
}

// Candidates and their weights; returns the sum of the weights.
float Sampler::find_candidates() {
  if (options_.top_p < 1 || options_.min_p > 0)
    keep_probable();
  else
    keep_all();
  if (options_.top_k > 0) keep_first(adjusted_.get(), options_.top_k);
  for (size_t j = 0; j < n_candidates_; ++j) weights_[j] = adjusted_[candidates_[j]];
  weigh(weights_.get(), n_candidates_, options_.temperature);
  float total = 0;
  for (size_t j = 0; j < n_candidates_; ++j) total += weights_[j];
  return total;
}

uint32_t Sampler::sample(const float* logits) {
  adjust(logits);
  if (options_.temperature == 0) return greedy();
  // u <= 1 - 2^-24, so u * total rounds to less than total, and the sum exceeds it in the end.
  const float target = find_candidates() * philox_uniform(seed_, index_);
  float sum = 0;
  for (size_t j = 0; j < n_candidates_; ++j) {
    sum += weights_[j];
    if (sum > target) return candidates_[j];
  }
  fail(WKVM_INTERNAL, "no candidate was drawn");
}

size_t Sampler::probabilities(const float* logits, uint32_t* ids, float* values) {
  adjust(logits);
  if (options_.temperature == 0) {
    ids[0] = greedy();
    values[0] = 1;
    return 1;
  }
  const float total = find_candidates();
  for (size_t j = 0; j < n_candidates_; ++j) {
    ids[j] = candidates_[j];
    values[j] = weights_[j] / total;
  }
  return n_candidates_;
}

float Sampler::logprobs(const float* logits, uint32_t token, size_t n, uint32_t* ids,
                        float* values) {
  check_token(token);
  if (n > n_vocab_)
    fail(WKVM_INVALID_ARGUMENT, "%zu top log-probabilities of a vocabulary of %u", n, n_vocab_);
  check_logits(logits, n_vocab_);
  const float top = kernels_.max(logits, n_vocab_);
  if (top == -kInfinity) fail(WKVM_INVALID_ARGUMENT, "every logit is -inf");
  kernels_.exp_shifted(logits, n_vocab_, top, weights_.get());
  double sum = 0;
  for (uint32_t id = 0; id < n_vocab_; ++id) sum += weights_[id];
  float log_sum = static_cast<float>(sum);
  kernels_.log(&log_sum, 1, &log_sum);
  const auto logprob = [&](uint32_t id) { return logits[id] - top - log_sum; };

  if (n > 0) {
    n_candidates_ = n_vocab_;
    for (uint32_t id = 0; id < n_vocab_; ++id) candidates_[id] = id;
    keep_first(logits, n);
    std::copy_n(candidates_.get(), n, ids);
    std::sort(ids, ids + n, [&](uint32_t a, uint32_t b) {
      return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    });
    for (size_t i = 0; i < n; ++i) values[i] = logprob(ids[i]);
  }
  return logprob(token);
}

size_t Sampler::export_size() const {
  return state_size(options_.bias_ids.size(), options_.banned.size(), options_.exempt.size(),
                    counts_.size());
}

void Sampler::export_state(uint8_t* out) const {
  StateHeader header{};
  std::memcpy(header.magic, kStateMagic, sizeof kStateMagic);
  header.version = kStateVersion;
  header.n_vocab = n_vocab_;
  header.order = static_cast<uint32_t>(options_.order);
  header.n_biases = static_cast<uint32_t>(options_.bias_ids.size());
  header.n_banned = static_cast<uint32_t>(options_.banned.size());
  header.n_exempt = static_cast<uint32_t>(options_.exempt.size());
  header.n_counts = static_cast<uint32_t>(counts_.size());
  header.top_k = options_.top_k;
  header.temperature = options_.temperature;
  header.top_p = options_.top_p;
  header.min_p = options_.min_p;
  header.presence_penalty = options_.presence_penalty;
  header.frequency_penalty = options_.frequency_penalty;
  header.repetition_penalty = options_.repetition_penalty;
  header.penalty_decay = options_.penalty_decay;
  header.seed = seed_;
  header.index = index_;
  put(out, header);
  for (const uint32_t id : options_.bias_ids) put(out, id);
  for (const uint32_t id : options_.banned) put(out, id);
  for (const uint32_t id : options_.exempt) put(out, id);
  for (const TokenCount& entry : counts_) put(out, entry.id);
  for (const double bias : options_.biases) put(out, bias);
  for (const TokenCount& entry : counts_) put(out, entry.count);
}

void Sampler::import_state(const uint8_t* data, size_t n_bytes) {
  StateHeader header;
  if (n_bytes < sizeof header)
    fail(WKVM_FORMAT, "a sampler state of %zu bytes is shorter than its header", n_bytes);
  std::memcpy(&header, data, sizeof header);
  data += sizeof header;
  if (std::memcmp(header.magic, kStateMagic, sizeof kStateMagic) != 0 || header.reserved != 0)
    fail(WKVM_FORMAT, "these bytes are not a sampler state");
  if (header.version != kStateVersion)
    fail(WKVM_UNSUPPORTED, "a sampler state of version %u; this build reads version %u",
         header.version, kStateVersion);
  if (header.n_vocab != n_vocab_)
    fail(WKVM_STATE_MISMATCH, "the sampler state belongs to a vocabulary of %u, not %u",
         header.n_vocab, n_vocab_);
  const uint64_t expected =
      state_size(header.n_biases, header.n_banned, header.n_exempt, header.n_counts);
  if (n_bytes != expected)
    fail(WKVM_FORMAT, "the sampler state has %zu bytes; its header asks for %" PRIu64, n_bytes,
         expected);

  SamplerOptions options;
  options.order = static_cast<SamplingOrder>(header.order);
  options.temperature = header.temperature;
  options.top_p = header.top_p;
  options.min_p = header.min_p;
  options.top_k = header.top_k;
  options.presence_penalty = header.presence_penalty;
  options.frequency_penalty = header.frequency_penalty;
  options.repetition_penalty = header.repetition_penalty;
  options.penalty_decay = header.penalty_decay;
  options.bias_ids = take<uint32_t>(data, header.n_biases);
  options.banned = take<uint32_t>(data, header.n_banned);
  options.exempt = take<uint32_t>(data, header.n_exempt);
  const auto count_ids = take<uint32_t>(data, header.n_counts);
  options.biases = take<double>(data, header.n_biases);
  const auto count_values = take<double>(data, header.n_counts);
  try {
    check_options(options, n_vocab_);
    check_ids("counts", count_ids, n_vocab_);
    for (const double count : count_values) check_range("a count", count, 0, kMaxCount);
  } catch (const Error& error) {
    fail(WKVM_FORMAT, "the sampler state is damaged: %s", error.what());
  }

  options_ = std::move(options);
  set_generator(header.seed, header.index);
  counts_.clear();
  for (size_t i = 0; i < count_ids.size(); ++i) counts_.push_back({count_ids[i], count_values[i]});
}

}  // namespace wkvm

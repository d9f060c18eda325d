// The sampler: draws, cuts, penalties, state, errors. tests/test_sampler.py holds it to the
// reference and the golden files.
#include "core/sampler.h"

#include <cfenv>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "check.h"
#include "core/error.h"
#include "core/isa.h"
#include "core/philox.h"

namespace {

size_t n_allocations = 0;

}  // namespace

// Not inlined: gcc would take malloc and delete, or new and free, for a mismatched pair.
__attribute__((noinline)) void* operator new(size_t size) {
  ++n_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using wkvm::Sampler;
using wkvm::SamplerOptions;
using wkvm::SamplingOrder;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Distribution {
  std::vector<uint32_t> ids;
  std::vector<float> probabilities;
  bool operator==(const Distribution&) const = default;
};

Distribution distribution(Sampler& sampler, const std::vector<float>& logits) {
  Distribution found{std::vector<uint32_t>(logits.size()), std::vector<float>(logits.size())};
  const size_t n =
      sampler.probabilities(logits.data(), found.ids.data(), found.probabilities.data());
  found.ids.resize(n);
  found.probabilities.resize(n);
  return found;
}

Sampler make(const std::vector<float>& logits, const SamplerOptions& options, uint64_t seed = 1) {
  return Sampler(wkvm::kernels_for("scalar"), static_cast<uint32_t>(logits.size()), options, seed);
}

std::vector<uint32_t> kept(const std::vector<float>& logits, const SamplerOptions& options) {
  Sampler sampler = make(logits, options);
  return distribution(sampler, logits).ids;
}

// Logits with a wide spread and many equal ones, the same everywhere.
std::vector<float> some_logits(size_t n, uint64_t seed) {
  std::vector<float> logits(n);
  for (size_t i = 0; i < n; ++i) {
    const float u = wkvm::philox_uniform(seed, i);
    logits[i] = i % 3 == 0 ? std::floor(u * 16) : u * 24 - 12;
  }
  return logits;
}

using Ids = std::vector<uint32_t>;

void philox_gives_the_published_vectors() {
  using Words = std::array<uint32_t, 4>;
  CHECK((wkvm::philox4x32_10({0, 0, 0, 0}, {0, 0}) ==
         Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  CHECK((wkvm::philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}) ==
         Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  CHECK((wkvm::philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                             {0xa4093822, 0x299f31d0}) ==
         Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
  CHECK(wkvm::philox_uniform(0, 0) == static_cast<float>(0x6627e8) / 0x1p24f);
  // Both halves of seed and index matter.
  CHECK(wkvm::philox_uniform(1, 0) != wkvm::philox_uniform(uint64_t{1} << 32, 0));
  CHECK(wkvm::philox_uniform(0, 1) != wkvm::philox_uniform(0, uint64_t{1} << 32));
}

void greedy_takes_the_lowest_id_among_equal_maxima() {
  const std::vector<float> logits = {-1, 0.0f, -0.0f, 0.0f, -3};
  Sampler sampler = make(logits, {.temperature = 0, .banned = {1}});
  CHECK(sampler.sample(logits.data()) == 2);  // -0 equals 0
  CHECK(distribution(sampler, logits).ids == Ids{2});
}

void top_p_keeps_ties_and_one_keeps_everything() {
  const std::vector<float> logits = {0, 2, 1, 2, -200, 1};
  CHECK((kept(logits, {.top_p = 1}) == Ids{0, 1, 2, 3, 4, 5}));
  CHECK((kept(logits, {.top_p = 0}) == Ids{1, 3}));
  CHECK((kept(logits, {.top_p = 0.4}) == Ids{1, 3}));  // the first 2 has 0.36, the second 0.72
  CHECK((kept(logits, {.top_p = 0.73}) == Ids{1, 2, 3, 5}));
  CHECK((kept(logits, {.top_p = std::nextafter(1.0, 0.0)}) == Ids{0, 1, 2, 3, 5}));
  CHECK((kept(std::vector<float>(5, 7.0f), {.top_p = 0.3}) == Ids{0, 1, 2, 3, 4}));
}

void top_k_cuts_by_probability_then_id() {
  const std::vector<float> logits = {1, 2, 1, 3, 1, -0.0f, 0.0f};
  CHECK((kept(logits, {.top_k = 1}) == Ids{3}));
  CHECK((kept(logits, {.top_k = 3}) == Ids{0, 1, 3}));
  CHECK((kept(logits, {.top_k = 4}) == Ids{0, 1, 2, 3}));
  CHECK((kept(logits, {.top_k = 6}) == Ids{0, 1, 2, 3, 4, 5}));
  CHECK((kept(logits, {.top_k = 1000}) == Ids{0, 1, 2, 3, 4, 5, 6}));
}

void min_p_is_relative_to_the_largest() {
  const std::vector<float> logits = {0, -0.6f, -0.8f, -5, -200};
  CHECK((kept(logits, {.min_p = 0.5}) == Ids{0, 1}));  // exp(-0.6) = 0.55, exp(-0.8) = 0.45
  CHECK((kept(logits, {.min_p = 1}) == Ids{0}));
  CHECK((kept(logits, {.order = SamplingOrder::kOpenai, .temperature = 2, .min_p = 0.5}) ==
         Ids{0, 1, 2}));
}

void order_decides_which_distribution_is_cut() {
  const std::vector<float> logits = {3, 2, 1, 0};  // 0.64 0.24 0.09 0.03; at T = 3: 0.40 0.29 ...
  CHECK((kept(logits, {.temperature = 3, .top_p = 0.6}) == Ids{0}));
  CHECK((kept(logits, {.order = SamplingOrder::kOpenai, .temperature = 3, .top_p = 0.6}) ==
         Ids{0, 1}));
}

void any_temperature_gives_finite_probabilities() {
  const std::vector<float> logits = {0, -1e-6f, -1, -3e38f, -0.5f, 0, -kInfinity};
  for (const double temperature : {5e-324, 1e-300, 1e-30, 1e-3, 0.5, 1.0, 1e3, 1e300})
    for (const auto order : {SamplingOrder::kRwkv, SamplingOrder::kOpenai}) {
      Sampler sampler = make(logits, {.order = order, .temperature = temperature});
      const Distribution found = distribution(sampler, logits);
      CHECK((found.ids == Ids{0, 1, 2, 3, 4, 5}));
      float sum = 0;
      for (const float p : found.probabilities) {
        CHECK(p >= 0 && p <= 1);
        sum += p;
      }
      CHECK(std::fabs(sum - 1) <= 1e-6f);  // six values of one rounding each
      CHECK(found.probabilities[0] == found.probabilities[5]);
    }
}

void a_draw_follows_the_running_sum_in_id_order() {
  const std::vector<float> logits = some_logits(100, 5);
  Sampler sampler = make(logits, {.temperature = 0.8, .top_p = 0.9}, 42);
  for (uint64_t index = 0; index < 2000; ++index) {
    sampler.set_generator(42, index);
    const Distribution found = distribution(sampler, logits);
    const float u = wkvm::philox_uniform(42, index);
    // Probabilities are weights over one total, so up to rounding the sums cross u together.
    float before = 0, after = 0;
    const uint32_t token = sampler.sample(logits.data());
    for (size_t j = 0; j < found.ids.size() && found.ids[j] <= token; ++j) {
      before = after;
      after += found.probabilities[j];
    }
    CHECK(before <= u + 1e-5f && after >= u - 1e-5f);
    CHECK(sampler.sample(logits.data()) == token);
  }
}

void the_ends_of_the_unit_interval_are_drawn_right() {
  // Indices of seed 0, found by search.
  constexpr uint64_t kZero = 14883995, kHalf = 9297664, kLargest = 38471471;
  CHECK(wkvm::philox_uniform(0, kZero) == 0);
  CHECK(wkvm::philox_uniform(0, kHalf) == 0.5f);
  CHECK(wkvm::philox_uniform(0, kLargest) == 1 - 0x1p-24f);
  const std::vector<float> first_is_impossible = {-200, 0, 0};
  Sampler sampler = make(first_is_impossible, {});
  sampler.set_generator(0, kZero);
  CHECK(sampler.sample(first_is_impossible.data()) == 1);
  sampler.set_generator(0, kHalf);
  CHECK(sampler.sample(first_is_impossible.data()) == 2);  // a sum of 1 does not exceed 1
  for (size_t n = 1; n < 300; ++n) {  // every rounding of u * total finds a token
    const std::vector<float> logits = some_logits(n, n);
    Sampler any = make(logits, {.temperature = 10});
    any.set_generator(0, kLargest);
    CHECK(any.sample(logits.data()) == n - 1);
  }
}

void penalties_are_those_of_the_definition() {
  const std::vector<float> logits = {1, -1, 2, 0.5f, -kInfinity, 3};
  Sampler sampler = make(logits, {.presence_penalty = 0.25,
                                  .frequency_penalty = 0.5,
                                  .repetition_penalty = 2,
                                  .penalty_decay = 0.5,
                                  .bias_ids = {0, 3},
                                  .biases = {-4, 8},
                                  .banned = {5},
                                  .exempt = {2}});
  for (const uint32_t token : {0u, 0u, 1u, 2u, 4u}) sampler.accept(token);
  // Counts: 0: (1 * .5 + 1) / 8 = 0.1875; 1: 0.25; 2: 0 (exempt); 4: 1.
  std::vector<float> adjusted(logits.size());
  sampler.adjusted(logits.data(), adjusted.data());
  CHECK((adjusted == std::vector<float>{0.5f - 0.25f - 0.09375f - 4, -2 - 0.25f - 0.125f, 1 - 0.25f,
                                        8.5f, -kInfinity, -kInfinity}));
  sampler.clear_counts();
  sampler.adjusted(logits.data(), adjusted.data());
  CHECK((adjusted == std::vector<float>{-3, -1, 2, 8.5f, -kInfinity, -kInfinity}));
}

void logprobs_are_of_the_logits_as_they_are() {
  const std::vector<float> logits = {1, 3, 3, -kInfinity, 2};
  Sampler sampler = make(logits, {.temperature = 0.1, .top_k = 1, .bias_ids = {0}, .biases = {9}});
  sampler.accept(1);
  uint32_t ids[5];
  float values[5];
  const double log_sum = std::log(std::exp(1.0) + 2 * std::exp(3.0) + std::exp(2.0));
  CHECK(std::fabs(sampler.logprobs(logits.data(), 0, 5, ids, values) - (1 - log_sum)) <= 1e-6);
  CHECK((Ids(ids, ids + 5) == Ids{1, 2, 4, 0, 3}));
  CHECK(std::fabs(values[0] - (3 - log_sum)) <= 1e-6 && values[1] == values[0]);
  CHECK(values[4] == -kInfinity);
  sampler.logprobs(logits.data(), 0, 1, ids, values);
  CHECK(ids[0] == 1);
}

void every_instruction_set_gives_the_same_bits() {
  size_t n_sets;
  const wkvm::Kernels* const* sets = wkvm::kernels_available(&n_sets);
  for (const size_t n_vocab : {1, 15, 17, 512, 65536}) {
    const std::vector<float> logits = some_logits(n_vocab, 3);
    for (const SamplerOptions& options :
         {SamplerOptions{}, SamplerOptions{.temperature = 0.3, .top_p = 0.9, .min_p = 0.01},
          SamplerOptions{.order = SamplingOrder::kOpenai, .temperature = 1.7, .top_k = 40}}) {
      Sampler first(*sets[0], static_cast<uint32_t>(n_vocab), options, 9);
      const Distribution expected = distribution(first, logits);
      const uint32_t token = first.sample(logits.data());
      const float logprob = first.logprobs(logits.data(), token, 0, nullptr, nullptr);
      for (size_t i = 1; i < n_sets; ++i) {
        Sampler other(*sets[i], static_cast<uint32_t>(n_vocab), options, 9);
        CHECK(distribution(other, logits) == expected);
        CHECK(other.sample(logits.data()) == token);
        CHECK(other.logprobs(logits.data(), token, 0, nullptr, nullptr) == logprob);
      }
    }
  }
}

void nothing_is_allocated_while_sampling() {
  constexpr uint32_t kVocab = 4096;
  const std::vector<float> logits = some_logits(kVocab, 8);
  Sampler sampler = make(
      logits,
      {.temperature = 0.9, .top_p = 0.95, .min_p = 1e-6, .top_k = 500, .frequency_penalty = 0.1});
  std::vector<uint32_t> ids(kVocab);
  std::vector<float> values(kVocab);
  const size_t before = n_allocations;
  for (uint32_t step = 0; step < kVocab; ++step) {
    sampler.accept(sampler.sample(logits.data()));
    sampler.accept(step);  // in the end, every token has a count
    if (step % 256 == 0) {
      sampler.probabilities(logits.data(), ids.data(), values.data());
      sampler.logprobs(logits.data(), step, 300, ids.data(), values.data());
    }
  }
  CHECK(n_allocations == before);
  ::operator delete(::operator new(1));  // the counter does count
  CHECK(n_allocations == before + 1);
}

void bad_logits_are_named() {
  std::vector<float> logits = {1, 2, 3, 4};
  Sampler sampler = make(logits, {.banned = {0, 1}});
  logits[2] = kNan;
  CHECK_ERROR(WKVM_NUMERIC, "token 2 is", sampler.sample(logits.data()));
  CHECK_ERROR(WKVM_NUMERIC, "token 2 is", sampler.logprobs(logits.data(), 0, 0, nullptr, nullptr));
  logits[2] = kInfinity;
  CHECK_ERROR(WKVM_NUMERIC, "token 2 is inf", sampler.sample(logits.data()));
  logits[2] = -kInfinity;
  CHECK(sampler.sample(logits.data()) == 3);
  logits[3] = -kInfinity;
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "every token is banned", sampler.sample(logits.data()));
  const std::vector<float> none(4, -kInfinity);
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "every logit is -inf",
              sampler.logprobs(none.data(), 0, 0, nullptr, nullptr));
  logits = {1, 2, 3e38f, 4};
  sampler.set_options({.repetition_penalty = 0.01});
  sampler.accept(2);
  CHECK_ERROR(WKVM_NUMERIC, "adjusted logit of token 2", sampler.sample(logits.data()));
}

void bad_tokens_and_options_are_refused() {
  const std::vector<float> logits = {1, 2, 3, 4};
  Sampler sampler = make(logits, {});
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "token 4 is outside", sampler.accept(4));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "token 4 is outside",
              sampler.logprobs(logits.data(), 4, 0, nullptr, nullptr));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "5 top",
              sampler.logprobs(logits.data(), 0, 5, nullptr, nullptr));
  CHECK(sampler.index() == 0);
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "n_vocab is 0", make({}, {}));
  const double nan = std::nan("");
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "temperature", sampler.set_options({.temperature = -0.1}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "temperature", sampler.set_options({.temperature = nan}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "temperature", sampler.set_options({.temperature = HUGE_VAL}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "top_p", sampler.set_options({.top_p = 1.5}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "min_p", sampler.set_options({.min_p = -1}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "presence", sampler.set_options({.presence_penalty = 1e9}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "frequency", sampler.set_options({.frequency_penalty = nan}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "repetition", sampler.set_options({.repetition_penalty = 0}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "decay", sampler.set_options({.penalty_decay = 1.01}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "order is 7",
              sampler.set_options({.order = static_cast<SamplingOrder>(7)}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "bias is inf",
              sampler.set_options({.bias_ids = {1}, .biases = {HUGE_VAL}}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "banned_ids holds token 4",
              sampler.set_options({.banned = {4}}));
  CHECK_ERROR(WKVM_INVALID_ARGUMENT, "exempt_ids must be strictly ascending",
              sampler.set_options({.exempt = {2, 2}}));
}

std::vector<uint8_t> exported(const Sampler& sampler) {
  std::vector<uint8_t> state(sampler.export_size());
  sampler.export_state(state.data());
  return state;
}

void a_restored_sampler_continues_with_the_same_tokens() {
  const std::vector<float> logits = some_logits(300, 2);
  Sampler sampler = make(logits,
                         {.order = SamplingOrder::kOpenai,
                          .temperature = 1.3,
                          .top_p = 0.97,
                          .min_p = 1e-4,
                          .top_k = 200,
                          .presence_penalty = 0.3,
                          .frequency_penalty = 0.7,
                          .repetition_penalty = 1.1,
                          .penalty_decay = 0.97,
                          .bias_ids = {3, 7},
                          .biases = {1.5, -2},
                          .banned = {0, 299},
                          .exempt = {9}},
                         ~uint64_t{0});
  for (int i = 0; i < 50; ++i) sampler.accept(sampler.sample(logits.data()));
  const std::vector<uint8_t> state = exported(sampler);
  Sampler twin = make(logits, {});
  twin.import_state(state.data(), state.size());
  CHECK(exported(twin) == state);
  for (int i = 0; i < 50; ++i) {
    const uint32_t token = sampler.sample(logits.data());
    CHECK(twin.sample(logits.data()) == token);
    sampler.accept(token);
    twin.accept(token);
  }
  CHECK(exported(twin) == exported(sampler));
}

void a_damaged_state_is_refused_and_changes_nothing() {
  const std::vector<float> logits = some_logits(20, 1);
  Sampler sampler = make(logits, {.bias_ids = {3}, .biases = {1.5}, .banned = {2}, .exempt = {9}});
  for (const uint32_t token : {4u, 9u, 4u}) sampler.accept(token);
  const std::vector<uint8_t> state = exported(sampler);
  Sampler target = make(logits, {.temperature = 0.5});
  const std::vector<uint8_t> before = exported(target);

  // Any other length, exactly as long as the buffer so that a sanitizer sees every read beyond it.
  for (size_t n = 0; n < state.size(); ++n) {
    const std::vector<uint8_t> shorter(state.begin(), state.begin() + static_cast<ptrdiff_t>(n));
    CHECK_ERROR(WKVM_FORMAT, "state", target.import_state(shorter.data(), shorter.size()));
  }
  std::vector<uint8_t> longer = state;
  longer.push_back(0);
  CHECK_ERROR(WKVM_FORMAT, "bytes", target.import_state(longer.data(), longer.size()));
  CHECK(exported(target) == before);

  // Any other byte: refused with nothing changed, or a valid state that is taken exactly.
  for (size_t at = 0; at < state.size(); ++at)
    for (const int flip : {1, 0x10, 0x80, 0xFF}) {
      std::vector<uint8_t> damaged = state;
      damaged[at] ^= static_cast<uint8_t>(flip);
      try {
        target.import_state(damaged.data(), damaged.size());
        CHECK(exported(target) == damaged);
        target.import_state(before.data(), before.size());
      } catch (const wkvm::Error& error) {
        CHECK(error.status() == WKVM_FORMAT || error.status() == WKVM_UNSUPPORTED ||
              error.status() == WKVM_STATE_MISMATCH);
        CHECK(exported(target) == before);
      }
    }

  // Values that no sampler has. The header has 120 bytes, then 3 + 2 ids, a bias, 2 counts.
  const auto refuses = [&](size_t at, auto value, const char* text) {
    std::vector<uint8_t> damaged = state;
    CHECK(at + sizeof value <= damaged.size());
    std::memcpy(damaged.data() + at, &value, sizeof value);
    CHECK_ERROR(WKVM_FORMAT, text, target.import_state(damaged.data(), damaged.size()));
    CHECK(exported(target) == before);
  };
  refuses(16, uint32_t{2}, "order");
  refuses(20, uint32_t{0xFFFFFFFF}, "bytes");
  refuses(48, kNan + 0.0, "temperature");
  refuses(56, 1.5, "top_p");
  refuses(120, uint32_t{20}, "bias_ids holds token 20");
  refuses(136, uint32_t{4}, "counts must be strictly ascending");
  refuses(140, HUGE_VAL, "bias");
  refuses(148, -1.0, "a count");
  refuses(156, kNan + 0.0, "a count");

  Sampler smaller = make(std::vector<float>(19), {});
  CHECK_ERROR(WKVM_STATE_MISMATCH, "vocabulary of 20",
              smaller.import_state(state.data(), state.size()));
}

#define CHECK_OK(call) CHECK((call) == WKVM_OK)
#define CHECK_STATUS(code, text, call)   \
  do {                                   \
    const char* message = nullptr;       \
    CHECK((call) == (code));             \
    CHECK_OK(wkvm_last_error(&message)); \
    CHECK(std::strstr(message, text));   \
  } while (0)

wkvm_sampler_options plain_options() {
  wkvm_sampler_options options{};
  options.struct_size = sizeof options;
  options.temperature = options.top_p = options.repetition_penalty = options.penalty_decay = 1;
  return options;
}

void the_c_interface_checks_every_argument() {
  wkvm_sampler_options options = plain_options();
  wkvm_sampler* sampler = nullptr;
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "out is NULL",
               wkvm_sampler_new(4, &options, 0, nullptr, nullptr));
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "options is NULL",
               wkvm_sampler_new(4, nullptr, 0, nullptr, &sampler));
  CHECK_STATUS(WKVM_UNSUPPORTED, "mmx", wkvm_sampler_new(4, &options, 0, "mmx", &sampler));
  options.struct_size = 8;
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "struct_size",
               wkvm_sampler_new(4, &options, 0, nullptr, &sampler));
  options = plain_options();
  options.n_banned = 3;
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "banned_ids is NULL",
               wkvm_sampler_new(4, &options, 0, nullptr, &sampler));
  options.n_banned = SIZE_MAX;
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "more than any vocabulary",
               wkvm_sampler_new(4, &options, 0, nullptr, &sampler));
  CHECK(sampler == nullptr);

  const uint32_t banned[] = {0, 2};
  options.banned_ids = banned;
  options.n_banned = 2;
  CHECK_OK(wkvm_sampler_new(4, &options, 6, nullptr, &sampler));
  wkvm_sampler_options read{};
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "struct_size", wkvm_sampler_get_options(sampler, &read));
  read.struct_size = sizeof read;
  CHECK_OK(wkvm_sampler_get_options(sampler, &read));
  CHECK(read.n_banned == 2 && read.banned_ids[1] == 2 && read.top_p == 1);

  const float logits[4] = {4, 3, 2, 1};
  uint32_t token = 99, ids[4];
  float values[4], logprob;
  size_t n;
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "room for 3",
               wkvm_sampler_sample(sampler, logits, 3, &token));
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "ids has room for 3",
               wkvm_sampler_probabilities(sampler, logits, 4, ids, values, 3, &n));
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "out has room for 5",
               wkvm_sampler_adjust(sampler, logits, 4, values, 5));
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "top_ids is NULL",
               wkvm_sampler_logprobs(sampler, logits, 4, 0, &logprob, nullptr, values, 2));
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "logits is NULL",
               wkvm_sampler_sample(sampler, nullptr, 4, &token));
  CHECK(token == 99);
  CHECK_OK(wkvm_sampler_probabilities(sampler, logits, 4, ids, values, 4, &n));
  CHECK(n == 2 && ids[0] == 1 && ids[1] == 3);
  CHECK_OK(wkvm_sampler_sample(sampler, logits, 4, &token));
  CHECK_OK(wkvm_sampler_accept(sampler, token));
  uint64_t seed, index;
  CHECK_OK(wkvm_sampler_get_generator(sampler, &seed, &index));
  CHECK(seed == 6 && index == 1);

  CHECK_OK(wkvm_sampler_export_size(sampler, &n));
  std::vector<uint8_t> state(n);
  CHECK_STATUS(WKVM_INVALID_ARGUMENT, "it takes",
               wkvm_sampler_export(sampler, state.data(), n - 1));
  CHECK_OK(wkvm_sampler_export(sampler, state.data(), n));
  CHECK_OK(wkvm_sampler_set_generator(sampler, 7, 0));
  CHECK_OK(wkvm_sampler_clear_counts(sampler));
  CHECK_OK(wkvm_sampler_import(sampler, state.data(), n));
  CHECK_OK(wkvm_sampler_get_generator(sampler, &seed, &index));
  CHECK(seed == 6 && index == 1);
  CHECK_STATUS(WKVM_FORMAT, "shorter", wkvm_sampler_import(sampler, state.data(), 7));
  CHECK_OK(wkvm_sampler_free(sampler));
  CHECK_OK(wkvm_sampler_free(nullptr));
}

void a_foreign_floating_point_environment_changes_no_bit() {
  const std::vector<float> logits = some_logits(1000, 4);
  wkvm_sampler_options options = plain_options();
  options.temperature = 0.7;
  options.top_p = 0.9;
  options.frequency_penalty = 0.3;
  options.penalty_decay = 0.9;
  const auto run = [&] {
    wkvm_sampler* sampler = nullptr;
    CHECK_OK(wkvm_sampler_new(1000, &options, 3, nullptr, &sampler));
    std::vector<uint8_t> trace;
    std::vector<uint32_t> ids(1000);
    std::vector<float> values(1000);
    for (int i = 0; i < 50; ++i) {
      uint32_t token;
      size_t n;
      CHECK_OK(wkvm_sampler_probabilities(sampler, logits.data(), 1000, ids.data(), values.data(),
                                          1000, &n));
      const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
      trace.insert(trace.end(), bytes, bytes + n * sizeof(float));
      CHECK_OK(wkvm_sampler_sample(sampler, logits.data(), 1000, &token));
      CHECK_OK(wkvm_sampler_accept(sampler, token));
    }
    size_t n;
    CHECK_OK(wkvm_sampler_export_size(sampler, &n));
    std::vector<uint8_t> state(n);
    CHECK_OK(wkvm_sampler_export(sampler, state.data(), n));
    CHECK_OK(wkvm_sampler_free(sampler));
    trace.insert(trace.end(), state.begin(), state.end());
    return trace;
  };
  const std::vector<uint8_t> expected = run();
  for (const int mode : {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO}) {
    std::fesetround(mode);
    const bool is_equal = run() == expected;
    const int left = std::fegetround();
    std::fesetround(FE_TONEAREST);
    CHECK(is_equal);
    CHECK(left == mode);
  }
}

}  // namespace

int main() {
  philox_gives_the_published_vectors();
  greedy_takes_the_lowest_id_among_equal_maxima();
  top_p_keeps_ties_and_one_keeps_everything();
  top_k_cuts_by_probability_then_id();
  min_p_is_relative_to_the_largest();
  order_decides_which_distribution_is_cut();
  any_temperature_gives_finite_probabilities();
  a_draw_follows_the_running_sum_in_id_order();
  the_ends_of_the_unit_interval_are_drawn_right();
  penalties_are_those_of_the_definition();
  logprobs_are_of_the_logits_as_they_are();
  every_instruction_set_gives_the_same_bits();
  nothing_is_allocated_while_sampling();
  bad_logits_are_named();
  bad_tokens_and_options_are_refused();
  a_restored_sampler_continues_with_the_same_tokens();
  a_damaged_state_is_refused_and_changes_nothing();
  the_c_interface_checks_every_argument();
  a_foreign_floating_point_environment_changes_no_bit();
}

// The engine through the C interface: one forward for any cutting, batch and number of threads,
// and every misuse refused without touching a slot.
#include <algorithm>
#include <cstring>
#include <initializer_list>

#include "check.h"
#include "random_model.h"

namespace {

constexpr size_t kVocab = 107;         // not a multiple of 16
constexpr size_t kTokens = 600;        // several passes of 256
constexpr size_t kWindowTokens = 900;  // wraps the ring of 277 three times

std::vector<uint32_t> random_tokens(size_t n, uint64_t seed) {
  Random random(seed);
  std::vector<uint32_t> tokens(n);
  for (uint32_t& token : tokens) token = random.next() % kVocab;
  return tokens;
}

struct Run {
  std::vector<float> logits;  // [T][V]
  std::vector<std::vector<char>> state;
};

std::vector<std::vector<char>> export_state(wkvm_engine* engine, uint32_t slot) {
  std::vector<std::vector<char>> state;
  size_t n = 0;
  OK(wkvm_slot_tensor_count(engine, slot, &n));
  for (size_t i = 0; i < n; ++i) {
    wkvm_tensor tensor{};
    OK(wkvm_slot_tensor(engine, slot, i, &tensor));
    state.emplace_back(tensor.n_bytes);
    OK(wkvm_slot_export(engine, slot, i, state.back().data(), tensor.n_bytes));
  }
  return state;
}

Run run(wkvm_model* model, wkvm_engine_options options, const std::vector<uint32_t>& tokens,
        size_t chunk) {
  wkvm_engine* engine = nullptr;
  OK(wkvm_engine_new(model, &options, &engine));
  uint32_t slot = 0;
  OK(wkvm_slot_acquire(engine, &slot));
  Run result;
  result.logits.resize(tokens.size() * kVocab);
  for (size_t at = 0; at < tokens.size(); at += chunk) {
    const size_t n = std::min(chunk, tokens.size() - at);
    const wkvm_row row{slot, WKVM_LOGITS_ALL, tokens.data() + at, n};
    OK(wkvm_forward(engine, &row, 1, result.logits.data() + at * kVocab, n * kVocab));
  }
  result.state = export_state(engine, slot);
  OK(wkvm_engine_free(engine));
  return result;
}

bool same(const Run& a, const Run& b) {
  return a.logits.size() == b.logits.size() && a.state == b.state &&
         std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)) == 0;
}

void any_cut_thread_count_and_isa_gives_the_same_bits(wkvm_model* model) {
  const char* isas = nullptr;
  OK(wkvm_isa_list(&isas));
  for (uint32_t policy : {WKVM_FULL, WKVM_MOBA, WKVM_WINDOW}) {
    const std::vector<uint32_t> tokens =
        random_tokens(policy == WKVM_WINDOW ? kWindowTokens : kTokens, 1);
    const std::vector<uint32_t> head(tokens.begin(), tokens.begin() + 290);  // scalar is slow
    wkvm_engine_options options = small_options(policy, 2, 1);
    const Run whole = run(model, options, tokens, tokens.size());
    for (size_t chunk : {size_t{1}, size_t{3}, size_t{64}}) {
      CHECK(same(whole, run(model, options, tokens, chunk)));
    }
    options.n_threads = 3;
    CHECK(same(whole, run(model, options, tokens, tokens.size())));
    const Run best = run(model, options, head, head.size());
    std::string name;
    for (const char* c = isas;; ++c) {
      if (*c && *c != ',') {
        name += *c;
        continue;
      }
      options.isa = name.c_str();
      CHECK(same(best, run(model, options, head, 250)));
      name.clear();
      if (!*c) break;
    }
  }
}

// The options at their limits; where two policies see the same keys, they give the same bits.
void the_limits_of_the_options_are_exact(wkvm_model* model) {
  const std::vector<uint32_t> tokens = random_tokens(300, 2);
  const auto run_both = [&](const wkvm_engine_options& options) {
    const Run whole = run(model, options, tokens, tokens.size());
    CHECK(same(whole, run(model, options, tokens, 7)));
    return whole;
  };
  wkvm_engine_options options = small_options(WKVM_FULL, 1, 2);
  options.max_cache_len = tokens.size();
  const Run full = run_both(options);

  options.policy = WKVM_MOBA;
  for (uint64_t chunk : {uint64_t{300}, uint64_t{301}, (uint64_t{1} << 31) - 1}) {
    for (uint64_t topk : {1, 3}) {
      options.moba_chunk_size = chunk;  // the cache, and more than it: one block
      options.moba_topk = topk;
      CHECK(same(full, run_both(options)));
    }
  }
  options.moba_chunk_size = 1;
  options.moba_topk = 300;  // every block
  CHECK(same(full, run_both(options)));
  options.moba_topk = 3;
  CHECK(!same(full, run_both(options)));
  options.moba_topk = 1;  // a query's own block: itself
  const Run only_itself = run_both(options);
  CHECK(!same(full, only_itself));
  options.moba_chunk_size = 8;
  CHECK(!same(full, run_both(options)));

  options.policy = WKVM_WINDOW;
  for (uint64_t sinks : {0, 299, 300, 400}) {
    options.window_sinks = sinks;
    options.window_size = 300 - std::min<uint64_t>(sinks, 299);
    CHECK(same(full, run_both(options)));
  }
  options.window_sinks = 0;
  options.window_size = 1;
  CHECK(run_both(options).logits == only_itself.logits);
}

void a_batch_gives_the_bits_of_its_rows_alone(wkvm_model* model) {
  constexpr size_t kRows = 5;
  for (uint32_t policy : {WKVM_FULL, WKVM_MOBA, WKVM_WINDOW, WKVM_MEMORY}) {
    const wkvm_engine_options options = small_options(policy, kRows, 2);
    wkvm_engine* engine = nullptr;
    OK(wkvm_engine_new(model, &options, &engine));
    std::vector<std::vector<uint32_t>> tokens;
    std::vector<wkvm_row> rows;
    size_t n_logits = 0;
    for (size_t i = 0; i < kRows; ++i) {
      tokens.push_back(random_tokens(1 + i * 110, i));
      n_logits += tokens[i].size() * kVocab;
    }
    for (size_t i = 0; i < kRows; ++i) {
      uint32_t slot = 0;
      OK(wkvm_slot_acquire(engine, &slot));
      rows.push_back({slot, WKVM_LOGITS_ALL, tokens[i].data(), tokens[i].size()});
    }
    std::vector<float> logits(n_logits);
    OK(wkvm_forward(engine, rows.data(), kRows, logits.data(), n_logits));
    size_t at = 0;
    for (size_t i = 0; i < kRows; ++i) {
      Run alone = run(model, options, tokens[i], tokens[i].size());
      const auto* first = logits.data() + at;
      CHECK(std::memcmp(first, alone.logits.data(), alone.logits.size() * sizeof(float)) == 0);
      CHECK(export_state(engine, rows[i].slot) == alone.state);
      at += alone.logits.size();
    }
    OK(wkvm_engine_free(engine));
  }
}

void an_exported_state_continues_with_the_same_bits(wkvm_model* model) {
  constexpr size_t kSplit = 700;  // the ring has wrapped twice
  const std::vector<uint32_t> tokens = random_tokens(kSplit + 50, 3);
  for (uint32_t policy : {WKVM_FULL, WKVM_MOBA, WKVM_WINDOW, WKVM_MEMORY}) {
    const wkvm_engine_options options = small_options(policy, 3, 1);
    wkvm_engine* engine = nullptr;
    OK(wkvm_engine_new(model, &options, &engine));
    uint32_t slots[3];
    for (uint32_t& slot : slots) OK(wkvm_slot_acquire(engine, &slot));
    const wkvm_row first{slots[0], WKVM_LOGITS_NONE, tokens.data(), kSplit};
    OK(wkvm_forward(engine, &first, 1, nullptr, 0));

    const std::vector<std::vector<char>> state = export_state(engine, slots[0]);
    std::vector<wkvm_tensor> tensors(state.size());
    for (size_t i = 0; i < state.size(); ++i) {
      OK(wkvm_slot_tensor(engine, slots[0], i, &tensors[i]));
      tensors[i].data = state[i].data();
    }
    OK(wkvm_slot_import(engine, slots[1], kSplit, tensors.data(), tensors.size()));
    OK(wkvm_slot_copy(engine, slots[0], slots[2]));

    std::vector<float> logits[3];
    for (size_t i = 0; i < 3; ++i) {
      logits[i].resize(50 * kVocab);
      const wkvm_row row{slots[i], WKVM_LOGITS_ALL, tokens.data() + kSplit, 50};
      OK(wkvm_forward(engine, &row, 1, logits[i].data(), logits[i].size()));
      std::vector<float> again(kVocab);
      OK(wkvm_slot_logits(engine, slots[i], again.data(), kVocab));
      CHECK(std::memcmp(again.data(), logits[i].data() + 49 * kVocab, kVocab * 4) == 0);
    }
    for (size_t i : {1, 2}) {
      CHECK(std::memcmp(logits[0].data(), logits[i].data(), logits[0].size() * 4) == 0);
      CHECK(export_state(engine, slots[0]) == export_state(engine, slots[i]));
    }
    OK(wkvm_engine_free(engine));
  }
}

void misuse_is_refused_and_leaves_the_slot_alone(wkvm_model* model) {
  wkvm_engine_options options = small_options(WKVM_FULL, 2, 1);
  wkvm_engine* engine = nullptr;
  OK(wkvm_engine_new(model, &options, &engine));
  uint32_t slot = 0;
  OK(wkvm_slot_acquire(engine, &slot));
  const std::vector<uint32_t> tokens = random_tokens(990, 5);
  const wkvm_row good{slot, WKVM_LOGITS_NONE, tokens.data(), 990};
  OK(wkvm_forward(engine, &good, 1, nullptr, 0));
  const auto before = export_state(engine, slot);

  std::vector<float> logits(kVocab);
  const uint32_t bad_token = kVocab;
  const wkvm_row wrong_token{slot, WKVM_LOGITS_LAST, &bad_token, 1};
  CHECK(wkvm_forward(engine, &wrong_token, 1, logits.data(), kVocab) == WKVM_INVALID_ARGUMENT);
  const wkvm_row empty{slot, WKVM_LOGITS_LAST, tokens.data(), 0};
  CHECK(wkvm_forward(engine, &empty, 1, logits.data(), kVocab) == WKVM_INVALID_ARGUMENT);
  const wkvm_row too_long{slot, WKVM_LOGITS_LAST, tokens.data(), 11};
  CHECK(wkvm_forward(engine, &too_long, 1, logits.data(), kVocab) == WKVM_CACHE_FULL);
  const wkvm_row twice[] = {{slot, WKVM_LOGITS_NONE, tokens.data(), 1},
                            {slot, WKVM_LOGITS_NONE, tokens.data(), 1}};
  CHECK(wkvm_forward(engine, twice, 2, nullptr, 0) == WKVM_INVALID_ARGUMENT);
  const wkvm_row one{slot, WKVM_LOGITS_LAST, tokens.data(), 1};
  CHECK(wkvm_forward(engine, &one, 1, logits.data(), kVocab - 1) == WKVM_INVALID_ARGUMENT);
  const wkvm_row no_slot{1, WKVM_LOGITS_LAST, tokens.data(), 1};
  CHECK(wkvm_forward(engine, &no_slot, 1, logits.data(), kVocab) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_forward(engine, nullptr, 0, nullptr, 0) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_slot_import(engine, slot, 3, nullptr, 0) == WKVM_STATE_MISMATCH);
  CHECK(wkvm_slot_logits(engine, slot, logits.data(), kVocab + 1) == WKVM_INVALID_ARGUMENT);
  CHECK(export_state(engine, slot) == before);

  uint32_t other = 0;
  OK(wkvm_slot_acquire(engine, &other));
  CHECK(wkvm_slot_acquire(engine, &slot) == WKVM_NO_SLOT);
  OK(wkvm_slot_release(engine, other));
  CHECK(wkvm_slot_release(engine, other) == WKVM_INVALID_ARGUMENT);
  OK(wkvm_engine_free(engine));

  options.isa = "sse9";
  CHECK(wkvm_engine_new(model, &options, &engine) == WKVM_UNSUPPORTED);
}

// A position that a file claims must never overflow, whatever the policy bounds by itself.
void a_state_of_too_many_tokens_is_refused(wkvm_model* model) {
  for (uint32_t policy : {WKVM_FULL, WKVM_MOBA, WKVM_WINDOW, WKVM_MEMORY}) {
    const wkvm_engine_options options = small_options(policy, 1, 1);
    wkvm_engine* engine = nullptr;
    OK(wkvm_engine_new(model, &options, &engine));
    uint32_t slot = 0;
    OK(wkvm_slot_acquire(engine, &slot));
    const std::vector<uint32_t> tokens = random_tokens(30, 6);  // more than sinks and window
    const wkvm_row row{slot, WKVM_LOGITS_NONE, tokens.data(), tokens.size()};
    OK(wkvm_forward(engine, &row, 1, nullptr, 0));
    const std::vector<std::vector<char>> state = export_state(engine, slot);
    std::vector<wkvm_tensor> tensors(state.size());
    for (size_t i = 0; i < state.size(); ++i) {
      OK(wkvm_slot_tensor(engine, slot, i, &tensors[i]));
      tensors[i].data = state[i].data();
    }
    const wkvm_status status =
        policy == WKVM_FULL || policy == WKVM_MOBA ? WKVM_CACHE_FULL : WKVM_STATE_MISMATCH;
    for (uint64_t n : {(uint64_t{1} << 62) + 1, UINT64_MAX}) {
      CHECK(wkvm_slot_import(engine, slot, n, tensors.data(), tensors.size()) == status);
    }
    CHECK(export_state(engine, slot) == state);
    if (policy == WKVM_WINDOW || policy == WKVM_MEMORY) {
      OK(wkvm_slot_import(engine, slot, uint64_t{1} << 62, tensors.data(), tensors.size()));
      CHECK(wkvm_forward(engine, &row, 1, nullptr, 0) == WKVM_CACHE_FULL);
      OK(wkvm_slot_import(engine, slot, (uint64_t{1} << 62) - 30, tensors.data(), tensors.size()));
      OK(wkvm_forward(engine, &row, 1, nullptr, 0));
    }
    OK(wkvm_engine_free(engine));
  }
}

// Rows whose activations overflow are named and spoilt; their neighbour is complete.
void a_numeric_error_stays_in_its_row() {
  constexpr uint32_t kPoison = 50;
  std::vector<RandomTensor> tensors = random_checkpoint(4, 2, kVocab);
  for (RandomTensor& tensor : tensors) {
    if (tensor.name != "rwkv.emb.weight") continue;
    const size_t d = tensor.shape[1];
    std::fill_n(tensor.data.begin() + static_cast<ptrdiff_t>(kPoison * d), d, 3e38f);  // sum: inf
  }
  wkvm_model* model = build_model(tensors, WKVM_F32);
  std::vector<uint32_t> good(300, 7);
  for (size_t i = 0; i < good.size(); ++i) good[i] = static_cast<uint32_t>(i % kPoison);
  std::vector<uint32_t> bad(300, 7);
  bad[270] = kPoison;
  for (uint32_t policy : {WKVM_FULL, WKVM_MOBA, WKVM_WINDOW, WKVM_MEMORY}) {
    const wkvm_engine_options options = small_options(policy, 4, 2);
    const Run alone = run(model, options, good, good.size());
    wkvm_engine* engine = nullptr;
    OK(wkvm_engine_new(model, &options, &engine));
    uint32_t slots[4];
    for (uint32_t& slot : slots) OK(wkvm_slot_acquire(engine, &slot));
    const wkvm_row rows[] = {{slots[0], WKVM_LOGITS_ALL, good.data(), good.size()},
                             {slots[1], WKVM_LOGITS_LAST, bad.data(), bad.size()},
                             {slots[2], WKVM_LOGITS_NONE, &kPoison, 1}};
    std::vector<float> logits(301 * kVocab);
    CHECK(wkvm_forward(engine, rows, 3, logits.data(), logits.size()) == WKVM_NUMERIC);
    const char* message = nullptr;
    OK(wkvm_last_error(&message));
    CHECK(std::strstr(message, "row 1, token 270") && std::strstr(message, "row 2, token 0"));
    CHECK(!std::strstr(message, "row 0"));
    CHECK(std::memcmp(logits.data(), alone.logits.data(), alone.logits.size() * 4) == 0);
    CHECK(export_state(engine, slots[0]) == alone.state);

    uint32_t spoilt = 1;
    OK(wkvm_slot_is_spoilt(engine, slots[0], &spoilt));
    CHECK(spoilt == 0);
    for (uint32_t slot : {slots[1], slots[2]}) {
      OK(wkvm_slot_is_spoilt(engine, slot, &spoilt));
      CHECK(spoilt == 1);
      CHECK(wkvm_slot_logits(engine, slot, logits.data(), kVocab) == WKVM_NUMERIC);
      wkvm_tensor tensor{};
      OK(wkvm_slot_tensor(engine, slot, 0, &tensor));
      std::vector<char> bytes(tensor.n_bytes);
      CHECK(wkvm_slot_export(engine, slot, 0, bytes.data(), bytes.size()) == WKVM_NUMERIC);
      CHECK(wkvm_slot_copy(engine, slot, slots[3]) == WKVM_NUMERIC);
      const wkvm_row again[] = {{slots[0], WKVM_LOGITS_NONE, good.data(), 1},
                                {slot, WKVM_LOGITS_NONE, good.data(), 1}};
      CHECK(wkvm_forward(engine, again, 2, nullptr, 0) == WKVM_NUMERIC);
    }
    CHECK(export_state(engine, slots[0]) == alone.state);

    OK(wkvm_slot_reset(engine, slots[1]));
    const wkvm_row repeated{slots[1], WKVM_LOGITS_ALL, good.data(), good.size()};
    OK(wkvm_forward(engine, &repeated, 1, logits.data(), alone.logits.size()));
    CHECK(std::memcmp(logits.data(), alone.logits.data(), alone.logits.size() * 4) == 0);
    OK(wkvm_slot_copy(engine, slots[0], slots[2]));
    CHECK(export_state(engine, slots[2]) == alone.state);
    OK(wkvm_engine_free(engine));
  }
  OK(wkvm_model_free(model));
}

void a_key_beyond_the_cache_type_is_a_numeric_error() {
  std::vector<RandomTensor> tensors = random_checkpoint(4, 2, kVocab);
  for (RandomTensor& tensor : tensors) {
    if (tensor.name != "moba.0.att.key.weight") continue;
    for (float& x : tensor.data) x *= 1e30f;  // keys far beyond float16
  }
  wkvm_model* model = build_model(tensors, WKVM_DTYPE_AUTO);
  const wkvm_engine_options options = small_options(WKVM_FULL, 2, 1);
  wkvm_engine* engine = nullptr;
  OK(wkvm_engine_new(model, &options, &engine));
  uint32_t slot = 0;
  OK(wkvm_slot_acquire(engine, &slot));
  const uint32_t tokens[] = {1, 2, 3};
  const wkvm_row row{slot, WKVM_LOGITS_NONE, tokens, 3};
  CHECK(wkvm_forward(engine, &row, 1, nullptr, 0) == WKVM_NUMERIC);
  const char* message = nullptr;
  OK(wkvm_last_error(&message));
  CHECK(std::strstr(message, "attention block 0") && std::strstr(message, "token 0"));
  uint32_t spoilt = 0;
  OK(wkvm_slot_is_spoilt(engine, slot, &spoilt));
  CHECK(spoilt == 1);
  CHECK(wkvm_forward(engine, &row, 1, nullptr, 0) == WKVM_NUMERIC);
  OK(wkvm_slot_reset(engine, slot));
  OK(wkvm_slot_is_spoilt(engine, slot, &spoilt));
  CHECK(spoilt == 0);
  OK(wkvm_engine_free(engine));
  OK(wkvm_model_free(model));
}

void a_model_outlives_its_handle() {
  wkvm_model* model = build_model(random_checkpoint(1, 0, kVocab), WKVM_I8);
  const wkvm_engine_options options = small_options(WKVM_FULL, 1, 1);
  wkvm_engine* engine = nullptr;
  OK(wkvm_engine_new(model, &options, &engine));
  OK(wkvm_model_free(model));
  uint32_t slot = 0;
  OK(wkvm_slot_acquire(engine, &slot));
  const uint32_t token = 5;
  std::vector<float> logits(kVocab);
  const wkvm_row row{slot, WKVM_LOGITS_LAST, &token, 1};
  OK(wkvm_forward(engine, &row, 1, logits.data(), kVocab));
  OK(wkvm_engine_free(engine));
}

void a_checkpoint_that_is_wrong_is_refused_by_name() {
  // The message must contain `text` or `other`.
  const auto refused = [](const std::vector<RandomTensor>& tensors, wkvm_status status,
                          const std::string& text, const std::string& other) {
    const std::vector<wkvm_tensor> described = describe(tensors);
    wkvm_builder* builder = nullptr;
    CHECK(wkvm_builder_new(described.data(), described.size(), nullptr, &builder) == status);
    const char* message = nullptr;
    OK(wkvm_last_error(&message));
    const bool is_named = std::strstr(message, text.c_str()) || std::strstr(message, other.c_str());
    if (!is_named) std::fprintf(stderr, "%s: %s\n", text.c_str(), message);
    CHECK(is_named);
  };
  const std::vector<RandomTensor> good = random_checkpoint(4, 2, kVocab);
  for (size_t i = 0; i < good.size(); ++i) {
    std::vector<RandomTensor> missing = good;
    missing.erase(missing.begin() + static_cast<ptrdiff_t>(i));
    refused(missing, WKVM_FORMAT, good[i].name, good[i].name);
    std::string other = good[i].name;  // of a LoRA pair, either factor will do
    if (other.back() == '1' || other.back() == '2') other.back() ^= '1' ^ '2';
    std::vector<RandomTensor> reshaped = good;
    reshaped[i].shape.back() += 1;
    refused(reshaped, WKVM_FORMAT, good[i].name, other);
    std::vector<RandomTensor> doubled = good;
    doubled.push_back(good[i]);
    refused(doubled, WKVM_FORMAT, good[i].name, good[i].name);
  }
  std::vector<RandomTensor> surplus = good;
  surplus.push_back({"rwkv.blocks.1.ffn.s_emb.weight", {4, 4}, std::vector<float>(16)});
  refused(surplus, WKVM_FORMAT, "rwkv.blocks.1.ffn.s_emb.weight", "rwkv.blocks.1.ffn.s_emb.weight");
  surplus.back().name = "rwkv.blocks.1.att.time_maa_x";
  refused(surplus, WKVM_UNSUPPORTED, "RWKV-6", "RWKV-6");
  refused({}, WKVM_FORMAT, "blocks.0.att.r_k", "blocks.0.att.r_k");
}

void a_builder_refuses_what_comes_out_of_turn() {
  const std::vector<RandomTensor> tensors = random_checkpoint(1, 1, kVocab);
  const std::vector<wkvm_tensor> described = describe(tensors);
  wkvm_builder* builder = nullptr;
  OK(wkvm_builder_new(described.data(), described.size(), nullptr, &builder));
  wkvm_model* model = nullptr;
  const auto add = [&](size_t i, uint64_t n_bytes) {
    return wkvm_builder_add(builder, i, tensors[i].data.data(), n_bytes);
  };
  CHECK(wkvm_builder_add(builder, tensors.size(), "", 1) == WKVM_INVALID_ARGUMENT);
  CHECK(wkvm_builder_add(builder, 0, nullptr, 0) == WKVM_INVALID_ARGUMENT);
  CHECK(add(0, tensors[0].data.size() * 4 - 1) == WKVM_INVALID_ARGUMENT);
  for (size_t i = 0; i < tensors.size(); ++i) {
    CHECK(wkvm_builder_finish(builder, &model) == WKVM_INVALID_ARGUMENT);
    const char* message = nullptr;
    OK(wkvm_last_error(&message));
    const bool is_only_one_left = i + 1 == tensors.size();
    CHECK(!is_only_one_left || std::strstr(message, tensors[i].name.c_str()));
    OK(add(i, tensors[i].data.size() * 4));
  }
  OK(wkvm_builder_finish(builder, &model));

  wkvm_model* second = nullptr;
  CHECK(wkvm_builder_finish(builder, &second) == WKVM_INVALID_ARGUMENT);
  CHECK(second == nullptr);
  CHECK(add(0, tensors[0].data.size() * 4) == WKVM_INVALID_ARGUMENT);
  wkvm_model_info info{};
  info.struct_size = sizeof info;
  OK(wkvm_builder_get_info(builder, &info));
  CHECK(info.n_embd == 128 && info.n_attn == 1);
  const char* order = nullptr;
  OK(wkvm_builder_block_order(builder, &order));
  CHECK(std::strcmp(order, "R0 A0") == 0);
  uint32_t needed = 0;
  OK(wkvm_builder_needs(builder, 0, &needed));
  OK(wkvm_builder_free(builder));
  OK(wkvm_model_get_info(model, &info));  // the model needs its builder no longer
  OK(wkvm_model_free(model));
}

}  // namespace

int main() {
  const std::vector<RandomTensor> tensors = random_checkpoint(4, 2, kVocab);
  for (uint32_t dtype : {WKVM_F32, WKVM_F16, WKVM_BF16, WKVM_I8}) {
    wkvm_model* model = build_model(tensors, dtype);
    any_cut_thread_count_and_isa_gives_the_same_bits(model);
    if (dtype == WKVM_F16 || dtype == WKVM_I8) {
      a_batch_gives_the_bits_of_its_rows_alone(model);
      an_exported_state_continues_with_the_same_bits(model);
      the_limits_of_the_options_are_exact(model);
      misuse_is_refused_and_leaves_the_slot_alone(model);
      a_state_of_too_many_tokens_is_refused(model);
    }
    OK(wkvm_model_free(model));
  }
  a_numeric_error_stays_in_its_row();
  a_key_beyond_the_cache_type_is_a_numeric_error();
  a_builder_refuses_what_comes_out_of_turn();
  a_model_outlives_its_handle();
  a_checkpoint_that_is_wrong_is_refused_by_name();
  return 0;
}

// The wkvm_sampler_* functions of wkvm.h.
#include <vector>

#include "core/error.h"
#include "core/guard.h"
#include "core/isa.h"
#include "core/sampler.h"
#include "core/threads.h"

using wkvm::require;

struct wkvm_sampler {
  wkvm::Sampler sampler;
};

namespace {

void require_vocab(const wkvm_sampler* sampler, size_t length, const char* function,
                   const char* argument) {
  if (length != sampler->sampler.n_vocab())
    wkvm::fail(WKVM_INVALID_ARGUMENT, "%s: %s has room for %zu values; the vocabulary has %u",
               function, argument, length, sampler->sampler.n_vocab());
}

template <class T>
std::vector<T> copy(const T* values, size_t n, const char* function, const char* argument) {
  if (n > wkvm::Sampler::kMaxVocab)
    wkvm::fail(WKVM_INVALID_ARGUMENT, "%s: %s has %zu entries, more than any vocabulary", function,
               argument, n);
  if (n > 0) require(values, function, argument);
  return std::vector<T>(values, values + n);
}

wkvm::SamplerOptions read_options(const wkvm_sampler_options* options, const char* function) {
  require(options, function, "options");
  if (options->struct_size != sizeof *options)
    wkvm::fail(WKVM_INVALID_ARGUMENT, "%s: options.struct_size is %u; this build expects %zu",
               function, options->struct_size, sizeof *options);
  wkvm::SamplerOptions read;
  read.order = static_cast<wkvm::SamplingOrder>(options->order);
  read.temperature = options->temperature;
  read.top_p = options->top_p;
  read.min_p = options->min_p;
  read.top_k = options->top_k;
  read.presence_penalty = options->presence_penalty;
  read.frequency_penalty = options->frequency_penalty;
  read.repetition_penalty = options->repetition_penalty;
  read.penalty_decay = options->penalty_decay;
  read.bias_ids = copy(options->bias_ids, options->n_biases, function, "bias_ids");
  read.biases = copy(options->biases, options->n_biases, function, "biases");
  read.banned = copy(options->banned_ids, options->n_banned, function, "banned_ids");
  read.exempt = copy(options->exempt_ids, options->n_exempt, function, "exempt_ids");
  return read;
}

}  // namespace

wkvm_status wkvm_sampler_new(uint32_t n_vocab, const wkvm_sampler_options* options, uint64_t seed,
                             const char* isa, wkvm_sampler** out) {
  return wkvm::guard([&] {
    require(out, "wkvm_sampler_new", "out");
    *out = new wkvm_sampler{wkvm::Sampler(wkvm::kernels_for(isa), n_vocab,
                                          read_options(options, "wkvm_sampler_new"), seed)};
  });
}

wkvm_status wkvm_sampler_free(wkvm_sampler* sampler) {
  return wkvm::guard([&] { delete sampler; });
}

wkvm_status wkvm_sampler_set_options(wkvm_sampler* sampler, const wkvm_sampler_options* options) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_set_options", "sampler");
    sampler->sampler.set_options(read_options(options, "wkvm_sampler_set_options"));
  });
}

wkvm_status wkvm_sampler_get_options(const wkvm_sampler* sampler, wkvm_sampler_options* out) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_get_options", "sampler");
    require(out, "wkvm_sampler_get_options", "out");
    if (out->struct_size != sizeof *out)
      wkvm::fail(WKVM_INVALID_ARGUMENT,
                 "wkvm_sampler_get_options: out.struct_size is %u; this build expects %zu",
                 out->struct_size, sizeof *out);
    const wkvm::SamplerOptions& options = sampler->sampler.options();
    *out = {.struct_size = sizeof *out,
            .order = static_cast<uint32_t>(options.order),
            .temperature = options.temperature,
            .top_p = options.top_p,
            .min_p = options.min_p,
            .top_k = options.top_k,
            .presence_penalty = options.presence_penalty,
            .frequency_penalty = options.frequency_penalty,
            .repetition_penalty = options.repetition_penalty,
            .penalty_decay = options.penalty_decay,
            .bias_ids = options.bias_ids.data(),
            .biases = options.biases.data(),
            .n_biases = options.biases.size(),
            .banned_ids = options.banned.data(),
            .n_banned = options.banned.size(),
            .exempt_ids = options.exempt.data(),
            .n_exempt = options.exempt.size()};
  });
}

wkvm_status wkvm_sampler_set_generator(wkvm_sampler* sampler, uint64_t seed, uint64_t index) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_set_generator", "sampler");
    sampler->sampler.set_generator(seed, index);
  });
}

wkvm_status wkvm_sampler_get_generator(const wkvm_sampler* sampler, uint64_t* seed,
                                       uint64_t* index) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_get_generator", "sampler");
    require(seed, "wkvm_sampler_get_generator", "seed");
    require(index, "wkvm_sampler_get_generator", "index");
    *seed = sampler->sampler.seed();
    *index = sampler->sampler.index();
  });
}

wkvm_status wkvm_sampler_clear_counts(wkvm_sampler* sampler) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_clear_counts", "sampler");
    sampler->sampler.clear_counts();
  });
}

wkvm_status wkvm_sampler_sample(wkvm_sampler* sampler, const float* logits, size_t logits_len,
                                uint32_t* token) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_sample", "sampler");
    require(logits, "wkvm_sampler_sample", "logits");
    require(token, "wkvm_sampler_sample", "token");
    require_vocab(sampler, logits_len, "wkvm_sampler_sample", "logits");
    const wkvm::FloatEnvironment environment;
    *token = sampler->sampler.sample(logits);
  });
}

wkvm_status wkvm_sampler_accept(wkvm_sampler* sampler, uint32_t token) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_accept", "sampler");
    const wkvm::FloatEnvironment environment;
    sampler->sampler.accept(token);
  });
}

wkvm_status wkvm_sampler_probabilities(wkvm_sampler* sampler, const float* logits,
                                       size_t logits_len, uint32_t* ids, float* probabilities,
                                       size_t capacity, size_t* n_candidates) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_probabilities", "sampler");
    require(logits, "wkvm_sampler_probabilities", "logits");
    require(ids, "wkvm_sampler_probabilities", "ids");
    require(probabilities, "wkvm_sampler_probabilities", "probabilities");
    require(n_candidates, "wkvm_sampler_probabilities", "n_candidates");
    require_vocab(sampler, logits_len, "wkvm_sampler_probabilities", "logits");
    require_vocab(sampler, capacity, "wkvm_sampler_probabilities", "ids");
    const wkvm::FloatEnvironment environment;
    *n_candidates = sampler->sampler.probabilities(logits, ids, probabilities);
  });
}

wkvm_status wkvm_sampler_adjust(wkvm_sampler* sampler, const float* logits, size_t logits_len,
                                float* out, size_t out_len) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_adjust", "sampler");
    require(logits, "wkvm_sampler_adjust", "logits");
    require(out, "wkvm_sampler_adjust", "out");
    require_vocab(sampler, logits_len, "wkvm_sampler_adjust", "logits");
    require_vocab(sampler, out_len, "wkvm_sampler_adjust", "out");
    const wkvm::FloatEnvironment environment;
    sampler->sampler.adjusted(logits, out);
  });
}

wkvm_status wkvm_sampler_logprobs(wkvm_sampler* sampler, const float* logits, size_t logits_len,
                                  uint32_t token, float* logprob, uint32_t* top_ids,
                                  float* top_logprobs, size_t n_top) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_logprobs", "sampler");
    require(logits, "wkvm_sampler_logprobs", "logits");
    require(logprob, "wkvm_sampler_logprobs", "logprob");
    if (n_top > 0) {
      require(top_ids, "wkvm_sampler_logprobs", "top_ids");
      require(top_logprobs, "wkvm_sampler_logprobs", "top_logprobs");
    }
    require_vocab(sampler, logits_len, "wkvm_sampler_logprobs", "logits");
    const wkvm::FloatEnvironment environment;
    *logprob = sampler->sampler.logprobs(logits, token, n_top, top_ids, top_logprobs);
  });
}

wkvm_status wkvm_sampler_export_size(const wkvm_sampler* sampler, size_t* out) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_export_size", "sampler");
    require(out, "wkvm_sampler_export_size", "out");
    *out = sampler->sampler.export_size();
  });
}

wkvm_status wkvm_sampler_export(const wkvm_sampler* sampler, void* data, size_t n_bytes) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_export", "sampler");
    require(data, "wkvm_sampler_export", "data");
    if (n_bytes != sampler->sampler.export_size())
      wkvm::fail(WKVM_INVALID_ARGUMENT, "wkvm_sampler_export: a buffer of %zu bytes; it takes %zu",
                 n_bytes, sampler->sampler.export_size());
    sampler->sampler.export_state(static_cast<uint8_t*>(data));
  });
}

wkvm_status wkvm_sampler_import(wkvm_sampler* sampler, const void* data, size_t n_bytes) {
  return wkvm::guard([&] {
    require(sampler, "wkvm_sampler_import", "sampler");
    require(data, "wkvm_sampler_import", "data");
    sampler->sampler.import_state(static_cast<const uint8_t*>(data), n_bytes);
  });
}

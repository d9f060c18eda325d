// wkvm.h: the engine's C interface, and its only public header.
//
// Conventions, without exception:
//   - Every function returns a wkvm_status; results come back through the last pointers.
//   - No C++ exception crosses this line. wkvm_last_error() is the calling thread's last message.
//   - Structs of options and of information begin with `struct_size = sizeof(the struct)`.
//   - Every buffer travels with its length. Lengths of float buffers count floats.
//   - Strings are UTF-8 and end with a zero byte. A string or array that is handed out belongs to
//     the object it was asked of and lives as long as that object.
//   - A model is immutable and may be used by several threads at once; an engine, a sampler, a
//     builder belong to one thread at a time.
//   - Nothing prints, nothing exits, nothing allocates in wkvm_forward after an engine's first
//   step.
#ifndef WKVM_H
#define WKVM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WKVM_ABI_VERSION 1u

#if defined(_WIN32)
#define WKVM_API
#else
#define WKVM_API __attribute__((visibility("default")))
#endif

typedef enum wkvm_status {
  WKVM_OK = 0,
  WKVM_INVALID_ARGUMENT = 1,  // a value that no caller may pass: bad token id, null pointer, ...
  WKVM_IO = 2,                // the operating system refused: missing file, no permission
  WKVM_FORMAT = 3,            // a file or buffer that is not what it claims to be
  WKVM_UNSUPPORTED = 4,       // well formed, but nothing this build or machine can run
  WKVM_OUT_OF_MEMORY = 5,
  WKVM_CACHE_FULL = 6,      // the row would grow a KV cache beyond max_cache_len
  WKVM_NO_SLOT = 7,         // every slot is in use
  WKVM_NUMERIC = 8,         // a non-finite activation, or a key or value beyond float16
  WKVM_STATE_MISMATCH = 9,  // a state that does not belong to this model, policy or KV type
  WKVM_INTERNAL = 10        // a bug in wkvm
} wkvm_status;

WKVM_API wkvm_status wkvm_abi_version(uint32_t* out);
// Never fails; returns "" when the calling thread has seen no error.
WKVM_API wkvm_status wkvm_last_error(const char** out);

// ---------------------------------------------------------------- instruction sets

// Comma-separated names of the sets that this CPU and this build can run, best first.
WKVM_API wkvm_status wkvm_isa_list(const char** out);
// The set that `name` selects: NULL or "" means $WKVM_ISA, or else the best. An unknown set, or
// one that this CPU lacks, is WKVM_UNSUPPORTED.
WKVM_API wkvm_status wkvm_isa_resolve(const char* name, const char** out);

// Physical cores that this process may use (affinity and cgroup quota respected), at least 1.
WKVM_API wkvm_status wkvm_default_threads(uint32_t* out);

// ---------------------------------------------------------------- tensors and files

typedef enum wkvm_dtype {
  WKVM_F32 = 0,
  WKVM_F16 = 1,
  WKVM_BF16 = 2,
  WKVM_I8 = 3,
  WKVM_U8 = 4,
  WKVM_I32 = 5,
  WKVM_U32 = 6,
  WKVM_I64 = 7,
  WKVM_U64 = 8,
  WKVM_F64 = 9,
  WKVM_BOOL = 10,
  WKVM_I16 = 11,
  WKVM_U16 = 12
} wkvm_dtype;

#define WKVM_MAX_DIMS 8

typedef struct wkvm_tensor {
  const char* name;
  uint32_t dtype;  // wkvm_dtype
  uint32_t n_dims;
  uint64_t shape[WKVM_MAX_DIMS];
  const void* data;  // NULL where only the description is meant
  uint64_t n_bytes;
} wkvm_tensor;

// A .safetensors file, mapped read-only. Opening checks every byte of the header: names, types,
// shapes, and offsets that tile the data exactly.
typedef struct wkvm_file wkvm_file;
WKVM_API wkvm_status wkvm_file_open(const char* path, wkvm_file** out);
WKVM_API wkvm_status wkvm_file_free(wkvm_file* file);
WKVM_API wkvm_status wkvm_file_tensor_count(const wkvm_file* file, size_t* out);
WKVM_API wkvm_status wkvm_file_tensor(const wkvm_file* file, size_t index, wkvm_tensor* out);
WKVM_API wkvm_status wkvm_file_metadata_count(const wkvm_file* file, size_t* out);
WKVM_API wkvm_status wkvm_file_metadata(const wkvm_file* file, size_t index, const char** key,
                                        const char** value);
// Lets the kernel drop the resident pages of one tensor; they come back from disk when touched.
WKVM_API wkvm_status wkvm_file_evict(const wkvm_file* file, size_t index);

// ---------------------------------------------------------------- models

#define WKVM_DTYPE_AUTO 0xFFFFFFFFu

typedef struct wkvm_model_options {
  uint32_t struct_size;
  uint32_t dtype;  // WKVM_F32, F16, BF16, I8, or WKVM_DTYPE_AUTO: as stored
} wkvm_model_options;

typedef enum wkvm_family { WKVM_RWKV7 = 0, WKVM_RWKVX = 1 } wkvm_family;

typedef struct wkvm_model_info {
  uint32_t struct_size;
  uint32_t family;                 // wkvm_family
  uint32_t dtype;                  // of the big matrices: WKVM_F32, F16, BF16, I8
  uint32_t is_packed;              // 1 if mapped from a file that was converted beforehand
  uint64_t n_embd;                 // D
  uint64_t head_size;              // N
  uint64_t n_ffn;                  // inner width of the channel mix
  uint64_t n_vocab;                // V
  uint64_t n_rwkv;                 // RWKV blocks that run
  uint64_t n_attn;                 // attention blocks
  uint64_t n_unused;               // RWKV blocks that the file holds and the block order leaves out
  uint64_t n_params;               // of the blocks that run
  uint64_t bytes_per_token;        // bytes of weights that one decoded token reads
  uint64_t recurrent_state_bytes;  // per session, without KV
  uint64_t kv_values_per_token;    // K and V elements that one token adds, all attention blocks
} wkvm_model_info;

typedef struct wkvm_model wkvm_model;

// Opens one .safetensors file: a converted file is mapped and used in place; any other is packed
// into memory.
WKVM_API wkvm_status wkvm_model_open(const char* path, const wkvm_model_options* options,
                                     wkvm_model** out);
// An engine keeps its model alive; free order does not matter.
WKVM_API wkvm_status wkvm_model_free(wkvm_model* model);
WKVM_API wkvm_status wkvm_model_get_info(const wkvm_model* model, wkvm_model_info* out);
// The order of the blocks, e.g. "R0 R1 R2 A0 R3 R4 R5 A1".
WKVM_API wkvm_status wkvm_model_block_order(const wkvm_model* model, const char** out);
// The packed tensors, in name order: what a converted file holds.
WKVM_API wkvm_status wkvm_model_tensor_count(const wkvm_model* model, size_t* out);
WKVM_API wkvm_status wkvm_model_tensor(const wkvm_model* model, size_t index, wkvm_tensor* out);
// The value of the metadata entry "wkvm.packed" that a converted file must carry.
WKVM_API wkvm_status wkvm_model_packed_header(const wkvm_model* model, const char** out);

// A builder takes the canonical tensors of a model one at a time, from any container. `tensors`
// are descriptions (data NULL): the whole set is checked, by name, before any data is asked for.
typedef struct wkvm_builder wkvm_builder;
WKVM_API wkvm_status wkvm_builder_new(const wkvm_tensor* tensors, size_t n_tensors,
                                      const wkvm_model_options* options, wkvm_builder** out);
WKVM_API wkvm_status wkvm_builder_free(wkvm_builder* builder);
WKVM_API wkvm_status wkvm_builder_get_info(const wkvm_builder* builder, wkvm_model_info* out);
WKVM_API wkvm_status wkvm_builder_block_order(const wkvm_builder* builder, const char** out);
// Whether tensor `index` is used at all (block 0's v0, v1, v2 and left-over blocks are not).
WKVM_API wkvm_status wkvm_builder_needs(const wkvm_builder* builder, size_t index, uint32_t* out);
// Packs tensor `index`; `data` may go as soon as this returns.
WKVM_API wkvm_status wkvm_builder_add(wkvm_builder* builder, size_t index, const void* data,
                                      uint64_t n_bytes);
// Takes the model out of the builder; every needed tensor must have been added.
WKVM_API wkvm_status wkvm_builder_finish(wkvm_builder* builder, wkvm_model** out);

// ---------------------------------------------------------------- engine and slots

typedef enum wkvm_policy {
  WKVM_FULL = 0,
  WKVM_MOBA = 1,
  WKVM_WINDOW = 2,
  WKVM_MEMORY = 3
} wkvm_policy;

typedef struct wkvm_engine_options {
  uint32_t struct_size;
  uint32_t n_slots;
  uint32_t n_threads;  // 0: wkvm_default_threads
  uint32_t kv_dtype;   // WKVM_F16 or WKVM_F32
  uint32_t policy;     // wkvm_policy
  uint32_t reserved;   // must be 0
  uint64_t max_cache_len;
  uint64_t moba_chunk_size;
  uint64_t moba_topk;
  uint64_t window_sinks;
  uint64_t window_size;
  uint64_t memory_keep_tokens;  // used when memory_keep_ratio is 0
  double memory_keep_ratio;     // in (0, 1], or 0: keep memory_keep_tokens
  const char* isa;              // NULL: as wkvm_isa_resolve(NULL)
} wkvm_engine_options;

typedef struct wkvm_engine_info {
  uint32_t struct_size;
  uint32_t n_slots;
  uint32_t n_slots_used;
  uint32_t n_threads;
  const char* isa;
  uint64_t slot_bytes;           // address space of one slot; memory is taken as it is touched
  uint64_t n_forward;            // calls of wkvm_forward that ran
  uint64_t n_tokens;             // tokens that they ran
  uint64_t forward_nanoseconds;  // time spent inside them
} wkvm_engine_info;

typedef struct wkvm_engine wkvm_engine;
WKVM_API wkvm_status wkvm_engine_new(wkvm_model* model, const wkvm_engine_options* options,
                                     wkvm_engine** out);
WKVM_API wkvm_status wkvm_engine_free(wkvm_engine* engine);
WKVM_API wkvm_status wkvm_engine_get_info(const wkvm_engine* engine, wkvm_engine_info* out);

typedef enum wkvm_logits {
  WKVM_LOGITS_NONE = 0,
  WKVM_LOGITS_LAST = 1,
  WKVM_LOGITS_ALL = 2
} wkvm_logits;

typedef struct wkvm_row {
  uint32_t slot;
  uint32_t logits;  // wkvm_logits
  const uint32_t* tokens;
  size_t n_tokens;  // at least 1
} wkvm_row;

// Runs every row and writes the logits one after the other, row by row, each float32 [V]. A slot
// may appear once. All arguments are checked before any slot changes. WKVM_NUMERIC spoils only
// the slots of the rows it names: they refuse to run, to be copied and to be exported until they
// are reset or imported into. The other rows are complete.
WKVM_API wkvm_status wkvm_forward(wkvm_engine* engine, const wkvm_row* rows, size_t n_rows,
                                  float* logits, size_t logits_len);

WKVM_API wkvm_status wkvm_slot_acquire(wkvm_engine* engine, uint32_t* out);
WKVM_API wkvm_status wkvm_slot_release(wkvm_engine* engine, uint32_t slot);
WKVM_API wkvm_status wkvm_slot_reset(wkvm_engine* engine, uint32_t slot);
WKVM_API wkvm_status wkvm_slot_copy(wkvm_engine* engine, uint32_t from, uint32_t to);
WKVM_API wkvm_status wkvm_slot_n_tokens(const wkvm_engine* engine, uint32_t slot, uint64_t* out);
// 1 if a numeric error has spoilt the slot.
WKVM_API wkvm_status wkvm_slot_is_spoilt(const wkvm_engine* engine, uint32_t slot, uint32_t* out);
// Logits at the slot's last position again, from its saved head input: the same bits.
WKVM_API wkvm_status wkvm_slot_logits(wkvm_engine* engine, uint32_t slot, float* logits,
                                      size_t logits_len);

// A slot's state as named tensors: rwkv.N.att_x_prev [D], rwkv.N.wkv [H, value, key],
// rwkv.N.ffn_x_prev [D], attn.N.k_cache and v_cache [T, D] in ascending position,
// attn.N.ffn_x_prev [D], x_last [D]. Descriptions first (data NULL), then the bytes one by one.
WKVM_API wkvm_status wkvm_slot_tensor_count(const wkvm_engine* engine, uint32_t slot, size_t* out);
WKVM_API wkvm_status wkvm_slot_tensor(const wkvm_engine* engine, uint32_t slot, size_t index,
                                      wkvm_tensor* out);
WKVM_API wkvm_status wkvm_slot_export(const wkvm_engine* engine, uint32_t slot, size_t index,
                                      void* data, uint64_t n_bytes);
// Replaces the slot's whole state. The set of tensors must be the one that a slot of this engine
// with n_tokens tokens exports, values finite, each aligned to its element. On any error the slot
// is as it was.
WKVM_API wkvm_status wkvm_slot_import(wkvm_engine* engine, uint32_t slot, uint64_t n_tokens,
                                      const wkvm_tensor* tensors, size_t n_tensors);

// ---------------------------------------------------------------- sampler

// Which distribution the cuts (top_p, top_k, min_p) are judged on; docs/sampling.md.
typedef enum wkvm_sampling_order {
  WKVM_ORDER_RWKV = 0,   // the one at temperature 1; temperature then reshapes what was kept
  WKVM_ORDER_OPENAI = 1  // the tempered one
} wkvm_sampling_order;

// Ids in the three lists are strictly ascending; a list may be NULL when its length is 0.
typedef struct wkvm_sampler_options {
  uint32_t struct_size;
  uint32_t order;             // wkvm_sampling_order
  double temperature;         // at least 0; 0: the lowest id among the largest logits
  double top_p;               // 0 to 1; 1: off
  double min_p;               // 0 to 1; 0: off
  uint64_t top_k;             // 0: off
  double presence_penalty;    // -1000 to 1000; 0: off
  double frequency_penalty;   // -1000 to 1000; 0: off
  double repetition_penalty;  // 0.01 to 100; 1: off
  double penalty_decay;       // 0 to 1: what one step leaves of a count
  const uint32_t* bias_ids;
  const double* biases;  // -1000 to 1000, one for each of bias_ids
  size_t n_biases;
  const uint32_t* banned_ids;
  size_t n_banned;
  const uint32_t* exempt_ids;  // tokens whose generation does not raise their count
  size_t n_exempt;
} wkvm_sampler_options;

typedef struct wkvm_sampler wkvm_sampler;

// A sampler without counts, its generator at (seed, 0). isa: as wkvm_isa_resolve; the same bits
// with every set.
WKVM_API wkvm_status wkvm_sampler_new(uint32_t n_vocab, const wkvm_sampler_options* options,
                                      uint64_t seed, const char* isa, wkvm_sampler** out);
WKVM_API wkvm_status wkvm_sampler_free(wkvm_sampler* sampler);
// Counts and generator stay as they are.
WKVM_API wkvm_status wkvm_sampler_set_options(wkvm_sampler* sampler,
                                              const wkvm_sampler_options* options);
// The caller sets out->struct_size. The lists belong to the sampler, until its options change.
WKVM_API wkvm_status wkvm_sampler_get_options(const wkvm_sampler* sampler,
                                              wkvm_sampler_options* out);
// `index` is the number of tokens accepted since the generator was started with `seed`.
WKVM_API wkvm_status wkvm_sampler_set_generator(wkvm_sampler* sampler, uint64_t seed,
                                                uint64_t index);
WKVM_API wkvm_status wkvm_sampler_get_generator(const wkvm_sampler* sampler, uint64_t* seed,
                                                uint64_t* index);
// Forgets which tokens were generated.
WKVM_API wkvm_status wkvm_sampler_clear_counts(wkvm_sampler* sampler);

// The functions of logits [V] change neither options nor counts nor generator. A logit of -inf
// bans its token; NaN or +inf is WKVM_NUMERIC.

// The token at the generator's index: the same for the same state and logits, however often asked.
WKVM_API wkvm_status wkvm_sampler_sample(wkvm_sampler* sampler, const float* logits,
                                         size_t logits_len, uint32_t* token);
// Counts `token` as generated and moves the generator to the next index.
WKVM_API wkvm_status wkvm_sampler_accept(wkvm_sampler* sampler, uint32_t token);
// The distribution that wkvm_sampler_sample draws from: the candidates, ids ascending, and their
// probabilities. capacity, of both buffers, is V.
WKVM_API wkvm_status wkvm_sampler_probabilities(wkvm_sampler* sampler, const float* logits,
                                                size_t logits_len, uint32_t* ids,
                                                float* probabilities, size_t capacity,
                                                size_t* n_candidates);
// The logits [V] after penalties, biases and bans, before any cut.
WKVM_API wkvm_status wkvm_sampler_adjust(wkvm_sampler* sampler, const float* logits,
                                         size_t logits_len, float* out, size_t out_len);
// Log-softmax of the logits as they are, without penalties, cuts or temperature: that of `token`,
// and the n_top largest, descending, equal ones in order of their ids.
WKVM_API wkvm_status wkvm_sampler_logprobs(wkvm_sampler* sampler, const float* logits,
                                           size_t logits_len, uint32_t token, float* logprob,
                                           uint32_t* top_ids, float* top_logprobs, size_t n_top);

// The whole state: options, counts, generator. The bytes are the same on every machine.
WKVM_API wkvm_status wkvm_sampler_export_size(const wkvm_sampler* sampler, size_t* out);
WKVM_API wkvm_status wkvm_sampler_export(const wkvm_sampler* sampler, void* data, size_t n_bytes);
// Every byte is checked; on any error the sampler is as it was.
WKVM_API wkvm_status wkvm_sampler_import(wkvm_sampler* sampler, const void* data, size_t n_bytes);

// ---------------------------------------------------------------- tokenizer

// Greedy longest match over bytes. Immutable; several threads may use one at once.
typedef struct wkvm_tokenizer wkvm_tokenizer;

// A vocabulary file in the format of the World vocabulary (docs/tokenizer.md); WKVM_FORMAT names
// the line that is wrong.
WKVM_API wkvm_status wkvm_tokenizer_open(const char* path, wkvm_tokenizer** out);
// The same from memory, which may go as soon as this returns.
WKVM_API wkvm_status wkvm_tokenizer_from_bytes(const void* data, size_t n_bytes,
                                               wkvm_tokenizer** out);
// The 256 bytes themselves: byte b is id b.
WKVM_API wkvm_status wkvm_tokenizer_bytes(wkvm_tokenizer** out);
WKVM_API wkvm_status wkvm_tokenizer_free(wkvm_tokenizer* tokenizer);
// V: ids below it may be decoded. The largest defined id + 1, rounded up to a multiple of 128 as
// the rows of embeddings are: 65,536 for the World vocabulary.
WKVM_API wkvm_status wkvm_tokenizer_vocab_size(const wkvm_tokenizer* tokenizer, uint32_t* out);
// The largest id that wkvm_tokenizer_encode can yield.
WKVM_API wkvm_status wkvm_tokenizer_max_id(const wkvm_tokenizer* tokenizer, uint32_t* out);
// The bytes of one token; no bytes for an id that the vocabulary leaves undefined.
WKVM_API wkvm_status wkvm_tokenizer_token(const wkvm_tokenizer* tokenizer, uint32_t id,
                                          const char** bytes, size_t* n_bytes);
// Encodes text from the front until it or the capacity ends: its first *n_read bytes became
// *n_ids ids. The rest can be encoded by another call: a match never looks back.
WKVM_API wkvm_status wkvm_tokenizer_encode(const wkvm_tokenizer* tokenizer, const char* text,
                                           size_t n_bytes, uint32_t* ids, size_t capacity,
                                           size_t* n_ids, size_t* n_read);
// *n_bytes is the length of all the tokens' bytes; they are written if the capacity holds them.
WKVM_API wkvm_status wkvm_tokenizer_decode(const wkvm_tokenizer* tokenizer, const uint32_t* ids,
                                           size_t n_ids, char* text, size_t capacity,
                                           size_t* n_bytes);

#ifdef __cplusplus
}
#endif
#endif  // WKVM_H

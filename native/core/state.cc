#include "core/state.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cfloat>
#include <cstring>
#include <numeric>

#include "core/error.h"
#include "core/printable.h"
#include "core/threads.h"

namespace wkvm {
namespace {

constexpr size_t kMaxCacheLen = size_t{1} << 31;
constexpr size_t kMaxSlots = 1 << 20;
constexpr uint64_t kMaxTokens = uint64_t{1} << 62;  // of one session: positions never overflow

void check(bool ok, const char* what, size_t value, const char* range) {
  if (!ok) fail(WKVM_INVALID_ARGUMENT, "%s: %zu is not %s", what, value, range);
}

// Options of the other policies have no effect and are not looked at.
void check_options(const StateOptions& o) {
  check(o.n_slots >= 1 && o.n_slots <= kMaxSlots, "n_slots", o.n_slots, "between 1 and 2^20");
  check(o.max_cache_len >= 1 && o.max_cache_len < kMaxCacheLen, "max_cache_len", o.max_cache_len,
        "between 1 and 2^31 - 1");
  switch (o.policy) {
    case Policy::kFull:
      break;
    case Policy::kMoba:
      check(o.moba_chunk_size >= 1 && o.moba_chunk_size < kMaxCacheLen, "moba_chunk_size",
            o.moba_chunk_size, "between 1 and 2^31 - 1");
      check(o.moba_topk >= 1 && o.moba_topk < kMaxCacheLen, "moba_topk", o.moba_topk,
            "between 1 and 2^31 - 1");
      break;
    case Policy::kWindow:
      check(o.window_size >= 1 && o.window_size < kMaxCacheLen / 4, "window_size", o.window_size,
            "between 1 and 2^29 - 1");
      check(o.window_sinks < kMaxCacheLen / 4, "window_sinks", o.window_sinks, "below 2^29");
      break;
    case Policy::kMemory:
      if (!(o.memory_keep_ratio >= 0.0 && o.memory_keep_ratio <= 1.0)) {
        fail(WKVM_INVALID_ARGUMENT, "memory_keep_ratio: %g is not between 0 and 1",
             o.memory_keep_ratio);
      }
      check(o.memory_keep_ratio > 0 || o.memory_keep_tokens >= 1, "memory_keep_tokens",
            o.memory_keep_tokens, "at least 1");
      break;
  }
}

// S [rows][columns] -> T [columns][rows]
void transpose(const float* s, size_t rows, size_t columns, float* t) {
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) t[j * rows + i] = s[i * columns + j];
  }
}

bool finite_f16(const uint16_t* x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    if ((x[i] & 0x7C00) == 0x7C00) return false;
  }
  return true;
}

// Key (index, channel) of tiles of 16 positions: [index / 16][channel][16].
size_t tile_offset(size_t index, size_t d) { return index / kLanes * kLanes * d + index % kLanes; }

template <class T>
void put_key(T* tiles, size_t index, size_t d, const T* k) {
  T* column = tiles + tile_offset(index, d);
  for (size_t c = 0; c < d; ++c) column[c * kLanes] = k[c];
}

template <class T>
void get_key(const T* tiles, size_t index, size_t d, T* k) {
  const T* column = tiles + tile_offset(index, d);
  for (size_t c = 0; c < d; ++c) k[c] = column[c * kLanes];
}

}  // namespace

Slots::Slots(std::shared_ptr<const Model> model, const StateOptions& options,
             const Kernels& kernels)
    : model_(std::move(model)), options_(options), kernels_(kernels) {
  check_options(options);
  const ModelShape& shape = model_->shape;
  d_ = shape.n_embd;
  n_rwkv_ = shape.n_rwkv;
  n_attn_ = shape.n_attn;
  rwkv_floats_ = 2 * d_ + d_ * shape.head_size;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  recurrent_bytes_ = round_up((n_rwkv_ * rwkv_floats_ + n_attn_ * d_ + d_) * sizeof(float), page);
  kv_element_ = element_size(options.kv_type);
  ring_ = options.window_size + kPassTokens;
  capacity_ = round_up(
      options.policy == Policy::kWindow ? options.window_sinks + ring_ : options.max_cache_len,
      kLanes);
  mean_tiles_ = options.policy == Policy::kMoba
                    ? (options.max_cache_len / options.moba_chunk_size + kLanes - 1) / kLanes
                    : 0;
  size_t extra = 0;  // floats
  if (options.policy == Policy::kMoba) extra = mean_tiles_ * kLanes * d_ + d_;
  if (options.policy == Policy::kMemory) extra = 2 * capacity_ * d_;
  kv_bytes_ = round_up(2 * capacity_ * d_ * kv_element_ + extra * sizeof(float), page);
  slot_bytes_ = recurrent_bytes_ + n_attn_ * kv_bytes_;

  for (size_t i = 0; i < n_rwkv_; ++i) {
    const std::string block = "rwkv." + std::to_string(i);
    for (const auto& [leaf, kind] :
         {std::pair{".att_x_prev", Kind::kAttShift}, std::pair{".wkv", Kind::kWkv},
          std::pair{".ffn_x_prev", Kind::kFfnShift}}) {
      tensor_names_.push_back(block + leaf);
      tensor_refs_.push_back({kind, i});
    }
  }
  for (size_t i = 0; i < n_attn_; ++i) {
    const std::string block = "attn." + std::to_string(i);
    for (const auto& [leaf, kind] :
         {std::pair{".k_cache", Kind::kKeys}, std::pair{".v_cache", Kind::kValues},
          std::pair{".ffn_x_prev", Kind::kAttentionFfnShift}}) {
      tensor_names_.push_back(block + leaf);
      tensor_refs_.push_back({kind, i});
    }
  }
  tensor_names_.push_back("x_last");
  tensor_refs_.push_back({Kind::kXLast, 0});

  if (options.policy == Policy::kMemory && n_attn_) {
    value_key_.reset(new float[d_ * shape.head_size]);
    restored_.reset(new float[shape.head_size]);
    loss_.reset(new float[options.max_cache_len]);
    rows_.reset(new uint32_t[options.max_cache_len]);
  }
  slots_.resize(options.n_slots);
  size_t total = 0;
  void* memory = MAP_FAILED;
  if (!__builtin_mul_overflow(slot_bytes_, options.n_slots, &total)) {
    memory = mmap(nullptr, total, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  if (memory == MAP_FAILED) {
    fail(
        WKVM_OUT_OF_MEMORY,
        "no address space for %zu slots of %zu MiB: ask for fewer slots or a smaller max_cache_len",
        options.n_slots, slot_bytes_ >> 20);
  }
  memory_ = static_cast<char*>(memory);
}

Slots::~Slots() { munmap(memory_, slot_bytes_ * slots_.size()); }

size_t Slots::n_used() const {
  return static_cast<size_t>(
      std::count_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.in_use; }));
}

uint32_t Slots::acquire() {
  for (uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].in_use) continue;
    slots_[i].in_use = true;
    reset(i);
    return i;
  }
  fail(WKVM_NO_SLOT, "all %zu slots are in use: close a session, or load with a larger n_slots",
       slots_.size());
}

void Slots::release(uint32_t slot) {
  used(slot);
  madvise(base(slot), slot_bytes_, MADV_DONTNEED);
  slots_[slot] = Slot{};
}

void Slots::reset(uint32_t slot) {
  used(slot);
  slots_[slot] = Slot{};
  slots_[slot].in_use = true;
  std::memset(base(slot), 0, recurrent_bytes_);
  if (options_.policy != Policy::kMoba) return;
  for (size_t block = 0; block < n_attn_; ++block) {
    std::memset(open_sum(slot, block), 0, d_ * sizeof(float));
  }
}

Slots::Slot& Slots::used(uint32_t slot) {
  if (slot >= slots_.size() || !slots_[slot].in_use) {
    fail(WKVM_INVALID_ARGUMENT, "slot %u is not in use", slot);
  }
  return slots_[slot];
}

const Slots::Slot& Slots::sound(uint32_t slot) const {
  const Slot& found = used(slot);
  if (found.is_spoilt) {
    fail(WKVM_NUMERIC,
         "a numeric error has spoilt the state in slot %u: reset it, or resume a snapshot", slot);
  }
  return found;
}

size_t Slots::cache_rows(const Slot& slot) const {
  if (options_.policy == Policy::kMemory) return slot.n_kept;
  return std::min<uint64_t>(slot.n_tokens, capacity_);
}

void Slots::copy(uint32_t from, uint32_t to) {
  const Slot& source = sound(from);
  used(to);
  if (from == to) return;
  std::memcpy(base(to), base(from), recurrent_bytes_);
  const size_t rows = cache_rows(source);
  for (size_t block = 0; block < n_attn_; ++block) {
    std::memcpy(kv(to, block), kv(from, block), round_up(rows, kLanes) * d_ * kv_element_);
    std::memcpy(values(to, block), values(from, block), rows * d_ * kv_element_);
    if (options_.policy != Policy::kMoba) continue;
    const size_t n_means = round_up(rows / options_.moba_chunk_size, kLanes) * d_;
    std::memcpy(means(to, block), means(from, block), n_means * sizeof(float));
    std::memcpy(open_sum(to, block), open_sum(from, block), d_ * sizeof(float));
  }
  slots_[to] = source;
}

bool Slots::fits(uint32_t slot, size_t n) const {
  if (n > kMaxTokens - used(slot).n_tokens) return false;
  if (n_attn_ == 0 || options_.policy == Policy::kWindow) return true;
  const uint64_t before = options_.policy == Policy::kMemory ? 0 : used(slot).n_tokens;
  return before + n <= options_.max_cache_len;
}

size_t Slots::cache_index(uint64_t position) const {
  if (options_.policy != Policy::kWindow || position < options_.window_sinks) return position;
  return options_.window_sinks + (position - options_.window_sinks) % ring_;
}

bool Slots::store(uint32_t slot, size_t block, size_t index, const float* k, const float* v) {
  if (options_.kv_type == DType::kF32) {
    put_key(reinterpret_cast<float*>(kv(slot, block)), index, d_, k);
    std::memcpy(reinterpret_cast<float*>(values(slot, block)) + index * d_, v, d_ * sizeof(float));
    return kernels_.all_finite(k, d_) && kernels_.all_finite(v, d_);
  }
  constexpr float kTooLargeForF16 = 65520.0f;  // rounds to infinity
  auto* row = reinterpret_cast<uint16_t*>(values(slot, block)) + index * d_;
  kernels_.narrow_f16(k, d_, row);  // the row of V lends its place to K
  put_key(reinterpret_cast<uint16_t*>(kv(slot, block)), index, d_, row);
  kernels_.narrow_f16(v, d_, row);
  return kernels_.max_abs(k, d_) < kTooLargeForF16 && kernels_.max_abs(v, d_) < kTooLargeForF16;
}

void Slots::add_to_block_mean(uint32_t slot, size_t block, uint64_t position) {
  const size_t chunk = options_.moba_chunk_size;
  float* sum = open_sum(slot, block);
  if (options_.kv_type == DType::kF32) {
    const float* tiles =
        reinterpret_cast<const float*>(kv(slot, block)) + tile_offset(position, d_);
    for (size_t c = 0; c < d_; ++c) sum[c] += tiles[c * kLanes];
  } else {
    const auto* tiles =
        reinterpret_cast<const uint16_t*>(kv(slot, block)) + tile_offset(position, d_);
    for (size_t c = 0; c < d_; c += kLanes) {
      uint16_t stored[kLanes];
      float wide[kLanes];
      for (size_t i = 0; i < kLanes; ++i) stored[i] = tiles[(c + i) * kLanes];
      kernels_.widen(DType::kF16, stored, kLanes, wide);
      for (size_t i = 0; i < kLanes; ++i) sum[c + i] += wide[i];
    }
  }
  if ((position + 1) % chunk) return;
  float* column = means(slot, block) + tile_offset(position / chunk, d_);
  for (size_t c = 0; c < d_; ++c) {
    column[c * kLanes] = sum[c] / static_cast<float>(chunk);
    sum[c] = 0.0f;
  }
}

KvHead Slots::kv_head(uint32_t slot, size_t block, size_t head) const {
  const size_t channel = head * Model::kAttentionHeadSize;
  return {options_.kv_type, kv(slot, block) + channel * kLanes * kv_element_, kLanes * d_,
          values(slot, block) + channel * kv_element_, d_};
}

KvHead Slots::mean_head(uint32_t slot, size_t block, size_t head) const {
  const size_t channel = head * Model::kAttentionHeadSize;
  return {DType::kF32, means(slot, block) + channel * kLanes, kLanes * d_, nullptr, 0};
}

void Slots::store_trail(uint32_t slot, size_t block, size_t index, const float* k, const float* v) {
  std::memcpy(trail_k(slot, block) + index * d_, k, d_ * sizeof(float));
  std::memcpy(trail_v(slot, block) + index * d_, v, d_ * sizeof(float));
}

void Slots::copy_key(uint32_t slot, size_t block, size_t from, size_t to) {
  char* tiles = kv(slot, block);
  for (size_t c = 0; c < d_; ++c) {
    std::memcpy(tiles + (tile_offset(to, d_) + c * kLanes) * kv_element_,
                tiles + (tile_offset(from, d_) + c * kLanes) * kv_element_, kv_element_);
  }
}

// loss_[t] = mean over channels of (v[t] - S^T k[t])^2, S [value][key] after the whole prefill: as
// the reference package computes it, transposition included. Sums run over keys in ascending
// order, then over channels in ascending order.
void Slots::keep_surprising(uint32_t slot, size_t n) {
  if (n_attn_ == 0) return;
  const size_t head_size = model_->shape.head_size;
  const size_t n_head = model_->shape.n_head();
  const size_t keep = options_.memory_keep_ratio > 0
                          ? std::max<size_t>(1, static_cast<size_t>(static_cast<double>(n) *
                                                                    options_.memory_keep_ratio))
                          : std::min(n, options_.memory_keep_tokens);
  size_t previous = 0;  // the RWKV block before the attention block
  for (const BlockRef& block : model_->order) {
    if (!block.is_attention) {
      previous = block.index;
      continue;
    }
    for (size_t h = 0; h < n_head; ++h) {
      const size_t offset = h * head_size * head_size;
      transpose(wkv(slot, previous) + offset, head_size, head_size, value_key_.get() + offset);
    }
    for (size_t t = 0; t < n; ++t) {
      const float* k = trail_k(slot, block.index) + t * d_;
      const float* v = trail_v(slot, block.index) + t * d_;
      float sum = 0.0f;
      for (size_t h = 0; h < n_head; ++h) {
        const float* s = value_key_.get() + h * head_size * head_size;
        std::fill_n(restored_.get(), head_size, 0.0f);
        for (size_t j = 0; j < head_size; ++j) {
          for (size_t i = 0; i < head_size; ++i) {
            restored_[i] += s[j * head_size + i] * k[h * head_size + j];
          }
        }
        for (size_t i = 0; i < head_size; ++i) {
          const float difference = v[h * head_size + i] - restored_[i];
          sum += difference * difference;
        }
      }
      loss_[t] = sum / static_cast<float>(d_);
      if (!(loss_[t] <= FLT_MAX)) loss_[t] = FLT_MAX;  // keeps the order below total
    }
    uint32_t* rows = rows_.get();
    std::iota(rows, rows + n, 0u);
    std::partial_sort(rows, rows + keep, rows + n, [&](uint32_t a, uint32_t b) {
      return loss_[a] != loss_[b] ? loss_[a] > loss_[b] : a < b;
    });
    std::sort(rows, rows + keep);
    for (size_t i = 0; i < keep; ++i) {
      copy_key(slot, block.index, rows[i], i);
      char* v = values(slot, block.index);
      std::memmove(v + i * d_ * kv_element_, v + rows[i] * d_ * kv_element_, d_ * kv_element_);
    }
  }
  slots_[slot].n_kept = keep;
}

size_t Slots::exported_rows(uint64_t n_tokens, uint64_t n_kept) const {
  switch (options_.policy) {
    case Policy::kMemory:
      return n_kept;
    case Policy::kWindow:
      return std::min<uint64_t>(n_tokens, options_.window_sinks + options_.window_size);
    case Policy::kFull:
    case Policy::kMoba:
      break;
  }
  return n_tokens;
}

size_t Slots::exported_index(uint64_t n_tokens, size_t row) const {
  if (options_.policy != Policy::kWindow || row < options_.window_sinks) return row;
  return cache_index(n_tokens - exported_rows(n_tokens, 0) + row);
}

wkvm_tensor Slots::describe_for(uint64_t n_tokens, uint64_t n_kept, size_t index) const {
  if (index >= tensor_refs_.size()) {
    fail(WKVM_INVALID_ARGUMENT, "state tensor %zu of %zu", index, tensor_refs_.size());
  }
  wkvm_tensor tensor{};
  tensor.name = tensor_names_[index].c_str();
  tensor.dtype = WKVM_F32;
  tensor.n_dims = 1;
  tensor.shape[0] = d_;
  tensor.n_bytes = d_ * sizeof(float);
  switch (tensor_refs_[index].kind) {
    case Kind::kWkv:
      tensor.n_dims = 3;
      tensor.shape[0] = model_->shape.n_head();
      tensor.shape[1] = tensor.shape[2] = model_->shape.head_size;
      tensor.n_bytes = d_ * model_->shape.head_size * sizeof(float);
      break;
    case Kind::kKeys:
    case Kind::kValues:
      tensor.dtype = static_cast<uint32_t>(options_.kv_type);
      tensor.n_dims = 2;
      tensor.shape[0] = exported_rows(n_tokens, n_kept);
      tensor.shape[1] = d_;
      tensor.n_bytes = tensor.shape[0] * d_ * kv_element_;
      break;
    default:
      break;
  }
  return tensor;
}

wkvm_tensor Slots::describe(uint32_t slot, size_t index) const {
  return describe_for(used(slot).n_tokens, used(slot).n_kept, index);
}

void Slots::export_tensor(uint32_t slot, size_t index, void* data, uint64_t n_bytes) const {
  sound(slot);
  const wkvm_tensor tensor = describe(slot, index);
  if (n_bytes != tensor.n_bytes || (n_bytes && !data)) {
    fail(WKVM_INVALID_ARGUMENT, "state tensor %s takes %llu bytes", tensor.name,
         static_cast<unsigned long long>(tensor.n_bytes));
  }
  Slots& self = const_cast<Slots&>(*this);  // the accessors below only read
  const size_t block = tensor_refs_[index].block;
  const uint64_t n_tokens = used(slot).n_tokens;
  switch (tensor_refs_[index].kind) {
    case Kind::kAttShift:
      std::memcpy(data, self.att_shift(slot, block), n_bytes);
      break;
    case Kind::kFfnShift:
      std::memcpy(data, self.ffn_shift(slot, block), n_bytes);
      break;
    case Kind::kAttentionFfnShift:
      std::memcpy(data, self.attention_ffn_shift(slot, block), n_bytes);
      break;
    case Kind::kXLast:
      std::memcpy(data, self.x_last(slot), n_bytes);
      break;
    case Kind::kWkv: {
      const size_t n = model_->shape.head_size;
      for (size_t h = 0; h < model_->shape.n_head(); ++h) {
        transpose(self.wkv(slot, block) + h * n * n, n, n, static_cast<float*>(data) + h * n * n);
      }
      break;
    }
    case Kind::kKeys:
      for (size_t row = 0; row < tensor.shape[0]; ++row) {
        const size_t from = exported_index(n_tokens, row);
        if (options_.kv_type == DType::kF32) {
          get_key(reinterpret_cast<const float*>(kv(slot, block)), from, d_,
                  static_cast<float*>(data) + row * d_);
        } else {
          get_key(reinterpret_cast<const uint16_t*>(kv(slot, block)), from, d_,
                  static_cast<uint16_t*>(data) + row * d_);
        }
      }
      break;
    case Kind::kValues:
      for (size_t row = 0; row < tensor.shape[0]; ++row) {
        std::memcpy(static_cast<char*>(data) + row * d_ * kv_element_,
                    values(slot, block) + exported_index(n_tokens, row) * d_ * kv_element_,
                    d_ * kv_element_);
      }
      break;
  }
}

void Slots::import_tensors(uint32_t slot, uint64_t n_tokens, const wkvm_tensor* tensors, size_t n) {
  used(slot);
  if (n != tensor_names_.size()) {
    fail(WKVM_STATE_MISMATCH, "the state has %zu tensors; this model's have %zu", n,
         tensor_names_.size());
  }
  if (n_attn_ && options_.policy != Policy::kWindow && options_.policy != Policy::kMemory &&
      n_tokens > options_.max_cache_len) {
    fail(WKVM_CACHE_FULL, "the state has %llu tokens; max_cache_len is %zu",
         static_cast<unsigned long long>(n_tokens), options_.max_cache_len);
  }
  if (n_tokens > kMaxTokens) {
    fail(WKVM_STATE_MISMATCH, "the state claims %llu tokens",
         static_cast<unsigned long long>(n_tokens));
  }
  std::vector<const wkvm_tensor*> sources(n, nullptr);
  uint64_t n_kept = 0;
  for (size_t i = 0; i < n; ++i) {
    const auto at = std::find(tensor_names_.begin(), tensor_names_.end(), tensors[i].name);
    if (at == tensor_names_.end() || sources[static_cast<size_t>(at - tensor_names_.begin())]) {
      fail(WKVM_STATE_MISMATCH, "state tensor %s is not one of this model's, or appears twice",
           printable(tensors[i].name, 200).c_str());
    }
    sources[static_cast<size_t>(at - tensor_names_.begin())] = &tensors[i];
  }
  if (options_.policy == Policy::kMemory && n_attn_) {
    for (size_t i = 0; i < n; ++i) {
      if (tensor_refs_[i].kind == Kind::kKeys) n_kept = sources[i]->shape[0];
    }
    if (n_kept > std::min<uint64_t>(n_tokens, options_.max_cache_len)) {
      fail(WKVM_STATE_MISMATCH, "the state keeps %llu rows of %llu tokens; max_cache_len is %zu",
           static_cast<unsigned long long>(n_kept), static_cast<unsigned long long>(n_tokens),
           options_.max_cache_len);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    const wkvm_tensor& source = *sources[i];
    const wkvm_tensor expected = describe_for(n_tokens, n_kept, i);
    if (source.dtype != expected.dtype || source.n_dims != expected.n_dims ||
        !std::equal(source.shape, source.shape + source.n_dims, expected.shape) ||
        source.n_bytes != expected.n_bytes || (source.n_bytes && !source.data)) {
      fail(WKVM_STATE_MISMATCH,
           "state tensor %s has another type or shape than this model, policy and KV type give it",
           source.name);
    }
    const size_t alignment = expected.dtype == WKVM_F32 ? 4 : 2;
    if (reinterpret_cast<uintptr_t>(source.data) % alignment) {
      fail(WKVM_INVALID_ARGUMENT, "state tensor %s is not aligned to %zu bytes", source.name,
           alignment);
    }
    const bool finite =
        expected.dtype == WKVM_F32
            ? kernels_.all_finite(static_cast<const float*>(source.data), source.n_bytes / 4)
            : finite_f16(static_cast<const uint16_t*>(source.data), source.n_bytes / 2);
    if (!finite) {
      fail(WKVM_STATE_MISMATCH, "state tensor %s holds a value that is not finite", source.name);
    }
  }

  const FloatEnvironment environment;  // moba's block means are summed anew
  reset(slot);
  slots_[slot].n_tokens = n_tokens;
  slots_[slot].n_kept = n_kept;
  const size_t head_size = model_->shape.head_size;
  for (size_t i = 0; i < n; ++i) {
    const wkvm_tensor& source = *sources[i];
    const size_t block = tensor_refs_[i].block;
    switch (tensor_refs_[i].kind) {
      case Kind::kAttShift:
        std::memcpy(att_shift(slot, block), source.data, source.n_bytes);
        break;
      case Kind::kFfnShift:
        std::memcpy(ffn_shift(slot, block), source.data, source.n_bytes);
        break;
      case Kind::kAttentionFfnShift:
        std::memcpy(attention_ffn_shift(slot, block), source.data, source.n_bytes);
        break;
      case Kind::kXLast:
        std::memcpy(x_last(slot), source.data, source.n_bytes);
        break;
      case Kind::kWkv:
        for (size_t h = 0; h < model_->shape.n_head(); ++h) {
          const size_t offset = h * head_size * head_size;
          transpose(static_cast<const float*>(source.data) + offset, head_size, head_size,
                    wkv(slot, block) + offset);
        }
        break;
      case Kind::kKeys:
        for (size_t row = 0; row < source.shape[0]; ++row) {
          const size_t to = exported_index(n_tokens, row);
          if (options_.kv_type == DType::kF32) {
            put_key(reinterpret_cast<float*>(kv(slot, block)), to, d_,
                    static_cast<const float*>(source.data) + row * d_);
          } else {
            put_key(reinterpret_cast<uint16_t*>(kv(slot, block)), to, d_,
                    static_cast<const uint16_t*>(source.data) + row * d_);
          }
          if (options_.policy == Policy::kMoba) add_to_block_mean(slot, block, row);
        }
        break;
      case Kind::kValues:
        for (size_t row = 0; row < source.shape[0]; ++row) {
          std::memcpy(values(slot, block) + exported_index(n_tokens, row) * d_ * kv_element_,
                      static_cast<const char*>(source.data) + row * d_ * kv_element_,
                      d_ * kv_element_);
        }
        break;
    }
  }
}

}  // namespace wkvm

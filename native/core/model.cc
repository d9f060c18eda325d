#include "core/model.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "core/error.h"
#include "core/isa.h"
#include "core/printable.h"

namespace wkvm {
namespace {

constexpr size_t kAlign = 64;
constexpr size_t kMaxWidth = 65536;  // of D and F: the bound of the exact int8 sum
constexpr size_t kMaxVocab = size_t{1} << 24;
constexpr size_t kMaxBlocks = 1024;
constexpr size_t kNameLength = 200;  // of a stranger's tensor name in a message

enum class Role {
  kVector,     // stored with n_out * n_in elements, used as float32
  kMatrix,     // stored [n_out, n_in]; may become int8
  kLora,       // stored [n_in, n_out]; stays float
  kEmbedding,  // stored and used as rows [n_out, n_in]; stays float
};

std::string shape_text(const uint64_t* shape, size_t n_dims) {
  std::string text(1, '[');
  for (size_t i = 0; i < n_dims; ++i) {
    if (i) text.append(", ");
    text.append(std::to_string(shape[i]));
  }
  text.push_back(']');
  return text;
}

std::string shape_text(const wkvm_tensor& tensor) {
  return shape_text(tensor.shape, tensor.n_dims);
}

uint64_t n_elements(const wkvm_tensor& tensor) {
  uint64_t n = 1;
  for (uint32_t i = 0; i < tensor.n_dims; ++i) {
    if (__builtin_mul_overflow(n, tensor.shape[i], &n)) return UINT64_MAX;
  }
  return n;
}

bool starts_with(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }

// "moba.blocks.3.x" is an alias of "moba.3.x".
std::string canonical_name(const char* name) {
  std::string text = name;
  constexpr const char* kAlias = "moba.blocks.";
  if (starts_with(text, kAlias)) text = "moba." + text.substr(std::strlen(kAlias));
  return text;
}

// The number N of a name that begins with `prefix` + "N.", or -1.
int64_t block_number(const std::string& name, const std::string& prefix) {
  if (name.compare(0, prefix.size(), prefix) != 0) return -1;
  size_t i = prefix.size();
  int64_t number = 0;
  const size_t first = i;
  while (i < name.size() && name[i] >= '0' && name[i] <= '9' && i - first < 6) {
    number = number * 10 + (name[i++] - '0');
  }
  return i > first && i < name.size() && name[i] == '.' ? number : -1;
}

// The tensors that a file offers, by canonical name.
class Catalog {
 public:
  Catalog(const wkvm_tensor* tensors, size_t n) : tensors_(tensors) {
    for (size_t i = 0; i < n; ++i) {
      if (!tensors[i].name) fail(WKVM_INVALID_ARGUMENT, "tensor %zu has no name", i);
      if (tensors[i].n_dims > WKVM_MAX_DIMS) {
        fail(WKVM_FORMAT, "tensor %s has %u dimensions; at most %d are allowed",
             printable(tensors[i].name, kNameLength).c_str(), tensors[i].n_dims, WKVM_MAX_DIMS);
      }
      if (!index_.emplace(canonical_name(tensors[i].name), i).second) {
        fail(WKVM_FORMAT, "tensor %s appears twice",
             printable(tensors[i].name, kNameLength).c_str());
      }
    }
  }
  const std::map<std::string, size_t>& index() const { return index_; }
  const wkvm_tensor* find(const std::string& name) const {
    const auto it = index_.find(name);
    return it == index_.end() ? nullptr : &tensors_[it->second];
  }
  const wkvm_tensor& need(const std::string& name) const {
    const wkvm_tensor* tensor = find(name);
    if (!tensor) {
      fail(WKVM_FORMAT,
           "tensor %s is missing: the file is incomplete, or not an RWKV-7 or RWKV-X checkpoint in "
           "BlinkDL's names",
           name.c_str());
    }
    return *tensor;
  }
  // The need()ed tensor's two dimensions, leading ones dropped.
  std::pair<size_t, size_t> need_2d(const std::string& name) const {
    const wkvm_tensor& tensor = need(name);
    bool ok = tensor.n_dims >= 2;
    for (uint32_t i = 0; ok && i + 2 < tensor.n_dims; ++i) ok = tensor.shape[i] == 1;
    if (!ok) {
      fail(WKVM_FORMAT, "tensor %s has shape %s; two dimensions are expected", name.c_str(),
           shape_text(tensor).c_str());
    }
    return {tensor.shape[tensor.n_dims - 2], tensor.shape[tensor.n_dims - 1]};
  }

 private:
  const wkvm_tensor* tensors_;
  std::map<std::string, size_t> index_;
};

void check_range(const char* what, size_t value, size_t low, size_t high) {
  if (value < low || value > high) {
    fail(WKVM_UNSUPPORTED, "%s is %zu; wkvm runs %zu to %zu", what, value, low, high);
  }
}

void check_shape(const ModelShape& shape) {
  check_range("the vocabulary", shape.n_vocab, 1, kMaxVocab);
  check_range("n_embd", shape.n_embd, kLanes, kMaxWidth);
  check_range("head_size", shape.head_size, kLanes, kMaxHeadSize);
  check_range("the channel mix's width", shape.n_ffn, kLanes, kMaxWidth);
  check_range("the number of RWKV blocks", shape.n_rwkv, 1, kMaxBlocks);
  check_range("the number of attention blocks", shape.n_attn, 0, kMaxBlocks);
  if (shape.head_size % kLanes || shape.n_embd % shape.head_size || shape.n_ffn % kLanes) {
    fail(WKVM_UNSUPPORTED,
         "n_embd %zu, head_size %zu, ffn width %zu: head_size and ffn width must be multiples of "
         "%zu, and n_embd of head_size",
         shape.n_embd, shape.head_size, shape.n_ffn, kLanes);
  }
  if (shape.n_attn && shape.n_embd % Model::kAttentionHeadSize) {
    fail(WKVM_UNSUPPORTED, "n_embd %zu is not a multiple of the attention's head size, %zu",
         shape.n_embd, Model::kAttentionHeadSize);
  }
}

// n_rwkv // n_attn RWKV blocks, one attention block, and so on; with a single attention block it
// comes last. RWKV blocks that are left over never run, as in the official code.
void set_order(Model& model, size_t n_rwkv_stored) {
  ModelShape& shape = model.shape;
  const size_t n_attn = shape.n_attn;
  if (n_attn > n_rwkv_stored) {
    fail(WKVM_UNSUPPORTED, "%zu attention blocks but only %zu RWKV blocks", n_attn, n_rwkv_stored);
  }
  const size_t interval = n_attn <= 1 ? n_rwkv_stored : n_rwkv_stored / n_attn;
  shape.n_rwkv = n_attn <= 1 ? n_rwkv_stored : interval * n_attn;
  shape.n_unused = n_rwkv_stored - shape.n_rwkv;
  for (size_t i = 0; i < shape.n_rwkv; ++i) {
    model.order.push_back({false, i});
    if (n_attn && (i + 1) % interval == 0) model.order.push_back({true, (i + 1) / interval - 1});
  }
  for (const BlockRef& block : model.order) {
    if (!model.block_order.empty()) model.block_order += ' ';
    model.block_order += block.is_attention ? 'A' : 'R';
    model.block_order += std::to_string(block.index);
  }
}

size_t count_blocks(const Catalog& catalog, const std::string& prefix) {
  int64_t last = -1;
  for (const auto& [name, index] : catalog.index()) {
    last = std::max(last, block_number(name, prefix));
  }
  return static_cast<size_t>(last + 1);
}

void refuse_other_families(const Catalog& catalog) {
  for (const auto& [name, index] : catalog.index()) {
    const char* version = nullptr;
    if (name.find(".att.time_maa_") != std::string::npos) version = "RWKV-6";
    if (name.find(".att.time_faaaa") != std::string::npos && !version) version = "RWKV-5 or 6";
    if (name.find(".att.time_first") != std::string::npos) version = "RWKV-4";
    if (version) {
      fail(WKVM_UNSUPPORTED, "this is an %s checkpoint (tensor %s); wkvm runs RWKV-7 and RWKV-X",
           version, printable(name, kNameLength).c_str());
    }
  }
}

void read_shape(Model& model, const Catalog& catalog) {
  refuse_other_families(catalog);
  ModelShape& shape = model.shape;
  for (const auto& [name, index] : catalog.index()) {
    if (starts_with(name, "rwkv.") || starts_with(name, "moba.")) shape.family = Family::kRwkvX;
  }
  const std::string prefix = shape.family == Family::kRwkvX ? "rwkv." : "";
  const auto [n_head, head_size] = catalog.need_2d(prefix + "blocks.0.att.r_k");
  const auto [n_vocab, n_embd] = catalog.need_2d(prefix + "emb.weight");
  if (n_head == 0 || head_size == 0 || n_embd / head_size != n_head || n_embd % head_size) {
    fail(WKVM_FORMAT,
         "tensor %sblocks.0.att.r_k has %zu heads of %zu, tensor %semb.weight rows of %zu: they do "
         "not "
         "belong together; get the checkpoint again",
         prefix.c_str(), n_head, head_size, prefix.c_str(), n_embd);
  }
  shape.n_vocab = n_vocab;
  shape.n_embd = n_embd;
  shape.head_size = head_size;
  shape.n_ffn = catalog.need_2d(prefix + "blocks.0.ffn.key.weight").first;
  shape.n_rwkv = count_blocks(catalog, prefix + "blocks.");
  shape.n_attn = shape.family == Family::kRwkvX ? count_blocks(catalog, "moba.") : 0;
  check_shape(shape);
  set_order(model, shape.n_rwkv);
}

DType matrix_type(uint32_t option, DType stored) {
  return option == WKVM_DTYPE_AUTO ? stored : static_cast<DType>(option);
}

// The value of the metadata entry that marks a converted file.
constexpr const char* kPackedFormat =
    "1 family=%zu n_vocab=%zu n_embd=%zu head_size=%zu n_ffn=%zu n_rwkv=%zu n_attn=%zu "
    "n_unused=%zu dtype=%zu%n";

std::string packed_header(const Model& model) {
  const ModelShape& s = model.shape;
  char text[256];
  int length = 0;
  std::snprintf(text, sizeof text, kPackedFormat, static_cast<size_t>(s.family), s.n_vocab,
                s.n_embd, s.head_size, s.n_ffn, s.n_rwkv, s.n_attn, s.n_unused,
                static_cast<size_t>(model.dtype), &length);
  return text;
}

void read_packed_header(Model& model, const char* path, const std::string& header) {
  ModelShape& s = model.shape;
  size_t family = 0;
  size_t dtype = 0;
  int length = 0;
  const int fields =
      std::sscanf(header.c_str(), kPackedFormat, &family, &s.n_vocab, &s.n_embd, &s.head_size,
                  &s.n_ffn, &s.n_rwkv, &s.n_attn, &s.n_unused, &dtype, &length);
  if (fields != 9 || static_cast<size_t>(length) != header.size() || family > WKVM_RWKVX ||
      dtype > WKVM_I8 || s.n_unused > kMaxBlocks) {
    fail(WKVM_FORMAT,
         "%s: its %s entry is not one that this version of wkvm wrote; convert the original again",
         path, Model::kPackedKey);
  }
  s.family = static_cast<Family>(family);
  model.dtype = static_cast<DType>(dtype);
  check_shape(s);
  const size_t unused = s.n_unused;
  const size_t n_rwkv = s.n_rwkv;
  set_order(model, n_rwkv);
  if (s.n_rwkv != n_rwkv) fail(WKVM_FORMAT, "%s: its blocks do not divide evenly", path);
  s.n_unused = unused;
}

}  // namespace

struct ModelBuilder::Part {
  std::string name;
  Role role;
  size_t n_out;
  size_t n_in;                     // 1 for plain vectors
  Matrix* matrix = nullptr;        // kMatrix, kLora
  const float** vector = nullptr;  // kVector
  const void** embedding = nullptr;
  DType type = DType::kF32;
  size_t offset = 0;  // of the packed bytes and the scales in the model's memory
  size_t scale_offset = 0;
  bool added = false;

  size_t bytes() const {
    if (matrix) return matrix->bytes();
    return n_out * n_in * element_size(type);
  }
  bool has_scale() const { return type == DType::kI8; }
  size_t scale_bytes() const { return has_scale() ? matrix->packed_out() * sizeof(float) : 0; }

  // What a converted file says of this part.
  wkvm_tensor packed_tensor() const {
    wkvm_tensor tensor{};
    tensor.dtype = static_cast<uint32_t>(type);
    tensor.n_bytes = bytes();
    tensor.n_dims = role == Role::kVector && n_in == 1 ? 1 : 2;
    tensor.shape[0] = matrix ? matrix->packed_out() : n_out;
    tensor.shape[1] = matrix ? matrix->packed_in() : n_in;
    if (tensor.n_dims == 1) tensor.shape[1] = 0;
    return tensor;
  }
  wkvm_tensor scale_tensor() const {
    wkvm_tensor tensor{};
    tensor.dtype = WKVM_F32;
    tensor.n_dims = 1;
    tensor.shape[0] = matrix->packed_out();
    tensor.n_bytes = scale_bytes();
    return tensor;
  }
};

namespace {

// Lists every tensor that a model of this shape consists of, with the place it goes to.
template <class Part>
class PartList {
 public:
  PartList(Model& model, std::vector<Part>& parts) : model_(model), parts_(parts) {}

  // `rank` tells the rank of a LoRA pair from the name of its first factor, e.g. "...att.w1".
  template <class Rank>
  void list(Rank&& rank) {
    const ModelShape& s = model_.shape;
    const size_t d = s.n_embd;
    const std::string prefix = s.family == Family::kRwkvX ? "rwkv." : "";
    model_.rwkv.resize(s.n_rwkv);
    model_.attention.resize(s.n_attn);

    parts_.push_back({prefix + "emb.weight", Role::kEmbedding, s.n_vocab, d});
    parts_.back().embedding = &model_.embedding;
    layer_norm(prefix + "blocks.0.ln0", model_.ln0);
    for (size_t i = 0; i < s.n_rwkv; ++i) {
      const std::string block = prefix + "blocks." + std::to_string(i) + ".";
      RwkvBlock& b = model_.rwkv[i];
      layer_norm(block + "ln1", b.ln1);
      layer_norm(block + "ln2", b.ln2);
      time_mix(block + "att.", i == 0, b.att, rank);
      channel_mix(block + "ffn.", b.ffn);
    }
    for (size_t i = 0; i < s.n_attn; ++i) {
      const std::string block = "moba." + std::to_string(i) + ".";
      AttentionBlock& b = model_.attention[i];
      layer_norm(block + "ln1", b.ln1);
      layer_norm(block + "ln2", b.ln2);
      matrix(block + "att.receptance.weight", d, d, b.receptance);
      matrix(block + "att.key.weight", d, d, b.key);
      matrix(block + "att.value.weight", d, d, b.value);
      matrix(block + "att.output.weight", d, d, b.output);
      channel_mix(block + "ffn.", b.ffn);
    }
    layer_norm(prefix + "ln_out", model_.ln_out);
    matrix(prefix + "head.weight", s.n_vocab, d, model_.head);
  }

 private:
  void vector(const std::string& name, const float*& target) {
    vector(name, target, model_.shape.n_embd, 1);
  }
  void vector(const std::string& name, const float*& target, size_t n_out, size_t n_in) {
    parts_.push_back({name, Role::kVector, n_out, n_in});
    parts_.back().vector = &target;
  }
  void layer_norm(const std::string& name, LayerNorm& norm) {
    vector(name + ".weight", norm.weight);
    vector(name + ".bias", norm.bias);
  }
  void matrix(const std::string& name, size_t n_out, size_t n_in, Matrix& target,
              Role role = Role::kMatrix) {
    target.n_out = n_out;
    target.n_in = n_in;
    parts_.push_back({name, role, n_out, n_in});
    parts_.back().matrix = &target;
  }
  // first [D, rank], second [rank, D], both stored [in, out].
  void lora(const std::string& name, size_t rank, Matrix& first, Matrix& second) {
    if (rank < 1 || rank > kMaxWidth) {
      fail(WKVM_FORMAT, "tensor %s1 has a rank of %zu", name.c_str(), rank);
    }
    model_.shape.max_rank = std::max(model_.shape.max_rank, rank);
    matrix(name + "1", rank, model_.shape.n_embd, first, Role::kLora);
    matrix(name + "2", model_.shape.n_embd, rank, second, Role::kLora);
  }
  template <class Rank>
  void time_mix(const std::string& block, bool is_first, TimeMix& att, Rank& rank) {
    const size_t d = model_.shape.n_embd;
    vector(block + "x_r", att.x_r);
    vector(block + "x_w", att.x_w);
    vector(block + "x_k", att.x_k);
    vector(block + "x_v", att.x_v);
    vector(block + "x_a", att.x_a);
    vector(block + "x_g", att.x_g);
    vector(block + "w0", att.w0);
    vector(block + "a0", att.a0);
    lora(block + "w", rank(block + "w"), att.w1, att.w2);
    lora(block + "a", rank(block + "a"), att.a1, att.a2);
    lora(block + "g", rank(block + "g"), att.g1, att.g2);
    if (!is_first) {
      vector(block + "v0", att.v0);
      lora(block + "v", rank(block + "v"), att.v1, att.v2);
    }
    vector(block + "k_k", att.k_k);
    vector(block + "k_a", att.k_a);
    vector(block + "r_k", att.r_k, model_.shape.n_head(), model_.shape.head_size);
    layer_norm(block + "ln_x", att.ln_x);
    matrix(block + "receptance.weight", d, d, att.receptance);
    matrix(block + "key.weight", d, d, att.key);
    matrix(block + "value.weight", d, d, att.value);
    matrix(block + "output.weight", d, d, att.output);
  }
  void channel_mix(const std::string& block, ChannelMix& ffn) {
    const size_t d = model_.shape.n_embd;
    vector(block + "x_k", ffn.x_k);
    matrix(block + "key.weight", model_.shape.n_ffn, d, ffn.key);
    matrix(block + "value.weight", d, model_.shape.n_ffn, ffn.value);
  }

  Model& model_;
  std::vector<Part>& parts_;
};

template <class Part>
void check_stored_shape(const Part& part, const wkvm_tensor& tensor) {
  bool ok = true;
  size_t rows = part.n_out;
  size_t columns = part.n_in;
  if (part.role == Role::kLora) std::swap(rows, columns);
  if (part.role == Role::kVector) {
    ok = n_elements(tensor) == part.n_out * part.n_in;
  } else {
    ok = tensor.n_dims >= 2 && tensor.shape[tensor.n_dims - 2] == rows &&
         tensor.shape[tensor.n_dims - 1] == columns && n_elements(tensor) == rows * columns;
  }
  if (!ok) {
    const uint64_t sides[] = {rows, columns};
    const std::string expected = shape_text(sides, part.n_in == 1 ? 1 : 2);
    fail(WKVM_FORMAT, "tensor %s has shape %s; %s is expected: get the checkpoint again",
         part.name.c_str(), shape_text(tensor).c_str(), expected.c_str());
  }
}

// Sums that a user is told, once all types are known.
template <class Part>
void count(Model& model, const std::vector<Part>& parts) {
  for (const Part& part : parts) {
    model.n_params += part.n_out * part.n_in;
    model.bytes_per_token += part.role == Role::kEmbedding ? part.n_in * element_size(part.type)
                                                           : part.bytes() + part.scale_bytes();
  }
}

// Points the model at its packed bytes.
template <class Part>
void attach(Model& model, const Part& part, const void* bytes, const float* scale) {
  switch (part.role) {
    case Role::kVector:
      *part.vector = static_cast<const float*>(bytes);
      break;
    case Role::kEmbedding:
      *part.embedding = bytes;
      model.embedding_type = part.type;
      break;
    case Role::kMatrix:
    case Role::kLora:
      part.matrix->panels = bytes;
      part.matrix->scale = scale;
      break;
  }
}

template <class Part>
void list_packed_tensors(Model& model, const std::vector<Part>& parts, const char* memory) {
  std::map<std::string, wkvm_tensor> sorted;
  for (const Part& part : parts) {
    wkvm_tensor tensor = part.packed_tensor();
    tensor.data = memory + part.offset;
    sorted.emplace(part.name, tensor);
    if (part.has_scale()) {
      tensor = part.scale_tensor();
      tensor.data = memory + part.scale_offset;
      sorted.emplace(part.name + ".scale", tensor);
    }
  }
  for (const auto& [name, tensor] : sorted) {
    model.packed_names.push_back(name);
    model.packed_tensors.push_back(tensor);
  }
  for (size_t i = 0; i < model.packed_names.size(); ++i) {
    model.packed_tensors[i].name = model.packed_names[i].c_str();
  }
}

bool is_float(uint32_t dtype) {
  return dtype == WKVM_F32 || dtype == WKVM_F16 || dtype == WKVM_BF16;
}

}  // namespace

ModelBuilder::ModelBuilder(const wkvm_tensor* tensors, size_t n_tensors, uint32_t dtype)
    : model_(std::make_shared<Model>()),
      tensors_(tensors, tensors + n_tensors),
      kernels_(kernels_for(nullptr)),
      pool_(default_threads()) {
  if (dtype != WKVM_DTYPE_AUTO && dtype > WKVM_I8) {
    fail(WKVM_INVALID_ARGUMENT, "dtype %u is not fp32, fp16, bf16, int8 or auto", dtype);
  }
  Model& model = *model_;
  const Catalog catalog(tensors, n_tensors);
  read_shape(model, catalog);
  PartList<Part>(model, parts_).list([&](const std::string& name) {
    const auto [n_in, rank] = catalog.need_2d(name + "1");
    const auto [n_rows, n_out] = catalog.need_2d(name + "2");
    if (rank != n_rows || n_in != model.shape.n_embd || n_out != model.shape.n_embd) {
      fail(WKVM_FORMAT,
           "tensors %s1 [%zu, %zu] and %s2 [%zu, %zu] do not agree with each other and n_embd %zu",
           name.c_str(), n_in, rank, name.c_str(), n_rows, n_out, model.shape.n_embd);
    }
    return rank;
  });

  part_of_tensor_.assign(n_tensors, -1);
  size_t size = 0;
  for (size_t p = 0; p < parts_.size(); ++p) {
    Part& part = parts_[p];
    const wkvm_tensor& tensor = catalog.need(part.name);
    check_stored_shape(part, tensor);
    if (!is_float(tensor.dtype)) {
      fail(WKVM_UNSUPPORTED, "tensor %s is not float32, float16 or bfloat16", part.name.c_str());
    }
    const auto stored = static_cast<DType>(tensor.dtype);
    switch (part.role) {
      case Role::kVector:
        part.type = DType::kF32;
        break;
      case Role::kMatrix:
        part.type = matrix_type(dtype, stored);
        break;
      case Role::kLora:
      case Role::kEmbedding:
        part.type = dtype == WKVM_I8 ? stored : matrix_type(dtype, stored);
        break;
    }
    if (part.matrix) part.matrix->type = part.type;
    part_of_tensor_[catalog.index().find(part.name)->second] = static_cast<int64_t>(p);
    part.offset = size;
    size = round_up(size + part.bytes(), kAlign);
    part.scale_offset = size;
    size = round_up(size + part.scale_bytes(), kAlign);
  }

  const std::string prefix = model.shape.family == Family::kRwkvX ? "rwkv." : "";
  for (const auto& [name, index] : catalog.index()) {
    if (part_of_tensor_[index] >= 0) continue;
    const int64_t block = block_number(name, prefix + "blocks.");
    const bool is_first_v = name == prefix + "blocks.0.att.v0" ||
                            name == prefix + "blocks.0.att.v1" ||
                            name == prefix + "blocks.0.att.v2";
    if (is_first_v || block >= static_cast<int64_t>(model.shape.n_rwkv)) continue;
    fail(WKVM_FORMAT,
         "tensor %s is not part of an RWKV-7 or RWKV-X model: the file holds a variant that wkvm "
         "does not run, or something else beside the model",
         printable(name, kNameLength).c_str());
  }

  model.dtype = model.rwkv[0].att.receptance.type;
  model.packed_header = packed_header(model);
  count(model, parts_);
  memory_size_ = size;
}

// Taken only when the first tensor comes: a description of a model costs nothing.
char* ModelBuilder::memory() {
  if (!memory_) {
    const size_t size = memory_size_;
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      fail(WKVM_OUT_OF_MEMORY, "no memory for %zu MiB of weights", size >> 20);
    }
    madvise(memory, size, MADV_HUGEPAGE);  // a hint: fewer page walks while decoding
    model_->memory = std::shared_ptr<void>(memory, [size](void* p) { munmap(p, size); });
    memory_ = static_cast<char*>(memory);
  }
  return memory_;
}

ModelBuilder::~ModelBuilder() = default;

bool ModelBuilder::needs(size_t index) const {
  if (index >= part_of_tensor_.size()) {
    fail(WKVM_INVALID_ARGUMENT, "tensor %zu of %zu", index, part_of_tensor_.size());
  }
  return part_of_tensor_[index] >= 0;
}

void ModelBuilder::add(size_t index, const void* data, uint64_t n_bytes) {
  if (is_finished_) fail(WKVM_INVALID_ARGUMENT, "the builder is finished");
  if (!needs(index)) return;
  Part& part = parts_[static_cast<size_t>(part_of_tensor_[index])];
  const auto stored = static_cast<DType>(tensors_[index].dtype);
  const size_t n = part.n_out * part.n_in;
  if (!data || n_bytes != n * element_size(stored)) {
    fail(WKVM_INVALID_ARGUMENT, "tensor %s: %llu bytes instead of %zu", part.name.c_str(),
         static_cast<unsigned long long>(n_bytes), n * element_size(stored));
  }
  char* bytes = memory() + part.offset;
  auto* scale = part.has_scale() ? reinterpret_cast<float*>(memory() + part.scale_offset) : nullptr;
  const FloatEnvironment environment;
  const bool ok = part.matrix ? pack_matrix(kernels_, {stored, data}, part.role == Role::kLora,
                                            *part.matrix, bytes, scale, pool_)
                              : convert(kernels_, {stored, data}, n, part.type, bytes);
  if (!ok) {
    fail(WKVM_FORMAT, "tensor %s holds a value that is not finite or does not fit %s",
         part.name.c_str(), dtype_name(part.type));
  }
  attach(*model_, part, bytes, scale);
  part.added = true;
}

std::shared_ptr<Model> ModelBuilder::finish() {
  if (is_finished_) fail(WKVM_INVALID_ARGUMENT, "the builder is finished");
  for (const Part& part : parts_) {
    if (!part.added) {
      fail(WKVM_INVALID_ARGUMENT, "tensor %s was never added", part.name.c_str());
    }
  }
  list_packed_tensors(*model_, parts_, memory_);
  is_finished_ = true;
  return model_;
}

namespace {

// int8 weights are -127 to 127 (numerics.md). Returns the name of a tensor that holds -128, or
// null. Reads every byte, so it takes all the threads it can get.
const char* find_minus_128(const std::vector<wkvm_tensor>& tensors) {
  constexpr size_t kStretch = size_t{1} << 20;
  struct Stretch {
    const wkvm_tensor* tensor;
    size_t begin, end;
  };
  std::vector<Stretch> stretches;
  for (const wkvm_tensor& tensor : tensors) {
    if (tensor.dtype != WKVM_I8) continue;
    for (size_t i = 0; i < tensor.n_bytes; i += kStretch) {
      stretches.push_back({&tensor, i, std::min<size_t>(tensor.n_bytes, i + kStretch)});
    }
  }
  std::atomic<const char*> found{nullptr};
  const auto search = [&](const Stretch& stretch) {
    const auto* q = static_cast<const int8_t*>(stretch.tensor->data);
    int8_t least = 0;
    for (size_t i = stretch.begin; i < stretch.end; ++i) least = q[i] < least ? q[i] : least;
    if (least == -128) found.store(stretch.tensor->name, std::memory_order_relaxed);
  };
  ThreadPool pool(default_threads());
  constexpr size_t kBatch = 4096;  // stretches of one region of the pool
  for (size_t first = 0; first < stretches.size(); first += kBatch) {
    pool.run(std::min(kBatch, stretches.size() - first),
             [&](size_t i, size_t) { search(stretches[first + i]); });
  }
  return found.load();
}

}  // namespace

std::shared_ptr<Model> Model::open(const char* path, uint32_t dtype) {
  std::shared_ptr<SafetensorsFile> file = SafetensorsFile::open(path);
  const std::string* header = file->metadata(kPackedKey);
  if (!header) {
    std::vector<wkvm_tensor> tensors;
    for (size_t i = 0; i < file->count(); ++i) tensors.push_back(file->tensor(i));
    try {
      ModelBuilder builder(tensors.data(), tensors.size(), dtype);
      for (size_t i = 0; i < tensors.size(); ++i) {
        if (!builder.needs(i)) continue;
        builder.add(i, tensors[i].data, tensors[i].n_bytes);
        file->evict(i);
      }
      return builder.finish();
    } catch (const Error& error) {
      throw Error(error.status(), std::string(path) + ": " + error.what());
    }
  }

  auto model = std::make_shared<Model>();
  read_packed_header(*model, path, *header);
  if (dtype != WKVM_DTYPE_AUTO && dtype != static_cast<uint32_t>(model->dtype)) {
    fail(WKVM_INVALID_ARGUMENT, "%s was converted to %s; for another type convert the original",
         path, dtype_name(model->dtype));
  }
  std::vector<ModelBuilder::Part> parts;
  const auto need = [&](const std::string& name) -> const wkvm_tensor& {
    const wkvm_tensor* tensor = file->find(name.c_str());
    if (!tensor) fail(WKVM_FORMAT, "%s: tensor %s is missing", path, name.c_str());
    return *tensor;
  };
  PartList<ModelBuilder::Part>(*model, parts).list([&](const std::string& name) {
    const wkvm_tensor& tensor = need(name + "2");
    return tensor.n_dims == 2 ? tensor.shape[1] : 0;
  });
  const auto take = [&](const std::string& name, wkvm_tensor expected, bool is_vector) {
    const wkvm_tensor& tensor = need(name);
    const bool same = tensor.dtype == expected.dtype && tensor.n_dims == expected.n_dims &&
                      std::equal(tensor.shape, tensor.shape + tensor.n_dims, expected.shape) &&
                      tensor.n_bytes == expected.n_bytes;
    if (!same || reinterpret_cast<uintptr_t>(tensor.data) % kAlign) {
      fail(
          WKVM_FORMAT,
          "%s: tensor %s is not the packed one that its header promises (%s); convert the original "
          "again",
          path, name.c_str(), shape_text(tensor).c_str());
    }
    if (is_vector) {
      const auto* x = static_cast<const float*>(tensor.data);
      for (uint64_t i = 0; i < tensor.n_bytes / sizeof(float); ++i) {
        if (!std::isfinite(x[i])) {
          fail(WKVM_FORMAT, "%s: tensor %s holds a value that is not finite", path, name.c_str());
        }
      }
    }
    return tensor.data;
  };
  size_t n_expected = 0;
  for (ModelBuilder::Part& part : parts) {
    // Float tensors keep the type they were converted with; only the file knows it.
    const wkvm_tensor& stored = need(part.name);
    part.type = part.role == Role::kVector ? DType::kF32 : static_cast<DType>(stored.dtype);
    const bool is_int8 = part.role == Role::kMatrix && model->dtype == DType::kI8;
    if (is_int8 ? stored.dtype != WKVM_I8 : stored.dtype > WKVM_BF16) {
      fail(WKVM_FORMAT, "%s: tensor %s has a type that wkvm does not compute with", path,
           part.name.c_str());
    }
    if (part.matrix) part.matrix->type = part.type;
    const void* bytes = take(part.name, part.packed_tensor(), part.role == Role::kVector);
    const void* scale =
        part.has_scale() ? take(part.name + ".scale", part.scale_tensor(), true) : nullptr;
    attach(*model, part, bytes, static_cast<const float*>(scale));
    n_expected += part.has_scale() ? 2 : 1;
  }
  for (size_t i = 0; i < file->count(); ++i) {
    model->packed_names.push_back(file->tensor(i).name);
  }
  if (model->packed_names.size() != n_expected) {
    fail(WKVM_FORMAT, "%s: %zu tensors instead of %zu", path, model->packed_names.size(),
         n_expected);
  }
  std::sort(model->packed_names.begin(), model->packed_names.end());
  for (const std::string& name : model->packed_names) {
    model->packed_tensors.push_back(*file->find(name.c_str()));
    model->packed_tensors.back().name = name.c_str();
  }
  if (const char* name = find_minus_128(model->packed_tensors)) {
    fail(WKVM_FORMAT, "%s: tensor %s holds -128; int8 weights are -127 to 127", path, name);
  }
  count(*model, parts);
  model->packed_header = *header;
  model->is_packed = true;
  model->file = std::move(file);
  return model;
}

void Model::get_info(wkvm_model_info* out) const {
  const uint32_t size = out->struct_size;
  if (size != sizeof *out) {
    fail(WKVM_INVALID_ARGUMENT, "wkvm_model_info: struct_size is %u, not %zu", size, sizeof *out);
  }
  const size_t d = shape.n_embd;
  out->family = static_cast<uint32_t>(shape.family);
  out->dtype = static_cast<uint32_t>(dtype);
  out->is_packed = is_packed;
  out->n_embd = d;
  out->head_size = shape.head_size;
  out->n_ffn = shape.n_ffn;
  out->n_vocab = shape.n_vocab;
  out->n_rwkv = shape.n_rwkv;
  out->n_attn = shape.n_attn;
  out->n_unused = shape.n_unused;
  out->n_params = n_params;
  out->bytes_per_token = bytes_per_token;
  out->recurrent_state_bytes =
      sizeof(float) * (shape.n_rwkv * (2 * d + d * shape.head_size) + shape.n_attn * d + d);
  out->kv_values_per_token = shape.n_attn * 2 * d;
}

}  // namespace wkvm

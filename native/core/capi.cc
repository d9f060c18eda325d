// Models, engines and slots behind wkvm.h.
#include <memory>
#include <string>

#include "core/error.h"
#include "core/forward.h"
#include "core/guard.h"
#include "core/model.h"
#include "wkvm.h"

using wkvm::fail;
using wkvm::guard;
using wkvm::require;

struct wkvm_model {
  std::shared_ptr<wkvm::Model> model;
};
struct wkvm_builder {
  wkvm::ModelBuilder builder;
};
struct wkvm_engine {
  wkvm::Engine engine;
};

namespace {

// *pointer, which must not be null.
template <class T>
T& deref(T* pointer, const char* function, const char* argument) {
  require(pointer, function, argument);
  return *pointer;
}

template <class T>
void check_size(const T& value, const char* what) {
  if (value.struct_size != sizeof(T)) {
    fail(WKVM_INVALID_ARGUMENT, "%s: struct_size is %u, not %zu: built against another wkvm.h?",
         what, value.struct_size, sizeof(T));
  }
}

uint32_t dtype_option(const wkvm_model_options* options) {
  if (!options) return WKVM_DTYPE_AUTO;
  check_size(*options, "wkvm_model_options");
  return options->dtype;
}

wkvm::StateOptions state_options(const wkvm_engine_options& o) {
  if (o.kv_dtype != WKVM_F16 && o.kv_dtype != WKVM_F32) {
    fail(WKVM_INVALID_ARGUMENT, "kv_dtype %u is not float16 or float32", o.kv_dtype);
  }
  if (o.policy > WKVM_MEMORY) {
    fail(WKVM_INVALID_ARGUMENT, "policy %u is not full, moba, window or memory", o.policy);
  }
  if (o.reserved != 0) fail(WKVM_INVALID_ARGUMENT, "wkvm_engine_options: reserved must be 0");
  wkvm::StateOptions options;
  options.n_slots = o.n_slots;
  options.kv_type = static_cast<wkvm::DType>(o.kv_dtype);
  options.policy = static_cast<wkvm::Policy>(o.policy);
  options.max_cache_len = o.max_cache_len;
  options.moba_chunk_size = o.moba_chunk_size;
  options.moba_topk = o.moba_topk;
  options.window_sinks = o.window_sinks;
  options.window_size = o.window_size;
  options.memory_keep_tokens = o.memory_keep_tokens;
  options.memory_keep_ratio = o.memory_keep_ratio;
  return options;
}

}  // namespace

// ---------------------------------------------------------------- models

wkvm_status wkvm_model_open(const char* path, const wkvm_model_options* options, wkvm_model** out) {
  return guard([&] {
    deref(path, "wkvm_model_open", "path");
    require(out, "wkvm_model_open", "out");
    *out = new wkvm_model{wkvm::Model::open(path, dtype_option(options))};
  });
}

wkvm_status wkvm_model_free(wkvm_model* model) {
  return guard([&] { delete model; });
}

wkvm_status wkvm_model_get_info(const wkvm_model* model, wkvm_model_info* out) {
  return guard([&] {
    deref(model, "wkvm_model_get_info", "model")
        .model->get_info(&deref(out, "wkvm_model_get_info", "out"));
  });
}

wkvm_status wkvm_model_block_order(const wkvm_model* model, const char** out) {
  return guard([&] {
    deref(out, "wkvm_model_block_order", "out") =
        deref(model, "wkvm_model_block_order", "model").model->block_order.c_str();
  });
}

wkvm_status wkvm_model_tensor_count(const wkvm_model* model, size_t* out) {
  return guard([&] {
    deref(out, "wkvm_model_tensor_count", "out") =
        deref(model, "wkvm_model_tensor_count", "model").model->packed_tensors.size();
  });
}

wkvm_status wkvm_model_tensor(const wkvm_model* model, size_t index, wkvm_tensor* out) {
  return guard([&] {
    const auto& tensors = deref(model, "wkvm_model_tensor", "model").model->packed_tensors;
    if (index >= tensors.size()) {
      fail(WKVM_INVALID_ARGUMENT, "tensor %zu of %zu", index, tensors.size());
    }
    deref(out, "wkvm_model_tensor", "out") = tensors[index];
  });
}

wkvm_status wkvm_model_packed_header(const wkvm_model* model, const char** out) {
  return guard([&] {
    deref(out, "wkvm_model_packed_header", "out") =
        deref(model, "wkvm_model_packed_header", "model").model->packed_header.c_str();
  });
}

wkvm_status wkvm_builder_new(const wkvm_tensor* tensors, size_t n_tensors,
                             const wkvm_model_options* options, wkvm_builder** out) {
  return guard([&] {
    if (n_tensors) deref(tensors, "wkvm_builder_new", "tensors");
    require(out, "wkvm_builder_new", "out");
    *out = new wkvm_builder{{tensors, n_tensors, dtype_option(options)}};
  });
}

wkvm_status wkvm_builder_free(wkvm_builder* builder) {
  return guard([&] { delete builder; });
}

wkvm_status wkvm_builder_get_info(const wkvm_builder* builder, wkvm_model_info* out) {
  return guard([&] {
    deref(builder, "wkvm_builder_get_info", "builder")
        .builder.model()
        .get_info(&deref(out, "wkvm_builder_get_info", "out"));
  });
}

wkvm_status wkvm_builder_block_order(const wkvm_builder* builder, const char** out) {
  return guard([&] {
    deref(out, "wkvm_builder_block_order", "out") =
        deref(builder, "wkvm_builder_block_order", "builder").builder.model().block_order.c_str();
  });
}

wkvm_status wkvm_builder_needs(const wkvm_builder* builder, size_t index, uint32_t* out) {
  return guard([&] {
    deref(out, "wkvm_builder_needs", "out") =
        deref(builder, "wkvm_builder_needs", "builder").builder.needs(index);
  });
}

wkvm_status wkvm_builder_add(wkvm_builder* builder, size_t index, const void* data,
                             uint64_t n_bytes) {
  return guard(
      [&] { deref(builder, "wkvm_builder_add", "builder").builder.add(index, data, n_bytes); });
}

wkvm_status wkvm_builder_finish(wkvm_builder* builder, wkvm_model** out) {
  return guard([&] {
    require(out, "wkvm_builder_finish", "out");
    *out = new wkvm_model{deref(builder, "wkvm_builder_finish", "builder").builder.finish()};
  });
}

// ---------------------------------------------------------------- engines

wkvm_status wkvm_engine_new(wkvm_model* model, const wkvm_engine_options* options,
                            wkvm_engine** out) {
  return guard([&] {
    check_size(deref(options, "wkvm_engine_new", "options"), "wkvm_engine_options");
    require(out, "wkvm_engine_new", "out");
    *out = new wkvm_engine{{deref(model, "wkvm_engine_new", "model").model, state_options(*options),
                            options->n_threads, options->isa}};
  });
}

wkvm_status wkvm_engine_free(wkvm_engine* engine) {
  return guard([&] { delete engine; });
}

wkvm_status wkvm_engine_get_info(const wkvm_engine* engine, wkvm_engine_info* out) {
  return guard([&] {
    check_size(deref(out, "wkvm_engine_get_info", "out"), "wkvm_engine_info");
    const wkvm::Engine& e = deref(engine, "wkvm_engine_get_info", "engine").engine;
    out->n_slots = static_cast<uint32_t>(e.slots().options().n_slots);
    out->n_slots_used = static_cast<uint32_t>(e.slots().n_used());
    out->n_threads = static_cast<uint32_t>(e.n_threads());
    out->isa = e.kernels().isa;
    out->slot_bytes = e.slots().bytes_per_slot();
    out->n_forward = e.n_forward();
    out->n_tokens = e.n_tokens();
    out->forward_nanoseconds = e.nanoseconds();
  });
}

wkvm_status wkvm_forward(wkvm_engine* engine, const wkvm_row* rows, size_t n_rows, float* logits,
                         size_t logits_len) {
  return guard([&] {
    deref(engine, "wkvm_forward", "engine").engine.forward(rows, n_rows, logits, logits_len);
  });
}

// ---------------------------------------------------------------- slots

wkvm_status wkvm_slot_acquire(wkvm_engine* engine, uint32_t* out) {
  return guard([&] {
    deref(out, "wkvm_slot_acquire", "out");
    *out = deref(engine, "wkvm_slot_acquire", "engine").engine.slots().acquire();
  });
}

wkvm_status wkvm_slot_release(wkvm_engine* engine, uint32_t slot) {
  return guard([&] { deref(engine, "wkvm_slot_release", "engine").engine.slots().release(slot); });
}

wkvm_status wkvm_slot_reset(wkvm_engine* engine, uint32_t slot) {
  return guard([&] { deref(engine, "wkvm_slot_reset", "engine").engine.slots().reset(slot); });
}

wkvm_status wkvm_slot_copy(wkvm_engine* engine, uint32_t from, uint32_t to) {
  return guard([&] { deref(engine, "wkvm_slot_copy", "engine").engine.slots().copy(from, to); });
}

wkvm_status wkvm_slot_n_tokens(const wkvm_engine* engine, uint32_t slot, uint64_t* out) {
  return guard([&] {
    deref(out, "wkvm_slot_n_tokens", "out") =
        deref(engine, "wkvm_slot_n_tokens", "engine").engine.slots().used(slot).n_tokens;
  });
}

wkvm_status wkvm_slot_is_spoilt(const wkvm_engine* engine, uint32_t slot, uint32_t* out) {
  return guard([&] {
    deref(out, "wkvm_slot_is_spoilt", "out") =
        deref(engine, "wkvm_slot_is_spoilt", "engine").engine.slots().used(slot).is_spoilt;
  });
}

wkvm_status wkvm_slot_logits(wkvm_engine* engine, uint32_t slot, float* logits, size_t logits_len) {
  return guard([&] {
    deref(engine, "wkvm_slot_logits", "engine").engine.logits_of_slot(slot, logits, logits_len);
  });
}

wkvm_status wkvm_slot_tensor_count(const wkvm_engine* engine, uint32_t slot, size_t* out) {
  return guard([&] {
    const wkvm::Slots& slots = deref(engine, "wkvm_slot_tensor_count", "engine").engine.slots();
    slots.used(slot);
    deref(out, "wkvm_slot_tensor_count", "out") = slots.n_tensors();
  });
}

wkvm_status wkvm_slot_tensor(const wkvm_engine* engine, uint32_t slot, size_t index,
                             wkvm_tensor* out) {
  return guard([&] {
    deref(out, "wkvm_slot_tensor", "out") =
        deref(engine, "wkvm_slot_tensor", "engine").engine.slots().describe(slot, index);
  });
}

wkvm_status wkvm_slot_export(const wkvm_engine* engine, uint32_t slot, size_t index, void* data,
                             uint64_t n_bytes) {
  return guard([&] {
    deref(engine, "wkvm_slot_export", "engine")
        .engine.slots()
        .export_tensor(slot, index, data, n_bytes);
  });
}

wkvm_status wkvm_slot_import(wkvm_engine* engine, uint32_t slot, uint64_t n_tokens,
                             const wkvm_tensor* tensors, size_t n_tensors) {
  return guard([&] {
    if (n_tensors) deref(tensors, "wkvm_slot_import", "tensors");
    for (size_t i = 0; i < n_tensors; ++i)
      deref(tensors[i].name, "wkvm_slot_import", "a tensor's name");
    deref(engine, "wkvm_slot_import", "engine")
        .engine.slots()
        .import_tensors(slot, n_tokens, tensors, n_tensors);
  });
}

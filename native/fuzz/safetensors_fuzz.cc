// The .safetensors parser over arbitrary bytes: an error, or tensors that lie in the file one
// after the other.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "core/error.h"
#include "core/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  try {
    const wkvm::SafetensorsHeader header = wkvm::parse_safetensors("fuzz", bytes, size);
    const uint8_t* at = bytes;
    for (const wkvm_tensor& tensor : header.tensors) {
      const auto* data = static_cast<const uint8_t*>(tensor.data);
      if (data < at || tensor.n_bytes > static_cast<uint64_t>(bytes + size - data)) std::abort();
      at = data + tensor.n_bytes;
      if (header.names.find(tensor.name) == header.names.end()) std::abort();
    }
    if (header.names.size() != header.tensors.size()) std::abort();
  } catch (const wkvm::Error&) {
  }
  return 0;
}

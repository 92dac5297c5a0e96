#include "checkpoint/assemble.h"
#include "checkpoint/fuzz_input.h"

using namespace moesaic;

// The sizes of the seeds, so that a mutated file still reaches the views.
static const ModelConfig kConfig{.layers = 1,
                                 .hidden = 32,
                                 .intermediate = 32,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 16,
                                 .experts = 2,
                                 .experts_per_token = 1,
                                 .vocab = 8,
                                 .window = 4,
                                 .sliding = {true},
                                 .max_context = 64};

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz_file(data, size);
  auto map = std::make_shared<TensorMap>();
  if (file == nullptr || !read_safetensors(file, *map).ok()) return 0;
  check_extents(*map, *file);
  if (const auto weights = assemble_hf(map, kConfig); weights.ok()) touch(weights.value());
  if (const auto weights = assemble_original(map, kConfig); weights.ok()) touch(weights.value());
  return 0;
}

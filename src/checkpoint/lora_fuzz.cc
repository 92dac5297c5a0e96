#include "checkpoint/fuzz_input.h"
#include "checkpoint/json.h"
#include "checkpoint/lora_tensors.h"
#include "checkpoint/widen.h"

using namespace moesaic;

// The sizes of the seeds, so that mutated tensors still fit.
static const ModelConfig kConfig{.layers = 2,
                                 .hidden = 32,
                                 .intermediate = 16,
                                 .heads = 2,
                                 .kv_heads = 1,
                                 .head_dim = 16,
                                 .experts = 2,
                                 .experts_per_token = 1,
                                 .vocab = 8,
                                 .window = 4,
                                 .sliding = {true, false},
                                 .max_context = 64};

static int check(const Result<std::vector<LoraFactors>>& factors) {
  if (!factors.ok()) return 0;
  for (const LoraFactors& f : factors.value()) {
    MOESAIC_CHECK(std::ssize(f.down) == f.count * f.rank * f.cols);
    MOESAIC_CHECK(std::ssize(f.up) == f.count * f.rows * f.rank);
    MOESAIC_CHECK(f.expert >= -1 && f.expert < kConfig.experts);
  }
  return 0;
}

static int use_gguf(const uint8_t* data, size_t size) {
  auto gguf = read_gguf(fuzz_file(data, size));
  if (!gguf.ok() || !widen(gguf->tensors).ok()) return 0;
  return check(gguf_lora_factors(gguf.value(), "fuzz", 1, kConfig));
}

// A GGUF file, or adapter_config.json, a zero byte, adapter_model.safetensors.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4 && std::equal(data, data + 4, "GGUF")) return use_gguf(data, size);
  const uint8_t* const end = std::find(data, data + size, uint8_t{0});
  const auto used = static_cast<size_t>(end - data);
  const auto json = parse_ordered_json({reinterpret_cast<const char*>(data), used}, "fuzz");
  const auto lora = json.ok() ? lora_config(json.value(), "fuzz") : Result<LoraConfig>(json.status());
  if (lora.ok()) MOESAIC_CHECK(rank_of(lora.value(), "model.layers.0.self_attn.q_proj") > 0);
  const auto file = used < size ? fuzz_file(end + 1, size - used - 1) : nullptr;
  TensorMap map;
  if (file == nullptr || !read_safetensors(file, map).ok()) return 0;
  const LoraConfig config = lora.ok() ? lora.value() : LoraConfig{.rank = 2};
  if (!map.files.empty() && !take_saved_modules(map, config, kConfig).ok()) return 0;
  return check(lora_factors(map, config, 1, kConfig));
}

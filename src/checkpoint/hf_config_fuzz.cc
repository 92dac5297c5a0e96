#include "checkpoint/config_reader.h"

using namespace moesaic;

static void use(const Result<ModelConfig>& config) {
  if (config.ok() && validate(config.value()).ok()) make_rope_table(config->rope, config->head_dim);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json.ok()) return 0;
  use(config_from_hf(json.value(), "fuzz"));
  use(config_from_original(json.value(), "fuzz"));
  return 0;
}

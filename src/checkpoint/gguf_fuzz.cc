#include "checkpoint/assemble.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/fuzz_input.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/json.h"
#include "checkpoint/tokenizer_json.h"
#include "checkpoint/widen.h"

using namespace moesaic;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz_file(data, size);
  if (file == nullptr) return 0;
  auto gguf = read_gguf(file);
  if (!gguf.ok()) return 0;
  check_extents(gguf->tensors, *file);
  const auto config = config_from_gguf(gguf.value(), "fuzz");
  if (!config.ok()) return 0;
  if (const auto tokenizer = tokenizer_json(take_gguf_tokenizer(gguf.value(), config.value()));
      tokenizer.ok())
    MOESAIC_CHECK(parse_json(tokenizer.value(), "fuzz").ok());
  if (!widen(gguf->tensors).ok()) return 0;
  const auto map = std::make_shared<TensorMap>(std::move(gguf->tensors));
  if (const auto weights = assemble_gguf(map, config.value(), gguf->written_by_ollama()); weights.ok())
    touch(weights.value());
  return 0;
}

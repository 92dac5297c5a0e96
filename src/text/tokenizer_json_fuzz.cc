// Any bytes as tokenizer.json and as a rank file: a tokenizer or an error, and what loads must encode.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto from_json = moesaic::Tokenizer::from_hf_json_text(bytes, "fuzz");
  if (from_json.ok()) from_json.value().encode(bytes.substr(0, 200), true);
  const auto from_ranks = moesaic::Tokenizer::from_tiktoken_text(bytes, "fuzz");
  if (from_ranks.ok()) from_ranks.value().encode(bytes.substr(0, 200), true);
  return 0;
}

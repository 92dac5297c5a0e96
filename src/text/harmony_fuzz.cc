// Any bytes as a chat request, and as what a model writes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "text/harmony_json.h"
#include "text/harmony_parser.h"

namespace {

// Single bytes and harmony's special tokens.
moesaic::Tokenizer make_tokenizer() {
  std::vector<std::string> tokens;
  std::vector<int32_t> types(256, 1);
  for (int code = 0x21; tokens.size() < 256; ++code) {
    if ((code > 0x7E && code < 0xA1) || code == 0xAD) continue;
    tokens.push_back(code < 0x80 ? std::string(1, static_cast<char>(code))
                                 : std::string{static_cast<char>(0xC0 | code >> 6),
                                               static_cast<char>(0x80 | (code & 63))});
  }
  for (const char* special : {"<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>",
                              "<|end|>", "<|message|>", "<|call|>"})
    tokens.push_back(special), types.push_back(3);
  auto made = moesaic::Tokenizer::from_gguf(tokens, {}, types, -1, -1);
  MOESAIC_CHECK(made.ok());
  return std::move(made).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const moesaic::Tokenizer tokenizer = make_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto conversation = moesaic::conversation_from_json(text, "fuzz");
  if (conversation.ok()) {
    const auto rendered = moesaic::render_conversation(conversation.value(), tokenizer);
    MOESAIC_CHECK(!rendered.ok() || !rendered.value().empty());
  }
  moesaic::HarmonyParser parser(tokenizer);
  for (const int32_t token : tokenizer.encode(text, true)) parser.push(token);
  parser.finish();
  MOESAIC_CHECK(parser.done());
  return 0;
}

// Any bytes as a chat request, and as what a model writes.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "text/fuzz_tokenizer.h"
#include "text/harmony_json.h"
#include "text/harmony_parser.h"

namespace {

// Wherever an output is cut off, its end adds neither text nor a call.
void check_cut(moesaic::HarmonyParser parser) {
  using Event = moesaic::HarmonyEvent;
  for (const Event& event : parser.finish())
    MOESAIC_CHECK(event.reason == Event::Reason::kTruncated &&
                  (event.kind == Event::Kind::kMessageEnd || event.kind == Event::Kind::kDone));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const moesaic::Tokenizer tokenizer =
      moesaic::make_fuzz_tokenizer({}, {"<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>",
                                        "<|start|>", "<|end|>", "<|message|>", "<|call|>"});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto conversation = moesaic::conversation_from_json(text, "fuzz");
  if (conversation.ok()) {
    const auto rendered = moesaic::render_conversation(conversation.value(), tokenizer);
    MOESAIC_CHECK(!rendered.ok() || !rendered.value().empty());
  }
  moesaic::HarmonyParser parser(tokenizer);
  const std::vector<int32_t> tokens = tokenizer.encode(text, true);
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (const moesaic::HarmonyEvent& event : parser.push(tokens[i]))
      MOESAIC_CHECK(event.kind != moesaic::HarmonyEvent::Kind::kToolCall ||
                    event.message.role == "assistant");
    if (i < 64 || i % 64 == size % 64) check_cut(parser);  // not always: it copies the message
  }
  parser.finish();
  MOESAIC_CHECK(parser.done());
  return 0;
}

// Any bytes as a chat request, and as what a model writes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/fuzz_tokenizer.h"
#include "text/harmony_header.h"
#include "text/harmony_json.h"
#include "text/harmony_parser.h"

namespace {

// Wherever an output is cut off, its end adds no call, and no text but what may have been a channel's name.
void check_cut(moesaic::HarmonyParser parser) {
  using Event = moesaic::HarmonyEvent;
  const auto begins_name = [](std::string_view text) {
    return std::ranges::any_of(moesaic::kChannels, [&](std::string_view c) { return c.starts_with(text); });
  };
  for (const Event& event : parser.finish())
    MOESAIC_CHECK(event.kind == Event::Kind::kText
                      ? begins_name(event.message.text)
                      : event.reason == Event::Reason::kTruncated && event.kind != Event::Kind::kToolCall);
}

// Only the assistant speaks, in three channels or none, and what was told of a message is its text.
void check_event(const moesaic::HarmonyEvent& event, std::string& open) {
  using Kind = moesaic::HarmonyEvent::Kind;
  const moesaic::Message& m = event.message;
  if (event.kind == Kind::kDone) return MOESAIC_CHECK(open.empty());
  MOESAIC_CHECK(m.role == "assistant" && m.name.empty());
  MOESAIC_CHECK(m.channel.empty() || m.channel == "analysis" || m.channel == "commentary" ||
                m.channel == "final");
  MOESAIC_CHECK(m.recipient != "all" && m.recipient != "user" && m.recipient != "assistant");
  if (event.kind == Kind::kText) {
    open += m.text;
    return;
  }
  MOESAIC_CHECK(m.text == open && (event.kind == Kind::kToolCall) == !m.recipient.empty());
  open.clear();
}

// A header means the same with all of its parts three times.
void check_repeated(std::string_view text) {
  moesaic::HeaderParts once = {
      {.text = std::string(text.substr(0, text.size() / 2))},
      {.kind = moesaic::HeaderPart::Kind::kChannel, .text = std::string(text.substr(text.size() / 2))}};
  moesaic::HeaderParts thrice = once;
  for (int i = 0; i < 2; ++i) thrice.push_back(once[1]);
  const moesaic::HarmonyHeader a = moesaic::read_header(once), b = moesaic::read_header(thrice);
  MOESAIC_CHECK(a.channel == b.channel && a.recipient == b.recipient && a.foreign == b.foreign);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const moesaic::Tokenizer tokenizer =
      moesaic::make_fuzz_tokenizer({}, {"<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>",
                                        "<|start|>", "<|end|>", "<|message|>", "<|call|>"});
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (size < 200) check_repeated(text);
  const auto conversation = moesaic::conversation_from_json(text, "fuzz");
  if (conversation.ok()) {
    const auto rendered = moesaic::render_conversation(conversation.value(), tokenizer);
    MOESAIC_CHECK(!rendered.ok() || !rendered.value().empty());
  }
  moesaic::HarmonyParser parser(tokenizer);
  const std::vector<int32_t> tokens = tokenizer.encode(text, true);
  std::string open;  // text of the message that is not complete
  for (size_t i = 0; i < tokens.size(); ++i) {
    for (const moesaic::HarmonyEvent& event : parser.push(tokens[i])) check_event(event, open);
    if (i < 64 || i % 64 == size % 64) check_cut(parser);  // not always: it copies the message
  }
  parser.finish();
  MOESAIC_CHECK(parser.done());
  return 0;
}

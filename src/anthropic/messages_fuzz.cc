// Bodies of requests to Anthropic's endpoints, and the answers to those that are taken.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "anthropic/messages_request.h"

namespace {

using namespace moesaic;

const openai::Service& service() {
  static const Model model = [] {
    auto opened = Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "reference", .context = 512});
    if (!opened.ok()) std::abort();
    return std::move(opened).value();
  }();
  static const openai::Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

void answer(const openai::PreparedRequest& prepared) {
  std::string sse;
  std::string* const stream = prepared.stream ? &sse : nullptr;
  const auto add = [&](const char* channel, const char* recipient, const char* text) {
    prepared.answer->add(
        {.token = SampledToken{.token = 65},
         .pieces = {{.channel = channel, .recipient = recipient, .text = text, .begins = true}}},
        stream);
  };
  add("analysis", "", "x");
  add("commentary", "functions.f", "{\xff");
  add("final", "", "x");
  prepared.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, stream);
  if (!prepared.answer->complete()) std::abort();
  prepared.stream ? prepared.answer->finish(sse) : static_cast<void>(prepared.answer->whole());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] % 4 == 0) {
    anthropic::count_tokens(body, service());
    return 0;
  }
  auto made = anthropic::prepare_messages(body, service());
  if (const auto* prepared = std::get_if<openai::PreparedRequest>(&made)) answer(*prepared);
  return 0;
}

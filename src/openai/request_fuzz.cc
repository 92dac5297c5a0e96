// Bodies of requests, and the answers to those that are taken. The first byte chooses the endpoint.
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/responses_request.h"
#include "openai/token_requests.h"

namespace {

using namespace moesaic;
using namespace moesaic::openai;

const Service& service() {
  static const Model model = [] {
    auto opened = Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "reference", .context = 512});
    if (!opened.ok()) std::abort();
    return std::move(opened).value();
  }();
  static const Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

void answer(PreparedRequest prepared) {
  std::string sse;
  std::string* const stream = prepared.stream ? &sse : nullptr;
  for (int i = 0; i < static_cast<int>(prepared.requests.size()); ++i) {
    const TextPiece call{
        .channel = "commentary", .recipient = "functions.f", .text = "{\xff", .begins = true};
    prepared.answer->add(
        {.choice = i, .token = SampledToken{.token = 65}, .pieces = {{.channel = "final", .text = "x"}}},
        stream);
    prepared.answer->add({.choice = i, .token = SampledToken{.token = 66}, .pieces = {call}}, stream);
    prepared.answer->add({.choice = i, .end = Outcome{.finish = FinishReason::kStop}}, stream);
  }
  if (prepared.failure) return prepared.answer->fail(*prepared.failure, sse);
  if (!prepared.answer->complete()) std::abort();
  prepared.stream ? prepared.answer->finish(sse) : static_cast<void>(prepared.answer->whole());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr std::array kJobs = {prepare_chat, prepare_completion, prepare_response};
  constexpr std::array kConversions = {tokenize, detokenize, apply_template};
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data + 1), size - 1);
  const size_t which = data[0] % (kJobs.size() + kConversions.size());
  if (which >= kJobs.size()) {
    kConversions[which - kJobs.size()](body, service());
    return 0;
  }
  PreparedRequestOrError made = kJobs[which](body, service());
  if (auto* prepared = std::get_if<PreparedRequest>(&made)) answer(std::move(*prepared));
  return 0;
}

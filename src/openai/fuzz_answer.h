// For fuzz targets of the APIs: models/tiny as a service, and an answer to what was asked of it.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>

#include "openai/answer.h"

namespace moesaic::openai {

inline const Service& fuzz_service() {
  static const Model model = [] {
    auto opened = Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "reference", .context = 512});
    if (!opened.ok()) std::abort();
    return std::move(opened).value();
  }();
  static const Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

// Every generation thinks, says something, makes a call that is cut off, and ends.
inline void answer_for_fuzz(const PreparedRequestOrError& made) {
  const auto* prepared = std::get_if<PreparedRequest>(&made);
  if (prepared == nullptr) return;
  std::string events;
  std::string* const stream = prepared->stream ? &events : nullptr;
  for (int i = 0; i < static_cast<int>(prepared->requests.size()); ++i) {
    const auto add = [&](const char* channel, const char* recipient, const char* text) {
      prepared->answer->add(
          {.choice = i,
           .token = SampledToken{.token = 65},
           .pieces = {{.channel = channel, .recipient = recipient, .text = text, .begins = true}}},
          stream);
    };
    add("analysis", "", "x");
    add("final", "", "x");
    add("commentary", "functions.f", "{\xff");
    prepared->answer->add({.choice = i, .end = Outcome{.finish = FinishReason::kStop}}, stream);
  }
  if (prepared->failure) return prepared->answer->fail(*prepared->failure, events);
  if (!prepared->answer->complete()) std::abort();
  prepared->stream ? prepared->answer->finish(events) : static_cast<void>(prepared->answer->whole());
}

}  // namespace moesaic::openai

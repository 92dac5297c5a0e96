// One generation from submission to its end.
#pragma once

#include <functional>
#include <memory>
#include <stop_token>
#include <vector>

#include "engine/kv_pages.h"
#include "engine/sampler.h"

namespace moesaic {

struct Request {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int prompt_tokens = 0;
  int limit = 0;     // tokens at which it ends
  int computed = 0;  // tokens whose K and V are in the cache once the steps that were launched have run
  int drawn = -1;    // which of the tokens that the step under way draws comes next; -1: none
  int reused = 0;    // of these, when it began, tokens that others had computed
  int kept = 0;      // tokens of the prompt that were not there and stay in the cache for others
  bool reuse_prefix = true;  // false: what others have computed is not looked for
  bool begun = false;
  SamplingParams params;
  std::unique_ptr<Sampler> sampler;
  std::vector<float> held;  // logits that wait for the grammar's mask, while the sampler is not ready
  PageTable pages;
  std::stop_token cancel;  // see Engine::submit
  FinishReason finish = FinishReason::kNone;
  Status error;
  // Called for every token as it is made, the stop token that ends it included, from the thread that steps
  // the engine.
  std::function<void(const SampledToken&)> on_token;

  int generated() const { return static_cast<int>(tokens.size()) - prompt_tokens; }
  // Tokens, those under way included.
  int length() const { return static_cast<int>(tokens.size()) + (drawn >= 0 ? 1 : 0); }
  bool done() const { return finish != FinishReason::kNone; }
};

}  // namespace moesaic

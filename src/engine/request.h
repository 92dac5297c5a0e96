// A generation from submission to its end.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <vector>

#include "drafting/draft_history.h"
#include "drafting/draft_state.h"
#include "engine/kv_pages.h"
#include "engine/sampler.h"

namespace moesaic {

// The scheduler's account of a client, while the client has requests there.
struct ClientShare {
  int requests = 0;  // how many wait or run
  int running = 0;
  uint64_t prompt_turn = 0;  // the last step that computed rows of its prompts
};

struct Request {
  uint64_t id = 0;
  std::vector<int32_t> tokens;  // the prompt, then what was generated
  int prompt_tokens = 0;
  int limit = 0;     // tokens at which it ends
  int computed = 0;  // tokens whose K and V are in the cache once the steps that were launched have run
  int reused = 0;    // prompt tokens that the prefix cache had when the request began
  int kept = 0;      // prompt tokens that it computed and the prefix cache then kept
  bool reuse_prefix = true;  // false: it does not begin with what others have computed
  bool begun = false;
  SamplingParams params;
  std::unique_ptr<Sampler> sampler;
  std::vector<float> held;  // logits that wait for the grammar's mask, while the sampler is not ready
  // Its last row was computed before the mask of its next token was there: it is computed again then.
  bool awaits_mask = false;
  PageTable pages;
  int proven = 0;  // tokens whose K and V were computed without a fault: a token was sampled behind them
  std::shared_ptr<KvFetch> fetch;  // its parts are on their way from the store: it gets no rows meanwhile
  bool skip_store = false;         // its parts failed to come from there
  bool speculate = true;           // false: it gets no drafts
  int restarts = 0;                // how often it gave its pages up
  // All rows that the host gets while others are sampled are numbered: the number of its last one; 0: none
  // yet.
  uint64_t host_row = 0;
  DraftState draft;
  DraftHistory drafted;  // how well its drafts have done
  std::string client;    // see GenerationRequest
  // These are the scheduler's.
  std::shared_ptr<ClientShare> share;
  int rank = 0;             // while it runs: the client's other requests that run and began before it
  uint64_t begun_as = 0;    // while it runs: its number among all that began so far
  int turn_steps = 0;       // steps since then in which it did not compute its prompt
  uint64_t yielded_in = 0;  // the step before which it had to wait again
  std::stop_token cancel;   // see Engine::submit
  FinishReason finish = FinishReason::kNone;
  Status error;
  // Called when it begins, from the thread that steps the engine. It may be empty.
  std::function<void()> on_begin;
  // Called behind on_begin, and after each step that has read a part of the prompt, with the tokens of it
  // that are read now; may be empty. A request that begins again tells nothing until more is read than
  // before.
  std::function<void(int read)> on_prompt;
  // Called for every token as it is made, the stop token that ends it included, from the thread that steps
  // the engine.
  std::function<void(const SampledToken&)> on_token;

  // Sees the logits that each token is sampled from, before anything changes them; such requests are sampled
  // by the host. position: of the token before it. It may be empty.
  std::function<void(int position, std::span<const float> logits)> on_logits;
  // Called after on_logits. It may change the logits, as Callbacks::change_logits says. It may be empty.
  std::function<void(int position, std::span<float> logits)> change_logits;
  // Sees, before the first token, the logits of every prompt position but the last, in order and once each.
  // It needs reuse_prefix = false, as a row that is not computed has no logits. It may be empty.
  std::function<void(int position, std::span<const float> logits)> on_prompt_logits;
  int prompt_rows_shown = 0;
  int prompt_told = -1;  // tokens, in the last call of on_prompt

  void tell_prompt(int read) {
    if (!on_prompt || read <= prompt_told) return;
    prompt_told = read;
    on_prompt(read);
  }
  int generated() const { return static_cast<int>(tokens.size()) - prompt_tokens; }
  // The most tokens that it may have once the steps that were launched are taken.
  int length() const {
    return static_cast<int>(tokens.size()) + (draft.token_in_flight() == nullptr ? 0 : 1 + draft.unsure());
  }
  bool done() const { return finish != FinishReason::kNone; }
};

}  // namespace moesaic

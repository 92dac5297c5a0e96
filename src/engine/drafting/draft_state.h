// The state of a request's next tokens: guessed, or computed by steps whose tokens are not taken yet.
//
// A step is launched while the one before it runs, so two steps may have rows of a request:
//
//    None ------------- launch -------------> InFlight ---- launch ---> Ahead
//     ^ '-- propose --> Proposed -- launch ----^ |  ^                     |
//     '------------------- take -----------------'  '------- take --------'
//
// A draft that was begun behind a step is for the next one. If that one is launched before the draft's tokens
// are known, it goes on from the step on the device (Continuation of core/batch.h). Otherwise the draft is
// proposed once its tokens are known.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace moesaic {

class DraftState {
 public:
  // A request's rows in a step that was launched.
  struct Place {
    int sequence = 0;  // the request's index in the step
    // The index of its next token among those that the device samples; nothing: the host samples it, or the
    // rows end before the request's last token.
    std::optional<int> token = {};
  };
  // The draft of a step whose tokens are taken.
  struct Verified {
    int drafted = 0;
    int accepted = 0;  // the first ones, which the model has sampled too
    int behind = 0;    // tokens of the draft that was begun behind the step that was launched last
  };

  // True if no step has rows of the request.
  bool is_free() const { return running() == nullptr; }
  // The draft that was proposed when the request had so many tokens, which are all known. It may be empty.
  std::span<const int32_t> proposal(size_t tokens) const;

  // The request's place in the step that runs, if that samples its next token; else null.
  const Place* token_in_flight() const;
  // Rows of that step that hold only if the draft does.
  int unsure() const { return token_in_flight() == nullptr ? 0 : static_cast<int>(running()->draft.size()); }
  // True if the rows that follow are a Continuation.
  bool may_continue() const;
  // The rows of a continuation that verify a draft whose tokens only the device knows.
  int rows_ahead() const { return may_continue() ? *running()->behind : 0; }
  // The number of right tokens in the running step's draft, as far as its tokens are taken. tokens: all of
  // the request's.
  int accepted(std::span<const int32_t> tokens) const;

  // True if the step that was launched last goes on from a token that is not taken yet.
  bool follows_token() const { return std::holds_alternative<Ahead>(state_) && token_in_flight() != nullptr; }

  // Only while the request is free. It replaces an earlier proposal, by none if it is empty.
  void propose(std::vector<int32_t> draft, size_t tokens);
  void withdraw_proposal();
  // A step was launched. It verifies the proposal, if there is one.
  void launch(const Place& place, size_t tokens);
  // The only step that has rows of the request does not sample its next token after all.
  void forget_token();
  // A draft was begun behind the step that was launched last.
  void begin_behind(int drafted);
  // The request has lost its pages, and with them what was begun behind the running step.
  void forget_behind();
  // The running step's tokens are taken.
  Verified take(std::span<const int32_t> tokens);
  // The draft that was begun behind the step that was taken last: up to -1, where no token could be chosen.
  void take_behind(std::span<const int32_t> draft, size_t tokens);

 private:
  struct None {};
  struct Proposed {
    std::vector<int32_t> draft;
    size_t tokens = 0;  // the request's, before the draft
  };
  struct InFlight {
    Place place;
    std::vector<int32_t> draft = {};  // a continuation's is known once the step before it is taken
    size_t tokens = 0;                // the request's, before those that the step samples
    std::optional<int> behind = {};   // tokens of the draft that was begun behind the step
  };
  struct Ahead {
    InFlight running, launched;
  };

  // Null: no step has rows of the request.
  const InFlight* running() const;

  std::variant<None, Proposed, InFlight, Ahead> state_;
};

}  // namespace moesaic

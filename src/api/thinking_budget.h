// An answer's reasoning, cut off after so many tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/token_override.h"
#include "text/harmony_parser.h"

namespace moesaic {

// Counts the tokens of an answer's analysis messages, all of them together. Where the budget is used up and
// the model goes on to think, the rest of the way to the answer is said in its place:
// <|end|><|start|>assistant<|channel|>final<|message|>. An analysis message that would begin then is a final
// one instead. Where the answer has to be a call, the way leads to its name. Behind it the model is free.
//
// A model that ends its reasoning by itself is left alone, at the last token of the budget too. A character
// that is begun is completed, with up to three tokens more. Calls in the analysis channel are no reasoning.
class ThinkingBudget final : public TokenOverride {
 public:
  // prompt: what the answer goes on from. must_call: its grammar takes nothing but a call. Null where the
  // prompt does not end in a harmony conversation, since nothing behind it is reasoning. The tokenizer must
  // outlive it.
  static std::unique_ptr<TokenOverride> make(const Tokenizer& tokenizer, std::span<const int32_t> prompt,
                                             int tokens, bool must_call);

  int32_t instead_of(int32_t sampled) override;
  void said(int32_t token) override;
  int untouched() const override;

 private:
  ThinkingBudget(const Tokenizer& tokenizer, int tokens, bool must_call);
  std::optional<size_t> forced_for(int32_t sampled) const;
  void follow(int32_t token);
  bool ends_message(int32_t token) const;
  bool begins_analysis(int32_t token) const;

  const Tokenizer* tokenizer_;
  HarmonyParser parser_;
  int32_t start_, channel_, end_;
  std::vector<int32_t> way_out_;  // from analysis to the answer
  size_t behind_channel_ = 0;     // the part of it that a header still needs behind <|channel|>
  size_t at_ = 0;                 // the next token of it that is said; 0: the model is free
  std::optional<size_t> forced_;  // the token of it that stands in place of the one just sampled
  bool names_channel_ = false;    // the next token is the first behind a header's <|channel|>
  int left_;                      // tokens of the budget
  int more_ = 0;                  // tokens beyond it that complete a character
};

}  // namespace moesaic

// Drafts from the request itself and from earlier answers of this engine what most often followed the longest
// occurrences of the request's last tokens. It serves answers that resemble earlier ones: agents, forms, the
// same question asked again.
//
// Only answers of other requests are kept, never prompts: the latest 2^18 to 2^19 tokens (4 to 12 MB). Only
// the model ever sees a draft that comes from another's answer; tokens that it does not say itself are
// dropped. But the others come a little faster: whoever can measure that may find out that somebody was
// answered so. If that matters, the drafter keeps to the request.
#pragma once

#include <unordered_map>

#include "drafting/drafter.h"
#include "drafting/token_index.h"

namespace moesaic {

class SuffixDrafter final : public Drafter {
 public:
  static constexpr size_t kMostTokens = size_t{1} << 18;  // in each of the two halves

  // shares: earlier answers are kept and searched.
  explicit SuffixDrafter(bool shares) : shares_(shares) {}

  std::string name() const override { return shares_ ? "suffix" : "suffix:own"; }
  Status draft(std::span<DraftTask> tasks) override;
  void end(uint64_t request, std::span<const int32_t> tokens, int prompt_tokens) override;

 private:
  // Answers one behind the other, each followed by a -1.
  struct Answers {
    std::vector<int32_t> tokens;
    TokenIndex index;
  };
  // A place whose continuation is a vote for the next token.
  struct Place {
    std::span<const int32_t> text;
    TokenIndex::Match match;
  };

  void find(std::span<const int32_t> text, const TokenIndex& index, std::span<const int32_t> sought);
  void vote(DraftTask& task);

  bool shares_;
  std::unordered_map<uint64_t, TokenIndex> indexes_;  // by request that has asked
  Answers latest_, older_;                            // when latest_ is full it becomes older_
  std::vector<TokenIndex::Match> matches_;
  std::vector<Place> places_;
};

}  // namespace moesaic

// Drafts from the request itself and from earlier answers of this engine: what most often followed the
// longest occurrences of the request's last tokens. For answers that resemble earlier ones: agents, forms,
// the same question asked again.
//
// Of other requests only answers are kept, never prompts, the latest 2^18 to 2^19 tokens (4 to 12 MB). A
// draft that comes from another's answer is only ever seen by the model; what it does not say itself is
// dropped. But it is said a little faster: who can measure that may find out that somebody was answered so.
// Where that matters, the drafter keeps to the request.
#pragma once

#include <unordered_map>

#include "drafting/drafter.h"
#include "drafting/token_index.h"

namespace moesaic {

class SuffixDrafter final : public Drafter {
 public:
  static constexpr size_t kMostTokens = size_t{1} << 18;  // of each of the two halves

  // shares: earlier answers are kept and looked at.
  explicit SuffixDrafter(bool shares) : shares_(shares) {}

  std::string name() const override { return shares_ ? "suffix" : "suffix:own"; }
  Status draft(std::span<DraftTask> tasks) override;
  void end(uint64_t request, std::span<const int32_t> tokens, int prompt_tokens) override;

 private:
  // Answers, each followed by a -1.
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
  std::unordered_map<uint64_t, TokenIndex> indexes_;  // of each request that has asked
  Answers latest_, older_;                            // when latest_ is full it becomes older_
  std::vector<TokenIndex::Match> matches_;
  std::vector<Place> places_;
};

}  // namespace moesaic

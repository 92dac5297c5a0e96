// Drafts from the request itself what followed the longest earlier occurrence of its last tokens, in prompt
// or answer. It serves answers that repeat their prompt: code edits, extraction, quotation.
#pragma once

#include <unordered_map>

#include "drafting/drafter.h"
#include "drafting/token_index.h"

namespace moesaic {

class NgramDrafter final : public Drafter {
 public:
  std::string name() const override { return "ngram"; }
  Status draft(std::span<DraftTask> tasks) override;
  void end(uint64_t request, std::span<const int32_t>, int) override { indexes_.erase(request); }

 private:
  std::unordered_map<uint64_t, TokenIndex> indexes_;  // by request that has asked
  std::vector<TokenIndex::Match> matches_;
};

}  // namespace moesaic

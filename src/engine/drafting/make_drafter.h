// Makes drafters by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backend/draft_head.h"
#include "drafting/drafter.h"

namespace moesaic {

enum class DrafterKind { kNone, kNgram, kSuffix, kSuffixOwn, kEagle3, kModel };
struct DrafterChoice {
  DrafterKind kind = DrafterKind::kNone;
  std::string path = {};  // the head's or model's; if it is empty, the head that comes with the model "tiny"
};
// The names are "none", "ngram", "suffix" (with earlier answers), "suffix:own" (without), "eagle3",
// "eagle3:FOLDER" and "draft:MODEL". Anything else is an error of one line.
Result<DrafterChoice> drafter_choice(std::string_view name);
// Returns null for kNone. kEagle3 needs `head`, the loaded one of the backend that holds the model. kModel
// has more parts (model_drafter.h) and is not made here.
std::unique_ptr<Drafter> make_drafter(DrafterKind kind, DraftHead* head = nullptr);

// The length of drafts must be 0 (as many tokens as pay) to kMostDraft.
Status validate_draft_tokens(int tokens);

}  // namespace moesaic

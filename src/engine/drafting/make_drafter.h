// Drafters by name.
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
  std::string path = {};  // of the head or model; an empty one's head comes with the model "tiny"
};
// "none", "ngram", "suffix" (with earlier answers), "suffix:own" (without), "eagle3", "eagle3:FOLDER" or
// "draft:MODEL". An error of one line for anything else.
Result<DrafterChoice> drafter_choice(std::string_view name);
// Null for kNone. head: of the backend that holds the model, loaded; for kEagle3. kModel has more parts
// (model_drafter.h).
std::unique_ptr<Drafter> make_drafter(DrafterKind kind, DraftHead* head = nullptr);

// 0 (as many as pay) to kMostDraft.
Status validate_draft_tokens(int tokens);

}  // namespace moesaic

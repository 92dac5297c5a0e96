#include "drafting/make_drafter.h"

#include "base/error.h"
#include "drafting/eagle3_drafter.h"
#include "drafting/ngram.h"
#include "drafting/suffix.h"

namespace moesaic {

Result<DrafterChoice> drafter_choice(std::string_view name) {
  constexpr std::string_view kHead = "eagle3:", kModel = "draft:";
  if (name == "none") return DrafterChoice{DrafterKind::kNone};
  if (name == "ngram") return DrafterChoice{DrafterKind::kNgram};
  if (name == "suffix") return DrafterChoice{DrafterKind::kSuffix};
  if (name == "suffix:own") return DrafterChoice{DrafterKind::kSuffixOwn};
  if (name == "eagle3") return DrafterChoice{DrafterKind::kEagle3};
  if (name.starts_with(kHead) && name.size() > kHead.size())
    return DrafterChoice{DrafterKind::kEagle3, std::string(name.substr(kHead.size()))};
  if (name.starts_with(kModel) && name.size() > kModel.size())
    return DrafterChoice{DrafterKind::kModel, std::string(name.substr(kModel.size()))};
  return invalid("'{}' is no drafter; it is none, ngram, suffix, suffix:own, eagle3:FOLDER or draft:MODEL",
                 name);
}

std::unique_ptr<Drafter> make_drafter(DrafterKind kind, DraftHead* head) {
  switch (kind) {
    case DrafterKind::kNone:
    case DrafterKind::kModel:
      break;
    case DrafterKind::kNgram:
      return std::make_unique<NgramDrafter>();
    case DrafterKind::kSuffix:
    case DrafterKind::kSuffixOwn:
      return std::make_unique<SuffixDrafter>(kind == DrafterKind::kSuffix);
    case DrafterKind::kEagle3:
      MOESAIC_CHECK(head != nullptr && head->loaded());
      return std::make_unique<Eagle3Drafter>(*head);
  }
  return nullptr;
}

Status validate_draft_tokens(int tokens) {
  if (tokens < 0 || tokens > kMostDraft)
    return invalid("drafts of {} tokens: expected 1 to {}, or 0 for as many as pay", tokens, kMostDraft);
  return {};
}

}  // namespace moesaic

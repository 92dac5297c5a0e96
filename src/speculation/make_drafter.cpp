#include "speculation/make_drafter.h"

#include "base/error.h"
#include "speculation/ngram.h"
#include "speculation/suffix.h"

namespace moesaic {

Result<std::unique_ptr<Drafter>> make_drafter(std::string_view name) {
  if (name == "none") return std::unique_ptr<Drafter>();
  if (name == "ngram") return std::unique_ptr<Drafter>(std::make_unique<NgramDrafter>());
  if (name == "suffix" || name == "suffix:own")
    return std::unique_ptr<Drafter>(std::make_unique<SuffixDrafter>(name == "suffix"));
  return invalid("'{}' is no drafter; it is none, ngram, suffix or suffix:own", name);
}

Status validate_draft_tokens(int tokens) {
  if (tokens < 0 || tokens > kMostDraft)
    return invalid("drafts of {} tokens: expected 1 to {}, or 0 for as many as pay", tokens, kMostDraft);
  return {};
}

}  // namespace moesaic

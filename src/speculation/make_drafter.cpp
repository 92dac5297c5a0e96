#include "speculation/make_drafter.h"

#include "base/error.h"
#include "speculation/ngram.h"

namespace moesaic {

Result<std::unique_ptr<Drafter>> make_drafter(std::string_view name) {
  if (name == "none") return std::unique_ptr<Drafter>();
  if (name == "ngram") return std::unique_ptr<Drafter>(std::make_unique<NgramDrafter>());
  return invalid("speculative '{}': it is none or ngram", name);
}

Status validate_draft_tokens(int tokens) {
  if (tokens < 0 || tokens > kMostDraft)
    return invalid("drafts of {} tokens: expected 1 to {}, or 0 for as many as pay", tokens, kMostDraft);
  return {};
}

}  // namespace moesaic

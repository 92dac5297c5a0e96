// Drafters by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "speculation/drafter.h"

namespace moesaic {

// "none" (null), "ngram", "suffix" (with earlier answers) or "suffix:own" (without). An error of one line for
// anything else, and for a number of draft tokens that is neither 0 (as many as pay) nor up to kMostDraft.
Result<std::unique_ptr<Drafter>> make_drafter(std::string_view name);
Status validate_draft_tokens(int tokens);

}  // namespace moesaic

// Errors of the layers below name options as the command line does (--ctx 9); the API's name its fields
// (options.context).
#pragma once

#include <string>
#include <string_view>

#include "moesaic/status.h"

namespace moesaic {

// From here on messages name flags: for the program. Once, at start-up.
void speak_of_flags();

// "--ctx" becomes "options.context", and the other way round after speak_of_flags().
std::string option_words(std::string_view message);
Status option_words(const Status& status);
template <typename T>
Result<T> option_words(Result<T> result) {
  return result.ok() ? std::move(result) : Result<T>(option_words(result.status()));
}

}  // namespace moesaic

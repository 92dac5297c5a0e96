#include "text/detokenizer.h"

#include "text/utf8.h"

namespace moesaic {
namespace {

// The beginning of the incomplete character at the end of text; the text's size where there is none.
size_t incomplete_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    if ((text[at] & 0xC0) == 0x80) continue;
    const Utf8Step step = utf8_step(text.substr(at));
    return step.kind == Utf8Kind::kIncomplete && step.length == back ? at : text.size();
  }
  return text.size();
}

}  // namespace

std::string StreamDecoder::push(int32_t token) {
  waiting_.append(tokenizer_->token_bytes(token));
  const size_t end = incomplete_tail(waiting_);
  std::string text = utf8_lossy(std::string_view(waiting_).substr(0, end));
  waiting_.erase(0, end);
  return text;
}

std::string StreamDecoder::flush() {
  std::string text = utf8_lossy(waiting_);
  waiting_.clear();
  return text;
}

}  // namespace moesaic

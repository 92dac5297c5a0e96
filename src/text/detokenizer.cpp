#include "text/detokenizer.h"

#include "text/utf8.h"

namespace moesaic {

std::string StreamDecoder::push(int32_t token) {
  waiting_.append(tokenizer_->token_bytes(token));
  const size_t end = utf8_whole(waiting_);
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

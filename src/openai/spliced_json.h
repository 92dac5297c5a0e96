// JSON that holds finished text: what is long, or what must not be read and written again, is kept as its
// text.
#pragma once

#include <string>
#include <string_view>

#include "text/limited_json.h"

namespace moesaic::openai {

// Bytes that are not UTF-8 become U+FFFD. Each spliced() value is written as its text.
std::string dump(const text::OrderedJson& json);

// A value that dump() writes as this text, which must be JSON. It is one of nlohmann's binary values; of what
// is parsed only numbers become one, so nothing else that a client or the model wrote is taken for it.
text::OrderedJson spliced(std::string_view json);

// An array that grows as text. The log-probabilities of a token with 20 others take 1.6 KB in it, and 10.2 KB
// as values.
class ArrayText {
 public:
  void push_back(const text::OrderedJson& value);
  bool empty() const { return text_.size() == 2; }
  text::OrderedJson json() const { return spliced(text_); }

 private:
  std::string text_ = "[]";
};

}  // namespace moesaic::openai

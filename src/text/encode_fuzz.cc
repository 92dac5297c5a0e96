// Any bytes as text: encoding and decoding give the text back, with U+FFFD for what is not UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

// Bytes, and pairs of letters and of UTF-8 lead and continuation bytes.
moesaic::Tokenizer make_tokenizer() {
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  for (int code = 0x21; tokens.size() < 256; ++code) {
    if ((code > 0x7E && code < 0xA1) || code == 0xAD) continue;
    tokens.push_back(code < 0x80 ? std::string(1, static_cast<char>(code))
                                 : std::string{static_cast<char>(0xC0 | code >> 6),
                                               static_cast<char>(0x80 | (code & 63))});
  }
  for (const char* pair : {"a b", "ab ab", "t h", "th e", "Ġ the", "æ Ĺ", "Ġ Ġ"}) {
    merges.push_back(pair);
    std::string joined = pair;
    tokens.push_back(joined.erase(joined.find(' '), 1));
  }
  types.assign(tokens.size(), 1);
  for (const char* special : {"<|start|>", "<|end|>"}) tokens.push_back(special), types.push_back(3);
  auto made = moesaic::Tokenizer::from_gguf(tokens, merges, types, -1, -1);
  MOESAIC_CHECK(made.ok());
  return std::move(made).value();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const moesaic::Tokenizer tokenizer = make_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string clean = moesaic::utf8_lossy(text);
  for (const bool special : {false, true}) {
    const auto tokens = tokenizer.try_encode(text, special);
    MOESAIC_CHECK(tokens.ok() && tokenizer.decode(tokens.value()) == clean);
    moesaic::StreamDecoder decoder(tokenizer);
    std::string streamed;
    for (const int32_t token : tokens.value()) streamed += decoder.push(token);
    MOESAIC_CHECK(streamed + decoder.flush() == clean);
  }
  return 0;
}

// Any bytes as text: encoding and decoding give the text back, with U+FFFD for what is not UTF-8.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "text/detokenizer.h"
#include "text/fuzz_tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Pairs of letters and of UTF-8 lead and continuation bytes.
  static const moesaic::Tokenizer tokenizer =
      moesaic::make_fuzz_tokenizer({"a b", "ab ab", "t h", "th e", "Ġ the", "æ Ĺ", "Ġ Ġ"},
                                   {"<|start|>", "<|end|>"}, {"the", "end", "|>\n", "\u00e9", "  "});
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

// For fuzz targets: a tokenizer of single bytes, the merges, the special tokens and those added as text, in
// this order of ids.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"
#include "text/tokenizer.h"

namespace moesaic {

// merges: "left right" in GPT-2's byte spelling.
inline Tokenizer make_fuzz_tokenizer(const std::vector<std::string>& merges,
                                     const std::vector<std::string>& specials,
                                     const std::vector<std::string>& added = {}) {
  std::vector<std::string> tokens;
  for (int code = 0x21; tokens.size() < 256; ++code) {
    if ((code > 0x7E && code < 0xA1) || code == 0xAD) continue;
    tokens.push_back(code < 0x80 ? std::string(1, static_cast<char>(code))
                                 : std::string{static_cast<char>(0xC0 | code >> 6),
                                               static_cast<char>(0x80 | (code & 63))});
  }
  for (const std::string& merge : merges) tokens.push_back(std::string(merge).erase(merge.find(' '), 1));
  std::vector<int32_t> types(tokens.size(), 1);
  for (const std::string& special : specials) tokens.push_back(special), types.push_back(3);
  for (const std::string& name : added) tokens.push_back(name), types.push_back(4);
  auto made = Tokenizer::from_gguf(tokens, merges, types, -1, -1);
  MOESAIC_CHECK(made.ok());
  return std::move(made).value();
}

}  // namespace moesaic

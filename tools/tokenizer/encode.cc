// encode FILE.tiktoken|tokenizer.json [special] < texts > tokens: a filter for comparing the tokenizer with
// others. Texts are a little-endian uint32 length and as many bytes; each answer is a uint32 count and as
// many int32 ids. At the end the seconds spent encoding and the bytes encoded are printed to stderr.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace {

moesaic::Result<moesaic::Tokenizer> open_tokenizer(const std::string& path) {
  return path.ends_with(".json") ? moesaic::Tokenizer::from_hf_json(path)
                                 : moesaic::Tokenizer::from_tiktoken(path);
}

bool read_text(std::string& text) {
  uint32_t length = 0;
  if (std::fread(&length, sizeof length, 1, stdin) != 1) return false;
  text.resize(length);
  return std::fread(text.data(), 1, length, stdin) == length;
}

void write_tokens(const std::vector<int32_t>& tokens) {
  const auto count = static_cast<uint32_t>(tokens.size());
  std::fwrite(&count, sizeof count, 1, stdout);
  std::fwrite(tokens.data(), sizeof(int32_t), tokens.size(), stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s FILE.tiktoken|tokenizer.json [special] < texts > tokens\n", argv[0]);
    return 2;
  }
  const auto tokenizer = open_tokenizer(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", tokenizer.status().message().c_str());
    return 1;
  }
  const bool special = argc > 2;
  std::chrono::duration<double> spent{};
  size_t bytes = 0;
  for (std::string text; read_text(text); bytes += text.size()) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<int32_t> tokens = tokenizer.value().encode(text, special);
    spent += std::chrono::steady_clock::now() - begin;
    write_tokens(tokens);
  }
  std::fprintf(stderr, "%.6f %zu\n", spent.count(), bytes);
}

#include "private_words.h"

#include <unistd.h>

#include <array>
#include <cctype>
#include <climits>
#include <cstdlib>

namespace moesaic::app {
namespace {

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

bool in_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; }

bool is_word(const std::string& text, size_t at, size_t length) {
  return (at == 0 || !in_word(text[at - 1])) && (at + length == text.size() || !in_word(text[at + length]));
}

}  // namespace

PrivateWords::PrivateWords() : PrivateWords(variable("HOME"), variable("USER"), host_name()) {}

PrivateWords::PrivateWords(const std::string& home, const std::string& user, const std::string& host) {
  constexpr size_t kShortest = 3;  // shorter ones are words of the text, too
  if (home.size() >= kShortest) words_.emplace_back(home, "~");
  if (user.size() >= kShortest) words_.emplace_back(user, "USER");
  if (host.size() >= kShortest) words_.emplace_back(host, "HOST");
}

std::string PrivateWords::remove_from(std::string text) const {
  for (const auto& [word, stands_for] : words_) {
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      if (is_word(text, at, word.size())) text.replace(at, word.size(), stands_for);
    }
  }
  return text;
}

}  // namespace moesaic::app

#include "grammar/token_trie.h"

#include <algorithm>
#include <string>

#include "grammar/automaton.h"

namespace moesaic::grammar {

std::vector<std::string> TokenTrie::strings(int32_t token) const {
  const std::string bytes(tokenizer_->token_bytes(token));
  if (tokenizer_->is_special(token)) {
    std::vector<std::string> all = {static_cast<char>(kSpecial) + bytes};
    if (std::binary_search(ends_.begin(), ends_.end(), token)) all.emplace_back(1, static_cast<char>(kEnd));
    return all;
  }
  // No text has these two bytes; they would be mistaken for the others.
  const bool marks = bytes.find_first_of("\xFE\xFF") != std::string::npos;
  return bytes.empty() || marks ? std::vector<std::string>() : std::vector<std::string>{bytes};
}

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : tokenizer_(&tokenizer), ends_(tokenizer.stop_tokens()) {
  std::sort(ends_.begin(), ends_.end());
  std::vector<std::pair<std::string, int32_t>> all;
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token)
    for (std::string& string : strings(token)) all.emplace_back(std::move(string), token);
  std::sort(all.begin(), all.end());
  std::string_view before;
  for (const auto& [string, token] : all) {
    if (string != before) add(string, before);
    tokens_.push_back(token);
    ++nodes_.back().last_token;
    before = string;
  }
  // Each node ends where the next one stands that is no deeper.
  std::vector<int32_t> open;
  const auto close = [&](int32_t depth, size_t at) {
    while (!open.empty() && nodes_[open.back()].depth >= depth) {
      Node& closed = nodes_[open.back()];
      closed.end = static_cast<int32_t>(at);
      open.pop_back();
      if (!open.empty()) nodes_[open.back()].height = std::max(nodes_[open.back()].height, closed.height + 1);
    }
  };
  for (size_t i = 0; i < nodes_.size(); ++i) {
    close(nodes_[i].depth, i);
    open.push_back(static_cast<int32_t>(i));
  }
  close(0, nodes_.size());
  while (special_nodes_ < std::ssize(nodes_) && nodes_[special_nodes_].byte < kEnd)
    special_nodes_ = nodes_[special_nodes_].end;
}

// The nodes of a string that comes right behind another one in order.
void TokenTrie::add(std::string_view string, std::string_view before) {
  const auto common = std::mismatch(string.begin(), string.end(), before.begin(), before.end()).first;
  for (size_t i = common - string.begin(); i < string.size(); ++i) {
    const auto token = static_cast<int32_t>(tokens_.size()), depth = static_cast<int32_t>(i + 1);
    nodes_.push_back({static_cast<uint8_t>(string[i]), depth, 0, 0, token, token});
    depth_ = std::max(depth_, depth);
  }
}

}  // namespace moesaic::grammar

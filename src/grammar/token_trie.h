// A vocabulary as a tree of bytes, in one array.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace moesaic::grammar {

class TokenTrie {
 public:
  // Nodes stand in the order of their strings: behind a node come those that its string begins.
  struct Node {
    uint8_t byte;
    int32_t depth;                    // bytes; the children of the root have 1
    int32_t height;                   // bytes from here to the deepest node below
    int32_t end;                      // the first node behind it that its string does not begin
    int32_t first_token, last_token;  // range in tokens(): those that are exactly this string; last excluded
  };

  // Special tokens and ends as automaton.h has them. The tokenizer must outlive the tree.
  explicit TokenTrie(const Tokenizer& tokenizer);

  const std::vector<Node>& nodes() const { return nodes_; }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  int vocab_size() const { return tokenizer_->vocab_size(); }
  int depth() const { return depth_; }  // the deepest node's
  // The first node of special tokens and ends, behind those of all text.
  int special_nodes() const { return special_nodes_; }
  // The strings that this token is in the tree, first byte first; none for what can never come.
  std::vector<std::string> strings(int32_t token) const;

 private:
  void add(std::string_view string, std::string_view before);

  const Tokenizer* tokenizer_;
  std::vector<int32_t> ends_;  // sorted
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;  // by string
  int depth_ = 0, special_nodes_ = 0;
};

}  // namespace moesaic::grammar

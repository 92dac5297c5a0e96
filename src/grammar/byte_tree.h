// Texts with common beginnings as states, so that one place stands for many of them.
#pragma once

#include <string_view>
#include <vector>

#include "grammar/automaton.h"

namespace moesaic::grammar {

class ByteTree {
 public:
  explicit ByteTree(Automaton& automaton) : a_(automaton) {}

  // The tree with one more text and what comes behind it; `tree` (-1: none) stays as it is. No text begins
  // another one.
  StateId with(StateId tree, std::string_view text, StateId next) {
    std::vector<StateId> path;
    for (const char c : text) {
      path.push_back(tree);
      tree = tree < 0 ? -1 : child(tree, static_cast<uint8_t>(c));
    }
    for (size_t i = text.size(); i-- > 0 && !a_.full();) {
      const auto byte = static_cast<uint8_t>(text[i]);
      std::vector<Edge> edges;
      if (path[i] >= 0) edges = a_[path[i]].edges;
      std::erase_if(edges, [&](const Edge& e) { return e.low == byte; });
      edges.push_back({byte, byte, next});
      next = a_.bytes(std::move(edges));
    }
    return next;
  }

 private:
  StateId child(StateId tree, uint8_t byte) const {
    for (const Edge& edge : a_[tree].edges)
      if (edge.low == byte) return edge.next;
    return -1;
  }

  Automaton& a_;
};

}  // namespace moesaic::grammar

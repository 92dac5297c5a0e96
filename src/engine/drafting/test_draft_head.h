// For tests: a draft head without weights, which takes whatever it is loaded with.
#pragma once

#include <vector>

#include "backend/draft_head.h"

namespace moesaic {

class TestDraftHead : public DraftHead {
 public:
  Status load(const Eagle3Config&, const Eagle3Weights&) override { return {}; }
  bool loaded() const override { return true; }
  Status set_taps(const std::vector<int>&) override { return {}; }
  void trace(DraftTrace) override {}
  std::vector<MemoryPart> memory(const Eagle3Config&, const Eagle3Weights&, const KvLayout&) const override {
    return {};
  }
  double kv_token_bytes(const Eagle3Config&) const override { return 0; }
};

}  // namespace moesaic

// For tests: a backend whose operations do nothing.
#pragma once

#include "backend/backend.h"

namespace moesaic {

class IdleBackend : public Backend {
 public:
  BackendCaps caps() const override { return {.name = "idle"}; }
  double kv_token_bytes(const ModelConfig&) const override { return 1024; }
  Status load(const ModelConfig&, const ModelWeights&, const LoadProgress&) override { return {}; }
  Status alloc_kv(const KvLayout&) override { return {}; }
  Status begin_step(const Batch&) override { return {}; }
  void embed() override {}
  void qkv(int) override {}
  void attend(int) override {}
  void project(int) override {}
  void moe(int) override {}
  void unembed(std::span<float>) override {}
  Status end_step() override { return {}; }
};

}  // namespace moesaic

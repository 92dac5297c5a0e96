// For tests: weights with which token 1, and no other, has values that are infinite in layer 0.
#pragma once

#include <cmath>
#include <vector>

#include "core/model_config.h"
#include "core/weights.h"
#include "mx/formats.h"

namespace moesaic {

class OverflowingValues {
 public:
  static constexpr int32_t kToken = 1;

  explicit OverflowingValues(const ModelConfig& config)
      : config_(config),
        embed_(static_cast<size_t>(config.vocab) * static_cast<size_t>(config.hidden)),
        v_(static_cast<size_t>(config.kv_size()) * static_cast<size_t>(config.hidden)) {
    const auto hidden = static_cast<size_t>(config.hidden);
    for (size_t i = 0; i < embed_.size(); ++i) embed_[i] = std::sin(static_cast<float>(i));
    constexpr size_t kColumn = 5;  // only the token has something there
    for (size_t i = kColumn; i < embed_.size(); i += hidden) embed_[i] = i / hidden == kToken ? 4.0F : 0.0F;
    for (size_t i = kColumn; i < v_.size(); i += hidden) v_[i] = mx::encode_bf16(3e38F);
  }
  // The weights then read from this.
  void put(ModelWeights& w) {
    w.embed =
        dense_view(Format::kF32, config_.vocab, config_.hidden, reinterpret_cast<std::byte*>(embed_.data()));
    w.layers[0].v =
        dense_view(Format::kBF16, config_.kv_size(), config_.hidden, reinterpret_cast<std::byte*>(v_.data()));
  }

 private:
  ModelConfig config_;
  std::vector<float> embed_;
  std::vector<uint16_t> v_;
};

}  // namespace moesaic

// A fingerprint has to tell these models apart: each change changes K and V.
#include "api/fingerprint.h"

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <memory>
#include <set>

namespace moesaic {
namespace {

class Fingerprint : public testing::Test {
 protected:
  Fingerprint() : model_(open_checkpoint(MOESAIC_SOURCE_DIR "/models/tiny").value()) {}

  // A copy in F32 of a matrix, with one element changed.
  MatrixView changed(const MatrixView& m, int64_t row, int64_t col, float by) {
    std::vector<float>& values = kept_.emplace_back(static_cast<size_t>(m.rows * m.cols));
    for (int64_t r = 0; r < m.rows; ++r)
      read_row(m, r, std::span(values).subspan(static_cast<size_t>(r * m.cols), static_cast<size_t>(m.cols)));
    values[static_cast<size_t>(row * m.cols + col)] += by;
    return f32(m.rows, m.cols, values);
  }
  void last(MatrixView& m) { m = changed(m, m.rows - 1, m.cols - 1, 0.25F); }
  static MatrixView f32(int64_t rows, int64_t cols, const std::vector<float>& values) {
    return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(values.data()));
  }
  // An adapter of one value of k's or v's rows, which are the last.
  LowRank adapter(float down, float up) {
    const ModelConfig& c = model_.config;
    const int64_t rows = c.q_size() + 2 * c.kv_size();
    std::vector<float>& a = kept_.emplace_back(static_cast<size_t>(32 * c.hidden));
    std::vector<float>& b = kept_.emplace_back(static_cast<size_t>(rows * 32));
    a[static_cast<size_t>(c.hidden + 3)] = down, b[b.size() - 31] = up;
    return {f32(32, c.hidden, a), f32(rows, 32, b)};
  }

  Checkpoint model_;
  std::deque<std::vector<float>> kept_;
};

TEST_F(Fingerprint, OfTheSameValuesIsTheSame) {
  const uint64_t print = fingerprint(model_, "keep");
  EXPECT_EQ(fingerprint(open_checkpoint(MOESAIC_SOURCE_DIR "/models/tiny").value(), "keep"), print);
  Checkpoint copy = model_;
  copy.weights.layers[1].q = changed(copy.weights.layers[1].q, 0, 0, 0);
  EXPECT_EQ(fingerprint(copy, "keep"), print);
  EXPECT_NE(fingerprint(model_, "bf16"), print);
}

TEST_F(Fingerprint, TellsEveryVectorAndConstant) {
  const std::vector<std::function<void(Checkpoint&)>> changes = {
      [](auto& c) { c.config.rope.beta_fast += 1; },
      [](auto& c) { c.config.rope.beta_slow += 1; },
      [](auto& c) { c.config.rope.original_context *= 2; },
      [](auto& c) { c.config.rope.truncate = !c.config.rope.truncate; },
      [](auto& c) { c.config.rope.attention_factor += 1; },
      [](auto& c) { c.config.rms_eps *= 2; },
      [](auto& c) { c.config.swiglu_limit += 1; },
      [](auto& c) { c.config.swiglu_alpha += 1; },
      [](auto& c) { c.config.sliding[0] = !c.config.sliding[0]; },
      [&](auto& c) { last(c.weights.layers[0].k_bias); },
      [&](auto& c) { last(c.weights.layers[0].v_bias); },
      [&](auto& c) { last(c.weights.layers[0].q_bias); },
      [&](auto& c) { last(c.weights.layers[0].o_bias); },
      [&](auto& c) { last(c.weights.layers[0].attn_norm); },
      [&](auto& c) { last(c.weights.layers[0].sinks); },
      [&](auto& c) { last(c.weights.layers[0].router); },
      [&](auto& c) { last(c.weights.layers[0].router_bias); },
      [&](auto& c) { last(c.weights.layers[0].down_bias); },
      [&](auto& c) { last(c.weights.layers[0].up_bias); },
      [&](auto& c) { last(c.weights.layers[0].k); },
  };
  std::set<uint64_t> prints = {fingerprint(model_, "")};
  for (const auto& change : changes) {
    Checkpoint other = model_;
    change(other);
    EXPECT_TRUE(prints.insert(fingerprint(other, "")).second) << prints.size();
  }
}

TEST_F(Fingerprint, TellsAdaptersAndTheirScales) {
  std::set<uint64_t> prints = {fingerprint(model_, "")};
  for (const auto& [down, up] : {std::pair(1.0F, 1.0F), std::pair(1.0F, 0.5F), std::pair(0.5F, 1.0F)}) {
    Checkpoint other = model_;
    other.weights.adapters.resize(other.weights.layers.size());
    other.weights.adapters[1].qkv = adapter(down, up);
    EXPECT_TRUE(prints.insert(fingerprint(other, "")).second) << down << " " << up;
  }
}

// The embedding is large, and the adapter that brings it has trained one token's row.
TEST_F(Fingerprint, TellsEachRowOfAnAdaptersEmbedding) {
  const int64_t vocab = 20'000, hidden = 64;
  const std::vector<float>& values = kept_.emplace_back(static_cast<size_t>(vocab * hidden), 1.0F);
  Checkpoint other = model_;
  other.weights.adapter_storage = std::make_shared<int>(0);
  other.weights.embed = f32(vocab, hidden, values);
  std::set<uint64_t> prints = {fingerprint(other, "")};
  for (const int64_t row : {int64_t{0}, int64_t{7}, vocab - 2}) {
    Checkpoint trained = other;
    trained.weights.embed = changed(other.weights.embed, row, 5, 0.25F);
    EXPECT_TRUE(prints.insert(fingerprint(trained, "")).second) << row;
  }
}

// Experts that are converted count as they are stored, those of the last layer too.
TEST_F(Fingerprint, TellsStoredExperts) {
  std::string bytes(6400, 'a');
  Checkpoint other = model_;
  other.weights.convert_experts = [](int) -> Result<ConvertedExperts> {
    return Status(StatusCode::kInternal, "not to be called");
  };
  const int last_layer = other.config.layers - 1;
  other.weights.stored_experts = [&](int layer) {
    std::vector<std::span<const std::byte>> stored;
    if (layer == last_layer) stored.push_back(std::as_bytes(std::span(bytes)));
    return stored;
  };
  const uint64_t print = fingerprint(other, "");
  bytes.back() = 'b';
  EXPECT_NE(fingerprint(other, ""), print);
}

}  // namespace
}  // namespace moesaic

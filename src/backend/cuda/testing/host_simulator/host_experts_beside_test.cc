// Experts in host memory together with what else a model may have: an FP8 cache, drafts, a draft head, shared
// pages, LoRA adapters; and with a device that has no memory left.
#include <deque>

#include "backend/cuda/testing/host_simulator/small_model.h"
#include "backend/draft_head.h"
#include "backend/reference/reference_backend.h"
#include "checkpoint/dummy.h"

namespace moesaic::cuda {
namespace {

double cache_bytes(Model& m) {
  double bytes = 0;
  const KvLayout layout{.full_pages = kPages, .window_pages = kPages};
  for (const MemoryPart& p : m.backend().memory(m.model_config(), m.weights(), layout))
    bytes += p.kind == MemoryKind::kCache ? p.bytes : 0;
  return bytes;
}

TEST(HostExpertsBeside, AnFp8Cache) {
  const std::vector<std::vector<int>> steps = {{8}, {1}, {8, 7, 5}, {1, 1, 1}, {1}, {3, 8, 1}};
  Model wide(0), device({.kv = KvFormat::kFp8}), wide_host(2);
  Model host({.host_layers = 2, .kv = KvFormat::kFp8}),
      streamed({.host_layers = 2, .stream_rows = 9, .kv = KvFormat::kFp8});
  EXPECT_EQ(cache_bytes(host), cache_bytes(wide_host) / 2);
  for (size_t i = 0; i < steps.size(); ++i) {
    const std::vector<float> want = device.step(steps[i]), got = host.step(steps[i]);
    ASSERT_EQ(host.status().message(), "");
    EXPECT_LT(relative_error(got, want), kTolerance) << i;
    EXPECT_LT(relative_error(streamed.step(steps[i]), want), kTolerance) << i;
    EXPECT_NE(want, wide.step(steps[i])) << i;
  }
}

// Steps verify drafts of other lengths, of which some hold.
TEST(HostExpertsBeside, DraftsThatDoNotHold) {
  for (const int hot : {0, 2}) {
    Model device(0), host(2, ExpertPlacement::kNever, hot);
    for (const auto& [drafts, held] :
         std::vector<std::pair<int, int>>{{7, 0}, {4, 4}, {3, 1}, {0, 0}, {5, 2}, {1, 1}}) {
      const std::vector<float> want = device.step({1 + drafts, 1}), got = host.step({1 + drafts, 1});
      ASSERT_EQ(host.status().message(), "");
      EXPECT_LT(relative_error(got, want), kTolerance) << drafts;
      for (Model* m : {&device, &host}) m->take_back(0, drafts - held);
    }
  }
}

class Head {
 public:
  Head(Model& model, int host_layers) : head_(*model.backend().draft_head()), model_(model) {
    auto made = make_dummy_head("intermediate=160,draft_vocab=40", model.model_config());
    EXPECT_EQ(made.status().message(), "");
    const double before = bytes();
    model.load(host_layers, [&] { EXPECT_EQ(head_.load(made->config, made->weights).message(), ""); });
    EXPECT_GT(bytes(), before);
  }
  // The logits of drafts behind every sequence of the last step, one after the other.
  std::vector<float> draft(int drafts) {
    std::vector<DraftSequence> sequences;
    for (size_t s = 0; s < model_.batch().sequences.size(); ++s) {
      const int rows = model_.batch().sequences[s].rows;
      sequences.push_back({.sequence = static_cast<int>(s), .drafts = drafts});
      for (int i = 0; i < rows; ++i) sequences.back().next_tokens.push_back(5 * i + static_cast<int>(s));
    }
    std::vector<float> logits;
    head_.trace(
        [&](size_t, std::span<const float> row) { logits.insert(logits.end(), row.begin(), row.end()); });
    std::vector<int32_t> tokens(sequences.size() * static_cast<size_t>(drafts));
    EXPECT_EQ(head_.draft(sequences, tokens).message(), "");
    return logits;
  }

 private:
  double bytes() const {
    double sum = 0;
    for (const MemoryPart& p : model_.backend().memory(model_.model_config(), model_.weights(), {}))
      sum += p.bytes;
    return sum;
  }
  DraftHead& head_;
  Model& model_;
};

// It takes the hidden states behind layers of either kind.
TEST(HostExpertsBeside, ADraftHead) {
  Model device(0);
  Head want_head(device, 0);
  const std::vector<std::vector<int>> steps = {{8}, {3}, {4, 5}, {1, 1}, {8, 8}};
  std::vector<std::vector<float>> want;
  for (const auto& rows : steps) device.step(rows), want.push_back(want_head.draft(1));
  for (const auto& [layers, stream_rows] : {std::pair{1, -1}, {kLayers, -1}, {2, 9}}) {
    Model host(layers, stream_rows);
    Head head(host, layers);
    for (size_t i = 0; i < steps.size(); ++i) {
      host.step(steps[i]);
      ASSERT_EQ(host.status().message(), "");
      const std::vector<float> got = head.draft(1);
      ASSERT_EQ(got.size(), want[i].size());
      EXPECT_LT(relative_error(got, want[i]), kTolerance) << layers << " layers, step " << i;
    }
  }
}

// A sequence that goes on from another one's pages has the bits of one that computed them itself.
TEST(HostExpertsBeside, SharedPages) {
  Model host({.host_layers = 2, .batch_invariant = true}), again({.host_layers = 2, .batch_invariant = true});
  host.step_of({0, 1}, 0, kMaxRows), again.step_of({4, 5}, 0, kMaxRows);
  again.step_of({4, 5}, 32, 3);
  const std::vector<float> alone = again.step_of({4, 5}, 32, 5);
  host.step_of({0, 2}, 32, 3);
  EXPECT_EQ(host.step_of({0, 7}, 32, 5), alone);
  ASSERT_EQ(host.status().message(), "");
}

// ---- LoRA ----

class Adapters {
 public:
  Adapters(const ModelConfig& c, bool of_experts) {
    const int64_t qkv = c.q_size() + 2 * c.kv_size();
    for (int layer = 0; layer < c.layers; ++layer) {
      LayerAdapter& a = all.emplace_back();
      a.qkv = {matrix(kRank, c.hidden, 0.1f), matrix(qkv, kRank, 0.05f)};
      a.o = {matrix(kRank, c.q_size(), 0.1f), matrix(c.hidden, kRank, 0.05f)};
      if (!of_experts) continue;
      a.gate_up = {stack(c.experts, kRank, c.hidden), stack(c.experts, 2 * c.intermediate, kRank)};
      a.down = {stack(c.experts, kRank, c.intermediate), stack(c.experts, c.hidden, kRank)};
    }
  }
  std::vector<LayerAdapter> all;

 private:
  static constexpr int64_t kRank = 32;
  MatrixView matrix(int64_t rows, int64_t cols, float deviation) {
    std::normal_distribution<float> normal(0, deviation);
    std::vector<float>& v = storage_.emplace_back(static_cast<size_t>(rows * cols));
    for (float& x : v) x = normal(rng_);
    return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(v.data()));
  }
  ExpertsView stack(int64_t experts, int64_t rows, int64_t cols) {
    MatrixView first = matrix(experts * rows, cols, 0.1f);
    first.rows = rows;
    return {.first = first, .count = experts, .data_stride = rows * first.row_stride};
  }
  std::mt19937 rng_{9};
  std::deque<std::vector<float>> storage_;
};

// The GPU's matrices have theirs merged, and the host's experts compute theirs apart.
TEST(HostExpertsBeside, AdaptersOfExperts) {
  Model host(kLayers), plain(kLayers);
  Adapters adapters(host.model_config(), true);
  const std::vector<MemoryPart> before =
      host.backend().host_placement()->host_memory(host.model_config(), host.weights());
  host.weights().adapters = adapters.all;
  const std::vector<MemoryPart> with =
      host.backend().host_placement()->host_memory(host.model_config(), host.weights());
  EXPECT_EQ(with.size(), before.size() + 1);
  host.load(kLayers);
  const auto reference = create_reference_backend({.max_rows = kMaxRows}).value();
  ASSERT_EQ(reference->load(host.model_config(), host.weights(), {}).message(), "");
  ASSERT_EQ(reference->alloc_kv({.full_pages = kPages, .window_pages = kPages, .logit_rows = 8}).message(),
            "");
  for (const std::vector<int>& rows : std::vector<std::vector<int>>{{8}, {1}, {8, 7, 5}, {1, 1}, {2}}) {
    const std::vector<float> got = host.step(rows);
    ASSERT_EQ(host.status().message(), "");
    std::vector<float> want(got.size());
    ASSERT_EQ(forward(*reference, host.model_config(), host.batch(), want).message(), "");
    EXPECT_LT(relative_error(got, want), kTolerance);
    EXPECT_GT(relative_error(plain.step(rows), want), 5 * kTolerance);
  }
}

// Experts without adapters come to the GPU as ever.
TEST(HostExpertsBeside, AdaptersOfAttentionAlone) {
  Model device(0), host(2, 9, 2);
  Adapters adapters(host.model_config(), false);
  for (Model* m : {&device, &host}) m->weights().adapters = adapters.all;
  device.load(0), host.load(2);
  for (const std::vector<int>& rows : std::vector<std::vector<int>>{{8, 8}, {8, 7, 5}}) {
    EXPECT_EQ(host.step(rows), device.step(rows));
    ASSERT_EQ(host.status().message(), "");
  }
  EXPECT_LT(relative_error(host.step({1, 1}), device.step({1, 1})), kTolerance);
}

TEST(HostExpertsBeside, AdaptersOfExpertsDoNotComeToTheGpu) {
  const ModelConfig c = small_config(kLayers);
  ModelWeights weights = make_random_model(c, {});
  const Adapters adapters(c, true);
  weights.adapters = adapters.all;
  for (const auto& [experts, leave_out] :
       {std::pair{ExpertPlacement{.host_layers = 1, .stream_rows = 9}, "leave out ,stream:ROWS"},
        {ExpertPlacement{.host_layers = 1, .hot = 2}, "leave out ,hot"},
        {ExpertPlacement{.host_layers = kLayers}, ""}}) {
    const auto made =
        create_cuda_backend({.threads = 1, .max_rows = kMaxRows, .tune = false, .experts = experts}).value();
    const std::string said = made->load(c, weights, {}).message();
    EXPECT_EQ(said.empty(), std::string_view(leave_out).empty()) << said;
    EXPECT_NE(said.find(leave_out), std::string::npos) << said;
    EXPECT_EQ(made->caps().measured, "");
  }
}

// ---- no memory ----

class Refusals : public testing::Test {
 protected:
  ~Refusals() override {
    on_host::captures().allocations_left = -1, on_host::captures().refuses_locks = false;
  }
};

// Whichever allocation fails, there is one line, and the next load works.
TEST_F(Refusals, MemoryMayEndAnywhere) {
  Model host({.host_layers = 2, .stream_rows = 9, .hot = 2});
  const std::vector<float> want = host.step({4, 2});
  int failures = 0;
  for (int left = 0;; left += left < 40 ? 1 : 3) {
    on_host::captures().allocations_left = left, on_host::captures().refused = false;
    Status status = host.backend().load(host.model_config(), host.weights(), {});
    if (status.ok())
      status = host.backend().alloc_kv({.full_pages = kPages, .window_pages = kPages, .logit_rows = 8});
    on_host::captures().allocations_left = -1;
    if (!on_host::captures().refused) break;
    ++failures;
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << left << ": " << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
  EXPECT_GT(failures, 50);
  host.load(2);
  EXPECT_EQ(host.step({4, 2}), want);
}

TEST_F(Refusals, WithoutPageLocksTheBitsAreTheSame) {
  on_host::captures().refuses_locks = true;
  Model device(0), host(2, 9, 2), measured(2, ExpertPlacement::kMeasured);
  EXPECT_EQ(host.step({8, 8}), device.step({8, 8}));
  EXPECT_NE(measured.backend().caps().measured.find("the system refuses to lock"), std::string::npos)
      << measured.backend().caps().measured;
}

}  // namespace
}  // namespace moesaic::cuda

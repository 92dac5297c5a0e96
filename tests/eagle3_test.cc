// EAGLE3 draft heads: every backend against a head written in PyTorch (tests/golden/eagle3, made by
// tools/golden/make_eagle3_goldens.py), what draft() promises, and models/tiny-eagle3.
#include "checkpoint/eagle3.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "model/drafted_answer.h"
#include "model/forward.h"
#include "model/random_model.h"
#include "model_golden.h"
#include "mx/formats.h"

namespace moesaic {
namespace {

bool has_cuda() { return create_backend("cuda", {.max_rows = 1}).ok(); }
constexpr double kLengthOfTheModelCard = 2.98;  // models/tiny-eagle3/MODEL_CARD.md, cpu, K = 3

std::string eagle3_folder() { return std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/eagle3/"; }

struct HeadGolden {
  ModelConfig config;
  ModelWeights weights;
  Eagle3Head head;
  std::vector<int32_t> tokens;               // one more than positions
  std::vector<std::vector<int32_t>> drafts;  // [positions][drafts]
  std::vector<float> logits;                 // [positions, drafts, draft vocabulary]
  std::shared_ptr<const void> storage = {};  // owns weights that are no file's

  size_t positions() const { return drafts.size(); }
  int count() const { return static_cast<int>(drafts[0].size()); }
};

HeadGolden load_head(const std::string& name) {
  const auto j = nlohmann::json::parse(std::ifstream(eagle3_folder() + name + ".json"));
  const Golden target = load_golden("tiny");
  HeadGolden g;
  g.config = target.config;
  g.weights = make_random_model(g.config, {.seed = target.seed});
  auto head = open_eagle3(eagle3_folder() + name, g.config);
  EXPECT_TRUE(head.ok()) << head.status().message();
  g.head = std::move(head).value();
  g.tokens = j.at("tokens").get<std::vector<int32_t>>();
  g.drafts = j.at("drafts").get<std::vector<std::vector<int32_t>>>();
  g.logits.resize(g.positions() * g.drafts[0].size() * static_cast<size_t>(g.head.config.draft_vocab));
  std::ifstream file(eagle3_folder() + name + ".logits", std::ios::binary);
  file.read(reinterpret_cast<char*>(g.logits.data()),
            static_cast<std::streamsize>(g.logits.size() * sizeof(float)));
  EXPECT_TRUE(file.good());
  return g;
}

// The same head with heads of twice as many dimensions, as cuda's kernels want them: the new ones are zeros,
// and RoPE turns the old ones as before.
HeadGolden widened(const HeadGolden& g) {
  HeadGolden wide = g;
  Eagle3Config& c = wide.head.config;
  const int64_t dim = c.head_dim, half = dim / 2;
  auto storage = std::make_shared<std::deque<std::vector<float>>>();
  const auto zeros = [&](int64_t rows, int64_t cols) -> std::vector<float>& {
    return storage->emplace_back(static_cast<size_t>(rows * cols));
  };
  const auto place = [&](int64_t i) {
    return i / dim * 2 * dim + (i % dim < half ? i % dim : i % dim + half);
  };
  const auto view = [](const std::vector<float>& values, int64_t rows, int64_t cols) {
    return dense_view(Format::kF32, rows, cols, reinterpret_cast<const std::byte*>(values.data()));
  };
  const auto spread_rows = [&](MatrixView& m, float factor) {
    std::vector<float>& values = zeros(2 * m.rows, m.cols);
    for (int64_t r = 0; r < m.rows; ++r) {
      const auto row =
          std::span(values).subspan(static_cast<size_t>(place(r) * m.cols), static_cast<size_t>(m.cols));
      read_row(m, r, row);
      for (float& v : row) v *= factor;
    }
    m = view(values, 2 * m.rows, m.cols);
  };
  Eagle3Weights& w = wide.head.weights;
  spread_rows(w.q, std::sqrt(2.0f));  // scores are divided by the root of twice as much
  spread_rows(w.k, 1), spread_rows(w.v, 1);
  std::vector<float>&o = zeros(w.o.rows, 2 * w.o.cols), row(static_cast<size_t>(w.o.cols));
  for (int64_t r = 0; r < w.o.rows; ++r) {
    read_row(w.o, r, row);
    for (int64_t i = 0; i < w.o.cols; ++i)
      o[static_cast<size_t>(2 * r * w.o.cols + place(i))] = row[static_cast<size_t>(i)];
  }
  w.o = view(o, w.o.rows, 2 * w.o.cols);
  c.head_dim *= 2;
  c.rope.theta *=
      c.rope.theta;  // theta^(-2 i / dim), and where YaRN begins, are functions of theta^(1 / dim)
  wide.storage = storage;
  return wide;
}

// cuda: with one order of sums for all batches, so that chunks and neighbours change nothing.
BackendOptions options_for(const std::string& device, const std::string& isa = "auto") {
  return {.threads = 2, .max_rows = 1024, .isa = isa, .batch_invariant = device == "cuda"};
}
std::unique_ptr<Backend> target_on(const std::string& device, const ModelConfig& config,
                                   const ModelWeights& weights, const BackendOptions& options) {
  auto backend = create_backend(device, options);
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  EXPECT_EQ(backend.value()->load(config, weights, {}).message(), "");
  return std::move(backend).value();
}

std::unique_ptr<Backend> backend_with(const std::string& device, const HeadGolden& golden,
                                      const BackendOptions& options) {
  const HeadGolden g = device == "cuda" && golden.head.config.head_dim < 32 ? widened(golden) : golden;
  auto backend = target_on(device, g.config, g.weights, options);
  EXPECT_NE(backend->draft_head(), nullptr);
  EXPECT_EQ(backend->draft_head()->load(g.head.config, g.head.weights).message(), "");
  EXPECT_TRUE(backend->alloc_kv({.page_tokens = kPageTokens, .full_pages = 8, .window_pages = 8}).ok());
  return backend;
}
std::unique_ptr<Backend> backend_with(const std::string& device, const HeadGolden& g) {
  return backend_with(device, g, options_for(device));
}

// One sequence's rows [from, to) of the tokens, in the pages given.
void add_sequence(Batch& b, std::span<const int32_t> tokens, int from, int to,
                  const std::vector<int32_t>& pages) {
  b.sequences.push_back(
      {.first_row = b.rows(), .rows = to - from, .context = to, .full_pages = pages, .window_pages = pages});
  for (int i = from; i < to; ++i)
    b.tokens.push_back(tokens[static_cast<size_t>(i)]), b.positions.push_back(i);
}

void run(Backend& backend, const HeadGolden& g, const Batch& batch) {
  ASSERT_EQ(forward(backend, g.config, batch, {}).message(), "");
}

// The drafts after the rows [from, to), with their logits.
struct Drafted {
  std::vector<int32_t> tokens;
  std::vector<float> logits;
};
Drafted step(Backend& backend, const HeadGolden& g, int from, int to, int drafts,
             const std::vector<DeviceSampling>& sampling = {}) {
  Batch batch;
  add_sequence(batch, g.tokens, from, to, {0});
  run(backend, g, batch);
  Drafted out{std::vector<int32_t>(static_cast<size_t>(drafts), -7), {}};
  backend.draft_head()->trace([&](size_t, std::span<const float> row) {
    out.logits.insert(out.logits.end(), row.begin(), row.end());
  });
  const DraftSequence s = {.next_tokens = {g.tokens.begin() + from + 1, g.tokens.begin() + to + 1},
                           .drafts = drafts,
                           .sampling = sampling};
  EXPECT_EQ(backend.draft_head()->draft(std::span(&s, 1), out.tokens).message(), "");
  return out;
}

// The devices of this machine that have heads.
std::vector<const char*> devices_with_heads() {
  std::vector<const char*> devices = {"reference", "cpu"};
  if (has_cuda()) devices.push_back("cuda");
  return devices;
}

class Eagle3 : public ::testing::TestWithParam<const char*> {
 protected:
  HeadGolden golden_ = load_head(GetParam());
};
INSTANTIATE_TEST_SUITE_P(Heads, Eagle3, ::testing::Values("flat", "plain", "speculators", "window"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(Eagle3, ReferenceAgreesWithPyTorch) {
  const auto backend = backend_with("reference", golden_);
  std::vector<float> logits;
  for (int p = 0; p < static_cast<int>(golden_.positions()); ++p) {
    const Drafted drafted = step(*backend, golden_, p, p + 1, golden_.count());
    EXPECT_EQ(drafted.tokens, golden_.drafts[static_cast<size_t>(p)]) << "position " << p;
    logits.insert(logits.end(), drafted.logits.begin(), drafted.logits.end());
  }
  const Distance d = distance(logits, golden_.logits);
  fmt::print("{}: largest relative difference from PyTorch {:.1e}\n", GetParam(), d.max);
  EXPECT_LT(d.max, 1e-5);
}

// The first draft's logits, whose tokens are given, against PyTorch's; later drafts follow other tokens where
// the choice fell differently.
Distance distance_of_first_drafts(Backend& backend, const HeadGolden& golden) {
  const auto vocab = static_cast<size_t>(golden.head.config.draft_vocab), drafts = golden.drafts[0].size();
  std::vector<float> got, want;
  for (int p = 0; p < static_cast<int>(golden.positions()); ++p) {
    const Drafted drafted = step(backend, golden, p, p + 1, golden.count());
    got.insert(got.end(), drafted.logits.begin(), drafted.logits.begin() + static_cast<int64_t>(vocab));
    const auto first = golden.logits.begin() + static_cast<int64_t>(static_cast<size_t>(p) * drafts * vocab);
    want.insert(want.end(), first, first + static_cast<int64_t>(vocab));
  }
  return distance(got, want);
}

TEST_P(Eagle3, WidenedHeadsAreTheSame) {
  const Distance d = distance_of_first_drafts(*backend_with("reference", widened(golden_)), golden_);
  EXPECT_LT(d.max, 1e-5);
}

// The cpu backend rounds activations to BF16 and the cache to integers.
TEST_P(Eagle3, CpuStaysNearPyTorch) {
  for (const char* isa : {"auto", "scalar"}) {
    const auto backend = backend_with("cpu", golden_, options_for("cpu", isa));
    const Distance d = distance_of_first_drafts(*backend, golden_);
    fmt::print("{}: {} rms {:.1e}, largest {:.1e}\n", GetParam(), backend->caps().name, d.rms, d.max);
    EXPECT_LT(d.rms, 0.05);
  }
}

// cuda rounds activations, K and V to 16 bits, or to 8.
TEST_P(Eagle3, CudaStaysNearPyTorch) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  BackendOptions fast = options_for("cuda"), portable = fast, q8 = fast, fp8 = fast;
  fast.batch_invariant = q8.batch_invariant = fp8.batch_invariant = false;
  portable.portable = true;
  q8.dense = Format::kQ8_0;
  fp8.kv = KvFormat::kFp8;
  const std::pair<const char*, BackendOptions> cases[] = {{"batch-invariant", options_for("cuda")},
                                                          {"fast", fast},
                                                          {"portable", portable},
                                                          {"q8_0", q8},
                                                          {"fp8", fp8}};
  for (const auto& [name, options] : cases) {
    const Distance d = distance_of_first_drafts(*backend_with("cuda", golden_, options), golden_);
    fmt::print("{}: cuda, {}: rms {:.1e}, largest {:.1e}\n", GetParam(), name, d.rms, d.max);
    const bool bytes = options.kv == KvFormat::kFp8 || options.dense == Format::kQ8_0;
    EXPECT_LT(d.rms, bytes ? 0.15 : 0.05) << name;
  }
}

// Tokens that the device chooses without the host, against those that the host chooses from the same logits.
TEST_P(Eagle3, CudaDraftsWithoutTheHost) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  for (const double temperature : {0.0, 1.3}) {
    const auto traced = backend_with("cuda", golden_), alone = backend_with("cuda", golden_);
    std::vector<DeviceSampling> sampling;
    for (const double uniform : {0.3, 0.9, 0.6, 0.01})
      sampling.push_back({.temperature = temperature, .uniform = uniform});
    for (const int to : {9, 12}) {
      const int from = to == 9 ? 0 : 9;
      const Drafted want = step(*traced, golden_, from, to, 4, sampling);
      Batch batch;
      add_sequence(batch, golden_.tokens, from, to, {0});
      run(*alone, golden_, batch);
      std::vector<int32_t> tokens(4);
      const DraftSequence s = {
          .next_tokens = {golden_.tokens.begin() + from + 1, golden_.tokens.begin() + to + 1},
          .drafts = 4,
          .sampling = sampling};
      ASSERT_EQ(alone->draft_head()->draft(std::span(&s, 1), tokens).message(), "");
      EXPECT_EQ(tokens, want.tokens) << "temperature " << temperature;
    }
  }
}

// A prompt taken in by chunks gives the same drafts as token by token.
TEST_P(Eagle3, ChunksDoNotChangeTheDrafts) {
  for (const char* device : devices_with_heads()) {
    const auto whole = step(*backend_with(device, golden_), golden_, 0, 16, 3);
    for (const int chunk : {1, 5, 15}) {
      const auto backend = backend_with(device, golden_);
      Drafted last;
      for (int at = 0; at < 16; at += chunk)
        last = step(*backend, golden_, at, std::min(16, at + chunk), at + chunk >= 16 ? 3 : 0);
      EXPECT_EQ(last.tokens, whole.tokens) << device << ", chunks of " << chunk;
      EXPECT_EQ(last.logits, whole.logits) << device << ", chunks of " << chunk;
    }
  }
}

// Sequences of one step in pages of their own, one of which takes in fewer rows than it has, and one of which
// is left out.
TEST_P(Eagle3, SequencesDoNotDisturbEachOther) {
  for (const char* device : devices_with_heads()) {
    const auto alone = [&](int rows, int drafts) {
      return step(*backend_with(device, golden_), golden_, 0, rows, drafts).tokens;
    };
    const auto backend = backend_with(device, golden_);
    Batch batch;
    add_sequence(batch, golden_.tokens, 0, 9, {3});
    add_sequence(batch, golden_.tokens, 0, 4, {1});
    add_sequence(batch, golden_.tokens, 0, 14, {5});
    run(*backend, golden_, batch);
    const auto next = [&](int rows) {
      return std::vector<int32_t>(golden_.tokens.begin() + 1, golden_.tokens.begin() + 1 + rows);
    };
    const std::vector<DraftSequence> sequences = {{.sequence = 0, .next_tokens = next(7), .drafts = 2},
                                                  {.sequence = 2, .next_tokens = next(14), .drafts = 4}};
    backend->draft_head()->trace(nullptr);
    std::vector<int32_t> tokens(6);
    ASSERT_EQ(backend->draft_head()->draft(sequences, tokens).message(), "");
    std::vector<int32_t> want = alone(7, 2);
    const std::vector<int32_t> second = alone(14, 4);
    want.insert(want.end(), second.begin(), second.end());
    EXPECT_EQ(tokens, want) << device;
  }
}

// Drafts that were not accepted leave nothing behind: the true tokens overwrite their entries.
TEST_P(Eagle3, RollBackGivesTheSameDrafts) {
  for (const char* device : devices_with_heads()) {
    const auto straight = backend_with(device, golden_), rolled = backend_with(device, golden_);
    step(*straight, golden_, 0, 8, 0);
    step(*rolled, golden_, 0, 8, 5);
    EXPECT_EQ(step(*straight, golden_, 8, 12, 3).logits, step(*rolled, golden_, 8, 12, 3).logits) << device;
  }
}

// A head that has rows from a position on only, as after a saved cache was loaded, looks back to there: what
// stands in its cache before that does not matter. On cuda it looks back to where the page begins.
TEST_P(Eagle3, WhatIsBeforeTheBeginIsNotLookedAt) {
  for (const std::string_view device : devices_with_heads()) {
    if (device == "cuda") continue;
    const auto drafts_of = [&](int rows_before, int begin) {
      const auto backend = backend_with(std::string(device), golden_);
      if (rows_before > 0) step(*backend, golden_, 0, rows_before, 0);
      Batch batch;
      if (rows_before < 5) {  // the target computes them and the head does not
        add_sequence(batch, golden_.tokens, rows_before, 5, {0});
        run(*backend, golden_, batch);
        batch = {};
      }
      add_sequence(batch, golden_.tokens, 5, 7, {0});
      run(*backend, golden_, batch);
      Drafted out{std::vector<int32_t>(2, -7), {}};
      backend->draft_head()->trace([&](size_t, std::span<const float> row) {
        out.logits.insert(out.logits.end(), row.begin(), row.end());
      });
      const DraftSequence s = {.next_tokens = {golden_.tokens.begin() + 6, golden_.tokens.begin() + 8},
                               .drafts = 2,
                               .begin = begin};
      EXPECT_EQ(backend->draft_head()->draft(std::span(&s, 1), out.tokens).message(), "");
      return out.logits;
    };
    const std::vector<float> all = drafts_of(5, 0), none = drafts_of(0, 5);
    EXPECT_EQ(drafts_of(5, 5), none) << device;
    EXPECT_EQ(drafts_of(3, 5), none) << device;
    EXPECT_NE(all, none) << device;
    for (const float logit : none) ASSERT_TRUE(std::isfinite(logit));
  }
}

// With the uniform number in the middle of a token's share, that token is drafted.
TEST_P(Eagle3, SampledDraftsFollowTheUniformNumber) {
  const auto backend = backend_with("reference", golden_);
  const Drafted greedy = step(*backend, golden_, 0, 8, 1);
  const auto& ids = golden_.head.weights.target_ids;
  const double temperature = 2.0;
  std::vector<double> share;
  for (const float v : greedy.logits) share.push_back(std::exp(v / temperature));
  const double total = std::accumulate(share.begin(), share.end(), 0.0);
  double before = 0;
  for (size_t d = 0; d < ids.size(); ++d) {  // ids ascend, so this is the order of the target's tokens
    const double middle = (before + share[d] / 2) / total;
    before += share[d];
    if (share[d] / total < 1e-4) continue;
    const auto drafted = step(*backend, golden_, 0, 8, 1, {{.temperature = temperature, .uniform = middle}});
    EXPECT_EQ(drafted.tokens[0], ids[d]);
  }
}

TEST_P(Eagle3, MemoryCountsTheHead) {
  for (const char* device : devices_with_heads()) {
    const KvLayout layout = {.page_tokens = kPageTokens, .full_pages = 8, .window_pages = 8};
    const auto sum = [](const std::vector<MemoryPart>& parts) {
      return std::accumulate(parts.begin(), parts.end(), 0.0,
                             [](double s, const MemoryPart& p) { return s + p.bytes; });
    };
    const HeadGolden g = std::string(device) == "cuda" ? widened(golden_) : golden_;
    const auto plain = target_on(device, g.config, g.weights, options_for(device));
    const auto with = backend_with(device, g);
    const auto head = with->draft_head()->memory(g.head.config, g.head.weights, layout);
    EXPECT_NEAR(sum(with->memory(g.config, g.weights, layout)),
                sum(plain->memory(g.config, g.weights, layout)) + sum(head), 1)
        << device;
    EXPECT_GE(sum(head), 8.0 * kPageTokens * with->draft_head()->kv_token_bytes(g.head.config)) << device;
  }
}

TEST(Eagle3Errors, OneLineEach) {
  const HeadGolden g = widened(load_head("flat"));
  for (const char* device : devices_with_heads()) {
    auto fresh = create_backend(device, {.threads = 1});
    ASSERT_TRUE(fresh.ok());
    DraftHead& unloaded = *fresh.value()->draft_head();
    EXPECT_NE(unloaded.load(g.head.config, g.head.weights).message().find("load a model"), std::string::npos);
    EXPECT_FALSE(unloaded.draft({}, {}).ok());
    const auto backend = backend_with(device, g);
    DraftHead& head = *backend->draft_head();
    EXPECT_NE(head.load(g.head.config, g.head.weights).message().find("before the KV cache"),
              std::string::npos);
    EXPECT_FALSE(head.draft({}, {}).ok()) << "no step before";
    Batch batch;
    add_sequence(batch, g.tokens, 0, 4, {0});
    run(*backend, g, batch);
    std::vector<int32_t> tokens(1);
    const auto refused = [&](const DraftSequence& s, const char* what) {
      const Status status = head.draft(std::span(&s, 1), tokens);
      EXPECT_NE(status.message().find(what), std::string::npos) << device << ": " << status.message();
    };
    refused({.sequence = 1, .next_tokens = {1}, .drafts = 1}, "sequence 1");
    refused({.next_tokens = {}, .drafts = 1}, "0 next tokens");
    refused({.next_tokens = {1, 2, 3, 4, 5}, .drafts = 1}, "5 next tokens for 4 rows");
    refused({.next_tokens = {64}, .drafts = 1}, "token 64");
    refused({.next_tokens = {1}, .drafts = 2}, "places for 1");
    refused({.next_tokens = {1}, .drafts = 17}, "17 drafts");
    refused({.next_tokens = {1}, .drafts = 1, .begin = 1}, "begins at 1");
    refused({.next_tokens = {1}, .drafts = 1, .begin = -1}, "begins at -1");
    refused({.next_tokens = {1}, .drafts = 1, .sampling = {{}, {}}}, "sampling for 2");
    refused({.next_tokens = {1}, .drafts = 1, .full_pages = {8}}, "page 0 is 8");
    EXPECT_FALSE(head.set_taps({0, 1}).ok());
    EXPECT_FALSE(head.set_taps({0, 1, 3}).ok());
    EXPECT_TRUE(head.set_taps({0, 1, 2}).ok());
  }
}

// ---- models/tiny-eagle3 ----

struct Tiny {
  Checkpoint model;
  Eagle3Head head;
  std::vector<std::vector<int32_t>> prompts;  // held-out problems
};

Tiny open_tiny() {
  const std::string root = MOESAIC_SOURCE_DIR;
  Tiny t;
  auto model = open_checkpoint(root + "/models/tiny");
  EXPECT_TRUE(model.ok()) << model.status().message();
  t.model = std::move(model).value();
  auto head = open_eagle3(root + "/models/tiny-eagle3", t.model.config);
  EXPECT_TRUE(head.ok()) << head.status().message();
  t.head = std::move(head).value();
  std::ifstream file(eagle3_folder() + "tiny_prompts.txt");
  for (std::string line; std::getline(file, line);)
    t.prompts.push_back(nlohmann::json::parse(line).get<std::vector<int32_t>>());
  EXPECT_EQ(t.prompts.size(), 12u);
  return t;
}

// The mean tokens of a step over the first prompts, whose answers must be the ones without drafts.
double acceptance_length(const Tiny& tiny, const std::string& device, size_t prompts, int max_tokens) {
  const auto backend = target_on(device, tiny.model.config, tiny.model.weights, options_for(device));
  EXPECT_EQ(backend->draft_head()->load(tiny.head.config, tiny.head.weights).message(), "");
  int steps = 0, generated = 0;
  for (size_t i = 0; i < prompts; ++i) {
    const auto answer = [&](int drafts, int chunk) {
      auto a = answer_with_drafts(
          *backend, tiny.model.config, tiny.prompts[i],
          {.max_tokens = max_tokens, .drafts = drafts, .chunk = chunk, .stop_tokens = {4088, 4089, 4095}});
      EXPECT_TRUE(a.ok()) << a.status().message();
      return a.value();
    };
    const DraftedAnswer plain = answer(0, 512), drafted = answer(3, 512);
    EXPECT_EQ(drafted.tokens, plain.tokens) << device << ", prompt " << i;
    EXPECT_EQ(plain.steps + 1, std::ssize(plain.tokens));
    EXPECT_LE(drafted.steps, plain.steps);
    steps += drafted.steps, generated += drafted.generated;
    if (device == "cpu" && i == 0) {  // a prompt in many chunks, each taken in
      const DraftedAnswer chunks = answer(3, 16);
      EXPECT_EQ(chunks.tokens, plain.tokens);
      EXPECT_EQ(chunks.steps, drafted.steps);
    }
  }
  return static_cast<double>(generated) / steps;
}

TEST(TinyEagle3, SaysTheSameInFewerSteps) {
  const Tiny tiny = open_tiny();
  const double cpu = acceptance_length(tiny, "cpu", 12, 200),
               reference = acceptance_length(tiny, "reference", 2, 32);
  fmt::print("models/tiny-eagle3: {:.2f} tokens a step on cpu, {:.2f} on the reference\n", cpu, reference);
  EXPECT_GT(cpu, 0.8 * kLengthOfTheModelCard);
  EXPECT_GT(reference, 0.6 * kLengthOfTheModelCard);  // two short answers
}

TEST(TinyEagle3, SaysTheSameInFewerStepsOnCuda) {
  if (!has_cuda()) GTEST_SKIP() << "no CUDA device";
  const double length = acceptance_length(open_tiny(), "cuda", 12, 200);
  fmt::print("models/tiny-eagle3: {:.2f} tokens a step on cuda\n", length);
  EXPECT_GT(length, 0.8 * kLengthOfTheModelCard);
}

TEST(TinyEagle3, TheOtherConventionOfTapsIsWorse) {
  Tiny tiny = open_tiny();
  const double right = acceptance_length(tiny, "cpu", 4, 100);
  tiny.head.config.taps = {1, 4, 7};  // as if {2, 5, 8} had meant the boundaries before
  EXPECT_LT(acceptance_length(tiny, "cpu", 4, 100), right - 0.2);
}

// A head whose config counts blocks is understood by measuring, and one that counts boundaries stays.
TEST(TinyEagle3, TheConventionOfTapsIsMeasured) {
  const Tiny tiny = open_tiny();
  for (const bool blocks : {true, false}) {
    Eagle3Config config = tiny.head.config;
    if (blocks) config.taps = {1, 4, 7};
    const auto backend = load_backend("cpu", tiny.model.config, tiny.model.weights);
    ASSERT_EQ(backend->draft_head()->load(config, tiny.head.weights).message(), "");
    const auto taps = measure_taps(*backend, tiny.model.config, config, tiny.prompts[0], {.max_tokens = 64});
    ASSERT_TRUE(taps.ok()) << taps.status().message();
    EXPECT_EQ(taps->boundaries, (std::vector<int>{2, 5, 8}));
    EXPECT_EQ(taps->convention, blocks ? TapConvention::kBlockOutput : TapConvention::kBoundary);
    EXPECT_GT(taps->length, taps->other_length);
    EXPECT_EQ(taps->other_length > 0, blocks);  // there is no boundary 9
  }
}

// ---- true sizes ----

MatrixView random_matrix(std::vector<std::vector<uint16_t>>& storage, int64_t rows, int64_t cols,
                         uint64_t seed) {
  std::vector<uint16_t>& data = storage.emplace_back(static_cast<size_t>(rows * cols));
  const double deviation = rows == 1 ? 1.0 : std::sqrt(3.0 / static_cast<double>(cols));
  for (uint16_t& v : data) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const auto uniform = static_cast<double>(seed >> 40) / static_cast<double>(1 << 23) - 1;
    v = mx::encode_bf16(static_cast<float>(rows == 1 ? 1 + 0.2 * uniform : deviation * uniform));
  }
  return dense_view(Format::kBF16, rows, cols, reinterpret_cast<const std::byte*>(data.data()));
}

TEST(Eagle3Manual, DISABLED_TrueSizes) {
  HeadGolden g;
  g.config = load_golden("tiny").config;
  g.config.hidden = 2880, g.config.heads = 4, g.config.vocab = 32768;
  g.weights = make_random_model(g.config, {.seed = 1});
  Eagle3Config& c = g.head.config;
  c = {.name = "true sizes",
       .hidden = 2880,
       .intermediate = 17280,
       .heads = 64,
       .kv_heads = 8,
       .head_dim = 64,
       .vocab = 32768,
       .draft_vocab = 32000,
       .taps = {0, 1, 2}};
  c.rope.factor = 1;
  std::vector<std::vector<uint16_t>> storage;
  storage.reserve(32);
  uint64_t seed = 1;
  const auto make = [&](int64_t rows, int64_t cols) { return random_matrix(storage, rows, cols, ++seed); };
  Eagle3Weights& w = g.head.weights;
  w.input_norm = make(1, c.features()), w.fc = make(c.hidden, c.features());
  w.embed_norm = make(1, c.hidden), w.hidden_norm = make(1, c.hidden), w.mlp_norm = make(1, c.hidden);
  w.q = make(c.q_size(), 2 * c.hidden), w.k = make(c.kv_size(), 2 * c.hidden),
  w.v = make(c.kv_size(), 2 * c.hidden);
  w.o = make(c.hidden, c.q_size()), w.norm = make(1, c.hidden), w.head = make(c.draft_vocab, c.hidden);
  w.gate = make(c.intermediate, c.hidden), w.up = make(c.intermediate, c.hidden);
  w.down = make(c.hidden, c.intermediate);
  w.target_ids.resize(static_cast<size_t>(c.draft_vocab));
  std::iota(w.target_ids.begin(), w.target_ids.end(), 7);
  g.tokens = {5, 31, 7000, 12, 999, 32000, 1, 64, 3};
  const Drafted want = step(*backend_with("reference", g), g, 0, 8, 2);
  for (const char* device : devices_with_heads()) {
    const Drafted got = step(*backend_with(device, g), g, 0, 8, 2);
    const Distance d = distance(std::span(got.logits).first(32000), std::span(want.logits).first(32000));
    fmt::print("true sizes: {} rms {:.1e}, largest {:.1e}, drafts {} {} and {} {}\n", device, d.rms, d.max,
               got.tokens[0], got.tokens[1], want.tokens[0], want.tokens[1]);
    EXPECT_LT(d.rms, 0.05);
  }
}

}  // namespace
}  // namespace moesaic

// The draft head of the cuda backend on the host: its own code, its own kernels and those of the products and
// of repacking (gemm_small_m.cuh, repack.cu), against the reference backend's head.
#include "backend/reference/draft_head.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <ostream>
#include <random>

#include "backend/cuda/cuda_draft.h"
#include "backend/cuda/ops/attention.h"
#include "backend/cuda/step/step_input.h"
#include "backend/cuda/weights/upload.h"
#include "base/relative_error_test.h"
#include "core/continuation.h"
#include "mx/formats.h"

namespace moesaic::cuda {
namespace {

// The error of 16-bit activations, K and V; it grows from draft to draft.
constexpr double kTolerance = 0.05;
constexpr int kHidden = 64, kVocab = 96, kPages = 16;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// ---- random heads ----

struct Form {
  const char* name;
  int taps = 3, draft_vocab = 40;
  bool input_norm = false, fc_norms = false, own_tables = true, normed_residual = false, norm_output = false;
  int window = 0;
  std::optional<Format> dense = {};  // as stored
  Format stored = Format::kBF16;
};
std::ostream& operator<<(std::ostream& out, const Form& form) { return out << form.name; }

class Random {
 public:
  MatrixView matrix(Format format, int64_t rows, int64_t cols, float deviation, float mean = 0) {
    std::vector<std::byte>& bytes =
        storage_.emplace_back(static_cast<size_t>(rows * row_bytes(format, cols)));
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float v = mean + deviation * normal_(rng_);
      if (format == Format::kF32) std::memcpy(&bytes[static_cast<size_t>(4 * i)], &v, 4);
      const uint16_t half = format == Format::kBF16 ? mx::encode_bf16(v) : mx::encode_f16(v);
      if (format != Format::kF32) std::memcpy(&bytes[static_cast<size_t>(2 * i)], &half, 2);
    }
    return dense_view(format, rows, cols, bytes.data());
  }
  float operator()() { return normal_(rng_); }

 private:
  std::mt19937 rng_{11};
  std::normal_distribution<float> normal_;
  std::deque<std::vector<std::byte>> storage_;
};

// The target is as much of a model as a head shares: its tables.
struct Heads {
  Random random;
  ModelConfig model;
  Eagle3Config config;
  Eagle3Weights weights;
  MatrixView embed, lm_head;

  explicit Heads(const Form& form) {
    model.layers = 3, model.hidden = kHidden, model.vocab = kVocab;
    config = {.name = form.name,
              .hidden = kHidden,
              .intermediate = 160,
              .heads = 4,
              .kv_heads = 2,
              .head_dim = 32,
              .vocab = kVocab,
              .draft_vocab = form.draft_vocab,
              .window = form.window,
              .norm_before_residual = form.normed_residual,
              .norm_output = form.norm_output};
    for (int i = 0; i < form.taps; ++i) config.taps.push_back((i + 1) % 4);
    const auto matrix = [&](int64_t rows, int64_t cols, float gain) {
      return random.matrix(form.stored, rows, cols, gain / std::sqrt(static_cast<float>(cols)));
    };
    const auto norm = [&](int64_t cols) { return random.matrix(Format::kF32, 1, cols, 0.25f, 1); };
    embed = random.matrix(Format::kBF16, kVocab, kHidden, 1), lm_head = matrix(kVocab, kHidden, 3);
    weights.fc = matrix(kHidden, config.features(), 1);
    if (form.input_norm) weights.input_norm = norm(config.features());
    for (int i = 0; form.fc_norms && i < form.taps; ++i) weights.fc_norms.push_back(norm(kHidden));
    weights.embed_norm = norm(kHidden), weights.hidden_norm = norm(kHidden);
    weights.mlp_norm = norm(kHidden), weights.norm = norm(kHidden);
    weights.q = matrix(config.q_size(), 2 * kHidden, 2), weights.k = matrix(config.kv_size(), 2 * kHidden, 2);
    weights.v = matrix(config.kv_size(), 2 * kHidden, 2), weights.o = matrix(kHidden, config.q_size(), 1);
    weights.gate = matrix(config.intermediate, kHidden, 2),
    weights.up = matrix(config.intermediate, kHidden, 1);
    weights.down = matrix(kHidden, config.intermediate, 1);
    if (form.own_tables) {
      weights.head = matrix(form.draft_vocab, kHidden, 3);
      weights.embed = random.matrix(form.stored, kVocab, kHidden, 1);
    }
    weights.target_ids.resize(static_cast<size_t>(form.draft_vocab));
    for (int i = 0; i < form.draft_vocab; ++i)
      weights.target_ids[static_cast<size_t>(i)] = form.draft_vocab < kVocab ? 2 * i + 1 : i;
  }
};

// ---- two heads that are given the same steps ----

struct Options {
  int max_rows = 32, rows_at_once = 32;
  bool invariant = true;
};

class Pair {
 public:
  Pair(const Form& form, const Options& options)
      : heads_(form),
        options_{.dense = form.dense.value_or(form.stored), .max_rows = options.max_rows},
        target_{.features = features_of(9, 0, 90),
                .portable = options.invariant,
                .batch_invariant = options.invariant},
        reference_({heads_.model, model_weights_, layout_, batch_, options_.dense, [] { return false; }}),
        cuda_({.options = options_,
               .target = target_,
               .model = model_,
               .layout = layout_,
               .stream = stream_,
               .wait = wait_,
               .cache_allocated = [] { return false; },
               .retire_graphs = [] { return Status(); },
               .rows_at_once = options.rows_at_once}) {
    model_weights_.embed = heads_.embed, model_weights_.head = heads_.lm_head;
    model_.config = heads_.model;
    Uploader up;
    EXPECT_TRUE(up.open(stream_, {}).ok());
    model_.embed = up.table(heads_.embed, "", "embedding").value();
    model_.head = up.matrix({heads_.lm_head}, kind_of(heads_.lm_head.format, options_.dense),
                            RowOrder::kPlain, 0, "", "lm_head")
                      .value();
    EXPECT_EQ(reference_.load(heads_.config, heads_.weights).message(), "");
    EXPECT_EQ(cuda_.load(heads_.config, heads_.weights).message(), "");
    EXPECT_EQ(reference_.alloc_kv().message(), "");
    EXPECT_EQ(cuda_.alloc_kv().message(), "");
  }

  // A step of sequences of so many rows from these positions on, sequence s in every fourth page.
  void step(const std::vector<int>& rows, const std::vector<int>& from) {
    batch_ = {};
    for (size_t s = 0; s < rows.size(); ++s) {
      std::vector<int32_t> pages(4);
      for (int i = 0; i < 4; ++i) pages[static_cast<size_t>(i)] = static_cast<int32_t>(s) + 4 * (3 - i);
      batch_.sequences.push_back(
          {.first_row = batch_.rows(), .rows = rows[s], .context = from[s] + rows[s], .full_pages = pages});
      for (int i = 0; i < rows[s]; ++i) batch_.tokens.push_back(1), batch_.positions.push_back(from[s] + i);
    }
    run(Batch(batch_), {});
  }
  // A step of this batch, which leaves this to a draft that is begun behind it.
  void run(const Batch& batch, const CudaDraftHead::Step& left) {
    batch_ = batch;
    reference_.begin_step();
    cuda_.begin_step(batch);
    for (int boundary = 0; boundary <= heads_.model.layers; ++boundary) tap(boundary);
    cuda_.end_step(left);
  }
  // Half of the residual stream is deferred.
  void tap(int boundary) {
    const size_t count = static_cast<size_t>(batch_.rows()) * kHidden;
    std::vector<float> x(count), outputs(2 * count), all(count), weights;
    std::vector<int32_t> places;
    for (float& v : x) v = 20 * heads_.random();
    for (float& v : outputs) v = heads_.random();
    all = x;
    for (int row = 0; row < batch_.rows(); ++row) {
      for (int k = 0; k < 2; ++k) {
        places.push_back((2 * row + k + 3) % (2 * batch_.rows())), weights.push_back(k == 0 ? 4.0f : -9.0f);
        for (int i = 0; i < kHidden; ++i)
          all[static_cast<size_t>(row * kHidden + i)] +=
              weights.back() * outputs[static_cast<size_t>(places.back() * kHidden + i)];
      }
    }
    reference_.tap(boundary, all);
    EXPECT_TRUE(cuda_
                    .tap(boundary, x.data(), batch_.rows(),
                         {.expert_out = outputs.data(),
                          .weights = weights.data(),
                          .permuted_rows = places.data(),
                          .top_k = 2})
                    .ok());
  }

  std::vector<DraftSequence> take_all(const std::vector<int>& drafts) {
    std::vector<DraftSequence> sequences;
    for (size_t s = 0; s < drafts.size(); ++s) {
      DraftSequence d{.sequence = static_cast<int>(s), .drafts = drafts[s]};
      for (int i = 0; i < batch_.sequences[s].rows; ++i)
        d.next_tokens.push_back(static_cast<int32_t>(7 * s + 5 * static_cast<size_t>(i)) % kVocab);
      sequences.push_back(d);
    }
    return sequences;
  }

  struct Drafted {
    std::vector<int32_t> tokens;
    std::vector<std::vector<float>> logits;  // as traced
    std::vector<size_t> sequences;
  };
  static Drafted draft(DraftHead& head, const std::vector<DraftSequence>& sequences, bool traced = true) {
    Drafted out;
    for (const DraftSequence& s : sequences)
      out.tokens.resize(out.tokens.size() + static_cast<size_t>(s.drafts), -7);
    head.trace(nullptr);
    if (traced)
      head.trace([&](size_t sequence, std::span<const float> row) {
        out.sequences.push_back(sequence), out.logits.emplace_back(row.begin(), row.end());
      });
    EXPECT_EQ(head.draft(sequences, out.tokens).message(), "");
    return out;
  }
  // Both heads, and the cuda head as it runs where the device samples.
  void compare(const std::vector<DraftSequence>& sequences) {
    const Drafted want = draft(reference_, sequences), got = draft(cuda_, sequences);
    ASSERT_EQ(got.sequences, want.sequences);
    for (size_t i = 0; i < got.logits.size(); ++i) {
      const double error = relative_error(got.logits[i], want.logits[i]);
      EXPECT_LT(error, kTolerance) << "draft " << i;
      worst_ = std::max(worst_, error);
    }
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(draft(cuda_, sequences, false).tokens, got.tokens);
  }

  CudaDraftHead& cuda() { return cuda_; }
  DraftHead& reference() { return reference_; }
  Heads& heads() { return heads_; }
  double worst() const { return worst_; }

 private:
  Heads heads_;
  BackendOptions options_;
  Target target_;
  LoadedModel model_;
  ModelWeights model_weights_;
  KvLayout layout_{.full_pages = kPages};
  Batch batch_;
  cudaStream_t stream_ = reinterpret_cast<cudaStream_t>(1);
  StepWait wait_{0};
  reference::ReferenceDraftHead reference_;
  CudaDraftHead cuda_;
  double worst_ = 0;
};

// ---- tests ----

TEST(DraftFormat, SixteenBitsBecomeEightUnlessOneIsNamed) {
  const auto made = [](Format stored, std::optional<Format> dense, int64_t cols = 64) {
    return made_of(stored, draft_format(dense_view(stored, 1, cols, nullptr), dense));
  };
  EXPECT_EQ(made(Format::kBF16, {}), Format::kQ8_0);
  EXPECT_EQ(made(Format::kF16, {}), Format::kQ8_0);
  EXPECT_EQ(made(Format::kBF16, {}, 48), Format::kBF16);  // not whole blocks
  EXPECT_EQ(made(Format::kF32, {}), Format::kF32);
  EXPECT_EQ(made(Format::kMxfp4, {}), Format::kMxfp4);
  EXPECT_EQ(made(Format::kBF16, Format::kBF16), Format::kBF16);
}

class CudaDraft : public testing::TestWithParam<Form> {};
INSTANTIATE_TEST_SUITE_P(
    Forms, CudaDraft,
    testing::Values(
        Form{"flat", 3, 40, true}, Form{"plain", 1, 40},
        Form{.name = "speculators",
             .taps = 2,
             .draft_vocab = kVocab,
             .fc_norms = true,
             .own_tables = false,
             .normed_residual = true,
             .norm_output = true},
        Form{.name = "window", .input_norm = true, .fc_norms = true, .normed_residual = true, .window = 5},
        Form{.name = "q8_0", .input_norm = true, .dense = Format::kQ8_0},
        Form{.name = "q8_0_plain", .draft_vocab = kVocab, .own_tables = false, .dense = Format::kQ8_0},
        Form{.name = "f16", .norm_output = true, .stored = Format::kF16},
        Form{.name = "f32", .input_norm = true, .stored = Format::kF32}),
    [](const auto& instance) { return std::string(instance.param.name); });

// A prompt over two pages, then steps of verified drafts, some of them refused.
TEST_P(CudaDraft, AgreesWithTheReference) {
  for (const bool invariant : {true, false}) {
    Pair pair(GetParam(), {.invariant = invariant});
    pair.step({30}, {0});
    pair.compare(pair.take_all({0}));
    pair.step({7}, {30});
    pair.compare(pair.take_all({3}));
    pair.step({4}, {37});
    auto two = pair.take_all({4});
    two[0].next_tokens.resize(2);
    pair.compare(two);
    pair.step({1}, {39});
    pair.compare(pair.take_all({2}));
    fmt::print("{}{}: rms {:.1e}\n", GetParam().name, invariant ? ", batch-invariant" : "", pair.worst());
  }
}

// Sequences that want different numbers of drafts, or none, more rows than are taken in together, and chunks
// that end in the middle of a sequence.
TEST_P(CudaDraft, TakesSequencesAndChunksApart) {
  for (const int rows_at_once : {32, 5}) {
    Pair pair(GetParam(), {.rows_at_once = rows_at_once});
    pair.step({12, 1, 9, 2}, {0, 0, 0, 0});
    pair.compare(pair.take_all({1, 3, 0, 2}));
    pair.step({1, 1, 1, 1}, {12, 1, 9, 2});
    pair.compare(pair.take_all({3, 1, 2, 2}));
    pair.step({2, 1, 3, 1}, {13, 2, 10, 3});
    auto some = pair.take_all({3, 1, 2, 1});
    some.erase(some.begin() + 1);
    pair.compare(some);
  }
}

TEST_P(CudaDraft, SampledDraftsAreTheHostsChoice) {
  Pair pair(GetParam(), {});
  pair.step({6, 3}, {0, 0});
  auto sequences = pair.take_all({3, 2});
  for (DraftSequence& s : sequences) {
    for (int i = 0; i < s.drafts; ++i)
      s.sampling.push_back({.temperature = 1.5, .top_p = i == 1 ? 0.7 : 1.0, .uniform = 0.83 - 0.2 * i});
  }
  const auto host = Pair::draft(pair.cuda(), sequences), device = Pair::draft(pair.cuda(), sequences, false);
  EXPECT_EQ(host.tokens, device.tokens);
  for (DraftSequence& s : sequences) s.sampling.clear();
  EXPECT_NE(Pair::draft(pair.cuda(), sequences).tokens, host.tokens);
}

// ---- behind a step whose tokens the host does not know ----

// How a sequence stands in a step: so many rows that hold, of these the last with logits or not; drafted
// rows, of which some are then accepted; and the rows that the device has moved it on by, of at most so many.
struct Begun {
  int from = 0, rows = 1;
  bool samples = true;
  int drafted = 0, accepted = 0, moved = 0, most_moved = 0;
  int drafts = 0;  // wanted behind the step
};

// Runs the step on two equal heads, and a draft behind it: begun by the one, drafted with all that is then
// known by the other.
void compare_begun(Pair& pair, Pair& knowing, const std::vector<Begun>& forms, bool samples) {
  Batch b;
  std::vector<int32_t> positions, tokens, sampled;
  std::vector<SequenceAhead> sequences;
  RunStep run;
  for (size_t s = 0; s < forms.size(); ++s) {
    const Begun& f = forms[s];
    const int rows = f.rows + f.drafted, first = b.rows();
    std::vector<int32_t> pages(4);
    for (int i = 0; i < 4; ++i) pages[static_cast<size_t>(i)] = static_cast<int32_t>(s) + 4 * (3 - i);
    b.sequences.push_back({.first_row = first, .rows = rows, .context = f.from + rows, .full_pages = pages});
    run.moved.push_back(f.moved);
    SequenceAhead d{.sequence = static_cast<int>(s), .drafts = f.drafts};
    for (int i = 0; i < rows; ++i) {
      const auto token = static_cast<int32_t>(3 * s + 7 * static_cast<size_t>(f.from + f.moved + i)) % kVocab;
      b.tokens.push_back(token), b.positions.push_back(f.from + i);
      positions.push_back(f.from + f.moved + i);
      const bool wanted = f.samples && i >= f.rows - 1;
      if (!wanted) d.next_tokens.push_back((token + 5) % kVocab);
      if (wanted) b.logit_rows.push_back(first + i);
    }
    for (int i = 0; f.samples && i <= f.drafted; ++i) {
      const auto next = static_cast<size_t>(first + f.rows + i);
      sampled.push_back(i < f.accepted ? b.tokens[next] : static_cast<int32_t>(11 * s + 1) % kVocab);
      if (i < f.drafted && i >= f.accepted) b.tokens[next] = (sampled.back() + 1) % kVocab;
    }
    for (int i = 0; samples && i < f.drafts + f.drafted + f.most_moved; ++i)
      d.sampling.push_back({.temperature = 1.5, .top_p = 0.9, .uniform = 0.93 - 0.11 * i, .logprobs = 3});
    if (f.most_moved > 0)
      b.continuations.push_back(
          {.sequence = d.sequence,
           .sampling = std::vector<DeviceSampling>(static_cast<size_t>(rows + f.most_moved))});
    sequences.push_back(d);
  }
  b.sampling.resize(b.logit_rows.size());
  run.batch = b, run.batch.positions = positions;
  for (size_t s = 0; s < forms.size(); ++s) run.batch.sequences[s].context += forms[s].moved;
  end_run(run, sampled);
  for (size_t s = 0; s < forms.size(); ++s) ASSERT_EQ(run.accepted[s], forms[s].accepted);
  pair.run(b, {.tokens = b.tokens.data(),
               .positions = positions.data(),
               .sampled = sampled.data(),
               .moved = run.moved.data()});
  knowing.run(run.batch, {});
  const std::vector<int32_t> want = Pair::draft(knowing.cuda(), settle(sequences, run), false).tokens;
  CudaDraftHead& head = pair.cuda();
  head.trace(nullptr);
  ASSERT_TRUE(head.drafts_ahead());
  const Result<int64_t> begun = head.begin_draft(sequences);
  ASSERT_TRUE(begun.ok()) << begun.status().message();
  std::vector<int32_t> got(want.size(), -7);
  EXPECT_TRUE(head.finish_draft(begun.value(), got).ok());
  EXPECT_EQ(got, want);
  auto at = want.begin();
  for (size_t s = 0; s < forms.size(); ++s) {
    EXPECT_EQ(head.accepted()[s], forms[s].accepted) << s;
    EXPECT_TRUE(std::equal(at, at + forms[s].drafts, head.drafts() + s * kMostDraft)) << s;
    at += forms[s].drafts;
  }
  EXPECT_FALSE(head.finish_draft(begun.value() + 1, got).ok());
}

// Prompts and their last chunks, sequences with and without drafts, of which some hold, over ends of pages.
TEST_P(CudaDraft, FindsTheRowsThatHoldByItself) {
  for (const bool samples : {false, true}) {
    const Options options{.rows_at_once = samples ? 5 : 32};
    Pair pair(GetParam(), options), knowing(GetParam(), options);
    compare_begun(
        pair, knowing,
        {{.rows = 12, .samples = false}, {.rows = 6, .drafts = 2}, {.rows = 3}, {.rows = 2, .drafts = 4}},
        samples);
    compare_begun(pair, knowing,
                  {{.from = 12, .rows = 16, .drafts = 3},
                   {.from = 6, .drafted = 2, .accepted = 1, .drafts = 3},
                   {.from = 3, .drafted = 1, .accepted = 1},
                   {.from = 2, .drafted = 4, .drafts = 1}},
                  samples);
    // The host stands where the step before began; the device has moved on.
    compare_begun(pair, knowing,
                  {{.from = 28, .drafted = 3, .accepted = 3, .drafts = 3},
                   {.from = 7, .drafted = 3, .accepted = 2, .moved = 1, .most_moved = 2, .drafts = 2},
                   {.from = 4, .moved = 1, .most_moved = 1, .drafts = 4},
                   {.from = 3, .drafted = 1, .most_moved = 4, .drafts = 2}},
                  samples);
    compare_begun(pair, knowing,
                  {{.from = 29, .drafted = 3, .accepted = 1, .moved = 3, .most_moved = 3, .drafts = 4},
                   {.from = 9, .drafted = 2, .moved = 2, .most_moved = 3, .drafts = 1},
                   {.from = 6, .drafted = 4, .accepted = 4, .most_moved = 0},
                   {.from = 4, .drafted = 2, .accepted = 1, .moved = 0, .most_moved = 1, .drafts = 3}},
                  samples);
  }
}

// The step's inputs as the device changes them, against core/continuation.h.
TEST(CudaContinuations, MoveRowsOnAsTheHostWould) {
  std::mt19937 rng(3);
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<uint32_t>(n)); };
  for (int run = 0; run < 200; ++run) {
    const int count = 1 + below(5);
    Batch before, batch;
    RunStep ran;
    std::vector<int> first_wanted, accepted(static_cast<size_t>(count));
    std::vector<int32_t> drafts(static_cast<size_t>(count) * kMostDraft, -1);
    ran.drafts.resize(static_cast<size_t>(count));
    for (int s = 0; s < count; ++s) {
      const auto i = static_cast<size_t>(s);
      const int drafted = below(4), made = below(5), from = below(60), rows = 1 + drafted;
      accepted[i] = below(drafted + 1);
      first_wanted.push_back(static_cast<int>(before.logit_rows.size()));
      before.sequences.push_back({.first_row = before.rows(), .rows = rows, .context = from + rows});
      for (int k = 0; k < rows; ++k) {
        before.logit_rows.push_back(before.rows()), before.tokens.push_back(0);
        ran.sampled.push_back(below(10) == 0 ? -1 : below(1000));
      }
      for (int k = 0; k < made; ++k) ran.drafts[i].push_back(below(10) == 0 ? -1 : below(1000));
      std::ranges::copy(ran.drafts[i], drafts.begin() + s * kMostDraft);
      if (below(5) == 0) continue;  // it does not go on
      const int first = batch.rows();
      Sequence next{.first_row = first, .rows = 1 + made, .context = from + 2 + made};
      for (int page = 0; page < 3; ++page)
        next.full_pages.push_back(below(50)), next.window_pages.push_back(below(50));
      const bool continues = drafted + made > 0;
      std::vector<DeviceSampling> sampling;
      for (int k = 0; k < 1 + made + drafted; ++k)
        sampling.push_back({.temperature = 1.0 * k, .uniform = 0.01 * below(100), .top_k = below(9)});
      for (int k = 0; k <= made; ++k) {
        batch.logit_rows.push_back(batch.rows());
        batch.tokens.push_back(0), batch.positions.push_back(from + 1 + k);
        batch.token_sources.push_back(continues ? -1 : first_wanted.back());
        batch.sampling.push_back(sampling[static_cast<size_t>(k)]);
      }
      if (continues)
        batch.continuations.push_back(
            {.sequence = static_cast<int>(batch.sequences.size()), .source = s, .sampling = sampling});
      batch.sequences.push_back(next);
    }
    ran.batch = before, ran.accepted = accepted, ran.moved.resize(accepted.size());
    if (batch.continuations.empty()) continue;
    const Batch want = begin_run(batch, ran).batch;
    const Tiling tiling{.tokens = 4, .most_decode_rows = below(2) * 8};
    const StepShape shape = shape_of(batch, tiling);
    const StepLayout at = layout_of(shape);
    std::vector<int32_t> got, expected;
    const auto packed = pack(batch, shape, tiling, got);
    const PackedContinuations continuations = pack_continuations(batch, packed, first_wanted, got);
    for (size_t row = 0; row < batch.token_sources.size(); ++row) {  // as copy_step_inputs() does
      const int32_t source = batch.token_sources[row];
      if (source >= 0)
        got[static_cast<size_t>(at.tokens) + row] = std::max(0, ran.sampled[static_cast<size_t>(source)]);
    }
    MoveOn p = move_on_inputs(at, continuations, got.data());
    p.sampled = ran.sampled.data(), p.accepted = accepted.data(), p.drafts = drafts.data();
    EXPECT_TRUE(move_on(p, nullptr).ok());
    StepShape moved = shape_of(want, tiling);
    EXPECT_LE(moved.kv_splits, shape.kv_splits);
    pack(want, shape, tiling, expected);
    std::fill_n(expected.begin() + at.token_sources, batch.rows(), 0);
    std::fill_n(got.begin() + at.token_sources, batch.rows(), 0);
    got.resize(expected.size());
    EXPECT_EQ(got, expected) << "run " << run;
  }
}

// A value that is not finite ends its sequence's draft, and is in no page that others or later rows read.
TEST(CudaDraftFaults, StayInTheirSequence) {
  const Form form{.name = "flat", .input_norm = true};
  Pair pair(form, {}), sound(form, {});
  for (Pair* p : {&pair, &sound}) p->step({3, 3}, {0, 0});
  std::vector<float> bad(6 * kHidden, 1.0f);
  bad[0] = kNan;
  EXPECT_TRUE(pair.cuda().tap(1, bad.data(), 1, {}).ok());  // taps the first row alone
  for (const bool traced : {true, false}) {
    auto sequences = pair.take_all({2, 2});
    const auto got = Pair::draft(pair.cuda(), sequences, traced).tokens,
               want = Pair::draft(sound.cuda(), sequences, traced).tokens;
    // The first row's K and V are zeros, so that the sequence goes on; its own logits would not be finite.
    EXPECT_GE(got[0], 0);
    EXPECT_EQ(got[2], want[2]);
    EXPECT_EQ(got[3], want[3]);
    sequences[0].next_tokens.resize(1);
    const auto first = Pair::draft(pair.cuda(), sequences, traced).tokens;
    EXPECT_EQ(first[0], -1);
    EXPECT_EQ(first[1], -1);
    EXPECT_EQ(first[2], want[2]);
  }
  for (Pair* p : {&pair, &sound}) p->step({1, 1}, {3, 3});
  EXPECT_GE(Pair::draft(pair.cuda(), pair.take_all({1, 1})).tokens[0], 0);
}

TEST(CudaDraftErrors, OneLineEach) {
  Heads heads({.name = "odd"});
  const BackendOptions options{.max_rows = 8};
  const Target target{.features = features_of(9, 0, 90)};
  LoadedModel model;
  const KvLayout layout{.full_pages = 2};
  const cudaStream_t stream = reinterpret_cast<cudaStream_t>(1);
  const StepWait wait(0);
  bool allocated = false;
  CudaDraftHead head({.options = options,
                      .target = target,
                      .model = model,
                      .layout = layout,
                      .stream = stream,
                      .wait = wait,
                      .cache_allocated = [&] { return allocated; },
                      .retire_graphs = [] { return Status(); }});
  const auto refused = [&](const char* what) {
    const Status status = head.load(heads.config, heads.weights);
    EXPECT_NE(status.message().find(what), std::string::npos) << status.message();
  };
  refused("load a model");
  model.config = heads.model;
  allocated = true;
  refused("before the KV cache");
  allocated = false;
  EXPECT_EQ(head.load(heads.config, heads.weights).message(), "");
  EXPECT_FALSE(head.draft({}, {}).ok());
  // Memory is what load() asks for, and known before.
  EXPECT_EQ(head.memory(heads.config, heads.weights, layout)[0].bytes, head.memory(layout)[0].bytes);
  EXPECT_EQ(head.memory(layout)[1].bytes, 2.0 * 32 * 2 * 2 * heads.config.kv_size());
  heads.config.head_dim = 16, heads.config.heads = 8, heads.config.kv_heads = 4;
  refused("head_dim 16");
  heads.config.head_dim = 32, heads.config.heads = 4, heads.config.kv_heads = 2;
  heads.weights.up = heads.random.matrix(Format::kF16, heads.config.intermediate, kHidden, 1);
  refused("gate_proj, up_proj");
  heads.weights.up = heads.weights.gate;
  heads.weights.norm = heads.random.matrix(Format::kF32, 1, kHidden, kNan);
  refused("NaN or infinite");
}

// The rounds of core/draft_batch.h, laid out before any token is drafted.
TEST(CudaDraftInput, HasTheRoundsOfTheHost) {
  Batch batch;
  const std::vector<int> rows = {5, 1, 40, 2}, from = {3, 31, 20, 62}, taken = {3, 1, 40, 2},
                         drafts = {2, 4, 0, 3};
  std::vector<DraftSequence> sequences;
  for (int s = 0; s < 4; ++s) {
    const size_t i = static_cast<size_t>(s);
    batch.sequences.push_back({.first_row = batch.rows(),
                               .rows = rows[i],
                               .context = from[i] + rows[i],
                               .full_pages = {10 * s + 3, 10 * s, 10 * s + 7}});
    for (int k = 0; k < rows[i]; ++k) batch.tokens.push_back(0), batch.positions.push_back(from[i] + k);
    sequences.push_back(
        {.sequence = s, .next_tokens = std::vector<int32_t>(taken[i], s + 1), .drafts = drafts[i]});
  }
  sequences[3].begin = 40;  // its first page is not attended to
  const DraftInput in = draft_input(sequences, batch);
  DraftRounds rounds(sequences, batch);
  std::vector<int32_t> tokens(9), ids = {50, 60};
  int first = 0;
  ASSERT_EQ(in.rounds.size(), 4u);
  for (const DraftRoundInput& r : in.rounds) {
    ASSERT_EQ(r.rows, std::ssize(rounds.rows()));
    ASSERT_EQ(r.logit_rows, std::ssize(rounds.logit_rows()));
    EXPECT_EQ(r.first_row, first);
    const bool is_first = &r == in.rounds.data();
    for (int i = 0; i < r.rows; ++i) {
      const DraftRow& row = rounds.rows()[static_cast<size_t>(i)];
      const int32_t* const at = in.packed.data() + i;
      EXPECT_EQ(at[in.positions + first], row.position);
      EXPECT_EQ(at[r.slots],
                rounds.pages(row)[static_cast<size_t>(row.position / 32)] * 32 + row.position % 32);
      EXPECT_EQ(at[r.tokens], is_first ? row.token : 0);
      EXPECT_EQ(at[r.sources], is_first ? rounds.source_rows()[static_cast<size_t>(i)]
                                        : rounds.kept()[static_cast<size_t>(i)]);
      const auto place = std::ranges::find(rounds.logit_rows(), i);
      EXPECT_EQ(at[r.places], place == rounds.logit_rows().end() ? -1 : place - rounds.logit_rows().begin());
    }
    for (int i = 0; i < r.logit_rows; ++i) {
      RowTile tile;
      std::memcpy(&tile, &in.packed[static_cast<size_t>(r.tiles + i * 8)], sizeof tile);
      const DraftRow& row = rounds.rows()[static_cast<size_t>(rounds.logit_rows()[static_cast<size_t>(i)])];
      EXPECT_EQ(tile.row, i);
      EXPECT_EQ(tile.count, 1);
      const int skipped = rounds.begin(row) / 32;
      EXPECT_EQ(tile.position, row.position - 32 * skipped);
      EXPECT_EQ(in.packed[static_cast<size_t>(in.pages + tile.table[0])],
                rounds.pages(row)[static_cast<size_t>(skipped)]);
      EXPECT_GE(r.kv_splits, kv_splits_of(row.position / 32 - skipped + 1));
    }
    first += r.rows;
    rounds.choose(std::vector<float>(static_cast<size_t>(r.logit_rows) * 2, 1.0f), ids, tokens);
  }
  EXPECT_TRUE(rounds.rows().empty());
  EXPECT_EQ(in.rows, first);
  std::vector<int> seen(9);
  for (const DraftInput::Drafted& d : in.drafted) ++seen[d.token];
  EXPECT_EQ(seen, std::vector<int>(9, 1));
}

}  // namespace
}  // namespace moesaic::cuda

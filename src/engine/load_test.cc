// Requests of every kind in company, with too few pages, shared beginnings, cancellations and faults: each
// gives the tokens that it gives alone, and after every step each page is accounted for.
#include <array>
#include <deque>
#include <filesystem>
#include <latch>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <thread>

#include "base/temporary_folder.h"
#include "engine/late_backend.h"
#include "engine/test_drafter.h"
#include "grammar/mask_cache.h"
#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

// A request's wishes beside its parameters.
struct Wishes {
  bool sees_prompt = false, sees_logits = false, changes_logits = false;
  int override_at = -1;  // three tokens of its answer are not as they are sampled, from this one on
  std::string salt;
};

struct Asked {
  std::vector<int32_t> prompt;
  SamplingParams params;
  bool constrained = false;
  Wishes wishes = {};
};

// Positions that a request was shown, and the likeliest token of each.
using Shown = std::vector<std::pair<int, int64_t>>;

int64_t likeliest_of(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

class OtherTokens final : public TokenOverride {
 public:
  explicit OtherTokens(int at) : at_(at) {}
  int32_t instead_of(int32_t sampled) override {
    return said_ >= at_ && said_ < at_ + 3 ? (sampled + 17 * said_) % kVocab : sampled;
  }
  void said(int32_t) override { ++said_; }
  int untouched() const override {
    return said_ >= at_ + 3 ? std::numeric_limits<int>::max() : std::max(0, at_ - said_);
  }

 private:
  int at_, said_ = 0;
};

void fulfil(const Wishes& wishes, Request& request, Shown& prompt, Shown& answer) {
  if (wishes.sees_prompt) {
    request.reuse_prefix = false;
    request.on_prompt_logits = [&prompt](int position, std::span<const float> logits) {
      prompt.emplace_back(position, likeliest_of(logits));
    };
  }
  if (wishes.sees_logits)
    request.on_logits = [&answer](int position, std::span<const float> logits) {
      answer.emplace_back(position, likeliest_of(logits));
    };
  if (wishes.changes_logits)
    request.change_logits = [](int position, std::span<float> logits) {
      if (position % 3 == 0)
        logits[static_cast<size_t>(likeliest_of(logits))] = -std::numeric_limits<float>::infinity();
    };
  if (wishes.override_at >= 0) request.sampler->follow(std::make_unique<OtherTokens>(wishes.override_at));
  request.pages.salt = wishes.salt;
}

struct Grammar {
  Tokenizer tokenizer = small::tokenizer();
  grammar::MaskCache masks{tokenizer};
  AnswerGrammar grammar;

  explicit Grammar(std::string schema = R"({"type": "array", "items": {"type": "integer"}})")
      : grammar(AnswerGrammar::compile({.json_schema = std::move(schema)}).value()) {}
  void hold_to(Request& request) { request.sampler->follow(masks.async_matcher(grammar)); }
  grammar::Matcher matcher() { return masks.matcher(grammar); }
};

// While it lives no mask of the grammar is computed.
class MasksTakeLong {
 public:
  explicit MasksTakeLong(Grammar& grammar)
      : thread_([this, matcher = grammar.matcher()] {
          const auto lock = matcher.lock();
          locked_.count_down();
          over_.wait();
        }) {
    locked_.wait();
  }
  ~MasksTakeLong() { over_.count_down(); }
  MasksTakeLong(const MasksTakeLong&) = delete;
  MasksTakeLong& operator=(const MasksTakeLong&) = delete;

 private:
  std::latch locked_{1}, over_{1};
  std::jthread thread_;
};

// A scenario drawn at random, on an engine drawn at random.
class Scenario {
 public:
  // Who guesses at the requests' next tokens: one that is right at times, or a draft head.
  enum class Drafts { kNone, kOracle, kHead };
  explicit Scenario(uint32_t seed, Drafts drafts = Drafts::kNone, const KvStoreOptions& store = {})
      : rng_(seed),
        client_rng_(seed),
        wish_rng_(seed),
        run_(below(2) == 0, options(drafts == Drafts::kHead), drafts == Drafts::kHead, seed % 3 > 0, window_),
        alone_(false, {.context = context_, .max_rows = 64, .prefix_cache = false}, false, false, window_) {
    if (prefix_cache_ && store.any()) run_.keep(store);
    if (prefix_cache_ && !store.folder.empty()) files_ = store.folder + "/moesaic-kv";
    if (drafts != Drafts::kOracle) return;
    auto drafter = std::make_unique<OracleDrafter>(below(11) / 10.0, seed);
    drafter->costly = below(3) == 0;
    oracle_ = drafter.get();
    run_.engine.speculate(std::move(drafter), below(kMostDraft + 1));
  }

  void play() {
    for (int i = 0; i < 40; ++i) {
      submit();
      for (int s = below(6); s > 0; --s) step();
    }
    while (!run_.engine.idle()) step();
    masks_take_long_.reset();
    const EngineStats end = run_.engine.stats();
    EXPECT_EQ(end.full.used + end.window.used + end.running + end.waiting, 0);
    expect_what_each_gives_alone();
  }
  EngineStats stats() const { return run_.engine.stats(); }
  int steps() const { return steps_; }

 private:
  int below(int n) { return static_cast<int>(rng_() % static_cast<uint32_t>(n)); }

  EngineOptions options(bool drafts) {
    context_ = 100 + below(200);
    const int max_batch = 1 + below(below(2) == 0 ? 4 : 64);
    return {.context = context_,
            .max_batch = max_batch,
            .max_rows = max_batch + below(64 - max_batch + 1),
            .kv_tokens = context_ + below(2 * context_),
            .prefix_cache = prefix_cache_ = below(5) > 0,
            .draft_tokens = drafts ? below(kMostDraft + 1) : 0};
  }

  // A beginning of what was asked or answered before, and something new.
  std::vector<int32_t> prompt() {
    std::vector<int32_t> tokens;
    if (!run_.requests.empty() && below(4) > 0) {
      tokens = run_.requests[below(static_cast<int>(run_.requests.size()))]->tokens;
      if (below(2) == 0) tokens.resize(below(static_cast<int>(tokens.size()) + 1));
    }
    for (int more = below(60); more > 0 || tokens.empty(); --more) tokens.push_back(below(kVocab));
    tokens.resize(std::min(tokens.size(), static_cast<size_t>(context_ - 1)));
    return tokens;
  }

  void submit() {
    SamplingParams p{.temperature = below(3) == 0 ? 0.0 : 1.0, .seed = rng_()};
    p.max_tokens = below(2) == 0 ? 1 + below(80) : 0;
    if (below(3) == 0) p.stop_tokens = many_stops();
    if (below(10) == 0) p.frequency_penalty = 0.5;
    asked_.push_back({prompt(), p, below(5) == 0});
    vary(asked_.back());
    run_.client = std::string(1, static_cast<char>('a' + client_rng_() % clients_));
    Request& request =
        run_.submit(asked_.back().prompt, asked_.back().params, below(10) == 0 ? 1 + below(20) : 0);
    fulfil(asked_.back().wishes, request, shown_prompts_.emplace_back(), shown_answers_.emplace_back());
    if (asked_.back().constrained) grammar_.hold_to(request);
    if (oracle_ == nullptr || (asked_.back().constrained && masks_take_long_)) return;
    const std::vector<int32_t>& answer = run_alone(asked_.size() - 1);
    std::vector<int32_t> text = asked_.back().prompt;
    text.insert(text.end(), answer.begin(), answer.end());
    oracle_->texts[request.id] = std::move(text);
  }

  // Parameters and wishes of all kinds.
  void vary(Asked& asked) {
    const auto one_in = [&](unsigned n) { return wish_rng_() % n == 0; };
    const auto token = [&] { return static_cast<int32_t>(wish_rng_() % kVocab); };
    SamplingParams& p = asked.params;
    if (one_in(2)) return;
    if (one_in(4)) p.top_k = static_cast<int>(wish_rng_() % 10);
    if (one_in(4)) p.top_p = 0.5;
    if (one_in(4)) p.min_p = 0.3;
    if (one_in(4)) p.top_logprobs = static_cast<int>(wish_rng_() % 4);
    if (one_in(8)) p.min_tokens = 20;
    if (one_in(8)) p.presence_penalty = -0.5;
    if (one_in(8)) p.repetition_penalty = 1.3;
    if (one_in(3)) p.penalty_window = 1 + static_cast<int>(wish_rng_() % 40);
    if (one_in(8))
      for (int i = 0; i < 20; ++i) p.logit_bias[token()] = i % 2 == 0 ? 1.0f : -1e4f;
    if (one_in(8))
      for (int32_t t = 0; t < kVocab; t += 2) p.allowed_tokens.push_back(t);
    if (one_in(8))
      for (int32_t t = 0; t < kVocab; ++t) p.bad_words.push_back({t, (t + 1) % kVocab});
    Wishes& w = asked.wishes;
    if (one_in(8)) w.override_at = static_cast<int>(wish_rng_() % 30);
    w.sees_prompt = one_in(10);
    w.sees_logits = one_in(10);
    w.changes_logits = one_in(10);
    if (one_in(6)) w.salt = "salt";
  }

  void step() {
    ++steps_;
    if (below(30) == 0) run_.cancels[below(static_cast<int>(run_.cancels.size()))].request_stop();
    if (!files_.empty() && client_rng_() % 100 == 0) lose_a_file();
    run_.backend.fail_at_ = below(400) == 0 ? run_.backend.begun_ + 1 : -1;
    if (masks_take_long_) {
      if (below(4) == 0) masks_take_long_.reset();
    } else if (below(8) == 0) {
      masks_take_long_.emplace(grammar_);
    }
    const uint64_t begun = run_.backend.begun_;
    const size_t received = tokens_received();
    const bool idle = run_.engine.idle(), fetches = run_.engine.scheduler().fetches();
    (void)run_.engine.step();
    run_.engine.scheduler().check();
    // Requests that ran out of nothing but time make progress.
    EXPECT_TRUE(idle || run_.engine.idle() || run_.backend.begun_ > static_cast<int>(begun) ||
                tokens_received() > received || ends_in_flight() || waits_for_masks() ||
                run_.engine.scheduler().fetches() || fetches);
  }
  void lose_a_file() const {
    for (const auto& entry : std::filesystem::directory_iterator(files_)) {
      if (!entry.path().has_extension() || client_rng_() % 4 != 0) continue;
      std::error_code gone;  // it may have had to make room
      std::filesystem::remove(entry.path(), gone);
      return;
    }
  }
  size_t tokens_received() const {
    size_t tokens = 0;
    for (const auto& of : run_.received) tokens += of.size();
    return tokens;
  }
  // The step had nothing to launch: all that is left ended with the token that it took, or was cancelled.
  bool ends_in_flight() const { return run_.engine.stats().running == 0; }

  bool waits_for_masks() const {
    return std::any_of(run_.requests.begin(), run_.requests.end(),
                       [](const auto& r) { return !r->held.empty() || (r->awaits_mask && !r->done()); });
  }

  // Returns the answer that the request gets when it runs alone.
  const std::vector<int32_t>& run_alone(size_t request) {
    const auto [at, is_new] = alone_index_.emplace(request, alone_.requests.size());
    if (is_new) {
      Request& r = alone_.submit(asked_[request].prompt, asked_[request].params);
      fulfil(asked_[request].wishes, r, alone_prompts_.emplace_back(), alone_answers_.emplace_back());
      if (asked_[request].constrained) grammar_.hold_to(r);
      EXPECT_TRUE(alone_.engine.run_to_end().ok());
    }
    return alone_.received[at->second];
  }

  void expect_what_each_gives_alone() {
    for (size_t i = 0; i < asked_.size(); ++i) {
      std::vector<int32_t> received = run_alone(i);
      const Request &got = *run_.requests[i], &want = *alone_.requests[alone_index_[i]];
      const bool whole = got.finish == FinishReason::kStop || got.finish == FinishReason::kLength;
      EXPECT_TRUE(!whole || got.finish == want.finish);
      if (!whole) received.resize(std::min(received.size(), run_.received[i].size()));
      EXPECT_EQ(run_.received[i], received) << "request " << i;
      expect_beginning(run_.received_logprobs[i], alone_.received_logprobs[alone_index_[i]], whole);
      expect_beginning(shown_prompts_[i], alone_prompts_[alone_index_[i]], whole);
      expect_beginning(shown_answers_[i], alone_answers_[alone_index_[i]], whole);
    }
  }

  template <typename T>
  static void expect_beginning(const std::vector<T>& got, std::vector<T> want, bool whole) {
    if (!whole) want.resize(std::min(want.size(), got.size()));
    EXPECT_TRUE(got == want);
  }

  std::mt19937 rng_;
  mutable std::mt19937 client_rng_;
  std::mt19937 wish_rng_;
  int window_ = std::array{1, 20, 31, 32, 33, 64, 64, 64, 100, 1000}[wish_rng_() % 10];
  int context_ = 0;
  bool prefix_cache_ = false;
  std::string files_;  // the store's folder
  Grammar grammar_;
  std::optional<MasksTakeLong> masks_take_long_;
  Harness run_, alone_;
  std::map<size_t, size_t> alone_index_;  // by request: its place in alone_
  std::deque<Shown> shown_prompts_, shown_answers_, alone_prompts_, alone_answers_;  // stay where they are
  OracleDrafter* oracle_ = nullptr;
  std::vector<Asked> asked_;
  int steps_ = 0;
  unsigned clients_ = 1 + client_rng_() % 5;
};

TEST(Load, EachRequestGivesWhatItGivesAlone) {
  uint64_t preemptions = 0, hits = 0;
  for (uint32_t seed = 0; seed < 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Scenario scenario(seed);
    scenario.play();
    preemptions += scenario.stats().preemptions;
    hits += scenario.stats().prefix_hits;
  }
  EXPECT_GT(preemptions, 300u);
  EXPECT_GT(hits, 10000u);
}

// Parts go to host memory and to a folder that are too small for them, and come back, over restarts too.
// Files get lost.
void expect_stores_change_no_token(uint32_t scenarios) {
  const TemporaryFolder folder;
  KvStoreStats total;
  std::mt19937 rng(7);
  for (uint32_t i = 0; i < scenarios && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(i);
    const KvStoreOptions where{.host_bytes = i % 3 == 0 ? 0 : 256 * (2 + rng() % 200),
                               .folder = i % 3 == 1 ? "" : folder.path(),
                               .disk_bytes = 4096 * (1 + rng() % 200)};
    // The same texts come again, in another engine.
    Scenario scenario(3000 + i / 2, static_cast<Scenario::Drafts>(i / 2 % 3), where);
    scenario.play();
    const KvStoreStats s = scenario.stats().store;
    total.fetched_tokens += s.fetched_tokens, total.abandoned += s.abandoned;
    total.host.read_bytes += s.host.read_bytes, total.disk.read_bytes += s.disk.read_bytes;
    total.host.dropped += s.host.dropped, total.disk.damaged += s.disk.damaged;
  }
  EXPECT_GT(total.fetched_tokens, 100u * scenarios);
  EXPECT_GT(total.host.read_bytes, 0u);
  EXPECT_GT(total.disk.read_bytes, 0u);
  // For that a file must be lost just as it is wanted.
  EXPECT_TRUE(total.abandoned > 0 || scenarios < 100);
  testing::Test::RecordProperty("fetched_tokens", std::to_string(total.fetched_tokens));
  testing::Test::RecordProperty("abandoned", std::to_string(total.abandoned));
}

TEST(Load, BlocksThatOutliveTheirPagesChangeNoToken) { expect_stores_change_no_token(24); }
// 10,400 requests.
TEST(Load, DISABLED_BlocksThatOutliveTheirPagesChangeNoTokenForLong) { expect_stores_change_no_token(260); }

// Plays scenarios of at least 10,000 steps.
void expect_no_token_changed(Scenario::Drafts drafts) {
  SpeculationStats total;
  uint64_t preemptions = 0;
  int steps = 0;
  for (uint32_t seed = 1000; steps < 10000 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    Scenario scenario(seed, drafts);
    scenario.play();
    const SpeculationStats s = scenario.stats().speculation;
    total.drafts += s.drafts, total.drafted += s.drafted, total.accepted += s.accepted;
    preemptions += scenario.stats().preemptions;
    steps += scenario.steps();
  }
  EXPECT_GT(preemptions, 50u);
  EXPECT_GT(total.drafts, 3000u);
  EXPECT_GT(total.accepted, total.drafted / 10);
  EXPECT_LT(total.accepted, total.drafted * 9 / 10);
}

TEST(Load, DraftsChangeNoToken) { expect_no_token_changed(Scenario::Drafts::kOracle); }
TEST(Load, AHeadsDraftsChangeNoToken) { expect_no_token_changed(Scenario::Drafts::kHead); }

// The masks of a hostile schema may take long; a request that waits for its own sits out steps, and that is
// all.
TEST(Load, DecodingGoesOnBesideMasksThatTakeLong) {
  for (const auto& [samples, edits] : {std::pair(false, false), {true, false}, {true, true}}) {
    Grammar grammar;
    Harness run(samples, {.context = 400, .max_batch = 4}, false, edits);
    run.submit(10, {.temperature = 0});
    while (run.received[0].size() < 3) ASSERT_TRUE(run.engine.step().ok());
    std::optional<MasksTakeLong> masks_take_long(grammar);
    for (int i = 1; i < 4; ++i) grammar.hold_to(run.submit(10, {.seed = 7, .max_tokens = 20}));
    const size_t before = run.received[0].size();
    for (size_t step = 1; step <= 50; ++step) {
      ASSERT_TRUE(run.engine.step().ok());
      EXPECT_GE(run.received[0].size() + 1, before + step);  // a device that samples is a token behind
    }
    EXPECT_TRUE(run.received[1].empty() && run.received[2].empty() && run.received[3].empty());
    run.cancels[3].request_stop();
    ASSERT_TRUE(run.engine.step().ok());
    EXPECT_EQ(run.requests[3]->finish, FinishReason::kCancelled);
    masks_take_long.reset();
    ASSERT_TRUE(run.engine.run_to_end().ok());
    EXPECT_EQ(run.received[1], run.received[2]);
    Harness alone(samples, {.context = 400});
    grammar.hold_to(alone.submit(10, {.seed = 7, .max_tokens = 20}));
    ASSERT_TRUE(alone.engine.run_to_end().ok());
    EXPECT_EQ(run.received[1], alone.received[0]);
  }
}

// A list of tokens that the grammar does not take.
TEST(Load, ARequestThatAllowsNoTokenEndsAlone) {
  for (const bool edits : {false, true}) {
    Grammar grammar;
    Harness run(true, {.context = 100, .max_batch = 4}, false, edits);
    run.submit(10, {.seed = 4, .max_tokens = 20});
    grammar.hold_to(run.submit(10, {.max_tokens = 20, .allowed_tokens = {kVocab - 1}}));
    ASSERT_TRUE(run.engine.run_to_end().ok());
    EXPECT_EQ(run.received[0].size(), 20u);
    EXPECT_EQ(run.requests[1]->finish, FinishReason::kError);
    EXPECT_EQ(run.requests[1]->error.message(), "at step 0 the request allows no token");
  }
}

constexpr std::chrono::steady_clock::time_point kNever(std::chrono::hours(24 * 365 * 10));

// A request that waits for its mask loses its pages, and its mask is there while its logits are computed
// again.
TEST(Load, AMaskMayComeWhileAPreemptedRequestIsComputedAgain) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const bool device = seed % 2 == 1;  // it works a step ahead
    Grammar grammar(R"({"type": "string", "minLength": 100})");
    const SamplingParams params{.seed = seed, .max_tokens = 40};
    Harness alone(false, {.context = 128});  // first: its masks are then cached
    grammar.hold_to(alone.submit(60, params));
    ASSERT_TRUE(alone.engine.run_to_end().ok());

    Harness run(device,
                {.context = 128, .max_batch = 2, .max_rows = 64, .kv_tokens = 160, .prefix_cache = false},
                false, seed % 4 == 3);
    run.submit(20, {.temperature = 0, .max_tokens = 100});
    grammar.hold_to(run.submit(60, params));
    for (int step = 0; step < 12; ++step) ASSERT_TRUE(run.engine.step().ok());
    std::optional<MasksTakeLong> masks_take_long(grammar);
    run.backend.when_begun_ = [&](const Batch& batch) {
      if (!masks_take_long || batch.logit_rows.empty() || batch.sequences.back().rows == 1) return;
      masks_take_long.reset();
      run.requests[1]->sampler->wait_until(kNever);
    };
    ASSERT_TRUE(run.engine.run_to_end().ok());
    EXPECT_GT(run.engine.stats().preemptions, 0u);
    EXPECT_FALSE(masks_take_long);
    EXPECT_EQ(run.received[1], alone.received[0]) << seed;
  }
}

TEST(Load, DecodingGoesOnBesideLongPrompts) {
  Harness run(false, {.context = 400, .max_batch = 8, .max_rows = 16});
  for (int i = 0; i < 3; ++i) run.submit(10, {.temperature = 0});
  while (run.received[2].empty()) ASSERT_TRUE(run.engine.step().ok());
  for (int i = 0; i < 3; ++i) run.submit(300 + i, {.temperature = 0, .max_tokens = 1});
  const auto before = run.received;
  size_t steps = 0;
  for (; run.received[5].empty(); ++steps) {
    ASSERT_TRUE(run.engine.step().ok());
    for (int i = 0; i < 3; ++i) ASSERT_EQ(run.received[i].size(), before[i].size() + steps + 1);
    EXPECT_TRUE(run.received[4].empty() || !run.received[3].empty());  // first come, first served
  }
  EXPECT_EQ(steps, (300u + 301 + 302 + 12) / 13);  // no row is left idle
}

// A step that throws has computed nobody knows what: nothing of it is found by later requests.
TEST(Load, AStepThatThrowsLeavesNothingInTheCache) {
  for (const bool samples : {false, true}) {
    const EngineOptions options{.context = 400, .max_batch = 2, .max_rows = 64};
    Harness run(samples, options), alone(samples, options);
    run.submit(20, {.temperature = 0, .max_tokens = 5});
    ASSERT_TRUE(run.engine.step().ok());
    run.submit(100, {.temperature = 0, .max_tokens = 5});
    run.backend.when_begun_ = [](const Batch&) { throw std::bad_alloc(); };
    EXPECT_THROW((void)run.engine.step(), std::bad_alloc);
    run.backend.when_begun_ = nullptr;
    EXPECT_EQ(run.engine.stats().running + run.engine.stats().waiting, 0);
    EXPECT_EQ(run.engine.stats().full.used, 0);
    ASSERT_TRUE(run.engine.run_to_end().ok());
    for (const auto& r : run.requests) EXPECT_EQ(r->finish, FinishReason::kError);
    run.engine.scheduler().check();
    EXPECT_EQ(run.engine.stats().full.cached, 0);
    const Request& again = run.submit(100, {.temperature = 0, .max_tokens = 5});
    ASSERT_TRUE(run.engine.run_to_end().ok());
    const Request& want = alone.submit(100, {.temperature = 0, .max_tokens = 5});
    ASSERT_TRUE(alone.engine.run_to_end().ok());
    EXPECT_EQ(again.reused, 0);
    EXPECT_EQ(again.tokens, want.tokens);
  }
}

// Has no memory once, behind all changes of the logits.
struct FullOverride final : TokenOverride {
  int32_t instead_of(int32_t sampled) override {
    if (std::exchange(fails, false)) throw std::bad_alloc();
    return sampled;
  }
  void said(int32_t) override {}
  int untouched() const override { return 0; }
  bool fails = true;
};

// Its logits have their penalties already, and would get them a second time.
TEST(Load, ATokenWithoutMemoryIsNotPickedAgain) {
  Harness run(false, {.context = 100, .max_batch = 2, .parallel_logits = 1});
  for (int i = 0; i < 2; ++i) run.submit(10, {.frequency_penalty = 0.5, .max_tokens = 20});
  run.requests[1]->sampler->follow(std::make_unique<FullOverride>());
  ASSERT_TRUE(run.engine.run_to_end().ok());
  EXPECT_EQ(run.received[0].size(), 20u);
  EXPECT_EQ(run.requests[1]->error.code(), StatusCode::kOutOfMemory);
}

// A request may ask for the impossible: that says nothing about the pages.
TEST(Load, OnlyErrorsOfTheDeviceEmptyTheCache) {
  for (const StatusCode code : {StatusCode::kUnsupported, StatusCode::kInternal}) {
    Scheduler scheduler({.page_tokens = kPageTokens, .full_pages = 8, .window_pages = 8}, 64,
                        {.max_batch = 2});
    const auto submit = [&](int tokens) {
      auto r = std::make_shared<Request>();
      r->tokens.assign(tokens, 1);
      r->prompt_tokens = tokens, r->limit = 128;
      r->sampler = std::make_unique<Sampler>(r->params, r->tokens);
      scheduler.submit(r);
      return r;
    };
    const auto failing = submit(70), other = submit(40);
    EXPECT_EQ(scheduler.next_batch(false).batch.rows(), 110);
    failing->finish = FinishReason::kError;
    failing->error = Status(code, "an error");
    scheduler.collect();
    scheduler.check();
    EXPECT_EQ(scheduler.stats().full.cached, code == StatusCode::kInternal ? 0 : 2);
    EXPECT_EQ(scheduler.stats().full.used, 2);
    std::stop_source cancel;
    other->cancel = cancel.get_token();
    cancel.request_stop();
    scheduler.collect();
    scheduler.check();
    EXPECT_EQ(scheduler.stats().full.used, 0);
  }
}

TEST(Load, TheYoungestYieldsAndGoesOnWhereItWas) {
  Harness run(false, {.context = 128, .max_batch = 3, .max_rows = 64, .kv_tokens = 160});
  for (int i = 0; i < 3; ++i) run.submit(20 + i, {.temperature = 0});
  ASSERT_TRUE(run.engine.step().ok());
  EXPECT_EQ(run.engine.stats().running, 3);
  while (run.engine.stats().preemptions == 0) ASSERT_TRUE(run.engine.step().ok());
  EXPECT_EQ(run.engine.stats().waiting, 1);
  const size_t yielded = run.received[2].size();
  EXPECT_GT(yielded, 0u);
  ASSERT_TRUE(run.engine.step().ok());
  EXPECT_EQ(run.received[2].size(), yielded);
  EXPECT_GT(run.received[0].size(), run.received[2].size());
  ASSERT_TRUE(run.engine.run_to_end().ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run.received[i].size(), 128u - 20 - i);
}

}  // namespace
}  // namespace moesaic

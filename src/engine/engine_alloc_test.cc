// Steps while memory runs out: whichever allocation fails, no page and no request is lost.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "engine/late_backend.h"
#include "engine/small_model_test.h"
#include "grammar/mask_cache.h"
#include "text/small_tokenizer.h"

namespace {

thread_local int allocations_left = 0;  // before one of this thread's fails; 0: none does
thread_local bool goes_on = false;      // all allocations after it fail, too
std::atomic<int> any_left = 0;          // the same of all threads
std::atomic<bool> any_goes_on = false;

void* allocate(size_t size) {
  if (allocations_left > 0 && --allocations_left == 0) {
    if (goes_on) allocations_left = 1;
    throw std::bad_alloc();
  }
  if (any_left.load(std::memory_order_relaxed) > 0 && any_left.fetch_sub(1) == 1) {
    if (any_goes_on) any_left = 1;
    throw std::bad_alloc();
  }
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void* operator new(size_t size, const std::nothrow_t&) noexcept {  // std::stable_sort calls it
  try {
    return allocate(size);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
void* operator new(size_t size, std::align_val_t align) {
  std::free(allocate(1));  // it fails as any other
  const auto unit = static_cast<size_t>(align);
  return std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace moesaic {
namespace {

// Three clients, prompts with common beginnings, fewer pages than are wanted, and a store.
class Scarce {
 public:
  explicit Scarce(uint32_t seed)
      : rng_(seed),
        run_(seed % 2 == 0,
             {.context = 200,
              .max_batch = 1 + below(5),
              .max_rows = 64,
              .kv_tokens = 200 + below(200),
              .draft_tokens = seed % 3 < 2 ? 4 : 0,
              .parallel_logits = below(2) == 0 ? 0u : 1u << 17},
             seed % 3 == 1, below(2) == 0) {
    if (seed % 4 < 2) run_.keep({.host_bytes = 1 << 16});
    if (seed % 3 == 0) run_.engine.speculate(make_drafter(DrafterKind::kNgram), 4);
  }
  int play() {
    for (int i = 0; i < 30; ++i) {
      submit();
      for (int steps = below(6); steps > 0; --steps) step();
    }
    while (!run_.engine.idle()) step();
    const EngineStats end = run_.engine.stats();
    EXPECT_EQ(end.full.used + end.window.used + end.clients, 0);
    for (const auto& r : run_.requests) EXPECT_TRUE(r->done());
    // The masks of the grammar that were made meanwhile are right.
    grammar::MaskCache masks(tokenizer_);
    Harness alone(false, {.context = 200});
    for (Harness* harness : {&run_, &alone}) {
      Request& r = harness->submit(1, {.seed = 5, .max_tokens = 80});
      r.sampler->follow((harness == &run_ ? masks_ : masks).async_matcher(grammar_));
      EXPECT_TRUE(harness->engine.run_to_end().ok());
    }
    EXPECT_EQ(run_.received.back(), alone.received.back());
    return failed_;
  }

 private:
  int below(int n) { return static_cast<int>(rng_() % static_cast<uint32_t>(n)); }
  void submit() {
    std::vector<int32_t> prompt;
    const int kind = below(3);
    for (int i = below(100); i >= 0; --i) prompt.push_back(kind);
    for (int i = below(40); i >= 0; --i) prompt.push_back(below(kVocab));
    run_.client = std::string(1, static_cast<char>('a' + below(3)));
    SamplingParams p{.seed = rng_(), .max_tokens = 1 + below(60)};
    if (below(4) == 0) p.top_logprobs = below(3);
    if (below(4) == 0) p.repetition_penalty = 1.2, p.penalty_window = below(20);
    if (below(4) == 0) p.bad_words = {{1, 2}, {3}};
    if (below(4) == 0) p.allowed_tokens = many_stops();
    const bool shown = below(8) == 0, watched = below(8) == 0;
    Request& r = run_.submit(std::move(prompt), p);
    if (shown) r.reuse_prefix = false, r.on_prompt_logits = [](int, std::span<const float>) {};
    if (watched) r.on_logits = [](int, std::span<const float>) {};
    if (p.allowed_tokens.empty() && below(2) == 0) r.sampler->follow(masks_.async_matcher(grammar_));
  }
  void step() {
    if (below(8) == 0) allocations_left = 1 + below(below(2) == 0 ? 20 : 500);
    goes_on = below(2) == 0;
    try {
      (void)run_.engine.step();
    } catch (const std::bad_alloc&) {
      ++failed_;
    }
    allocations_left = 0;
    run_.engine.scheduler().check();
  }

  std::mt19937 rng_;
  Tokenizer tokenizer_ = small::tokenizer();
  grammar::MaskCache masks_{tokenizer_};
  AnswerGrammar grammar_ =
      AnswerGrammar::compile({.json_schema = R"({"type": "array", "items": {"type": "object", "properties": {
              "a": {"type": "string", "maxLength": 30}, "b": {"type": "integer"}}, "required": ["a"]}})"})
          .value();
  Harness run_;
  int failed_ = 0;
};

TEST(EngineAlloc, AStepWithoutMemoryLosesNothing) {
  int failed = 0;
  for (uint32_t seed = 0; seed < 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    failed += Scarce(seed).play();
  }
  EXPECT_GT(failed, 500);
}

// Prompts begin with what the cache has and go on with what only the store has, whichever allocation fails.
TEST(EngineAlloc, ABeginningFromTheStoreIsTakenWholeOrNotAtAll) {
  int failed = 0;
  for (int allocation = 1; allocation < 80; ++allocation) {
    SCOPED_TRACE(allocation);
    Harness run(false, {.context = 400, .max_rows = 64, .kv_tokens = 448});
    const KvStore* const store = run.keep({.host_bytes = 1 << 20});
    for (const int prompt : {300, 301, 300}) {
      Request& r = run.submit(prompt, {.max_tokens = 1});
      allocations_left = run.requests.size() == 3 ? allocation : 0;
      try {
        EXPECT_TRUE(run.engine.step().ok());
      } catch (const std::bad_alloc&) {
        ++failed;
      }
      allocations_left = 0;
      run.engine.scheduler().check();
      EXPECT_TRUE(run.engine.run_to_end().ok());
      EXPECT_TRUE(r.done());
      store->settle();
    }
  }
  EXPECT_GT(failed, 10);
}

TEST(EngineAlloc, AStateThatIsNotSavedOrLoadedKeepsNoPage) {
  Harness run(false, {.context = 400, .max_rows = 64, .kv_tokens = 512});
  const KvState state = run.engine.kv_state(1);
  const Request& r = run.submit(300, {.max_tokens = 1});
  ASSERT_TRUE(run.engine.run_to_end().ok());
  std::string bytes = save_prefix(state, r.tokens).value();
  seal_saved(bytes);
  const std::vector<int32_t> tokens = read_saved(state, bytes).value();
  int failed = 0;
  for (int allocation = 1; allocation < 200; ++allocation) {
    for (const std::string salt : {"", "another"}) {
      allocations_left = allocation;
      try {
        static_cast<void>(salt.empty() ? save_prefix(state, tokens).status()
                                       : load_prefix(state, bytes, tokens, salt));
      } catch (const std::bad_alloc&) {
        ++failed;
      }
      allocations_left = 0;
      run.engine.scheduler().check();
    }
  }
  EXPECT_GT(failed, 20);
}

TEST(EngineAlloc, AThreadPoolWithoutMemoryHasFewerThreads) {
  const ThreadPlan plan{.threads = 4, .cpus = 4, .nodes = {{.threads = 4}}};
  int fewer = 0;
  for (int allocation = 1; allocation < 30; ++allocation) {
    allocations_left = allocation;
    try {
      const ThreadPool pool(plan);
      fewer += pool.threads() < 4 ? 1 : 0;
    } catch (const std::bad_alloc&) {
    }
    allocations_left = 0;
  }
  EXPECT_GT(fewer, 0);
}

// A real model's steps, any of whose allocations may fail on any thread.
TEST(EngineAlloc, AModelsStepWithoutMemoryChangesNoLaterAnswer) {
  const ModelConfig config = small_config(2);
  for (const int tp : {1, 2}) {
    auto backend = create_backend("cpu", {.tp = tp, .threads = 2, .max_rows = 64}).value();
    ASSERT_TRUE(backend->load(config, make_random_model(config, {}), {}).ok());
    Engine engine =
        Engine::create(*backend, config, {.context = 256, .max_batch = 4, .max_rows = 64}).value();
    std::mt19937 rng(1);
    const auto submit = [&](uint32_t n) {
      std::vector<int32_t> prompt(1 + n * 37 % 150);
      for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>((n * 31 + i * i) % 300);
      return engine.submit(prompt, {.seed = n, .max_tokens = 20}, [](const SampledToken&) {}).value();
    };
    std::vector<std::vector<int32_t>> want;
    for (uint32_t n = 0; n < 10; ++n) {
      const auto r = submit(n);
      EXPECT_TRUE(engine.run_to_end().ok());
      want.push_back(r->tokens);
    }
    int failed = 0, whole = 0;
    for (int turn = 0; turn < 150; ++turn) {
      const uint32_t n = rng() % 10;
      const auto r = submit(n);
      while (!engine.idle()) {
        any_goes_on = rng() % 2 == 0;
        if (rng() % 40 == 0) any_left = 1 + static_cast<int>(rng() % (rng() % 2 == 0 ? 20 : 150));
        try {
          if (!engine.step().ok()) ++failed;
        } catch (const std::bad_alloc&) {
          ++failed;
        }
        any_left = 0;
        engine.scheduler().check();
      }
      if (r->finish != FinishReason::kLength) continue;
      ++whole;
      EXPECT_EQ(r->tokens, want[n]);
    }
    EXPECT_GT(failed, 10);
    EXPECT_GT(whole, 10);
  }
}

}  // namespace
}  // namespace moesaic

// Steps while memory runs out: whichever allocation fails, no page and no request is lost.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <random>

#include "engine/late_backend.h"
#include "grammar/mask_cache.h"
#include "text/small_tokenizer.h"

namespace {

thread_local int allocations_left = 0;  // before one of this thread's fails; 0: none does

void* allocate(size_t size) {
  if (allocations_left > 0 && --allocations_left == 0) throw std::bad_alloc();
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
        run_(seed % 2 == 0, {.context = 200,
                             .max_batch = 1 + below(5),
                             .max_rows = 64,
                             .kv_tokens = 200 + below(200),
                             .draft_tokens = seed % 3 == 0 ? 4 : 0}) {
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
    Request& r = run_.submit(std::move(prompt), {.seed = rng_(), .max_tokens = 1 + below(60)});
    if (below(2) == 0) r.sampler->follow(masks_.async_matcher(grammar_));
  }
  void step() {
    if (below(8) == 0) allocations_left = 1 + below(below(2) == 0 ? 20 : 500);
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

}  // namespace
}  // namespace moesaic

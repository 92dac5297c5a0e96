// Requests that wait begin, and get their rows, whatever the others have.
#include <semaphore>

#include "engine/late_backend.h"

namespace moesaic {
namespace {

// Two answers whose drafts take all rows that a step has left for drafts.
TEST(RequestBegins, BesideTheLongestDrafts) {
  for (const int mixed_rows : {0, 20}) {
    SCOPED_TRACE(mixed_rows);
    Harness run(true,
                {.context = 1000,
                 .max_batch = 3,
                 .max_rows = mixed_rows > 0 ? 64 : 34,
                 .mixed_rows = mixed_rows,
                 .draft_tokens = kMostDraft},
                true);
    for (int i = 0; i < 2; ++i) run.submit(20 + i, {.temperature = 0});
    for (int step = 0; step < 6; ++step) ASSERT_TRUE(run.engine.step().ok());
    ASSERT_GT(run.engine.stats().speculation.accepted, 20u);
    const Request& late = run.submit(40, {.temperature = 0, .max_tokens = 1});
    for (int step = 0; step < 8; ++step) ASSERT_TRUE(run.engine.step().ok());
    EXPECT_TRUE(late.done());
    EXPECT_FALSE(run.requests[0]->done() || run.requests[1]->done());
  }
}

// A tier that gives so many parts and no more while it is shut.
class GatedTier final : public KvTier {
 public:
  bool has(const KvPartId& id) const override { return tier_.has(id); }
  void touch(const KvPart& part) override { tier_.touch(part); }
  bool put(const KvPart& part, std::span<const std::byte> bytes) override { return tier_.put(part, bytes); }
  std::shared_ptr<const KvBytes> get(const KvPart& part, size_t bytes) override {
    parts_.acquire();
    return tier_.get(part, bytes);
  }
  KvTierStats stats() const override { return tier_.stats(); }
  void give(int parts) { parts_.release(parts); }
  void shut() {
    while (parts_.try_acquire()) continue;
  }

 private:
  HostTier tier_{1 << 20};
  std::counting_semaphore<> parts_{1 << 10};
};

struct Gated {
  ModelConfig config{
      .layers = 2, .vocab = kVocab, .window = 128, .sliding = {true, false}, .max_context = 512};
  LateBackend backend{false};
  GatedTier* tier = nullptr;
  std::optional<Engine> engine;

  Gated() {
    EXPECT_TRUE(backend.load(config, {}, {}).ok());
    engine.emplace(
        Engine::create(backend, config, {.context = 512, .max_batch = 8, .max_rows = 256, .kv_tokens = 512})
            .value());
    auto gated = std::make_unique<GatedTier>();
    tier = gated.get();
    const KvStoreOptions options{.folder = "none", .readers = 1, .least_patience = std::chrono::minutes(1)};
    EXPECT_TRUE(engine->keep({.options = options, .disk = std::move(gated)}, 1).ok());
  }
  // `shared` tokens that all such prompts begin with, and others.
  std::shared_ptr<Request> submit(int shared, int own, int kind) {
    std::vector<int32_t> prompt;
    for (int i = 0; i < shared; ++i) prompt.push_back(i * i % kVocab);
    for (int i = 0; i < own; ++i) prompt.push_back((31 * kind + 7 * i) % kVocab);
    return engine->submit(std::move(prompt), {.temperature = 0, .max_tokens = 9}, [](const SampledToken&) {})
        .value();
  }
  std::shared_ptr<Request> ask(int shared, int own, int kind) {
    auto request = submit(shared, own, kind);
    EXPECT_TRUE(engine->run_to_end().ok());
    engine->store()->settle();
    return request;
  }
};

// Four requests share the blocks that they begin with, and each fetches these blocks' windows for itself: as
// many pages as there are. The first one that has its own needs a page more.
TEST(RequestBegins, BesideOthersThatFetchTheSameWindows) {
  constexpr int kShared = 4 * kPageTokens;
  Gated kept;
  for (const auto& [own, kind] : {std::pair(195, 1), {70, 2}, {70, 3}}) kept.ask(kShared, own, kind);
  for (const int kind : {4, 5}) kept.ask(0, 490, kind);  // takes all pages
  EXPECT_EQ(kept.ask(kShared, 195, 1)->reused, kShared + 192);
  kept.tier->shut();
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 4; ++i) requests.push_back(kept.submit(kShared, 5, 10 + i));
  ASSERT_TRUE(kept.engine->step().ok());
  ASSERT_EQ(kept.engine->stats().window.used, kept.engine->stats().window.total);
  kept.tier->give(4);
  while (!requests[0]->begun) ASSERT_TRUE(kept.engine->step().ok());
  kept.engine->scheduler().check();
  kept.tier->give(100);
  ASSERT_TRUE(kept.engine->run_to_end().ok());
  kept.engine->scheduler().check();
  EXPECT_EQ(kept.engine->stats().store.abandoned, 0u);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(requests[static_cast<size_t>(i)]->reused, kShared);
    Gated alone;
    EXPECT_EQ(requests[static_cast<size_t>(i)]->tokens, alone.ask(kShared, 5, 10 + i)->tokens);
  }
}

}  // namespace
}  // namespace moesaic

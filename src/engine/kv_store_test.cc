// Blocks that outlive their pages: in host memory, and on disk over a restart.
#include <sys/resource.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <semaphore>
#include <thread>

#include "backend/idle_backend.h"
#include "base/temporary_folder.h"
#include "engine/kv_layout.h"
#include "engine/late_backend.h"
#include "engine/small_model_test.h"

namespace moesaic {
namespace {

constexpr uint64_t kPlenty = 64 << 20;

std::vector<int32_t> text(int tokens, int kind = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) prompt[static_cast<size_t>(i)] = (kind * 31 + i * i + 1) % kVocab;
  return prompt;
}

// An engine whose blocks outlive their pages.
struct Kept {
  Kept(bool samples, const EngineOptions& options, const KvStoreOptions& where, uint64_t fingerprint = 1,
       bool head = false)
      : run(samples, options, head) {
    store = run.keep(where, fingerprint);
  }
  const Request& ask(std::vector<int32_t> prompt, int tokens = 40, const std::string& salt = {}) {
    auto request =
        run.engine.prepare(std::move(prompt), {.seed = 3, .max_tokens = tokens}, [](const SampledToken&) {})
            .value();
    request->pages.salt = salt;
    run.engine.add(request);
    run.requests.push_back(request);
    EXPECT_EQ(run.engine.run_to_end().message(), "");
    run.engine.scheduler().check();
    store->settle();
    return *run.requests.back();
  }
  Harness run;
  const KvStore* store = nullptr;
};

// One conversation at a time fits.
constexpr EngineOptions kSmall{.context = 600, .max_rows = 64, .kv_tokens = 600};

class Store : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Samples, Store, testing::Bool(),
                         [](const auto& i) { return i.param ? "device" : "host"; });

TEST_P(Store, APromptComesBackFromHostMemory) {
  Kept kept(GetParam(), kSmall, {.host_bytes = kPlenty});
  Harness lone(GetParam(), kSmall);
  const std::vector<int32_t> first = kept.ask(text(300)).tokens;
  EXPECT_EQ(kept.ask(text(500, 1)).reused, 0);  // takes all pages
  EXPECT_EQ(kept.ask(text(300)).tokens, first);
  EXPECT_EQ(kept.run.requests.back()->reused, 288);
  // The next turn goes on from the answer.
  kept.ask(text(500, 2));
  std::vector<int32_t> turn = first;
  turn.insert(turn.end(), 50, 9);
  const Request& next = kept.ask(turn);
  EXPECT_EQ(next.reused, 320);
  const Request& want = lone.submit(turn, {.seed = 3, .max_tokens = 40});
  ASSERT_TRUE(lone.engine.run_to_end().ok());
  EXPECT_EQ(next.tokens, want.tokens);
  const EngineStats stats = kept.run.engine.stats();
  EXPECT_EQ(stats.store.fetched_tokens, 288u + 320u - 128u);  // the cache had the beginning of the turn
  EXPECT_GT(stats.store.host.read_bytes, 0u);
  EXPECT_EQ(stats.store.abandoned, 0u);
}

TEST_P(Store, APromptIsFoundAfterARestart) {
  const TemporaryFolder folder;
  std::vector<int32_t> first;
  {
    Kept kept(GetParam(), kSmall, {.folder = folder.path(), .disk_bytes = kPlenty});
    first = kept.ask(text(300)).tokens;
  }
  Kept kept(GetParam(), kSmall, {.folder = folder.path(), .disk_bytes = kPlenty});
  EXPECT_EQ(kept.ask(text(300)).tokens, first);
  EXPECT_EQ(kept.run.requests.back()->reused, 288);
  std::vector<int32_t> turn = first;
  turn.insert(turn.end(), 50, 9);
  EXPECT_EQ(kept.ask(turn).reused, 320);
  EXPECT_EQ(kept.run.engine.stats().store.disk.dropped, 0u);
}

// A window for each block would be as much again.
TEST_P(Store, WindowsAreKeptOnlyWherePromptsGoOn) {
  const TemporaryFolder folder;
  { Kept(GetParam(), kSmall, {.folder = folder.path(), .disk_bytes = kPlenty}).ask(text(500), 60); }
  int full = 0, window = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/moesaic-kv")) {
    full += entry.path().extension() == ".full" ? 1 : 0;
    window += entry.path().extension() == ".win" ? 1 : 0;
  }
  EXPECT_EQ(full, 17);  // 559 tokens, the last of which nothing was computed from
  EXPECT_GE(window, 4);
  EXPECT_LE(window, 6);
}

// Parts that are in neither tier when the process ends are written at that time.
TEST_P(Store, WhatIsAtWorkIsKeptAtTheEnd) {
  const TemporaryFolder folder;
  {
    Kept kept(GetParam(), kSmall, {.folder = folder.path(), .disk_bytes = kPlenty});
    Request& r = kept.run.submit(text(300), {.seed = 3});
    while (r.tokens.size() < 420) ASSERT_TRUE(kept.run.engine.step().ok());
  }
  Kept kept(GetParam(), kSmall, {.folder = folder.path(), .disk_bytes = kPlenty});
  const Request& again = kept.ask(text(300), 200);
  EXPECT_EQ(again.reused, 288);
  std::vector<int32_t> turn(again.tokens.begin(), again.tokens.begin() + 420);
  Kept other(GetParam(), kSmall, {.host_bytes = kPlenty});
  EXPECT_EQ(kept.ask(turn).tokens, other.ask(turn).tokens);
}

// Others' models, formats and salts have other names.
TEST(StoreNames, WhatIsAnothersIsNotFound) {
  const TemporaryFolder folder;
  const KvStoreOptions where{.folder = folder.path(), .disk_bytes = kPlenty};
  { Kept(false, kSmall, where, 1).ask(text(300), 40, "a"); }
  EXPECT_EQ(Kept(false, kSmall, where, 2).ask(text(300), 40, "a").reused, 0);
  EXPECT_EQ(Kept(false, kSmall, where, 1).ask(text(300), 40, "b").reused, 0);
  EXPECT_EQ(Kept(false, kSmall, where, 1).ask(text(300), 40, "a").reused, 288);
}

// While a request waits for its parts the others go on, and pages that it gives up are not written to.
TEST_P(Store, ACancelledFetchLeavesItsPages) {
  EngineOptions options = kSmall;
  options.max_batch = 2, options.kv_tokens = 1200;
  Kept kept(GetParam(), options, {.host_bytes = kPlenty});
  const std::vector<int32_t> first = kept.ask(text(300)).tokens;
  for (int i = 0; i < 50; ++i) {
    kept.ask(text(550, 1)), kept.ask(text(550, 2));
    kept.run.submit(text(300), {.seed = 3, .max_tokens = 40});
    for (int steps = i % 4; steps > 0; --steps) ASSERT_TRUE(kept.run.engine.step().ok());
    kept.run.cancels.back().request_stop();
    ASSERT_TRUE(kept.run.engine.step().ok());
    kept.run.engine.scheduler().check();
  }
  EXPECT_EQ(kept.ask(text(300)).tokens, first);
}

// A step in flight may still write behind the end of a sequence whose page a fetch gets.
TEST(StoreOrder, AFetchBeginsBehindTheStepInFlight) {
  Kept kept(true, kSmall, {.host_bytes = kPlenty});
  std::vector<std::vector<int32_t>> want;
  for (int i = 0; i < 8; ++i) want.push_back(kept.ask(text(200 + 16 * i, i)).tokens);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 8; ++i) {
      auto request =
          kept.run.engine
              .prepare(text(200 + 16 * i, i), {.seed = 3, .max_tokens = 40}, [](const SampledToken&) {})
              .value();
      kept.run.engine.add(request);
      kept.run.requests.push_back(request);
    }
    ASSERT_TRUE(kept.run.engine.run_to_end().ok());
    for (size_t i = 0; i < 8; ++i)
      EXPECT_EQ(kept.run.requests[kept.run.requests.size() - 8 + i]->tokens, want[i]);
  }
  EXPECT_GT(kept.run.engine.stats().store.fetched_tokens, 1000u);
}

// A tier whose reads and writes do not come back while it is shut.
class ShutTier final : public KvTier {
 public:
  bool has(const KvPartId& id) const override { return tier_.has(id); }
  void touch(const KvPart& part) override { wait(), tier_.touch(part); }
  bool put(const KvPart& part, std::span<const std::byte> bytes) override {
    wait();
    return tier_.put(part, bytes);
  }
  std::shared_ptr<const KvBytes> get(const KvPart& part, size_t bytes) override {
    wait();
    return tier_.get(part, bytes);
  }
  KvTierStats stats() const override { return tier_.stats(); }
  void shut(bool value) {
    shut_ = value;
    shut_.notify_all();
  }

 private:
  void wait() const { shut_.wait(true); }
  HostTier tier_{kPlenty};
  std::atomic<bool> shut_ = false;
};

// A disk that hangs costs a request a second at most, and the next ones nothing.
TEST_P(Store, ADiskThatHangsHoldsNobodyUp) {
  auto shut = std::make_unique<ShutTier>();
  ShutTier& disk = *shut;
  Harness run(GetParam(), kSmall);
  const KvStoreOptions options{.folder = "none", .least_patience = std::chrono::minutes(1)};
  ASSERT_TRUE(run.engine.keep({.options = options, .disk = std::move(shut)}, 1).ok());
  const auto ask = [&](int tokens, int kind) -> const Request& {
    run.submit(text(tokens, kind), {.seed = 3, .max_tokens = 40});
    EXPECT_TRUE(run.engine.run_to_end().ok());
    return *run.requests.back();
  };
  const std::vector<int32_t> first = ask(300, 1).tokens;
  run.engine.store()->settle();
  ask(540, 2), run.engine.store()->settle();  // takes all pages
  disk.shut(true);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(ask(300, 1).tokens, first);
  EXPECT_EQ(run.requests.back()->reused, 0);
  EXPECT_EQ(run.engine.stats().store.abandoned, 1u);
  EXPECT_LT(std::chrono::steady_clock::now() - begun,
            std::chrono::seconds(10));  // for a second that it waits
  // The reader hangs, and so does the writer: nothing is looked for any more, and what is offered is dropped.
  while (run.engine.store()->answers()) std::this_thread::yield();
  for (int i = 0; i < 40; ++i) ask(540, 3 + i % 3);
  EXPECT_EQ(run.engine.stats().store.abandoned, 1u);
  EXPECT_EQ(run.engine.stats().store.fetched_tokens, 0u);
  disk.shut(false);
  run.engine.store()->settle();
  while (!run.engine.store()->answers()) std::this_thread::yield();
  EXPECT_GT(run.engine.stats().store.disk.dropped, 0u);
  EXPECT_EQ(ask(300, 1).tokens, first);
  EXPECT_EQ(run.requests.back()->reused, 288);
}

// A tier that has every part, and takes its time to read one.
class SlowTier final : public KvTier {
 public:
  explicit SlowTier(std::chrono::milliseconds time) : time_(time) {}
  bool has(const KvPartId& /*id*/) const override { return true; }
  void touch(const KvPart& /*part*/) override {}
  bool put(const KvPart& /*part*/, std::span<const std::byte> /*bytes*/) override { return true; }
  std::shared_ptr<const KvBytes> get(const KvPart& /*part*/, size_t bytes) override {
    const int reads = ++reads_;
    for (int most = most_; most < reads && !most_.compare_exchange_weak(most, reads);) continue;
    std::this_thread::sleep_for(time_);
    --reads_;
    return std::make_shared<const KvBytes>(bytes);
  }
  KvTierStats stats() const override { return {}; }
  int most_reads() const { return most_; }  // at a time

 private:
  std::chrono::milliseconds time_;
  std::atomic<int> reads_ = 0, most_ = 0;
};

struct SlowFetch {
  KvFetch::State end;
  double seconds;
  int most_reads;  // at a time
};

// Reads 30 parts of 15 ms each for a prompt that takes so many seconds to compute.
SlowFetch slow_fetch(double compute_seconds, int readers) {
  Harness run(false, kSmall);
  const KvLayout layout = kv_layout(run.config, {.context = 1000}).value();
  EXPECT_TRUE(run.backend.alloc_kv(layout).ok());
  auto slow = std::make_unique<SlowTier>(std::chrono::milliseconds(15));
  const SlowTier& tier = *slow;
  KvTiers tiers{.options = {.folder = "none", .readers = readers}, .disk = std::move(slow)};
  const auto store = KvStore::open(std::move(tiers), run.backend, run.config, layout, 1).value();
  std::vector<KvPlace> places;
  for (int32_t page = 0; page < 30; ++page)
    places.push_back({.part = {.id = {.block = {1, static_cast<uint64_t>(page)}}}, .page = page});
  const auto fetch = std::make_shared<KvFetch>(places);
  const auto begun = std::chrono::steady_clock::now();
  store->begin(fetch);
  KvFetch::State state = KvFetch::State::kBegun;
  while ((state = store->state(*fetch, compute_seconds)) == KvFetch::State::kBegun) store->wait();
  store->cancel(*fetch);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begun;
  return {state, seconds.count(), tier.most_reads()};
}

// The store compares the time to read the rest with the time to compute all of it, as far as that is known.
TEST(StoreDisk, ASlowOneIsNotWaitedForWhereComputingIsFaster) {
  EXPECT_EQ(slow_fetch(60, 1).end, KvFetch::State::kArrived);
  EXPECT_EQ(slow_fetch(0, 1).end, KvFetch::State::kArrived);
  const SlowFetch given_up = slow_fetch(0.1, 1);
  EXPECT_EQ(given_up.end, KvFetch::State::kFailed);
  EXPECT_GE(given_up.seconds, 0.1);  // the rate is measured first
}

TEST(StoreDisk, SeveralPartsOfAFetchAreReadAtATime) {
  EXPECT_EQ(slow_fetch(60, 1).most_reads, 1);
  const SlowFetch fetch = slow_fetch(60, 3);
  EXPECT_EQ(fetch.end, KvFetch::State::kArrived);
  EXPECT_EQ(fetch.most_reads, 3);
}

// As on a disk that is full.
TEST(StoreDisk, OneThatTakesNothingChangesNothing) {
  const TemporaryFolder folder;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  std::vector<int32_t> first;
  {
    Kept kept(false, kSmall, {.folder = folder.path(), .disk_bytes = kPlenty});
    const rlimit nothing{.rlim_cur = 100, .rlim_max = before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &nothing), 0);
    first = kept.ask(text(300)).tokens;
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
    kept.ask(text(540, 1));
    EXPECT_EQ(kept.ask(text(300)).tokens, first);
    EXPECT_EQ(kept.run.requests.back()->reused, 0);
    EXPECT_GE(kept.run.engine.stats().store.disk.dropped, 10u);
    EXPECT_EQ(kept.run.engine.stats().store.disk.bytes, 0u);
  }
  Kept kept(false, kSmall, {.folder = folder.path(), .disk_bytes = kPlenty});
  EXPECT_EQ(kept.ask(text(300)).tokens, first);
}

// Files that went bad, as after a power failure, are all found by the first prompt that wants them, and kept
// anew.
TEST(StoreDamage, IsComputedAgainAtOnce) {
  const TemporaryFolder folder;
  const KvStoreOptions where{.folder = folder.path(), .disk_bytes = kPlenty};
  std::vector<int32_t> first;
  {
    Kept kept(false, kSmall, where);
    first = kept.ask(text(300)).tokens;
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder.path() + "/moesaic-kv")) {
    if (entry.path().extension() == ".full") std::filesystem::resize_file(entry.path(), 100);
  }
  constexpr int kFetched = 288;  // tokens
  {
    Kept kept(false, kSmall, where);
    const Request& again = kept.ask(text(300));
    EXPECT_EQ(again.tokens, first);
    EXPECT_EQ(again.reused, 0);
    EXPECT_EQ(kept.run.engine.stats().store.disk.damaged, uint64_t{kFetched / 32});
    EXPECT_EQ(kept.run.engine.stats().store.abandoned, 1u);
  }
  Kept kept(false, kSmall, where);
  const Request& once_more = kept.ask(text(300));
  EXPECT_EQ(once_more.tokens, first);
  EXPECT_EQ(once_more.reused, kFetched);
}

// A fault leaves nothing in doubt behind: what was offered and not copied yet is dropped.
TEST_P(Store, AFaultKeepsWhatWasProven) {
  Kept kept(GetParam(), kSmall, {.host_bytes = kPlenty});
  const std::vector<int32_t> first = kept.ask(text(300)).tokens;
  if (GetParam()) {
    const Request& failing = kept.run.submit(text(200, 4), {.seed = 3, .max_tokens = 40});
    while (failing.generated() < 10) ASSERT_TRUE(kept.run.engine.step().ok());
    kept.run.backend.fail_at_ = kept.run.backend.begun_ + 1;
    while (!kept.run.engine.idle()) (void)kept.run.engine.step();
    kept.run.backend.fail_at_ = -1;
    EXPECT_EQ(kept.run.engine.stats().full.cached, 0);
  }
  EXPECT_EQ(kept.ask(text(300)).tokens, first);
}

// forget_steps() clears the cache on a device that had a fault: a copy that is at work has ended by then.
TEST(StoreFaults, NothingIsCopiedWhileTheCacheIsCleared) {
  Kept kept(true, kSmall, {.host_bytes = kPlenty});
  LateBackend& backend = kept.run.backend;
  std::binary_semaphore reads(0), goes_on(0);
  std::atomic<bool> holds = true, copied = false;
  backend.when_read_ = [&] {
    if (!holds.exchange(false)) return;
    reads.release();
    goes_on.acquire();
    copied = true;
  };
  int forgotten = 0;
  backend.when_forgotten_ = [&] {
    EXPECT_TRUE(copied);
    ++forgotten;
  };
  kept.run.submit(text(300), {.seed = 3, .max_tokens = 40});
  EXPECT_EQ(kept.run.engine.run_to_end().message(), "");
  reads.acquire();
  const std::jthread later([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    goes_on.release();
  });
  const Request& failing = kept.run.submit(text(40, 1), {.seed = 3, .max_tokens = 40});
  while (failing.generated() < 10) ASSERT_TRUE(kept.run.engine.step().ok());
  backend.fail_at_ = backend.begun_ + 1;
  EXPECT_EQ(kept.run.engine.run_to_end().message(), "a fault");
  EXPECT_EQ(forgotten, 1);
}

TEST(StoreBackends, OneThatCannotCopyIsRefused) {
  class Plain final : public IdleBackend {
  } backend;
  Harness run(false, kSmall);
  auto tiers = KvTiers::open({.host_bytes = 1 << 20}).value();
  const auto refused =
      KvStore::open(std::move(tiers), backend, run.config, {.full_pages = 1, .window_pages = 1}, 1);
  EXPECT_EQ(refused.status().code(), StatusCode::kUnsupported);
}

TEST(StoreOptions, AreReadOrRefusedInOneLine) {
  const KvStoreOptions both = kv_store_options(1.5, "/a/b:0.5").value();
  EXPECT_EQ(both.host_bytes, uint64_t{3} << 29);
  EXPECT_EQ(both.folder, "/a/b");
  EXPECT_EQ(both.disk_bytes, uint64_t{1} << 29);
  for (const char* whole : {"/a/b", "1", "a:1/b", "a:b/", "a:1/"}) {
    EXPECT_EQ(kv_store_options(0, whole).value().folder, whole);
    EXPECT_EQ(kv_store_options(0, whole).value().disk_bytes, 0u);
  }
  EXPECT_FALSE(kv_store_options(0, "").value().any());
  for (const char* wrong :
       {"a:0", "a:-1", "a:1e9", "a:nan", "a:inf", ":1", "a:b", "a:1x", "a:10GB", "a:", ":"})
    EXPECT_EQ(kv_store_options(0, wrong).status().code(), StatusCode::kInvalidArgument) << wrong;
  for (const double wrong : {-1.0, 1e30, std::nan("")})
    EXPECT_EQ(kv_store_options(wrong, "").status().code(), StatusCode::kInvalidArgument) << wrong;
}

TEST(StoreOptions, ThatCannotBeHonouredAreRefused) {
  const TemporaryFolder folder;
  const auto refusal = [](const EngineOptions& options, const KvStoreOptions& where) {
    Harness run(false, options);
    return run.engine.keep(KvTiers::open(where).value(), 1).message();
  };
  EngineOptions without = kSmall;
  without.prefix_cache = false;
  EXPECT_NE(refusal(without, {.host_bytes = kPlenty}).find("prefix cache"), std::string::npos);
  EXPECT_NE(refusal(kSmall, {.host_bytes = 511}).find("too few"), std::string::npos);
  EXPECT_NE(refusal(kSmall, {.folder = folder.path(), .disk_bytes = 511}).find("too few"), std::string::npos);
  EXPECT_NE(refusal(kSmall, {.host_bytes = uint64_t{1} << 60}).find("more than"), std::string::npos);
  const KvStoreOptions nowhere{.folder = folder.path() + "/a/b"};
  EXPECT_NE(KvTiers::open(nowhere).status().message().find("No such file"), std::string::npos);
}

// The tokens that an engine on this device finds of what is in the folder, of a prompt that stays there.
int found_by(const std::string& device, const BackendOptions& options, const std::string& folder) {
  const ModelConfig config = small_config(2);
  const auto backend = create_backend(device, options).value();
  EXPECT_TRUE(backend->load(config, make_random_model(config, {}), {}).ok());
  Engine engine = Engine::create(*backend, config, {.context = 256, .max_rows = 64}).value();
  auto tiers =
      KvTiers::open({.folder = folder, .disk_bytes = kPlenty, .least_patience = std::chrono::minutes(1)});
  EXPECT_EQ(engine.keep(std::move(tiers).value(), 1).message(), "");
  std::vector<int32_t> prompt(100);
  for (int32_t i = 0; i < 100; ++i) prompt[static_cast<size_t>(i)] = i * i % config.vocab;
  const auto request = engine.submit(prompt, {.max_tokens = 2}, [](const SampledToken&) {}).value();
  EXPECT_TRUE(engine.run_to_end().ok());
  engine.store()->settle();
  return static_cast<int>(engine.stats().store.fetched_tokens);
}

// Other instructions, or another rounding of K and V, leave other bits.
TEST(Store, OnlyTheSameArithmeticFindsABlock) {
  const TemporaryFolder folder;
  for (const char* isa : {"amx", "amx_emulated", "avx512", "avx512vnni", "avx512bw", "avxvnni", "avx2",
                          "bf16", "i8mm", "dotprod", "scalar"}) {
    const BackendOptions options{.threads = 2, .max_rows = 64, .isa = isa};
    if (!create_backend("cpu", options).ok()) continue;
    EXPECT_EQ(found_by("cpu", options, folder.path()), 0) << isa;
    EXPECT_EQ(found_by("cpu", options, folder.path()), 96) << isa;
  }
  for (const KvFormat kv : {KvFormat::kOwn, KvFormat::kBf16, KvFormat::kFp8}) {
    const BackendOptions options{.kv = kv, .max_rows = 64};
    EXPECT_EQ(found_by("reference", options, folder.path()), 0) << static_cast<int>(kv);
    EXPECT_EQ(found_by("reference", options, folder.path()), 96) << static_cast<int>(kv);
  }
}

// A CPU's KV cache has its memory promised, and takes it later.
TEST(Store, HostMemoryIsCheckedBesideTheKvCache) {
  const double free = available_host_memory();
  for (const char* device : {"cpu", "cuda"}) {
    LateBackend backend(false);
    const ModelConfig config = Harness(false, kSmall).config;
    ASSERT_TRUE(backend.load(config, {}, {}).ok());
    backend.device_ = device;
    const KvLayout layout = kv_layout(config, Engine::demand(config, kSmall).value()).value();
    backend.token_bytes_ = 0.6 * free / kv_bytes(layout, config, backend);
    Engine engine = Engine::create(backend, config, kSmall).value();
    auto tiers = KvTiers::open({.host_bytes = static_cast<uint64_t>(0.6 * free)});
    const Status kept = engine.keep(std::move(tiers).value(), 1);
    EXPECT_EQ(kept.code(), device == std::string("cpu") ? StatusCode::kOutOfMemory : StatusCode::kOk);
  }
}

}  // namespace
}  // namespace moesaic

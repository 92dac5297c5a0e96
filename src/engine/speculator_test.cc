// Tests whether a head's drafts cost more than they bring, on a device whose time is made up: it samples, and
// its pipeline stops while drafting does not rest.
#include "engine/speculator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace moesaic {
namespace {

class GuessingHead final : public Drafter {
 public:
  std::string name() const override { return "head"; }
  bool is_costly() const override { return true; }
  bool follows_steps() const override { return true; }
  Status draft(std::span<DraftTask> tasks) override {
    for (DraftTask& task : tasks) task.draft.assign(static_cast<size_t>(task.most), kGuess);
    return {};
  }
  void skip() override { ++skipped; }
  Result<double> finish_draft(int64_t, std::span<int32_t>) override { return seconds; }
  void end(uint64_t, std::span<const int32_t>, int) override {}

  static constexpr int32_t kGuess = 5;
  double seconds = 0;  // taken by a draft behind a step
  int skipped = 0;
};

struct PacedDevice {
  double row = 0.3;     // added to a step by each row more
  double stop = 0.1;    // added to a step where the pipeline stops
  double chance = 0.0;  // acceptance of each token of a draft
};

std::vector<Request> requests_of(int count) {
  std::vector<Request> requests(static_cast<size_t>(count));
  for (uint64_t id = 0; Request & r : requests) {
    r.id = id++, r.limit = 1 << 20, r.tokens = {1}, r.prompt_tokens = 1;
    r.sampler = std::make_unique<Sampler>(SamplingParams{}, r.tokens);
  }
  return requests;
}

// Rows that do not suffice for all are divided, and what is left over goes round.
TEST(Speculator, NoRequestIsLeftWithoutDrafts) {
  for (const int free_rows : {32 * kMostDraft, 448, 400, 20}) {
    Speculator speculator(std::make_unique<GuessingHead>(), kMostDraft);
    std::vector<Request> requests = requests_of(32);
    std::vector<Request*> pointers;
    for (Request& r : requests) pointers.push_back(&r);
    std::vector<int> drafted(32);
    for (int step = 1; step <= 8; ++step) {
      speculator.draft(pointers, {.rows = 32, .free_rows = free_rows},
                       [](Request&, int, int n) { return n; });
      for (size_t i = 0; i < 32; ++i)
        drafted[i] += static_cast<int>(requests[i].draft.proposal(requests[i].tokens.size()).size());
      const auto [least, most] = std::ranges::minmax(drafted);
      EXPECT_LE(most - least, 1) << free_rows;
      EXPECT_EQ(std::accumulate(drafted.begin(), drafted.end(), 0),
                step * std::min(free_rows, 32 * kMostDraft));
    }
  }
}

// Steps of `batch` requests until each has so many tokens. Returns the time as a share of that of steps
// without drafts.
double run_paced(Speculator& speculator, const PacedDevice& device, int batch, int tokens) {
  std::vector<Request> requests = requests_of(batch);
  std::vector<Request*> pointers;
  for (Request& r : requests) pointers.push_back(&r);
  uint32_t random = 1;
  double seconds = 0, generated = 0;
  while (generated < static_cast<double>(batch) * tokens) {
    const bool stops = speculator.follows_steps();
    const StepAccount account =
        speculator.draft(stops ? pointers : std::vector<Request*>(), {.rows = batch, .free_rows = 1000},
                         [](Request&, int, int n) { return n; });
    int rows = batch;
    for (const Request& r : requests) rows += static_cast<int>(r.draft.proposal(r.tokens.size()).size());
    const double step = 1e-3 * (1 + device.row * (rows - batch) / batch + (stops ? device.stop : 0));
    for (Request& r : requests) {
      size_t drafted = r.draft.proposal(r.tokens.size()).size();
      r.draft.launch({}, r.tokens.size());
      for (; drafted > 0 && (random = random * 1664525 + 1013904223) < device.chance * 4294967295.0;
           --drafted)
        r.tokens.push_back(GuessingHead::kGuess);
      r.tokens.push_back(7);
      const DraftState::Verified draft = r.draft.take(r.tokens);
      generated += 1 + draft.accepted;
      if (draft.drafted > 0) speculator.verified(r, draft);
    }
    speculator.measured(account, rows,
                        rows > batch ? StepKind::kDrafted
                        : stops      ? StepKind::kStopped
                                     : StepKind::kPlain,
                        step);
    seconds += step;
  }
  return seconds / (1e-3 * generated / batch);
}

TEST(Speculator, LosesNearlyNothingWhereNothingIsAccepted) {
  for (const int batch : {1, 8, 64}) {
    Speculator speculator(std::make_unique<GuessingHead>(), 0);
    EXPECT_LT(run_paced(speculator, PacedDevice{}, batch, 400), 1.05) << batch;  // until that is known
    EXPECT_LT(run_paced(speculator, PacedDevice{}, batch, 4000), 1.02) << batch;
  }
}

// Others have come, of whose steps nothing is known.
TEST(Speculator, NorWhereTheBatchGrows) {
  Speculator speculator(std::make_unique<GuessingHead>(), 0);
  run_paced(speculator, PacedDevice{}, 1, 400);
  EXPECT_LT(run_paced(speculator, PacedDevice{}, 64, 2000), 1.02);
}

TEST(Speculator, DraftsOnWhereDraftsAreRight) {
  Speculator speculator(std::make_unique<GuessingHead>(), 0);
  EXPECT_LT(run_paced(speculator, PacedDevice{.chance = 0.8}, 1, 1000), 0.85);
  EXPECT_LT(run_paced(speculator, PacedDevice{.chance = 0.8}, 1, 4000), 0.8);
}

// A rest is over when what was lost is made up for.
TEST(Speculator, FindsOutWhenDraftsAreRightAgain) {
  Speculator speculator(std::make_unique<GuessingHead>(), 0);
  run_paced(speculator, PacedDevice{}, 1, 2000);
  run_paced(speculator, PacedDevice{.chance = 0.9}, 1, 3000);
  EXPECT_LT(run_paced(speculator, PacedDevice{.chance = 0.9}, 1, 2000), 0.8);
}

// Another program takes the machine for a second, in a step without drafts or with them.
TEST(Speculator, AStallEndsNoDraftsThatAreRight) {
  constexpr StepAccount kDrafts{.rows = 1, .drafted = 2, .spent = 6e-4};
  for (const bool drafted : {false, true}) {
    Speculator speculator(std::make_unique<GuessingHead>(), 0);
    run_paced(speculator, PacedDevice{.chance = 0.9}, 1, 1000);
    if (drafted)
      speculator.measured(kDrafts, 3, StepKind::kDrafted, 1.0);
    else
      speculator.measured({.rows = 1}, 1, StepKind::kStopped, 1.0);
    EXPECT_LT(run_paced(speculator, PacedDevice{.chance = 0.9}, 1, 200), 0.8) << drafted;
  }
}

// Steps with drafts take longer than was expected when they were launched.
TEST(Speculator, RestsWhereDraftsCostMoreThanExpected) {
  auto drafter = std::make_unique<GuessingHead>();
  const GuessingHead& head = *drafter;
  Speculator speculator(std::move(drafter), 0);
  run_paced(speculator, PacedDevice{.chance = 0.9}, 1, 1000);
  const auto decide = [&] {
    speculator.draft({}, {.rows = 1, .free_rows = 8}, [](Request&, int, int n) { return n; });
    return speculator.follows_steps();
  };
  EXPECT_TRUE(decide());
  for (int i = 0; i < 20; ++i)
    speculator.measured({.rows = 1, .drafted = 2, .spent = 6e-4}, 3, StepKind::kDrafted, 3e-3);
  EXPECT_FALSE(decide());
  EXPECT_EQ(head.skipped, 0);
  decide();
  EXPECT_EQ(head.skipped, 1) << "the rows of a step before a rest are of no use after it";
}

// The drafter's own time is paid for as rows of drafts are.
TEST(Speculator, RestsWhereTheDrafterTakesTooLong) {
  for (const double seconds : {1e-6, 1.0}) {
    auto head = std::make_unique<GuessingHead>();
    head->seconds = seconds;
    Speculator speculator(std::move(head), 0);
    speculator.measured({.rows = 1}, 1, StepKind::kPlain, 1e-3);
    const auto ended = std::make_shared<Request>();
    ended->finish = FinishReason::kLength;
    EXPECT_EQ(speculator.take({.rows = 1, .parts = {{ended, 2}}}).value(), seconds);
    speculator.draft({}, {.rows = 1, .free_rows = 8}, [](Request&, int, int n) { return n; });
    EXPECT_EQ(speculator.follows_steps(), seconds < 1e-3) << seconds;
  }
}

// A request's last draft is compared with its end.
TEST(Speculator, LearnsFromTheLastDraftOfARequest) {
  Speculator speculator(std::make_unique<GuessingHead>(), 0);
  for (int i = 0; i < 3; ++i) {
    speculator.measured({.rows = 1}, 1, StepKind::kPlain, 1e-3);
    speculator.measured({.rows = 1, .drafted = 1, .spent = 2e-4}, 2, StepKind::kDrafted, 1.2e-3);
  }
  std::vector<int> drafted;
  for (int i = 0; i < 6; ++i) {
    std::vector<Request> requests = requests_of(1);
    Request& r = requests.front();
    Request* const pointer = &r;
    speculator.draft(std::span(&pointer, 1), {.rows = 1, .free_rows = 1},
                     [](Request&, int, int n) { return n; });
    drafted.push_back(static_cast<int>(r.draft.proposal(r.tokens.size()).size()));
    r.draft.launch({}, r.tokens.size());
    r.tokens.push_back(7);
    r.draft.take(r.tokens);
    speculator.ended(r);
  }
  EXPECT_EQ(drafted, (std::vector<int>{1, 1, 1, 1, 0, 0}));  // four trials, all wrong
}

TEST(Speculator, DraftsFillTheFreeRowsAndNoMore) {
  std::vector<Request> requests = requests_of(3);
  std::vector<Request*> pointers;
  for (Request& r : requests) pointers.push_back(&r);
  Speculator speculator(std::make_unique<GuessingHead>(), 4);
  const StepAccount account = speculator.draft(pointers, {.rows = 3, .free_rows = 5},
                                               [](Request&, int, int tokens) { return tokens; });
  EXPECT_EQ(account.drafted, 5);
  std::vector<size_t> drafts;
  for (const Request& r : requests) drafts.push_back(r.draft.proposal(r.tokens.size()).size());
  EXPECT_EQ(drafts, (std::vector<size_t>{2, 2, 1}));
}

}  // namespace
}  // namespace moesaic

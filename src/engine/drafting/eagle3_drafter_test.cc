// The rows that a head is given, and the place from which its cache holds something.
#include "drafting/eagle3_drafter.h"

#include <gtest/gtest.h>

#include <numeric>

#include "drafting/test_draft_head.h"

namespace moesaic {
namespace {

// Keeps what it is asked for and guesses token 9.
class NotingHead final : public TestDraftHead {
 public:
  Status draft(std::span<const DraftSequence> sequences, std::span<int32_t> tokens) override {
    asked.assign(sequences.begin(), sequences.end());
    std::ranges::fill(tokens, 9);
    return fails ? Status(StatusCode::kInternal, "it fails") : Status();
  }
  std::vector<DraftSequence> asked;
  bool fails = false;
};

class Eagle3DrafterTest : public testing::Test {
 protected:
  // A step computed the text's tokens from `first` on, before `end`, in these pages.
  void compute(int first, int end, std::vector<int32_t> pages, uint64_t request = 1) {
    pages_ = std::move(pages);
    const ComputedRows rows = {.request = request,
                               .tokens = std::span(text_).first(static_cast<size_t>(end) + 1),
                               .full_pages = pages_,
                               .first_position = first,
                               .rows = end - first};
    drafter_.computed(std::span(&rows, 1), false);
  }
  // Drafts for the request whose last token is the text's at `position`. Returns where the head looks from.
  int begin_of_draft(int position, uint64_t request = 1) {
    DraftTask task{.request = request,
                   .tokens = std::span(text_).first(static_cast<size_t>(position) + 1),
                   .most = 2,
                   .sampling = std::vector<DeviceSampling>(2),
                   .full_pages = pages_};
    head_.asked.clear();
    status_ = drafter_.draft(std::span(&task, 1));
    drafted_ = task.draft;
    return head_.asked.empty() ? -1 : head_.asked[0].begin;
  }

  std::vector<int32_t> text_ = [] {
    std::vector<int32_t> text(300);
    std::iota(text.begin(), text.end(), 100);
    return text;
  }();
  std::vector<int32_t> pages_, drafted_;
  Status status_;
  NotingHead head_;
  Eagle3Drafter drafter_{head_};
};

TEST_F(Eagle3DrafterTest, LooksBackToTheBeginningWhereAllRowsWereTakenIn) {
  compute(0, 70, {4, 5, 6});
  EXPECT_EQ(begin_of_draft(70), 0);
  EXPECT_EQ(drafted_, (std::vector<int32_t>{9, 9}));
  compute(70, 71, {4, 5, 6});
  EXPECT_EQ(begin_of_draft(71), 0);
  EXPECT_EQ(head_.asked[0].next_tokens, std::vector<int32_t>{text_[71]});
}

TEST_F(Eagle3DrafterTest, LooksBackToTheLastRowThatWasSkipped) {
  compute(0, 40, {4, 5});
  EXPECT_EQ(begin_of_draft(40), 0);
  compute(40, 41, {4, 5});
  drafter_.skip();
  EXPECT_EQ(begin_of_draft(41), -1);  // nothing is there to draft from
  compute(41, 42, {4, 5});
  EXPECT_EQ(begin_of_draft(42), 41);
  compute(42, 43, {4, 5});
  EXPECT_EQ(begin_of_draft(43), 41);
  compute(43, 70, {4, 5, 7});
  EXPECT_EQ(begin_of_draft(70), 41);
}

TEST_F(Eagle3DrafterTest, RowsOfAStepBeforeTheLastAreLost) {
  compute(0, 40, {4, 5});
  compute(40, 41, {4, 5});
  EXPECT_EQ(begin_of_draft(41), 40);
  ASSERT_EQ(head_.asked.size(), 1u);
}

// The next request of the same beginning finds what the first one left, and no more.
TEST_F(Eagle3DrafterTest, PagesAreKnownByThemselves) {
  compute(0, 64, {4, 5});
  begin_of_draft(64);
  compute(64, 70, {4, 5, 8}, 2);
  EXPECT_EQ(begin_of_draft(70, 2), 0);
  compute(0, 64, {6, 7}, 3);
  drafter_.skip();
  compute(64, 70, {6, 7, 8}, 4);
  EXPECT_EQ(begin_of_draft(70, 4), 64);
  compute(0, 32, {6}, 5);  // the page is used for another text
  begin_of_draft(32, 5);
  compute(32, 40, {6, 9}, 5);
  EXPECT_EQ(begin_of_draft(40, 5), 0);
}

TEST_F(Eagle3DrafterTest, LoadedPagesHaveNothing) {
  compute(0, 64, {4, 5});
  begin_of_draft(64);
  drafter_.loaded(std::vector<int32_t>{5, 12});
  compute(64, 70, {4, 5, 8});
  EXPECT_EQ(begin_of_draft(70), 64);
  compute(32, 40, {4, 12}, 2);
  EXPECT_EQ(begin_of_draft(40, 2), 0);  // written anew from its first place on
}

TEST_F(Eagle3DrafterTest, RowsThatTheHeadFailedAtAreMissing) {
  compute(0, 40, {4, 5});
  head_.fails = true;
  begin_of_draft(40);
  EXPECT_FALSE(status_.ok());
  EXPECT_TRUE(drafted_.empty());
  head_.fails = false;
  compute(40, 45, {4, 5});
  EXPECT_EQ(begin_of_draft(45), 40);
}

TEST_F(Eagle3DrafterTest, WithoutTheNextTokenRowsAreTakenInWithTheirOwn) {
  compute(0, 40, {4, 5});
  EXPECT_EQ(drafter_.draft({}).message(), "");
  ASSERT_EQ(head_.asked.size(), 1u);
  EXPECT_EQ(head_.asked[0].drafts, 0);
  compute(40, 41, {4, 5});
  EXPECT_EQ(begin_of_draft(41), 0);
}

}  // namespace
}  // namespace moesaic

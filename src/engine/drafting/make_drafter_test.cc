#include "drafting/make_drafter.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(MakeDrafter, ByName) {
  EXPECT_EQ(make_drafter(DrafterKind::kNone), nullptr);
  for (const char* name : {"ngram", "suffix", "suffix:own"})
    EXPECT_EQ(make_drafter(drafter_choice(name)->kind)->name(), name);
  EXPECT_EQ(drafter_choice("eagle3")->path, "");
  EXPECT_EQ(drafter_choice("eagle3:some/folder:1")->path, "some/folder:1");
  EXPECT_EQ(drafter_choice("draft:some/model")->kind, DrafterKind::kModel);
  EXPECT_EQ(drafter_choice("draft:some/model")->path, "some/model");
  for (const char* name : {"", "Ngram", "ngram ", "eagle", "eagle3:", "suffix:", "none:", "draft", "draft:"})
    EXPECT_FALSE(drafter_choice(name).ok()) << name;
}

TEST(MakeDrafter, DraftTokens) {
  for (const int tokens : {0, 1, kMostDraft}) EXPECT_TRUE(validate_draft_tokens(tokens).ok());
  for (const int tokens : {-1, kMostDraft + 1}) EXPECT_FALSE(validate_draft_tokens(tokens).ok());
}

}  // namespace
}  // namespace moesaic

#include "speculation/make_drafter.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

TEST(MakeDrafter, ByName) {
  EXPECT_EQ(make_drafter("none").value(), nullptr);
  EXPECT_EQ(make_drafter("ngram").value()->name(), "ngram");
  EXPECT_EQ(make_drafter("suffix").value()->name(), "suffix");
  EXPECT_EQ(make_drafter("suffix:own").value()->name(), "suffix:own");
  for (const char* name : {"", "Ngram", "ngram ", "eagle"}) EXPECT_FALSE(make_drafter(name).ok()) << name;
}

TEST(MakeDrafter, DraftTokens) {
  for (const int tokens : {0, 1, kMostDraft}) EXPECT_TRUE(validate_draft_tokens(tokens).ok());
  for (const int tokens : {-1, kMostDraft + 1}) EXPECT_FALSE(validate_draft_tokens(tokens).ok());
}

}  // namespace
}  // namespace moesaic

#include "private_words.h"

#include <gtest/gtest.h>

namespace moesaic::app {
namespace {

TEST(PrivateWords, AreReplacedWhereTheyAreWords) {
  const PrivateWords words("/home/ann", "ann", "box-7");
  EXPECT_EQ(words.remove_from("cannot read /home/ann/models: annotated\n"),
            "cannot read ~/models: annotated\n");
  EXPECT_EQ(words.remove_from("/media/ann/disk on box-7.local, box-70"),
            "/media/USER/disk on HOST.local, box-70");
  EXPECT_EQ(words.remove_from("ann ann"), "USER USER");
  EXPECT_EQ(words.remove_from("/home/anna"), "/home/anna");
}

TEST(PrivateWords, TooShortToBeNames) {
  const PrivateWords words("/", "a", "");
  EXPECT_EQ(words.remove_from("/ a b"), "/ a b");
}

}  // namespace
}  // namespace moesaic::app

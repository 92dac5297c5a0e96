#include "chat/history_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace moesaic::chat {
namespace {

namespace fs = std::filesystem;

class History : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  const fs::path folder_ = fs::temp_directory_path() / ("moesaic-history-" + std::to_string(getpid()));
  const std::string path_ = folder_ / "moesaic" / "history";
};

int mode_of(const fs::path& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? static_cast<int>(info.st_mode & 0777) : -1;
}

TEST_F(History, KeepsMessagesOfManyLinesForTheUserAlone) {
  const HistoryFile file(path_);
  EXPECT_TRUE(file.read().empty());
  ASSERT_TRUE(file.append("first").ok());
  ASSERT_TRUE(file.append("two\nlines \"quoted\" \u4E16").ok());
  EXPECT_EQ(file.read(), (std::vector<std::string>{"first", "two\nlines \"quoted\" \u4E16"}));
  EXPECT_EQ(mode_of(path_), 0600);
  EXPECT_EQ(mode_of(folder_ / "moesaic"), 0700);
}

TEST_F(History, PassesOverWhatItDidNotWrite) {
  ASSERT_TRUE(HistoryFile(path_).append("kept").ok());
  std::ofstream(path_, std::ios::app) << "no JSON\n{}\n[\"x\"]\n\"also kept\"\n\"cut o";
  EXPECT_EQ(HistoryFile(path_).read(), (std::vector<std::string>{"kept", "also kept"}));
}

TEST_F(History, IsCutToTheNewest) {
  const HistoryFile file(path_);
  for (size_t i = 0; i < 2 * HistoryFile::kMostEntries; ++i) ASSERT_TRUE(file.append(std::to_string(i)).ok());
  const auto size = fs::file_size(path_);
  EXPECT_EQ(file.read().size(), HistoryFile::kMostEntries);
  EXPECT_EQ(file.read().front(), std::to_string(HistoryFile::kMostEntries));
  EXPECT_LT(fs::file_size(path_), size);
  EXPECT_EQ(mode_of(path_), 0600);
}

TEST_F(History, LongMessagesAreNotKept) {
  ASSERT_TRUE(HistoryFile(path_).append(std::string(HistoryFile::kMostEntryBytes + 1, 'x')).ok());
  EXPECT_FALSE(fs::exists(path_));
}

TEST_F(History, SaysWhenItCannotWrite) {
  std::ofstream(folder_.string()) << "a file where the folder should be";
  EXPECT_FALSE(HistoryFile(path_).append("x").ok());
}

TEST(HistoryPath, FollowsTheEnvironment) {
  setenv("XDG_STATE_HOME", "/state", 1);
  EXPECT_EQ(history_path(), "/state/moesaic/history");
  unsetenv("XDG_STATE_HOME");
  setenv("HOME", "/home/me", 1);
  EXPECT_EQ(history_path(), "/home/me/.local/state/moesaic/history");
}

}  // namespace
}  // namespace moesaic::chat

#include "base/file_cache.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/temporary_folder.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

class FileCaches : public FolderTest {
 protected:
  std::string folder() const { return folder_.string(); }
  size_t files() const {
    return static_cast<size_t>(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()));
  }
  // Sets the file's time of use to so many minutes ago.
  static void age(const std::string& path, int minutes) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::minutes(minutes));
  }
};

TEST_F(FileCaches, FindsWhatWasPut) {
  const FileCache cache(folder());
  EXPECT_FALSE(cache.find("a"));
  const std::string blob("\0\nchecksum x\n\xFF", 14);
  ASSERT_TRUE(cache.put("a", blob).ok());
  ASSERT_TRUE(cache.put("key of\nlines", "").ok());
  EXPECT_EQ(cache.find("a"), blob);
  EXPECT_EQ(cache.find("key of\nlines"), "");
  EXPECT_FALSE(cache.find("b"));
  ASSERT_TRUE(cache.put("a", "other").ok());
  EXPECT_EQ(FileCache(folder()).find("a"), "other");
  EXPECT_EQ(files(), 2u);
}

TEST_F(FileCaches, WithoutAFolderKeepsNothing) {
  const FileCache cache("");
  EXPECT_TRUE(cache.put("a", "blob").ok());
  EXPECT_FALSE(cache.find("a"));
}

// Every byte of the file, and every length.
TEST_F(FileCaches, RefusesAndRemovesDamage) {
  const FileCache cache(folder());
  const std::string path = cache.path_of("a");
  ASSERT_TRUE(cache.put("a", "some blob").ok());
  const std::string whole = get(path);
  const auto expect_refused = [&](const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
    EXPECT_FALSE(cache.find("a"));
    EXPECT_FALSE(fs::exists(path));
  };
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string text = whole;
    text[i] ^= 1;
    expect_refused(text);
    expect_refused(whole.substr(0, i));
  }
  expect_refused(whole + "x");
  ASSERT_TRUE(cache.put("a", "some blob").ok());
  EXPECT_EQ(cache.find("a"), "some blob");
}

// Nothing waits for a pipe's writer, and what is no file of ours stays.
TEST_F(FileCaches, OtherThanFilesAreNotThere) {
  const FileCache cache(folder());
  const std::string path = cache.path_of("a");
  fs::create_directories(folder());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(cache.find("a"));
  EXPECT_NE(cache.put("a", "blob").message().find("not a regular file"), std::string::npos);
  EXPECT_TRUE(fs::exists(path));
  fs::remove(path);
  fs::create_directories(path + "/b");
  EXPECT_FALSE(cache.find("a"));
  EXPECT_TRUE(fs::exists(path));
}

TEST_F(FileCaches, EvictsTheLeastRecentlyUsed) {
  const FileCache cache(folder(), 3500);
  const std::string blob(1000, 'x');
  for (const char* key : {"a", "b", "c"}) ASSERT_TRUE(cache.put(key, blob).ok());
  age(cache.path_of("a"), 30), age(cache.path_of("b"), 20), age(cache.path_of("c"), 10);
  EXPECT_TRUE(cache.find("a"));
  ASSERT_TRUE(cache.put("d", blob).ok());
  EXPECT_FALSE(cache.find("b"));
  for (const char* key : {"a", "c", "d"}) EXPECT_TRUE(cache.find(key)) << key;
  // One that is larger than the bound is kept alone.
  ASSERT_TRUE(cache.put("large", std::string(5000, 'x')).ok());
  EXPECT_TRUE(cache.find("large"));
  EXPECT_EQ(files(), 1u);
}

TEST_F(FileCaches, SweepsWhatOthersLeftUnfinished) {
  const FileCache cache(folder());
  ASSERT_TRUE(cache.put("a", "blob").ok());
  const std::string old = cache.path_of("b") + ".1-0.part", fresh = cache.path_of("c") + ".1-0.part";
  std::ofstream(old) << "x", std::ofstream(fresh) << "x";
  age(old, 120);
  ASSERT_TRUE(cache.put("a", "blob").ok());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(fresh));
}

// A process in another container may have the same process id, and share the folder.
TEST_F(FileCaches, WhatAnotherOfTheSameNumberIsWritingStays) {
  const FileCache cache(folder());
  ASSERT_TRUE(cache.put("a", "blob").ok());
  std::vector<std::string> others;
  for (int call = 0; call < 1000; ++call) {
    others.push_back(fmt::format("{}.{}-{}.part", cache.path_of("a"), getpid(), call));
    std::ofstream(others.back()) << "another's";
  }
  ASSERT_TRUE(cache.put("a", "new").ok());
  EXPECT_EQ(cache.find("a"), "new");
  for (const std::string& other : others) EXPECT_EQ(read_whole(other, 100).value(), "another's") << other;
}

// Four processes put and find the same two keys, in a folder that holds one of them at a time: what is found
// is whole and of its key.
TEST_F(FileCaches, IsSharedByProcesses) {
  const auto blob_of = [](char name, int i) { return std::string(20000 + static_cast<size_t>(i), name); };
  std::vector<pid_t> children;
  for (int child = 0; child < 4; ++child) {
    const pid_t pid = fork();
    if (pid != 0) {
      children.push_back(pid);
      continue;
    }
    const FileCache cache(folder(), 30000);
    bool good = true;
    for (int i = 0; i < 60; ++i) {
      const char name = i % 2 == 0 ? 'a' : 'b';
      good = good && cache.put(std::string(1, name), blob_of(name, i)).ok();
      for (const char key : {'a', 'b'}) {
        const auto found = cache.find(std::string(1, key));
        good = good && (!found || found->find_first_not_of(key) == std::string::npos);
      }
    }
    _exit(good ? 0 : 1);
  }
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
}

TEST_F(FileCaches, SaysWhyAFileCannotBeWritten) {
  const Status status = FileCache("/proc/none").put("a", "blob");
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/proc/none/"), std::string::npos) << status.message();
}

TEST_F(FileCaches, WholeFiles) {
  const std::string file = folder() + "/a/b", link = folder() + "/link";
  ASSERT_TRUE(write_whole(file, "first").ok());
  EXPECT_EQ(read_whole(file, 5).value(), "first");
  EXPECT_FALSE(read_whole(file, 4).ok());
  fs::create_symlink(file, link);
  ASSERT_TRUE(write_whole(link, "second").ok());
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(read_whole(file, 100).value(), "second");
  EXPECT_EQ(read_whole(folder() + "/none", 100).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(read_whole(file + "/none", 100).status().code(), StatusCode::kNotFound);
  fs::create_symlink("loop", folder() + "/loop");  // it is there, and cannot be opened
  EXPECT_EQ(read_whole(folder() + "/loop", 100).status().code(), StatusCode::kIo);
}

TEST_F(FileCaches, WholeFilesForTheOwner) {
  const std::string file = folder() + "/private/chat", open = folder() + "/open";
  ASSERT_TRUE(write_whole(file, "mine", Readers::kOwner).ok());
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(fs::status(folder() + "/private").permissions(), fs::perms::owner_all);
  // A file that others could read is replaced by one that they cannot.
  ASSERT_TRUE(write_whole(open, "all").ok());
  ASSERT_TRUE(write_whole(open, "mine", Readers::kOwner).ok());
  EXPECT_EQ(fs::status(open).permissions(), fs::perms::owner_read | fs::perms::owner_write);
}

// Devices are neither replaced by a file nor read.
TEST_F(FileCaches, WhatIsNoFileIsLeftAlone) {
  const std::string fifo = folder() + "/fifo";
  fs::create_directories(folder());
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  for (const std::string& path : {std::string("/dev/full"), fifo, folder()}) {
    EXPECT_NE(write_whole(path, "x").message().find("not a regular file"), std::string::npos);
    EXPECT_NE(read_whole(path, 100).status().message().find("not a regular file"), std::string::npos);
  }
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
  EXPECT_EQ(files(), 1U);
}

}  // namespace
}  // namespace moesaic

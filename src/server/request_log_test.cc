#include "server/request_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/log.h"

namespace moesaic::server {
namespace {

// A log that goes into a pipe, whose other end is here.
class PipeLog : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
    reader_ = open(path_.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);  // a pipe without a reader is not opened
    ASSERT_GE(reader_, 0);
    ASSERT_TRUE(log_.open(path_).ok());
  }
  ~PipeLog() override {
    close(reader_);
    std::filesystem::remove(path_);
  }
  std::string read() const {
    std::string text;
    char bytes[4096];
    for (ssize_t n = 0; (n = ::read(reader_, bytes, sizeof bytes)) > 0;)
      text.append(bytes, static_cast<size_t>(n));
    return text;
  }

  const std::string path_ =
      (std::filesystem::temp_directory_path() / ("moesaic-log-" + std::to_string(getpid()))).string();
  int reader_ = -1;
  RequestLog log_;
};

TEST_F(PipeLog, AFailureIsCountedAndSaysWhat) {
  log_.failure("it broke");
  const auto line = nlohmann::json::parse(read());
  EXPECT_EQ(line["event"], "error");
  EXPECT_EQ(line["detail"], "it broke");
  EXPECT_EQ(log_.failures(), 1U);
}

TEST_F(PipeLog, WhatIsFromOutsideHasNoControlCharacters) {
  const std::string path =
      "/\x1b[31m\x7f\xC2\x9B"
      "31m\xC2\x85\xE2\x80\xA8\xC3\xA4\xff";
  log_.event("ignored_field", path);
  const std::string line = read();
  EXPECT_TRUE(std::all_of(line.begin(), line.end() - 1, [](char c) { return c >= ' ' && c <= '~'; })) << line;
  EXPECT_EQ(nlohmann::json::parse(line)["detail"], path.substr(0, path.size() - 1) + "\xEF\xBF\xBD");
}

TEST_F(PipeLog, ANoticeIsAnEventAndWaitsForNoReader) {
  log_.take_notices();
  notice(std::string(400, 'x'));
  for (int i = 0; i < 1000; ++i) log_.event("full", std::string(400, 'x'));  // more than a pipe holds
  notice("lost");
  std::istringstream there(read());
  std::string line;
  ASSERT_TRUE(std::getline(there, line));
  EXPECT_EQ(nlohmann::json::parse(line)["event"], "notice");
  EXPECT_EQ(nlohmann::json::parse(line)["detail"], std::string(400, 'x'));
}

TEST(FileLog, ANoticeIsSeenWhereTheLogsDiskIsFull) {
  RequestLog log;
  ASSERT_TRUE(log.open("/dev/full").ok());
  log.take_notices();
  testing::internal::CaptureStderr();
  notice("a disk is full");
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("/dev/full: cannot write the log: "), std::string::npos) << told;
  EXPECT_NE(told.find("moesaic: a disk is full\n"), std::string::npos) << told;
}

TEST_F(PipeLog, LostLinesAreCountedOnce) {
  constexpr int kLines = 1000;  // more than a pipe holds
  for (int i = 0; i < kLines; ++i) log_.event("full", std::string(400, 'x'));
  std::istringstream there(read());
  int kept = 0;
  for (std::string line; std::getline(there, line); ++kept)
    EXPECT_EQ(nlohmann::json::parse(line)["event"], "full");
  ASSERT_LT(kept, kLines);
  log_.event("next");
  log_.event("last");
  std::istringstream after(read());
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(after, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_EQ(lines[0]["detail"], std::to_string(kLines - kept) + " lines before were lost");
  EXPECT_EQ(lines[1]["event"], "next");
  EXPECT_EQ(lines[2]["event"], "last");
}

}  // namespace
}  // namespace moesaic::server

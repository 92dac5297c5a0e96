// Sums, lists, origins, waits, and files that grow in the cache.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "hub/cache_files.h"

namespace moesaic::hub {
namespace {

namespace fs = std::filesystem;

TEST(Sums, AreTheKnownOnes) {
  auto sha = Digest::sha256();
  ASSERT_TRUE(sha.ok());
  sha->add("a"), sha->add("bc");
  EXPECT_EQ(sha->hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  auto git = Digest::git_blob(6);  // printf 'hello\n' | git hash-object --stdin
  ASSERT_TRUE(git.ok());
  git->add("hello\n");
  EXPECT_EQ(git->hex(), "ce013625030ba8dba906f756967f9e9ca394464a");
}

TEST(Origins, AreWhatATokenMayGoTo) {
  EXPECT_EQ(origin_of("https://Hub.co/a@b"), "https://hub.co");
  EXPECT_EQ(origin_of("http://h:80?x"), "http://h:80");
  EXPECT_EQ(origin_of("https://hub.co@evil/"), "https://hub.co@evil");
  for (const char* none : {"", "hub.co", "ftp://x", "https://", "http:///x", "file:///x"})
    EXPECT_EQ(origin_of(none), "") << none;
}

TEST(Waits, AreWhatIsAskedForOrGrow) {
  EXPECT_DOUBLE_EQ(seconds_to_wait({}, 0, 1), 0.2);
  EXPECT_DOUBLE_EQ(seconds_to_wait({}, 500, 3), 0.8);
  EXPECT_DOUBLE_EQ(seconds_to_wait({}, 0, 50), 10);
  EXPECT_DOUBLE_EQ(seconds_to_wait({{"retry-after", "7"}}, 429, 1), 7);
  EXPECT_DOUBLE_EQ(seconds_to_wait({{"retry-after", "7"}}, 500, 1), 0.2);
  EXPECT_DOUBLE_EQ(seconds_to_wait({{"ratelimit", R"("api";r=0;t=55)"}}, 429, 1), 55);
  for (const char* odd : {"", "x", "-5", "Wed, 21 Oct 2015 07:28:00 GMT", "99999999999999999999"})
    EXPECT_DOUBLE_EQ(seconds_to_wait({{"retry-after", odd}}, 429, 1), 0.2) << odd;
}

TEST(Lists, HaveABound) {
  std::string page = "[";
  for (int i = 0; i < 20001; ++i)
    page += R"({"type":"file","path":")" + std::to_string(i) + R"(","size":1,"oid":")" +
            std::string(40, 'a') + (i < 20000 ? "\"}," : "\"}]");
  Listing listing{.repository = "o/n"};
  EXPECT_NE(add_files(page, listing).message().find("20000 files"), std::string::npos);
}

TEST(Urls, KeepOnlyWhatIsPlain) { EXPECT_EQ(url_path("a b/ü#?%.gguf"), "a%20b/%C3%BC%23%3F%25.gguf"); }

class CacheFiles : public testing::Test {
 protected:
  CacheFiles() {
    std::string name = fs::temp_directory_path() / "moesaic-hub-XXXXXX";
    root_ = mkdtemp(name.data());
  }
  ~CacheFiles() override { fs::remove_all(root_); }
  std::string text(const std::string& path) const {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }

  fs::path root_;
  const RemoteFile file_{"sub/x.json", 6, "ce013625030ba8dba906f756967f9e9ca394464a"};  // "hello\n"
  const std::string commit_ = std::string(40, 'c');
  const Watch watch_;
};

TEST_F(CacheFiles, GrowAndGetTheirNames) {
  const RepositoryCache cache(root_, "o/n");
  ASSERT_TRUE(cache.make(commit_).ok());
  {
    auto partial = PartialFile::open(cache.incomplete(file_), file_, watch_);
    ASSERT_TRUE(partial.ok());
    EXPECT_TRUE(partial->append("hel").ok());
  }
  EXPECT_EQ(cache.bytes_there(file_, commit_), 3);
  auto partial = PartialFile::open(cache.incomplete(file_), file_, watch_);
  ASSERT_TRUE(partial.ok());
  EXPECT_EQ(partial->size(), 3);
  EXPECT_TRUE(partial->append("xo\n").ok());
  EXPECT_FALSE(partial->finish(cache.blob(file_)).value());
  EXPECT_EQ(partial->size(), 0);
  EXPECT_TRUE(partial->append("hello\n").ok());
  EXPECT_TRUE(partial->finish(cache.blob(file_)).value());
  EXPECT_TRUE(cache.has(file_, commit_));
  ASSERT_TRUE(cache.link(file_, commit_).ok());
  EXPECT_EQ(text(cache.snapshot(commit_) + "/sub/x.json"), "hello\n");
  EXPECT_EQ(fs::read_symlink(cache.snapshot(commit_) + "/sub/x.json"), "../../../blobs/" + file_.sum);
}

TEST_F(CacheFiles, OneWriterAtATime) {
  const RepositoryCache cache(root_, "o/n");
  ASSERT_TRUE(cache.make(commit_).ok());
  {
    const auto first = cache.try_lock(file_);
    ASSERT_TRUE(first.ok() && first->has_value());
    EXPECT_FALSE(cache.try_lock(file_)->has_value());
  }
  EXPECT_TRUE(cache.try_lock(file_)->has_value());
}

TEST_F(CacheFiles, AFileInTheWayOfAFolder) {
  std::ofstream(root_ / "models--o--n") << "x";
  const RepositoryCache cache(root_, "o/n");
  const Status made = cache.make(commit_);
  EXPECT_NE(made.message().find("models--o--n"), std::string::npos) << made.message();
  EXPECT_FALSE(cache.check_room(int64_t{1} << 60).ok());
  EXPECT_TRUE(cache.check_room(1).ok());
}

}  // namespace
}  // namespace moesaic::hub

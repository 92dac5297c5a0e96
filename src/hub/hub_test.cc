// Sums, lists, origins, waits, and files that grow in the cache.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/temporary_folder.h"
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
  EXPECT_TRUE(has_user("https://me:secret@hub.co/x"));
  EXPECT_FALSE(has_user("https://hub.co/me@x"));
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

TEST(Waits, EndWhenTheWorkIsCancelled) {
  int asked = 0;
  const Watch watch{.cancelled = [&] { return ++asked > 2; }};
  EXPECT_FALSE(rest(60, watch));
  EXPECT_FALSE(rest(0, watch));
  EXPECT_TRUE(rest(0.06, {}));
}

TEST(Statuses, ThatMayPass) {
  for (const long status : {0, 408, 425, 429, 500, 502, 503, 504}) EXPECT_TRUE(may_pass(status)) << status;
  for (const long status : {200, 400, 401, 403, 404, 416, 451, 501, 505})
    EXPECT_FALSE(may_pass(status)) << status;
}

// Each refusal has its line, without a token and with one.
TEST(Statuses, AreRefusedInOneLine) {
  struct Case {
    long status;
    std::map<std::string, std::string> headers;
    const char *without, *with;
  };
  const HubOptions stranger{.endpoint = "https://hub.co"},
      known{.endpoint = "https://hub.co", .token = "hf_x"};
  const std::map<std::string, std::string> gated{{"x-error-code", "GatedRepo"}},
      said{{"x-error-message", "Access is GATED"}}, none{{"x-error-code", "RepoNotFound"}},
      revision{{"x-error-code", "RevisionNotFound"}}, why{{"x-error-message", "broken"}};
  for (const Case& c : {
           Case{401, gated,
                "a/b: it is gated: accept its terms at https://hub.co/a/b, then set HF_TOKEN to a token of "
                "that account, or run: hf auth login",
                "a/b: it is gated: accept its terms at https://hub.co/a/b, then try again; HF_TOKEN must be "
                "of the account that did"},
           Case{403, said,
                "a/b: it is gated: accept its terms at https://hub.co/a/b, then set HF_TOKEN to a token of "
                "that account, or run: hf auth login; the hub says: Access is GATED",
                "a/b: it is gated: accept its terms at https://hub.co/a/b, then try again; HF_TOKEN must be "
                "of the account that did; the hub says: Access is GATED"},
           Case{401,
                {},
                "a/b: https://hub.co has no such repository, or it is private: check the name; a private one "
                "needs HF_TOKEN",
                "a/b: https://hub.co refuses the token in HF_TOKEN or its file"},
           Case{401, none,
                "a/b: https://hub.co has no such repository, or it is private: check the name; a private one "
                "needs HF_TOKEN",
                "a/b: https://hub.co has no such repository, or it is private"},
           Case{404, none,
                "a/b: https://hub.co has no such repository, or it is private: check the name; a private one "
                "needs HF_TOKEN",
                "a/b: https://hub.co has no such repository, or it is private"},
           Case{404, revision, "a/b: https://hub.co has no such branch, tag or commit of it",
                "a/b: https://hub.co has no such branch, tag or commit of it"},
           Case{404,
                {},
                "a/b: https://hub.co has no such repository or file",
                "a/b: https://hub.co has no such repository or file"},
           Case{429,
                {{"retry-after", "7"}},
                "a/b: https://hub.co takes no more requests for now; try again in 7 s, or set HF_TOKEN, "
                "which raises the limit",
                "a/b: https://hub.co takes no more requests for now; try again in 7 s"},
           Case{500, why, "a/b: https://hub.co answers with status 500: broken",
                "a/b: https://hub.co answers with status 500: broken"},
           Case{403,
                {},
                "a/b: https://hub.co answers with status 403",
                "a/b: https://hub.co answers with status 403"},
       }) {
    EXPECT_EQ(refusal(c.status, c.headers, "a/b", stranger).message(), c.without);
    EXPECT_EQ(refusal(c.status, c.headers, "a/b", known).message(), c.with);
  }
}

TEST(Redirects, AreFollowedWhereTheyMay) {
  const auto web = Web::create({.endpoint = "https://hub.co"});
  if (!web.ok()) GTEST_SKIP() << web.status().message();
  EXPECT_TRUE(web->check_redirect("https://hub.co/a", "HTTPS://cdn.co/b", 10).ok());
  EXPECT_TRUE(web->check_redirect("http://hub.co/a", "http://cdn.co/b", 1).ok());
  EXPECT_FALSE(web->check_redirect("https://hub.co/a", "https://cdn.co/b", 11).ok());
  EXPECT_FALSE(web->check_redirect("https://hub.co/a", "http://cdn.co/b", 1).ok());
  EXPECT_FALSE(web->check_redirect("HTTPS://hub.co/a", "http://cdn.co/b", 1).ok());
  EXPECT_FALSE(web->check_redirect("http://hub.co/a", "file:///etc/passwd", 1).ok());
  EXPECT_FALSE(web->check_redirect("https://hub.co/a", "https://hub.co@cdn.co/b", 1).ok());
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

class CacheFiles : public FolderTest {
 protected:
  const RemoteFile file_{"sub/x.json", 6, "ce013625030ba8dba906f756967f9e9ca394464a"};  // "hello\n"
  const std::string commit_ = std::string(40, 'c');
  const Watch watch_ = {};
};

TEST_F(CacheFiles, GrowAndGetTheirNames) {
  const RepositoryCache cache(folder_, "o/n");
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
  EXPECT_EQ(get(cache.snapshot(commit_) + "/sub/x.json"), "hello\n");
  EXPECT_EQ(fs::read_symlink(cache.snapshot(commit_) + "/sub/x.json"), "../../../blobs/" + file_.sum);
}

TEST_F(CacheFiles, OneWriterAtATime) {
  const RepositoryCache cache(folder_, "o/n");
  ASSERT_TRUE(cache.make(commit_).ok());
  {
    const auto first = cache.try_lock(file_);
    ASSERT_TRUE(first.ok() && first->has_value());
    EXPECT_FALSE(cache.try_lock(file_)->has_value());
  }
  EXPECT_TRUE(cache.try_lock(file_)->has_value());
}

// As where flock() keeps nobody out.
TEST_F(CacheFiles, TwoWritersBothFinish) {
  const RepositoryCache cache(folder_, "o/n");
  ASSERT_TRUE(cache.make(commit_).ok());
  auto first = PartialFile::open(cache.incomplete(file_), file_, watch_);
  auto second = PartialFile::open(cache.incomplete(file_), file_, watch_);
  ASSERT_TRUE(first.ok() && second.ok());
  for (auto* partial : {&first.value(), &second.value()}) {
    EXPECT_TRUE(partial->append("hello\n").ok());
    const Result<bool> right = partial->finish(cache.blob(file_));
    EXPECT_TRUE(right.ok() && right.value()) << right.status().message();
  }
  EXPECT_EQ(get(cache.blob(file_)), "hello\n");
}

TEST_F(CacheFiles, AFileInTheWayOfAFolder) {
  std::ofstream(folder_ / "models--o--n") << "x";
  const RepositoryCache cache(folder_, "o/n");
  const Status made = cache.make(commit_);
  EXPECT_NE(made.message().find("models--o--n"), std::string::npos) << made.message();
  EXPECT_FALSE(cache.check_room(int64_t{1} << 60).ok());
  EXPECT_TRUE(cache.check_room(1).ok());
}

// A folder or another thing in a file's place is one error that names it, and nothing is left beside it.
TEST_F(CacheFiles, WhatIsNoFile) {
  const RepositoryCache cache(folder_, "o/n");
  ASSERT_TRUE(cache.make(commit_).ok());
  const auto refused = [&](const char* words) {
    const auto partial = PartialFile::open(cache.incomplete(file_), file_, watch_);
    EXPECT_NE(partial.status().message().find(words), std::string::npos) << partial.status().message();
    EXPECT_EQ(cache.bytes_there(file_, commit_), 0);
    fs::remove_all(cache.incomplete(file_));
  };
  ASSERT_EQ(mkfifo(cache.incomplete(file_).c_str(), 0600), 0);
  refused("not a regular file");
  fs::create_directory(cache.incomplete(file_));
  refused("Is a directory");
  fs::create_symlink("/etc/hostname", cache.incomplete(file_));
  refused(".incomplete: ");

  fs::create_directories(cache.snapshot(commit_) + "/sub/x.json");
  EXPECT_NE(cache.link(file_, commit_).message().find("a folder stands where a file belongs"),
            std::string::npos);
  fs::remove_all(cache.snapshot(commit_) + "/sub");
  std::ofstream(cache.snapshot(commit_) + "/sub") << "x";
  EXPECT_NE(cache.link(file_, commit_).message().find("/sub: "), std::string::npos);

  const fs::path refs = folder_ / "models--o--n/refs";
  fs::create_directories(refs / "main");
  EXPECT_NE(cache.set_current("main", commit_).message().find("refs/main: "), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(refs), {}), 1);
  fs::remove_all(refs / "main");
  ASSERT_EQ(mkfifo((refs / "main").c_str(), 0600), 0);  // in which nobody writes
  ASSERT_TRUE(cache.set_current("main", commit_).ok());
  EXPECT_EQ(get(refs / "main"), commit_);
  fs::create_directories(folder_ / ".locks/models--o--n" / (file_.sum + ".lock"));
  EXPECT_NE(cache.try_lock(file_).status().message().find(".lock: Is a directory"), std::string::npos);
}

TEST_F(CacheFiles, TheBeginningThatIsThere) {
  const RepositoryCache cache(folder_, "o/n");
  ASSERT_TRUE(cache.make(commit_).ok());
  std::ofstream(cache.incomplete(file_)) << "hello\nX";  // more than the file has
  EXPECT_EQ(cache.bytes_there(file_, commit_), 0);
  {
    auto partial = PartialFile::open(cache.incomplete(file_), file_, watch_);
    ASSERT_TRUE(partial.ok());
    EXPECT_EQ(partial->size(), 0);
  }
  std::ofstream(cache.incomplete(file_)) << "hello\n";
  EXPECT_EQ(cache.bytes_there(file_, commit_), 6);
  const Watch cancelled{.cancelled = [] { return true; }};
  EXPECT_EQ(PartialFile::open(cache.incomplete(file_), file_, cancelled).status().code(),
            StatusCode::kCancelled);
  auto partial = PartialFile::open(cache.incomplete(file_), file_, watch_);
  ASSERT_TRUE(partial.ok());
  fs::create_directory(cache.blob(file_));
  std::ofstream(fs::path(cache.blob(file_)) / "x") << "x";
  EXPECT_NE(partial->finish(cache.blob(file_)).status().message().find(file_.sum + ": "), std::string::npos);
  EXPECT_FALSE(cache.has(file_, commit_));
  fs::remove_all(cache.blob(file_));
  partial = PartialFile::open(cache.incomplete(file_), file_, watch_);
  ASSERT_TRUE(partial.ok());
  EXPECT_TRUE(partial->finish(cache.blob(file_)).value());
  EXPECT_TRUE(cache.has(file_, commit_));
  EXPECT_EQ(cache.bytes_there(file_, commit_), 6);
  fs::remove(cache.blob(file_));
  EXPECT_FALSE(cache.has(file_, commit_));
  fs::create_directories(cache.snapshot(commit_) + "/sub");
  std::ofstream(cache.snapshot(commit_) + "/sub/x.json")
      << "hello\n";  // as a file system without links has it
  EXPECT_TRUE(cache.has(file_, commit_));
}

// A write that the disk has no room for leaves what came before, and the next one goes on there.
TEST_F(CacheFiles, AFullDisk) {
  const RepositoryCache cache(folder_, "o/n");
  ASSERT_TRUE(cache.make(commit_).ok());
  auto partial = PartialFile::open(cache.incomplete(file_), file_, watch_);
  ASSERT_TRUE(partial.ok() && partial->append("he").ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit four{.rlim_cur = 4, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &four), 0);
  const Status full = partial->append("llo\n");
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(full.message().find("what has come is kept: make room and run it again"), std::string::npos)
      << full.message();
  EXPECT_EQ(partial->size(), 2);
  EXPECT_EQ(get(cache.incomplete(file_)), "he");
  EXPECT_TRUE(partial->append("llo\n").ok());
  EXPECT_TRUE(partial->finish(cache.blob(file_)).value());
}

}  // namespace
}  // namespace moesaic::hub

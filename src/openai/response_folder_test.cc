// Stored responses that are found after a restart, and what a folder may hold beside them.
#include "openai/response_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "base/temporary_folder.h"
#include "openai/response_store.h"

namespace moesaic::openai {
namespace {

namespace fs = std::filesystem;

class ResponseFolderTest : public testing::Test {
 protected:
  static StoredResponse stored(const std::string& owner, const std::string& response = "{}") {
    return {.owner = owner, .holder = "network", .response = response, .items = R"(["\u00e9", "ü"])"};
  }
  // A server's store from start to end; what it has to write is written when it is gone.
  std::unique_ptr<ResponseStore> start(size_t most = 10, size_t most_bytes = 100'000) const {
    auto store = std::make_unique<ResponseStore>(most, most_bytes);
    Result<std::unique_ptr<ResponseFolder>> folder = ResponseFolder::open(folder_.path());
    EXPECT_TRUE(folder.ok()) << folder.status().message();
    EXPECT_TRUE(store->keep_in(std::move(folder).value()).ok());
    return store;
  }
  fs::path file(const std::string& id) const { return fs::path(folder_.path()) / "moesaic-responses" / id; }

  TemporaryFolder folder_;
};

TEST_F(ResponseFolderTest, AStoreGoesOnAfterARestart) {
  start()->keep("resp_1", stored("me", "{\"text\": \"\\n\"}"));
  auto store = start();
  const auto found = store->find("resp_1", "me");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->response, stored("me", "{\"text\": \"\\n\"}").response);
  EXPECT_EQ(found->items, stored("me").items);
  EXPECT_FALSE(store->find("resp_1", "you"));
  EXPECT_FALSE(store->erase("resp_1", "you"));
  EXPECT_TRUE(store->erase("resp_1", "me"));
  store = nullptr;
  EXPECT_FALSE(start()->find("resp_1", "me"));
}

TEST_F(ResponseFolderTest, ItemsAreFoundAfterARestart) {
  StoredResponse made = stored("me");
  made.items = R"(["a", {"id": "msg_1"}])";
  made.outputs = {{.id = "msg_1", .begin = 6, .size = 15}};
  start()->keep("resp_1", made);
  auto store = start();
  const auto found = store->find_item("msg_1", "me");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->json, R"({"id": "msg_1"})");
  EXPECT_FALSE(store->find_item("msg_1", "you"));
  EXPECT_FALSE(store->find_item("msg_2", "me"));
  EXPECT_TRUE(store->erase("resp_1", "me"));
  EXPECT_FALSE(store->find_item("msg_1", "me"));
}

// In the same order: the oldest go first, also from the disk.
TEST_F(ResponseFolderTest, TheBoundsHoldOnTheDiskToo) {
  {
    auto store = start(5);
    for (int i = 0; i < 9; ++i) store->keep("resp_" + std::to_string(i), stored("me"));
  }
  EXPECT_FALSE(fs::exists(file("resp_3")));
  EXPECT_TRUE(fs::exists(file("resp_4")));
  {
    auto store = start(3);
    EXPECT_EQ(store->size(), 3u);
    EXPECT_FALSE(store->find("resp_5", "me"));
    EXPECT_TRUE(store->find("resp_6", "me"));
    store->keep("resp_9", stored("me"));
    EXPECT_FALSE(store->find("resp_6", "me"));
  }
  EXPECT_FALSE(fs::exists(file("resp_5")));
  EXPECT_TRUE(fs::exists(file("resp_9")));
}

TEST_F(ResponseFolderTest, WhatIsTooLargeAfterARestartLeavesTheDisk) {
  start()->keep("resp_1", stored("me", std::string(2000, 'x')));
  EXPECT_TRUE(fs::exists(file("resp_1")));
  EXPECT_EQ(start(10, 16'000)->size(), 0u);
  EXPECT_FALSE(fs::exists(file("resp_1")));
}

TEST_F(ResponseFolderTest, DoesNotTellWhoMadeThem) {
  start()->keep("resp_1", stored("Bearer sk-secret"));
  std::ifstream in(file("resp_1"), std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  EXPECT_NE(text.find("network"), std::string::npos);
  EXPECT_EQ(text.find("sk-secret"), std::string::npos);
  struct stat info {};
  ASSERT_EQ(stat(file("resp_1").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777u, 0600u);
}

TEST_F(ResponseFolderTest, DamagedAndForeignFilesAreLeftOut) {
  {
    auto store = start();
    for (const char* id : {"resp_whole", "resp_cut", "resp_changed", "resp_swapped", "resp_open"})
      store->keep(id, stored("me"));
  }
  fs::resize_file(file("resp_cut"), fs::file_size(file("resp_cut")) - 1);
  std::fstream(file("resp_changed"), std::ios::in | std::ios::out | std::ios::binary).seekp(40).put('x');
  fs::rename(file("resp_swapped"), file("resp_other"));
  fs::permissions(file("resp_open"), fs::perms::others_read, fs::perm_options::add);
  fs::create_symlink("/etc/passwd", file("resp_link"));
  fs::create_directory(file("resp_folder"));
  std::ofstream(file("resp_empty")).close();
  std::ofstream(file("notes.txt")) << "mine";
  for (const char* own : {"resp_empty", "notes.txt"}) fs::permissions(file(own), fs::perms::owner_read);
  auto store = start();
  EXPECT_EQ(store->size(), 1u);
  EXPECT_TRUE(store->find("resp_whole", "me"));
  store->keep("resp_cut", stored("me", "again"));
  store = nullptr;
  EXPECT_EQ(start()->find("resp_cut", "me")->response, "again");
  EXPECT_TRUE(fs::exists(file("notes.txt")));
}

TEST_F(ResponseFolderTest, AnotherKeyFindsNothing) {
  start()->keep("resp_1", stored("me"));
  fs::remove(file("secret"));
  EXPECT_EQ(start()->size(), 0u);
}

// A lost key damages all files at once: they take one line, not one each.
TEST_F(ResponseFolderTest, DamagedFilesTakeOneLine) {
  {
    auto store = start();
    for (const char* id : {"resp_1", "resp_2", "resp_3"}) store->keep(id, stored("me"));
  }
  for (const char* id : {"resp_1", "resp_2", "resp_3"}) std::ofstream(file(id), std::ios::app) << "x";
  set_notices(true);
  testing::internal::CaptureStderr();
  EXPECT_EQ(start()->size(), 0u);
  const std::string lines = testing::internal::GetCapturedStderr();
  set_notices(false);
  EXPECT_EQ(std::ranges::count(lines, '\n'), 1) << lines;
  EXPECT_NE(lines.find("its checksum is wrong; it is ignored, as are 2 others"), std::string::npos) << lines;
}

TEST_F(ResponseFolderTest, IsOfOneProcessAndOneUser) {
  const auto error = [&] { return ResponseFolder::open(folder_.path()).status().message(); };
  {
    const auto store = start();
    EXPECT_NE(error().find("--stored-responses"), std::string::npos) << error();
    EXPECT_NE(error().find("uses it"), std::string::npos) << error();
  }
  fs::permissions(file(""), fs::perms::group_read, fs::perm_options::add);
  EXPECT_NE(error().find("chmod 700"), std::string::npos) << error();
}

// Requests go on in memory, and what changes later is written again.
TEST_F(ResponseFolderTest, ADiskThatFailsDelaysNobody) {
  auto store = start();
  fs::create_directory(file("new.part"));  // where each file is written first
  store->keep("resp_1", stored("me"));
  EXPECT_TRUE(store->find("resp_1", "me"));
  store = nullptr;
  EXPECT_EQ(start()->size(), 0u);
  fs::remove(file("new.part"));
  start()->keep("resp_2", stored("me"));
  EXPECT_EQ(start()->size(), 1u);
}

}  // namespace
}  // namespace moesaic::openai

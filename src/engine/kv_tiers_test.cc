// The KV store's tiers without an engine: what goes first, and files that are not what was written.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <random>

#include "base/temporary_folder.h"
#include "engine/disk_tier.h"
#include "moesaic/log.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

Hash128 block(uint64_t n) { return {.lo = n, .hi = n * n}; }

KvPart full(uint64_t n, uint64_t before) { return {.id = {block(n)}, .before = block(before)}; }
KvPart window(uint64_t n, uint64_t before) {
  return {.id = {block(n), KvKind::kWindow}, .before = block(before)};
}

KvBytes bytes_of(const KvPart& part, size_t size) {
  KvBytes bytes(size);
  for (size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(part.id.block.lo * 7 + i + (part.id.kind == KvKind::kWindow ? 100 : 0));
  return bytes;
}

// Lines that are said while it lives.
class Lines {
 public:
  Lines() {
    set_log_callback([this](LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~Lines() { set_log_callback({}); }
  Lines(const Lines&) = delete;
  Lines& operator=(const Lines&) = delete;
  std::vector<std::string> lines;
};

// ---- KvIndex ----

// Against a list of what was used last, in which a part with children never goes.
TEST(KvIndex, TheLongestUnusedPartWithoutChildrenGoesFirst) {
  std::mt19937 rng(1);
  const auto below = [&](unsigned n) { return rng() % n; };
  for (int round = 0; round < 20; ++round) {
    KvIndex index(1000);
    std::map<KvPartId, std::pair<KvPart, uint64_t>> there;
    for (int i = 0; i < 400; ++i) {
      const uint64_t n = 1 + below(60);
      const KvPart part = below(4) == 0 ? window(n, n / 2) : full(n, n / 2);
      if (below(5) == 0) {
        index.erase(part.id);
        there.erase(part.id);
      } else if (index.has(part.id)) {
        index.touch(part.id);
      } else {
        const uint64_t bytes = 10 + below(200);
        for (const KvPart& gone : index.make_room(bytes)) {
          ASSERT_TRUE(there.contains(gone.id));
          there.erase(gone.id);
          const bool has_child =
              std::ranges::any_of(there, [&](const auto& t) { return t.second.first.parent() == gone.id; });
          ASSERT_FALSE(has_child);
        }
        ASSERT_TRUE(index.fits(bytes));
        index.add(part, bytes);
        there.emplace(part.id, std::pair(part, bytes));
      }
      index.check();
      uint64_t sum = 0;
      for (const auto& [id, entry] : there) sum += entry.second;
      ASSERT_EQ(index.bytes(), sum);
      ASSERT_EQ(index.size(), there.size());
    }
  }
}

TEST(KvIndex, AConversationInUseStaysWhole) {
  KvIndex index(10);
  for (uint64_t n = 1; n <= 5; ++n) index.add(full(n, n - 1), 1);  // 1 <- 2 <- 3 <- 4 <- 5
  for (uint64_t n = 101; n <= 105; ++n) index.add(full(n, n == 101 ? 0 : n - 1), 1);
  index.touch(full(5, 4).id);  // its end alone was used
  EXPECT_EQ(index.make_room(3).front().id, full(105, 104).id);
  for (uint64_t n = 1; n <= 5; ++n) EXPECT_TRUE(index.has(full(n, n - 1).id)) << n;
}

// ---- tiers ----

class Tier : public testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<KvTier> tier(uint64_t most_bytes) {
    if (!GetParam()) return std::make_unique<HostTier>(most_bytes);
    auto opened = DiskTier::open(folder_.path(), most_bytes);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return std::move(opened).value();
  }
  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Tiers, Tier, testing::Bool(),
                         [](const auto& i) { return i.param ? "disk" : "host"; });

TEST_P(Tier, GivesBackWhatItWasGiven) {
  const auto t = tier(1 << 20);
  for (uint64_t n = 1; n <= 10; ++n) {
    EXPECT_TRUE(t->put(full(n, n - 1), bytes_of(full(n, n - 1), 1000 * n)));
    EXPECT_TRUE(t->put(window(n, n - 1), bytes_of(window(n, n - 1), 10)));
  }
  EXPECT_TRUE(t->put(full(3, 2), bytes_of(full(3, 2), 3000)));  // once more
  for (uint64_t n = 1; n <= 10; ++n) {
    const auto bytes = t->get(full(n, n - 1), 1000 * n);
    ASSERT_NE(bytes, nullptr);
    EXPECT_EQ(*bytes, bytes_of(full(n, n - 1), 1000 * n));
    EXPECT_EQ(*t->get(window(n, n - 1), 10), bytes_of(window(n, n - 1), 10));
  }
  EXPECT_EQ(t->get(full(11, 10), 100), nullptr);
  EXPECT_FALSE(t->has(full(11, 10).id));
  EXPECT_EQ(t->stats().written_bytes, 55'100u);
}

TEST_P(Tier, KeepsItsBound) {
  constexpr uint64_t kMost = 100'000;
  const auto t = tier(kMost);
  for (uint64_t n = 1; n <= 100; ++n) {
    t->put(full(n, 0), bytes_of(full(n, 0), 5000));
    EXPECT_LE(t->stats().bytes, kMost);
  }
  EXPECT_TRUE(t->has(full(100, 0).id));
  EXPECT_FALSE(t->has(full(1, 0).id));
  EXPECT_FALSE(t->put(full(200, 0), KvBytes(kMost + 1)));
}

// The beginning of a conversation stays when it is larger than the tier, also where it comes again.
TEST_P(Tier, ALongConversationKeepsItsBeginning) {
  const auto t = tier(20 * 8192);
  const auto is_there = [&](uint64_t n) { return t->has(full(n, n - 1).id); };
  for (int round = 0; round < 2; ++round) {
    for (uint64_t n = 1; n <= 60; ++n) t->put(full(n, n - 1), bytes_of(full(n, n - 1), 8000));
    uint64_t kept = 0;
    while (is_there(kept + 1)) ++kept;
    EXPECT_GE(kept, 15u);
    for (uint64_t n = kept + 1; n <= 60; ++n) EXPECT_FALSE(is_there(n)) << n;
  }
  t->put(full(101, 0), bytes_of(full(101, 0), 8000));  // another one begins in the place of its end
  EXPECT_TRUE(t->has(full(101, 0).id));
  EXPECT_TRUE(is_there(14));
}

TEST_P(Tier, APartThatWasReadStays) {
  const auto t = tier(100'000);
  for (uint64_t n = 1; n <= 40; ++n) {
    t->put(full(n, 0), bytes_of(full(n, 0), 5000));
    ASSERT_NE(t->get(full(1, 0), 5000), nullptr) << n;
  }
  EXPECT_FALSE(t->has(full(2, 0).id));
}

// ---- the folder ----

class Folder : public testing::Test {
 protected:
  std::unique_ptr<DiskTier> open(uint64_t most_bytes = 1 << 20) {
    auto opened = DiskTier::open(folder_.path(), most_bytes);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    return opened.ok() ? std::move(opened).value() : nullptr;
  }
  std::string refusal() { return DiskTier::open(folder_.path(), 1 << 20).status().message(); }
  fs::path files() const { return fs::path(folder_.path()) / "moesaic-kv"; }
  fs::path file_of(const KvPart& part) const { return files() / kv_file_name(part); }

  TemporaryFolder folder_;
  const KvPart part_ = full(1, 0);
  const KvBytes bytes_ = bytes_of(part_, 500);
};

TEST_F(Folder, IsFoundAgainWithItsOrderOfUse) {
  {
    const auto tier = open();
    for (uint64_t n = 1; n <= 5; ++n) tier->put(full(n, 0), bytes_of(full(n, 0), 4000));
    // A file's time may be as coarse as the system's clock tick.
    for (uint64_t n = 1; n <= 5; ++n)
      fs::last_write_time(file_of(full(n, 0)), fs::file_time_type::clock::now() - std::chrono::hours(10 - n));
    tier->touch(full(1, 0));
  }
  const auto tier = open(2 * 4096);
  EXPECT_EQ(tier->stats().bytes, 5 * 4096u);  // who opens it may fail yet
  tier->trim();
  EXPECT_EQ(tier->stats().bytes, 2 * 4096u);
  EXPECT_TRUE(tier->has(full(1, 0).id));
  EXPECT_TRUE(tier->has(full(5, 0).id));
  EXPECT_EQ(*tier->get(full(1, 0), 4000), bytes_of(full(1, 0), 4000));
}

TEST_F(Folder, IsPrivate) {
  const mode_t before = umask(0);
  open()->put(part_, bytes_);
  umask(before);
  const auto mode_of = [](const fs::path& path) {
    struct stat info {};
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode_of(files()), 0700u);
  for (const auto& entry : fs::directory_iterator(files())) EXPECT_EQ(mode_of(entry.path()), 0600u) << entry;
  EXPECT_NE(mode_of(file_of(part_)), 0u);
}

TEST_F(Folder, IsOneProcesss) {
  const auto first = open();
  EXPECT_NE(refusal().find("another model or process uses it"), std::string::npos) << refusal();
}

TEST_F(Folder, OthersFoldersAreRefused) {
  fs::create_directories(files());
  fs::permissions(files(), fs::perms::owner_all | fs::perms::group_read);
  EXPECT_NE(refusal().find("this user's alone"), std::string::npos) << refusal();
  fs::remove_all(files());
  fs::create_directory_symlink("/tmp", files());
  EXPECT_FALSE(refusal().empty());
  fs::remove(files());
  std::ofstream(files()) << "a file";
  EXPECT_FALSE(refusal().empty());
  EXPECT_EQ(refusal().find('\n'), std::string::npos);
}

TEST_F(Folder, DamagedFilesAreSaidOnceAndRemoved) {
  const auto tier = open();
  const auto damage = [&](const std::function<void(std::string&)>& change) {
    ASSERT_TRUE(tier->put(part_, bytes_));
    std::string text;
    {
      std::ifstream in(file_of(part_), std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(in), {});
    }
    change(text);
    std::ofstream(file_of(part_), std::ios::binary) << text;
    Lines said;
    EXPECT_EQ(tier->get(part_, bytes_.size()), nullptr);
    EXPECT_EQ(said.lines.size(), 1u);
    EXPECT_FALSE(tier->has(part_.id));
    EXPECT_FALSE(fs::exists(file_of(part_)));
    EXPECT_EQ(tier->get(part_, bytes_.size()), nullptr);
    EXPECT_EQ(said.lines.size(), 1u);
  };
  for (size_t at = 0; at < sizeof(KvFileHeader) + bytes_.size(); at += at < 80 ? 1 : 37)
    damage([&](std::string& text) { text[at] = static_cast<char>(text[at] ^ 1); });
  for (const size_t size : {size_t{0}, size_t{71}, size_t{72}, size_t{571}})
    damage([&](std::string& text) { text.resize(size); });
  damage([&](std::string& text) { text += 'x'; });
  EXPECT_GT(tier->stats().damaged, 80u);
}

// One part's file under another part's name, or with another folder's key.
// While no file can be opened, nothing is known of the files, nor of the key.
TEST_F(Folder, LastsWhileThereAreNoDescriptors) {
  auto tier = open();
  ASSERT_TRUE(tier->put(part_, bytes_));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto limit = [&](rlim_t files) {
    const rlimit few{files, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  };
  Lines said;
  limit(3);
  EXPECT_EQ(tier->get(part_, bytes_.size()), nullptr);
  EXPECT_FALSE(tier->put(full(2, 0), bytes_));
  limit(before.rlim_cur);
  EXPECT_EQ(said.lines.size(), 1u);
  EXPECT_NE(said.lines.front().find(std::strerror(EMFILE)), std::string::npos) << said.lines.front();
  EXPECT_EQ(tier->stats().damaged, 0u);
  ASSERT_TRUE(tier->has(part_.id));
  EXPECT_EQ(*tier->get(part_, bytes_.size()), bytes_);
  tier.reset();
  for (rlim_t files = 3; files < 20; ++files) {
    limit(files);
    const std::string refused = refusal();
    limit(before.rlim_cur);
    EXPECT_TRUE(refused.empty() || refused.ends_with(std::strerror(EMFILE))) << refused;
  }
  EXPECT_EQ(*open()->get(part_, bytes_.size()), bytes_);
}

TEST_F(Folder, AFileIsItsOwnPartAlone) {
  const KvPart other = full(2, 0);
  const auto tier = open();
  ASSERT_TRUE(tier->put(part_, bytes_) && tier->put(other, bytes_of(other, 500)));
  fs::copy_file(file_of(other), file_of(part_), fs::copy_options::overwrite_existing);
  EXPECT_EQ(tier->get(part_, 500), nullptr);
  EXPECT_EQ(*tier->get(other, 500), bytes_of(other, 500));
  EXPECT_EQ(tier->get(other, 400), nullptr);  // as a model with smaller pages would ask
}

TEST_F(Folder, ALostKeyMakesFilesStrangers) {
  open()->put(part_, bytes_);
  std::ofstream(files() / "secret", std::ios::binary) << "short";
  const auto tier = open();
  EXPECT_TRUE(tier->has(part_.id));
  EXPECT_EQ(tier->get(part_, 500), nullptr);
}

TEST_F(Folder, StrangersAreLeftAloneAndSaidOnce) {
  open()->put(part_, bytes_);
  std::ofstream(files() / "notes.txt") << "mine";
  fs::create_directory(files() / (kv_file_name(full(3, 0))));
  fs::create_symlink("/etc/passwd", files() / kv_file_name(full(4, 0)));
  ASSERT_EQ(mkfifo((files() / kv_file_name(full(5, 0))).c_str(), 0600), 0);
  std::ofstream(files() / "new.part") << "unfinished";
  Lines said;
  const auto tier = open();
  EXPECT_EQ(said.lines.size(), 1u);
  EXPECT_TRUE(tier->has(part_.id));
  for (uint64_t n = 3; n <= 5; ++n) EXPECT_FALSE(tier->has(full(n, 0).id));
  EXPECT_TRUE(fs::exists(files() / "notes.txt"));
}

// The process is killed while it writes, evicts and reads; the next one finds nothing but whole parts.
void expect_whole_after_kills(const std::string& folder, int kills) {
  constexpr uint64_t kMost = 40 * 8192;
  // Chains of ten: a part whose parent is not there would not be taken.
  const auto part_of = [](uint64_t n) { return full(n, n % 10 == 1 ? 0 : n - 1); };
  const auto size_of = [](uint64_t n) { return 1 + n * 977 % 8000; };
  std::mt19937 rng(11);
  size_t found = 0;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const uint64_t begin = 1 + rng() % 100 * 10;
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const auto tier = DiskTier::open(folder, kMost);
      if (!tier.ok()) _exit(1);
      for (uint64_t n = begin;; n = 1 + n % 1000) {
        tier.value()->put(part_of(n), bytes_of(part_of(n), size_of(n)));
        const uint64_t earlier = 1 + n / 3;
        (void)tier.value()->get(part_of(earlier), size_of(earlier));
      }
    }
    usleep(static_cast<useconds_t>(rng() % 5000));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    Lines said;
    const auto tier = DiskTier::open(folder, kMost);
    ASSERT_TRUE(tier.ok()) << tier.status().message();
    for (uint64_t n = 1; n <= 1000; ++n) {
      const KvPart part = part_of(n);
      if (!tier.value()->has(part.id)) continue;
      const auto bytes = tier.value()->get(part, size_of(n));
      ASSERT_TRUE(bytes != nullptr && *bytes == bytes_of(part, size_of(n))) << n;
      ++found;
    }
    ASSERT_TRUE(said.lines.empty()) << said.lines.front();
    ASSERT_LE(tier.value()->stats().bytes, kMost);
  }
  EXPECT_GT(found, static_cast<size_t>(kills));
}

TEST_F(Folder, OpensAfterAKillAtAnyMoment) { expect_whole_after_kills(folder_.path(), 40); }
TEST_F(Folder, DISABLED_OpensAfterThousandsOfKills) { expect_whole_after_kills(folder_.path(), 5000); }

// A part that was a regular file when it was written may be something else when it is read.
TEST_F(Folder, AFileThatBecameSomethingElseIsRefused) {
  const auto tier = open();
  for (const bool link : {false, true}) {
    ASSERT_TRUE(tier->put(part_, bytes_));
    fs::remove(file_of(part_));
    if (link) {
      fs::create_symlink("/dev/zero", file_of(part_));
    } else {
      ASSERT_EQ(mkfifo(file_of(part_).c_str(), 0600), 0);
    }
    EXPECT_EQ(tier->get(part_, 500), nullptr);
    EXPECT_FALSE(tier->has(part_.id));
  }
}

TEST_F(Folder, ADiskThatTakesNothingIsSaidOnce) {
  const auto tier = open();
  fs::create_directory(files() / "new.part");
  Lines said;
  for (uint64_t n = 1; n <= 20; ++n) EXPECT_FALSE(tier->put(full(n, 0), bytes_));
  EXPECT_EQ(said.lines.size(), 1u);
  EXPECT_EQ(tier->stats().bytes, 0u);
}

// Mounts an empty file system of 64 KiB, for this process alone. False where the system does not allow it.
bool mount_small(const std::string& folder) {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  std::ofstream("/proc/self/setgroups") << "deny";
  std::ofstream("/proc/self/uid_map") << "0 " << user << " 1";
  std::ofstream("/proc/self/gid_map") << "0 " << group << " 1";
  return mount("none", folder.c_str(), "tmpfs", 0, "size=64k") == 0;
}

// Another's file takes a third of the disk; the bound is far above what is left. Says what is wrong.
std::string fault_on_a_full_disk(const std::string& folder) {
  std::ofstream(folder + "/others") << std::string(20'000, 'x');
  const auto part_of = [](uint64_t n) { return full(n, n % 4 == 1 ? 0 : n - 1); };  // chains of four
  Lines said;
  const auto tier = DiskTier::open(folder, 1 << 20);
  if (!tier.ok()) return tier.status().message();
  for (uint64_t n = 1; n <= 40; ++n) {
    if (!tier.value()->put(part_of(n), bytes_of(part_of(n), 4000))) return fmt::format("{} is not kept", n);
  }
  for (uint64_t n = 37; n <= 40; ++n) {
    const auto bytes = tier.value()->get(part_of(n), 4000);
    if (bytes == nullptr || *bytes != bytes_of(part_of(n), 4000)) return fmt::format("{} is not there", n);
  }
  if (tier.value()->has(part_of(1).id)) return "the oldest is there";
  return said.lines.empty() ? "" : said.lines.front();
}

TEST_F(Folder, NewPartsReplaceOldOnesOnAFullDisk) {
  constexpr int kCannotMount = 77;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (!mount_small(folder_.path())) _exit(kCannotMount);
    const std::string fault = fault_on_a_full_disk(folder_.path());
    std::cerr << fault << std::flush;
    _exit(fault.empty() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kCannotMount) GTEST_SKIP() << "no file system can be mounted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(KvFileName, IsReadAsItIsWritten) {
  for (const KvPart& part : {full(1, 0), window(77, 5), full(~0ull, ~0ull)}) {
    const std::string name = kv_file_name(part);
    const auto read = kv_part_of(name);
    ASSERT_TRUE(read.has_value()) << name;
    EXPECT_TRUE(read->id == part.id && read->before == part.before);
    EXPECT_FALSE(kv_part_of(name + "x"));
    EXPECT_FALSE(kv_part_of(name.substr(1)));
    std::string upper = name;
    std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
    EXPECT_FALSE(kv_part_of(upper));
  }
  EXPECT_FALSE(kv_part_of(""));
  EXPECT_FALSE(kv_part_of(std::string(70, '0')));
}

}  // namespace
}  // namespace moesaic

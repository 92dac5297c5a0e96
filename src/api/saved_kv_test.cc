// Saved and loaded KV caches, over models/tiny.
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "api/embedding_test.h"
#include "checkpoint/checkpoint.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// Writes an adapter in peft's form, of the last value row of the first layer alone.
void write_value_adapter(const fs::path& folder, const ModelConfig& c, float up) {
  fs::create_directories(folder);
  std::ofstream(folder / "adapter_config.json") << R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1})";
  const int64_t rows = c.kv_size();
  const std::string module = "base_model.model.model.layers.0.self_attn.v_proj.lora_";
  std::string head = R"({")" + module + R"(A.weight": {"dtype": "F32", "shape": [1, )" +
                     std::to_string(c.hidden) + R"(], "data_offsets": [0, )" + std::to_string(c.hidden * 4) +
                     R"(]}, ")" + module + R"(B.weight": {"dtype": "F32", "shape": [)" +
                     std::to_string(rows) + R"(, 1], "data_offsets": [)" + std::to_string(c.hidden * 4) +
                     ", " + std::to_string((c.hidden + rows) * 4) + "]}}";
  std::vector<float> values(static_cast<size_t>(c.hidden + rows));
  std::fill_n(values.begin(), c.hidden, 1.0F);
  values.back() = up;
  const uint64_t size = head.size();
  std::ofstream file(folder / "adapter_model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&size), sizeof size) << head;
  file.write(reinterpret_cast<const char*>(values.data()), std::ssize(values) * 4);
}

using SavedKv = Embedding;
INSTANTIATE_TEST_SUITE_P(Devices, SavedKv, testing::Values("cpu", "reference"),
                         [](const auto& i) { return std::string(i.param); });

TEST_P(SavedKv, ASavedPrefixIsFoundByAnotherModel) {
  const std::vector<int32_t> prompt = tokens_of(200);
  std::string bytes;
  std::vector<int32_t> expected;
  {
    Model model = open();
    EXPECT_EQ(model.save_kv(prompt).status().code(), StatusCode::kNotFound);
    expected = run(model, greedy(prompt, 12)).tokens;
    EXPECT_EQ(model.cached_prefix(prompt).value(), 192);
    const auto saved = model.save_kv(prompt);
    ASSERT_TRUE(saved.ok()) << saved.status().message();
    bytes = saved.value();
  }
  Model model = open();
  EXPECT_EQ(model.cached_prefix(prompt).value(), 0);
  const auto loaded = model.load_kv(bytes);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(loaded.value(), std::vector<int32_t>(prompt.begin(), prompt.begin() + 192));
  EXPECT_EQ(model.cached_prefix(prompt).value(), 192);
  const Record again = run(model, greedy(prompt, 12));
  EXPECT_EQ(again.end.cached_tokens, 192);
  EXPECT_EQ(again.tokens, expected);
  // Saved once more it is the same, and loading what is there changes nothing.
  EXPECT_EQ(model.save_kv(prompt).value(), bytes);
  ASSERT_TRUE(model.load_kv(bytes).ok());
  EXPECT_EQ(model.stats().full.used, 0);
}

// A saved cache has nothing of a draft head or a draft model: the tokens are the same, and drafts come again
// once the head has rows of its own, or the model has computed the text.
TEST_P(SavedKv, DraftersGoOnBehindALoadedPrefix) {
  const std::vector<int32_t> prompt = tokens_of(100);
  const int tokens = slow() ? 8 : 48;
  Model plain = open();
  const std::vector<int32_t> expected = run(plain, greedy(prompt, tokens)).tokens;
  const std::string bytes = plain.save_kv(prompt).value();
  for (const std::string& drafter :
       {std::string("eagle3:") + kTiny + "-eagle3", std::string("draft:") + kTiny, std::string("ngram")}) {
    OpenOptions options;
    options.speculative = drafter, options.draft_tokens = 3;
    Model model = open(options);
    const auto loaded = model.load_kv(bytes);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const Record record = run(model, greedy(prompt, tokens));
    EXPECT_EQ(record.end.cached_tokens, 96) << drafter;
    EXPECT_EQ(record.tokens, expected) << drafter;
    EXPECT_TRUE(drafter == "ngram" || record.end.speculation.accepted > (slow() ? 0u : 5u)) << drafter;
    // A conversation whose pages a later request wrote over is saved as it was.
    EXPECT_EQ(model.save_kv(prompt).value(), bytes) << drafter;
  }
}

TEST_P(SavedKv, AForkSharesThePagesOfARequestAtWork) {
  Model model = open({.max_batch = 3});
  Record first;
  ASSERT_TRUE(model.submit(greedy(tokens_of(100), 40), first.callbacks()).ok());
  while (first.tokens.size() < 35) ASSERT_TRUE(model.step().ok());
  std::vector<int32_t> text = tokens_of(100);
  text.insert(text.end(), first.tokens.begin(), first.tokens.end());
  EXPECT_EQ(model.cached_prefix(text).value(), 128);
  Record fork;
  ASSERT_TRUE(model.submit(greedy(text, 5), fork.callbacks()).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(fork.end.cached_tokens, 128);
  EXPECT_EQ(fork.tokens, std::vector<int32_t>(first.tokens.begin() + 35, first.tokens.begin() + 40));
}

TEST_P(SavedKv, DamagedAndForeignBytesAreRefused) {
  const std::vector<int32_t> prompt = tokens_of(70);
  Model model = open();
  run(model, greedy(prompt, 1));
  const std::string bytes = model.save_kv(prompt).value();
  Model empty = open();
  const auto refused = [&](const std::string& wrong, const char* words) {
    const auto loaded = empty.load_kv(wrong);
    ASSERT_FALSE(loaded.ok()) << words;
    EXPECT_NE(loaded.status().message().find(words), std::string::npos) << loaded.status().message();
    EXPECT_EQ(loaded.status().message().find('\n'), std::string::npos);
    EXPECT_EQ(empty.cached_prefix(prompt).value(), 0);
  };
  const auto with = [&](size_t at, auto value) {
    std::string wrong = bytes;
    std::memcpy(wrong.data() + at, &value, sizeof value);
    return wrong;
  };
  refused("", "0 bytes");
  refused(bytes.substr(0, 79), "79 bytes");
  refused(bytes.substr(0, 80), "cut off");
  refused(bytes.substr(0, bytes.size() - 1), "cut off");
  refused(bytes + "x", "damaged");
  refused(with(0, 'X'), "something else");
  refused(with(8, uint32_t{2}), "version 2");
  refused(with(12, uint32_t{64}), "another device or KV format");
  refused(with(16, uint64_t{5}), "another model");
  refused(with(24, 'x'), "another device or KV format");
  refused(with(56, ~uint32_t{0}), "another model");
  refused(with(60, uint32_t{0}), "another device or KV format");
  for (const uint64_t tokens : {uint64_t{0}, uint64_t{33}, uint64_t{1} << 40, ~uint64_t{31}})
    refused(with(64, tokens), "tokens");
  refused(with(64, uint64_t{131072}), "tokens");
  refused(with(72, uint64_t{0}), "checksum");
  refused(with(80, int32_t{3}), "checksum");
  refused(with(bytes.size() - 4, int32_t{3}), "checksum");
  EXPECT_TRUE(empty.load_kv(bytes).ok());
  // Other formats of the weights give other keys.
  Model other = open({.dense = "bf16"});
  EXPECT_FALSE(other.load_kv(bytes).ok());
  Model without = open({.prefix_cache = false});
  EXPECT_EQ(without.load_kv(bytes).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(without.save_kv(prompt).status().code(), StatusCode::kUnsupported);
}

TEST_P(SavedKv, TooFewPagesAreAnError) {
  Model model = open();
  run(model, greedy(tokens_of(130), 1));
  const std::string bytes = model.save_kv(tokens_of(130)).value();
  Model small = open({.context = 64, .max_batch = 1});
  const auto loaded = small.load_kv(bytes);
  EXPECT_EQ(loaded.status().code(), StatusCode::kOutOfMemory);
  EXPECT_NE(loaded.status().message().find("options.kv_tokens"), std::string::npos);
  EXPECT_EQ(run(small, greedy(tokens_of(40), 2)).tokens.size(), 2u);
}

TEST_P(SavedKv, KvFiles) {
  const fs::path file = fs::path(testing::TempDir()) / ("kv-" + std::to_string(getpid()) + GetParam());
  const std::vector<int32_t> prompt = tokens_of(70);
  Model model = open();
  run(model, greedy(prompt, 1));
  ASSERT_TRUE(model.save_kv_file(file, prompt).ok());
  Model other = open();
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(model.save_kv_file(file.string() + ".none/kv", prompt).code(), StatusCode::kIo);
  EXPECT_FALSE(fs::exists(file.string() + ".none"));
  EXPECT_EQ(other.load_kv_file(file).value().size(), 64u);
  fs::resize_file(file, 1000);
  EXPECT_FALSE(other.load_kv_file(file).ok());
  fs::remove(file);
  EXPECT_EQ(other.load_kv_file(file).status().code(), StatusCode::kNotFound);
  EXPECT_FALSE(model.save_kv_file("/proc/none/kv", prompt).ok());
  EXPECT_FALSE(model.save_kv_file("/dev/full", prompt).ok());
  EXPECT_FALSE(model.load_kv_file("/dev/zero").ok());
  // More than the model could have: refused before it is read. The file is a hole.
  std::ofstream(file) << "x";
  fs::resize_file(file, uintmax_t{1} << 42);
  const Status large = other.load_kv_file(file).status();
  EXPECT_NE(large.message().find("4398046511104 bytes"), std::string::npos) << large.message();
  fs::remove(file);
}

// A saved text is taken up by several requests at a time, each of which goes on in its own way.
TEST_P(SavedKv, ASavedPrefixForks) {
  const std::vector<int32_t> prompt = tokens_of(slow() ? 64 : 96);
  Model first = open();
  run(first, greedy(prompt, 1));
  const std::string bytes = first.save_kv(prompt).value();
  Model model = open({.max_batch = 3});
  ASSERT_TRUE(model.load_kv(bytes).ok());
  std::vector<std::vector<int32_t>> forks(3, prompt);
  std::vector<Record> records(3);
  for (size_t i = 0; i < forks.size(); ++i) {
    for (size_t k = 0; k < 5 + i; ++k) forks[i].push_back(static_cast<int32_t>(50 * i + k));
    ASSERT_TRUE(model.submit(greedy(forks[i], 5), records[i].callbacks()).ok());
  }
  ASSERT_TRUE(model.step().ok());
  EXPECT_LE(model.stats().full.used, static_cast<int>(prompt.size()) / 32 + 3);  // shared, and a page each
  ASSERT_TRUE(model.run().ok());
  for (size_t i = 0; i < forks.size(); ++i) {
    EXPECT_EQ(records[i].end.cached_tokens, static_cast<int>(prompt.size()));
    EXPECT_EQ(records[i].tokens, run(first, greedy(forks[i], 5)).tokens) << i;
  }
}

// Other adapters, other scales: another model.
TEST_P(SavedKv, AdaptersAreOfTheFingerprint) {
  const std::vector<int32_t> prompt = tokens_of(40);
  Model plain = open();
  run(plain, greedy(prompt, 1));
  const std::string bytes = plain.save_kv(prompt).value();
  EXPECT_TRUE(open().load_kv(bytes).ok());
  const auto with = [](const ModelConfig& c, float up) {
    const fs::path folder =
        fs::path(testing::TempDir()) / ("adapter-" + std::to_string(getpid()) + GetParam());
    write_value_adapter(folder, c, up);
    return folder.string();
  };
  const ModelConfig config = open_checkpoint(kTiny)->config;
  const std::string adapter = with(config, 0.25F);
  Model adapted = open({.lora = {adapter}});
  EXPECT_FALSE(adapted.load_kv(bytes).ok());
  run(adapted, greedy(prompt, 1));
  const std::string adapted_bytes = adapted.save_kv(prompt).value();
  EXPECT_FALSE(open({.lora = {adapter + ":0.5"}}).load_kv(adapted_bytes).ok());
  EXPECT_TRUE(open({.lora = {adapter}}).load_kv(adapted_bytes).ok());
  fs::remove_all(adapter);
}

// Two threads save, load and look up without a pause while the Model's own thread generates from a cache that
// has room for little more than the requests: each gets the tokens that it gets alone.
TEST_P(SavedKv, IsSavedAndLoadedWhileRequestsRun) {
  const int prompt = slow() ? 40 : 96, answer = slow() ? 6 : 40;
  std::vector<std::vector<int32_t>> expected;
  std::string bytes;
  {
    Model alone = open();
    for (int seed = 1; seed <= 3; ++seed)
      expected.push_back(run(alone, greedy(tokens_of(prompt, seed), answer)).tokens);
    run(alone, greedy(tokens_of(prompt, 9), 1));
    bytes = alone.save_kv(tokens_of(prompt, 9)).value();
  }
  Model model = open({.context = 160, .max_batch = 3, .kv_tokens = 3 * 160});
  std::vector<Record> records(3);
  ASSERT_TRUE(model.start().ok());
  std::atomic<bool> ended = false;
  std::vector<std::thread> savers;
  for (int k = 0; k < 2; ++k) {
    savers.emplace_back([&, text = tokens_of(prompt, 1 + k)] {
      while (!ended) {
        const auto saved = model.save_kv(text);
        if (saved.ok()) {
          EXPECT_TRUE(model.load_kv(saved.value()).ok());
        } else {
          EXPECT_EQ(saved.status().code(), StatusCode::kNotFound) << saved.status().message();
        }
        const auto loaded = model.load_kv(bytes);
        EXPECT_TRUE(loaded.ok() || loaded.status().code() == StatusCode::kOutOfMemory);
        EXPECT_TRUE(model.cached_prefix(tokens_of(prompt, 9)).ok());
      }
    });
  }
  for (int i = 0; i < 3; ++i)
    EXPECT_TRUE(
        model.submit(greedy(tokens_of(prompt, i + 1), answer), records[static_cast<size_t>(i)].callbacks())
            .ok());
  EXPECT_TRUE(model.wait().ok());
  ended = true;
  for (std::thread& t : savers) t.join();
  EXPECT_TRUE(model.stop().ok());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(records[i].tokens, expected[i]) << i;
  EXPECT_EQ(model.stats().full.used, 0);
}

}  // namespace
}  // namespace moesaic

#include "checkpoint/checkpoint.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "base/temporary_folder.h"
#include "checkpoint/gguf.h"
#include "checkpoint/json.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/writer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

const std::string kGoldens = std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/";

class CheckpointTest : public FolderTest {
 protected:
  // A copy of a golden checkpoint whose files a test may damage.
  std::string copy(const std::string& golden, const std::string& to) {
    fs::copy(kGoldens + golden, path(to), fs::copy_options::recursive);
    return path(to);
  }
};

// Every element of both models, as floats; MXFP4 also as codes.
void expect_equal(const MatrixView& a, const MatrixView& b, const char* what) {
  ASSERT_EQ(a.rows, b.rows) << what;
  ASSERT_EQ(a.cols, b.cols) << what;
  std::vector<float> x(a.cols), y(a.cols);
  for (int64_t r = 0; r < a.rows; ++r) {
    read_row(a, r, x), read_row(b, r, y);
    ASSERT_EQ(std::memcmp(x.data(), y.data(), x.size() * 4), 0) << what << " row " << r;
  }
}
void expect_equal(const ExpertsView& a, const ExpertsView& b, const char* what) {
  ASSERT_EQ(a.count, b.count) << what;
  for (int64_t e = 0; e < a.count; ++e) expect_equal(a.at(e), b.at(e), what);
}
void expect_equal(const Checkpoint& a, const Checkpoint& b) {
  expect_equal(a.weights.embed, b.weights.embed, "embed");
  expect_equal(a.weights.head, b.weights.head, "head");
  expect_equal(a.weights.final_norm, b.weights.final_norm, "final norm");
  ASSERT_EQ(a.weights.layers.size(), b.weights.layers.size());
  for (size_t i = 0; i < a.weights.layers.size(); ++i) {
    const LayerWeights &x = a.weights.layers[i], &y = b.weights.layers[i];
    expect_equal(x.q, y.q, "q"), expect_equal(x.k, y.k, "k"), expect_equal(x.v, y.v, "v"),
        expect_equal(x.o, y.o, "o");
    expect_equal(x.q_bias, y.q_bias, "q bias"), expect_equal(x.v_bias, y.v_bias, "v bias"),
        expect_equal(x.sinks, y.sinks, "sinks");
    expect_equal(x.router, y.router, "router"), expect_equal(x.attn_norm, y.attn_norm, "norm");
    expect_equal(x.gate, y.gate, "gate"), expect_equal(x.up, y.up, "up"),
        expect_equal(x.down, y.down, "down");
    expect_equal(x.gate_bias, y.gate_bias, "gate bias"), expect_equal(x.up_bias, y.up_bias, "up bias"),
        expect_equal(x.down_bias, y.down_bias, "down bias");
  }
}

TEST_F(CheckpointTest, HuggingFaceAndOriginalAreTheSameModel) {
  const auto hf = open_checkpoint(kGoldens + "tiny-mxfp4"),
             original = open_checkpoint(kGoldens + "tiny-original");
  ASSERT_TRUE(hf.ok()) << hf.status().message();
  ASSERT_TRUE(original.ok()) << original.status().message();
  EXPECT_EQ(hf->kind, "safetensors");
  EXPECT_EQ(original->kind, "original");
  expect_equal(hf.value(), original.value());
  EXPECT_EQ(hf->config.layers, original->config.layers);
}

TEST_F(CheckpointTest, RoundTripThroughGgufIsBitExact) {
  const auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_TRUE(write_gguf(source.value(), path("a.gguf"), {}).ok());
  const auto gguf = open_checkpoint(path("a.gguf"));
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  expect_equal(source.value(), gguf.value());
  const Status back = write_safetensors(gguf.value(), path("back"), {});
  ASSERT_TRUE(back.ok()) << back.message();
  const auto again = open_checkpoint(path("back"));
  ASSERT_TRUE(again.ok()) << again.status().message();
  expect_equal(source.value(), again.value());
  // The expert bytes themselves, not only their values.
  const auto bytes = [](const Checkpoint& c, const MatrixView& m) {
    return std::string(reinterpret_cast<const char*>(m.data), c.config.intermediate * c.config.hidden);
  };
  EXPECT_EQ(bytes(source.value(), source->weights.layers[0].gate.first),
            bytes(again.value(), again->weights.layers[0].gate.first));
  ASSERT_TRUE(write_gguf(again.value(), path("b.gguf"), {.overwrite = true}).ok());
  const auto b = open_checkpoint(path("b.gguf"));
  expect_equal(gguf.value(), b.value());
}

TEST_F(CheckpointTest, QuantisingExactExpertsGivesThemBack) {
  const auto bf16 = open_checkpoint(kGoldens + "tiny-bf16"), mxfp4 = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(bf16.ok()) << bf16.status().message();
  ASSERT_TRUE(write_gguf(bf16.value(), path("a.gguf"), {}).ok());
  const auto gguf = open_checkpoint(path("a.gguf"));
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  EXPECT_EQ(gguf->weights.layers[0].up.first.format, Format::kBF16);
  expect_equal(bf16.value(), gguf.value());
  ASSERT_TRUE(write_safetensors(bf16.value(), path("keep"), {}).ok());
  expect_equal(bf16.value(), open_checkpoint(path("keep")).value());
  ASSERT_TRUE(write_safetensors(bf16.value(), path("quantised"), {.experts = ExpertsOut::kMxfp4}).ok());
  const auto quantised = open_checkpoint(path("quantised"));
  ASSERT_TRUE(quantised.ok()) << quantised.status().message();
  for (size_t i = 0; i < bf16->weights.layers.size(); ++i)
    expect_equal(bf16->weights.layers[i].gate, quantised->weights.layers[i].gate, "gate");
}

TEST_F(CheckpointTest, Q8DenseIsWithinItsRounding) {
  const auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(write_gguf(source.value(), path("a.gguf"), {.dense = Format::kQ8_0}).ok());
  const auto q8 = open_checkpoint(path("a.gguf"));
  ASSERT_TRUE(q8.ok()) << q8.status().message();
  ASSERT_EQ(q8->weights.head.format, Format::kQ8_0);
  std::vector<float> x(source->config.hidden), y(x.size());
  read_row(source->weights.head, 3, x), read_row(q8->weights.head, 3, y);
  for (size_t b = 0; b < x.size(); b += 32) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b + i]));
    for (int i = 0; i < 32; ++i) EXPECT_NEAR(x[b + i], y[b + i], amax / 127 * 0.51f);
  }
  EXPECT_NE(write_safetensors(q8.value(), path("x"), {.dense = Format::kQ8_0}).message().find("have no Q8_0"),
            std::string::npos);
}

TEST_F(CheckpointTest, Mxfp8DenseComesBackWithinItsRounding) {
  const auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_TRUE(write_safetensors(source.value(), path("a"), {.dense = Format::kMxfp8}).ok());
  const auto mxfp8 = open_checkpoint(path("a"));
  ASSERT_TRUE(mxfp8.ok()) << mxfp8.status().message();
  ASSERT_EQ(mxfp8->weights.layers[0].k.format, Format::kMxfp8);
  std::vector<float> x(source->config.hidden), y(x.size());
  for (int64_t r = 0; r < source->weights.head.rows; ++r) {
    read_row(source->weights.head, r, x), read_row(mxfp8->weights.head, r, y);
    for (size_t b = 0; b < x.size(); b += 32) {
      float amax = 0;
      for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b + i]));
      // Half a step of E4M3, 2^-4 relative; 448 of the next power of two's 512 saturates: at most 1/8 of
      // amax.
      for (int i = 0; i < 32; ++i)
        EXPECT_NEAR(x[b + i], y[b + i], std::max(std::fabs(x[b + i]) / 8, amax * 0x1p-17f));
    }
  }
  // Kept, it is the same bytes; GGUF cannot carry it as it is.
  ASSERT_TRUE(write_safetensors(mxfp8.value(), path("b"), {}).ok());
  EXPECT_EQ(get(path("a/model.safetensors")), get(path("b/model.safetensors")));
  EXPECT_NE(write_gguf(mxfp8.value(), path("x.gguf"), {.dense = Format::kMxfp8}).message().find("no MXFP8"),
            std::string::npos);
}

TEST_F(CheckpointTest, TokenizerJsonBecomesGgufMetadata) {
  const std::string folder = copy("tiny-mxfp4", "source");
  const std::string file = folder + "/tokenizer.json";
  std::ofstream(file) << R"({"model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["a b",["b","a"]]},)"
                      << R"("added_tokens":[{"content":"<|end|>","id":5},{"id":6},7,)"
                      << R"({"content":"<tool>","id":8,"special":false}]})";
  const auto source = open_checkpoint(folder);
  ASSERT_TRUE(source.ok()) << source.status().message();
  ASSERT_TRUE(write_gguf(source.value(), path("a.gguf"), {}).ok());
  const auto gguf = open_checkpoint(path("a.gguf"));
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  const TokenizerSource& t = gguf->tokenizer;
  ASSERT_EQ(std::ssize(t.tokens), source->config.vocab);
  EXPECT_EQ(t.tokens[2], "ab");
  EXPECT_EQ(t.tokens[5], "<|end|>");
  EXPECT_EQ(t.merges, (std::vector<std::string>{"a b", "b a"}));
  EXPECT_EQ(t.token_types[1], 1);
  EXPECT_EQ(t.token_types[5], 3);
  EXPECT_EQ(t.tokens[8], "<tool>");
  EXPECT_EQ(t.token_types[8], 4);  // text, found by its name
  for (const char* bad : {"[]", "{}", R"({"model":[]})", R"({"model":{"vocab":3}})", "{"}) {
    std::ofstream(file) << bad;
    EXPECT_FALSE(write_gguf(source.value(), path("b.gguf"), {}).ok()) << bad;
    EXPECT_FALSE(fs::exists(path("b.gguf")));
  }
}

TEST_F(CheckpointTest, GgufMetadataBecomesTokenizerJson) {
  auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(source.ok()) << source.status().message();
  TokenizerSource& t = source->tokenizer;
  t = {.tokens = {"a", "b", "ab", "\"\\", "<|end|>", "<user>"},
       .merges = {"a b", "a c", "nothing"},
       .token_types = {1, 1, 1, 1, 3, 4}};
  ASSERT_TRUE(write_safetensors(source.value(), path("folder"), {}).ok());
  const Json json = Json::parse(get(path("folder/tokenizer.json")));
  EXPECT_EQ(json["model"]["vocab"], Json({{"a", 0}, {"b", 1}, {"ab", 2}, {"\"\\", 3}}));
  EXPECT_EQ(json["model"]["merges"], Json::parse(R"([["a","b"]])"));
  ASSERT_EQ(json["added_tokens"].size(), 2u);
  EXPECT_EQ(json["added_tokens"][0]["content"], "<|end|>");
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
  EXPECT_EQ(json["added_tokens"][1]["id"], 5);
  EXPECT_EQ(json["added_tokens"][1]["special"], false);
  const Status again = write_safetensors(source.value(), path("folder"), {});
  EXPECT_NE(again.message().find("--force"), std::string::npos) << again.message();
  t.tokens[1] = "a";
  EXPECT_NE(write_safetensors(source.value(), path("twice"), {}).message().find("twice"), std::string::npos);
  t.tokens[1] = "\xFF";
  EXPECT_NE(write_safetensors(source.value(), path("bytes"), {}).message().find("UTF-8"), std::string::npos);
  EXPECT_FALSE(fs::exists(path("bytes/model.safetensors")));
}

// Bytes that a file loses while it is mapped read as zero, and an error says it; other files are not touched.
TEST_F(CheckpointTest, AFileCutShortWhileItIsReadIsAnError) {
  catch_file_faults();
  constexpr size_t kBytes = (5 << 20) + 7;
  for (const char* name : {"cut", "whole"}) std::ofstream(path(name)) << std::string(kBytes, 'x');
  const auto cut = MappedFile::open(path("cut")), whole = MappedFile::open(path("whole"));
  ASSERT_TRUE(cut.ok() && whole.ok());
  const auto at = [](const auto& file, size_t i) {
    return static_cast<char>(*const_cast<const volatile std::byte*>(file.value()->bytes().data() + i));
  };
  EXPECT_EQ(at(cut, kBytes - 1), 'x');
  EXPECT_TRUE(cut.value()->intact().ok());
  fs::resize_file(path("cut"), 1 << 20);
  EXPECT_EQ(at(cut, 1000), 'x');
  for (const size_t i : {size_t{1} << 20, size_t{3} << 20, (size_t{4} << 20) + 1, kBytes - 1})
    EXPECT_EQ(at(cut, i), '\0');
  EXPECT_NE(cut.value()->intact().message().find("cut short"), std::string::npos);
  cut.value()->prefetch(cut.value()->bytes());
  cut.value()->drop(cut.value()->bytes());
  EXPECT_EQ(at(whole, kBytes - 1), 'x');
  EXPECT_TRUE(whole.value()->intact().ok());
}

// A mapping shows what another program writes.
TEST_F(CheckpointTest, AFileWrittenToWhileItIsReadIsAnError) {
  put("file", "abc"), put("replaced", "abc");
  const auto file = MappedFile::open(path("file")), replaced = MappedFile::open(path("replaced"));
  ASSERT_TRUE(file.ok() && replaced.ok());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // a clock's tick
  std::fstream(path("file")).put('x');
  EXPECT_NE(file.value()->intact().message().find("written to"), std::string::npos);
  EXPECT_NE(file.value()->intact().message().find(path("file")), std::string::npos);
  put("other", "xyz");
  fs::rename(path("other"), path("replaced"));  // the mapped file is still there
  EXPECT_TRUE(replaced.value()->intact().ok());
}

// Pages of a range that the system holds, whoever read them.
size_t resident_pages(std::span<const std::byte> range) {
  const auto page = static_cast<size_t>(getpagesize());
  std::vector<unsigned char> pages(range.size() / page);
  EXPECT_EQ(mincore(const_cast<std::byte*>(range.data()), pages.size() * page, pages.data()), 0);
  return static_cast<size_t>(
      std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p & 1; }));
}

TEST_F(CheckpointTest, AnEvictedFileLeavesThePageCache) {
  constexpr size_t kBytes = 8 << 20;
  put("file", std::string(kBytes, 'x'));
  struct statfs system {};
  constexpr int64_t kTmpfs = 0x01021994;
  if (statfs(path("file").c_str(), &system) == 0 && system.f_type == kTmpfs)
    GTEST_SKIP() << "files in memory";
  const int fd = open(path("file").c_str(), O_RDWR);
  ASSERT_EQ(fsync(fd), 0);  // pages that are not on the disk yet would stay in memory
  close(fd);
  const auto mapped = MappedFile::open(path("file"));
  ASSERT_TRUE(mapped.ok());
  const auto bytes = mapped.value()->bytes();
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{'x'}), std::ssize(bytes));
  const size_t all = resident_pages(bytes);
  EXPECT_EQ(all, kBytes / static_cast<size_t>(getpagesize()));
  mapped.value()->evict(bytes.first(kBytes / 2));
  EXPECT_LT(resident_pages(bytes.first(kBytes / 2)), all / 8);
  EXPECT_EQ(std::count(bytes.begin(), bytes.end(), std::byte{'x'}), std::ssize(bytes));
}

TEST_F(CheckpointTest, AModelCutShortWhileItIsConvertedIsAnError) {
  catch_file_faults();
  const auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(write_gguf(source.value(), path("a.gguf"), {}).ok());
  const auto model = open_checkpoint(path("a.gguf"));
  ASSERT_TRUE(model.ok());
  fs::resize_file(path("a.gguf"), 4096);
  const Status status = write_gguf(model.value(), path("b.gguf"), {});
  EXPECT_NE(status.message().find("a.gguf"), std::string::npos) << status.message();
  EXPECT_FALSE(fs::exists(path("b.gguf")));
}

// A layer's pages may go once its last tensor is written, so that a conversion stays as small as a layer.
TEST_F(CheckpointTest, WritersReleaseEachPartOnce) {
  auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(source.ok()) << source.status().message();
  std::vector<int> released, parts = {-1};
  for (int i = 0; i < source->config.layers; ++i) parts.push_back(i);
  source->weights.release = [&](int layer) { released.push_back(layer); };
  ASSERT_TRUE(write_gguf(source.value(), path("a.gguf"), {}).ok());
  EXPECT_EQ(released, parts);
  released.clear();
  ASSERT_TRUE(write_safetensors(source.value(), path("folder"), {}).ok());
  EXPECT_EQ(released, parts);
}

TEST_F(CheckpointTest, OneExpertAndOneTokenKeepTheirRank) {
  auto dummy = open_checkpoint("dummy:gpt-oss-20b,layers=1,experts=4");
  ASSERT_TRUE(dummy.ok()) << dummy.status().message();
  Checkpoint small = std::move(dummy).value();
  small.config.experts = small.config.experts_per_token = 1;
  small.config.vocab = 1;
  small.weights.embed.rows = small.weights.head.rows = 1;
  LayerWeights& w = small.weights.layers[0];
  w.router.rows = w.router_bias.cols = 1;
  for (ExpertsView* e : {&w.gate, &w.up, &w.down}) e->count = 1;
  for (MatrixView* m : {&w.gate_bias, &w.up_bias, &w.down_bias}) m->rows = 1;
  ASSERT_TRUE(write_safetensors(small, path("hf"), {}).ok());
  ASSERT_TRUE(write_gguf(small, path("a.gguf"), {}).ok());
  for (const std::string& name : {path("hf"), path("a.gguf")}) {
    const auto again = open_checkpoint(name);
    ASSERT_TRUE(again.ok()) << again.status().message();
    expect_equal(again->weights.layers[0].down, w.down, "down");
  }
}

TEST_F(CheckpointTest, WritersRefuseToReplaceAndLeaveNothingBehind) {
  const auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  put("a.gguf", "keep me");
  EXPECT_NE(write_gguf(source.value(), path("a.gguf"), {}).message().find("exists already"),
            std::string::npos);
  EXPECT_EQ(get(path("a.gguf")), "keep me");
  EXPECT_FALSE(write_gguf(source.value(), path("no/such/folder.gguf"), {}).ok());
  fs::create_directories(path("hf"));
  put("hf/config.json", "keep me");
  EXPECT_NE(write_safetensors(source.value(), path("hf"), {}).message().find("exists already"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(path("hf/model.safetensors")));
  EXPECT_TRUE(write_safetensors(source.value(), path("hf"), {.overwrite = true}).ok());
  put("hf/model.safetensors.index.json", "{}");
  EXPECT_NE(write_safetensors(source.value(), path("hf"), {.overwrite = true}).message().find("sharded"),
            std::string::npos);
  // A full disk: the file size limit makes write() fail the same way.
  rlimit old{}, small{4096, RLIM_INFINITY};
  getrlimit(RLIMIT_FSIZE, &old);
  signal(SIGXFSZ, SIG_IGN);
  small.rlim_max = old.rlim_max;
  setrlimit(RLIMIT_FSIZE, &small);
  const Status full = write_gguf(source.value(), path("full.gguf"), {});
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_NE(full.message().find("cannot write"), std::string::npos) << full.message();
  EXPECT_FALSE(fs::exists(path("full.gguf")));
  EXPECT_FALSE(fs::exists(path("full.gguf.part")));
}

TEST_F(CheckpointTest, DummiesHaveTheTrueShapes) {
  const auto dummy = open_checkpoint("dummy:gpt-oss-120b,layers=2,dense=q8_0");
  ASSERT_TRUE(dummy.ok()) << dummy.status().message();
  EXPECT_EQ(dummy->config.experts, 128);
  EXPECT_EQ(dummy->weights.layers.size(), 2u);
  EXPECT_EQ(dummy->weights.head.format, Format::kQ8_0);
  const auto mxfp8 = open_checkpoint("dummy:gpt-oss-20b,layers=1,dense=mxfp8");
  ASSERT_TRUE(mxfp8.ok()) << mxfp8.status().message();
  for (const Checkpoint* c : {&dummy.value(), &mxfp8.value()}) {
    const MatrixView& head = c->weights.head;
    std::vector<float> row(head.cols), other(head.cols);
    read_row(head, head.rows - 1, row), read_row(head, head.rows - 2, other);
    EXPECT_NE(row, other);
    double squares = 0;
    for (const float x : row) squares += x * x;
    EXPECT_NEAR(std::sqrt(squares / head.cols), 0.02, 0.01);
  }
  for (const char* bad :
       {"dummy:", "dummy:gpt-5", "dummy:gpt-oss-20b,layers=0", "dummy:gpt-oss-20b,layers=x",
        "dummy:gpt-oss-20b,colour=red", "dummy:gpt-oss-20b,vocab=0", "dummy:gpt-oss-20b,vocab=201089",
        "dummy:gpt-oss-20b,experts=2", "dummy:gpt-oss-20b,experts=q8_0", "dummy:gpt-oss-20b,zipf=-1",
        "dummy:gpt-oss-20b,zipf=x", "dummy:gpt-oss-20b,zipf=", "dummy:gpt-oss-20b,dense="}) {
    EXPECT_FALSE(open_checkpoint(bad).ok()) << bad;
  }
}

// The share of all choices that the most chosen quarter of a layer's 32 experts has.
double share_of_a_quarter(const std::string& name) {
  const auto dummy = open_checkpoint(name);
  EXPECT_TRUE(dummy.ok()) << dummy.status().message();
  const LayerWeights& layer = dummy->weights.layers[1];
  const int experts = dummy->config.experts, hidden = dummy->config.hidden;
  const auto columns = static_cast<size_t>(hidden);
  std::vector<float> weights(static_cast<size_t>(experts) * columns), bias(static_cast<size_t>(experts)),
      x(columns);
  for (int e = 0; e < experts; ++e)
    read_row(layer.router, e, std::span(weights).subspan(e * columns, columns));
  read_row(layer.router_bias, 0, bias);
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  std::vector<int> chosen(static_cast<size_t>(experts));
  constexpr int kTokens = 500, kTopK = 4;
  for (int token = 0; token < kTokens; ++token) {
    for (float& v : x) v = normal(rng);
    std::vector<std::pair<double, int>> logits;
    for (int e = 0; e < experts; ++e)
      logits.emplace_back(
          std::inner_product(x.begin(), x.end(), weights.begin() + e * hidden, double{bias[e]}), e);
    std::ranges::partial_sort(logits, logits.begin() + kTopK, std::greater());
    for (int k = 0; k < kTopK; ++k) ++chosen[logits[k].second];
  }
  std::ranges::sort(chosen, std::greater());
  return std::accumulate(chosen.begin(), chosen.begin() + experts / 4, 0.0) / (kTokens * kTopK);
}

TEST(Dummy, RoutingIsEvenOrAsSkewedAsAskedFor) {
  const double even = share_of_a_quarter("dummy:gpt-oss-20b,layers=2,vocab=100"),
               half = share_of_a_quarter("dummy:gpt-oss-20b,layers=2,vocab=100,zipf=0.5"),
               one = share_of_a_quarter("dummy:gpt-oss-20b,layers=2,vocab=100,zipf=1");
  std::printf("a quarter of the experts has %.2f, %.2f and %.2f of the choices\n", even, half, one);
  EXPECT_NEAR(even, 0.29, 0.04);  // a quarter, but for chance
  EXPECT_GT(half, even + 0.1);
  EXPECT_GT(one, half + 0.1);
  EXPECT_LT(one, 0.9);
}

// ---- hostile files ----

std::string safetensors(const std::string& header, const std::string& data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + header + data;
}

TEST_F(CheckpointTest, DamagedSafetensorsAreExplained) {
  const std::string data(64, 'x');
  const std::map<std::string, std::string> cases = {
      {"short", "too short"},
      {std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8) + data, "does not fit the file"},
      {safetensors("[1]", data), "not a JSON object"},
      {safetensors("{\"a\":", data), "not valid JSON"},
      {safetensors(std::string(100000, '['), data), "nested deeper"},
      {safetensors(
           R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}})",
           data),
       "stands twice"},
      {safetensors(
           R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[4],"data_offsets":[12,28]}})",
           data),
       "overlap"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,15]}})", data),
       "do not fit its shape"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}})", data),
       "outside the file"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]}})", data),
       "impossible shape"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[-4],"data_offsets":[0,16]}})", data), "not a size"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})", data), "impossible shape"},
      {safetensors(R"({"a\n\u001b[2J":{"dtype":"Q9","shape":[4],"data_offsets":[0,16]}})", data),
       "tensor 'a??[2J'"},
      {safetensors(R"({"a":{"dtype":"U32","shape":[4],"data_offsets":[0,16]}})", data),
       "dtype 'U32' is not supported; use weights in BF16"},
      {safetensors(R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[16,0]}})", data), "outside the file"},
  };
  for (const auto& [bytes, message] : cases) {
    const std::string folder = copy("tiny-mxfp4", "case");
    std::ofstream(folder + "/model.safetensors", std::ios::binary) << bytes;
    const auto result = open_checkpoint(folder);
    ASSERT_FALSE(result.ok()) << message;
    EXPECT_NE(result.status().message().find(message), std::string::npos) << result.status().message();
    EXPECT_EQ(result.status().message().find('\n'), std::string::npos);
    fs::remove_all(folder);
  }
}

TEST_F(CheckpointTest, EveryTruncationOfASafetensorsFileIsAnError) {
  const std::string folder = copy("tiny-mxfp4", "case"), file = folder + "/model.safetensors",
                    whole = get(file);
  for (size_t n = 0; n < whole.size(); n += 1 + whole.size() / 97) {
    std::ofstream(file, std::ios::binary | std::ios::trunc)
        .write(whole.data(), static_cast<std::streamsize>(n));
    ASSERT_FALSE(open_checkpoint(folder).ok()) << n;
  }
}

TEST_F(CheckpointTest, BadConfigsAreExplained) {
  const std::map<std::string, std::string> changes = {
      {R"({"model_type":"llama"})", "expected gpt_oss"},
      {R"({"hidden_size":-1})", "hidden_size"},
      {R"({"hidden_size":1e99})", "hidden_size"},
      {R"({"num_hidden_layers":1000000000})", "layer"},
      {R"({"layer_types":["full_attention"]})", "layer_types"},
      {R"({"vocab_size":7})", "the config asks for"},
      {R"({"num_local_experts":6})", "the config asks for"},
      {R"({"head_dim":0})", "head_dim"},
      {R"({"rope_scaling":{"rope_type":5}})", "RoPE type '5'"},
      {R"({"rope_scaling":{"type":[]}})", "RoPE type '[]'"},
  };
  for (const auto& [change, message] : changes) {
    const std::string folder = copy("tiny-mxfp4", "case");
    Json config = Json::parse(get(folder + "/config.json"));
    config.update(Json::parse(change));
    std::ofstream(folder + "/config.json") << config.dump();
    const auto result = open_checkpoint(folder);
    ASSERT_FALSE(result.ok()) << change;
    EXPECT_NE(result.status().message().find(message), std::string::npos) << result.status().message();
    fs::remove_all(folder);
  }
}

TEST_F(CheckpointTest, MissingFiles) {
  EXPECT_NE(open_checkpoint(path("nothing")).status().message().find("no such file"), std::string::npos);
  EXPECT_NE(open_checkpoint(folder_.string()).status().message().find("no config.json"), std::string::npos);
  put("model.txt", "hello");
  EXPECT_NE(open_checkpoint(path("model.txt")).status().message().find("not a model"), std::string::npos);
  put("empty.gguf", "");
  EXPECT_NE(open_checkpoint(path("empty.gguf")).status().message().find("empty"), std::string::npos);
  const std::string folder = copy("tiny-mxfp4", "case");
  std::ofstream(folder + "/model.safetensors.index.json") << R"({"weight_map":{"a":"../../etc/passwd"}})";
  EXPECT_NE(open_checkpoint(folder).status().message().find("not a file name"), std::string::npos);
  std::ofstream(folder + "/model.safetensors.index.json") << R"({"weight_map":{"a":"shard-2.safetensors"}})";
  fs::remove(folder + "/model.safetensors");
  EXPECT_NE(open_checkpoint(folder).status().message().find("shard-2.safetensors"), std::string::npos);
}

// Files that stand in place of a model, and the error that names what they are.
TEST_F(CheckpointTest, FilesThatAreSomethingElse) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 13793441244\n";
  put("lfs.gguf", pointer);
  EXPECT_NE(open_checkpoint(path("lfs.gguf")).status().message().find("git lfs pull"), std::string::npos);
  const std::string folder = copy("tiny-mxfp4", "case");
  Json config = Json::parse(get(folder + "/config.json"));
  for (const char* method : {"fp8", "awq", "gptq", "bitsandbytes", "compressed-tensors"}) {
    config["quantization_config"] = {{"quant_method", method}};
    std::ofstream(folder + "/config.json") << config.dump();
    const auto result = open_checkpoint(folder);
    ASSERT_FALSE(result.ok());
    for (const char* word : {method, "openai/gpt-oss-20b"})
      EXPECT_NE(result.status().message().find(word), std::string::npos) << result.status().message();
  }
  // The config counts before types and shapes of tensors.
  const std::string tensors = get(folder + "/model.safetensors");
  std::ofstream(folder + "/model.safetensors", std::ios::binary)
      << safetensors(R"({"a":{"dtype":"U32","shape":[1],"data_offsets":[0,4]}})", "1234");
  config["quantization_config"] = {{"bits", 4}};
  std::ofstream(folder + "/config.json") << config.dump();
  EXPECT_NE(open_checkpoint(folder).status().message().find("'MLX'"), std::string::npos);
  config.erase("quantization_config");
  std::ofstream(folder + "/config.json") << config.dump();
  std::ofstream(folder + "/hf_quant_config.json") << R"({"quantization": {"quant_algo": "NVFP4"}})";
  EXPECT_NE(open_checkpoint(folder).status().message().find("quantised to NVFP4 by ModelOpt"),
            std::string::npos);
  fs::remove(folder + "/hf_quant_config.json");
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << tensors;
  EXPECT_TRUE(open_checkpoint(folder).ok());
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << pointer;
  EXPECT_NE(open_checkpoint(folder).status().message().find("Git LFS"), std::string::npos);
}

class Gguf {
 public:
  Gguf& raw(const void* p, size_t n) {
    bytes.append(static_cast<const char*>(p), n);
    return *this;
  }
  Gguf& u32(uint32_t v) { return raw(&v, 4); }
  Gguf& u64(uint64_t v) { return raw(&v, 8); }
  Gguf& text(const std::string& s) { return u64(s.size()).raw(s.data(), s.size()); }
  Gguf& header(uint64_t tensors, uint64_t entries) {
    return u32(0x46554747).u32(3).u64(tensors).u64(entries);
  }
  std::string bytes;
};

TEST_F(CheckpointTest, HostileGgufIsExplained) {
  const auto tensor = [](uint64_t rows, uint32_t type, uint64_t offset) {
    return Gguf().text("t").u32(2).u64(32).u64(rows).u32(type).u64(offset).bytes;
  };
  const std::string room(256, '\0');
  const std::map<std::string, std::string> cases = {
      {"GGUX" + room, "not a GGUF"},
      {Gguf().u32(0x46554747).u32(2).u64(0).u64(0).bytes + room, "version 2"},
      {Gguf().u32(0x46554747).u32(0x03000000).u64(0).u64(0).bytes + room, "a big-endian GGUF file"},
      {Gguf().header(uint64_t{1} << 60, 0).bytes + room, "do not fit the file"},
      {Gguf().header(0, uint64_t{1} << 60).bytes + room, "do not fit the file"},
      {Gguf().header(0, 1).u64(uint64_t{1} << 62).bytes + room, "ends inside the metadata"},
      {Gguf().header(0, 1).text("k").u32(8).u64(uint64_t{1} << 40).bytes + room, "ends inside metadata"},
      {Gguf().header(0, 1).text("k").u32(9).u32(4).u64(uint64_t{1} << 40).bytes + room,
       "does not fit the file"},
      {Gguf().header(0, 1).text("k").u32(9).u32(9).u64(1).bytes + room, "nested arrays"},
      {Gguf().header(0, 1).text("k").u32(77).bytes + room, "unknown value type"},
      {Gguf().header(0, 2).text("k").u32(4).u32(1).text("k").u32(4).u32(1).bytes + room, "stands twice"},
      {Gguf().header(0, 1).text("general.alignment").u32(4).u32(24).bytes + room, "power of two"},
      {Gguf().header(1, 0).bytes + tensor(uint64_t{1} << 61, 0, 0) + room, "impossible shape"},
      {Gguf().header(1, 0).bytes + tensor(4, 10, 0) + room,
       "rows of 32 elements are no multiple of Q2_K's 256"},
      {Gguf().header(1, 0).bytes + tensor(4, 15, 0) + room, "type 15 Q8_K is not supported"},
      {Gguf().header(1, 0).bytes + tensor(4, 4000, 0) + room, "type 4000 (unknown) is not supported"},
      {Gguf().header(1, 0).bytes + tensor(4, 0, uint64_t{1} << 40) + room, "outside the file"},
      {Gguf().header(1, 0).bytes + tensor(1, 0, 7) + room, "not aligned"},
      {Gguf().header(2, 0).bytes + tensor(1, 0, 0) + tensor(1, 0, 32) + room, "overlaps"},
      {Gguf().header(2, 0).bytes + tensor(1, 0, 0) + tensor(1, 0, 128) + room + room, "stands twice"},
      {Gguf().header(0, 0).bytes + room, "expected gpt-oss"},
  };
  for (const auto& [bytes, message] : cases) {
    put("x.gguf", bytes);
    const auto result = open_checkpoint(path("x.gguf"));
    ASSERT_FALSE(result.ok()) << message;
    EXPECT_NE(result.status().message().find(message), std::string::npos) << result.status().message();
  }
}

TEST_F(CheckpointTest, EveryTruncationOfAGgufFileIsAnError) {
  const auto source = open_checkpoint(kGoldens + "tiny-mxfp4");
  ASSERT_TRUE(write_gguf(source.value(), path("a.gguf"), {}).ok());
  const std::string whole = get(path("a.gguf"));
  for (size_t n = 1; n + 32 < whole.size(); n += 1 + whole.size() / 97) {
    put("b.gguf", whole.substr(0, n));
    ASSERT_FALSE(open_checkpoint(path("b.gguf")).ok()) << n;
  }
}

}  // namespace
}  // namespace moesaic

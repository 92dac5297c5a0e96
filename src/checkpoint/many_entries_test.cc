// Lists of 100,000 entries: what looks at each entry again for every other one would take minutes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/temporary_folder.h"
#include "base/whole_json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/json.h"
#include "checkpoint/lora_config.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

constexpr int kEntries = 100'000;
// A safetensors header of 60,000 tensors took 96 s when its time was quadratic; all of these take 3 s
// together.
constexpr double kMost = 40;  // seconds of the processor, which others may keep busy

class ManyEntries : public FolderTest {
 protected:
  ~ManyEntries() override { EXPECT_LT(static_cast<double>(std::clock() - begin_) / CLOCKS_PER_SEC, kMost); }

 private:
  const std::clock_t begin_ = std::clock();
};

std::string golden(const std::string& name) {
  std::ifstream in(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/tiny-mxfp4/" + name,
                   std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The golden model's file, and as many tensors of four bytes that no layer has.
std::string with_more_tensors(const std::string& file, int more) {
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::string header = file.substr(sizeof length, length), data = file.substr(sizeof length + length);
  header.resize(header.rfind('}'));
  for (int i = 0; i < more; ++i) {
    header += fmt::format(R"(,"extra.{}":{{"dtype":"F32","shape":[1],"data_offsets":[{},{}]}})", i,
                          data.size(), data.size() + 4);
    data.append(4, '\0');
  }
  header += '}';
  length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + data;
}

TEST_F(ManyEntries, TensorsOfSafetensors) {
  put("config.json", golden("config.json"));
  put("model.safetensors", with_more_tensors(golden("model.safetensors"), kEntries));
  const auto checkpoint = open_checkpoint(folder_.string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_GT(checkpoint->tensors.size(), static_cast<size_t>(kEntries));
}

TEST_F(ManyEntries, NamesOfAnIndex) {
  put("config.json", golden("config.json"));
  put("weights.safetensors", golden("model.safetensors"));
  Json map = Json::object();
  for (int i = 0; i < kEntries; ++i) map[fmt::format("model.layers.{}.weight", i)] = "weights.safetensors";
  put("model.safetensors.index.json", Json({{"weight_map", map}}).dump());
  const auto checkpoint = open_checkpoint(folder_.string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
}

TEST_F(ManyEntries, TensorsAndMetadataOfGguf) {
  GgufHeader header;
  for (int i = 0; i < kEntries; ++i) header.u32(fmt::format("key.{}", i), 1);
  for (int i = kEntries; i > 0; --i)
    header.tensor(fmt::format("tensor.{}", i), {8}, 0, 32 * static_cast<uint64_t>(kEntries - i));
  std::string bytes = header.finish(kEntries);
  bytes.resize((bytes.size() + 31) / 32 * 32 + 32 * static_cast<size_t>(kEntries));
  auto mapped = MappedFile::open(put("many.gguf", bytes));
  ASSERT_TRUE(mapped.ok()) << mapped.status().message();
  const auto gguf = read_gguf(std::move(mapped).value());
  ASSERT_TRUE(gguf.ok()) << gguf.status().message();
  EXPECT_EQ(gguf->metadata.size(), static_cast<size_t>(kEntries));
  EXPECT_EQ(gguf->tensors.tensors.size(), static_cast<size_t>(kEntries));
}

// Metadata of a gibibyte and more that take a sparse file no disk: what they make in memory is bounded, and
// architecture_of() steps over them.
TEST_F(ManyEntries, HugeMetadataOfGguf) {
  struct Case {
    uint32_t type, element;
    uint64_t count, bytes;
  };
  for (const Case& c : {Case{9, 0, (1 << 25) + 1, (1 << 25) + 1},           // as int64_t
                        Case{9, 8, (1 << 23) + 1, 8 * ((1 << 23) + 1ull)},  // empty strings
                        Case{8, 0, 0, (1 << 28) + 1}}) {                    // one string
    std::string head(
        "GGUF\3\0\0\0"
        "\0\0\0\0\0\0\0\0"
        "\1\0\0\0\0\0\0\0"
        "\1\0\0\0\0\0\0\0"
        "a",
        33);
    const auto raw = [&](const auto& value) {
      head.append(reinterpret_cast<const char*>(&value), sizeof value);
    };
    raw(c.type);
    if (c.type == 9) raw(c.element), raw(c.count);
    if (c.type == 8) raw(c.bytes);
    put("huge.gguf", head);
    fs::resize_file(path("huge.gguf"), head.size() + c.bytes);
    const auto gguf = read_gguf(MappedFile::open(path("huge.gguf")).value());
    EXPECT_NE(gguf.status().message().find("more than 256 MB inside metadata 'a'"), std::string::npos)
        << gguf.status().message();
  }
}

// So is a list of tensors, and JSON of many empty objects.
TEST_F(ManyEntries, HugeListOfTensors) {
  GgufHeader header;
  for (int i = 0; i < 1'000'000; ++i) header.tensor("", {32}, 0, 0);
  const auto gguf = read_gguf(MappedFile::open(put("many.gguf", header.finish(1'000'000))).value());
  EXPECT_NE(gguf.status().message().find("more than 256 MB inside the tensor list"), std::string::npos)
      << gguf.status().message();
  put("config.json", std::string((6 << 20) + 1, ' '));
  EXPECT_NE(read_json_file(path("config.json")).status().message().find("larger than 6 MB"),
            std::string::npos);
}

// The header of safetensors may have 100 MB, of which small values would make gigabytes.
TEST_F(ManyEntries, ValuesOfAHeader) {
  std::string header = "{\"a\":[{}";
  for (int64_t i = 0; i < kMostFileValues; ++i) header += ",{}";
  header += "]}";
  const uint64_t length = header.size();
  put("config.json", golden("config.json"));
  put("model.safetensors", std::string(reinterpret_cast<const char*>(&length), sizeof length) + header);
  const Status status = open_checkpoint(folder_.string()).status();
  EXPECT_NE(status.message().find("more than 4000000 values"), std::string::npos) << status.message();
}

// Ordered JSON finds a member by a scan: an object of too many members is an error.
TEST_F(ManyEntries, PatternsOfAnAdapter) {
  std::string text = R"({"peft_type":"LORA","r":8,"lora_alpha":8,"rank_pattern":{"a":1)";
  const auto add = [&](int from, int to) {
    for (int i = from; i < to; ++i) text += fmt::format(R"(,"m{}":1)", i);
  };
  add(0, 5000);
  const auto some = parse_ordered_json(text + "}}", "adapter");
  ASSERT_TRUE(some.ok()) << some.status().message();
  EXPECT_EQ(lora_config(some.value(), "adapter")->rank_pattern.size(), 5001u);
  add(5000, kEntries);
  const Status status = parse_ordered_json(text + "}}", "adapter").status();
  EXPECT_NE(status.message().find("too many members"), std::string::npos) << status.message();
}

TEST_F(ManyEntries, AKeyThatStandsTwiceIsStillFound) {
  std::string text = "{\"first\":{}";
  for (int i = 0; i < kEntries; ++i) text += fmt::format(R"(,"k{}":{{"dtype":"F32","shape":[1]}})", i);
  EXPECT_TRUE(parse_json(text + "}", "file").ok());
  const Status twice = parse_json(text + ",\"first\":1}", "file").status();
  EXPECT_NE(twice.message().find("'first' stands twice"), std::string::npos) << twice.message();
  EXPECT_FALSE(parse_json(text, "file").ok());
}

}  // namespace
}  // namespace moesaic

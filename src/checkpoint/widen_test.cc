// GGUF's block formats: against gguf-py's values, and models whose dense tensors are stored in them.
#include "checkpoint/widen.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <tuple>

#include "base/temporary_folder.h"
#include "checkpoint/ggml_blocks.h"
#include "checkpoint/ggml_scale_test.h"
#include "checkpoint/gguf.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/writer.h"
#include "mx/block.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

struct Golden {
  std::string name;
  uint32_t blocks = 0, bytes = 0;
  std::string data;
  std::vector<float> values;
};
// tools/golden/make_gguf_goldens.py writes them.
std::vector<Golden> goldens() {
  std::ifstream in(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/gguf/blocks.bin", std::ios::binary);
  std::vector<Golden> all;
  char name[8];
  while (in.read(name, sizeof name)) {
    Golden g{.name = std::string(name, strnlen(name, sizeof name)), .values = std::vector<float>(2048)};
    in.read(reinterpret_cast<char*>(&g.blocks), 4).read(reinterpret_cast<char*>(&g.bytes), 4);
    g.data.resize(size_t{g.blocks} * g.bytes);
    in.read(g.data.data(), std::ssize(g.data)).read(reinterpret_cast<char*>(g.values.data()), 4 * 2048);
    all.push_back(std::move(g));
  }
  return all;
}

std::vector<float> through_q8_0(const GgmlBlocks& type, const std::string& data) {
  std::vector<float> values;
  std::vector<uint8_t> out(type.block / 32 * 34);
  for (size_t at = 0; at < data.size(); at += type.bytes) {
    type.to_q8_0(reinterpret_cast<const uint8_t*>(data.data()) + at, out.data());
    const MatrixView row =
        dense_view(Format::kQ8_0, 1, type.block, reinterpret_cast<const std::byte*>(out.data()));
    std::vector<float> block(type.block);
    read_row(row, 0, block);
    values.insert(values.end(), block.begin(), block.end());
  }
  return values;
}

TEST(GgmlBlocks, AreWhatGgufPyReads) {
  const std::vector<Golden> all = goldens();
  EXPECT_EQ(all.size(), ggml_blocks().size());
  for (const Golden& g : all) {
    const GgmlBlocks* type = find_ggml_blocks(g.name);
    ASSERT_NE(type, nullptr) << g.name;
    ASSERT_EQ(type->bytes, g.bytes) << g.name;
    const std::vector<float> got = through_q8_0(*type, g.data);
    ASSERT_EQ(got.size(), g.values.size()) << g.name;
    for (size_t block = 0; block < got.size(); block += 32) {
      float largest = 0;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(g.values[i]));
      for (size_t i = block; i < block + 32; ++i) {
        // Rounded to steps of the largest / 127; the scale itself to 11 bits.
        const float bound = type->exact ? 0 : largest * (0.5f / 127 + 0x1p-11f) + 0x1p-25f * 127;
        ASSERT_LE(std::fabs(got[i] - g.values[i]), bound) << g.name << " element " << i;
      }
    }
  }
}

TEST(GgmlBlocks, AScaleThatIsNotFiniteStaysSo) {
  for (const Golden& g : goldens()) {
    const GgmlBlocks* type = find_ggml_blocks(g.name);
    for (const uint16_t bad : {0x7C00, 0xFC00, 0x7E00}) {
      std::string data = g.data.substr(0, g.bytes);
      put_scale(g.name, bad, data);
      const std::vector<float> got = through_q8_0(*type, data);
      EXPECT_TRUE(std::any_of(got.begin(), got.end(), [](float v) { return !std::isfinite(v); })) << g.name;
    }
  }
}

// The tiny model with its dense matrices as random blocks of a type.
class WidenedModel : public FolderTest {
 protected:
  // Matrices of `columns` columns become blocks of a golden, over and over; experts too where asked for.
  void write(const Golden& g, bool experts) {
    const auto source = open_checkpoint(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/tiny-mxfp4");
    fs::remove(path("plain.gguf"));
    ASSERT_TRUE(write_gguf(source.value(), path("plain.gguf"), {}).ok());
    const GgufFile file = read_gguf(MappedFile::open(path("plain.gguf")).value()).value();
    const GgmlBlocks& type = *find_ggml_blocks(g.name);
    GgufHeader header;
    for (const auto& [key, value] : file.metadata) {
      if (const auto* i = std::get_if<int64_t>(&value)) header.u32(key, static_cast<uint32_t>(*i));
      if (const auto* d = std::get_if<double>(&value)) header.f32(key, *d);
      if (const auto* s = std::get_if<std::string>(&value)) header.text(key, *s);
    }
    std::string data;
    for (const auto& [name, t] : file.tensors.tensors) {
      data.resize((data.size() + 31) / 32 * 32);
      const bool expert = t.shape.size() == 3;
      const bool replaced = (expert ? experts
                                    : t.shape.size() == 2 && name.find("bias") == std::string::npos &&
                                          name.find("ffn_gate_inp") == std::string::npos) &&
                            t.shape.back() % type.block == 0 && name.find(only_) != std::string::npos;
      const uint32_t own = t.dtype == "F32" ? 0 : t.dtype == "BF16" ? 30 : 39;
      header.tensor(name, t.shape, replaced ? type.id : own, data.size());
      if (!replaced) {
        data.append(reinterpret_cast<const char*>(t.data.data()), t.data.size());
        continue;
      }
      ++replaced_;
      const size_t bytes = static_cast<size_t>(*element_count(t.shape) / type.block * type.bytes);
      std::string blocks;
      while (blocks.size() < bytes) blocks += g.data;
      data += blocks.substr(0, bytes);
    }
    std::string head = header.finish(file.tensors.tensors.size());
    head.resize((head.size() + 31) / 32 * 32);
    std::ofstream(path("m.gguf"), std::ios::binary) << head << data;
  }

  int replaced_ = 0;
  std::string only_;  // in the names of those that are replaced
};

TEST_F(WidenedModel, DenseTensorsBecomeQ8_0) {
  for (const Golden& g : goldens()) {
    if (find_ggml_blocks(g.name)->block > 32) continue;  // tiny's rows are shorter
    replaced_ = 0;
    write(g, false);
    ASSERT_GT(replaced_, 2) << g.name;
    const auto model = open_checkpoint(path("m.gguf"));
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ(model->weights.layers[0].q.format, Format::kQ8_0);
    std::vector<float> row(model->config.hidden);
    read_row(model->weights.layers[0].q, 0, row);
    const std::vector<float> want = through_q8_0(*find_ggml_blocks(g.name), g.data);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), want.begin())) << g.name;
    const std::vector<std::string> lines = widened_formats(model->tensors);
    ASSERT_EQ(lines.size(), 1u);
    EXPECT_TRUE(lines[0].starts_with(g.name + " becomes Q8_0")) << lines[0];
    model->weights.release(0), model->weights.release(-1), model->weights.evict(0);
    read_row(model->weights.layers[0].q, 0, row);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), want.begin())) << "kept after release()";
  }
}

// As mixes of quantisations have them. Devices join the three.
TEST_F(WidenedModel, QueriesKeysAndValuesShareAFormat) {
  only_ = "attn_k.weight";
  write(goldens()[0], false);
  const auto model = open_checkpoint(path("m.gguf")), plain = open_checkpoint(path("plain.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  const std::vector<float> want = through_q8_0(*find_ggml_blocks(goldens()[0].name), goldens()[0].data);
  std::vector<float> row(model->config.hidden), before(row);
  for (size_t i = 0; i < model->weights.layers.size(); ++i) {
    const LayerWeights &w = model->weights.layers[i], &other = plain->weights.layers[i];
    for (const MatrixView* m : {&w.q, &w.k, &w.v}) EXPECT_EQ(m->format, Format::kF32);
    read_row(w.k, 0, row);
    EXPECT_TRUE(std::equal(row.begin(), row.end(), want.begin()));
    read_row(w.v, 1, row), read_row(other.v, 1, before);
    EXPECT_EQ(row, before);
  }
  ASSERT_EQ(model->conversions.size(), 2u);
  EXPECT_TRUE(model->conversions[0].starts_with("q, k and v in several formats become one (exact): "));
}

TEST_F(WidenedModel, TheSharedFormatHoldsAllValues) {
  const std::vector<float> values(32, 1.5f);
  const auto of = [&](Format format, std::vector<std::byte>& bytes) {
    bytes.resize(static_cast<size_t>(row_bytes(format, 32)));
    info_of(format).encode(values.data(), 32 / info_of(format).block, bytes.data(), nullptr);
    return dense_view(format, 1, 32, bytes.data());
  };
  std::vector<std::byte> a, b;
  for (const auto& [q, k, shared] : {std::tuple(Format::kBF16, Format::kMxfp4Gguf, Format::kBF16),
                                     std::tuple(Format::kBF16, Format::kF16, Format::kF32),
                                     std::tuple(Format::kQ8_0, Format::kF16, Format::kF32),
                                     std::tuple(Format::kQ8_0, Format::kQ8_0, Format::kQ8_0)}) {
    LayerWeights w;
    w.q = w.v = of(q, a), w.k = of(k, b);
    std::vector<LayerWeights> layers = {w};
    std::vector<Buffer> buffers;
    ASSERT_TRUE(unify_qkv(layers, "file", buffers).ok());
    const LayerWeights& made = layers[0];
    for (const auto& [from, to] : {std::pair(w.q, made.q), std::pair(w.k, made.k), std::pair(w.v, made.v)}) {
      std::vector<float> before(32), row(32);
      read_row(from, 0, before), read_row(to, 0, row);
      EXPECT_EQ(to.format, shared);
      EXPECT_EQ(row, before);
    }
  }
}

// A sparse file holds them, and takes no disk.
TEST_F(WidenedModel, MatricesWithoutRoomAreRefused) {
  const auto file = MappedFile::open(put("huge.gguf", "GGUF")).value();
  TensorMap map;
  map.tensors["a"] = RawTensor{.dtype = "Q4_0", .shape = {1 << 24, 1 << 20}, .file = file.get()};
  const Status status = widen(map);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  EXPECT_NE(status.message().find("huge.gguf: its dense matrices take 18691.7 GB as Q8_0"), std::string::npos)
      << status.message();
}

TEST_F(WidenedModel, ExpertsInSuchAFormatAreConvertedAtLoad) {
  write(goldens()[1], true);
  const auto model = open_checkpoint(path("m.gguf"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_TRUE(model->weights.convert_experts);
  EXPECT_EQ(model->weights.layers[0].gate.first.format, Format::kMxfp4Gguf);
  ASSERT_EQ(model->conversions.size(), 2u);
  EXPECT_TRUE(model->conversions[0].starts_with("experts: Q4_1 becomes MXFP4 (rounded, relative error 0."))
      << model->conversions[0];
  const auto layer = layer_of(model->weights, 0);
  ASSERT_TRUE(layer.ok());
  // Within half a step of E2M1, at most 1/6 of the block's largest value... of what the file has.
  const std::vector<float> want = through_q8_0(*find_ggml_blocks("Q4_1"), goldens()[1].data);
  std::vector<float> row(model->config.hidden);
  read_row(layer->weights.gate.first, 0, row);
  for (size_t i = 0; i < row.size(); ++i) {
    const auto* const block = want.data() + i / 32 * 32;
    const float largest = std::fabs(
        *std::max_element(block, block + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); }));
    EXPECT_NEAR(row[i], want[i], largest / 4) << i;
  }
}

TEST_F(WidenedModel, ConvertDoesNotRoundInSilence) {
  write(goldens()[1], true);
  const auto model = open_checkpoint(path("m.gguf"));
  ASSERT_TRUE(model.ok());
  for (const Status& status : {write_gguf(model.value(), path("out.gguf"), {.experts = ExpertsOut::kMxfp4}),
                               write_safetensors(model.value(), path("out"), {})}) {
    EXPECT_EQ(status.code(), StatusCode::kUnsupported);
    EXPECT_NE(status.message().find("experts: Q4_1 becomes MXFP4"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace moesaic

// Tiles compiled from the sources that the program carries. NVRTC needs no device.
#include "backend/cuda/kernels/sm120/tile_code.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/temporary_folder.h"

namespace moesaic::cuda::sm120 {
namespace {

namespace fs = std::filesystem;

class TileCodes : public FolderTest {
 protected:
  void SetUp() override {
    if (!nvrtc_version().ok()) GTEST_SKIP() << nvrtc_version().status().message();
  }
  FileCache cache() const { return FileCache(folder_.string()); }
};

using enum Element;
const std::string kSmallM = tile_name(kE4M3, Tile::k8, kRowWeightTiles, "Qkv"),
                  kLargeM = tile_name(kE2M1, Tile::k64, kSwiGluWeightTiles, "SwiGluMx");

// The first two of an instruction's 16 bytes say which it is, without a predicate; data may look alike by
// chance.
constexpr int kQmmaSf = 0x747A;
int count_of(int instruction, const std::string& cubin) {
  int count = 0;
  for (size_t i = 0; i + 16 <= cubin.size(); i += 16)
    count += (static_cast<uint8_t>(cubin[i]) | static_cast<uint8_t>(cubin[i + 1]) << 8) == instruction;
  return count;
}

TEST(TileNames, AreTheKernels) {
  EXPECT_EQ(kSmallM,
            "moesaic::cuda::sm120::block_scaled_small_m_kernel<moesaic::cuda::sm120::Element::kE4M3, "
            "1, 1, moesaic::cuda::Qkv>");
  EXPECT_EQ(kLargeM,
            "moesaic::cuda::sm120::block_scaled_large_m_kernel<moesaic::cuda::sm120::Element::kE2M1, "
            "64, 2, 3, moesaic::cuda::sm120::SwiGluMx>");
  const std::vector<std::string> names = tile_names();
  EXPECT_EQ(names.size(), 30u);
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), names.size());
}

// The second time it comes from disk; a damaged file is compiled anew, another architecture of its own.
TEST_F(TileCodes, CompileOnce) {
  for (const std::string& name : {kSmallM, kLargeM}) {
    const auto first = tile_code(name, "sm_120a", cache());
    ASSERT_TRUE(first.ok()) << first.status().message();
    EXPECT_FALSE(first.value().cached);
    EXPECT_TRUE(
        first.value().kernel.cubin.starts_with("\x7F"
                                               "ELF"));
    EXPECT_TRUE(first.value().kernel.symbol.starts_with("_ZN7moesaic4cuda5sm120"));
    const auto second = tile_code(name, "sm_120a", cache());
    ASSERT_TRUE(second.ok());
    EXPECT_TRUE(second.value().cached);
    EXPECT_EQ(second.value().kernel.cubin, first.value().kernel.cubin);
    EXPECT_EQ(second.value().kernel.symbol, first.value().kernel.symbol);
  }
  for (const auto& file : fs::directory_iterator(fs::path(cache().path_of("")).parent_path()))
    std::ofstream(file.path(), std::ios::app) << "x";
  EXPECT_FALSE(tile_code(kSmallM, "sm_120a", cache()).value().cached);
  EXPECT_TRUE(tile_code(kSmallM, "sm_120a", cache()).value().cached);
  EXPECT_FALSE(tile_code(kSmallM, "sm_121a", cache()).value().cached);
  EXPECT_FALSE(tile_code(kSmallM, "sm_90a", cache()).value().cached);
}

// The instruction is in the loop: two weight tiles, two tiles of rows, steps of a quad.
TEST_F(TileCodes, HaveTheInstruction) {
  for (const char* architecture : {"sm_120a", "sm_121a", "sm_120f"}) {
    const auto code =
        tile_code(tile_name(kE2M1, Tile::k8, kSwiGluWeightTiles, "SwiGluMx"), architecture, cache());
    ASSERT_TRUE(code.ok()) << code.status().message();
    EXPECT_EQ(count_of(kQmmaSf, code.value().kernel.cubin), 2 * 2 * 4) << architecture;
  }
}

TEST_F(TileCodes, SayWhatCannotBeCompiled) {
  const auto wrong = tile_code(kSmallM, "sm_12", cache());
  ASSERT_FALSE(wrong.ok());
  EXPECT_NE(wrong.status().message().find("sm_12"), std::string::npos) << wrong.status().message();
  EXPECT_EQ(wrong.status().message().find('\n'), std::string::npos);
  const auto unknown = tile_code("moesaic::cuda::sm120::block_scaled_small_m_kernel<7>", "sm_120a", cache());
  ASSERT_FALSE(unknown.ok());
  EXPECT_EQ(unknown.status().message().find('\n'), std::string::npos) << unknown.status().message();
}

}  // namespace
}  // namespace moesaic::cuda::sm120

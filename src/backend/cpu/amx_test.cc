// Products by AMX tiles: the software model of the tiles against plain loops, the kernels over the model
// against vectors, and the kernels for the hardware against both, by the hardware where it is
// there and else by the model, instruction by instruction.
#include "backend/cpu/amx.h"

#include <cpuid.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <optional>

#include "backend/cpu/amx_trap.h"
#include "backend/cpu/test_matrices.h"

namespace moesaic::cpu {
namespace {

// ---- the model of tiles ----

struct Shape {
  int rows, lanes, inner;  // rows of c; 4-byte lanes of a's rows
};
constexpr Shape kShapes[] = {{16, 16, 16}, {16, 16, 8}, {1, 16, 8}, {7, 16, 16}, {3, 5, 2}};

// Tiles 2 (c), 5 (a) and 7 (b) of a shape, all from memory whose rows are 80 bytes apart.
class TileCase {
 public:
  static constexpr int kStride = 80, kC = 2, kA = 5, kB = 7;
  template <typename Word>
  TileCase(const Shape& shape, const Word& word) : shape_(shape) {
    for (auto* memory : {&c, &a, &b}) {
      for (uint32_t& w : *memory) w = word();
    }
    TileConfig config;
    config.set(kC, shape.rows, 4 * shape.lanes);
    config.set(kA, shape.rows, 4 * shape.inner);
    config.set(kB, shape.inner, 4 * shape.lanes);
    model.load_config(config);
    model.load(kC, c.data(), kStride), model.load(kA, a.data(), kStride), model.load(kB, b.data(), kStride);
  }
  static uint32_t at(const std::vector<uint32_t>& memory, int row, int lane) {
    return memory[row * (kStride / 4) + lane];
  }
  // Stored over a copy of c: what lies between its rows must stay.
  void expect(const std::vector<uint32_t>& want) {
    std::vector<uint32_t> got = c;
    model.store(kC, got.data(), kStride);
    EXPECT_EQ(got, want) << shape_.rows << " " << shape_.lanes << " " << shape_.inner;
  }

  TileModel model;
  std::vector<uint32_t> c = memory(), a = memory(), b = memory();

 private:
  static std::vector<uint32_t> memory() { return std::vector<uint32_t>(16 * kStride / 4); }
  Shape shape_;
};

TEST(TileModel, Int8ProductsAreExact) {
  std::mt19937 rng(3);
  for (const Shape& shape : kShapes) {
    TileCase t(shape, [&] { return static_cast<uint32_t>(rng()); });
    t.model.dot_int8(TileCase::kC, TileCase::kA, TileCase::kB);
    std::vector<uint32_t> want = t.c;
    const auto byte = [](uint32_t word, int i) { return int64_t{static_cast<int8_t>(word >> (8 * i))}; };
    for (int m = 0; m < shape.rows; ++m) {
      for (int n = 0; n < shape.lanes; ++n) {
        int64_t sum = static_cast<int32_t>(TileCase::at(t.c, m, n));
        for (int k = 0; k < 4 * shape.inner; ++k)
          sum += byte(TileCase::at(t.a, m, k / 4), k % 4) * byte(TileCase::at(t.b, k / 4, n), k % 4);
        want[m * (TileCase::kStride / 4) + n] = static_cast<uint32_t>(sum);
      }
    }
    t.expect(want);
  }
}

float bf16(uint32_t word, int i) { return mx::decode_bf16(static_cast<uint16_t>(word >> (16 * i))); }
float no_subnormal(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// The manual's order: sums of even and of odd elements, from zero; their sum; c.
float bf16_product(const TileCase& t, const Shape& shape, int m, int n) {
  float part[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < shape.inner; ++k) {
      part[i] = no_subnormal(std::fma(no_subnormal(bf16(TileCase::at(t.a, m, k), i)),
                                      no_subnormal(bf16(TileCase::at(t.b, k, n), i)), part[i]));
    }
  }
  const uint32_t bits = TileCase::at(t.c, m, n);
  float c;
  std::memcpy(&c, &bits, 4);
  return no_subnormal(no_subnormal(c) + no_subnormal(part[0] + part[1]));
}

// scale: 1, and small ones whose operands, products or sums are subnormal.
TEST(TileModel, Bf16ProductsRoundInTheManualsOrder) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal(0, 1);
  for (const float scale : {1.0f, 1e-19f, 1e-38f}) {
    for (const Shape& shape : kShapes) {
      TileCase t(shape, [&] {
        const uint32_t low = mx::encode_bf16(normal(rng) * scale),
                       high = mx::encode_bf16(normal(rng) * scale);
        return low | high << 16;
      });
      t.model.dot_bf16(TileCase::kC, TileCase::kA, TileCase::kB);
      std::vector<uint32_t> want = t.c;
      for (int m = 0; m < shape.rows; ++m) {
        for (int n = 0; n < shape.lanes; ++n) {
          const float product = bf16_product(t, shape, m, n);
          std::memcpy(&want[m * (TileCase::kStride / 4) + n], &product, 4);
        }
      }
      t.expect(want);
    }
  }
}

// Each change would be a fault on the hardware.
TEST(TileModelDeathTest, RefusesWhatTheHardwareRefuses) {
  const auto with = [](auto change) {
    TileModel model;
    TileConfig config;
    for (const int tile : {0, 1}) config.set(tile, 16, 64);
    config.set(2, 8, 64);
    change(config);
    model.load_config(config);
    model.dot_int8(0, 1, 2);
  };
  EXPECT_DEATH(with([](TileConfig& c) { c.palette = 2; }), "palette");
  EXPECT_DEATH(with([](TileConfig& c) { c.reserved[3] = 1; }), "reserved");
  EXPECT_DEATH(with([](TileConfig& c) { c.set(8, 1, 4); }), "8 tiles");
  EXPECT_DEATH(with([](TileConfig& c) { c.set(0, 17, 64); }), "16 rows");
  EXPECT_DEATH(with([](TileConfig& c) { c.set(3, 4, 0); }), "rows without bytes");
  EXPECT_DEATH(with([](TileConfig&) {}), "lanes of a and the rows of b");
  EXPECT_DEATH(with([](TileConfig& c) { c.set(1, 15, 32); }), "rows of c and a");
  EXPECT_DEATH(with([](TileConfig& c) { c.set(1, 16, 32), c.set(2, 8, 60); }), "lanes of c and b");
  EXPECT_DEATH(with([](TileConfig& c) { c.set(1, 0, 0); }), "not configured");
  EXPECT_DEATH(TileModel().zero(0), "no tiles");
}

// ---- the kernels ----

bool has_avx512() { return !emulated_kernels().empty(); }

bool cpu_knows_amx() {
  constexpr unsigned kAmxTile = 1u << 24;
  unsigned a, b, c, d = 0;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAmxTile) != 0;
}

// Memory that ends where no access is allowed.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))) {
    inside_ = (bytes + page_ - 1) / page_ * page_;
    base_ = static_cast<uint8_t*>(
        mmap(nullptr, inside_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_NE(base_, MAP_FAILED);
    EXPECT_EQ(mprotect(base_ + inside_, page_, PROT_NONE), 0);
    data_ = base_ + inside_ - bytes;
  }
  ~GuardedBytes() { munmap(base_, inside_ + page_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  size_t page_, inside_;
  uint8_t *base_, *data_;
};

// A pair of panels of one format.
struct Panels {
  Panels(Format format, int cols, std::mt19937& rng)
      : source(make_source(format, 32, cols, rng)), pack(packed_format(format, std::nullopt)) {
    ThreadPool pool(1);
    packed = pack_panels(pack, cols, stack({&source.view}), "test", *emulated_kernels()[0], pool).value();
  }
  Source source;
  Format pack;
  PackedMatrix packed;
};

const Kernels& emulated() { return *emulated_kernels()[0]; }

// Random activations whose last row ends with the memory.
class Rows {
 public:
  Rows(const Panels& panels, int tokens, std::mt19937& rng)
      : bytes_(tokens * panels.packed.cols * 4 + 4096 * 16) {
    const int64_t cols = panels.packed.cols;
    ThreadPool pool(1);
    std::normal_distribution<float> normal(0, 1);
    std::vector<float> x(tokens * cols);
    for (float& v : x) v = normal(rng);
    act_.assign(emulated(), pool, act_format(panels.pack, emulated()), x.data(), cols, tokens, cols);
    view = act_.view();
    const size_t row = cols * (view.format == Act::kInt8   ? 1
                               : view.format == Act::kBF16 ? 2
                                                           : 4),
                 all = (tokens - 1) * view.stride + row;
    uint8_t* end = bytes_.as<uint8_t>() + tokens * cols * 4 + 4096 * 16;
    std::memcpy(end - all, view.data, all);
    view.data = end - all;
    view.parts = end - all + (view.format == Act::kBlockFloat ? 2 * cols : 0);
  }
  ActView view;

 private:
  GuardedBytes bytes_;
  ActRows act_;
};

std::vector<float> product(void (*gemm)(const PairTask&), const Panels& panels, const ActView& act,
                           int tokens, int expand_tokens = 1) {
  const size_t out_bytes = tokens * 32 * sizeof(float);
  const GuardedBytes scratch(scratch_bytes(act.cols)), out(out_bytes);
  std::memset(scratch.as<uint8_t>(), 0xAA, scratch_bytes(act.cols));
  std::memset(out.as<uint8_t>(), 0xFF, out_bytes);  // NaN
  gemm({.format = panels.pack,
        .data = panels.packed.data.as<uint8_t>(),
        .scales = panels.packed.scales.as<uint8_t>(),
        .act = act,
        .tokens = tokens,
        .scratch = scratch.as<uint8_t>(),
        .out = out.as<float>(),
        .tuning = {.expand_tokens = expand_tokens}});
  return {out.as<float>(), out.as<float>() + tokens * 32};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<std::pair<Format, int>> shapes_of(const std::vector<Format>& formats,
                                              const std::vector<int>& cols) {
  std::vector<std::pair<Format, int>> shapes;
  for (const Format format : formats) {
    for (const int c : cols) shapes.push_back({format, c});
  }
  return shapes;
}

class AmxTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_avx512()) GTEST_SKIP() << "this machine has no AVX-512 with VNNI, BF16 and VBMI";
  }
  const Kernels& avx512() {
    for (const Kernels* kernels : available_kernels()) {
      if (kernels->name == std::string_view("avx512")) return *kernels;
    }
    return *emulated_kernels()[0];
  }
  std::mt19937 rng_{11};
};

TEST_F(AmxTest, Int8ProductsAreThoseOfVectorsBitForBit) {
  for (const int cols : {32, 64, 96, 480, 512, 544, 2880, 4096}) {
    const Panels panels(Format::kQ8_0, cols, rng_);
    for (int tokens = 1; tokens <= 70; ++tokens) {
      const Rows rows(panels, tokens, rng_);
      ASSERT_TRUE(same_bits(product(gemm_amx_emulated, panels, rows.view, tokens),
                            product(avx512().gemm, panels, rows.view, tokens)))
          << "cols " << cols << " tokens " << tokens;
    }
  }
}

// One more than a block of tokens in the backend.
TEST_F(AmxTest, ManyTokens) {
  for (const Format format : {Format::kMxfp4, Format::kQ8_0}) {
    const Panels panels(format, 1056, rng_);
    constexpr int kTokens = kTokenBlock + 1;
    const Rows rows(panels, kTokens, rng_);
    EXPECT_TRUE(same_bits(product(gemm_amx_emulated, panels, rows.view, kTokens),
                          product(gemm_amx_emulated, panels, rows.view, kTokens, kTokens + 1)));
  }
}

TEST_F(AmxTest, ABf16RowDoesNotDependOnItsNeighbours) {
  for (const auto& [format, cols] :
       shapes_of({Format::kBF16, Format::kMxfp4}, {32, 64, 96, 256, 288, 2880, 4096})) {
    const Panels panels(format, cols, rng_);
    constexpr int kMost = 131;
    const Rows rows(panels, kMost, rng_);
    std::vector<float> alone;
    for (int t = 0; t < kMost; ++t) {
      const std::vector<float> one = product(gemm_amx_emulated, panels, rows_from(rows.view, t), 1);
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (const int tokens : {2, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 80, 81, 96, kMost}) {
      const std::vector<float> want(alone.end() - tokens * 32, alone.end());
      ASSERT_TRUE(
          same_bits(product(gemm_amx_emulated, panels, rows_from(rows.view, kMost - tokens), tokens), want))
          << format_name(format) << " cols " << cols << " tokens " << tokens;
    }
  }
}

// Widening is exact: MXFP4 gives what the same numbers packed as BF16 give, within the rounding of sums in
// another order. Every scale that pack.cpp lets through.
TEST_F(AmxTest, WidenedWeightsAreTheCheckpoints) {
  constexpr int kCols = 288;
  Panels panels(Format::kMxfp4, kCols, rng_);
  auto* scales = panels.packed.scales.as<uint8_t>();
  for (int i = 0; i < kCols / 32 * 32; ++i) scales[i] = static_cast<uint8_t>(127 - 60 + i * 7 % 121);
  // One column's activation at a time is not zero, so that a result is a weight.
  ActRows act;
  ThreadPool pool(1);
  std::vector<float> x(kCols * kCols);
  for (int c = 0; c < kCols; ++c) x[c * kCols + c] = 1;
  act.assign(emulated(), pool, Act::kBlockFloat, x.data(), kCols, kCols, kCols);
  const std::vector<float> got = product(gemm_amx_emulated, panels, act.view(), kCols);
  const auto* data = panels.packed.data.as<uint8_t>();
  for (int c = 0; c < kCols; ++c) {
    for (int r = 0; r < 32; ++r) {
      const int p = r / kPanel, b = c / 32, element = c % 32;
      const uint8_t byte =
          data[group_at<kMxfp4Groups>(p, b, element % 16 / 4) + r % kPanel * 4 + element % 4];
      const float want = std::ldexp(mx::decode_e2m1(element < 16 ? byte & 15 : byte >> 4),
                                    scales[(b * kPair + p) * kPanel + r % kPanel] - 127);
      ASSERT_EQ(got[c * 32 + r], want) << "column " << c << " row " << r;
    }
  }
}

// Few tokens stay on vectors, and how few may be said: it changes no bit, but the instructions.
TEST_F(AmxTest, TheCodeForTheHardwareGivesWhatTheModelGives) {
  std::optional<AmxTrap> trap;
  if (!amx_permitted()) {
    if (cpu_knows_amx()) GTEST_SKIP() << "this machine has AMX, but the system does not grant it";
    trap.emplace();
  }
  for (const Format format : {Format::kMxfp4, Format::kQ8_0, Format::kBF16}) {
    for (const int cols : {32, 96, 544, 2880}) {
      const Panels panels(format, cols, rng_);
      for (const int tokens : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 50, 70}) {
        if (cols == 2880 && tokens > 33) continue;
        const Rows rows(panels, tokens, rng_);
        const std::vector<float> want = product(gemm_amx_emulated, panels, rows.view, tokens);
        ASSERT_TRUE(same_bits(product(gemm_amx, panels, rows.view, tokens), want))
            << format_name(format) << " cols " << cols << " tokens " << tokens;
        const int64_t before = AmxTrap::instructions();
        ASSERT_TRUE(same_bits(product(gemm_amx, panels, rows.view, tokens, tokens + 1), want));
        if (rows.view.format != Act::kBF16) {
          ASSERT_EQ(AmxTrap::instructions(), before);
        }
      }
    }
  }
  if (trap) {
    EXPECT_GT(AmxTrap::instructions(), 1000);
    std::printf("%lld instructions of AMX in software\n", static_cast<long long>(AmxTrap::instructions()));
  }
}

// Numbers of a block over many powers of two, and blocks from far too small to the largest.
std::vector<float> wide_numbers(size_t count, std::mt19937& rng) {
  std::uniform_int_distribution<int> block(-75, kMostBlockExponent), below(0, 14), way(0, 5);
  std::uniform_real_distribution<float> mantissa(1, 2);
  std::vector<float> x(count);
  int largest = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 32 == 0) largest = block(rng);
    const float v = std::ldexp(mantissa(rng), largest - below(rng));
    x[i] = way(rng) == 0 ? 0.0f : way(rng) < 3 ? -v : v;
  }
  return x;
}

TEST_F(AmxTest, BlockFloatIsTheFinestUnitThatABlockAllows) {
  constexpr int kCount = 32 * 300;
  std::vector<float> x = wide_numbers(kCount, rng_);
  std::fill_n(x.begin(), 32, 0.0f), std::fill_n(x.begin() + 32, 32, -0.0f);
  // Ties, at the ends of what a unit allows.
  for (int i = 0; i < 4; ++i) {
    constexpr float kLargest[] = {253.5f, 254.25f, 254.5f, 255.5f};
    x[64 + 32 * i] = kLargest[i], std::fill_n(x.begin() + 65 + 32 * i, 31, 0.5f);
  }
  std::vector<uint16_t> words(kCount);
  std::vector<int8_t> parts(2 * kCount);
  std::vector<float> units(kCount / 32);
  std::vector<int32_t> bias(kCount / 32);
  amx_to_block_float(x.data(), kCount, words.data(), parts.data(), units.data(), bias.data());
  for (int b = 0; b < kCount; b += 32) {
    float amax = 0;
    for (int i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[b + i]));
    int exponent = amax == 0 ? kLeastBlockExponent : std::max(std::ilogb(amax), kLeastBlockExponent);
    if (std::ldexp(amax, 7 - exponent) >= 254.5) ++exponent;
    const double unit = std::ldexp(1.0, exponent - 7);
    ASSERT_EQ(units[b / 32], unit);
    int sum = 0;
    for (int i = 0; i < 32; ++i) {
      const double want = std::nearbyint(x[b + i] / unit);
      ASSERT_LE(std::fabs(want), 254);
      ASSERT_EQ(parts[b + i] + parts[kCount + b + i], want) << "block " << b / 32 << " element " << i;
      sum += static_cast<int>(want);
    }
    ASSERT_EQ(2 * bias[b / 32], -emulated().weight_offset * sum);
    for (int i = 0; i < 32; ++i) {
      const double want = std::nearbyint(x[b + nibble_element(i)] / unit) * unit;
      ASSERT_EQ(mx::decode_bf16(words[b + i]), want) << "block " << b / 32 << " place " << i;
    }
  }
}

// Nor is the result of its row, by tiles as by vectors; that of the row beside it is.
TEST_F(AmxTest, BlockFloatOfWhatIsTooLargeIsNotANumber) {
  constexpr int kCols = 96;
  const Panels panels(Format::kMxfp4, kCols, rng_);
  ThreadPool pool(1);
  for (const float wrong : {INFINITY, -INFINITY, NAN, -NAN, 1e30f, -std::ldexp(1.0f, 59)}) {
    for (int at = 32; at < 64; ++at) {
      std::vector<float> x(2 * kCols, 1.0f);
      x[kCols + at] = wrong;
      ActRows act;
      act.assign(emulated(), pool, Act::kBlockFloat, x.data(), kCols, 2, kCols);
      for (const int expand_tokens : {1, 3}) {
        const std::vector<float> got = product(gemm_amx_emulated, panels, act.view(), 2, expand_tokens);
        for (int r = 0; r < 32; ++r) {
          ASSERT_TRUE(std::isfinite(got[r]));
          ASSERT_TRUE(std::isnan(got[32 + r])) << wrong << " at " << at << " expand " << expand_tokens;
        }
      }
    }
  }
}

// Numbers at the ends of the range, where a sum that rounded, or fell below the smallest normal number in one
// order only, would show.
TEST_F(AmxTest, BlockFloatProductsOfVectorsAreThoseOfTilesBitForBit) {
  for (const int cols : {32, 64, 96, 288, 2880, 4096}) {
    Panels panels(Format::kMxfp4, cols, rng_);
    for (const bool wide : {false, true}) {
      if (wide) {
        auto* scales = panels.packed.scales.as<uint8_t>();
        for (int i = 0; i < cols; ++i) scales[i] = static_cast<uint8_t>(127 - 60 + rng_() % 121);
      }
      ThreadPool pool(1);
      ActRows act;
      constexpr int kMost = 50;
      std::vector<float> x = wide_numbers(static_cast<size_t>(kMost) * cols, rng_);
      if (!wide) {
        std::normal_distribution<float> normal(0, 1);
        for (float& v : x) v = normal(rng_);
      }
      act.assign(emulated(), pool, Act::kBlockFloat, x.data(), cols, kMost, cols);
      for (int tokens = 1; tokens <= kMost; tokens += tokens < 20 ? 1 : 5) {
        ASSERT_TRUE(same_bits(product(gemm_amx_emulated, panels, act.view(), tokens),
                              product(gemm_amx_emulated, panels, act.view(), tokens, tokens + 1)))
            << "cols " << cols << " tokens " << tokens << (wide ? " wide" : "");
      }
    }
  }
}

// Tables are offered by name, the emulation never by itself.
TEST_F(AmxTest, Tables) {
  const std::vector<const Kernels*> found = available_kernels();
  EXPECT_EQ(found[0]->name, std::string_view(amx_permitted() ? "amx" : "avx512"));
  for (const Kernels* kernels : found)
    EXPECT_EQ(std::string_view(kernels->name).find("emulated"), std::string_view::npos);
  EXPECT_EQ(emulated().name, std::string_view("amx_emulated"));
}

}  // namespace
}  // namespace moesaic::cpu

// Attention by mma.sync on the host, its pages copied by cp.async as before compute capability 9.0: against a
// loop in double, and bit for bit whatever the batch, the chunk, the CTA that has a span, or the layout of a
// caller's pages.
#define attend_portable attend_portable_on_host
#include "backend/cuda/kernels/common/attention_portable.cu"
#undef attend_portable
#define attend_paged attend_paged_on_host
#define make_row_tiles make_row_tiles_on_host
#include "backend/cuda/kernels/common/paged_attention.cu"
#undef make_row_tiles
#undef attend_paged

#include <gtest/gtest.h>

#include "backend/cuda/kernels/ptx/e4m3.cuh"
#include "backend/cuda/testing/attention_problem.h"

namespace moesaic::cuda {
namespace attention_portable {
extern thread_local uint8_t portable_memory[];  // kernels/paged_attention.cc has it
}
namespace {

const bool given = [] {
  on_host::shared_memory = {attention_portable::portable_memory, portable_shared_bytes(128, false)};
  return true;
}();

constexpr int kFloats = 1 << 20;

// The problem's rows in tiles of at most `most`. divided: with room for what spans leave.
std::vector<uint16_t> run(const Problem& p, int most, bool divided, bool bf16 = true, int floats = kFloats) {
  const Uploaded uploaded(p, most);
  const DeviceBuffer left = sm120::poisoned(size_t{kFloats} * sizeof(float));
  std::vector<int> arrivals(kMostSpanGroups);
  SpanScratch scratch;
  if (divided)
    scratch = {.left = left.as<float>(),
               .floats = floats,
               .rows = static_cast<int>(p.at.size()),
               .arrivals = arrivals.data()};
  const Status status = attend_portable_on_host(uploaded.attention(bf16), scratch, nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(std::ranges::all_of(arrivals, [](int n) { return n == 0; }));
  return uploaded.out();
}

// The result is right, and the same bits come of every way to compute the rows.
void check(const Case& c, bool bf16 = true) {
  std::mt19937 rng(7);
  const Problem p(c, rng);
  const std::vector<uint16_t> alone = run(p, 1, false, bf16);
  p.compare(alone, bf16, "portable");
  EXPECT_EQ(run(p, 1, true, bf16), alone);
  EXPECT_EQ(run(p, tile_tokens(c.heads, c.kv_heads), false, bf16), alone);
  EXPECT_EQ(run(p, tile_tokens(c.heads, c.kv_heads), true, bf16), alone);
}

TEST(PortableAttention, SingleRowsOfEveryLength) {
  // Within a page, at its end, in one span, at its end, one more, and several spans.
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {1, 31, 32, 33, 255, 256, 257, 1100}});
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {700}}, false);
}

TEST(PortableAttention, Windows) {
  for (const int window : {1, 50, 128})
    check({.head_dim = 64, .heads = 4, .kv_heads = 2, .window = window, .tokens = {40, 600}, .rows = 20});
}

TEST(PortableAttention, Prompts) {
  check({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {300, 530}, .rows = 20});
  check({.head_dim = 32, .heads = 3, .kv_heads = 1, .tokens = {290}, .rows = 50});
}

TEST(PortableAttention, OtherShapes) {
  for (const int head_dim : {32, 64, 128}) {
    for (const bool fp8 : {false, true})
      check({.head_dim = head_dim, .heads = 16, .kv_heads = 1, .fp8 = fp8, .tokens = {40, 333}});
  }
}

// Rows whose spans have no room are computed by one CTA each, beside others whose have.
TEST(PortableAttention, WithoutRoomForSpans) {
  std::mt19937 rng(3);
  const Problem p({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {1500, 300}}, rng);
  const std::vector<uint16_t> alone = run(p, 1, false);
  const int of_span = 2 * 8 * (64 + 2);
  for (const int slots : {0, 1, 2, 5, 6}) EXPECT_EQ(run(p, 1, true, true, slots * of_span), alone) << slots;
}

// ---- a caller's pages ----

// The problem's keys and values in pages of the caller's; what nobody may read is NaN.
struct CallersPages {
  int page_tokens, table_pages = 0;
  bool by_head;  // HND
  PagedLayout layout;
  std::vector<uint8_t> k, v;
  std::vector<int32_t> tables, starts, lengths;

  CallersPages(const Problem& p, int tokens_of_page, bool hnd, std::mt19937& rng)
      : page_tokens(tokens_of_page), by_head(hnd) {
    const Case& c = p.c;
    const int bytes = c.fp8 ? 1 : 2, row = c.head_dim * bytes, sequences = static_cast<int>(c.tokens.size());
    for (const int n : c.tokens) table_pages = std::max(table_pages, (n + page_tokens - 1) / page_tokens);
    const int pages = sequences * table_pages + 1;
    layout = {.page_stride = int64_t{page_tokens} * c.kv_heads * row + 64,  // not dense
              .token_stride = hnd ? row : c.kv_heads * row,
              .head_stride = hnd ? page_tokens * row : row,
              .page_tokens = page_tokens,
              .pages = pages};
    k.assign(static_cast<size_t>(pages * layout.page_stride), 0xFF), v = k;
    tables.resize(static_cast<size_t>(sequences * table_pages));
    std::iota(tables.begin(), tables.end(), 1);
    std::ranges::shuffle(tables, rng);
    for (int s = 0; s < sequences; ++s) {
      starts.push_back(s * c.rows), lengths.push_back(c.tokens[s]);
      for (int token = 0; token < c.tokens[s]; ++token) put(p, s, token);
      for (int i = (c.tokens[s] + page_tokens - 1) / page_tokens; i < table_pages; ++i)
        tables[s * table_pages + i] = -1;
    }
    starts.push_back(sequences * c.rows);
  }

 private:
  void put(const Problem& p, int s, int token) {
    const Case& c = p.c;
    const int seen = c.window > 0 ? c.tokens[s] - c.rows - c.window + 1 : 0;
    for (int h = 0; h < c.kv_heads && token >= seen; ++h) {
      uint8_t* at[2] = {k.data(), v.data()};
      for (int d = 0; d < c.head_dim; ++d) {
        const float x[2] = {p.cache.k(s, token, h, d), p.cache.v(s, token, h, d)};
        for (int i = 0; i < 2; ++i) {
          const int64_t where = tables[s * table_pages + token / page_tokens] * layout.page_stride +
                                token % page_tokens * layout.token_stride + h * layout.head_stride;
          if (c.fp8) {
            at[i][where + d] = mx::encode_e4m3(x[i]);
          } else {
            reinterpret_cast<uint16_t*>(at[i] + where)[d] = mx::encode_bf16(x[i]);
          }
        }
      }
    }
  }
};

std::vector<uint16_t> run_paged(const Problem& p, const CallersPages& pages, bool divided) {
  const Case& c = p.c;
  const int rows = static_cast<int>(p.at.size()), sequences = static_cast<int>(c.tokens.size()),
            most = tile_tokens(c.heads, c.kv_heads), tiles = paged_tiles(rows, sequences, most);
  std::vector<RowTile> list(static_cast<size_t>(tiles));
  std::vector<int> arrivals(kMostSpanGroups, 77);
  std::vector<uint16_t> out(p.q.size(), 0xFFFF);
  const DeviceBuffer left = sm120::poisoned(size_t{kFloats} * sizeof(float));
  EXPECT_TRUE(make_row_tiles_on_host({.rows = rows,
                                      .sequences = sequences,
                                      .starts = pages.starts.data(),
                                      .lengths = pages.lengths.data(),
                                      .table_stride = pages.table_pages,
                                      .table_pages = pages.table_pages,
                                      .page_tokens = pages.page_tokens},
                                     most, list.data(), arrivals.data(), nullptr)
                  .ok());
  SpanScratch scratch;
  if (divided)
    scratch = {.left = left.as<float>(), .floats = kFloats, .rows = rows, .arrivals = arrivals.data()};
  const Status status = attend_paged_on_host({.q = reinterpret_cast<const __nv_bfloat16*>(p.q.data()),
                                              .k = pages.k.data(),
                                              .v = pages.v.data(),
                                              .fp8 = c.fp8,
                                              .sinks = p.sinks.empty() ? nullptr : p.sinks.data(),
                                              .pages = pages.tables.data(),
                                              .heads = c.heads,
                                              .kv_heads = c.kv_heads,
                                              .head_dim = c.head_dim,
                                              .window = c.window,
                                              .out = out.data(),
                                              .tiles = list.data(),
                                              .tile_count = tiles},
                                             pages.layout, scratch, nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(std::ranges::all_of(arrivals, [](int n) { return n == 0; }));
  return out;
}

void check_paged(const Case& c, int page_tokens, bool hnd) {
  std::mt19937 rng(7);
  const Problem p(c, rng);
  const std::vector<uint16_t> own = run(p, 1, false);
  p.compare(own, true, "portable");
  const CallersPages pages(p, page_tokens, hnd, rng);
  EXPECT_EQ(run_paged(p, pages, false), own) << page_tokens << (hnd ? " HND" : " NHD");
  EXPECT_EQ(run_paged(p, pages, true), own) << page_tokens << (hnd ? " HND" : " NHD");
}

TEST(PagedAttention, GivesTheBitsOfTheEnginesOwnPages) {
  for (const int page_tokens : {16, 32, 64}) {
    for (const bool hnd : {false, true}) {
      check_paged({.head_dim = 64, .heads = 16, .kv_heads = 2, .tokens = {1, 16, 17, 33, 600}}, page_tokens,
                  hnd);
      check_paged({.head_dim = 64, .heads = 8, .kv_heads = 1, .window = 50, .tokens = {40, 300}, .rows = 20},
                  page_tokens, hnd);
    }
  }
}

TEST(PagedAttention, TakesOtherShapesAndFp8) {
  for (const int head_dim : {32, 64, 128}) {
    for (const bool fp8 : {false, true})
      check_paged({.head_dim = head_dim, .heads = 6, .kv_heads = 2, .fp8 = fp8, .tokens = {40, 333}}, 16,
                  fp8);
  }
}

// A sequence with a wrong page number or length gets rows of NaN. All others stay as they are.
TEST(PagedAttention, WrongPagesAndLengthsGiveRowsOfNaN) {
  std::mt19937 rng(5);
  const Problem p({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {300, 100, 70, 700}}, rng);
  const CallersPages right(p, 16, true, rng);
  const std::vector<uint16_t> want = run_paged(p, right, false);
  const auto differ = [&](const CallersPages& wrong, int sequence) {
    for (const bool divided : {false, true}) {
      const std::vector<uint16_t> got = run_paged(p, wrong, divided);
      for (size_t i = 0; i < got.size(); ++i) {
        if (p.at[i / (8 * 64)] == sequence) {
          ASSERT_TRUE(std::isnan(mx::decode_bf16(got[i]))) << i;
        } else {
          ASSERT_EQ(got[i], want[i]) << i;
        }
      }
    }
  };
  for (const int page : {-1, right.layout.pages, 1 << 30}) {
    CallersPages wrong = right;
    wrong.tables[static_cast<size_t>(3 * wrong.table_pages + 5)] = page;
    differ(wrong, 3);
  }
  for (const int length : {0, -5, right.table_pages * 16 + 1}) {
    CallersPages wrong = right;
    wrong.lengths[1] = length;
    differ(wrong, 1);
  }
}

TEST(PagedAttention, SinksMayBeAbsent) {
  std::mt19937 rng(9);
  Problem p({.head_dim = 64, .heads = 8, .kv_heads = 1, .tokens = {1, 300}}, rng);
  std::ranges::fill(p.sinks, -1e30f);
  const CallersPages pages(p, 32, true, rng);
  const std::vector<uint16_t> want = run_paged(p, pages, false);
  p.compare(want, true, "without sinks");
  p.sinks.clear();
  EXPECT_EQ(run_paged(p, pages, false), want);
  EXPECT_EQ(run_paged(p, pages, true), want);
}

// Below compute capability 8.9 MXFP8 weights are widened by these bit operations.
TEST(E4m3, BecomesF16Exactly) {
  for (uint32_t code = 0; code < 256; ++code) {
    if ((code & 0x7F) == 0x7F) continue;  // NaN
    const uint2 v = e4m3_to_f16(code | (code ^ 0x80) << 8 | code << 16 | code << 24);
    const float want = mx::decode_e4m3(static_cast<uint8_t>(code));
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.x)), want);
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.x >> 16)), -want);
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.y)), want);
    EXPECT_EQ(mx::decode_f16(static_cast<uint16_t>(v.y >> 16)), want);
  }
}

}  // namespace
}  // namespace moesaic::cuda

#include "engine/kv_layout.h"

#include <gtest/gtest.h>

namespace moesaic {
namespace {

ModelConfig config() {
  return {.name = "test",
          .layers = 3,
          .kv_heads = 2,
          .head_dim = 32,
          .window = 128,
          .sliding = {true, false, true},
          .max_context = 1 << 20};
}

TEST(KvLayout, CountsPages) {
  const KvLayout one = kv_layout(config(), {.context = 33, .max_rows = 512}).value();
  EXPECT_EQ(one.full_pages, 2);
  EXPECT_EQ(one.window_pages, 2);  // never more than the whole context
  const KvLayout many = kv_layout(config(), {.sequences = 3, .context = 6400, .max_rows = 64}).value();
  EXPECT_EQ(many.full_pages, 3 * 200);
  EXPECT_EQ(many.window_pages, 3 * (6 + 2));
}

TEST(KvLayout, AbsurdSizesAreErrors) {
  EXPECT_FALSE(kv_layout(config(), {.sequences = 0, .context = 1}).ok());
  EXPECT_FALSE(kv_layout(config(), {.context = 0}).ok());
  EXPECT_FALSE(kv_layout(config(), {.sequences = 1 << 30, .context = 1 << 20}).ok());
}

TEST(KvLayout, MemoryIsWhatTheBackendKeeps) {
  const auto cpu = create_backend("cpu", {.threads = 1}).value();
  const auto reference = create_backend("reference", {}).value();
  const KvLayout layout{.page_tokens = 32, .full_pages = 10, .window_pages = 4};
  const double tokens = 32 * (10 + 2 * 4);
  EXPECT_EQ(kv_bytes(layout, config(), *reference), tokens * 2 * 64 * 4);           // F32
  EXPECT_EQ(kv_bytes(layout, config(), *cpu), tokens * (64 + 2 * 64 + 2 * 2 * 4));  // int8, int16, scales
  EXPECT_TRUE(check_kv_memory(layout, config(), *cpu).ok());
  const Status status = check_kv_memory({.page_tokens = 32, .full_pages = 2000000000}, config(), *cpu);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
}

}  // namespace
}  // namespace moesaic

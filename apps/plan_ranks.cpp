#include "plan_ranks.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "core/rank_share.h"

namespace moesaic::app {
namespace {

constexpr double kH200BytesPerSecond = 4.8e12;
// Seconds that a row's exchange takes beyond a dependent launch: 2.3 us against 0.6 us, measured between two
// and between four H200 of one host, joined by NVLink, with nothing else to do.
constexpr double kExchangeSeconds = 1.7e-6;
constexpr int kExchangesALayer = 4;

void print_exchanges(const ModelConfig& c) {
  const int exchanges = kExchangesALayer * c.layers + 1;
  const auto values = [&](int layer_values) { return static_cast<double>(c.layers) * layer_values; };
  const int hidden_values = c.experts_per_token * c.intermediate;
  fmt::print(
      "{} exchanges a step: {} a layer, and the logits to rank 0; for each row, in values of all ranks:\n\n"
      "| behind | times | values | in all |\n| --- | ---: | ---: | ---: |\n",
      exchanges, kExchangesALayer);
  fmt::print("| attend | {0} | {1} | {2:.0f} |\n", c.layers, c.q_size(), values(c.q_size()));
  fmt::print("| project | {0} | {1} | {2:.0f} |\n", c.layers, c.hidden, values(c.hidden));
  fmt::print("| gate and up | {0} | {1} | {2:.0f} |\n", c.layers, hidden_values, values(hidden_values));
  fmt::print("| down | {0} | {1} | {2:.0f} |\n", c.layers, c.hidden, values(c.hidden));
  fmt::print("| unembed | 1 | {0} | {0} |\n\n", c.vocab);
}

// The slowest rank's bytes, and the exchanges.
void print_projection(const ModelConfig& c, int ranks, double bytes, double one) {
  const double memory = bytes / kH200BytesPerSecond,
               exchanges = (kExchangesALayer * c.layers + 1) * kExchangeSeconds, step = memory + exchanges,
               alone = one / kH200BytesPerSecond;
  fmt::print(
      "projection for {} H200 of one host, at best, one token at depth 0; nothing was measured, and cuda has "
      "no ranks yet: {:.0f} us "
      "for {:.2f} GB of weights a rank, {:.0f} us for exchanges of {:.1f} us, together {:.0f} us, {:.0f} "
      "tok/s; one H200 by the same rule {:.0f} us, {:.0f} tok/s\n\n",
      ranks, memory * 1e6, bytes / 1e9, exchanges * 1e6, kExchangeSeconds * 1e6, step * 1e6, 1 / step,
      alone * 1e6, 1 / alone);
}

}  // namespace

Status print_ranks(const Checkpoint& checkpoint, int ranks, bool h200) {
  const ModelConfig& c = checkpoint.config;
  RETURN_IF_ERROR(check_ranks(c, checkpoint.weights, ranks));
  fmt::print(
      "{} ranks, each with its rows of every matrix; weights in MB, as the file has them:\n\n"
      "| rank | KV heads | experts | attention projections | lm_head | embedding, norms, biases | sum | read "
      "for a "
      "token |\n"
      "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      ranks);
  double most = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const RankShare share{rank, ranks};
    const ModelWeights weights = cut(checkpoint.weights, c, share);
    const StoredBytes b = stored_bytes(weights);
    const double read = bytes_per_token(weights, c);
    most = std::max(most, read);
    fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n", rank,
               share.kv_heads(c.kv_heads).count, b.experts / 1e6, b.projections / 1e6, b.head / 1e6,
               (b.embedding + b.rest) / 1e6, b.sum() / 1e6, read / 1e6);
  }
  fmt::print("\n");
  print_exchanges(c);
  if (h200) print_projection(c, ranks, most, bytes_per_token(checkpoint.weights, c));
  return {};
}

}  // namespace moesaic::app

#include "plan_ranks.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "core/rank_share.h"
#include "tuning/rank_projection.h"

namespace moesaic::app {
namespace {

constexpr double kH200BytesPerSecond = 4.8e12;
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

// "from 1 to 8 and from 128 to 512", of those sequences where ranks are ahead.
std::string where_ahead(const std::vector<std::pair<int, bool>>& rows) {
  std::string text;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].second) continue;
    const size_t first = i;
    while (i + 1 < rows.size() && rows[i + 1].second) ++i;
    text += text.empty() ? "" : " and ";
    text += first == i ? fmt::format("at {}", rows[i].first)
                       : fmt::format("from {} to {}", rows[first].first, rows[i].first);
  }
  return text.empty() ? "nowhere" : text;
}

void print_projection(const ModelConfig& c, const ModelWeights& weights, int ranks) {
  constexpr int kMostSequences = 1024;
  const DecodeBytes bytes = decode_bytes(c, weights);
  fmt::print(
      "projection for {} H200 of one host, decoding at depth 0, from a fit to 1, 2 and 4 GPUs whose mean "
      "error is 12% and whose largest is 31%; nothing was measured here. tok/s of all sequences; replicas: "
      "each GPU has the whole model and a part of the sequences:\n\n"
      "| sequences | one GPU | {} ranks | {} replicas | ranks / replicas |\n"
      "| ---: | ---: | ---: | ---: | ---: |\n",
      ranks, ranks, ranks);
  std::vector<std::pair<int, bool>> ahead;
  for (int sequences = 1; sequences <= kMostSequences; sequences *= 2) {
    const RanksAndReplicas both = ranks_and_replicas(c, bytes, kH200BytesPerSecond, ranks, sequences);
    fmt::print("| {} | {:.0f} | {:.0f} | {:.0f} | {:.2f} |\n", sequences,
               sequences / decode_seconds(c, bytes, kH200BytesPerSecond, 1, sequences), both.ranks,
               both.replicas, both.ranks / both.replicas);
    ahead.emplace_back(sequences, both.ranks > both.replicas);
  }
  fmt::print("\n{} ranks decode more than {} replicas: {} sequences\n\n", ranks, ranks, where_ahead(ahead));
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
  for (int rank = 0; rank < ranks; ++rank) {
    const RankShare share{rank, ranks};
    const ModelWeights weights = cut(checkpoint.weights, c, share);
    const StoredBytes b = stored_bytes(weights);
    const double read = bytes_per_token(weights, c);
    fmt::print("| {} | {} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n", rank,
               share.kv_heads(c.kv_heads).count, b.experts / 1e6, b.projections / 1e6, b.head / 1e6,
               (b.embedding + b.rest) / 1e6, b.sum() / 1e6, read / 1e6);
  }
  fmt::print("\n");
  print_exchanges(c);
  if (h200) print_projection(c, checkpoint.weights, ranks);
  return {};
}

}  // namespace moesaic::app

#include "tuning/rank_projection.h"

#include <cmath>

namespace moesaic {
namespace {

// The fit: shares of the data sheet's bandwidth, seconds of a layer whatever its size, seconds of a row in a
// layer, cut by the ranks and not, and seconds of an exchange and of a row in a layer's exchanges.
constexpr double kRankDenseShare = 0.99, kRankExpertsShare = 0.78, kLayer = 7.9e-6, kRowCut = 0.28e-6,
                 kRowWhole = 0.45e-6, kExchange = 3.1e-6, kRowExchange = 0.29e-6;
constexpr int kExchangesALayer = 4;

}  // namespace

DecodeBytes decode_bytes(const ModelConfig& c, const ModelWeights& weights) {
  const StoredBytes all = stored_bytes(weights);
  return {.dense = all.projections + all.head,
          .expert = all.experts / (static_cast<double>(c.layers) * c.experts)};
}

double decode_seconds(const ModelConfig& c, const DecodeBytes& bytes, double bytes_per_second, int ranks,
                      int sequences) {
  const double rows = sequences;
  // The first ranks have a KV head more where they cannot all have as many, and are the slowest.
  const int heads = (c.kv_heads + ranks - 1) / ranks;
  const double part = static_cast<double>(heads) / c.kv_heads;
  const double chosen = static_cast<double>(c.experts_per_token) / c.experts;
  const double experts = c.layers * c.experts * (1 - std::pow(1 - chosen, rows));  // those that a row chose
  double seconds =
      part * (bytes.dense / kRankDenseShare + experts * bytes.expert / kRankExpertsShare) / bytes_per_second +
      c.layers * (kLayer + rows * (kRowCut * part + kRowWhole));
  if (ranks > 1) seconds += (kExchangesALayer * c.layers + 1) * kExchange + c.layers * rows * kRowExchange;
  return seconds;
}

RanksAndReplicas ranks_and_replicas(const ModelConfig& config, const DecodeBytes& bytes,
                                    double bytes_per_second, int count, int sequences) {
  const auto seconds = [&](int ranks, int of) {
    return decode_seconds(config, bytes, bytes_per_second, ranks, of);
  };
  RanksAndReplicas both{.ranks = sequences / seconds(count, sequences)};
  for (int replica = 0; replica < count; ++replica) {
    const int own = (sequences + replica) / count;
    if (own > 0) both.replicas += own / seconds(1, own);
  }
  return both;
}

}  // namespace moesaic

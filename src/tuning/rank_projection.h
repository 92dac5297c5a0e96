// Projects decoding over ranks, each with a GPU of one host, joined by NVLink, from bytes and a fit to what
// 1, 2 and 4 H100 and H200 measured (docs/lab/2026-11-27-ranks-on-gpus.md): to choose the number of ranks,
// and to compare ranks with replicas. The mean error of the fit is 12%, the largest 31%. Never a measurement
// itself. Keys and values are not counted.
#pragma once

#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

// Bytes of the weights that a step may read.
struct DecodeBytes {
  double dense = 0;   // projections of all layers, and lm_head
  double expert = 0;  // the matrices of one expert of one layer
};
DecodeBytes decode_bytes(const ModelConfig& config, const ModelWeights& weights);

// Seconds of a step of so many sequences, all of which decode. bytes_per_second: of one GPU, by its data
// sheet.
double decode_seconds(const ModelConfig& config, const DecodeBytes& bytes, double bytes_per_second, int ranks,
                      int sequences);
// Tokens a second of all sequences: of ranks that compute one model, and of as many replicas that share the
// sequences evenly.
struct RanksAndReplicas {
  double ranks = 0, replicas = 0;
};
RanksAndReplicas ranks_and_replicas(const ModelConfig& config, const DecodeBytes& bytes,
                                    double bytes_per_second, int count, int sequences);

}  // namespace moesaic

// An EAGLE3 draft head (arXiv 2503.01840): one transformer layer that guesses the next tokens of a target
// from the target's own hidden states. docs/design/speculation.md has the formula.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/model_config.h"
#include "core/weights.h"
#include "moesaic/stats.h"
#include "moesaic/status.h"

namespace moesaic {

// A tap's id counts boundaries or blocks. Boundary b is the residual stream after b blocks of the target.
enum class TapConvention : uint8_t {
  kBoundary,     // vLLM, speculators, NVIDIA: the id is b
  kBlockOutput,  // SpecForge: the id names a block, whose output is boundary id + 1
};

inline constexpr int kMostTaps = 8;

struct Eagle3Config {
  std::string name;      // the file's, for messages
  int hidden = 0;        // the target's
  int intermediate = 0;  // the MLP's
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;     // even, at most 256
  int vocab = 0;        // the target's
  int draft_vocab = 0;  // tokens that the head can draft
  int window = 0;       // tokens that it attends to; 0: all
  double rms_eps = 1e-5;
  RopeConfig rope = {};
  std::vector<int> taps = {};  // ids, 1 to kMostTaps of them
  TapConvention convention = TapConvention::kBoundary;
  bool norm_before_residual = false;  // the residual is hidden_norm(g), not g
  bool norm_output = false;           // the next step's g is norm(y), not y

  int q_size() const { return heads * head_dim; }
  int kv_size() const { return kv_heads * head_dim; }
  int features() const { return static_cast<int>(taps.size()) * hidden; }
};

// A view without data is a tensor that the head does not have.
struct Eagle3Weights {
  MatrixView input_norm;             // [1, features]: before fc, over all taps; may be absent
  std::vector<MatrixView> fc_norms;  // [1, hidden] of each tap; or none
  MatrixView fc;                     // [hidden, features]
  MatrixView embed_norm;             // input_layernorm, [1, hidden]
  MatrixView hidden_norm;            // [1, hidden]
  MatrixView q, k, v;                // [q_size | kv_size, 2 hidden]: of the embedding, then of the features
  MatrixView o;                      // [hidden, q_size]
  MatrixView mlp_norm;               // [1, hidden]
  MatrixView gate, up, down;         // [intermediate, hidden] twice, [hidden, intermediate]
  MatrixView norm;                   // [1, hidden]
  MatrixView head;                   // [draft_vocab, hidden]; absent: the target's
  MatrixView embed;                  // [vocab, hidden]; absent: the target's
  std::vector<int32_t> target_ids;   // [draft_vocab]: the target's token of each draft token
  std::shared_ptr<const void> storage;
};

// The boundaries of the taps, in their order; an error for one that the target does not have.
Result<std::vector<int>> tap_boundaries(const Eagle3Config& head, const ModelConfig& target);
// The same of a head that is to be read at these boundaries instead; as many as its taps.
Result<std::vector<int>> tap_boundaries(const Eagle3Config& head, const ModelConfig& target,
                                        const std::vector<int>& boundaries);
// The taps of a head that names none: boundaries 2, n / 2 and n - 3 of n blocks.
std::vector<int> default_taps(int layers);

// One line that names the first value that is impossible or does not fit the target.
Status validate(const Eagle3Config& head, const ModelConfig& target);
// Checks that every tensor is there and of the config's size; validate() reads them too: their values are
// finite.
Status validate_shapes(const Eagle3Weights& weights, const Eagle3Config& head);
Status validate(const Eagle3Weights& weights, const Eagle3Config& head);

// The head's layer as the layers of a model are: with a dense MLP, without biases and sinks. Its `attn_norm`
// is missing, too, since the layer is given activations that are normed already, of twice the hidden size.
LayerShape layer_shape(const Eagle3Config& head);
LayerWeights layer_weights(const Eagle3Weights& weights);

// Bytes of the head as stored, the tables that it shares with the target left out.
double stored_bytes(const Eagle3Weights& weights);

}  // namespace moesaic

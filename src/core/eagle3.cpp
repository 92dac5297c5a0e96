#include "core/eagle3.h"

#include "base/error.h"
#include "core/choose_token.h"

namespace moesaic {
namespace {

struct HeadShape {
  const char* name;
  const MatrixView& view;
  int64_t rows, cols;
  bool optional = false;
};

std::vector<HeadShape> shapes_of(const Eagle3Weights& w, const Eagle3Config& c) {
  std::vector<HeadShape> shapes = {{"fc", w.fc, c.hidden, c.features()},
                                   {"input_norm", w.input_norm, 1, c.features(), true},
                                   {"input_layernorm", w.embed_norm, 1, c.hidden},
                                   {"hidden_norm", w.hidden_norm, 1, c.hidden},
                                   {"q_proj", w.q, c.q_size(), 2 * c.hidden},
                                   {"k_proj", w.k, c.kv_size(), 2 * c.hidden},
                                   {"v_proj", w.v, c.kv_size(), 2 * c.hidden},
                                   {"o_proj", w.o, c.hidden, c.q_size()},
                                   {"post_attention_layernorm", w.mlp_norm, 1, c.hidden},
                                   {"gate_proj", w.gate, c.intermediate, c.hidden},
                                   {"up_proj", w.up, c.intermediate, c.hidden},
                                   {"down_proj", w.down, c.hidden, c.intermediate},
                                   {"norm", w.norm, 1, c.hidden},
                                   {"lm_head", w.head, c.draft_vocab, c.hidden, true},
                                   {"embed_tokens", w.embed, c.vocab, c.hidden, true}};
  for (const MatrixView& norm : w.fc_norms) shapes.push_back({"fc_norm", norm, 1, c.hidden});
  return shapes;
}

Status check_finite(const HeadShape& s, const std::string& file) {
  if (s.view.data == nullptr) return {};
  std::vector<float> row(static_cast<size_t>(s.cols));
  for (int64_t r = 0; r < s.rows; ++r) {
    read_row(s.view, r, row);
    if (!all_finite(row))
      return invalid("{}: tensor '{}' row {}: NaN or infinity; the draft head is damaged", file, s.name, r);
  }
  return {};
}

Status check_shape(const HeadShape& s, const std::string& file) {
  if (s.view.data == nullptr)
    return s.optional ? Status() : invalid("{}: tensor '{}' is missing", file, s.name);
  if (s.view.rows != s.rows || s.view.cols != s.cols)
    return invalid("{}: tensor '{}' is [{}, {}], the config asks for [{}, {}]", file, s.name, s.view.rows,
                   s.view.cols, s.rows, s.cols);
  return {};
}

Status check_ids(const Eagle3Weights& w, const Eagle3Config& c) {
  if (std::ssize(w.target_ids) != c.draft_vocab)
    return invalid("{}: 'd2t' has {} entries, the draft vocabulary {}", c.name, w.target_ids.size(),
                   c.draft_vocab);
  for (size_t d = 0; d < w.target_ids.size(); ++d) {
    if (w.target_ids[d] < 0 || w.target_ids[d] >= c.vocab)
      return invalid("{}: 'd2t' makes draft token {} the token {}, outside the vocabulary of {}", c.name, d,
                     w.target_ids[d], c.vocab);
  }
  return {};
}

}  // namespace

std::vector<int> default_taps(int layers) { return {2, layers / 2, layers - 3}; }

Result<std::vector<int>> tap_boundaries(const Eagle3Config& head, const ModelConfig& target) {
  std::vector<int> boundaries;
  for (const int id : head.taps) {
    const int boundary = head.convention == TapConvention::kBoundary ? id : id + 1;
    if (boundary < 0 || boundary > target.layers)
      return invalid("{}: it reads the hidden states of layer {}, the model has {} layers", head.name, id,
                     target.layers);
    boundaries.push_back(boundary);
  }
  return boundaries;
}

Result<std::vector<int>> tap_boundaries(const Eagle3Config& head, const ModelConfig& target,
                                        const std::vector<int>& boundaries) {
  if (boundaries.size() != head.taps.size())
    return invalid("draft head: {} taps, it has {}", boundaries.size(), head.taps.size());
  Eagle3Config moved = head;
  moved.taps = boundaries, moved.convention = TapConvention::kBoundary;
  return tap_boundaries(moved, target);
}

Status validate(const Eagle3Config& c, const ModelConfig& target) {
  constexpr int kMostWidth = 1 << 20;
  if (c.hidden != target.hidden)
    return invalid("{}: hidden_size is {}, the model's is {}; the head belongs to another model", c.name,
                   c.hidden, target.hidden);
  if (c.vocab != target.vocab)
    return invalid("{}: vocab_size is {}, the model's is {}; the head belongs to another model", c.name,
                   c.vocab, target.vocab);
  if (c.intermediate < 32 || c.intermediate > kMostWidth || c.intermediate % 32 != 0)
    return invalid("{}: intermediate_size {} is not a multiple of 32", c.name, c.intermediate);
  if (c.head_dim < 2 || c.head_dim > 256 || c.head_dim % 2 != 0)
    return invalid("{}: head_dim {} is not an even number up to 256", c.name, c.head_dim);
  if (c.heads < 1 || c.heads > 1024 || c.kv_heads < 1 || c.heads % c.kv_heads != 0)
    return invalid("{}: {} query heads for {} KV heads", c.name, c.heads, c.kv_heads);
  if (c.q_size() % 32 != 0)
    return invalid("{}: {} heads of {} are not a multiple of 32", c.name, c.heads, c.head_dim);
  if (c.draft_vocab < 1 || c.draft_vocab > c.vocab)
    return invalid("{}: draft_vocab_size is {}, the vocabulary {}", c.name, c.draft_vocab, c.vocab);
  if (c.window < 0) return invalid("{}: sliding_window is {}", c.name, c.window);
  if (!(c.rms_eps > 0 && c.rms_eps < 1)) return invalid("{}: rms_norm_eps is {}", c.name, c.rms_eps);
  if (!(c.rope.theta > 1 && c.rope.theta < 1e12))
    return invalid("{}: rope_theta is {}", c.name, c.rope.theta);
  if (!(c.rope.attention_factor >= 0 && c.rope.attention_factor < 1e3))
    return invalid("{}: RoPE's attention_factor is {}", c.name, c.rope.attention_factor);
  if (!(c.rope.factor >= 1 && c.rope.factor < 1e6) || c.rope.original_context < 1)
    return invalid("{}: RoPE's factor is {}, over {} tokens", c.name, c.rope.factor, c.rope.original_context);
  if (c.taps.empty() || c.taps.size() > kMostTaps)
    return invalid("{}: it reads hidden states of {} layers, expected 1 to {}", c.name, c.taps.size(),
                   kMostTaps);
  return tap_boundaries(c, target).status();
}

Status validate_shapes(const Eagle3Weights& w, const Eagle3Config& c) {
  if (!w.fc_norms.empty() && w.fc_norms.size() != c.taps.size())
    return invalid("{}: {} tensors 'fc_norm' for {} taps", c.name, w.fc_norms.size(), c.taps.size());
  if (w.head.data == nullptr && c.draft_vocab != c.vocab)
    return invalid("{}: tensor 'lm_head' is missing", c.name);
  RETURN_IF_ERROR(check_ids(w, c));
  for (const HeadShape& s : shapes_of(w, c)) RETURN_IF_ERROR(check_shape(s, c.name));
  return {};
}

Status validate(const Eagle3Weights& w, const Eagle3Config& c) {
  RETURN_IF_ERROR(validate_shapes(w, c));
  for (const HeadShape& s : shapes_of(w, c)) RETURN_IF_ERROR(check_finite(s, c.name));
  return {};
}

LayerShape layer_shape(const Eagle3Config& c) {
  return {.hidden = c.hidden,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .window = c.window,
          .intermediate = c.intermediate,
          .rms_eps = c.rms_eps};
}

LayerWeights layer_weights(const Eagle3Weights& w) {
  return {.q = w.q,
          .k = w.k,
          .v = w.v,
          .o = w.o,
          .mlp_norm = w.mlp_norm,
          .gate = {.first = w.gate, .count = 1},
          .up = {.first = w.up, .count = 1},
          .down = {.first = w.down, .count = 1}};
}

double stored_bytes(const Eagle3Weights& w) {
  double bytes = 0;
  const auto add = [&](const MatrixView& m) {
    bytes += static_cast<double>(m.rows) * static_cast<double>(m.cols) * bits_per_element(m.format) / 8;
  };
  for (const MatrixView* m : {&w.input_norm, &w.fc, &w.embed_norm, &w.hidden_norm, &w.q, &w.k, &w.v, &w.o,
                              &w.mlp_norm, &w.gate, &w.up, &w.down, &w.norm, &w.head, &w.embed})
    add(*m);
  for (const MatrixView& m : w.fc_norms) add(m);
  return bytes;
}

}  // namespace moesaic

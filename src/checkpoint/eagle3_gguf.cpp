#include "checkpoint/eagle3_gguf.h"

#include <cstring>

#include "base/error.h"
#include "checkpoint/gguf_fields.h"
#include "checkpoint/widen.h"

namespace moesaic {
namespace {

constexpr const char* kPrefix = "eagle3.";

// A model has no such keys.
constexpr const char* kHeadKeys[] = {"draft_vocab_size", "target_hidden_size",   "target_layers",
                                     "extract_layers",   "norm_before_residual", "norm_before_fc"};

struct HeadName {
  const char *gguf, *hf;
};
constexpr HeadName kHeadNames[] = {{"fc.weight", "fc.weight"},
                                   {"enc.output_norm.weight", "input_norm.weight"},
                                   {"blk.0.attn_norm.weight", "layers.0.input_layernorm.weight"},
                                   {"blk.0.attn_norm_2.weight", "layers.0.hidden_norm.weight"},
                                   {"blk.0.attn_q.weight", "layers.0.self_attn.q_proj.weight"},
                                   {"blk.0.attn_k.weight", "layers.0.self_attn.k_proj.weight"},
                                   {"blk.0.attn_v.weight", "layers.0.self_attn.v_proj.weight"},
                                   {"blk.0.attn_output.weight", "layers.0.self_attn.o_proj.weight"},
                                   {"blk.0.ffn_norm.weight", "layers.0.post_attention_layernorm.weight"},
                                   {"blk.0.ffn_gate.weight", "layers.0.mlp.gate_proj.weight"},
                                   {"blk.0.ffn_up.weight", "layers.0.mlp.up_proj.weight"},
                                   {"blk.0.ffn_down.weight", "layers.0.mlp.down_proj.weight"},
                                   {"output_norm.weight", "norm.weight"},
                                   {"output.weight", "lm_head.weight"},
                                   {"token_embd.weight", "embed_tokens.weight"},
                                   {"d2t", "d2t"}};

Status read_target_layers(const GgufFile& file, const ModelConfig& target, Eagle3Config& c) {
  auto it = file.metadata.find("eagle3.target_layers");
  if (it == file.metadata.end()) it = file.metadata.find("eagle3.extract_layers");  // its old name
  if (it == file.metadata.end()) {
    c.taps = default_taps(target.layers);
    return {};
  }
  const auto* layers = std::get_if<std::vector<int64_t>>(&it->second);
  if (layers == nullptr || layers->size() > kMostTaps)
    return invalid("{}: metadata '{}' is not a list of at most {}", c.name, it->first, kMostTaps);
  for (const int64_t layer : *layers) {
    if (layer < 0 || layer > 1024)
      return invalid("{}: metadata '{}' holds something that is no layer", c.name, it->first);
    c.taps.push_back(static_cast<int>(layer));
  }
  return {};
}

Result<Eagle3Config> head_config(const GgufFile& file, const std::string& name, const ModelConfig& target,
                                 Eagle3Norms& norms) {
  GgufFields f(file, name);
  const std::string p = kPrefix, architecture = f.text("general.architecture");
  if (architecture != "eagle3")
    return error(StatusCode::kUnsupported, "{}: architecture is '{}', expected eagle3", name,
                 architecture.substr(0, 40));
  Eagle3Config c{.name = name};
  if (const int layers = f.integer(p + "block_count", 1); f.status().ok() && layers != 1)
    return error(StatusCode::kUnsupported,
                 "{}: a head of {} layers is not supported; EAGLE3 heads with one layer are", name, layers);
  c.hidden = f.integer(p + "embedding_length"), c.intermediate = f.integer(p + "feed_forward_length");
  c.heads = f.integer(p + "attention.head_count");
  c.kv_heads = f.integer(p + "attention.head_count_kv", c.heads);
  c.head_dim = f.integer(p + "attention.key_length", c.heads > 0 ? c.hidden / c.heads : 0);
  c.vocab = f.integer(p + "vocab_size", target.vocab);
  c.rms_eps = f.number(p + "attention.layer_norm_rms_epsilon", 1e-6);
  c.norm_before_residual = f.boolean(p + "norm_before_residual", false);
  norms.before_fc = f.boolean(p + "norm_before_fc", false), norms.none = !norms.before_fc;
  c.rope = {.theta = f.number(p + "rope.freq_base", 10000.0), .factor = 1.0};
  read_gguf_scaling(f, p, false, name, f.integer(p + "context_length", target.max_context), c.rope);
  if (const int hidden = f.integer(p + "target_hidden_size", target.hidden); hidden != target.hidden)
    f.fail(other_target(name, hidden, target));
  RETURN_IF_ERROR(f.status());
  RETURN_IF_ERROR(check_metadata(file, p, kHeadKeys, {.head_dim = c.head_dim, .rope = c.rope}, name));
  RETURN_IF_ERROR(read_target_layers(file, target, c));
  const RawTensor* d2t = file.tensors.find("d2t");
  const bool list = d2t != nullptr && d2t->shape.size() == 1 && d2t->shape[0] <= c.vocab;
  if (d2t != nullptr && !list) return invalid("{}: 'd2t' is not a list of at most {} tokens", name, c.vocab);
  c.draft_vocab = list ? static_cast<int>(d2t->shape[0]) : c.vocab;
  RETURN_IF_ERROR(validate(c, target));
  return c;
}

// Puts other bytes in a tensor's place.
Result<std::byte*> replace_data(RawTensor& t, TensorMap& map) {
  ASSIGN_OR_RETURN(Buffer buffer, Buffer::allocate(t.data.size()));
  auto* const data = buffer.as<>();
  t.data = {data, t.data.size()}, t.in_memory = true;
  map.buffers.push_back(std::make_shared<const Buffer>(std::move(buffer)));
  return data;
}

// In each head, llama.cpp's row 2 i + k is row k half + i of Hugging Face's.
Status unpermute(RawTensor& t, int heads, int head_dim, TensorMap& map) {
  const int64_t rows = int64_t{heads} * head_dim;
  if (t.shape.size() != 2 || t.shape[0] != rows) return {};  // an error of its own later
  const std::byte* const from = t.data.data();
  const size_t row = t.data.size() / static_cast<size_t>(rows);
  ASSIGN_OR_RETURN(std::byte* const to, replace_data(t, map));
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t head = r / head_dim, k = r % head_dim * 2 / head_dim, i = r % (head_dim / 2);
    std::memcpy(to + static_cast<size_t>(r) * row,
                from + static_cast<size_t>(head * head_dim + 2 * i + k) * row, row);
  }
  return {};
}

Status make_relative(RawTensor& t, const std::string& name, TensorMap& map) {
  if (t.dtype != "I64") return invalid("{}: 'd2t' is {}, expected I64", name, t.dtype);
  const std::byte* const from = t.data.data();
  const size_t count = t.data.size() / sizeof(int64_t);
  ASSIGN_OR_RETURN(std::byte* const to, replace_data(t, map));
  for (size_t i = 0; i < count; ++i) {
    int64_t id = 0;
    std::memcpy(&id, from + i * sizeof id, sizeof id);
    id = static_cast<int64_t>(static_cast<uint64_t>(id) - i);  // an id out of range stays one
    std::memcpy(to + i * sizeof id, &id, sizeof id);
  }
  return {};
}

}  // namespace

Result<Eagle3Gguf> eagle3_from_gguf(GgufFile file, const std::string& name, const ModelConfig& target) {
  Eagle3Gguf out;
  ASSIGN_OR_RETURN(out.config, head_config(file, name, target, out.norms));
  const Eagle3Config& c = out.config;
  RETURN_IF_ERROR(widen(file.tensors));
  auto map = std::make_shared<TensorMap>();
  map->files = std::move(file.tensors.files), map->buffers = std::move(file.tensors.buffers);
  for (const HeadName& n : kHeadNames) {
    auto node = file.tensors.tensors.extract(n.gguf);
    if (node.empty()) continue;
    RawTensor& t = map->tensors[n.hf] = std::move(node.mapped());
    if (std::strcmp(n.gguf, "blk.0.attn_q.weight") == 0)
      RETURN_IF_ERROR(unpermute(t, c.heads, c.head_dim, *map));
    if (std::strcmp(n.gguf, "blk.0.attn_k.weight") == 0)
      RETURN_IF_ERROR(unpermute(t, c.kv_heads, c.head_dim, *map));
    if (std::strcmp(n.gguf, "d2t") == 0) RETURN_IF_ERROR(make_relative(t, name, *map));
  }
  if (!file.tensors.tensors.empty()) {
    const std::string other = file.tensors.tensors.begin()->first.substr(0, 120);
    return error(StatusCode::kUnsupported, "{}: tensor '{}' {}", name, other,
                 other.find("rope_freqs") != std::string::npos
                     ? "scales RoPE as Llama 3 does, which is not supported; YaRN and plain RoPE are"
                     : "is not known in an EAGLE3 head");
  }
  out.tensors = std::move(map);
  return out;
}

}  // namespace moesaic

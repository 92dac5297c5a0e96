#include "base/error.h"
#include "checkpoint/chat_files.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/pieces.h"
#include "checkpoint/writer.h"

namespace moesaic {
namespace {

// MXFP4 in GGUF's order; BF16 for what GGUF has no type for.
Format gguf_format(Format format) {
  if (is_mxfp4(format)) return Format::kMxfp4Gguf;
  return info_of(format).gguf >= 0 ? format : Format::kBF16;
}

// Collects the pieces of one part of the model: a layer, or what stands outside of all.
class GgufPieces {
 public:
  explicit GgufPieces(const WriteOptions& options)
      : dense_(options.dense), quantise_(options.experts == ExpertsOut::kMxfp4) {}

  void top(const ModelWeights& w) {
    dense("token_embd.weight", w.embed);
    floats("output_norm.weight", w.final_norm);
    dense("output.weight", w.head);
  }
  void layer(int index, const LayerWeights& w) {
    const size_t first = pieces_.size();
    const std::string p = fmt::format("blk.{}.", index);
    attention(p, w);
    table(p + "ffn_gate_inp.weight", w.router);
    floats(p + "ffn_gate_inp.bias", w.router_bias);
    experts(p + "ffn_gate_exps", w.gate, w.gate_bias);
    experts(p + "ffn_up_exps", w.up, w.up_bias);
    experts(p + "ffn_down_exps", w.down, w.down_bias);
    for (size_t i = first; i < pieces_.size(); ++i) pieces_[i].layer = index;
  }
  std::vector<Piece> take() { return std::move(pieces_); }

 private:
  void attention(const std::string& p, const LayerWeights& w) {
    floats(p + "attn_norm.weight", w.attn_norm);
    floats(p + "post_attention_norm.weight", w.mlp_norm);
    linear(p + "attn_q", w.q, w.q_bias);
    linear(p + "attn_k", w.k, w.k_bias);
    linear(p + "attn_v", w.v, w.v_bias);
    linear(p + "attn_output", w.o, w.o_bias);
    floats(p + "attn_sinks.weight", w.sinks);
  }
  void experts(const std::string& name, const ExpertsView& weight, const MatrixView& bias) {
    const MatrixView& m = weight.first;
    pieces_.push_back(rows_piece(name + ".weight", {weight},
                                 quantise_ ? Format::kMxfp4Gguf : gguf_format(m.format),
                                 {weight.count, m.rows, m.cols}));
    table(name + ".bias", bias);
  }
  void linear(const std::string& name, const MatrixView& weight, const MatrixView& bias) {
    dense(name + ".weight", weight);
    floats(name + ".bias", bias);
  }
  void dense(const std::string& name, const MatrixView& m) {
    add_matrix(pieces_, name, m, {m.rows, m.cols}, gguf_format(dense_.value_or(m.format)));
  }
  void floats(const std::string& name, const MatrixView& m) {
    add_matrix(pieces_, name, m, {m.cols}, Format::kF32);
  }
  void table(const std::string& name, const MatrixView& m) {
    add_matrix(pieces_, name, m, {m.rows, m.cols}, Format::kF32);
  }

  std::optional<Format> dense_;
  bool quantise_;
  std::vector<Piece> pieces_;
};

// llama.cpp's number of what most of a file is: the experts.
uint32_t file_type(const ModelWeights& w, const WriteOptions& options) {
  const bool mxfp4 = options.experts == ExpertsOut::kMxfp4 || all_mxfp4(w);
  const Format experts = gguf_format(w.layers[0].down.first.format);
  return static_cast<uint32_t>(info_of(mxfp4 ? Format::kMxfp4Gguf : experts).gguf_file);
}

void add_attention_metadata(GgufHeader& h, const std::string& p, const ModelConfig& c) {
  h.u32(p + "attention.head_count", c.heads);
  h.u32(p + "attention.head_count_kv", c.kv_heads);
  h.u32(p + "attention.key_length", c.head_dim);
  h.u32(p + "attention.value_length", c.head_dim);
  h.u32(p + "attention.sliding_window", c.window);
  h.f32(p + "attention.layer_norm_rms_epsilon", c.rms_eps);
  h.u32(p + "rope.dimension_count", c.head_dim);
  h.f32(p + "rope.freq_base", c.rope.theta);
  if (c.rope.factor <= 1) return;
  h.text(p + "rope.scaling.type", "yarn");
  h.f32(p + "rope.scaling.factor", c.rope.factor);
  h.u32(p + "rope.scaling.original_context_length", c.rope.original_context);
  h.f32(p + "rope.scaling.yarn_beta_fast", c.rope.beta_fast);
  h.f32(p + "rope.scaling.yarn_beta_slow", c.rope.beta_slow);
}

void add_model_metadata(GgufHeader& h, const ModelConfig& c, uint32_t type) {
  const std::string p = "gpt-oss.";
  h.text("general.architecture", "gpt-oss");
  h.text("general.name", c.name.empty() ? "gpt-oss" : c.name);
  h.u32("general.file_type", type);
  h.u32(p + "block_count", c.layers);
  h.u32(p + "context_length", c.max_context);
  h.u32(p + "embedding_length", c.hidden);
  h.u32(p + "feed_forward_length", c.intermediate);
  h.u32(p + "expert_feed_forward_length", c.intermediate);
  h.u32(p + "expert_count", c.experts);
  h.u32(p + "expert_used_count", c.experts_per_token);
  add_attention_metadata(h, p, c);
}

void add_tokenizer_metadata(GgufHeader& h, const ModelConfig& c, const TokenizerSource& t) {
  if (t.tokens.empty()) return;
  h.text("tokenizer.ggml.model", "gpt2");
  h.text("tokenizer.ggml.pre", "gpt-4o");
  h.texts("tokenizer.ggml.tokens", t.tokens);
  h.integers("tokenizer.ggml.token_type", t.token_types);
  h.texts("tokenizer.ggml.merges", t.merges);
  if (c.bos_token >= 0) h.u32("tokenizer.ggml.bos_token_id", c.bos_token);
  if (c.eos_token >= 0) h.u32("tokenizer.ggml.eos_token_id", c.eos_token);
  if (c.pad_token >= 0) h.u32("tokenizer.ggml.padding_token_id", c.pad_token);
  h.boolean("tokenizer.ggml.add_bos_token", false);
  h.text("tokenizer.chat_template", t.chat_template);
}

constexpr size_t kGgufAlignment = 32;

// Checks what readers of GGUF take for granted in gpt-oss, and no key says. own_split: the source has a split
// pattern that GGUF has no name for.
Status check_config(const ModelConfig& c, bool own_split, const std::string& path) {
  const ModelConfig usual;
  bool alternates = true;
  for (size_t i = 0; i < c.sliding.size(); ++i) alternates = alternates && c.sliding[i] == (i % 2 == 0);
  const char* what = c.swiglu_alpha != usual.swiglu_alpha   ? "a swiglu_alpha other than 1.702"
                     : c.swiglu_limit != usual.swiglu_limit ? "a swiglu_limit other than 7"
                     : !alternates                          ? "layers that do not slide in turn"
                     : c.rope.factor > 1 && c.rope.truncate ? "YaRN with rounded bounds (truncate)"
                     : c.rope.attention_factor != 0         ? "an attention_factor of RoPE"
                     : own_split ? "a tokenizer that splits text otherwise than gpt-oss's"
                                 : nullptr;
  if (what == nullptr) return {};
  return error(StatusCode::kUnsupported, "{}: GGUF cannot hold {}; convert to a folder instead", path, what);
}

}  // namespace

std::vector<std::string> unfinished_gguf(const std::string& path) { return {OutputFile::unfinished(path)}; }

Status write_gguf(const Checkpoint& source, const std::string& path, const WriteOptions& options) {
  RETURN_IF_ERROR(check_source(source));
  if (options.dense && info_of(*options.dense).gguf < 0)
    return error(StatusCode::kUnsupported, "{}: dense matrices in GGUF have no {}; use --dense bf16 or q8_0",
                 path, format_name(*options.dense));
  ASSIGN_OR_RETURN(TokenizerSource tokenizer, gguf_tokenizer(source.tokenizer, source.config.vocab));
  const bool own_split = !source.tokenizer.json_path.empty() && tokenizer.pre.empty();
  RETURN_IF_ERROR(check_config(source.config, own_split, path));
  ASSIGN_OR_RETURN(tokenizer.chat_template, chat_template(source.tokenizer));
  const std::vector<Piece> pieces = pieces_of(GgufPieces(options), source.weights);
  GgufHeader header;
  add_model_metadata(header, source.config, file_type(source.weights, options));
  add_tokenizer_metadata(header, source.config, tokenizer);
  uint64_t offset = 0;
  for (const Piece& p : pieces) {
    header.tensor(p.name, p.shape, static_cast<uint32_t>(info_of(p.format).gguf), offset);
    offset += (p.bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
  }
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, options.overwrite));
  RETURN_IF_ERROR(file.write(header.finish(pieces.size())));
  RETURN_IF_ERROR(file.pad(kGgufAlignment));
  RETURN_IF_ERROR(write_pieces(
      file, pieces, kGgufAlignment, source, options,
      [&](int layer, const LayerWeights& w) { return pieces_of(GgufPieces(options), layer, w); }));
  return file.commit();
}

}  // namespace moesaic

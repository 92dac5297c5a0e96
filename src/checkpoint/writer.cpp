#include "checkpoint/writer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "checkpoint/gguf_header.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/json.h"
#include "checkpoint/output_file.h"
#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic {
namespace {

using Bytes = std::vector<std::byte>;

// One tensor to write: its size is known before its bytes are made, a batch of rows at a time.
struct Piece {
  std::string name, dtype;
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes = 0;
  std::function<Status(OutputFile&)> write;
};

void append(Bytes& out, const void* data, size_t n) {
  const auto* p = static_cast<const std::byte*>(data);
  out.insert(out.end(), p, p + n);
}

// Row r in a target format.
void encode_row(const MatrixView& m, int64_t r, Format format, std::vector<float>& values, Bytes& out) {
  if (m.format == Format::kQ8_0 && format == Format::kQ8_0)
    return append(out, m.data + r * m.row_stride, row_bytes(format, m.cols));
  read_row(m, r, values);
  if (format == Format::kF32) return append(out, values.data(), values.size() * 4);
  for (size_t b = 0; format == Format::kQ8_0 && b < values.size(); b += 32) {
    int8_t q[mx::kBlock];
    const uint16_t scale = quantize_q8_0(values.data() + b, q);
    append(out, &scale, 2);
    append(out, q, sizeof q);
  }
  for (const float v : values) {
    if (format == Format::kQ8_0) break;
    const uint16_t half = format == Format::kF16 ? mx::encode_f16(v) : mx::encode_bf16(v);
    append(out, &half, 2);
  }
}

Status write_rows(OutputFile& file, int64_t rows, const std::function<void(int64_t, Bytes&)>& encode) {
  Bytes batch;
  for (int64_t r = 0; r < rows; ++r) {
    encode(r, batch);
    if (batch.size() < (4 << 20) && r + 1 < rows) continue;
    RETURN_IF_ERROR(file.write(batch));
    batch.clear();
  }
  return {};
}

const char* dtype_name(Format format) {
  return format == Format::kF32    ? "F32"
         : format == Format::kF16  ? "F16"
         : format == Format::kQ8_0 ? "Q8_0"
                                   : "BF16";
}

Piece matrix_piece(std::string name, const MatrixView& m, std::vector<int64_t> shape, Format format) {
  const auto write = [m, format](OutputFile& file) {
    std::vector<float> values(m.cols);
    return write_rows(file, m.rows, [&](int64_t r, Bytes& out) { encode_row(m, r, format, values, out); });
  };
  return {std::move(name), dtype_name(format), std::move(shape), m.rows * row_bytes(format, m.cols), write};
}

bool is_mxfp4(const ExpertsView& e) {
  return e.first.format == Format::kMxfp4 || e.first.format == Format::kMxfp4Gguf;
}
bool all_mxfp4(const ModelWeights& weights) {
  return std::all_of(weights.layers.begin(), weights.layers.end(), [](const LayerWeights& w) {
    return is_mxfp4(w.gate) && is_mxfp4(w.up) && is_mxfp4(w.down);
  });
}

// Row r of one expert as MXFP4 in the canonical order, quantised if it is not MXFP4 yet.
void mxfp4_row(const MatrixView& m, int64_t r, std::vector<float>& values, std::vector<uint8_t>& codes,
               std::vector<uint8_t>& scales) {
  if (!is_plain(m.format) && m.format != Format::kQ8_0 && m.format != Format::kMxfp8)
    return read_mxfp4_row(m, r, codes, scales);
  read_row(m, r, values);
  for (size_t b = 0; b < scales.size(); ++b)
    scales[b] = mx::quantize_mxfp4(values.data() + b * 32, codes.data() + b * 16);
}

// ---- Hugging Face ----

// sections: {gate, up} interleaved row by row, or {down}.
enum class Half { kCodes, kScales };

Piece hf_mxfp4_piece(std::string name, std::vector<ExpertsView> sections, Half half) {
  const MatrixView& m = sections[0].first;
  const int64_t rows = m.rows * std::ssize(sections), blocks = m.cols / 32, count = sections[0].count;
  std::vector<int64_t> shape = {count, rows, blocks};
  if (half == Half::kCodes) shape.push_back(16);
  const auto write = [sections, rows, blocks, count, half](OutputFile& file) {
    std::vector<float> values(blocks * 32);
    std::vector<uint8_t> codes(blocks * 16), scales(blocks);
    return write_rows(file, count * rows, [&](int64_t r, Bytes& out) {
      const int64_t row = r % rows, parts = std::ssize(sections);
      mxfp4_row(sections[row % parts].at(r / rows), row / parts, values, codes, scales);
      half == Half::kCodes ? append(out, codes.data(), codes.size())
                           : append(out, scales.data(), scales.size());
    });
  };
  return {std::move(name), "U8", shape, count * rows * blocks * (half == Half::kCodes ? 16 : 1), write};
}

// BF16 experts, transposed as Hugging Face stores them: [E, cols, rows].
Piece hf_bf16_piece(std::string name, std::vector<ExpertsView> sections) {
  const MatrixView& m = sections[0].first;
  const int64_t rows = m.rows * std::ssize(sections), cols = m.cols, count = sections[0].count;
  const auto write = [sections, rows, cols, count](OutputFile& file) -> Status {
    std::vector<uint16_t> matrix(rows * cols);
    std::vector<float> values(cols);
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t r = 0; r < rows; ++r) {
        read_row(sections[r % sections.size()].at(e), r / std::ssize(sections), values);
        for (int64_t c = 0; c < cols; ++c) matrix[c * rows + r] = mx::encode_bf16(values[c]);
      }
      RETURN_IF_ERROR(file.write(std::as_bytes(std::span(matrix))));
    }
    return {};
  };
  return {std::move(name), "BF16", {count, cols, rows}, count * rows * cols * 2, write};
}

Piece interleaved_bias_piece(std::string name, const MatrixView& gate, const MatrixView& up, Format format) {
  const auto write = [gate, up, format](OutputFile& file) {
    std::vector<float> g(gate.cols), u(up.cols), both(2 * gate.cols);
    return write_rows(file, gate.rows, [&](int64_t r, Bytes& out) {
      read_row(gate, r, g), read_row(up, r, u);
      for (size_t i = 0; i < g.size(); ++i) both[2 * i] = g[i], both[2 * i + 1] = u[i];
      std::vector<float> scratch(both.size());
      encode_row(
          dense_view(Format::kF32, 1, std::ssize(both), reinterpret_cast<const std::byte*>(both.data())), 0,
          format, scratch, out);
    });
  };
  return {std::move(name),
          dtype_name(format),
          {gate.rows, 2 * gate.cols},
          gate.rows * row_bytes(format, 2 * gate.cols),
          write};
}

// Row r as MXFP8, as it is or quantised.
void mxfp8_row(const MatrixView& m, int64_t r, std::vector<float>& values, std::vector<uint8_t>& codes,
               std::vector<uint8_t>& scales) {
  if (m.format == Format::kMxfp8) {
    std::memcpy(codes.data(), m.data + r * m.row_stride, codes.size());
    std::memcpy(scales.data(), m.scales + r * m.scale_stride, scales.size());
    return;
  }
  read_row(m, r, values);
  for (size_t b = 0; b < scales.size(); ++b)
    scales[b] = mx::quantize_mxfp8(values.data() + b * 32, codes.data() + b * 32);
}

// [rows, cols] of E4M3, or [rows, cols / 32] of E8M0 scales.
Piece mxfp8_piece(std::string name, const MatrixView& m, Half half) {
  const int64_t width = half == Half::kCodes ? m.cols : m.cols / 32;
  const auto write = [m, half](OutputFile& file) {
    std::vector<float> values(m.cols);
    std::vector<uint8_t> codes(m.cols), scales(m.cols / 32);
    return write_rows(file, m.rows, [&](int64_t r, Bytes& out) {
      mxfp8_row(m, r, values, codes, scales);
      half == Half::kCodes ? append(out, codes.data(), codes.size())
                           : append(out, scales.data(), scales.size());
    });
  };
  return {std::move(name), half == Half::kCodes ? "F8_E4M3" : "U8", {m.rows, width}, m.rows * width, write};
}

// F32 stays F32; F16 stays F16; everything else is BF16.
Format hf_format(const MatrixView& m, DenseOut dense) {
  if (dense == DenseOut::kKeep && (m.format == Format::kF32 || m.format == Format::kF16)) return m.format;
  return Format::kBF16;
}

std::vector<Piece> hf_pieces(const Checkpoint& s, const WriteOptions& o) {
  std::vector<Piece> pieces;
  const bool quantised = o.experts == ExpertsOut::kMxfp4 || all_mxfp4(s.weights);
  const auto add = [&](const std::string& name, const MatrixView& m) {
    pieces.push_back(matrix_piece(name, m, {m.cols}, hf_format(m, o.dense)));
  };
  const auto matrix = [&](const std::string& name, const MatrixView& m) {
    pieces.push_back(matrix_piece(name, m, {m.rows, m.cols}, hf_format(m, o.dense)));
  };
  const auto dense = [&](const std::string& name, const MatrixView& m) {
    const bool kept = o.dense == DenseOut::kKeep && m.format == Format::kMxfp8;
    if (o.dense != DenseOut::kMxfp8 && !kept) return matrix(name, m);
    pieces.push_back(mxfp8_piece(name, m, Half::kCodes));
    pieces.push_back(mxfp8_piece(name + "_scale", m, Half::kScales));
  };
  dense("model.embed_tokens.weight", s.weights.embed), add("model.norm.weight", s.weights.final_norm),
      dense("lm_head.weight", s.weights.head);
  for (int i = 0; i < s.config.layers; ++i) {
    const LayerWeights& w = s.weights.layers[i];
    const std::string p = fmt::format("model.layers.{}.", i), a = p + "self_attn.", m = p + "mlp.",
                      e = m + "experts.";
    add(p + "input_layernorm.weight", w.attn_norm), add(p + "post_attention_layernorm.weight", w.mlp_norm);
    dense(a + "q_proj.weight", w.q), add(a + "q_proj.bias", w.q_bias), dense(a + "k_proj.weight", w.k),
        add(a + "k_proj.bias", w.k_bias);
    dense(a + "v_proj.weight", w.v), add(a + "v_proj.bias", w.v_bias), dense(a + "o_proj.weight", w.o),
        add(a + "o_proj.bias", w.o_bias);
    add(a + "sinks", w.sinks), matrix(m + "router.weight", w.router), add(m + "router.bias", w.router_bias);
    if (quantised) {
      pieces.push_back(hf_mxfp4_piece(e + "gate_up_proj_blocks", {w.gate, w.up}, Half::kCodes));
      pieces.push_back(hf_mxfp4_piece(e + "gate_up_proj_scales", {w.gate, w.up}, Half::kScales));
      pieces.push_back(hf_mxfp4_piece(e + "down_proj_blocks", {w.down}, Half::kCodes));
      pieces.push_back(hf_mxfp4_piece(e + "down_proj_scales", {w.down}, Half::kScales));
    } else {
      pieces.push_back(hf_bf16_piece(e + "gate_up_proj", {w.gate, w.up}));
      pieces.push_back(hf_bf16_piece(e + "down_proj", {w.down}));
    }
    pieces.push_back(interleaved_bias_piece(e + "gate_up_proj_bias", w.gate_bias, w.up_bias,
                                            hf_format(w.gate_bias, o.dense)));
    pieces.push_back(matrix_piece(e + "down_proj_bias", w.down_bias, {w.down_bias.rows, w.down_bias.cols},
                                  hf_format(w.down_bias, o.dense)));
  }
  return pieces;
}

Json hf_config(const ModelConfig& c, bool mxfp4) {
  Json types = Json::array();
  for (const bool sliding : c.sliding) types.push_back(sliding ? "sliding_attention" : "full_attention");
  Json json = {{"architectures", {"GptOssForCausalLM"}},
               {"model_type", "gpt_oss"},
               {"torch_dtype", "bfloat16"},
               {"attention_bias", true},
               {"num_hidden_layers", c.layers},
               {"hidden_size", c.hidden},
               {"intermediate_size", c.intermediate},
               {"num_attention_heads", c.heads},
               {"num_key_value_heads", c.kv_heads},
               {"head_dim", c.head_dim},
               {"num_local_experts", c.experts},
               {"num_experts_per_tok", c.experts_per_token},
               {"experts_per_token", c.experts_per_token},
               {"vocab_size", c.vocab},
               {"sliding_window", c.window},
               {"max_position_embeddings", c.max_context},
               {"initial_context_length", c.rope.original_context},
               {"layer_types", types},
               {"rms_norm_eps", c.rms_eps},
               {"swiglu_limit", c.swiglu_limit},
               {"hidden_act", "silu"},
               {"tie_word_embeddings", false},
               {"rope_theta", c.rope.theta}};
  if (c.rope.factor > 1) {
    json["rope_scaling"] = {{"rope_type", "yarn"},
                            {"factor", c.rope.factor},
                            {"beta_fast", c.rope.beta_fast},
                            {"beta_slow", c.rope.beta_slow},
                            {"original_max_position_embeddings", c.rope.original_context},
                            {"truncate", c.rope.truncate}};
  }
  if (c.bos_token >= 0) json["bos_token_id"] = c.bos_token;
  if (c.eos_token >= 0) json["eos_token_id"] = c.eos_token;
  if (c.pad_token >= 0) json["pad_token_id"] = c.pad_token;
  if (mxfp4)
    json["quantization_config"] = {
        {"quant_method", "mxfp4"},
        {"modules_to_not_convert",
         {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}};
  return json;
}

Status write_pieces(OutputFile& file, const std::vector<Piece>& pieces, size_t alignment,
                    const WriteOptions& options) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const size_t before = file.position();
    RETURN_IF_ERROR(pieces[i].write(file));
    MOESAIC_CHECK(file.position() - before == static_cast<size_t>(pieces[i].bytes));
    RETURN_IF_ERROR(file.pad(alignment));
    if (options.progress) options.progress(static_cast<int>(i + 1), static_cast<int>(pieces.size()));
  }
  return {};
}

Status write_text(const std::string& path, const std::string& text, bool overwrite) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, overwrite));
  RETURN_IF_ERROR(file.write(text));
  return file.commit();
}

Status write_tensors(const std::string& path, const std::vector<Piece>& pieces, const WriteOptions& options) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t offset = 0;
  for (const Piece& p : pieces) {
    header[p.name] = {{"dtype", p.dtype}, {"shape", p.shape}, {"data_offsets", {offset, offset + p.bytes}}};
    offset += p.bytes;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, options.overwrite));
  const uint64_t length = text.size();
  RETURN_IF_ERROR(file.write(std::as_bytes(std::span(&length, 1))));
  RETURN_IF_ERROR(file.write(text));
  RETURN_IF_ERROR(write_pieces(file, pieces, 1, options));
  return file.commit();
}

// ---- GGUF ----

Format gguf_format(const MatrixView& m, DenseOut dense) {
  if (dense == DenseOut::kBF16) return Format::kBF16;
  if (dense == DenseOut::kQ8_0) return Format::kQ8_0;
  return m.format == Format::kMxfp8 ? Format::kBF16 : m.format;
}

Piece gguf_experts_piece(std::string name, const ExpertsView& e) {
  const int64_t rows = e.first.rows, blocks = e.first.cols / 32;
  const auto write = [e, rows, blocks](OutputFile& file) {
    std::vector<float> values(blocks * 32);
    std::vector<uint8_t> codes(blocks * 16), scales(blocks);
    return write_rows(file, e.count * rows, [&](int64_t r, Bytes& out) {
      mxfp4_row(e.at(r / rows), r % rows, values, codes, scales);
      for (int64_t b = 0; b < blocks; ++b) {
        uint8_t block[17] = {scales[b]};
        for (int j = 0; j < 16; ++j) {
          const auto code = [&](int i) { return (codes[b * 16 + i / 2] >> (i % 2 * 4)) & 15; };
          block[1 + j] = static_cast<uint8_t>(code(j) | code(j + 16) << 4);
        }
        append(out, block, sizeof block);
      }
    });
  };
  return {std::move(name), "MXFP4", {e.count, rows, e.first.cols}, e.count * rows * blocks * 17, write};
}

std::vector<Piece> gguf_pieces(const Checkpoint& s, const WriteOptions& o) {
  std::vector<Piece> pieces;
  const auto dense = [&](const std::string& name, const MatrixView& m) {
    pieces.push_back(matrix_piece(name, m, {m.rows, m.cols}, gguf_format(m, o.dense)));
  };
  const auto floats = [&](const std::string& name, const MatrixView& m) {
    pieces.push_back(matrix_piece(name, m, {m.cols}, Format::kF32));
  };
  const auto table = [&](const std::string& name, const MatrixView& m) {
    pieces.push_back(matrix_piece(name, m, {m.rows, m.cols}, Format::kF32));
  };
  dense("token_embd.weight", s.weights.embed), floats("output_norm.weight", s.weights.final_norm),
      dense("output.weight", s.weights.head);
  for (int i = 0; i < s.config.layers; ++i) {
    const LayerWeights& w = s.weights.layers[i];
    const std::string p = fmt::format("blk.{}.", i);
    floats(p + "attn_norm.weight", w.attn_norm), floats(p + "post_attention_norm.weight", w.mlp_norm);
    dense(p + "attn_q.weight", w.q), floats(p + "attn_q.bias", w.q_bias), dense(p + "attn_k.weight", w.k),
        floats(p + "attn_k.bias", w.k_bias);
    dense(p + "attn_v.weight", w.v), floats(p + "attn_v.bias", w.v_bias),
        dense(p + "attn_output.weight", w.o), floats(p + "attn_output.bias", w.o_bias);
    floats(p + "attn_sinks.weight", w.sinks), table(p + "ffn_gate_inp.weight", w.router),
        floats(p + "ffn_gate_inp.bias", w.router_bias);
    pieces.push_back(gguf_experts_piece(p + "ffn_gate_exps.weight", w.gate)),
        table(p + "ffn_gate_exps.bias", w.gate_bias);
    pieces.push_back(gguf_experts_piece(p + "ffn_up_exps.weight", w.up)),
        table(p + "ffn_up_exps.bias", w.up_bias);
    pieces.push_back(gguf_experts_piece(p + "ffn_down_exps.weight", w.down)),
        table(p + "ffn_down_exps.bias", w.down_bias);
  }
  return pieces;
}

void add_metadata(GgufHeader& h, const ModelConfig& c, const TokenizerSource& t) {
  const std::string p = "gpt-oss.";
  h.text("general.architecture", "gpt-oss"), h.text("general.name", c.name.empty() ? "gpt-oss" : c.name),
      h.u32("general.file_type", 38);
  h.u32(p + "block_count", c.layers), h.u32(p + "context_length", c.max_context),
      h.u32(p + "embedding_length", c.hidden);
  h.u32(p + "feed_forward_length", c.intermediate), h.u32(p + "expert_feed_forward_length", c.intermediate);
  h.u32(p + "attention.head_count", c.heads), h.u32(p + "attention.head_count_kv", c.kv_heads);
  h.u32(p + "attention.key_length", c.head_dim), h.u32(p + "attention.value_length", c.head_dim);
  h.f32(p + "attention.layer_norm_rms_epsilon", c.rms_eps), h.f32(p + "rope.freq_base", c.rope.theta);
  h.u32(p + "expert_count", c.experts), h.u32(p + "expert_used_count", c.experts_per_token),
      h.u32(p + "attention.sliding_window", c.window);
  if (c.rope.factor > 1) {
    h.text(p + "rope.scaling.type", "yarn"), h.f32(p + "rope.scaling.factor", c.rope.factor);
    h.u32(p + "rope.scaling.original_context_length", c.rope.original_context);
    h.f32(p + "rope.scaling.yarn_beta_fast", c.rope.beta_fast),
        h.f32(p + "rope.scaling.yarn_beta_slow", c.rope.beta_slow);
  }
  h.u32(p + "rope.dimension_count", c.head_dim);
  if (t.tokens.empty()) return;
  h.text("tokenizer.ggml.model", "gpt2"), h.text("tokenizer.ggml.pre", "gpt-4o"),
      h.texts("tokenizer.ggml.tokens", t.tokens);
  h.integers("tokenizer.ggml.token_type", t.token_types), h.texts("tokenizer.ggml.merges", t.merges);
  if (c.bos_token >= 0) h.u32("tokenizer.ggml.bos_token_id", c.bos_token);
  if (c.eos_token >= 0) h.u32("tokenizer.ggml.eos_token_id", c.eos_token);
  if (c.pad_token >= 0) h.u32("tokenizer.ggml.padding_token_id", c.pad_token);
  h.boolean("tokenizer.ggml.add_bos_token", false);
}

uint32_t gguf_type(const std::string& dtype) {
  return dtype == "F32" ? 0 : dtype == "F16" ? 1 : dtype == "Q8_0" ? 8 : dtype == "BF16" ? 30 : 39;
}

constexpr size_t kGgufAlignment = 32;

// Before gigabytes are written: nothing is replaced unasked, and no index of another model would win over
// them.
Status check_target(const Checkpoint& source, const std::string& folder, bool overwrite) {
  std::error_code ignored;
  const std::string index = folder + "/model.safetensors.index.json";
  if (std::filesystem::exists(index, ignored))
    return invalid("{}: a sharded model is here already; choose another folder", index);
  for (const char* name : {"/model.safetensors", "/config.json", "/tokenizer.json"}) {
    const bool ours = name != std::string_view("/tokenizer.json") || !source.tokenizer.json_path.empty();
    if (ours && !overwrite && std::filesystem::exists(folder + name, ignored))
      return invalid("{}{}: it exists already; pass --force to replace it", folder, name);
  }
  return {};
}

Status copy_tokenizer(const TokenizerSource& source, const std::string& folder) {
  const std::string target = folder + "/tokenizer.json";
  std::error_code code;
  if (source.json_path.empty() || std::filesystem::equivalent(source.json_path, target, code)) return {};
  code.clear();
  std::filesystem::copy_file(source.json_path, target, std::filesystem::copy_options::overwrite_existing,
                             code);
  return code ? error(StatusCode::kIo, "{}: {}", target, code.message()) : Status();
}

}  // namespace

Status write_safetensors(const Checkpoint& source, const std::string& folder, const WriteOptions& options) {
  if (options.dense == DenseOut::kQ8_0)
    return error(StatusCode::kUnsupported, "{}: safetensors has no Q8_0; use --dense bf16 or write a .gguf",
                 folder);
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) return error(StatusCode::kIo, "{}: cannot create it: {}", folder, code.message());
  RETURN_IF_ERROR(check_target(source, folder, options.overwrite));
  const std::vector<Piece> pieces = hf_pieces(source, options);
  RETURN_IF_ERROR(write_tensors(folder + "/model.safetensors", pieces, options));
  const bool mxfp4 = options.experts == ExpertsOut::kMxfp4 || all_mxfp4(source.weights);
  RETURN_IF_ERROR(
      write_text(folder + "/config.json", hf_config(source.config, mxfp4).dump(2) + "\n", options.overwrite));
  return copy_tokenizer(source.tokenizer, folder);
}

Status write_gguf(const Checkpoint& source, const std::string& path, const WriteOptions& options) {
  if (options.dense == DenseOut::kMxfp8)
    return error(StatusCode::kUnsupported, "{}: GGUF has no MXFP8; use --dense bf16 or q8_0", path);
  if (!all_mxfp4(source.weights) && options.experts != ExpertsOut::kMxfp4) {
    return error(StatusCode::kUnsupported,
                 "{}: GGUF holds gpt-oss experts as MXFP4; pass --experts mxfp4 to quantise them", path);
  }
  ASSIGN_OR_RETURN(const TokenizerSource tokenizer, gguf_tokenizer(source.tokenizer, source.config.vocab));
  const std::vector<Piece> pieces = gguf_pieces(source, options);
  GgufHeader header;
  add_metadata(header, source.config, tokenizer);
  uint64_t offset = 0;
  for (const Piece& p : pieces) {
    header.tensor(p.name, p.shape, gguf_type(p.dtype), offset);
    offset += (p.bytes + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
  }
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, options.overwrite));
  RETURN_IF_ERROR(file.write(header.finish(pieces.size())));
  RETURN_IF_ERROR(file.pad(kGgufAlignment));
  RETURN_IF_ERROR(write_pieces(file, pieces, kGgufAlignment, options));
  return file.commit();
}

}  // namespace moesaic

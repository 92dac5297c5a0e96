#include <filesystem>
#include <string_view>

#include "base/error.h"
#include "base/file_cache.h"
#include "checkpoint/chat_files.h"
#include "checkpoint/config_reader.h"
#include "checkpoint/json.h"
#include "checkpoint/model_places.h"
#include "checkpoint/pieces.h"
#include "checkpoint/tokenizer_json.h"
#include "checkpoint/writer.h"
#include "mx/block.h"

namespace moesaic {
namespace {

// BF16 experts, transposed as Hugging Face stores them: [E, cols, rows].
Piece hf_bf16_piece(const std::string& name, const std::vector<ExpertsView>& sections) {
  const MatrixView& m = sections[0].first;
  const int64_t rows = m.rows * std::ssize(sections), cols = m.cols, count = sections[0].count;
  const auto write = [sections, rows, cols, count, name](OutputFile& file) -> Status {
    std::vector<uint16_t> matrix(rows * cols);
    std::vector<float> values(cols);
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t r = 0; r < rows; ++r) {
        read_row(sections[r % sections.size()].at(e), r / std::ssize(sections), values);
        for (int64_t c = 0; c < cols; ++c) matrix[c * rows + r] = mx::encode_bf16(values[c]);
      }
      const auto bytes = std::as_bytes(std::span(matrix));
      RETURN_IF_ERROR(check_made(dense_view(Format::kBF16, 1, rows * cols, bytes.data()), name));
      RETURN_IF_ERROR(file.write(bytes));
    }
    return {};
  };
  return {.name = name,
          .format = Format::kBF16,
          .dtype = "BF16",
          .shape = {count, cols, rows},
          .bytes = count * rows * cols * 2,
          .write = write};
}

Piece interleaved_bias_piece(std::string name, const MatrixView& gate, const MatrixView& up, Format format) {
  const auto write = [gate, up, format, name](OutputFile& file) {
    std::vector<float> g(gate.cols), u(up.cols), both(2 * gate.cols);
    return write_rows(file, gate.rows, [&](int64_t r, Bytes& out) -> Status {
      read_row(gate, r, g), read_row(up, r, u);
      for (size_t i = 0; i < g.size(); ++i) both[2 * i] = g[i], both[2 * i + 1] = u[i];
      const size_t begin = out.size();
      out.resize(begin + static_cast<size_t>(row_bytes(format, std::ssize(both))));
      info_of(format).encode(both.data(), std::ssize(both), out.data() + begin, nullptr);
      return check_made(dense_view(format, 1, std::ssize(both), out.data() + begin), name);
    });
  };
  return {.name = name,
          .format = format,
          .dtype = std::string(info_of(format).safetensors),
          .shape = {gate.rows, 2 * gate.cols},
          .bytes = gate.rows * row_bytes(format, 2 * gate.cols),
          .write = write};
}

// The format of tensors that no other rule is for: F32 and F16 stay unless a format was asked for, and the
// rest is BF16.
Format hf_format(const MatrixView& m, std::optional<Format> dense) {
  return !dense && is_plain(m.format) ? m.format : Format::kBF16;
}
Format dense_format(const MatrixView& m, std::optional<Format> dense) {
  const Format format = dense.value_or(m.format);
  return info_of(format).safetensors.empty() ? Format::kBF16 : format;
}

// Collects the pieces of one part of the model: a layer, or what stands outside of all.
class HfPieces {
 public:
  HfPieces(const WriteOptions& options, bool mxfp4) : dense_(options.dense), mxfp4_(mxfp4) {}

  void top(const ModelWeights& w) {
    dense("model.embed_tokens", w.embed);
    vector("model.norm.weight", w.final_norm);
    dense("lm_head", w.head);
  }
  void layer(int index, const LayerWeights& w) {
    const size_t first = pieces_.size();
    const std::string p = fmt::format("model.layers.{}.", index);
    attention(p, w);
    experts(p + "mlp.", w);
    for (size_t i = first; i < pieces_.size(); ++i) pieces_[i].layer = index;
  }
  std::vector<Piece> take() { return std::move(pieces_); }

 private:
  void attention(const std::string& p, const LayerWeights& w) {
    const std::string a = p + "self_attn.";
    vector(p + "input_layernorm.weight", w.attn_norm);
    vector(p + "post_attention_layernorm.weight", w.mlp_norm);
    linear(a + "q_proj", w.q, w.q_bias);
    linear(a + "k_proj", w.k, w.k_bias);
    linear(a + "v_proj", w.v, w.v_bias);
    linear(a + "o_proj", w.o, w.o_bias);
    vector(a + "sinks", w.sinks);
  }
  void experts(const std::string& m, const LayerWeights& w) {
    const std::string e = m + "experts.";
    matrix(m + "router.weight", w.router);
    vector(m + "router.bias", w.router_bias);
    expert_matrices(e + "gate_up_proj", {w.gate, w.up});
    expert_matrices(e + "down_proj", {w.down});
    pieces_.push_back(interleaved_bias_piece(e + "gate_up_proj_bias", w.gate_bias, w.up_bias,
                                             hf_format(w.gate_bias, dense_)));
    matrix(e + "down_proj_bias", w.down_bias);
  }
  void expert_matrices(const std::string& name, const std::vector<ExpertsView>& sections) {
    if (!mxfp4_) return pieces_.push_back(hf_bf16_piece(name, sections));
    const MatrixView& m = sections[0].first;
    const int64_t blocks = m.cols / mx::kBlock;
    std::vector<int64_t> shape = {sections[0].count, m.rows * std::ssize(sections), blocks};
    pieces_.push_back(rows_piece(name + "_scales", sections, Format::kMxfp4, shape, Half::kScales));
    shape.push_back(mx::kPackedBlock);
    pieces_.insert(pieces_.end() - 1, rows_piece(name + "_blocks", sections, Format::kMxfp4, shape));
  }
  void linear(const std::string& name, const MatrixView& weight, const MatrixView& bias) {
    dense(name, weight);
    vector(name + ".bias", bias);
  }
  void dense(const std::string& name, const MatrixView& m) {
    add_matrix(pieces_, name + ".weight", m, {m.rows, m.cols}, dense_format(m, dense_));
  }
  void matrix(const std::string& name, const MatrixView& m) {
    add_matrix(pieces_, name, m, {m.rows, m.cols}, hf_format(m, dense_));
  }
  void vector(const std::string& name, const MatrixView& m) {
    add_matrix(pieces_, name, m, {m.cols}, hf_format(m, dense_));
  }

  std::optional<Format> dense_;
  bool mxfp4_;
  std::vector<Piece> pieces_;
};

// Plain RoPE is named, too: transformers takes gpt_oss's YaRN where nothing is said.
Json rope_config(const RopeConfig& rope) {
  if (rope.factor <= 1 && rope.attention_factor == 0) return {{"rope_type", "default"}};
  Json json = {{"rope_type", "yarn"},
               {"factor", rope.factor},
               {"beta_fast", rope.beta_fast},
               {"beta_slow", rope.beta_slow},
               {"original_max_position_embeddings", rope.original_context},
               {"truncate", rope.truncate}};
  if (rope.attention_factor != 0) json["attention_factor"] = rope.attention_factor;
  return json;
}

// Other programs know dense matrices with scales by no name, so they are to stop at one that they do not
// know.
Json quantization_config(bool mxfp4, std::optional<Format> own) {
  if (own) return {{"quant_method", own_quant_method(info_of(*own))}};
  if (!mxfp4) return nullptr;
  return {{"quant_method", "mxfp4"},
          {"modules_to_not_convert",
           {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"}}};
}

Json hf_config(const ModelConfig& c, bool mxfp4, std::optional<Format> own) {
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
               {"swiglu_alpha", c.swiglu_alpha},
               {"hidden_act", "silu"},
               {"tie_word_embeddings", false},
               {"rope_theta", c.rope.theta},
               {"rope_scaling", rope_config(c.rope)}};
  if (c.bos_token >= 0) json["bos_token_id"] = c.bos_token;
  if (c.eos_token >= 0) json["eos_token_id"] = c.eos_token;
  if (c.pad_token >= 0) json["pad_token_id"] = c.pad_token;
  if (Json quantization = quantization_config(mxfp4, own); !quantization.is_null())
    json["quantization_config"] = std::move(quantization);
  return json;
}

constexpr const char* kFiles[] = {"/model.safetensors", "/config.json", "/tokenizer.json"};

Result<OutputFile> write_text(const std::string& path, const std::string& text, bool overwrite) {
  ASSIGN_OR_RETURN(OutputFile file, OutputFile::create(path, overwrite));
  RETURN_IF_ERROR(file.write(text));
  RETURN_IF_ERROR(file.flush());
  return file;
}

Result<OutputFile> write_tensors(const std::string& path, const std::vector<Piece>& pieces,
                                 const Checkpoint& source, const WriteOptions& options, bool mxfp4) {
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
  RETURN_IF_ERROR(write_pieces(file, pieces, 1, source, options, [&](int layer, const LayerWeights& w) {
    return pieces_of(HfPieces(options, mxfp4), layer, w);
  }));
  RETURN_IF_ERROR(file.flush());
  return file;
}

// The text of tokenizer.json; empty where the source has no tokenizer.
Result<std::string> tokenizer_text(const TokenizerSource& source) {
  constexpr size_t kMost = size_t{1} << 30;
  if (!source.tokens.empty()) return tokenizer_json(source);
  return source.json_path.empty() ? std::string() : read_whole(source.json_path, kMost);
}

// Before gigabytes are written: nothing is replaced unasked, no folder stands in a file's place, and no index
// of another model would win over them.
Status check_target(const Checkpoint& source, const std::vector<ChatFile>& chat, const std::string& folder,
                    bool overwrite) {
  std::error_code ignored;
  const std::string index = folder + "/model.safetensors.index.json";
  if (std::filesystem::exists(index, ignored))
    return invalid("{}: a sharded model is here already; choose another folder", index);
  const auto check = [&](const std::string& path) -> Status {
    if (is_folder(path)) return invalid("{}: a folder stands where a file belongs", path);
    if (overwrite || !is_there(path)) return {};
    return invalid("{}: it exists already; pass --force to replace it", path);
  };
  for (const char* name : kFiles) {
    const bool ours = name != std::string_view("/tokenizer.json") || source.tokenizer.any();
    if (ours) RETURN_IF_ERROR(check(folder + name));
  }
  for (const ChatFile& file : chat) RETURN_IF_ERROR(check(folder + "/" + file.name));
  return {};
}

Status write_files(const Checkpoint& source, const std::string& folder, const WriteOptions& options) {
  ASSIGN_OR_RETURN(const std::vector<ChatFile> chat, chat_files(source));
  RETURN_IF_ERROR(check_target(source, chat, folder, options.overwrite));
  // Before gigabytes are written.
  ASSIGN_OR_RETURN(const std::string tokenizer, tokenizer_text(source.tokenizer));
  const bool mxfp4 = options.experts == ExpertsOut::kMxfp4 || all_mxfp4(source.weights);
  const std::vector<Piece> pieces = pieces_of(HfPieces(options, mxfp4), source.weights);
  const Json config = hf_config(source.config, mxfp4, own_format(source, options));
  std::vector<OutputFile> files;
  const auto add = [&](const std::string& name, const std::string& text) -> Status {
    ASSIGN_OR_RETURN(OutputFile file, write_text(folder + "/" + name, text, options.overwrite));
    files.push_back(std::move(file));
    return {};
  };
  RETURN_IF_ERROR(add("config.json", config.dump(2) + "\n"));
  for (const ChatFile& file : chat) RETURN_IF_ERROR(add(file.name, file.text));
  if (!tokenizer.empty()) RETURN_IF_ERROR(add("tokenizer.json", tokenizer));
  ASSIGN_OR_RETURN(OutputFile tensors,
                   write_tensors(folder + "/model.safetensors", pieces, source, options, mxfp4));
  // They get their names when all are written: the weights last.
  for (OutputFile& file : files) RETURN_IF_ERROR(file.commit());
  return tensors.commit();
}

}  // namespace

std::vector<std::string> unfinished_safetensors(const std::string& folder) {
  std::vector<std::string> paths;
  for (const char* name : kFiles) paths.push_back(OutputFile::unfinished(folder + name));
  for (const char* name : kChatFiles) paths.push_back(OutputFile::unfinished(folder + "/" + name));
  return paths;
}

Status write_safetensors(const Checkpoint& source, const std::string& folder, const WriteOptions& options) {
  RETURN_IF_ERROR(check_source(source));
  if (options.dense && info_of(*options.dense).safetensors.empty())
    return error(StatusCode::kUnsupported,
                 "{}: dense matrices in safetensors have no {}; use --dense bf16 or write a .gguf", folder,
                 format_name(*options.dense));
  std::error_code code;
  const bool made = std::filesystem::create_directories(folder, code);
  if (code) return error(StatusCode::kIo, "{}: cannot create it: {}", folder, code.message());
  Status status = write_files(source, folder, options);
  if (!status.ok() && made) std::filesystem::remove(folder, code);  // if it is empty
  return status;
}

}  // namespace moesaic

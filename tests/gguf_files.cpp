#include "gguf_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <span>

#include "base/error.h"
#include "checkpoint/ggml_blocks.h"
#include "checkpoint/gguf_header.h"
#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic {
namespace {

using Values = std::span<const float>;

void put(std::string& out, const void* data, size_t n) { out.append(static_cast<const char*>(data), n); }
void put_half(std::string& out, float x) {
  const uint16_t code = mx::encode_f16(x);
  put(out, &code, 2);
}
float half(float x) { return mx::decode_f16(mx::encode_f16(x)); }

// The value of largest magnitude, with its sign.
float top(Values x) {
  return *std::ranges::max_element(x, {}, [](float v) { return std::fabs(v); });
}
int level(float x, float d, int offset, int last) {
  return d == 0 ? std::clamp(offset, 0, last)
                : std::clamp(static_cast<int>(std::lround(x / d)) + offset, 0, last);
}

// 32 codes: element j in the low, j + 16 in the high nibble; fifth bits apart.
void put_codes(std::string& out, const std::vector<int>& q, bool fifth) {
  if (fifth) {
    uint32_t high = 0;
    for (int i = 0; i < 32; ++i) high |= static_cast<uint32_t>(q[i] >> 4 & 1) << i;
    put(out, &high, 4);
  }
  for (int j = 0; j < 16; ++j) out.push_back(static_cast<char>((q[j] & 15) | (q[j + 16] & 15) << 4));
}

// d (q - half), or d q + m.
void symmetric(Values x, std::string& out, int bits) {
  const int middle = 1 << (bits - 1);
  const float d = half(top(x) / static_cast<float>(-middle));
  std::vector<int> q;
  for (const float v : x) q.push_back(level(v, d, middle, 2 * middle - 1));
  put_half(out, d), put_codes(out, q, bits == 5);
}
void with_minimum(Values x, std::string& out, int bits) {
  const float m = half(std::ranges::min(x)),
              d = half((std::ranges::max(x) - m) / static_cast<float>((1 << bits) - 1));
  std::vector<int> q;
  for (const float v : x) q.push_back(level(v - m, d, 0, (1 << bits) - 1));
  put_half(out, d), put_half(out, m), put_codes(out, q, bits == 5);
}
void q4_0(Values x, std::string& out) { symmetric(x, out, 4); }
void q5_0(Values x, std::string& out) { symmetric(x, out, 5); }
void q4_1(Values x, std::string& out) { with_minimum(x, out, 4); }
void q5_1(Values x, std::string& out) { with_minimum(x, out, 5); }
void q8_0(Values x, std::string& out) {
  int8_t q[32];
  const uint16_t scale = quantize_q8_0(x.data(), q);
  put(out, &scale, 2), put(out, q, 32);
}
void iq4_nl(Values x, std::string& out) {
  constexpr int kTable[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  const float d = half(top(x) / -127);
  std::vector<int> q;
  for (const float v : x) {
    const auto far = [&](int level) { return std::fabs(d * static_cast<float>(level) - v); };
    q.push_back(static_cast<int>(std::ranges::min_element(kTable, {}, far) - kTable));
  }
  put_half(out, d), put_codes(out, q, false);
}
void mxfp4(Values x, std::string& out) {
  uint8_t paired[16];
  out.push_back(static_cast<char>(mx::quantize_mxfp4(x.data(), paired)));
  std::vector<int> q(32);
  for (int i = 0; i < 32; ++i) q[i] = paired[i / 2] >> (i % 2 * 4) & 15;
  put_codes(out, q, false);
}
void paired_mxfp4(Values x, std::string& out) {
  uint8_t paired[16];
  out.push_back(static_cast<char>(mx::quantize_mxfp4(x.data(), paired)));
  put(out, paired, 16);
}
void nvfp4(Values x, std::string& out) {
  std::string codes;
  for (size_t s = 0; s < 4; ++s) {
    const Values sub = x.subspan(16 * s, 16);
    const uint8_t scale = mx::encode_e4m3(std::fabs(top(sub)) / 6);
    const float d = mx::decode_e4m3(scale);
    out.push_back(static_cast<char>(scale));
    const auto code = [&](size_t i) { return d == 0 ? 0 : mx::encode_e2m1(sub[i] / d); };
    for (size_t j = 0; j < 8; ++j) codes.push_back(static_cast<char>(code(j) | code(j + 8) << 4));
  }
  out += codes;
}

void f32(Values x, std::string& out) { put(out, x.data(), x.size_bytes()); }
void f16(Values x, std::string& out) { put_half(out, x[0]); }
void bf16(Values x, std::string& out) {
  const uint16_t code = mx::encode_bf16(x[0]);
  put(out, &code, 2);
}

struct Type {
  std::string name;
  uint32_t id;
  size_t block;
  void (*encode)(Values, std::string&);
  std::string blocks = {};  // for a type that is not encoded: blocks taken in turn
  size_t bytes = 0;         // size of one block
};

Type type_of(const std::string& name) {
  const Type kEncoded[] = {{"F32", 0, 1, f32},
                           {"F16", 1, 1, f16},
                           {"BF16", 30, 1, bf16},
                           {"Q4_0", 2, 32, q4_0},
                           {"Q4_1", 3, 32, q4_1},
                           {"MXFP4 (type 4)", 4, 32, paired_mxfp4},
                           {"Q5_0", 6, 32, q5_0},
                           {"Q5_1", 7, 32, q5_1},
                           {"Q8_0", 8, 32, q8_0},
                           {"IQ4_NL", 20, 32, iq4_nl},
                           {"MXFP4", 39, 32, mxfp4},
                           {"NVFP4", 40, 64, nvfp4},
                           {"(unknown)", 99, 32, nullptr, std::string(16, '\0'), 16}};
  const auto* const found = std::ranges::find(kEncoded, name, &Type::name);
  if (found != std::end(kEncoded)) return *found;
  const GgmlBlocks* const type = find_ggml_blocks(name);
  const auto& goldens = quantised_goldens().types;
  const auto blocks = std::ranges::find(goldens, name, &std::pair<std::string, std::string>::first);
  MOESAIC_CHECK(type != nullptr && blocks != goldens.end());
  return {name,    type->id,       static_cast<size_t>(type->block),
          nullptr, blocks->second, static_cast<size_t>(type->bytes)};
}

class File {
 public:
  File(const ModelConfig& config, std::string without) : c_(config), without_(std::move(without)) {}

  void metadata(bool ollama, int parts, int part);
  void tokenizer(bool ollama, const TokenizerSource& t);
  // Rows one below the other, in a type.
  void tensor(const std::string& name, const std::vector<int64_t>& shape,
              const std::vector<MatrixView>& matrices, const std::string& type);
  void vector(const std::string& name, const MatrixView& m, const std::string& type = "F32") {
    tensor(name, {m.cols}, {m}, type);
  }
  std::string finish() {
    std::string head = header_.finish(tensors_);
    head.resize((head.size() + 31) / 32 * 32);
    return head + data_;
  }
  bool wanted(int index, int parts, int part) const { return parts == 1 || index % parts == part; }

 private:
  const ModelConfig& c_;
  const std::string without_;
  GgufHeader header_;
  std::string data_;
  uint64_t tensors_ = 0;
};

void File::metadata(bool ollama, int parts, int part) {
  const std::string p = ollama ? "gptoss." : "gpt-oss.";
  header_.text("general.architecture", ollama ? "gptoss" : "gpt-oss");
  header_.u32(p + "block_count", c_.layers), header_.u32(p + "context_length", c_.max_context);
  header_.u32(p + "embedding_length", c_.hidden), header_.u32(p + "feed_forward_length", c_.intermediate);
  if (!ollama) header_.u32(p + "expert_feed_forward_length", c_.intermediate);
  header_.u32(p + "expert_count", c_.experts), header_.u32(p + "expert_used_count", c_.experts_per_token);
  header_.u32(p + "attention.head_count", c_.heads), header_.u32(p + "attention.head_count_kv", c_.kv_heads);
  header_.u32(p + "attention.key_length", c_.head_dim),
      header_.u32(p + "attention.value_length", c_.head_dim);
  header_.u32(p + "attention.sliding_window", c_.window);
  header_.f32(p + "attention.layer_norm_rms_epsilon", c_.rms_eps),
      header_.f32(p + "rope.freq_base", c_.rope.theta);
  if (!ollama) header_.text(p + "rope.scaling.type", "yarn");
  header_.f32(p + "rope.scaling.factor", c_.rope.factor);
  header_.u32(p + "rope.scaling.original_context_length", c_.rope.original_context);
  if (parts > 1) header_.u32("split.count", parts), header_.u32("split.no", part);
}

void File::tokenizer(bool ollama, const TokenizerSource& t) {
  const auto end = std::ranges::find(t.tokens, "<|endoftext|>");
  header_.text("tokenizer.ggml.model", "gpt2");
  header_.text("tokenizer.ggml.pre", ollama ? "default" : "gpt-4o");
  header_.texts("tokenizer.ggml.tokens", t.tokens), header_.texts("tokenizer.ggml.merges", t.merges);
  header_.integers("tokenizer.ggml.token_type", t.token_types);
  const bool endoftext = ollama && end != t.tokens.end();
  header_.u32("tokenizer.ggml.eos_token_id", endoftext ? static_cast<uint32_t>(end - t.tokens.begin())
                                                       : static_cast<uint32_t>(c_.eos_token));
}

void File::tensor(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<MatrixView>& matrices, const std::string& type) {
  if (name == without_) return;
  const Type t = type_of(type);
  data_.resize((data_.size() + 31) / 32 * 32);
  header_.tensor(name, shape, t.id, data_.size());
  ++tensors_;
  std::vector<float> row;
  size_t block = 0;
  for (const MatrixView& m : matrices) {
    for (int64_t r = 0; r < m.rows; ++r) {
      row.resize(static_cast<size_t>(m.cols));
      read_row(m, r, row);
      for (size_t at = 0; at < row.size(); at += t.block) {
        if (t.encode == nullptr)
          data_.append(t.blocks, block++ * t.bytes % t.blocks.size(), t.bytes);
        else
          t.encode(Values(row).subspan(at, t.block), data_);
      }
    }
  }
}

// One matrix per expert; `with`, if any: its rows and those of `e` alternate.
std::vector<MatrixView> matrices_of(const ExpertsView& e, const ExpertsView* with = nullptr) {
  std::vector<MatrixView> all;
  for (int64_t i = 0; i < e.count; ++i) {
    for (int64_t r = 0; with != nullptr && r < e.first.rows; ++r)
      all.push_back(slice_rows(e.at(i), r, 1)), all.push_back(slice_rows(with->at(i), r, 1));
    if (with == nullptr) all.push_back(e.at(i));
  }
  return all;
}
std::vector<MatrixView> bias_rows(const MatrixView& m) {
  std::vector<MatrixView> rows;
  for (int64_t r = 0; r < m.rows; ++r) rows.push_back(slice_rows(m, r, 1));
  return rows;
}
// Each matrix of the one before the other's of the same number.
std::vector<MatrixView> in_turn(const std::vector<MatrixView>& a, const std::vector<MatrixView>& b) {
  std::vector<MatrixView> all;
  for (size_t i = 0; i < a.size(); ++i) all.push_back(a[i]), all.push_back(b[i]);
  return all;
}
// [1, 1] views of each element of both, in turn.
std::vector<MatrixView> alternating(const MatrixView& a, const MatrixView& b) {
  std::vector<MatrixView> all;
  for (int64_t r = 0; r < a.rows; ++r) {
    for (int64_t c = 0; c < a.cols; ++c) {
      for (const MatrixView* m : {&a, &b}) {
        MatrixView one = *m;
        one.rows = one.cols = 1, one.data += r * m->row_stride + c * m->col_stride;
        all.push_back(one);
      }
    }
  }
  return all;
}

void put_attention(File& f, const std::string& p, const ModelConfig& c, const LayerWeights& w,
                   GgufLayout layout, const GgufTypes& types) {
  const bool first = layout == GgufLayout::kOllamaFirst || layout == GgufLayout::kOllamaFused;
  const int64_t q = c.q_size(), kv = c.kv_size();
  const std::string plain = first ? "BF16" : "F32", out = first ? "attn_out" : "attn_output";
  f.vector(p + "attn_norm.weight", w.attn_norm);
  if (layout == GgufLayout::kOllamaFused) {
    f.tensor(p + "attn_qkv.weight", {q + 2 * kv, c.hidden}, {w.q, w.k, w.v}, types.dense);
    f.tensor(p + "attn_qkv.bias", {q + 2 * kv}, {w.q_bias, w.k_bias, w.v_bias}, plain);
  } else {
    f.tensor(p + "attn_q.weight", {q, c.hidden}, {w.q}, types.dense_of("attn_q")),
        f.vector(p + "attn_q.bias", w.q_bias, plain);
    f.tensor(p + "attn_k.weight", {kv, c.hidden}, {w.k}, types.dense_of("attn_k")),
        f.vector(p + "attn_k.bias", w.k_bias, plain);
    f.tensor(p + "attn_v.weight", {kv, c.hidden}, {w.v}, types.dense_of("attn_v")),
        f.vector(p + "attn_v.bias", w.v_bias, plain);
  }
  f.tensor(p + out + ".weight", {c.hidden, q}, {w.o}, types.dense_of("attn_output")),
      f.vector(p + out + ".bias", w.o_bias, plain);
  f.vector(p + (first ? "attn_sinks" : "attn_sinks.weight"), w.sinks);
  f.vector(p + (first ? "ffn_norm.weight" : "post_attention_norm.weight"), w.mlp_norm);
}

void put_experts(File& f, const std::string& p, const ModelConfig& c, const LayerWeights& w,
                 GgufLayout layout, const GgufTypes& types) {
  const bool first = layout == GgufLayout::kOllamaFirst || layout == GgufLayout::kOllamaFused;
  const std::string plain = first ? "BF16" : "F32";
  f.tensor(p + "ffn_gate_inp.weight", {c.experts, c.hidden}, {w.router}, first ? "BF16" : "F32");
  f.vector(p + "ffn_gate_inp.bias", w.router_bias, plain);
  const std::vector<int64_t> half = {c.experts, c.intermediate, c.hidden},
                             both = {c.experts, 2 * c.intermediate, c.hidden};
  if (first) {
    f.tensor(p + "ffn_gate_up_exps.weight", both, matrices_of(w.gate, &w.up), types.gate);
    f.tensor(p + "ffn_gate_up_exps.bias", {c.experts, 2 * c.intermediate},
             alternating(w.gate_bias, w.up_bias), plain);
  } else if (layout == GgufLayout::kGgmlFused) {
    f.tensor(p + "ffn_gate_up_exps.weight", both, in_turn(matrices_of(w.gate), matrices_of(w.up)),
             types.gate);
    f.tensor(p + "ffn_gate_up_exps.bias", {c.experts, 2 * c.intermediate},
             in_turn(bias_rows(w.gate_bias), bias_rows(w.up_bias)), plain);
  } else {
    f.tensor(p + "ffn_gate_exps.weight", half, matrices_of(w.gate), types.gate);
    f.tensor(p + "ffn_up_exps.weight", half, matrices_of(w.up), types.up);
    f.tensor(p + "ffn_gate_exps.bias", {c.experts, c.intermediate}, bias_rows(w.gate_bias), plain);
    f.tensor(p + "ffn_up_exps.bias", {c.experts, c.intermediate}, bias_rows(w.up_bias), plain);
  }
  f.tensor(p + "ffn_down_exps.weight", {c.experts, c.hidden, c.intermediate}, matrices_of(w.down),
           types.down);
  f.tensor(p + "ffn_down_exps.bias", {c.experts, c.hidden}, bias_rows(w.down_bias), plain);
}

}  // namespace

const QuantisedGoldens& quantised_goldens() {
  static const QuantisedGoldens goldens = [] {
    QuantisedGoldens g{.numbers = std::vector<float>(4096)};
    std::ifstream in(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/gguf/quantised.bin", std::ios::binary);
    in.read(reinterpret_cast<char*>(g.numbers.data()), std::ssize(g.numbers) * 4);
    char name[8];
    uint32_t size = 0;
    while (in.read(name, sizeof name) && in.read(reinterpret_cast<char*>(&size), sizeof size)) {
      std::string blocks(size, '\0');
      in.read(blocks.data(), size);
      g.types.emplace_back(std::string(name, strnlen(name, sizeof name)), std::move(blocks));
    }
    return g;
  }();
  return goldens;
}

std::string gguf_file(const ModelConfig& config, const ModelWeights& weights, GgufLayout layout,
                      const GgufTypes& types, int parts, int part, const TokenizerSource* tokenizer) {
  File f(config, types.without);
  const bool ollama = layout != GgufLayout::kGgml && layout != GgufLayout::kGgmlFused;
  f.metadata(ollama, parts, part);
  if (part == 0 && tokenizer != nullptr) f.tokenizer(ollama, *tokenizer);
  if (part == 0) {
    f.tensor("token_embd.weight", {config.vocab, config.hidden}, {weights.embed},
             types.dense_of("token_embd"));
    f.vector("output_norm.weight", weights.final_norm);
    f.tensor("output.weight", {config.vocab, config.hidden}, {weights.head}, types.dense_of("output"));
    if (!types.extra.empty()) f.vector(types.extra, weights.final_norm);
  }
  for (int i = 0; i < config.layers; ++i) {
    if (!f.wanted(i, parts, part)) continue;
    const std::string p = fmt::format("blk.{}.", i);
    const LayerWeights& w = weights.layers[static_cast<size_t>(i)];
    put_attention(f, p, config, w, layout, types);
    put_experts(f, p, config, w, layout, types);
  }
  return f.finish();
}

}  // namespace moesaic

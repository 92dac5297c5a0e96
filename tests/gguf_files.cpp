#include "gguf_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
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

// Scales and minima of the eight sub-blocks, six bits each, in twelve bytes.
void put_scales(std::string& out, const int (&scale)[8], const int (&min)[8]) {
  uint8_t bytes[12] = {};
  for (int s = 0; s < 4; ++s) {
    bytes[s] = static_cast<uint8_t>(scale[s] | scale[s + 4] >> 4 << 6);
    bytes[s + 4] = static_cast<uint8_t>(min[s] | min[s + 4] >> 4 << 6);
    bytes[s + 8] = static_cast<uint8_t>((scale[s + 4] & 15) | (min[s + 4] & 15) << 4);
  }
  put(out, bytes, 12);
}
void k_block(Values x, std::string& out, int bits) {
  const auto last = static_cast<float>((1 << bits) - 1);
  float scale[8], low[8];
  for (size_t s = 0; s < 8; ++s) {
    const Values sub = x.subspan(32 * s, 32);
    low[s] = std::max(0.0F, -std::ranges::min(sub));
    scale[s] = (std::ranges::max(sub) + low[s]) / last;
  }
  const float d = half(std::ranges::max(scale) / 63), dmin = half(std::ranges::max(low) / 63);
  int scales[8], mins[8];
  for (size_t s = 0; s < 8; ++s) scales[s] = level(scale[s], d, 0, 63), mins[s] = level(low[s], dmin, 0, 63);
  put_half(out, d), put_half(out, dmin), put_scales(out, scales, mins);
  std::vector<int> q(256);
  for (size_t i = 0; i < 256; ++i) {
    const size_t sub = i / 32;
    q[i] = level(x[i] + dmin * static_cast<float>(mins[sub]), d * static_cast<float>(scales[sub]), 0,
                 static_cast<int>(last));
  }
  for (size_t i = 0; bits == 5 && i < 32; ++i) {
    int byte = 0;
    for (size_t s = 0; s < 8; ++s) byte |= (q[32 * s + i] >> 4 & 1) << s;
    out.push_back(static_cast<char>(byte));
  }
  for (size_t pair = 0; pair < 4; ++pair) {
    for (size_t i = 0; i < 32; ++i)
      out.push_back(static_cast<char>((q[64 * pair + i] & 15) | (q[64 * pair + 32 + i] & 15) << 4));
  }
}
void q4_k(Values x, std::string& out) { k_block(x, out, 4); }
void q5_k(Values x, std::string& out) { k_block(x, out, 5); }
void q6_k(Values x, std::string& out) {
  float scale[16];
  for (size_t s = 0; s < 16; ++s) scale[s] = top(x.subspan(16 * s, 16)) / -32;
  const float d = half(top(scale) / -128);
  int8_t scales[16];
  std::vector<int> q(256);
  for (size_t s = 0; s < 16; ++s) scales[s] = static_cast<int8_t>(level(scale[s], d, 128, 255) - 128);
  for (size_t i = 0; i < 256; ++i) {
    const size_t sub = i / 16;
    q[i] = level(x[i], d * static_cast<float>(scales[sub]), 32, 63);
  }
  const auto at = [&](size_t h, size_t s, size_t i) { return q[128 * h + 32 * s + i]; };
  for (size_t h = 0; h < 2; ++h) {
    for (size_t i = 0; i < 64; ++i)
      out.push_back(static_cast<char>((at(h, i / 32, i % 32) & 15) | (at(h, i / 32 + 2, i % 32) & 15) << 4));
  }
  for (size_t h = 0; h < 2; ++h) {
    for (size_t i = 0; i < 32; ++i)
      out.push_back(static_cast<char>(at(h, 0, i) >> 4 | at(h, 1, i) >> 4 << 2 | at(h, 2, i) >> 4 << 4 |
                                      at(h, 3, i) >> 4 << 6));
  }
  put(out, scales, 16), put_half(out, d);
}
void f32(Values x, std::string& out) { put(out, x.data(), x.size_bytes()); }
void f16(Values x, std::string& out) { put_half(out, x[0]); }
void bf16(Values x, std::string& out) {
  const uint16_t code = mx::encode_bf16(x[0]);
  put(out, &code, 2);
}

struct Type {
  const char* name;
  uint32_t id;
  size_t block;
  void (*encode)(Values, std::string&);
  size_t bytes = 0;  // of a type that is not encoded
};
constexpr Type kTypes[] = {{"F32", 0, 1, f32},
                           {"F16", 1, 1, f16},
                           {"BF16", 30, 1, bf16},
                           {"Q4_0", 2, 32, q4_0},
                           {"Q4_1", 3, 32, q4_1},
                           {"MXFP4 (type 4)", 4, 32, paired_mxfp4},
                           {"Q5_0", 6, 32, q5_0},
                           {"Q5_1", 7, 32, q5_1},
                           {"Q8_0", 8, 32, q8_0},
                           {"Q4_K", 12, 256, q4_k},
                           {"Q5_K", 13, 256, q5_k},
                           {"Q6_K", 14, 256, q6_k},
                           {"IQ4_NL", 20, 32, iq4_nl},
                           {"MXFP4", 39, 32, mxfp4},
                           {"NVFP4", 40, 64, nvfp4},
                           {"Q2_K", 10, 256, nullptr, 84},
                           {"Q3_K", 11, 256, nullptr, 110},
                           {"IQ4_XS", 23, 256, nullptr, 136},
                           {"IQ3_S", 21, 256, nullptr, 110},
                           {"TQ1_0", 34, 256, nullptr, 54},
                           {"Q1_0", 41, 128, nullptr, 18},
                           {"(unknown)", 99, 32, nullptr, 16}};

const Type& type_of(const std::string& name) {
  const auto* const found =
      std::ranges::find(kTypes, name, [](const Type& t) { return std::string(t.name); });
  MOESAIC_CHECK(found != std::end(kTypes));
  return *found;
}

class File {
 public:
  explicit File(const ModelConfig& config) : c_(config) {}

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
  const Type& t = type_of(type);
  data_.resize((data_.size() + 31) / 32 * 32);
  header_.tensor(name, shape, t.id, data_.size());
  ++tensors_;
  std::vector<float> row;
  for (const MatrixView& m : matrices) {
    for (int64_t r = 0; r < m.rows; ++r) {
      row.resize(static_cast<size_t>(m.cols));
      read_row(m, r, row);
      for (size_t at = 0; at < row.size(); at += t.block) {
        if (t.encode == nullptr)
          data_.append(t.bytes, '\0');
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
                   GgufLayout layout, const std::string& dense) {
  const bool first = layout == GgufLayout::kOllamaFirst || layout == GgufLayout::kOllamaFused;
  const int64_t q = c.q_size(), kv = c.kv_size();
  const std::string plain = first ? "BF16" : "F32", out = first ? "attn_out" : "attn_output";
  f.vector(p + "attn_norm.weight", w.attn_norm);
  if (layout == GgufLayout::kOllamaFused) {
    f.tensor(p + "attn_qkv.weight", {q + 2 * kv, c.hidden}, {w.q, w.k, w.v}, dense);
    f.tensor(p + "attn_qkv.bias", {q + 2 * kv}, {w.q_bias, w.k_bias, w.v_bias}, plain);
  } else {
    f.tensor(p + "attn_q.weight", {q, c.hidden}, {w.q}, dense), f.vector(p + "attn_q.bias", w.q_bias, plain);
    f.tensor(p + "attn_k.weight", {kv, c.hidden}, {w.k}, dense), f.vector(p + "attn_k.bias", w.k_bias, plain);
    f.tensor(p + "attn_v.weight", {kv, c.hidden}, {w.v}, dense), f.vector(p + "attn_v.bias", w.v_bias, plain);
  }
  f.tensor(p + out + ".weight", {c.hidden, q}, {w.o}, dense), f.vector(p + out + ".bias", w.o_bias, plain);
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

std::string gguf_file(const ModelConfig& config, const ModelWeights& weights, GgufLayout layout,
                      const GgufTypes& types, int parts, int part, const TokenizerSource* tokenizer) {
  File f(config);
  f.metadata(layout != GgufLayout::kGgml, parts, part);
  if (part == 0 && tokenizer != nullptr) f.tokenizer(layout != GgufLayout::kGgml, *tokenizer);
  if (part == 0) {
    f.tensor("token_embd.weight", {config.vocab, config.hidden}, {weights.embed}, types.dense);
    f.vector("output_norm.weight", weights.final_norm);
    f.tensor("output.weight", {config.vocab, config.hidden}, {weights.head}, types.dense);
    if (!types.extra.empty()) f.vector(types.extra, weights.final_norm);
  }
  for (int i = 0; i < config.layers; ++i) {
    if (!f.wanted(i, parts, part)) continue;
    const std::string p = fmt::format("blk.{}.", i);
    const LayerWeights& w = weights.layers[static_cast<size_t>(i)];
    put_attention(f, p, config, w, layout, types.dense);
    put_experts(f, p, config, w, layout, types);
  }
  return f.finish();
}

}  // namespace moesaic

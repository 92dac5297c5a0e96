#include "checkpoint/assemble.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/expert_formats.h"
#include "checkpoint/widen.h"

namespace moesaic {
namespace {

using Shape = std::vector<int64_t>;

// For errors.
std::string file_of(const RawTensor& t) { return t.file != nullptr ? t.file->path() : "weights"; }

// E8M0 codes: safetensors has had a name for them only since 2025.
bool holds_scales(const RawTensor& t) { return t.dtype == "U8" || t.dtype == "F8_E8M0"; }

// Tensors of experts that are to be converted, and to what.
using Conversions = std::map<std::string, Format>;

// Looks tensors up, checks what they are, and keeps the first error, so that the callers read as a list of
// names.
class Finder {
 public:
  explicit Finder(const TensorMap& map) : map_(map) {}
  const Status& status() const { return status_; }
  const Conversions& conversions() const { return conversions_; }
  void will_convert(const std::string& name, Format to) { conversions_.emplace(name, to); }

  const RawTensor* get(const std::string& name, const Shape& shape) {
    const RawTensor* t = map_.find(name);
    if (t == nullptr) return fail(invalid("{}: tensor '{}' is missing", source(), name));
    taken_.insert(name);
    if (t->shape != shape)
      return fail(invalid("{}: tensor '{}' is {}, the config asks for {}", file_of(*t), name,
                          shape_text(t->shape), shape_text(shape)));
    return t;
  }

  // [rows, cols] of a type that a matrix may have.
  MatrixView matrix(const std::string& name, int64_t rows, int64_t cols) {
    const RawTensor* t = map_.find(name);
    const auto format = t == nullptr ? std::nullopt : stored_format(t->dtype);
    return format && info_of(*format).scale_bytes > 0 ? scaled(*format, name, rows, cols)
                                                      : view(name, {rows, cols}, rows, cols);
  }
  MatrixView vector(const std::string& name, int64_t n) { return view(name, {n}, 1, n); }
  MatrixView table(const std::string& name, int64_t rows, int64_t cols) {
    return view(name, {rows, cols}, rows, cols);
  }

  bool has(const std::string& name) const { return map_.find(name) != nullptr; }
  std::string source() const { return map_.files.empty() ? "checkpoint" : map_.files[0]->path(); }

  // A tensor with one of these beginnings that nobody took would change the numbers: a scale or a bias, say.
  // The frequencies of RoPE that some programs keep are computed.
  void refuse_untaken(std::initializer_list<std::string_view> beginnings) {
    for (const auto& [name, t] : map_.tensors) {
      const auto begins = [&key = name](std::string_view beginning) { return key.starts_with(beginning); };
      const bool known = std::ranges::none_of(beginnings, begins);
      if (known || taken_.contains(name) || name.ends_with("rotary_emb.inv_freq")) continue;
      const bool scale = name.ends_with("scale");
      set(error(
          StatusCode::kUnsupported, "{}: tensor '{}' {}; use {}", file_of(t), name.substr(0, 120),
          scale ? "scales another one, which is not supported" : "is not one of this model",
          "the original weights (openai/gpt-oss-20b or gpt-oss-120b) or a GGUF file with MXFP4 experts"));
      return;
    }
  }
  void set(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  // writer.h says where the scales are.
  MatrixView scaled(Format format, const std::string& name, int64_t rows, int64_t cols) {
    const RawTensor *codes = get(name, {rows, cols}), *scales = get(name + "_scale", {rows, cols / 32});
    if (codes == nullptr || scales == nullptr) return {};
    if (holds_scales(*scales)) return dense_view(format, rows, cols, codes->data.data(), scales->data.data());
    set(error(StatusCode::kUnsupported, "{}: tensor '{}_scale' has type {}, expected U8 or F8_E8M0",
              file_of(*scales), name, scales->dtype));
    return {};
  }
  MatrixView view(const std::string& name, const Shape& shape, int64_t rows, int64_t cols) {
    const RawTensor* t = get(name, shape);
    if (t == nullptr) return {};
    const auto format = stored_format(t->dtype);
    if (!format || info_of(*format).scale_bytes > 0) {
      set(error(StatusCode::kUnsupported,
                "{}: tensor '{}' has type {}, which is not supported there; use a file in Q8_0, BF16 or F16",
                file_of(*t), name, t->dtype));
      return {};
    }
    return dense_view(*format, rows, cols, t->data.data());
  }
  const RawTensor* fail(Status status) {
    set(std::move(status));
    return nullptr;
  }

  const TensorMap& map_;
  Status status_;
  Conversions conversions_;
  std::set<std::string> taken_;
};

// Columns [first, first + n) of a row vector.
MatrixView part(const MatrixView& m, int64_t first, int64_t n) {
  MatrixView p = m;
  p.cols = n;
  p.data += first * m.col_stride;
  return p;
}

// The halves of one tensor of gate and up: rows in turn, as Hugging Face and Ollama have them, or gate's
// before up's.
enum class GateUp { kInTurn, kHalves };
void split_gate_up(const ExpertsView& both, const MatrixView& bias, GateUp order, LayerWeights& w) {
  const int64_t n = bias.cols / 2, step = order == GateUp::kInTurn ? 2 : 1,
                up = order == GateUp::kInTurn ? 1 : n;
  w.gate = w.up = both;
  w.gate.first = slice_rows(both.first, 0, n, step), w.up.first = slice_rows(both.first, up, n, step);
  w.gate_bias = part(bias, 0, n), w.up_bias = part(bias, up, n);
  w.gate_bias.col_stride *= step, w.up_bias.col_stride *= step;
}

// blocks [E, rows, cols / 32, 16] and scales [E, rows, cols / 32], U8.
ExpertsView mxfp4_experts(Finder& f, const std::string& blocks, const std::string& scales, int64_t count,
                          int64_t rows, int64_t cols) {
  const RawTensor* b = f.get(blocks, {count, rows, cols / 32, 16});
  const RawTensor* s = f.get(scales, {count, rows, cols / 32});
  if (b == nullptr || s == nullptr) return {};
  const bool codes = b->dtype == "U8";
  if (!codes || !holds_scales(*s)) {
    f.set(error(StatusCode::kUnsupported, "{}: tensor '{}' has type {}, expected {}", file_of(*b),
                codes ? scales : blocks, codes ? s->dtype : b->dtype, codes ? "U8 or F8_E8M0" : "U8"));
    return {};
  }
  return {.first = dense_view(Format::kMxfp4, rows, cols, b->data.data(), s->data.data()),
          .count = count,
          .data_stride = rows * cols / 2,
          .scale_stride = rows * cols / 32};
}

// Unquantised experts are stored transposed: [E, cols, rows].
ExpertsView transposed_experts(Finder& f, const std::string& name, int64_t count, int64_t rows,
                               int64_t cols) {
  const RawTensor* t = f.get(name, {count, cols, rows});
  if (t == nullptr) return {};
  const auto format = stored_format(t->dtype);
  if (!format || !is_plain(*format)) {
    f.set(error(StatusCode::kUnsupported, "{}: tensor '{}' has type {}, expected BF16, F16 or F32",
                file_of(*t), name, t->dtype));
    return {};
  }
  const int64_t element = row_bytes(*format, 1);
  MatrixView first{.format = *format,
                   .rows = rows,
                   .cols = cols,
                   .data = t->data.data(),
                   .row_stride = element,
                   .col_stride = rows * element};
  return {.first = first, .count = count, .data_stride = rows * cols * element};
}

// The format that experts are held in; nothing, and an error, where there is none.
std::optional<Format> held_format(Finder& f, const std::string& name, const Shape& shape) {
  const RawTensor* t = f.get(name, shape);
  if (t == nullptr) return std::nullopt;
  const std::optional<Format> format = expert_format(t->dtype);
  if (!format)
    f.set(error(StatusCode::kUnsupported, "{}: tensor '{}' has type {}, which experts cannot have",
                file_of(*t), name, t->dtype));
  return format;
}

// Experts in `held`; where the file has another format the views are of what conversion will make.
ExpertsView gguf_experts(Finder& f, const std::string& name, const Shape& shape, std::optional<Format> held) {
  const RawTensor* t = f.get(name, shape);
  if (t == nullptr || !held) return {};
  if (stored_format(t->dtype) != held) f.will_convert(name, *held);
  return {.first = dense_view(*held, shape[1], shape[2], t->data.data()),
          .count = shape[0],
          .data_stride = shape[1] * row_bytes(*held, shape[2])};
}

LayerWeights hf_layer(Finder& f, const ModelConfig& c, int i) {
  const std::string p = fmt::format("model.layers.{}.", i), a = p + "self_attn.", m = p + "mlp.",
                    e = m + "experts.";
  LayerWeights w;
  for (const char* const name : {"gate_up_projs.0.weight", "0.gate_up_proj.weight", "0.gate_proj.weight"}) {
    if (!f.has(e + name)) continue;
    f.set(error(StatusCode::kUnsupported,
                "{}: tensor '{}{}': experts in a tensor each are not supported; use the "
                "original weights (openai/gpt-oss-20b or gpt-oss-120b) or a GGUF file",
                f.source(), e, name));
    return w;
  }
  w.attn_norm = f.vector(p + "input_layernorm.weight", c.hidden);
  w.q = f.matrix(a + "q_proj.weight", c.q_size(), c.hidden),
  w.q_bias = f.vector(a + "q_proj.bias", c.q_size());
  w.k = f.matrix(a + "k_proj.weight", c.kv_size(), c.hidden),
  w.k_bias = f.vector(a + "k_proj.bias", c.kv_size());
  w.v = f.matrix(a + "v_proj.weight", c.kv_size(), c.hidden),
  w.v_bias = f.vector(a + "v_proj.bias", c.kv_size());
  w.o = f.matrix(a + "o_proj.weight", c.hidden, c.q_size()), w.o_bias = f.vector(a + "o_proj.bias", c.hidden);
  w.sinks = f.vector(a + "sinks", c.heads);
  w.mlp_norm = f.vector(p + "post_attention_layernorm.weight", c.hidden);
  const std::string router =
      m + (f.has(m + "router.linear.weight") ? "router.linear" : "router");  // unsloth's
  w.router = f.matrix(router + ".weight", c.experts, c.hidden),
  w.router_bias = f.vector(router + ".bias", c.experts);
  const bool quantised = f.has(e + "gate_up_proj_blocks");
  const ExpertsView gate_up =
      quantised ? mxfp4_experts(f, e + "gate_up_proj_blocks", e + "gate_up_proj_scales", c.experts,
                                2 * c.intermediate, c.hidden)
                : transposed_experts(f, e + "gate_up_proj", c.experts, 2 * c.intermediate, c.hidden);
  w.down = quantised ? mxfp4_experts(f, e + "down_proj_blocks", e + "down_proj_scales", c.experts, c.hidden,
                                     c.intermediate)
                     : transposed_experts(f, e + "down_proj", c.experts, c.hidden, c.intermediate);
  const MatrixView bias = f.table(e + "gate_up_proj_bias", c.experts, 2 * c.intermediate);
  w.down_bias = f.table(e + "down_proj_bias", c.experts, c.hidden);
  if (!f.status().ok()) return w;
  split_gate_up(gate_up, bias, GateUp::kInTurn, w);
  return w;
}

// Q, K and V in one tensor, as OpenAI's `original` files and Ollama's made from them have it.
void split_qkv(const MatrixView& qkv, const MatrixView& bias, const ModelConfig& c, LayerWeights& w) {
  const int64_t q = c.q_size(), kv = c.kv_size();
  w.q = slice_rows(qkv, 0, q), w.k = slice_rows(qkv, q, kv), w.v = slice_rows(qkv, q + kv, kv);
  w.q_bias = part(bias, 0, q), w.k_bias = part(bias, q, kv), w.v_bias = part(bias, q + kv, kv);
}

LayerWeights original_layer(Finder& f, const ModelConfig& c, int i) {
  const std::string p = fmt::format("block.{}.", i), a = p + "attn.", m = p + "mlp.";
  const int64_t q = c.q_size(), kv = c.kv_size();
  LayerWeights w;
  w.attn_norm = f.vector(a + "norm.scale", c.hidden);
  const MatrixView qkv = f.matrix(a + "qkv.weight", q + 2 * kv, c.hidden),
                   qkv_bias = f.vector(a + "qkv.bias", q + 2 * kv);
  w.o = f.matrix(a + "out.weight", c.hidden, q), w.o_bias = f.vector(a + "out.bias", c.hidden);
  w.sinks = f.vector(a + "sinks", c.heads);
  w.mlp_norm = f.vector(m + "norm.scale", c.hidden);
  w.router = f.matrix(m + "gate.weight", c.experts, c.hidden),
  w.router_bias = f.vector(m + "gate.bias", c.experts);
  const ExpertsView gate_up = mxfp4_experts(f, m + "mlp1_weight.blocks", m + "mlp1_weight.scales", c.experts,
                                            2 * c.intermediate, c.hidden);
  w.down = mxfp4_experts(f, m + "mlp2_weight.blocks", m + "mlp2_weight.scales", c.experts, c.hidden,
                         c.intermediate);
  const MatrixView bias = f.table(m + "mlp1_bias", c.experts, 2 * c.intermediate);
  w.down_bias = f.table(m + "mlp2_bias", c.experts, c.hidden);
  if (!f.status().ok()) return w;
  split_qkv(qkv, qkv_bias, c, w);
  split_gate_up(gate_up, bias, GateUp::kInTurn, w);
  return w;
}

void gguf_attention(Finder& f, const ModelConfig& c, const std::string& p, LayerWeights& w) {
  const int64_t q = c.q_size(), kv = c.kv_size();
  w.attn_norm = f.vector(p + "attn_norm.weight", c.hidden);
  if (f.has(p + "attn_qkv.weight")) {
    const MatrixView qkv = f.matrix(p + "attn_qkv.weight", q + 2 * kv, c.hidden),
                     bias = f.vector(p + "attn_qkv.bias", q + 2 * kv);
    if (f.status().ok()) split_qkv(qkv, bias, c, w);
  } else {
    w.q = f.matrix(p + "attn_q.weight", q, c.hidden), w.q_bias = f.vector(p + "attn_q.bias", q);
    w.k = f.matrix(p + "attn_k.weight", kv, c.hidden), w.k_bias = f.vector(p + "attn_k.bias", kv);
    w.v = f.matrix(p + "attn_v.weight", kv, c.hidden), w.v_bias = f.vector(p + "attn_v.bias", kv);
  }
  const std::string out = p + (f.has(p + "attn_out.weight") ? "attn_out" : "attn_output");
  w.o = f.matrix(out + ".weight", c.hidden, q), w.o_bias = f.vector(out + ".bias", c.hidden);
  w.sinks = f.vector(p + (f.has(p + "attn_sinks") ? "attn_sinks" : "attn_sinks.weight"), c.heads);
}

// Gate and up may stand in one tensor: order is that of its rows.
void gguf_gate_up(Finder& f, const ModelConfig& c, const std::string& p, GateUp order, LayerWeights& w) {
  const std::string both = p + "ffn_gate_up_exps", gate = p + "ffn_gate_exps", up = p + "ffn_up_exps";
  if (f.has(both + ".weight")) {
    const Shape shape = {c.experts, 2 * c.intermediate, c.hidden};
    const ExpertsView e = gguf_experts(f, both + ".weight", shape, held_format(f, both + ".weight", shape));
    const MatrixView bias = f.table(both + ".bias", c.experts, 2 * c.intermediate);
    if (!f.status().ok()) return;
    split_gate_up(e, bias, order, w);
    return;
  }
  const Shape shape = {c.experts, c.intermediate, c.hidden};
  const auto g = held_format(f, gate + ".weight", shape), u = held_format(f, up + ".weight", shape);
  const std::optional<Format> held = g && u ? common_format(*g, *u) : std::nullopt;
  if (g && u && !held)
    f.set(error(StatusCode::kUnsupported,
                "{}: tensor '{}.weight' is {} and '{}.weight' is {}: they must be of one kind", f.source(),
                gate, format_name(*g), up, format_name(*u)));
  w.gate = gguf_experts(f, gate + ".weight", shape, held);
  w.up = gguf_experts(f, up + ".weight", shape, held);
  w.gate_bias = f.table(gate + ".bias", c.experts, c.intermediate);
  w.up_bias = f.table(up + ".bias", c.experts, c.intermediate);
}

void gguf_experts_of(Finder& f, const ModelConfig& c, const std::string& p, GateUp order, LayerWeights& w) {
  const std::string down = p + "ffn_down_exps.weight";
  const Shape shape = {c.experts, c.hidden, c.intermediate};
  gguf_gate_up(f, c, p, order, w);
  w.down = gguf_experts(f, down, shape, held_format(f, down, shape));
  w.down_bias = f.table(p + "ffn_down_exps.bias", c.experts, c.hidden);
}

template <GateUp kOrder>
LayerWeights gguf_layer(Finder& f, const ModelConfig& c, int i) {
  const std::string p = fmt::format("blk.{}.", i);
  LayerWeights w;
  gguf_attention(f, c, p, w);
  w.mlp_norm = f.vector(p + (f.has(p + "ffn_norm.weight") ? "ffn_norm.weight" : "post_attention_norm.weight"),
                        c.hidden);
  w.router = f.matrix(p + "ffn_gate_inp.weight", c.experts, c.hidden),
  w.router_bias = f.vector(p + "ffn_gate_inp.bias", c.experts);
  gguf_experts_of(f, c, p, kOrder, w);
  return w;
}

// Each is one of the constants below, so that a reference to it stays valid.
struct Names {
  const char *embed, *norm, *head, *layer;  // layer: the prefix that its number follows
  LayerWeights (*read_layer)(Finder&, const ModelConfig&, int);
};
constexpr Names kHf = {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.",
                       hf_layer};
constexpr Names kOriginal = {"embedding.weight", "norm.scale", "unembedding.weight", "block.",
                             original_layer};
constexpr Names kGguf = {"token_embd.weight", "output_norm.weight", "output.weight", "blk.",
                         gguf_layer<GateUp::kHalves>};
constexpr Names kOllama = {kGguf.embed, kGguf.norm, kGguf.head, kGguf.layer, gguf_layer<GateUp::kInTurn>};

// Calls visit for each tensor of one layer that is read from its file, or with -1 for those that belong to
// none.
template <typename Visit>
void visit_layer(const TensorMap& map, const std::string& layer_prefix, int layer, Visit&& visit) {
  const std::string prefix = layer < 0 ? layer_prefix : fmt::format("{}{}.", layer_prefix, layer);
  for (const auto& [name, t] : map.tensors) {
    if (name.starts_with(prefix) == (layer >= 0) && !t.in_memory) visit(t);
  }
}

// A layer's experts, converted: the layer's tensors with these replaced.
Result<ConvertedExperts> convert_layer(const TensorMap& map, const Names& names, const ModelConfig& c,
                                       int layer, const Conversions& conversions, ThreadPool& pool) {
  auto converted = std::make_shared<TensorMap>();
  const std::string prefix = fmt::format("{}{}.", names.layer, layer);
  for (auto it = map.tensors.lower_bound(prefix); it != map.tensors.end() && it->first.starts_with(prefix);
       ++it) {
    RawTensor& t = converted->tensors.emplace(it->first, it->second).first->second;
    const auto to = conversions.find(it->first);
    if (to == conversions.end()) continue;
    ASSIGN_OR_RETURN(Buffer buffer, convert_blocks(t, to->second, pool));
    t.file->drop(t.data);
    t.data = {buffer.as<>(), buffer.bytes()}, t.dtype = format_name(to->second), t.in_memory = true;
    converted->buffers.push_back(std::make_shared<const Buffer>(std::move(buffer)));
  }
  Finder f(*converted);
  const LayerWeights w = names.read_layer(f, c, layer);
  RETURN_IF_ERROR(f.status());
  return ConvertedExperts{w.gate, w.up, w.down, std::move(converted)};
}

// By the formats from and to.
std::vector<std::string> conversion_lines(const TensorMap& map, const Conversions& conversions) {
  struct Sum {
    int count = 0;
    double stored = 0, held = 0;
    const RawTensor* first = nullptr;
  };
  std::map<std::pair<std::string, Format>, Sum> sums;
  for (const auto& [name, to] : conversions) {
    const RawTensor& t = map.tensors.at(name);
    Sum& sum = sums[{t.dtype, to}];
    sum.count += 1, sum.stored += static_cast<double>(t.data.size());
    sum.held +=
        static_cast<double>(element_count(t.shape).value_or(0)) * static_cast<double>(row_bytes(to, 32)) / 32;
    if (sum.first == nullptr) sum.first = &t;
  }
  std::vector<std::string> lines;
  for (const auto& [formats, sum] : sums) {
    const double error = conversion_error(*sum.first, formats.second);
    lines.push_back(fmt::format("experts: {} becomes {} ({}): {} tensors, {:.2f} GB become {:.2f} GB",
                                formats.first, format_name(formats.second),
                                error == 0 ? "exact" : fmt::format("rounded, relative error {:.2g}", error),
                                sum.count, sum.stored / 1e9, sum.held / 1e9));
  }
  return lines;
}

Result<ModelWeights> assemble(std::shared_ptr<const TensorMap> map, const ModelConfig& c, const Names& names,
                              std::vector<std::string>* conversions = nullptr) {
  RETURN_IF_ERROR(validate(c));
  Finder f(*map);
  ModelWeights w;
  w.embed = f.matrix(names.embed, c.vocab, c.hidden);
  w.final_norm = f.vector(names.norm, c.hidden);
  w.head = c.tied_head && !f.has(names.head) ? w.embed : f.matrix(names.head, c.vocab, c.hidden);
  for (int i = 0; i < c.layers && f.status().ok(); ++i) w.layers.push_back(names.read_layer(f, c, i));
  const auto stem = [](std::string_view name) { return name.substr(0, name.rfind('.')); };
  // Tensors such as a GGUF's rope_freqs change RoPE's frequencies.
  f.refuse_untaken({names.layer, stem(names.embed), stem(names.norm), stem(names.head), "rope_"});
  RETURN_IF_ERROR(f.status());
  w.release = [map, prefix = std::string(names.layer)](int layer) {
    visit_layer(*map, prefix, layer, [](const RawTensor& t) { t.file->drop(t.data); });
  };
  w.evict = [map, prefix = std::string(names.layer)](int layer) {
    visit_layer(*map, prefix, layer, [](const RawTensor& t) { t.file->evict(t.data); });
  };
  w.prefetch = [map, prefix = std::string(names.layer)](int layer) {
    visit_layer(*map, prefix, layer, [](const RawTensor& t) { t.file->prefetch(t.data); });
  };
  if (!f.conversions().empty()) {
    w.converts_exactly = std::ranges::all_of(f.conversions(), [&](const auto& conversion) {
      return converts_exactly(map->tensors.at(conversion.first).dtype, conversion.second);
    });
    w.convert_experts = [map, &names, c, plan = f.conversions(),
                         pool = std::shared_ptr<ThreadPool>()](int layer) mutable {
      if (!pool) pool = std::make_shared<ThreadPool>(0);
      return convert_layer(*map, names, c, layer, plan, *pool);
    };
    w.stored_experts = [map, prefix = std::string(names.layer)](int layer) {
      std::vector<std::span<const std::byte>> bytes;
      visit_layer(*map, prefix, layer, [&](const RawTensor& t) {
        if (t.shape.size() > 2) bytes.push_back(t.data);
      });
      return bytes;
    };
    if (conversions != nullptr) *conversions = conversion_lines(*map, f.conversions());
  }
  w.intact = [map]() -> Status {
    for (const auto& file : map->files) RETURN_IF_ERROR(file->intact());
    return {};
  };
  RETURN_IF_ERROR(validate(w, c));
  struct Storage {
    std::shared_ptr<const TensorMap> map;
    std::vector<Buffer> unified;
  };
  auto storage = std::make_shared<Storage>(Storage{.map = std::move(map)});
  // Tensors of no file may be in a device's memory.
  if (!storage->map->files.empty()) {
    ASSIGN_OR_RETURN(std::string line, unify_qkv(w.layers, f.source(), storage->unified));
    if (conversions != nullptr && !line.empty()) conversions->push_back(std::move(line));
  }
  w.storage = std::move(storage);
  return w;
}

}  // namespace

Result<ModelWeights> assemble_hf(std::shared_ptr<const TensorMap> t, const ModelConfig& c) {
  return assemble(std::move(t), c, kHf);
}
Result<ModelWeights> assemble_original(std::shared_ptr<const TensorMap> t, const ModelConfig& c) {
  return assemble(std::move(t), c, kOriginal);
}
Result<ModelWeights> assemble_gguf(std::shared_ptr<const TensorMap> t, const ModelConfig& c, bool ollama,
                                   std::vector<std::string>* conversions) {
  return assemble(std::move(t), c, ollama ? kOllama : kGguf, conversions);
}

}  // namespace moesaic

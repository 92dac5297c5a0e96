#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "backend/cpu/bandwidth.h"
#include "backend/cpu/gemm.h"
#include "backend/cpu/kv_cache.h"
#include "backend/cpu/probe.h"
#include "backend/profiling.h"
#include "backend/tuner.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "core/read_ahead.h"
#include "moe/work_list.h"

namespace moesaic {
namespace cpu {
namespace {

// Floats of a [rows, cols] view, each row padded to whole panels.
std::vector<float> read_padded(const MatrixView& m) {
  std::vector<float> out(m.rows * padded(m.cols));
  for (int64_t r = 0; r < m.rows; ++r) read_row(m, r, std::span(out).subspan(r * padded(m.cols), m.cols));
  return out;
}

Status check_finite(const std::vector<float>& values, const std::string& name) {
  const bool finite = std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
  return finite ? Status() : invalid("{}: a value is NaN or infinite; the checkpoint is damaged", name);
}

Result<std::vector<float>> read_vector(const MatrixView& m, const std::string& name) {
  std::vector<float> values = read_padded(m);
  RETURN_IF_ERROR(check_finite(values, name));
  return values;
}

struct Layer {
  std::vector<float> attn_norm, mlp_norm, qkv_bias, o_bias, sinks, router_bias;
  PackedMatrix qkv, o, router;
  PackedMatrix gate_up, down;  // experts one after the other; gate and up panels alternate
  std::vector<float> gate_bias, up_bias, down_bias;  // [experts, padded]
  KvCache kv;
};

enum Op { kEmbed, kQkv, kAttend, kProject, kMoe, kUnembed, kOps };
constexpr std::array<const char*, kOps> kOpNames = {"embed", "qkv", "attend", "project", "moe", "unembed"};

class CpuBackend final : public Backend, public Profiler, public Tuner {
 public:
  // prefetch: as asked for, instead of measured.
  CpuBackend(const Kernels& kernels, const BackendOptions& options, std::optional<GemmTuning> prefetch)
      : kernels_(kernels),
        options_(options),
        asked_prefetch_(prefetch),
        topology_(read_cpu_topology(options.system_root, current_affinity())),
        plan_(plan_threads(topology_, options.threads, options.cpu_pin)),
        pool_(plan_) {}

  BackendCaps caps() const override;
  std::vector<std::string> describe() const override;
  Profiler* profiler() override { return this; }
  Tuner* tuner() override { return this; }
  double read_bandwidth() override;
  // int8 K, int16 V and a float scale of each: kv_cache.h.
  double kv_token_bytes(const ModelConfig& c) const override { return c.kv_heads * (3.0 * c.head_dim + 8); }
  std::vector<MemoryPart> memory(const ModelConfig& config, const ModelWeights& weights,
                                 const KvLayout& layout) override;
  Status load(const ModelConfig& config, const ModelWeights& weights, const LoadProgress& progress) override;
  Status alloc_kv(const KvLayout& layout) override;
  Status begin_step(const Batch& batch) override;
  void embed() override;
  void qkv(int layer) override;
  void attend(int layer) override;
  void project(int layer) override;
  void moe(int layer) override;
  void unembed(std::span<float> logits) override;
  Status end_step() override { return std::exchange(fault_, Status()); }
  std::vector<OpProfile> profile() const override { return {profile_.begin(), profile_.end()}; }
  void reset_profile() override;
  Result<ReadTuning> tune_reads(const std::string& folder) override;

 private:
  // Adds the time of a scope to one op.
  class Timer {
   public:
    Timer(OpProfile& op, double bytes, double flops) : op_(op), start_(Clock::now()) {
      op.calls += 1, op.bytes += bytes, op.flops += flops;
    }
    ~Timer() { op_.seconds += std::chrono::duration<double>(Clock::now() - start_).count(); }

   private:
    using Clock = std::chrono::steady_clock;
    OpProfile& op_;
    Clock::time_point start_;
  };

  Result<PackedMatrix> pack(const std::vector<const MatrixView*>& sections, const std::string& name);
  Result<PackedMatrix> pack_experts(const std::vector<const ExpertsView*>& sections, const std::string& name);
  Status load_layer(int index, const LayerWeights& w, Layer& layer);
  Status load_embed(const MatrixView& embed);
  DecodeProbe make_probe();
  ChosenTuning choose_tuning();
  void build_row_maps();
  void norm_rows(const std::vector<float>& weight, int layer, const char* op);
  void rotate_and_append(Layer& layer, bool sliding, int64_t row);
  void attend_row(const Layer& layer, bool sliding, int64_t row, int kv_head);
  void route(int index);
  RunTuning runs() const;
  void gate_up_gemm(const Layer& layer);
  void down_gemm(const Layer& layer);
  void combine(const Layer& layer);
  void fail(int layer, const char* op);
  void convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride, int rows,
               std::span<const int32_t> slots = {});
  template <typename Epilogue>
  void multiply(const PackedMatrix& m, const float* x, int64_t stride, int rows, Epilogue&& epilogue);

  const Kernels& kernels_;
  BackendOptions options_;
  std::optional<GemmTuning> asked_prefetch_;
  CpuTopology topology_;
  ThreadPlan plan_;
  ThreadPool pool_;
  ModelConfig config_;
  RopeTable rope_;
  std::vector<Layer> layers_;
  MatrixView embed_;
  Buffer embed_data_, embed_scales_;
  std::vector<float> final_norm_;
  PackedMatrix head_;
  std::vector<Workspace> workspaces_;
  ChosenTuning chosen_;
  std::vector<ReadPattern> read_patterns_;  // the best, once there was a search
  KvLayout kv_layout_;

  // One step.
  Batch batch_;
  std::vector<int32_t> row_sequence_;                  // [rows]
  std::vector<float> cosine_, sine_;                   // [rows, head_dim / 2]
  std::vector<float> x_, normed_;                      // [rows, hidden]: the residual stream
  std::vector<float> qkv_, attended_;                  // [rows, padded q, k, v], [rows, heads * head_dim]
  std::vector<int8_t> q_;                              // [rows, heads * head_dim]
  std::vector<int32_t> q_bias_;                        // [rows, heads]
  std::vector<float> q_scale_;                         // [rows, heads]
  std::vector<float> router_logits_, expert_weights_;  // [rows, padded experts], [rows, top_k]
  std::vector<int32_t> expert_ids_;                    // [rows, top_k]
  WorkList work_;
  std::vector<float> hidden_, expert_out_;  // [slots, intermediate], [slots, hidden]
  ActRows act_, expert_act_;
  Status fault_;
  std::array<OpProfile, kOps> profile_;
};

BackendCaps CpuBackend::caps() const {
  return {.name = fmt::format("cpu ({}, {} threads)", kernels_.name, pool_.threads()),
          .threads = pool_.threads(),
          .rounding = options_.moe_path,
          .reads = layers_.empty() ? "" : words_of(chosen_)};
}

std::vector<std::string> CpuBackend::describe() const {
  std::vector<std::string> lines = moesaic::describe(topology_, plan_);
  std::vector<std::string> names;
  for (const Kernels* k : available_kernels()) names.push_back(k->name);
  lines.insert(lines.begin() + 1, fmt::format("kernels       {} (this machine runs {})", kernels_.name,
                                              fmt::to_string(fmt::join(names, ", "))));
  return lines;
}

// Over the experts themselves, two gigabytes of them: what fits the caches would read faster than decoding
// ever can. By plain loads and by decoding's own kernel, whichever is quicker.
double CpuBackend::read_bandwidth() {
  if (layers_.empty()) return 0;
  constexpr size_t kEnough = 2u << 30;
  MemoryByNode memory(pool_.nodes());
  for (int node = 0; node < pool_.nodes(); ++node) {
    size_t bytes = 0;
    for (const Layer& layer : layers_) {
      for (const PackedMatrix* m : {&layer.gate_up, &layer.down}) {
        if (bytes >= kEnough / pool_.nodes()) break;
        const auto [first, end] = m->node_slots(node);
        memory[node].emplace_back(m->data.as() + first * m->data_stride, (end - first) * m->data_stride);
        bytes += memory[node].back().size();
      }
    }
  }
  double best = measure_read_bandwidth(memory, pool_, read_patterns_);
  DecodeProbe probe = make_probe();
  for (int pass = 0; best > 0 && pass < 8; ++pass)
    best = std::max(best, probe.pass_bytes() / probe.seconds(chosen_.tuning) / 1e9);
  return best;
}

void CpuBackend::reset_profile() {
  for (int op = 0; op < kOps; ++op) profile_[op] = {.op = kOpNames[op]};
}

// ---- loading ----

// Packed weights take what they take in the file, but for those that --dense converts.
std::vector<MemoryPart> CpuBackend::memory(const ModelConfig& config, const ModelWeights& weights,
                                           const KvLayout& layout) {
  const StoredBytes stored = stored_bytes(weights);
  const auto share = [&](Format from) {
    return bits_per_element(made_of(from, options_.dense)) / bits_per_element(from);
  };
  return {{kExpertsPart, stored.experts},
          {kProjectionsPart, stored.projections * share(weights.layers[0].q.format)},
          {kHeadPart, stored.head * share(weights.head.format)},
          {kEmbeddingPart, stored.embedding},
          {kVectorsPart, stored.rest},
          {kCachePart, kv_bytes(layout, config, *this)}};
}

Result<PackedMatrix> CpuBackend::pack(const std::vector<const MatrixView*>& sections,
                                      const std::string& name) {
  const Pack format = pack_format(sections[0]->format, options_.dense);
  for (const MatrixView* m : sections) {
    if (pack_format(m->format, options_.dense) != format)
      return invalid("{}: tensors of one projection differ in type; use --dense to convert them", name);
  }
  return pack_panels(format, sections[0]->cols, stack(sections), name, kernels_, pool_);
}

// Expert by expert; the panels of the sections alternate (gate, up, gate, up, ...).
Result<PackedMatrix> CpuBackend::pack_experts(const std::vector<const ExpertsView*>& sections,
                                              const std::string& name) {
  std::vector<MatrixView> matrices;
  for (int64_t e = 0; e < sections[0]->count; ++e) {
    for (const ExpertsView* s : sections) matrices.push_back(s->at(e));
  }
  std::vector<PanelSource> panels;
  for (size_t first = 0; first < matrices.size(); first += sections.size()) {
    for (int64_t row = 0; row < matrices[first].rows; row += kPanel) {
      for (size_t s = 0; s < sections.size(); ++s) panels.push_back({&matrices[first + s], row});
    }
  }
  return pack_panels(pack_format(sections[0]->first.format, DenseFormat::kAsLoaded), sections[0]->first.cols,
                     panels, name, kernels_, pool_, sections[0]->count);
}

Status CpuBackend::load_layer(int index, const LayerWeights& w, Layer& layer) {
  const auto name = [&](const char* tensor) { return fmt::format("layer {} {}", index, tensor); };
  ASSIGN_OR_RETURN(layer.attn_norm, read_vector(w.attn_norm, name("attention norm")));
  ASSIGN_OR_RETURN(layer.mlp_norm, read_vector(w.mlp_norm, name("mlp norm")));
  ASSIGN_OR_RETURN(layer.sinks, read_vector(w.sinks, name("sinks")));
  ASSIGN_OR_RETURN(layer.o_bias, read_vector(w.o_bias, name("o bias")));
  ASSIGN_OR_RETURN(layer.router_bias, read_vector(w.router_bias, name("router bias")));
  ASSIGN_OR_RETURN(layer.gate_bias, read_vector(w.gate_bias, name("gate bias")));
  ASSIGN_OR_RETURN(layer.up_bias, read_vector(w.up_bias, name("up bias")));
  ASSIGN_OR_RETURN(layer.down_bias, read_vector(w.down_bias, name("down bias")));
  layer.qkv_bias.clear();
  for (const MatrixView* bias : {&w.q_bias, &w.k_bias, &w.v_bias}) {
    ASSIGN_OR_RETURN(const std::vector<float> part, read_vector(*bias, name("qkv bias")));
    layer.qkv_bias.insert(layer.qkv_bias.end(), part.begin(), part.end());
  }
  ASSIGN_OR_RETURN(layer.qkv, pack({&w.q, &w.k, &w.v}, name("qkv")));
  ASSIGN_OR_RETURN(layer.o, pack({&w.o}, name("o")));
  // Routing is a discrete choice: its logits are computed in F32 whatever the dense format.
  ASSIGN_OR_RETURN(layer.router, pack_panels(Pack::kF32, w.router.cols, stack({&w.router}), name("router"),
                                             kernels_, pool_));
  ASSIGN_OR_RETURN(layer.gate_up, pack_experts({&w.gate, &w.up}, name("gate_up experts")));
  ASSIGN_OR_RETURN(layer.down, pack_experts({&w.down}, name("down experts")));
  return {};
}

// The embedding is only ever read by rows: a copy in its own format.
Status CpuBackend::load_embed(const MatrixView& embed) {
  const int64_t row = row_bytes(embed.format, embed.cols),
                blocks = embed.scales != nullptr ? embed.cols / 32 : 0;
  ASSIGN_OR_RETURN(embed_data_, Buffer::allocate(embed.rows * row));
  ASSIGN_OR_RETURN(embed_scales_, Buffer::allocate(embed.rows * blocks));
  if (is_plain(embed.format) && embed.col_stride != row_bytes(embed.format, 1))
    return invalid("embedding: a transposed table is not supported");
  pool_.for_each((embed.rows + 1023) / 1024, [&](int64_t chunk, int) {
    for (int64_t r = chunk * 1024; r < std::min(embed.rows, chunk * 1024 + 1024); ++r) {
      std::memcpy(embed_data_.as() + r * row, embed.data + r * embed.row_stride, row);
      if (blocks != 0)
        std::memcpy(embed_scales_.as() + r * blocks, embed.scales + r * embed.scale_stride, blocks);
    }
  });
  embed_ = dense_view(embed.format, embed.rows, embed.cols, embed_data_.as(),
                      blocks != 0 ? embed_scales_.as() : nullptr);
  return {};
}

Status CpuBackend::load(const ModelConfig& config, const ModelWeights& weights,
                        const LoadProgress& progress) {
  RETURN_IF_ERROR(validate(weights, config));
  if (config.head_dim % 16 != 0)
    return error(StatusCode::kUnsupported, "cpu: head_dim {} is not a multiple of 16; use --device reference",
                 config.head_dim);
  config_ = config;
  rope_ = make_rope_table(config.rope, config.head_dim);
  layers_ = std::vector<Layer>(config.layers);
  const auto report = [&](int done) {
    if (progress) progress(done, config.layers + 1);
  };
  // The two large tables first: each is dropped from the mapping as soon as it is packed, so that the peak is
  // the packed model and one layer.
  const auto release = [&](int layer) {
    if (weights.release) weights.release(layer);
  };
  ReadAhead read_ahead(weights);
  RETURN_IF_ERROR(load_embed(weights.embed));
  release(-1);
  ASSIGN_OR_RETURN(head_, pack({&weights.head}, "lm_head"));
  ASSIGN_OR_RETURN(final_norm_, read_vector(weights.final_norm, "final norm"));
  release(-1);
  report(1);
  for (int i = 0; i < config.layers; ++i) {
    read_ahead.packing(i);
    RETURN_IF_ERROR(load_layer(i, weights.layers[i], layers_[i]));
    release(i);
    report(i + 2);
  }
  const int64_t max_cols = std::max({config.hidden, config.intermediate, config.q_size()});
  ASSIGN_OR_RETURN(workspaces_, make_workspaces(pool_.threads(), max_cols));
  chosen_ = choose_tuning();
  reset_profile();
  return {};
}

DecodeProbe CpuBackend::make_probe() {
  std::vector<ExpertWeights> layers;
  for (const Layer& layer : layers_) layers.push_back({&layer.gate_up, &layer.down});
  const Pack pack = layers_[0].gate_up.pack;
  const Rounding rounding = rounding_of(options_.moe_path, Operand::kExpertInput, mx_format(pack));
  return {kernels_,
          pool_,
          workspaces_,
          std::move(layers),
          head_,
          config_.experts,
          config_.experts_per_token,
          rounding.rounds() ? Act::kF32 : act_format(pack)};
}

ChosenTuning CpuBackend::choose_tuning() {
  if (asked_prefetch_)
    return {.tuning = {.experts = *asked_prefetch_, .dense = *asked_prefetch_},
            .source = TuningSource::kAsked};
  DecodeProbe probe = make_probe();
  return tuning_for(probe, kernels_, pool_.threads(), options_.tuning_folder);
}

Result<ReadTuning> CpuBackend::tune_reads(const std::string& folder) {
  constexpr double kSeconds = 3;
  DecodeProbe probe = make_probe();
  const Measurement measured = measure_tuning(probe, kSeconds);
  chosen_ = measured.chosen;
  ReadTuning result{.chosen = words_of(chosen_)};
  for (const CandidateTiming& c : measured.candidates)
    result.candidates.push_back({c.setting, c.value, c.best_gb_s, c.median_gb_s, c.chosen});
  if (fits_caches(probe)) return result;
  const Status kept = folder.empty() ? error(StatusCode::kIo, "no cache folder; set XDG_CACHE_HOME or HOME")
                                     : keep_tuning(probe, kernels_, pool_.threads(), folder, chosen_);
  if (kept.ok())
    result.file = tuning_file(probe, kernels_, pool_.threads(), folder);
  else
    result.chosen += fmt::format("; not kept ({})", kept.message());
  return result;
}

Status CpuBackend::alloc_kv(const KvLayout& layout) {
  if (layout.page_tokens != kPageTokens)
    return invalid("cpu: pages hold {} tokens, not {}", kPageTokens, layout.page_tokens);
  kv_layout_ = layout;
  for (int i = 0; i < config_.layers; ++i) {
    const int pages = config_.sliding[i] ? layout.window_pages : layout.full_pages;
    layers_[i].kv = {};
    ASSIGN_OR_RETURN(layers_[i].kv, KvCache::allocate(pages, config_.kv_heads, config_.head_dim));
  }
  return {};
}

// ---- a step ----

void CpuBackend::build_row_maps() {
  const int rows = batch_.rows(), half = config_.head_dim / 2;
  row_sequence_.resize(rows);
  for (size_t s = 0; s < batch_.sequences.size(); ++s) {
    const Sequence& sequence = batch_.sequences[s];
    std::fill_n(row_sequence_.begin() + sequence.first_row, sequence.rows, static_cast<int32_t>(s));
  }
  cosine_.resize(static_cast<size_t>(rows) * half);
  sine_.resize(cosine_.size());
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < half; ++i) {
      const double angle = batch_.positions[r] * rope_.inverse_frequency[i];
      cosine_[r * half + i] = static_cast<float>(std::cos(angle) * rope_.attention_factor);
      sine_[r * half + i] = static_cast<float>(std::sin(angle) * rope_.attention_factor);
    }
  }
}

Status CpuBackend::begin_step(const Batch& batch) {
  RETURN_IF_ERROR(validate(batch, config_, kv_layout_, options_.max_rows));
  batch_ = batch;
  fault_ = Status();
  build_row_maps();
  const size_t rows = batch.rows();
  x_.resize(rows * config_.hidden);
  normed_.resize(rows * config_.hidden);
  return {};
}

void CpuBackend::fail(int layer, const char* op) {
  if (fault_.ok())
    fault_ = error(StatusCode::kInternal, "layer {} {}: an activation is NaN or infinite", layer, op);
}

void CpuBackend::norm_rows(const std::vector<float>& weight, int layer, const char* op) {
  std::atomic<bool> finite{true};
  pool_.for_each(batch_.rows(), [&](int64_t r, int) {
    const int64_t at = r * config_.hidden;
    if (!kernels_.rmsnorm(x_.data() + at, weight.data(), config_.hidden, static_cast<float>(config_.rms_eps),
                          normed_.data() + at)) {
      finite.store(false, std::memory_order_relaxed);
    }
  });
  if (!finite.load()) fail(layer, op);
}

// What is rounded to an MX format meets its weights as F32, which hold it exactly.
void CpuBackend::convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride,
                         int rows, std::span<const int32_t> slots) {
  const Rounding rounding = rounding_of(options_.moe_path, operand, mx_format(m.pack));
  const Act format = rounding.rounds() ? Act::kF32 : act_format(m.pack);
  act.assign(kernels_, pool_, format, x, stride, rows, m.cols, rounding, slots);
}

template <typename Epilogue>
void CpuBackend::multiply(const PackedMatrix& m, const float* x, int64_t stride, int rows,
                          Epilogue&& epilogue) {
  convert(act_, m, Operand::kDense, x, stride, rows);
  for_each_tile(kernels_, pool_, workspaces_, m, act_.view(), rows, chosen_.tuning, epilogue);
}

void CpuBackend::embed() {
  const Timer timer(profile_[kEmbed],
                    static_cast<double>(batch_.rows()) * row_bytes(embed_.format, embed_.cols), 0);
  pool_.for_each(batch_.rows(), [&](int64_t r, int) {
    read_row(embed_, batch_.tokens[r], std::span(x_).subspan(r * config_.hidden, config_.hidden));
  });
}

void CpuBackend::rotate_and_append(Layer& layer, bool sliding, int64_t row) {
  const int half = config_.head_dim / 2, head_dim = config_.head_dim;
  const int64_t width = std::ssize(layer.qkv_bias);
  float* q = qkv_.data() + row * width;
  float* k = q + padded(config_.q_size());
  const float* v = k + padded(config_.kv_size());
  const float* cosine = cosine_.data() + row * half;
  const float* sine = sine_.data() + row * half;
  kernels_.rope(q, config_.heads, head_dim, cosine, sine);
  kernels_.rope(k, config_.kv_heads, head_dim, cosine, sine);
  const float softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (int h = 0; h < config_.heads; ++h) {
    const int64_t at = row * config_.heads + h;
    int32_t sum;
    q_scale_[at] =
        softmax_scale * kernels_.quantize_int8(q + h * head_dim, head_dim, q_.data() + at * head_dim, &sum);
    q_bias_[at] = -kernels_.weight_offset * sum;
  }
  const Sequence& sequence = batch_.sequences[row_sequence_[row]];
  const int position = batch_.positions[row];
  const int page = (sliding ? sequence.window_pages : sequence.full_pages)[position / kPageTokens];
  for (int h = 0; h < config_.kv_heads; ++h) {
    layer.kv.append(kernels_, page, position % kPageTokens, h, k + h * head_dim, v + h * head_dim);
  }
}

void CpuBackend::qkv(int index) {
  Layer& layer = layers_[index];
  const int rows = batch_.rows();
  const int64_t width = std::ssize(layer.qkv_bias);
  const Timer timer(profile_[kQkv], layer.qkv.bytes(),
                    2.0 * rows * layer.qkv.panels * kPanel * layer.qkv.cols);
  norm_rows(layer.attn_norm, index, "qkv");
  qkv_.resize(rows * width);
  q_.resize(static_cast<size_t>(rows) * config_.q_size());
  q_bias_.resize(static_cast<size_t>(rows) * config_.heads);
  q_scale_.resize(static_cast<size_t>(rows) * config_.heads);
  multiply(layer.qkv, normed_.data(), config_.hidden, rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             for (int t = 0; t < n; ++t) {
               float* out = qkv_.data() + (first + t) * width + panel * kPanel;
               const float* bias = layer.qkv_bias.data() + panel * kPanel;
               for (int i = 0; i < count * kPanel; ++i) out[i] = tile[t * 2 * kPanel + i] + bias[i];
             }
           });
  pool_.for_each(rows, [&](int64_t row, int) { rotate_and_append(layer, config_.sliding[index], row); });
}

void CpuBackend::attend_row(const Layer& layer, bool sliding, int64_t row, int kv_head) {
  const Sequence& sequence = batch_.sequences[row_sequence_[row]];
  const int group = config_.heads / config_.kv_heads, head_dim = config_.head_dim,
            last = batch_.positions[row];
  const int64_t kv_offset = static_cast<int64_t>(kv_head) * kPageTokens;
  for (int head = kv_head * group; head < (kv_head + 1) * group; head += 8) {
    const int64_t at = row * config_.heads + head;
    kernels_.attend({.heads = std::min(8, (kv_head + 1) * group - head),
                     .head_dim = head_dim,
                     .q = q_.data() + at * head_dim,
                     .q_bias = q_bias_.data() + at,
                     .q_scale = q_scale_.data() + at,
                     .sinks = layer.sinks.data() + head,
                     .pages = (sliding ? sequence.window_pages : sequence.full_pages).data(),
                     .k_cache = layer.kv.k.as<uint8_t>() + kv_offset * head_dim,
                     .v_cache = layer.kv.v.as<int16_t>() + kv_offset * head_dim,
                     .k_scale = layer.kv.k_scale.as<float>() + kv_offset,
                     .v_scale = layer.kv.v_scale.as<float>() + kv_offset,
                     .page_stride = layer.kv.page_stride(),
                     .scale_page_stride = layer.kv.scale_page_stride(),
                     .first = sliding ? std::max(0, last - config_.window + 1) : 0,
                     .last = last,
                     .out = attended_.data() + at * head_dim});
  }
}

void CpuBackend::attend(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows();
  const bool sliding = config_.sliding[index];
  double keys = 0, cached = 0;
  for (const int position : batch_.positions)
    keys += sliding ? std::min(position + 1, config_.window) : position + 1;
  for (const Sequence& s : batch_.sequences)
    cached += sliding ? std::min(s.context, config_.window + s.rows - 1) : s.context;
  const Timer timer(profile_[kAttend], cached * 3 * config_.kv_size(), keys * 4 * config_.q_size());
  attended_.resize(static_cast<size_t>(rows) * config_.q_size());
  // Rows of one KV head follow each other, so that its pages stay in cache; the longest contexts come first.
  pool_.for_each(static_cast<int64_t>(rows) * config_.kv_heads, [&](int64_t item, int) {
    attend_row(layer, sliding, rows - 1 - item % rows, static_cast<int>(item / rows));
  });
}

void CpuBackend::project(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows();
  const Timer timer(profile_[kProject], layer.o.bytes(), 2.0 * rows * config_.hidden * config_.q_size());
  multiply(layer.o, attended_.data(), config_.q_size(), rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             for (int t = 0; t < n; ++t) {
               float* out = x_.data() + (first + t) * config_.hidden + panel * kPanel;
               const float* bias = layer.o_bias.data() + panel * kPanel;
               for (int i = 0; i < count * kPanel; ++i) out[i] += tile[t * 2 * kPanel + i] + bias[i];
             }
           });
}

void CpuBackend::route(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows(), top_k = config_.experts_per_token;
  const int64_t width = padded(config_.experts);
  router_logits_.resize(rows * width);
  expert_ids_.resize(rows * top_k);
  expert_weights_.resize(rows * top_k);
  multiply(layer.router, normed_.data(), config_.hidden, rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             for (int t = 0; t < n; ++t) {
               float* out = router_logits_.data() + (first + t) * width + panel * kPanel;
               for (int i = 0; i < count * kPanel; ++i)
                 out[i] = tile[t * 2 * kPanel + i] + layer.router_bias[panel * kPanel + i];
             }
           });
  for (int r = 0; r < rows; ++r) {
    const std::span<const float> logits(router_logits_.data() + r * width, config_.experts);
    if (options_.router_trace) options_.router_trace(index, r, logits);
    route_row(logits, top_k, expert_ids_.data() + r * top_k, expert_weights_.data() + r * top_k);
  }
  build_work_list(expert_ids_, top_k, config_.experts, work_);
}

// By the tokens of an expert, on the mean.
RunTuning CpuBackend::runs() const {
  return chosen_.tuning.runs_for(std::ssize(work_.rows) / std::max<int64_t>(1, std::ssize(work_.active)));
}

// A pair is a gate panel and its up panel: 16 outputs of one expert for all its rows.
void CpuBackend::gate_up_gemm(const Layer& layer) {
  const int64_t pairs = config_.intermediate / kPanel;
  const auto alpha = static_cast<float>(config_.swiglu_alpha),
             limit = static_cast<float>(config_.swiglu_limit);
  hidden_.resize(work_.rows.size() * config_.intermediate);
  const auto body = [&](int64_t section, int64_t pair, int thread) {
    const int expert = work_.active[section];
    const int64_t bias = expert * padded(config_.intermediate) + pair * kPanel;
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile =
          run_pair(kernels_, layer.gate_up, expert * pairs + pair, rows_from(act_.view(), first), n,
                   workspaces_[thread], chosen_.tuning.experts);
      float* out = hidden_.data() + static_cast<int64_t>(first) * config_.intermediate + pair * kPanel;
      kernels_.swiglu_tile(tile, layer.gate_bias.data() + bias, layer.up_bias.data() + bias, n, alpha, limit,
                           out, config_.intermediate);
    }
  };
  for_each_pair(pool_, std::ssize(work_.active), pairs, runs(), body);
}

void CpuBackend::down_gemm(const Layer& layer) {
  const int64_t pairs = config_.hidden / (kPair * kPanel);  // whole: hidden is a multiple of 32
  const int slots = static_cast<int>(std::ssize(work_.rows));
  convert(expert_act_, layer.down, Operand::kSwiglu, hidden_.data(), config_.intermediate, slots);
  expert_out_.resize(static_cast<size_t>(slots) * config_.hidden);
  const auto body = [&](int64_t section, int64_t pair, int thread) {
    const int expert = work_.active[section];
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile =
          run_pair(kernels_, layer.down, expert * pairs + pair, rows_from(expert_act_.view(), first), n,
                   workspaces_[thread], chosen_.tuning.experts);
      float* out = expert_out_.data() + static_cast<int64_t>(first) * config_.hidden + pair * 2 * kPanel;
      for (int t = 0; t < n; ++t)
        std::memcpy(out + static_cast<int64_t>(t) * config_.hidden, tile + t * 2 * kPanel,
                    2 * kPanel * sizeof(float));
    }
  };
  for_each_pair(pool_, std::ssize(work_.active), pairs, runs(), body);
}

void CpuBackend::combine(const Layer& layer) {
  const int top_k = config_.experts_per_token;
  pool_.for_each(batch_.rows(), [&](int64_t row, int) {
    std::array<const float*, 64> y, bias;
    for (int k = 0; k < top_k; ++k) {
      y[k] = expert_out_.data() + static_cast<int64_t>(work_.slots[row * top_k + k]) * config_.hidden;
      bias[k] = layer.down_bias.data() + expert_ids_[row * top_k + k] * padded(config_.hidden);
    }
    kernels_.combine(y.data(), bias.data(), expert_weights_.data() + row * top_k, top_k, config_.hidden,
                     x_.data() + row * config_.hidden);
  });
}

void CpuBackend::moe(int index) {
  const Layer& layer = layers_[index];
  const int rows = batch_.rows();
  OpProfile& op = profile_[kMoe];
  const Timer timer(op, layer.router.bytes(),
                    6.0 * rows * config_.experts_per_token * config_.hidden * config_.intermediate);
  norm_rows(layer.mlp_norm, index, "moe");
  if (!fault_.ok()) return;  // the router's choice among NaNs would not be one
  route(index);
  op.bytes += (layer.gate_up.bytes() + layer.down.bytes()) * static_cast<double>(work_.active.size()) /
              config_.experts;
  convert(act_, layer.gate_up, Operand::kExpertInput, normed_.data(), config_.hidden, rows, work_.slots);
  gate_up_gemm(layer);
  down_gemm(layer);
  combine(layer);
}

void CpuBackend::unembed(std::span<float> logits) {
  const int rows = static_cast<int>(std::ssize(batch_.logit_rows));
  const Timer timer(profile_[kUnembed], rows > 0 ? head_.bytes() : 0,
                    2.0 * rows * config_.hidden * config_.vocab);
  bool finite = true;
  for (int i = 0; i < rows; ++i) {
    const int64_t from = static_cast<int64_t>(batch_.logit_rows[i]) * config_.hidden;
    finite &= kernels_.rmsnorm(x_.data() + from, final_norm_.data(), config_.hidden,
                               static_cast<float>(config_.rms_eps),
                               normed_.data() + static_cast<int64_t>(i) * config_.hidden);
  }
  if (!finite) return fail(config_.layers, "unembed");
  if (rows == 0) return;
  multiply(head_, normed_.data(), config_.hidden, rows,
           [&](const float* tile, int first, int n, int64_t panel, int count) {
             const int64_t column = panel * kPanel,
                           width = std::min<int64_t>(count * kPanel, config_.vocab - column);
             for (int t = 0; t < n; ++t) {
               std::memcpy(logits.data() + static_cast<int64_t>(first + t) * config_.vocab + column,
                           tile + t * 2 * kPanel, width * sizeof(float));
             }
           });
}

}  // namespace
}  // namespace cpu

Result<std::unique_ptr<Backend>> create_cpu_backend(const BackendOptions& options) {
  if (options.kv != KvFormat::kOwn)
    return invalid("cpu: K and V are kept as integers; --kv-dtype is for cuda and reference");
  ASSIGN_OR_RETURN(const std::optional<cpu::GemmTuning> prefetch, cpu::parse_prefetch(options.cpu_prefetch));
  std::string known;
  std::vector<const cpu::Kernels*> all = cpu::available_kernels();
  for (const cpu::Kernels* emulated : cpu::emulated_kernels()) all.push_back(emulated);
  for (const cpu::Kernels* kernels : all) {
    if (options.isa == "auto" || options.isa == kernels->name)
      return std::unique_ptr<Backend>(new cpu::CpuBackend(*kernels, options, prefetch));
    known += known.empty() ? kernels->name : fmt::format(", {}", kernels->name);
  }
  return invalid("cpu: this machine does not run instruction set '{}'; it has {}", options.isa, known);
}

}  // namespace moesaic

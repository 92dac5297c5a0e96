#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "backend/host_experts.h"
#include "backend/host_placement.h"
#include "backend/profiling.h"
#include "backend/tuner.h"
#include "base/error.h"
#include "base/huge_pages.h"
#include "ceiling.h"
#include "chat/terminal_text.h"
#include "commands.h"
#include "engine/expert_placement.h"
#include "model_options.h"
#include "option_checks.h"
#include "plan_ranks.h"
#include "random_batch.h"
#include "tuning/moe_kernels.h"
#include "tuning/projection.h"
#include "tuning/rank_projection.h"

namespace moesaic::app {
namespace {

// GPUs whose kernels' times are known by a fit: an H200's, with its data sheet, and with --moe-path w4a8
// those of this one.
constexpr double kH200BytesPerSecond = 4.8e12, kH200FlopsPerSecond = 989e12;
constexpr const char *kH200 = "h200", *kW4A8Device = "rtx-pro-6000";
constexpr int kSteps = 4;
constexpr double kSecondsAConfig = 0.05;

struct PlanOptions {
  ModelOptions model;
  std::vector<int> tokens = {1, 8, 64, 2048};
  std::string device_model;
};

MoeShape shape_of(const Checkpoint& k, int tokens) {
  double bytes = 0;
  for (const ExpertsView* e : {&k.weights.layers[0].gate, &k.weights.layers[0].up, &k.weights.layers[0].down})
    bytes += static_cast<double>(e->first.rows * e->first.cols) * bits_per_element(e->first.format) / 8;
  return {.tokens = tokens,
          .top_k = k.config.experts_per_token,
          .experts = k.config.experts,
          .hidden = k.config.hidden,
          .intermediate = k.config.intermediate,
          .expert_bytes = bytes};
}

// The experts' kernels for so many tokens, the quickest first. tuner: measures them.
Status print_configs(const MoeShape& shape, std::span<const MoeKernelConfig> configs, const Ceiling& ceiling,
                     Tuner* tuner = nullptr) {
  const double floor = floor_seconds(shape, ceiling.bytes_per_second, ceiling.flops_per_second);
  const std::vector<RankedConfig> ranked = rank_configs(shape, configs);
  fmt::print(
      "experts of a layer, {} token{}: {:.1f} of {} are reached, no kernel is quicker than {:.1f} us\n\n",
      shape.tokens, shape.tokens == 1 ? "" : "s", ranked.empty() ? 0 : ranked[0].work.experts, shape.experts,
      floor * 1e6);
  const double pairs = static_cast<double>(shape.tokens) * shape.top_k;
  fmt::print(
      "| kernel config | work tiles | rows, padded | of use | us, by the model |{}\n| --- | ---: | ---: | "
      "---: | ---: |{}\n",
      tuner != nullptr ? " us, measured |" : "", tuner != nullptr ? " ---: |" : "");
  for (const RankedConfig& c : ranked) {
    std::string measured;
    if (tuner != nullptr) {
      ASSIGN_OR_RETURN(const OpTiming t,
                       tuner->time_moe(shape.tokens, kSecondsAConfig, MoeFrom::kRows, c.config->name));
      measured = fmt::format(" {:.1f} |", t.median() * 1e6);
    }
    fmt::print("| {} | {:.1f} | {:.0f} | {:.0f}% | {:.1f} |{}\n", c.config->name, c.work.work_tiles,
               c.work.padded_rows, 100 * pairs / c.work.padded_rows, c.work.seconds * 1e6, measured);
  }
  fmt::print("\n");
  return {};
}

std::string shape_text(const std::string& op, const ModelConfig& c) {
  if (op == "qkv") return fmt::format("{} x {}", c.q_size() + 2 * c.kv_size(), c.hidden);
  if (op == "project") return fmt::format("{} x {}", c.hidden, c.q_size());
  if (op == "moe") return fmt::format("{} x 3 x {} x {}", c.experts, c.intermediate, c.hidden);
  if (op == "unembed") return fmt::format("{} x {}", c.vocab, c.hidden);
  if (op == "attend") return fmt::format("{} heads of {}", c.heads, c.head_dim);
  return fmt::format("{}", c.hidden);
}

void print_op(const OpProfile& op, const ModelConfig& c, int tokens, const Ceiling& ceiling) {
  const double calls = static_cast<double>(op.calls), bytes = op.bytes / calls, flops = op.flops / calls,
               seconds = op.seconds / calls, floor = ceiling.seconds(bytes, flops);
  fmt::print("| {} | {} | {} | {:.2f} | {:.2f} | {:.1f} | {:.1f} | {:.0f}% | {} |\n", op.op,
             shape_text(op.op, c), tokens, bytes / 1e6, flops / 1e9, floor * 1e6, seconds * 1e6,
             100 * floor / seconds, fmt::to_string(fmt::join(op.kernels, "; ")));
}

// Prints the choices of the backend's tables for a prompt of so many tokens.
void print_choices(Profiler& profiler, int tokens) {
  const std::vector<KernelChoice> choices = profiler.kernel_choices(tokens);
  if (choices.empty()) return;
  fmt::print("| op, {} token{} | kernel config |\n| --- | --- |\n", tokens, tokens == 1 ? "" : "s");
  for (const KernelChoice& c : choices) fmt::print("| {} | {} |\n", c.op, c.kernel);
  fmt::print("\n");
}

// A step of so many tokens at the start of a sequence, op by op.
Status print_ops(LoadedModel& m, Profiler& profiler, RandomBatch& random, int tokens,
                 const Ceiling& ceiling) {
  RETURN_IF_ERROR(random.restart(0));
  profiler.time_ops(true);
  RETURN_IF_ERROR(random.append(tokens, true));
  profiler.reset_profile();
  for (int i = 0; i < kSteps; ++i) {
    RETURN_IF_ERROR(random.restart(0));
    RETURN_IF_ERROR(random.append(tokens, true));
  }
  fmt::print(
      "| op | weights | tokens | MB | GFLOP | floor us | us | share | kernels: blocks x threads |\n"
      "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n");
  for (const OpProfile& op : profiler.profile())
    print_op(op, m.checkpoint.config, tokens, ceiling_of(op.op, ceiling.bytes_per_second, m.caps));
  fmt::print("\n");
  profiler.time_ops(false);
  return {};
}

void print_projected(const ProjectedOp& op, const DeviceModel& device) {
  const ProjectedTime t = projected_time(op, device);
  fmt::print("| {} | {} | {:.2f} | {:.1f} | {:.1f} | {:.1f} | {:.1f} |\n", op.name, op.calls, op.bytes / 1e6,
             t.memory * 1e6, t.issue * 1e6, t.mma * 1e6, as_on_hopper(op, device) * 1e6);
}

// Projects the time of a step of so many decoding sequences on a device that is not here.
void print_projection(const Checkpoint& k, const DeviceModel& device, std::optional<Format> dense,
                      int tokens) {
  const std::vector<ProjectedOp> ops = decode_ops(k.config,
                                                  {.dense = made_of(k.weights.layers[0].q.format, dense),
                                                   .head = made_of(k.weights.head.format, dense),
                                                   .experts = k.weights.layers[0].gate.first.format},
                                                  tokens);
  fmt::print(
      "{} token{}, one of each sequence; a call:\n\n"
      "| op | calls | MB | us: its bytes | its instructions | its MMAs | us with an H200's efficiency |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      tokens, tokens == 1 ? "" : "s");
  double bytes = 0, floor = 0, expected = 0;
  for (const ProjectedOp& op : ops) {
    print_projected(op, device);
    bytes += op.calls * op.bytes, floor += op.calls * projected_time(op, device).floor(),
        expected += op.calls * as_on_hopper(op, device);
  }
  fmt::print(
      "\n{:.2f} GB a step: at best {:.2f} ms, {:.0f} tok/s; with an H200's efficiency {:.2f} ms, {:.0f} "
      "tok/s\n\n",
      bytes / 1e9, floor * 1e3, tokens / floor, expected * 1e3, tokens / expected);
}

Status run_projection(const PlanOptions& o) {
  ASSIGN_OR_RETURN(const std::optional<Format> dense, dense_format(o.model.dense));
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_model(o.model));
  const DeviceModel& device = *find_device_model(o.device_model);
  if (const int most = *std::ranges::max_element(o.tokens); most > kProjectedTokens)
    return usage(
        invalid("--tokens {}: the projection is for decoding, 1 to {} tokens", most, kProjectedTokens));
  fmt::print(
      "{} on {}: a projection with --moe-path w4a8 from {:.0f} GB/s, {} multiprocessors at {:.2f} GHz; "
      "nothing was measured\n\n",
      chat::printable_line(o.model.model), device.label, device.bytes_per_second / 1e9,
      device.multiprocessors, device.clock / 1e9);
  for (const int tokens : o.tokens) print_projection(checkpoint, device, dense, tokens);
  return {};
}

// The experts' kernels of a GPU that is not here, by the fit of their times.
Status run_estimate(const PlanOptions& o) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_model(o.model));
  ASSIGN_OR_RETURN(const MoePath path, moe_path(o.model.moe_path));
  const bool w4a8 = is_w4a8(path), fp8 = path == MoePath::kFp8, h200 = o.device_model == kH200;
  const DeviceModel& sm120 = *find_device_model(kW4A8Device);
  const Ceiling ceiling = h200 ? Ceiling{kH200BytesPerSecond, (fp8 ? 2 : 1) * kH200FlopsPerSecond}
                               : Ceiling{sm120.bytes_per_second, sm120.fp8_flops};
  const bool slabs =
      is_mxfp4(checkpoint.weights.layers[0].gate.first.format) && slabs_take(shape_of(checkpoint, 1));
  if (fp8 && !slabs) return usage(invalid("--moe-path fp8: only for experts of gpt-oss's sizes in MXFP4"));
  const auto configs = w4a8 ? w4a8_configs(mxfp8_parts(path), h200) : sm90_configs(slabs, fp8);
  fmt::print("{} on an NVIDIA {} as its data sheet has it; nothing was measured\n\n",
             chat::printable_line(o.model.model), h200 ? "H200" : sm120.label);
  for (const int tokens : o.tokens)
    RETURN_IF_ERROR(print_configs(shape_of(checkpoint, tokens), configs, ceiling));
  return {};
}

// The table describes a GPU that is not here.
Status run_unmeasured(const PlanOptions& o) {
  if (o.model.tp < 1)
    return usage(invalid("--tp: auto and numa look at the devices that are here; give a number"));
  if (o.model.tp > 1) {
    if (o.model.dense != "keep")
      return usage(
          invalid("--dense {}: ranks are projected with weights as the file has them", o.model.dense));
    if (o.device_model != kH200)
      return usage(invalid("--tp {}: ranks are projected with --device-model {} alone", o.model.tp, kH200));
    ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_model(o.model));
    return print_ranks(checkpoint, o.model.tp, true);
  }
  ASSIGN_OR_RETURN(const MoePath path, moe_path(o.model.moe_path));
  if (path == MoePath::kFp8 && o.device_model != kH200)
    return usage(invalid("--moe-path fp8: of these GPUs Hopper alone has it; use --device-model {}", kH200));
  const bool fitted = o.device_model == kH200 || (o.device_model == kW4A8Device && is_w4a8(path));
  return fitted ? run_estimate(o) : run_projection(o);
}

// Prints what was found of the device, if it tells, and the huge pages that the kernel granted to a host.
void print_machine(const LoadedModel& m) {
  const std::vector<std::string> lines = m.backend->describe();
  for (const std::string& line : lines) fmt::print("{}\n", line);
  if (m.backend->device().backend == "cpu") fmt::print("huge pages    {}\n", describe(read_huge_pages()));
  if (!lines.empty()) fmt::print("\n");
}

// Projects decoding with experts in host memory, from what both can read: nobody waits for anybody else.
void print_placement(const LoadedModel& m, const Ceiling& ceiling) {
  HostPlacement* const placement = m.backend->host_placement();
  if (placement == nullptr || placement->host_layers() == 0) return;
  constexpr double kHandOver = 10e-6;  // s, there and back
  const ModelConfig& c = m.checkpoint.config;
  const ModelWeights& w = m.checkpoint.weights;
  const double host_bytes = placement->host_layers() * host_expert_bytes(w.layers.back()) *
                            c.experts_per_token / c.experts,
               dense_bytes = decode_bytes(c, w).dense,
               gpu_bytes = bytes_per_token(w, c) - host_bytes - dense_bytes +
                           bytes_made_of(dense_bytes, w.layers[0].q.format, m.choice.options.dense),
               host_speed = placement->host_read_bandwidth() * 1e9;
  const double host = host_bytes / host_speed + placement->host_layers() * kHandOver,
               gpu = gpu_bytes / ceiling.bytes_per_second;
  fmt::print("{}, by {}: {:.1f} GB/s measured\n", placement_words(c, w, *m.backend), placement->host_name(),
             host_speed / 1e9);
  fmt::print(
      "projection of decoding, one request: a token reads {:.2f} GB there, {:.2f} ms, and {:.2f} GB on the "
      "GPU, "
      "{:.2f} ms: at best {:.1f} tok/s\n\n",
      host_bytes / 1e9, host * 1e3, gpu_bytes / 1e9, gpu * 1e3, 1 / (host + gpu));
}

Status run_plan(const PlanOptions& o) {
  if (!o.device_model.empty()) return run_unmeasured(o);
  const int most = *std::max_element(o.tokens.begin(), o.tokens.end());
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, most));
  ASSIGN_OR_RETURN(Profiler* const profiler, profiler_of(*m.backend));
  RETURN_IF_ERROR(check_context(most, m.checkpoint.config, "--tokens"));
  RETURN_IF_ERROR(load(m, {.context = most, .max_rows = most}));
  const bool by_data_sheet = m.caps.peak_flops > 0;
  measure_ceilings(m);
  const Ceiling ceiling{.bytes_per_second = m.ceiling_gb_s * 1e9, .flops_per_second = m.caps.peak_flops};
  ASSIGN_OR_RETURN(RandomBatch random, RandomBatch::create(*m.backend, m.checkpoint.config,
                                                           {.max_tokens = most, .max_rows = most}));
  print_machine(m);
  if (const int ranks = m.choice.options.tp; ranks > 1)
    RETURN_IF_ERROR(print_ranks(m.checkpoint, ranks, false));
  fmt::print("{} on {}: {:.0f} GB/s measured", chat::printable_line(o.model.model), m.caps.name,
             ceiling.bytes_per_second / 1e9);
  if (ceiling.flops_per_second > 0)
    fmt::print(", {}{}", rate_words(ceiling.flops_per_second), by_data_sheet ? " by the data sheet" : "");
  fmt::print("\n\n");
  print_placement(m, ceiling);
  Tuner* const tuner = m.backend->tuner();
  const bool configs = tuner != nullptr && !tuner->moe_configs().empty();
  for (const int tokens : o.tokens) {
    print_choices(*profiler, tokens);
    RETURN_IF_ERROR(print_ops(m, *profiler, random, tokens, ceiling));
    if (configs)
      RETURN_IF_ERROR(print_configs(shape_of(m.checkpoint, tokens), tuner->moe_configs(),
                                    ceiling_of("moe", ceiling.bytes_per_second, m.caps), tuner));
  }
  return {};
}

}  // namespace

Run add_plan(CLI::App& app) {
  auto o = std::make_shared<PlanOptions>();
  CLI::App& c = *app.add_subcommand(
      "plan",
      "Show which kernels a step uses and what the others would cost: measured on the device that runs them, "
      "or estimated with --device-model");
  o->model.add_to(c);
  c.add_option("--tokens", o->tokens, "tokens of each step")->delimiter(',')->check(in_range(1, 1 << 16));
  std::vector<std::string> names = {kH200};
  for (const DeviceModel& d : device_models()) names.emplace_back(d.name);
  c.add_option("--device-model", o->device_model,
               "for a GPU that is not here, from its data sheet: the times of the experts' kernels (h200; "
               "rtx-pro-6000 with --moe-path w4a8), or a projection of decoding, which is of w4a8 without "
               "that option (gb10, "
               "rtx-pro-6000, rtx-5090)")
      ->check(one_of(names));
  c.footer(
      "Examples:\n"
      "  moesaic plan -m openai/gpt-oss-20b --tokens 1,16,2048\n"
      "  moesaic plan -m dummy:gpt-oss-120b --device-model h200 --tokens 1,16,4096\n"
      "  moesaic plan -m dummy:gpt-oss-120b --device-model h200 --tp 4");
  return [o, &c] {
    if (!o->device_model.empty() && o->model.tp != 1 && c.count("--tokens") > 0 &&
        o->tokens != std::vector{1})
      return usage(invalid("--tokens: ranks are projected for one token"));
    if (!o->device_model.empty() && o->device_model != kH200 && c.count("--tokens") == 0) o->tokens = {1, 8};
    return run_plan(*o);
  };
}

}  // namespace moesaic::app

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/memory.h"
#include "chat/terminal_text.h"
#include "commands.h"
#include "engine/expert_placement.h"
#include "model_options.h"
#include "option_checks.h"
#include "print_json.h"

namespace moesaic::app {
namespace {

struct InspectOptions {
  ModelOptions model;
  bool tensors = false;
  std::string format = "md";
};

void print_text(const Checkpoint& k, const InspectOptions& o, const Backend& backend) {
  const ModelConfig& c = k.config;
  const StoredBytes stored = stored_bytes(k.weights);
  const double weights = stored.sum(), kv_token = backend.kv_token_bytes(c);
  int full = 0;
  for (const bool sliding : c.sliding) full += sliding ? 0 : 1;
  fmt::print("{} ({})\n\n", chat::printable_line(o.model.model), k.kind);
  if (!k.path.empty()) fmt::print("path              {}\n", chat::printable_line(k.path));
  fmt::print("layers            {} ({} sliding over {} tokens, {} full)\n", c.layers, c.layers - full,
             c.window, full);
  fmt::print("hidden            {}, experts {} of {} active, intermediate {}\n", c.hidden,
             c.experts_per_token, c.experts, c.intermediate);
  fmt::print("heads             {} query, {} KV, dim {}\n", c.heads, c.kv_heads, c.head_dim);
  fmt::print("vocabulary        {}\n", c.vocab);
  fmt::print("context           {} tokens (RoPE theta {:g}, YaRN factor {:g})\n", c.max_context, c.rope.theta,
             c.rope.factor);
  const LayerWeights& w = k.weights.layers[0];
  fmt::print("formats           experts {}, projections {}, lm_head {}, embedding {}\n",
             format_name(w.gate.first.format), format_name(w.q.format), format_name(k.weights.head.format),
             format_name(k.weights.embed.format));
  for (const std::string& line : k.conversions) fmt::print("conversion        {}\n", chat::printable(line));
  fmt::print("weights           {:.2f} GB; {:.3f} GB read for each decoded token\n", weights / 1e9,
             bytes_per_token(k.weights, c) / 1e9);
  fmt::print("KV cache          {:.1f} KB a token ({} full layers), {:.2f} GB at full context\n",
             full * kv_token / 1e3, full, full * kv_token * c.max_context / 1e9);
  const double memory = total_host_memory(), room = memory - weights;
  const bool reads_experts = may_hold_part((stored.experts + room) / stored.experts, c, k.weights);
  fmt::print("this machine      {:.1f} GB of memory: {}\n", memory / 1e9,
             room > 0 ? fmt::format("the weights fit, {:.1f} GB are left for the KV cache", room / 1e9)
                      : fmt::format("{:.1f} GB too little memory for the weights{}", -room / 1e9,
                                    reads_experts
                                        ? "; experts that have no room are read from the file, which is slow"
                                        : ""));
  const std::string code = gpu_code();
  fmt::print("GPU code          {}\n", code.empty() ? "none" : code);
  for (const std::string& device : list_backends()) fmt::print("device            {}\n", device);
  if (!o.tensors) return;
  fmt::print("\n");
  for (const TensorInfo& t : k.tensors)
    fmt::print("{:<60} {:<6} {:<28} {:>14}\n", chat::printable_line(t.name), t.dtype,
               nlohmann::json(t.shape).dump(), t.bytes);
}

void print_checkpoint_json(const Checkpoint& k, const InspectOptions& o, const Backend& backend) {
  const ModelConfig& c = k.config;
  nlohmann::ordered_json tensors = nlohmann::ordered_json::array();
  for (const TensorInfo& t : k.tensors)
    tensors.push_back({{"name", t.name}, {"dtype", t.dtype}, {"shape", t.shape}, {"bytes", t.bytes}});
  const auto whole = [](double bytes) { return std::llround(bytes); };
  const nlohmann::ordered_json json = {{"model", o.model.model},
                                       {"path", k.path},
                                       {"kind", k.kind},
                                       {"layers", c.layers},
                                       {"hidden", c.hidden},
                                       {"intermediate", c.intermediate},
                                       {"heads", c.heads},
                                       {"kv_heads", c.kv_heads},
                                       {"head_dim", c.head_dim},
                                       {"experts", c.experts},
                                       {"experts_per_token", c.experts_per_token},
                                       {"vocab", c.vocab},
                                       {"window", c.window},
                                       {"max_context", c.max_context},
                                       {"weight_bytes", whole(stored_bytes(k.weights).sum())},
                                       {"bytes_per_token", whole(bytes_per_token(k.weights, c))},
                                       {"kv_bytes_per_token_and_layer", whole(backend.kv_token_bytes(c))},
                                       {"memory_bytes", whole(total_host_memory())},
                                       {"gpu_code", gpu_code()},
                                       {"conversions", k.conversions},
                                       {"tensors", tensors}};
  print_json(json, 2);
}

Status run_inspect(const InspectOptions& o) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_model(o.model));
  ASSIGN_OR_RETURN(const auto backend, make_backend(o.model, 1));
  o.format == "json" ? print_checkpoint_json(checkpoint, o, *backend) : print_text(checkpoint, o, *backend);
  return {};
}

}  // namespace

Run add_inspect(CLI::App& app) {
  auto o = std::make_shared<InspectOptions>();
  CLI::App& c =
      *app.add_subcommand("inspect", "Show a model's sizes, formats, bytes per token and whether it fits");
  c.add_option("model,-m,--model", o->model.model, "the model")->required();
  c.add_flag("--tensors", o->tensors, "list every tensor");
  c.add_option("-o,--output", o->format, "md or json")->check(one_of({"md", "json"}));
  c.footer(
      "Examples:\n"
      "  moesaic inspect openai/gpt-oss-20b\n"
      "  moesaic inspect gpt-oss-120b.gguf --tensors");
  return [o] { return run_inspect(*o); };
}

}  // namespace moesaic::app

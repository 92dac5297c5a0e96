// Finds where a writer's output has fewer digits than its source.
#include <algorithm>

#include "base/error.h"
#include "checkpoint/chat_files.h"
#include "checkpoint/writer.h"

namespace moesaic {
namespace {

using Matrices = std::vector<const MatrixView*>;

void add_unless_exact(std::vector<std::string>& lines, const char* what, const Matrices& matrices) {
  for (const MatrixView* const m : matrices) {
    if (info_of(m->format).fits_bf16) continue;
    lines.push_back(fmt::format("{} in {} are rounded to BF16", what, format_name(m->format)));
    return;
  }
}

}  // namespace

std::vector<std::string> roundings(const Checkpoint& source, const WriteOptions& options, bool gguf) {
  const ModelWeights& weights = source.weights;
  Matrices dense = {&weights.embed, &weights.head}, experts, rest = {&weights.final_norm};
  for (const LayerWeights& w : weights.layers) {
    dense.insert(dense.end(), {&w.q, &w.k, &w.v, &w.o});
    experts.insert(experts.end(), {&w.gate.first, &w.up.first, &w.down.first});
    rest.insert(rest.end(), {&w.attn_norm, &w.mlp_norm, &w.router, &w.router_bias, &w.q_bias, &w.k_bias,
                             &w.v_bias, &w.o_bias, &w.sinks, &w.gate_bias, &w.up_bias, &w.down_bias});
  }
  std::vector<std::string> lines;
  std::ranges::copy_if(source.conversions, std::back_inserter(lines),
                       [](const std::string& line) { return line.find("rounded") != std::string::npos; });
  if (gguf) return lines;  // which has all formats of dense matrices, and the rest in F32
  // F16 and F32 stay as they are unless a format of the dense matrices is asked for.
  const auto stays = [](const MatrixView* m) { return is_plain(m->format); };
  if (!options.dense) {
    std::erase_if(dense, stays), std::erase_if(rest, stays);
    add_unless_exact(lines, "dense matrices", dense);
  }
  add_unless_exact(lines, "norms, biases or routers", rest);
  if (options.experts == ExpertsOut::kKeep && !all_mxfp4(weights))
    add_unless_exact(lines, "experts", experts);
  return lines;
}

std::optional<Format> own_format(const Checkpoint& source, const WriteOptions& options) {
  const auto own = [](Format format) { return info_of(format).only_ours(); };
  if (options.dense) return own(*options.dense) ? options.dense : std::nullopt;
  const ModelWeights& w = source.weights;
  std::vector<Format> dense = {w.embed.format, w.head.format};
  for (const LayerWeights& l : w.layers)
    dense.insert(dense.end(), {l.q.format, l.k.format, l.v.format, l.o.format});
  const auto found = std::ranges::find_if(dense, own);
  return found == dense.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> remarks(const Checkpoint& source, const WriteOptions& options, bool gguf) {
  std::vector<std::string> lines;
  if (const auto own = gguf ? std::nullopt : own_format(source, options))
    lines.push_back(
        fmt::format("dense matrices in {}: no other program reads this folder", format_name(*own)));
  const TokenizerSource& t = source.tokenizer;
  if (!t.any())
    lines.emplace_back("the source has no tokenizer, so the result has none");
  else if (const auto own = own_chat_template(t); own.ok() && own->empty())
    lines.emplace_back("the source has no chat template: gpt-oss's own goes into the result");
  return lines;
}

}  // namespace moesaic

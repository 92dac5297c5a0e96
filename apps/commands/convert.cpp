#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/nearest.h"
#include "chat/terminal.h"
#include "checkpoint/gguf_names.h"
#include "checkpoint/writer.h"
#include "commands.h"
#include "interrupt.h"
#include "model_options.h"
#include "option_checks.h"
#include "progress.h"

namespace moesaic::app {
namespace {

struct ConvertOptions {
  ModelOptions source;
  std::string target, experts = "keep", dense = "keep";
  bool force = false;
};

void print_notes(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) chat::notice("convert: note: " + line);
}

// A target that is none, or a folder by the name of a file, is a slip.
Status check_target(const std::string& target) {
  const std::string small = lower_case(target);
  const bool file = small.ends_with(".gguf") || small.ends_with(".safetensors");
  if (target.empty() || target == "-" || (file && !target.ends_with(".gguf")))
    return error(StatusCode::kUsage, "convert: '{}' is no target; give a name ending in .gguf, or a folder",
                 target);
  return {};
}

// Writing in place would leave nothing to go back to.
Status check_apart(const Checkpoint& source, const std::string& target) {
  std::error_code ignored;
  for (const std::string& part : gguf_parts(source.path)) {
    if (std::filesystem::equivalent(part, target, ignored))
      return invalid("convert: {} is the source itself; choose another target", target);
  }
  return {};
}

Status run_convert(const ConvertOptions& o) {
  RETURN_IF_ERROR(check_target(o.target));
  ASSIGN_OR_RETURN(const Checkpoint source, open_model(o.source));
  if (source.kind == "dummy") return invalid("convert: a dummy model has no weights worth keeping");
  RETURN_IF_ERROR(check_apart(source, o.target));
  ASSIGN_OR_RETURN(const std::optional<Format> dense, dense_format(o.dense));
  WriteOptions options{.experts = o.experts == "mxfp4" ? ExpertsOut::kMxfp4 : ExpertsOut::kKeep,
                       .dense = dense,
                       .overwrite = o.force};
  const bool gguf = o.target.ends_with(".gguf");
  print_notes(roundings(source, options, gguf));
  ProgressLine line;
  options.progress = [&line](int done, int total) {
    line.show(fmt::format("writing: {} of {} tensors", done, total));
  };
  const RemoveOnSignal unfinished(gguf ? unfinished_gguf(o.target) : unfinished_safetensors(o.target));
  RETURN_IF_ERROR(gguf ? write_gguf(source, o.target, options)
                       : write_safetensors(source, o.target, options));
  line.clear();
  print_notes(remarks(source, options, gguf));
  return {};
}

}  // namespace

Run add_convert(CLI::App& app) {
  auto o = std::make_shared<ConvertOptions>();
  CLI::App& c = *app.add_subcommand("convert", "Convert between safetensors folders and GGUF, and quantise");
  c.add_option("source", o->source.model, "folder or .gguf file")->required();
  c.add_option("target", o->target, "a name ending in .gguf, or a folder for safetensors")->required();
  c.add_option("--experts", o->experts, "keep, or mxfp4 to quantise what is not MXFP4")
      ->check(one_of({"keep", "mxfp4"}));
  add_dense(c, o->dense, "keep, bf16, q8_0 (GGUF only) or mxfp8 (safetensors only)",
            {"keep", "bf16", "q8_0", "mxfp8"});
  c.add_flag("--force", o->force, "replace what is there");
  c.footer(
      "Examples:\n"
      "  moesaic convert openai/gpt-oss-20b gpt-oss-20b.gguf\n"
      "  moesaic convert my-bf16-model my-model.gguf --experts mxfp4 --dense q8_0");
  return [o] { return run_convert(*o); };
}

}  // namespace moesaic::app

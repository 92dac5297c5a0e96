#include "model_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "api/bundled_model.h"
#include "api/choose_ranks.h"
#include "api/model_parts.h"
#include "backend/profiling.h"
#include "base/error.h"
#include "base/log.h"
#include "base/open_error.h"
#include "base/seconds.h"
#include "chat/terminal.h"
#include "checkpoint/lora.h"
#include "drafting/make_drafter.h"
#include "engine/expert_placement.h"
#include "get_model.h"
#include "option_checks.h"
#include "progress.h"

namespace moesaic::app {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostText = size_t{256} << 20;
constexpr std::string_view kGpuMemory = "--gpu-memory";
constexpr std::string_view kStdin = "standard input";

Status unread(std::string_view name) {
  return error(StatusCode::kIo, "{}: cannot read it: {}", name, std::strerror(errno != 0 ? errno : EIO));
}

Status too_long(std::string_view name) { return invalid("{}: more than {} MB", name, kMostText >> 20); }

}  // namespace

Status usage(const Status& status) {
  return status.ok() ? status : Status(StatusCode::kUsage, status.message());
}

std::vector<std::string> dense_names() {
  std::vector<std::string> names = {"keep"};
  for (const FormatInfo& format : formats()) {
    if (!format.option.empty()) names.emplace_back(format.option);
  }
  return names;
}

Result<int> rank_count(const std::string& text) {
  if (text == "auto") return kAutoRanks;
  if (text == "numa") return kRankPerNode;
  if (const auto ranks = number_of<int>(text); ranks && *ranks >= 1 && *ranks <= kMostRanks) return *ranks;
  return invalid("'{}' is not a whole number from 1 to {}, auto or numa", text, kMostRanks);
}

std::string speculative_error(const std::string& value) { return drafter_choice(value).status().message(); }

CLI::Option* add_dense(CLI::App& command, std::string& value, const std::string& help,
                       const std::vector<std::string>& formats) {
  return command.add_option("--dense", value, help)->check(one_of(formats));
}

void ModelOptions::add_to(CLI::App& command, const char* names) {
  command
      .add_option(names, model,
                  "folder, GGUF file, name in moesaic list, tiny, dummy:gpt-oss-20b; or -hf "
                  "OWNER/NAME[:QUANTISATION], from Hugging Face")
      ->required()
      ->group(kModelOptions);
  add_device_options(command, *this);
  command
      .add_flag("--portable", portable,
                "cuda: use the portable kernels for attention and dense products; slower on Hopper")
      ->group(kRareOptions);
  command
      .add_flag("!--no-wgmma", wgmma,
                "cuda: leave out Hopper's kernels for many rows, as on compute capability 10.x; slower")
      ->group(kRareOptions);
  command
      .add_flag("!--no-early-launch", early_launch,
                "cuda: kernels start only when those before them have ended (also MOESAIC_PDL=0); slower")
      ->group(kRareOptions);
  command
      .add_option("--step-limit", step_limit,
                  "cuda: seconds after which a step that the GPU has not ended fails; 0: never")
      ->check(in_range(0.0, 1e6))
      ->group(kRareOptions);
  command.add_option("--log", log, "debug: print each kernel's name when it is first launched")
      ->check(one_of({"quiet", "debug"}))
      ->group(kRareOptions);
  command
      .add_option(
          "--isa", isa,
          "instruction set of the cpu device: auto, amx, avx512, avx512vnni, avx512bw, avxvnni, avx2, "
          "bf16, i8mm, dotprod, scalar; amx_emulated (slow, for tests)")
      ->group(kRareOptions);
}

void leave_out_gpu_options(CLI::App& command) {
  const CLI::Option* device = command.get_option_no_throw("--device");
  const CLI::Option* other = command.get_option_no_throw("--device-model");
  if (device == nullptr || (other != nullptr && other->count() > 0)) return;
  const std::string kind = device->count() > 0 ? device->as<std::string>() : "auto";
  const std::string absent = kind == "auto" ? no_gpu_reason() : "";
  if (kind != "cpu" && kind != "reference" && absent.empty()) return;
  std::vector<std::string> names;
  for (CLI::Option* option : command.get_options()) {
    if (option->count() == 0 || !option->get_description().starts_with("cuda:")) continue;
    names.push_back(option->get_name());
    if (names.back() != kGpuMemory) continue;
    option->clear();
    option->add_result("0");
    option->run_callback();
  }
  if (names.empty()) return;
  chat::notice(fmt::format("moesaic: note: {}: without effect on device {}{}", fmt::join(names, ", "),
                           kind == "auto" ? "cpu" : kind,
                           absent.empty() ? "" : "; no GPU is usable: " + absent));
}

Result<std::string> model_path(const std::string& model) {
  if (model.empty()) return usage(invalid("--model: the name is empty"));
  if (model.starts_with(kHubScheme)) return get_if_absent(model.substr(kHubScheme.size()));
  return moesaic::model_path(model);
}

Result<Checkpoint> open_model(const ModelOptions& options) {
  for (const std::string& adapter : options.lora) {
    if (const auto choice = lora_choice(adapter); !choice.ok()) return usage(choice.status());
  }
  ASSIGN_OR_RETURN(const std::string path, model_path(options.model));
  ASSIGN_OR_RETURN(Checkpoint checkpoint, open_checkpoint(path));
  RETURN_IF_ERROR(apply_lora(options.lora, checkpoint.config, checkpoint.weights));
  return checkpoint;
}

void report_unused_adapter(const std::string& model, const std::vector<std::string>& lora) {
  const Result<std::string> path = model_path(model);
  if (!path.ok()) return;
  if (const std::string line = unused_adapter(path.value(), lora); !line.empty())
    chat::notice("moesaic: note: " + line);
}

Result<DeviceChoice> device_choice(const ModelOptions& options, int max_rows, int least_rows) {
  ASSIGN_OR_RETURN(const std::optional<Format> dense, dense_format(options.dense));
  ASSIGN_OR_RETURN(const KvFormat kv, kv_format(options.kv_dtype));
  ASSIGN_OR_RETURN(const MoePath path, moe_path(options.moe_path));
  ASSIGN_OR_RETURN(const ExpertPlacement experts, expert_placement(options.experts, options.gpu_memory));
  return DeviceChoice{.device = options.device,
                      .options = {.tp = options.tp,
                                  .threads = options.threads,
                                  .cpu_pin = options.cpu_pin != "off",
                                  .dense = dense,
                                  .moe_path = path,
                                  .portable = options.portable,
                                  .wgmma = options.wgmma,
                                  .kv = kv,
                                  .max_rows = max_rows,
                                  .least_rows = least_rows,
                                  .isa = options.isa,
                                  .batch_invariant = options.batch_invariant,
                                  .tuning_folder = options.tuning_folder,
                                  .tune = options.tune,
                                  .step_limit = options.step_limit,
                                  .early_launch = options.early_launch,
                                  .experts = experts,
                                  .gpu_memory = options.gpu_memory * kGib,
                                  .cpu_prefetch = options.cpu_prefetch}};
}

namespace {

Result<std::unique_ptr<Backend>> make_backend(const ModelOptions& options, const DeviceChoice& choice) {
  set_debug(options.log == "debug");
  auto backend = create_backend(choice.device, choice.options);
  if (backend.status().code() == StatusCode::kInvalidArgument) return usage(backend.status());
  return backend;
}

}  // namespace

Result<std::unique_ptr<Backend>> make_backend(const ModelOptions& options, int max_rows, int least_rows) {
  if (options.tp < 1) return usage(invalid("--tp auto and numa choose for a model; give a number"));
  ASSIGN_OR_RETURN(const DeviceChoice choice, device_choice(options, max_rows, least_rows));
  return make_backend(options, choice);
}

Result<LoadedModel> prepare_model(const ModelOptions& options, int max_rows, int least_rows) {
  LoadedModel model;
  ASSIGN_OR_RETURN(model.choice, device_choice(options, max_rows, least_rows));
  // Before the model is looked for: a wrong --device is an error whether or not that exists.
  if (options.tp > 0) {
    ASSIGN_OR_RETURN(model.backend, make_backend(options, model.choice));
  }
  const auto start = std::chrono::steady_clock::now();
  ASSIGN_OR_RETURN(model.checkpoint, open_model(options));
  report_unused_adapter(options.model, options.lora);
  if (model.backend == nullptr) {
    RETURN_IF_ERROR(usage(settle_ranks(model.checkpoint, options.context, options.one_rank, model.choice)));
    ASSIGN_OR_RETURN(model.backend, make_backend(options, model.choice));
    if (!model.choice.ranks.empty()) chat::notice("moesaic: note: " + model.choice.ranks);
  }
  model.load_seconds = seconds_since(start);
  return model;
}

Status load(LoadedModel& model, const KvDemand& cache) {
  const auto start = std::chrono::steady_clock::now();
  ProgressLine line;
  const auto progress = [&line](int done, int total) {
    line.show(loading_text(done, total));
    return true;
  };
  RETURN_IF_ERROR(load_weights(model.checkpoint, cache, *model.backend, progress));
  model.load_seconds += seconds_since(start);
  model.caps = model.backend->caps();
  line.clear();
  const Checkpoint& k = model.checkpoint;
  if (const std::string placed = placement_words(k.config, k.weights, *model.backend); !placed.empty())
    chat::notice("moesaic: note: " + placed);
  if (!model.caps.measured.empty()) chat::notice("moesaic: note: " + model.caps.measured);
  return {};
}

void measure_ceilings(LoadedModel& model) {
  model.ceiling_gb_s = read_bandwidth(*model.backend);
  measure_rate(model);
}

void measure_rate(LoadedModel& model) {
  Profiler* const profiler = model.backend->profiler();
  if (profiler == nullptr || model.backend->caps().peak_flops > 0) return;
  BackendCaps& caps = model.caps;
  caps.peak_flops = caps.experts_flops = std::max(caps.peak_flops, profiler->multiply_rate());
}

Result<Profiler*> profiler_of(Backend& backend) {
  if (Profiler* const profiler = backend.profiler()) return profiler;
  return error(StatusCode::kUnsupported, "{} does not time its operations; use --device cpu or cuda",
               backend.caps().name);
}

std::string loading_text(int64_t done, int64_t total) {
  return fmt::format("loading {:3}%", total > 0 ? 100 * done / total : 0);
}

Status check_context(int64_t tokens, const ModelConfig& config, const char* option) {
  if (tokens <= config.max_context) return {};
  return usage(invalid("{}: {} tokens, the model's context is {}", option, tokens, config.max_context));
}

Result<std::string> read_text(std::istream& in, const std::string& name) {
  std::string text, part(size_t{1} << 20, 0);
  errno = 0;
  while (in.read(part.data(), std::ssize(part)) || in.gcount() > 0) {
    text.append(part, 0, static_cast<size_t>(in.gcount()));
    if (text.size() > kMostText) return too_long(name);
  }
  // Standard input is read through stdio, which alone tells an error from the end.
  if (in.bad() || (&in == &std::cin && std::ferror(stdin) != 0)) return unread(name);
  drop_byte_order_mark(text);
  return text;
}

Result<std::string> read_text_file(const std::string& path) {
  std::error_code code;
  if (fs::is_directory(path, code)) return invalid("{}: a folder, not a file", path);
  std::ifstream in(path, std::ios::binary);
  if (!in) return open_error(path);
  return read_text(in, path);
}

std::string input_name(const std::string& path) { return path == "-" ? std::string(kStdin) : path; }

Result<std::string> read_text_or_stdin(const std::string& path) {
  return path == "-" ? read_text(std::cin, input_name(path)) : read_text_file(path);
}

Result<std::optional<std::string>> read_line() {
  std::string line;
  errno = 0;
  int c = getc_unlocked(stdin);
  const bool ended = c == EOF;
  for (; c != EOF && c != '\n'; c = getc_unlocked(stdin)) {
    if (line.size() == kMostText) return too_long(kStdin);
    line += static_cast<char>(c);
  }
  if (std::ferror(stdin) != 0) return unread(kStdin);
  return ended ? std::nullopt : std::optional(line);
}

void drop_byte_order_mark(std::string& text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
}

namespace {

Status missing_id(const std::vector<int32_t>& read) {
  return invalid("token ids: one is missing at a comma, behind {} of them", read.size());
}

}  // namespace

// A comma may follow the last one.
Result<std::vector<int32_t>> parse_tokens(const std::string& text) {
  std::string list = text;
  if (text.starts_with('@')) {
    ASSIGN_OR_RETURN(list, read_text_or_stdin(text.substr(1)));
  }
  std::vector<int32_t> tokens;
  const char* p = list.data();
  const char* const end = p + list.size();
  int commas = 0;  // since the last id
  const auto skip = [&] {
    for (commas = 0; p != end && std::string_view(", \n\r\t[]").find(*p) != std::string_view::npos; ++p)
      commas += *p == ',' ? 1 : 0;
  };
  for (skip(); p != end; skip()) {
    if (commas > (tokens.empty() ? 0 : 1)) return usage(missing_id(tokens));
    int32_t id = 0;
    const auto [next, code] = std::from_chars(p, end, id);
    if (code != std::errc())
      return usage(invalid("token ids: cannot read '{}'; expected numbers with commas between",
                           std::string(p, std::min(end, p + 20))));
    if (id < 0) return usage(invalid("token id {} is negative", id));
    tokens.push_back(id);
    p = next;
  }
  if (tokens.empty()) return usage(invalid("no token ids given"));
  if (commas > 1) return usage(missing_id(tokens));
  return tokens;
}

Status check_tokens(const std::vector<int32_t>& tokens, int vocab) {
  for (const int32_t id : tokens) {
    if (id >= vocab) return usage(invalid("token id {} is outside the vocabulary of {}", id, vocab));
  }
  return {};
}

}  // namespace moesaic::app

// Options of every command that runs a model, and loading it accordingly.
#pragma once

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>

#include "api/model_parts.h"
#include "backend/backend.h"
#include "base/file_cache.h"
#include "checkpoint/checkpoint.h"
#include "engine/kv_layout.h"
#include "engine/kv_store.h"
#include "help.h"
#include "option_checks.h"

namespace moesaic::app {

inline constexpr const char *kModelOptions = "Model", *kDeviceOptions = "Device and speed";

struct ModelOptions {
  std::string model, device = "auto", cpu_pin = "auto", cpu_prefetch = "auto", isa = "auto", dense = "keep",
                     kv_dtype = "auto", log = "quiet", moe_path = "auto", experts;
  double gpu_memory = 0;
  std::string tuning_folder = cache_folder();
  std::vector<std::string> lora;
  int threads = 0, tp = 1;
  bool batch_invariant = false, portable = false, wgmma = true, tune = true, early_launch = true;
  // For --tp auto: the tokens of context that the command will ask for, or 0, and why it needs one rank.
  int context = 0;
  std::string one_rank;
  double step_limit = BackendOptions().step_limit;

  // Adds the model by these names, --device, --threads, --isa, --dense and what else chooses how it runs.
  void add_to(CLI::App& command, const char* names = "MODEL,-m,--model");
};

// keep, and the formats that dense matrices can be made in.
std::vector<std::string> dense_names();
// --dense, by the names of dense_format().
CLI::Option* add_dense(CLI::App& command, std::string& value, const std::string& help,
                       const std::vector<std::string>& formats = dense_names());
// --experts and --gpu-memory, of the same, and llama.cpp's names.
template <class Options>
void add_placement_options(CLI::App& c, Options& o) {
  c.add_option(
       "--gpu-memory", o.gpu_memory,
       "cuda: GiB that the model may take; 0: all that is free. The CPU computes experts that have no room")
      ->check(in_range(0.0, 1e6))
      ->group(kDeviceOptions);
  c.add_option(
       "--experts", o.experts,
       "cuda: layers whose experts the CPU computes: gpu (none; the default), host:LAYERS, host (all) or "
       "auto (those that do not fit; the default with --gpu-memory). Behind it ,stream:ROWS, the fewest "
       "tokens of a step that bring them to the GPU (without: as measured), or ,stream:never; and ,hot:N, "
       "the most chosen experts of those layers that are on the GPU as well")
      ->check([](const std::string& name) { return expert_placement(name, 0).status().message(); })
      ->default_str("gpu")
      ->group(kRareOptions);
  c.add_option_function<int>(
       "--n-cpu-moe", [&o](int layers) { o.experts = fmt::format("host:{}", layers); },
       "cuda: llama.cpp's name of --experts host:LAYERS; also -ncmoe")
      ->check(in_range(0, 1 << 20))
      ->excludes("--experts")
      ->group(kRareOptions);
  c.add_flag_callback(
       "--cpu-moe", [&o] { o.experts = "host"; }, "cuda: llama.cpp's name of --experts host; also -cmoe")
      ->excludes("--experts")
      ->excludes("--n-cpu-moe")
      ->group(kRareOptions);
}

// Says on standard error which of a parsed command's options have no effect, since no GPU runs the model:
// those whose help begins with "cuda:". Takes --gpu-memory back, which a backend without a GPU refuses.
void leave_out_gpu_options(CLI::App& command);

// Reads a number from 1 to 8, auto or numa, for OpenOptions::tp.
Result<int> rank_count(const std::string& text);

// --device, --threads, --tp, --cpu-pin, --lora, --cpu-prefetch, --dense, --kv-dtype, --batch-invariant and
// --no-tune, of ModelOptions or OpenOptions.
template <class Options>
void add_device_options(CLI::App& c, Options& o) {
  c.add_option("--device", o.device, "auto, cpu, cuda[:i] or reference")->group(kDeviceOptions);
  c.add_option("-t,--threads", o.threads,
               "threads that compute on the CPU; 0: one per physical core, within affinity and cgroup quota")
      ->transform(minus_one_is_zero())
      ->check(in_range(0, 1024))
      ->group(kDeviceOptions);
  c.add_option_function<std::string>(
       "--tp", [&o](const std::string& text) { o.tp = rank_count(text).value(); },
       "ranks that compute the model together, on cuda a GPU each: 1 to 8, auto or numa")
      ->check([](const std::string& text) { return rank_count(text).status().message(); })
      ->default_str("1")
      ->group(kDeviceOptions);
  add_placement_options(c, o);
  c.add_option("--cpu-pin", o.cpu_pin,
               "auto: with several NUMA nodes, bind each thread of the cpu device to one node's CPUs")
      ->check(one_of({"auto", "off"}))
      ->group(kRareOptions);
  c.add_option(
       "--lora", o.lora,
       "LoRA adapter, as peft saves it, to apply to the model: FOLDER[:SCALE]; may be given several times")
      ->allow_extra_args(false)
      ->group(kModelOptions);
  add_dense(c, o.dense, "format of attention projections and lm_head in memory")->group(kModelOptions);
  c.add_option(
       "--cpu-prefetch", o.cpu_prefetch,
       "cpu: prefetch of weights; auto: measured when a model is loaded; none; or a hint (t0, t1, nta) and "
       "a distance in bytes: t0:1024")
      ->group(kRareOptions);
  c.add_option("--kv-dtype", o.kv_dtype,
               "format of K and V in the cache; auto: the device's own, on cuda bf16")
      ->check(one_of({"auto", "bf16", "fp8"}))
      ->group(kModelOptions);
  c.add_option(
       "--moe-path", o.moe_path,
       "w4a8: MXFP4 experts times MXFP8 activations, native on SM12x, emulated on Hopper; cpu and reference "
       "only round like it. w4a8x2: the same with two MXFP8 values for each activation, exact for BF16. fp8: "
       "on Ada and Hopper, prompts and large batches take the experts' activations in E4M3: faster, less "
       "exact")
      ->check(one_of({"auto", "w4a8", "w4a8x2", "fp8"}))
      ->group(kRareOptions);
  c.add_flag(
       "--batch-invariant", o.batch_invariant,
       "a sequence's logits do not depend on the other sequences of its batch, bit for bit; slower on cuda, "
       "always so on cpu")
      ->group(kRareOptions);
  c.add_flag("!--no-tune", o.tune,
             "cuda: do not measure the experts' kernels at the first load on a device (moesaic tune)")
      ->group(kRareOptions);
}

// Says what is wrong with a value of --speculative; empty: nothing.
std::string speculative_error(const std::string& value);
// --speculative and --draft-tokens of OpenOptions, EngineOptions or the like.
template <class Options>
void add_speculation_options(CLI::App& c, Options& o) {
  CLI::Option* const drafter = c.add_option(
      "--speculative", o.speculative,
      "guess tokens and verify them together with the next one, which changes no answer: none; ngram: "
      "from what the request said before; suffix: and from earlier answers to anybody; "
      "suffix:own: by the same rule, without those; eagle3:FOLDER: by an EAGLE3 draft head, eagle3 alone "
      "is tiny's; draft:MODEL: by another model of the same vocabulary");
  drafter->check(speculative_error)->group(kDeviceOptions);
  c.add_option_function<std::string>(
       "--draft-tokens",
       [&o](const std::string& text) { o.draft_tokens = text == "auto" ? 0 : std::stoi(text); },
       "tokens of each guess, 1 to 16; auto: as many as pay, none where none do")
      ->check(in_range(1, kMostDraft, "auto"))
      ->default_str("auto")
      ->needs(drafter)
      ->group(kRareOptions);
}

// --kv-host and --kv-disk of OpenOptions or the like.
template <class Options>
void add_store_options(CLI::App& c, Options& o) {
  c.add_option("--kv-host", o.kv_host,
               "GiB of host memory for what the prefix cache has no room for: it comes back by copy")
      ->check(in_range(0.0, kMostKvGib))
      ->group(kModelOptions);
  c.add_option(
       "--kv-disk", o.kv_disk,
       "a folder for the same, DIR or DIR:GiB, found again after a restart; it holds what was said, for "
       "this user alone; without GiB half of what is free there")
      ->check([](const std::string& disk) { return kv_disk_option(disk).status().message(); })
      ->group(kModelOptions);
}

// An error as wrong usage of the command line: exit status 2.
Status usage(const Status& status);

// A model on its way into a backend.
struct LoadedModel {
  Checkpoint checkpoint;
  std::unique_ptr<Backend> backend;
  DeviceChoice choice;  // by which the backend was made
  BackendCaps caps;
  double ceiling_gb_s = 0;  // for the commands that measure it
  double load_seconds = 0;
};

// "tiny" is the bundled model; anything else is what open_checkpoint takes.
Result<std::string> model_path(const std::string& model);
Result<Checkpoint> open_model(const ModelOptions& options);  // with its adapters
// Says on standard error if an adapter lies beside the model that was not asked for.
void report_unused_adapter(const std::string& model, const std::vector<std::string>& lora);
Result<DeviceChoice> device_choice(const ModelOptions& options, int max_rows, int least_rows = 1);
Result<std::unique_ptr<Backend>> make_backend(const ModelOptions& options, int max_rows, int least_rows = 1);
// Makes the backend and opens the checkpoint, but loads nothing: arguments can be checked against the model
// first.
Result<LoadedModel> prepare_model(const ModelOptions& options, int max_rows, int least_rows = 1);
// Loads the model if it fits together with this cache. Progress goes to standard error if that is a terminal.
Status load(LoadedModel& model, const KvDemand& cache);

// Measures what the device can do at most: model.ceiling_gb_s, and with measure_rate() model.caps' operations
// a second.
void measure_ceilings(LoadedModel& model);
// Measures the operations a second again where the backend does not state them; the most counts.
void measure_rate(LoadedModel& model);
// Never null.
Result<Profiler*> profiler_of(Backend& backend);

// The text that says how much of a model is loaded.
std::string loading_text(int64_t done, int64_t total);

// Fails if `tokens`, the sum of a command's options, exceed the model's context. option: its name in the
// error.
Status check_context(int64_t tokens, const ModelConfig& config, const char* option);

// IDS of the command line: a comma-separated list, @FILE, or @- for standard input.
Result<std::vector<int32_t>> parse_tokens(const std::string& text);
Status check_tokens(const std::vector<int32_t>& tokens, int vocab);
// To its end, at most 256 MB: /dev/zero has none. `name` is for errors.
Result<std::string> read_text(std::istream& in, const std::string& name);
Result<std::string> read_text_file(const std::string& path);
// A file's text; "-": standard input's, to its end.
Result<std::string> read_text_or_stdin(const std::string& path);
// "standard input" for "-", else the path: for errors.
std::string input_name(const std::string& path);
// The next line of standard input, of as many bytes at most, without its end; nothing behind the last.
Result<std::optional<std::string>> read_line();
// Drops the byte order mark that editors on Windows write at a text's beginning.
void drop_byte_order_mark(std::string& text);

}  // namespace moesaic::app

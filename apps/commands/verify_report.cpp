// verify --report: its parts, what each runs, and the text that they make.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "backend/profiling.h"
#include "base/cpu_topology.h"
#include "base/error.h"
#include "base/memory.h"
#include "bench.h"
#include "chat/terminal.h"
#include "chat/terminal_text.h"
#include "child_process.h"
#include "interrupt.h"
#include "private_words.h"
#include "progress.h"
#include "run.h"
#include "verify.h"

namespace moesaic::app {
namespace {

// ---- the machine, told by files alone: this process must not touch a GPU ----

// Returns the text behind `key` in the first line of a file that has it; empty if none has.
std::string value_in(const char* path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (const size_t at = line.find(key); at != std::string::npos) return line.substr(at + key.size());
  }
  return {};
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
std::string driver() {
  std::istringstream words(value_in("/proc/driver/nvidia/version", "NVRM version:"));
  for (std::string word; words >> word;) {
    if (word.find_first_not_of("0123456789.") == std::string::npos) return "NVIDIA " + word;
  }
  return "none in /proc/driver/nvidia/version";
}

std::string system_name() {
  std::string name = value_in("/etc/os-release", "PRETTY_NAME=");
  std::erase(name, '"');
  utsname kernel{};
  uname(&kernel);
  return fmt::format("{}, Linux {} {}", name.empty() ? "unknown" : name, kernel.release, kernel.machine);
}

std::string memory_text() {
  return fmt::format("{:.1f} GB, {:.1f} GB of them available", total_host_memory() / 1e9,
                     available_host_memory() / 1e9);
}

// The variables that change what a GPU runs.
std::string environment() {
  std::string text;
  for (const char* name : {"MOESAIC_PDL", "MOESAIC_MAX_SHARED", "CUDA_VISIBLE_DEVICES", "CUDA_FORCE_PTX_JIT",
                           "CUDA_DISABLE_PTX_JIT", "CUDA_LAUNCH_BLOCKING"}) {
    if (const char* const value = std::getenv(name)) text += fmt::format(" {}={}", name, value);
  }
  return text.empty() ? "none" : text.substr(1);
}

constexpr std::string_view kFirstLine = "moesaic verify --report";

std::string head(const ReportOptions& o) {
  const CpuTopology cpu = read_cpu_topology();
  const std::string code = gpu_code();
  return fmt::format(
      "{}\n"
      "program      moesaic {}, GPU code: {}\n"
      "options      {}\n"
      "environment  {}\n"
      "system       {}\n"
      "cpu          {}, {} cores\n"
      "memory       {}\n"
      "driver       {}\n",
      kFirstLine, MOESAIC_VERSION, code.empty() ? "none" : code, o.given, environment(), system_name(),
      cpu.model.empty() ? "unknown" : cpu.model, cpu.cores.size(), memory_text(), driver());
}

// ---- the parts, each in a process of its own ----

void print_device(const DeviceInfo& d) {
  if (!d.usable) return fmt::print("{}: {}\n", d.name, d.reason);
  fmt::print("{}: {}{}{}{}\n", d.name, d.description, d.architecture.empty() ? "" : ", ", d.architecture,
             d.memory_total > 0 ? fmt::format(", {}", size_text(d.memory_total)) : "");
}

// The backend is made first: ranks on several GPUs want to be the first in the process to use CUDA.
Status show_device(const ReportOptions& o) {
  const auto backend = make_backend(o.model, 512);
  for (const DeviceInfo& d : list_devices()) {
    if (d.backend != "reference") print_device(d);
  }
  RETURN_IF_ERROR(backend.status());
  fmt::print("chosen: {}, {} free\n", backend.value()->caps().name,
             size_text(device_bytes(backend.value()->available_memory())));
  for (const std::string& line : backend.value()->describe()) fmt::print("{}\n", line);
  return {};
}

// Bytes that stay free: beside a GPU's own memory a desktop draws with little; where device and host share
// theirs, all other programs need some, or the machine stands still.
double bytes_to_leave(Backend& backend) {
  constexpr double kForDrawing = 1e9, kForPrograms = 4e9, kShare = 0.25, kNearly = 0.9;
  const double host = total_host_memory();
  const DeviceInfo device = backend.device();
  const bool shared = device.backend != "cuda" || static_cast<double>(device.memory_total) >= kNearly * host;
  if (!shared) return kForDrawing;
  return std::isfinite(host) ? std::max(kForPrograms, kShare * host) : kForPrograms;
}

// The most layers of the 20b that leave these bytes.
Result<std::string> fitting_model(Backend& backend, bool quick) {
  const double most = backend.available_memory() - bytes_to_leave(backend);
  const KvDemand demand{.sequences = 32, .context = 1024, .max_rows = backend.caps().max_rows};
  for (const int layers : {24, 12, 6, 3, 1}) {
    if (quick && layers > 1) continue;
    const std::string name = fmt::format("dummy:gpt-oss-20b,layers={}", layers);
    ASSIGN_OR_RETURN(const Checkpoint k, open_checkpoint(name));
    ASSIGN_OR_RETURN(const KvLayout layout, kv_layout(k.config, demand));
    if (bytes_of(parts_of(demand, k.config, k.weights, layout, backend)) <= most) return name;
  }
  return error(StatusCode::kOutOfMemory,
               "{:.1f} GB are free, too little for a layer of the 20b and {:.1f} GB beside it",
               backend.available_memory() / 1e9, bytes_to_leave(backend) / 1e9);
}

constexpr std::string_view kModelLine = "model: ";

// Chooses the model, which the parts after this one use, and prints the kernels for it.
Status choose_model(const ReportOptions& o) {
  ModelOptions model = o.model;
  if (model.model.empty()) {
    ASSIGN_OR_RETURN(const auto backend, make_backend(model, 0));
    ASSIGN_OR_RETURN(model.model, fitting_model(*backend, o.quick));
  }
  fmt::print("{}{}\n", kModelLine, model.model);
  std::fflush(stdout);
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(model, 2048));
  RETURN_IF_ERROR(load(m, {.context = 2048, .max_rows = 2048}));
  if (!m.caps.reads.empty()) fmt::print("weights are read with {}\n", m.caps.reads);
  Profiler* const profiler = m.backend->profiler();
  for (const int tokens : {1, 8, 64, 2048}) {
    std::vector<std::string> words;
    if (profiler != nullptr) {
      for (const KernelChoice& c : profiler->kernel_choices(tokens)) words.push_back(c.op + " " + c.kernel);
    }
    if (!words.empty()) fmt::print("{} tokens: {}\n", tokens, fmt::join(words, ", "));
  }
  std::fflush(stdout);
  fmt::print("read bandwidth: {:.1f} GB/s\n", read_bandwidth(*m.backend));
  return {};
}

Status answer_with_tiny(const ReportOptions& o) {
  RunOptions run{.model = o.model};
  run.model.model = "tiny", run.prompt = "What is 47 x 36?", run.has_prompt = true;
  run.plain = run.verbose = true;
  run.sampling.temperature = 0;
  return run_run(std::move(run));
}

struct BenchSizes {
  std::vector<int> prompts = {0}, generations = {0}, depths = {0}, batches = {1};
};
Result<bool> is_gpu(const ModelOptions& model) {
  ASSIGN_OR_RETURN(const auto backend, make_backend(model, 1));
  return backend->device().backend == "cuda";
}
// On a host each token takes longer.
Status run_timing(const ReportOptions& o, BenchSizes sizes) {
  ASSIGN_OR_RETURN(const bool gpu, is_gpu(o.model));
  const int divisor = o.quick ? 16 : gpu ? 1 : 4;
  for (std::vector<int>* const list : {&sizes.prompts, &sizes.generations, &sizes.depths})
    for (int& n : *list) n /= divisor;
  return run_bench({.model = o.model,
                    .prompts = sizes.prompts,
                    .generations = sizes.generations,
                    .depths = sizes.depths,
                    .batches = sizes.batches,
                    .reps = o.quick ? 1 : 3});
}

enum class When { kAlways, kWithModel, kNotQuick, kAfterFailure };
struct Part {
  const char* name;
  double limit;  // s
  When when = When::kAlways;
  Status (*work)(const ReportOptions& o);
  const char* wanted = nullptr;  // stands in the output, or the part has failed
};

Status verify_quickly(const ReportOptions& o) { return run_verify({.model = o.model, .quick = true}); }
Status verify_plainly(const ReportOptions& o) {
  ReportOptions plain = o;
  plain.model.early_launch = false;
  return verify_quickly(plain);
}
Status verify_all(const ReportOptions& o) { return run_verify({.model = o.model}); }
Status verify_whole(const ReportOptions& o, const std::string& model, int tokens) {
  VerifyArguments whole{.model = o.model, .operations = false, .tokens = tokens};
  whole.model.model = model;
  return run_verify(whole);
}

// The parts that tell most come first. Limits are for slow machines: a GPU takes a few minutes for all of it.
// PTX that a driver compiles makes the first parts last minutes.
constexpr Part kParts[] = {
    {"device", 300, When::kAlways, show_device},
    {"operations, small shapes", 600, When::kAlways, verify_quickly},
    {"the same without early launch", 600, When::kAfterFailure, verify_plainly},
    {"tiny as a whole", 300, When::kAlways,
     [](const ReportOptions& o) { return verify_whole(o, "tiny", 64); }},
    {"tiny answers 47 x 36", 300, When::kAlways, answer_with_tiny, "1692"},
    {"kernels and bandwidth", 600, When::kAlways, choose_model},
    {"decoding, 1, 8 and 32 sequences", 600, When::kWithModel,
     [](const ReportOptions& o) {
       return run_timing(o, {.generations = {128}, .batches = {1, 8, 32}});
     }},
    {"prompts", 600, When::kWithModel,
     [](const ReportOptions& o) {
       return run_timing(o, {.prompts = {512, 2048}});
     }},
    {"decoding at depth", 600, When::kWithModel,
     [](const ReportOptions& o) {
       return run_timing(o, {.generations = {64}, .depths = {4096, 16384}});
     }},
    {"two layers of the 20b as a whole", 900, When::kNotQuick,
     [](const ReportOptions& o) { return verify_whole(o, "dummy:gpt-oss-20b,layers=2", 8); }},
    {"operations, all shapes", 1800, When::kNotQuick, verify_all},
};

// ---- the text ----

// Everything goes to standard output and the file at once: a machine that stands still leaves what it had.
class Text {
 public:
  Status open(const std::string& path) {
    if (path.empty()) return {};
    if (!may_replace(path))
      return invalid("{}: is there and is no report; give another name, or remove it", path);
    file_ = std::fopen(path.c_str(), "w"), path_ = path;
    return file_ != nullptr ? Status() : error(StatusCode::kNotFound, "{}: cannot write it", path);
  }
  Text() = default;
  ~Text() {
    if (file_ != nullptr) std::fclose(file_);
  }
  Text(const Text&) = delete;
  Text& operator=(const Text&) = delete;

  void add(const std::string& text) {
    const std::string out = words_.remove_from(text);
    std::fputs(out.c_str(), stdout);
    std::fflush(stdout);
    if (file_ == nullptr) return;
    const bool whole = std::fputs(out.c_str(), file_) >= 0 && std::fflush(file_) == 0;
    // A pipe and a terminal cannot be synchronised.
    const bool kept = whole && (fsync(fileno(file_)) == 0 || errno == EINVAL || errno == EROFS);
    if (!kept && lost_.ok()) lost_ = error(StatusCode::kIo, "{}: {}", path_, std::strerror(errno));
  }
  // Not ok: the file lacks a part of the text.
  const Status& lost() const { return lost_; }

 private:
  // --report MODEL must not cost the model. What is no regular file has no beginning to look at.
  static bool may_replace(const std::string& path) {
    std::error_code ignored;
    if (!std::filesystem::is_regular_file(path, ignored)) return true;
    const std::string wanted = std::string(kFirstLine) + "\n";
    std::string begin(wanted.size(), '\0');
    std::ifstream there(path);
    there.read(begin.data(), std::ssize(begin));
    return there.gcount() == 0 || begin == wanted;
  }

  PrivateWords words_;
  std::FILE* file_ = nullptr;
  std::string path_;
  Status lost_;
};

// The output, indented, without empty lines and without those of operations that agree; the last of it if it
// is long.
std::string shortened(const std::string& output) {
  constexpr size_t kMostLines = 60;
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < output.size();) {
    const size_t end = std::min(output.find('\n', begin), output.size());
    const std::string line = output.substr(begin, end - begin);
    begin = end + 1;
    const bool agrees = line.starts_with("ok   ") && !line.starts_with("ok   model");
    if (!line.empty() && !agrees) lines.push_back("    " + chat::printable(line) + "\n");
  }
  const size_t skipped = lines.size() > kMostLines ? lines.size() - kMostLines : 0;
  lines.erase(lines.begin(), lines.begin() + static_cast<std::ptrdiff_t>(skipped));
  return fmt::format("{}{}", skipped > 0 ? fmt::format("    ({} lines before these)\n", skipped) : "",
                     fmt::join(lines, ""));
}

constexpr int kNoDevice = 2;  // a part's exit status where the device or an option cannot be met

int exit_status(const Status& status) {
  if (!status.ok()) chat::notice("moesaic: " + status.message());
  if (status.ok()) return 0;
  return status.code() == StatusCode::kUsage || status.code() == StatusCode::kUnsupported ? kNoDevice : 1;
}

// Which parts have failed, and what later ones need of earlier ones.
struct Progress {
  ReportOptions options;  // with the model, once it is chosen
  std::vector<std::string> failed;
  int done = 0;
  bool last_failed = false, no_device = false, stuck = false, interrupted = false;

  // Empty: the part runs. Else the reason why it does not.
  std::string skipped(const Part& p) const {
    if (interrupted) return "interrupted";
    if (no_device) return "the device cannot be used";
    if (stuck) return "the part before it holds the device";
    if (p.when == When::kNotQuick && options.quick) return "--quick";
    if (p.when == When::kWithModel && options.model.model.empty()) return "no model was chosen";
    return {};
  }
};

// The one that was chosen, where none was named. A name that was given may have any characters.
void note_model(const std::string& output, ReportOptions& o) {
  if (!o.model.model.empty() || !output.starts_with(kModelLine)) return;
  o.model.model = output.substr(kModelLine.size(), output.find('\n') - kModelLine.size());
}

void run_part(const Part& part, Progress& progress, const InterruptScope& interrupt, Text& text) {
  ProgressLine line;
  const auto goes_on = [&](double seconds) {
    line.show(fmt::format("{}: {:.0f} s, at most {:.0f} s", part.name, seconds, part.limit));
    return !interrupt.requested();
  };
  // Operations are compared without a model.
  ReportOptions own = progress.options;
  if (part.when != When::kWithModel && part.work != choose_model)
    own.model.model.clear(), own.model.lora.clear();
  const ChildOutcome outcome = run_child(
      part.limit, [&] { return exit_status(part.work(own)); }, goes_on);
  line.clear();
  if (part.work == choose_model) note_model(outcome.output, progress.options);
  const bool lacks = part.wanted != nullptr && outcome.output.find(part.wanted) == std::string::npos;
  std::string result = describe(outcome);
  if (outcome.ok() && lacks) result = fmt::format("WRONG, {} is not in the answer", part.wanted);
  progress.last_failed = !outcome.ok() || lacks;
  progress.no_device = progress.no_device || (part.work == show_device && outcome.code == kNoDevice);
  progress.stuck = outcome.end == ChildEnd::kStuck;
  progress.interrupted = interrupt.requested();
  if (progress.last_failed) progress.failed.emplace_back(part.name);
  ++progress.done;
  text.add(fmt::format("\n{}: {}\n{}", part.name, result, shortened(outcome.output)));
}

}  // namespace

Status run_report(const ReportOptions& o) {
  if (o.model.device == "reference")
    return usage(invalid("--report: the reference is what a device is compared with; name another one"));
  if (o.model.model.empty() && !o.model.lora.empty()) return usage(invalid("--lora needs a --model"));
  // A wrong name of a device or a model is found before anything runs.
  RETURN_IF_ERROR(usage(device_choice(o.model, 0).status()));
  if (!o.model.model.empty()) RETURN_IF_ERROR(open_model(o.model).status());
  Text text;
  RETURN_IF_ERROR(text.open(o.file));
  const InterruptScope interrupt;
  Progress progress{.options = o};
  text.add(head(o));
  for (const Part& part : kParts) {
    if (part.when == When::kAfterFailure &&
        (!progress.last_failed || progress.no_device || o.model.device == "cpu"))
      continue;
    const std::string reason = progress.skipped(part);
    if (reason.empty())
      run_part(part, progress, interrupt, text);
    else
      text.add(fmt::format("\n{}: not run: {}\n", part.name, reason));
  }
  const bool passed = progress.failed.empty() && !progress.interrupted;
  text.add(passed ? fmt::format("\nall {} parts passed\n", progress.done)
                  : fmt::format("\n{} of {} parts failed: {}\n", progress.failed.size(), progress.done,
                                fmt::join(progress.failed, "; ")));
  if (progress.interrupted) return Status(StatusCode::kCancelled, "interrupted");
  RETURN_IF_ERROR(text.lost());
  if (passed) return {};
  return error(StatusCode::kInternal, "verify: {} of {} parts failed", progress.failed.size(), progress.done);
}

}  // namespace moesaic::app

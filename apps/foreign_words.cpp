#include "foreign_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/strings.h"

namespace moesaic::app {
namespace {

struct Foreign {
  std::string_view names, ours, remark;  // ours: empty where the remark says all
};

constexpr std::string_view kBuiltIn =
    "leave it out: gpt-oss's chat format is built in, reasoning and calls come apart";
constexpr std::string_view kOneAnswer =
    "leave it out: with a prompt there is one answer, without one a conversation";

constexpr Foreign kForeignOptions[] = {
    {"-ngl --n-gpu-layers --gpu-layers", "",
     "leave it out: the GPU has all layers; --device cpu takes none, and --gpu-memory or --n-cpu-moe leave "
     "experts in host memory"},
    {"-ot --override-tensor", "--experts", "such as host:LAYERS"},
    {"-fa --flash-attn", "", "leave it out: attention is always fused"},
    {"-fit --fit", "", "leave it out: the context is what fits into the memory"},
    {"-nkvo --no-kv-offload", "", "leave it out: the KV cache is on the device that computes attention"},
    {"-mmp --mmap --no-mmap --mlock", "",
     "leave it out: weights are copied into memory when the model is loaded"},
    {"-cb --cont-batching --enable-prefix-caching --enable-chunked-prefill --no-warmup", "",
     "leave it out: it is always so"},
    {"-cnv -no-cnv --conversation --no-conversation -st --single-turn -i --interactive", "", kOneAnswer},
    {"--jinja --chat-template --chat-template-file --reasoning-format --reasoning-parser --tool-call-parser "
     "--enable-auto-tool-choice --trust-remote-code",
     "", kBuiltIn},
    {"--ssl-key-file --ssl-cert-file --ssl-keyfile --ssl-certfile", "",
     "there is no TLS: put a reverse proxy before the server"},
    {"-hf -hfr --hf-repo", "-m", "hf:OWNER/NAME"},
    {"-hff --hf-file", "", "name the file behind the repository: -hf OWNER/NAME/FILE.gguf"},
    {"-hft --hf-token", "", "set HF_TOKEN in the environment"},
    {"-c --ctx-size --context-length --num-ctx --max-model-len", "--ctx", ""},
    {"-s", "--seed", ""},
    {"-sys --system-prompt", "--system", ""},
    {"--temperature", "--temp", ""},
    {"--repeat-penalty", "--repetition-penalty", ""},
    {"--predict --n-predict --num-predict --max-new-tokens", "-n", ""},
    {"--think --reasoning-effort", "--reasoning", "low, medium or high"},
    {"--format", "",
     "use --json-schema SCHEMA ({}: any JSON) for the form of an answer, -o json for that of the output"},
    {"-j -jf --json-schema-file --grammar --grammar-file", "--json-schema",
     "a schema or a file with it; {}: any JSON"},
    {"-ctk -ctv --cache-type-k --cache-type-v --kv-cache-dtype", "--kv-dtype",
     "auto, bf16 or fp8 for K and V"},
    {"-b --batch-size -ub --ubatch-size --max-num-batched-tokens --chunked-prefill-size", "--ubatch", ""},
    {"-tb --threads-batch", "--threads", "the same for prompts and answers"},
    {"-np --parallel --max-num-seqs --max-running-requests", "--max-batch", ""},
    {"-tp -sm -ts --split-mode --tensor-split --tensor-parallel-size --tp-size", "--tp",
     "the number of GPUs"},
    {"-mg -dev --main-gpu", "--device", "such as cuda:1"},
    {"--gpu-memory-utilization --mem-fraction-static", "--gpu-memory", "in GiB"},
    {"--dtype --quantization", "--dense", "else formats are those of the file"},
    {"-md -hfd --model-draft", "--speculative", "draft:MODEL"},
    {"--draft --draft-max", "--draft-tokens", ""},
    {"-a --alias --served-model-name", "--name", ""},
    {"--api-key", "--api-key-file", "or MOESAIC_API_KEY in the environment"},
    {"-to --timeout", "--request-timeout", ""},
    {"--base-url", "--url", ""},
    {"--num-prompts", "--requests", ""},
    {"--request-rate", "--rate", ""},
    {"--concurrency --max-concurrency", "--streams", ""},
    {"-pg", "", "use -p and -n, and -d for the tokens before"},
};

constexpr Foreign kForeignCommands[] = {
    {"ls", "", "moesaic list"},
    {"ps", "", "a server's /api/ps"},
    {"show", "", "moesaic inspect"},
    {"chat cli generate", "", "moesaic run"},
    {"server start", "", "moesaic serve"},
    {"download get", "", "moesaic pull"},
    {"quantize quantise", "", "moesaic convert"},
    {"version -v -V", "", "moesaic --version"},
    {"rm delete", "", "rm with the path that moesaic list -o json gives"},
};

constexpr Foreign kForeignChatWords[] = {
    {"/set", "",
     "/system and /reasoning set those; the rest is set on the command line (moesaic run --help)"},
    {"/show", "", "/system and /reasoning show those; moesaic inspect shows the model"},
};

const Foreign* find_foreign(std::span<const Foreign> table, std::string_view name) {
  for (const Foreign& f : table) {
    for (std::string_view rest = f.names; !rest.empty();) {
      const size_t end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == name) return &f;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  return nullptr;
}

std::string_view foreign_remark(std::span<const Foreign> table, std::string_view name) {
  const Foreign* const found = find_foreign(table, name);
  return found != nullptr ? found->remark : std::string_view();
}

// " of moesaic COMMAND", of the first that has the option where this one has it not.
std::string whose(const CLI::App& app, const CLI::App& command, const std::string& option) {
  if (command.get_option_no_throw(option) != nullptr) return "";
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; }))
    if (c->get_option_no_throw(option) != nullptr) return " of moesaic " + c->get_name();
  return "";
}

std::string instead_of_option(const CLI::App& app, const CLI::App& command, std::string_view name) {
  // CLI11 would read -temp as -t with the value emp, and -plain as -p lain.
  const std::string whole = "-" + std::string(name);
  const bool one_dash = name.size() > 2 && name[1] != '-' && name != "-help";
  if (one_dash && command.get_option_no_throw(whole) != nullptr)
    return fmt::format("{}: use {}", name, whole);
  const Foreign* f = find_foreign(kForeignOptions, name);
  if (f == nullptr && one_dash) f = find_foreign(kForeignOptions, whole);
  if (f == nullptr) {
    const bool cluster = name.size() > 2 && name.starts_with("-h") && name != "-help";
    return cluster ? fmt::format("unknown option {} (see moesaic {} --help)", name, command.get_name()) : "";
  }
  if (f->ours.empty()) return fmt::format("{}: {}", name, f->remark);
  return fmt::format("{}: use {}{}{}{}", name, f->ours, whose(app, command, std::string(f->ours)),
                     f->remark.empty() ? "" : ", ", f->remark);
}

// Puts our word in the place of words[at]; that of a model of the hub takes the word behind it along.
Status rename_word(const CLI::App& command, std::vector<std::string>& words, size_t at) {
  constexpr std::string_view kHub[] = {"-hf", "-hfr", "--hf-repo"};
  if (words[at] == "-ncmoe") words[at] = "--n-cpu-moe";
  if (words[at] == "-cmoe") words[at] = "--cpu-moe";
  const size_t end = words[at].find('=');
  const std::string option = words[at].substr(0, end);
  const bool pull = command.get_name() == "pull", behind = end == std::string::npos;
  if (!is_one_of(kHub, option) || (!pull && command.get_option_no_throw("-m") == nullptr)) return {};
  const std::string name = !behind ? words[at].substr(end + 1) : at + 1 < words.size() ? words[at + 1] : "";
  if (name.empty() || name.starts_with('-'))
    return error(StatusCode::kUsage, "{}: the model's name is missing", option);
  if (behind) words.erase(words.begin() + static_cast<ptrdiff_t>(at) + 1);
  words[at] = pull ? name : "--model=hf:" + name;
  return {};
}

}  // namespace

Result<std::vector<std::string>> in_our_words(const CLI::App& app, std::vector<std::string> words) {
  if (words.size() > 1 && words[1] == "help") {
    words.resize(std::min<size_t>(words.size(), 3));
    words.erase(std::remove(words.begin() + 1, words.end(), "help"), words.end());
    words.emplace_back("--help");
  }
  const auto commands =
      app.get_subcommands([&](const CLI::App* c) { return words.size() > 1 && c->get_name() == words[1]; });
  if (commands.empty()) return words;
  const CLI::App& command = *commands.front();
  for (size_t i = 2; i < words.size() && words[i] != "--"; ++i) {
    if (!words[i].starts_with('-')) continue;
    RETURN_IF_ERROR(rename_word(command, words, i));
    if (const CLI::Option* const own = command.get_option_no_throw(words[i])) {
      i += static_cast<size_t>(own->get_items_expected_min());
      continue;
    }
    const std::string instead = instead_of_option(app, command, words[i].substr(0, words[i].find('=')));
    if (!instead.empty()) return error(StatusCode::kUsage, "{}", instead);
  }
  return words;
}

std::string_view instead_of_command(std::string_view name) { return foreign_remark(kForeignCommands, name); }
std::string_view instead_of_chat_word(std::string_view name) {
  return foreign_remark(kForeignChatWords, name);
}

}  // namespace moesaic::app

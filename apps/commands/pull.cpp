// pull: a model from Hugging Face's hub.
#include <fmt/format.h>
#include <unistd.h>

#include "base/error.h"
#include "chat/terminal.h"
#include "chat/terminal_text.h"
#include "checkpoint/find_model.h"
#include "commands.h"
#include "get_model.h"
#include "help.h"
#include "hub/hub_options.h"
#include "option_checks.h"

namespace moesaic::app {
namespace {

struct PullOptions {
  std::string name;
  int connections = 8;
};

// Gets the model and gives its path. With HF_HUB_OFFLINE, gives the path of the model in the cache.
Result<std::string> model_here(const PullOptions& o) {
  ASSIGN_OR_RETURN(const hub::HubOptions hub, hub::hub_options());
  if (hub.offline) {
    if (auto found = find_model(o.name, {.hub = hub.cache}); found.ok()) return found;
  }
  return get_model(o.name, {.connections = o.connections});
}

Status run_pull(const PullOptions& o) {
  ASSIGN_OR_RETURN(const std::string path, model_here(o));
  fmt::print("{}\n", isatty(STDOUT_FILENO) != 0 ? chat::printable(path) : path);
  if (isatty(STDERR_FILENO) != 0) chat::notice("To talk to it: moesaic run -m " + o.name);
  return {};
}

}  // namespace

Run add_pull(CLI::App& app) {
  auto o = std::make_shared<PullOptions>();
  CLI::App& c =
      *app.add_subcommand("pull", "Get a model from Hugging Face into its cache, and print its path");
  c.add_option("name", o->name,
               "OWNER/NAME, behind it @REVISION, :QUANTISATION or /FILE.gguf; or their address")
      ->required();
  c.add_option("--connections", o->connections, "connections at a time")
      ->check(in_range(1, 32))
      ->group(kRareOptions);
  c.footer(
      "What was interrupted goes on where it was. HF_TOKEN, HF_ENDPOINT, HF_HOME,\n"
      "HF_HUB_CACHE, HF_HUB_OFFLINE and proxies are those of Hugging Face's programs.\n\n"
      "Examples:\n"
      "  moesaic pull openai/gpt-oss-20b\n"
      "  moesaic pull unsloth/gpt-oss-20b-GGUF:Q8_0\n"
      "  moesaic pull openai/gpt-oss-20b@v1.0            a branch, tag or commit\n"
      "  moesaic pull https://huggingface.co/openai/gpt-oss-20b\n"
      "  moesaic run -hf ggml-org/gpt-oss-20b-GGUF       gets it if it is not here");
  return [o] { return run_pull(*o); };
}

}  // namespace moesaic::app

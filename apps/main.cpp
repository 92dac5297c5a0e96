#include <cstdio>
#include <new>
#include <system_error>

#include "commands/commands.h"

namespace {

using namespace moesaic;
using namespace moesaic::app;

int report(const Status& status) {
  if (!status.ok()) {
    std::fprintf(stderr, "moesaic: %s\n", status.message().c_str());
    return 1;
  }
  // Output that never reached a full disk or a closed pipe must not count as success.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "moesaic: cannot write to standard output\n");
    return 1;
  }
  return 0;
}

constexpr Run (*kCommands[])(CLI::App&) = {add_run,      add_bench,      add_logits, add_perplexity,
                                           add_tokenize, add_detokenize, add_render, add_inspect,
                                           add_verify,   add_profile,    add_convert};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("moesaic runs OpenAI's gpt-oss models as fast as the memory of the machine allows.",
               "moesaic");
  app.set_version_flag("--version", "moesaic " MOESAIC_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n  moesaic run -m gpt-oss-20b -p \"Why is the sky blue?\"\n  moesaic bench -m "
      "gpt-oss-20b.gguf -p 512 -n 32\n  moesaic COMMAND --help explains a command.");
  Run run;
  for (const auto add : kCommands) {
    const size_t before = app.get_subcommands(nullptr).size();
    const Run body = add(app);
    app.get_subcommands(nullptr)[before]->callback([&run, body] { run = body; });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);
    std::fprintf(stderr, "moesaic: %s (see moesaic --help)\n", e.what());
    return 2;
  }
  try {
    return report(run());
  } catch (const std::system_error&) {  // fmt's, when standard output cannot take more
    return report(Status(StatusCode::kIo, "cannot write to standard output"));
  } catch (const std::bad_alloc&) {
    return report(Status(StatusCode::kOutOfMemory, "out of memory"));
  }
}

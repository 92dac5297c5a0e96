// completion, man: what packages install.
#include <cstdio>

#include "base/error.h"
#include "commands.h"
#include "describe.h"
#include "option_checks.h"

namespace moesaic::app {

Run add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App& c = *app.add_subcommand("completion", "Print a completion script for a shell");
  c.add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(one_of({"bash", "zsh", "fish"}));
  c.footer("Example: moesaic completion bash >/etc/bash_completion.d/moesaic");
  return [&app, shell]() -> Status {
    const auto write = *shell == "bash"  ? bash_completion
                       : *shell == "zsh" ? zsh_completion
                                         : fish_completion;
    std::fputs(write(describe(app)).c_str(), stdout);
    return {};
  };
}

Run add_man(CLI::App& app) {
  app.add_subcommand("man", "Print the man page")->footer("Example: moesaic man >moesaic.1");
  return [&app]() -> Status {
    std::fputs(man_page(app, MOESAIC_VERSION).c_str(), stdout);
    return {};
  };
}

}  // namespace moesaic::app

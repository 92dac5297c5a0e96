// The parser's commands and options as data, from which completions and the man page are generated, so that
// these always match the program.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace moesaic::app {

struct OptionText {
  std::vector<std::string> short_names, long_names;  // without dashes; a positional has neither
  std::string name;                                  // shown for a positional argument
  std::string help, standard;                        // standard: its default; empty: none
  std::vector<std::string> choices;                  // empty: any
  bool takes_value = false, required = false;
  bool is_model = false;  // its values are those that `moesaic list` names

  std::vector<std::string> spellings() const;  // with dashes
};

struct CommandText {
  std::string name, help, footer;
  std::vector<OptionText> options;
};

std::vector<CommandText> describe(const CLI::App& app);

// Scripts for the shell, to be read by it.
std::string bash_completion(const std::vector<CommandText>& commands);
std::string zsh_completion(const std::vector<CommandText>& commands);
std::string fish_completion(const std::vector<CommandText>& commands);
// moesaic(1) in man's macros.
std::string man_page(const CLI::App& app, const std::string& version);

}  // namespace moesaic::app

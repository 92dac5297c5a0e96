// The help of the program and of its commands, and what is said of a command line that they do not take.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic::app {

// The group of options that --help leaves out and --help-all has.
inline constexpr const char* kRareOptions = "Rare options";

// The option that carries a word of `run` that stands behind "--", after an "=" of its own: CLI11 takes an
// empty value for none, and would read such words as options of the program.
inline constexpr std::string_view kWordOption = "--word-behind-dashes";

// --help and --help-all of the program and of every command.
void add_help(CLI::App& app);

// Refuses an empty value of every option of the commands but those that take a text for the model: it is
// mostly a shell's variable that is not set, and as a file of API keys it would mean none.
void refuse_empty_values(CLI::App& app);
// CLI11 alone would take 010 for eight.
void read_whole_numbers_as_decimal(CLI::App& app);

// The first unknown option among the words that a command line left over, without its value; empty: none.
std::string unknown_option(const CLI::App& app);
// In a line: what is wrong, the nearest name, and where the help is.
std::string usage_error(const CLI::App& app, const CLI::ParseError& error);
// The same where the words behind the program's name do not begin with a command, nor with --help or
// --version; empty: they do.
std::string command_error(const CLI::App& app, const std::vector<std::string>& words);

}  // namespace moesaic::app

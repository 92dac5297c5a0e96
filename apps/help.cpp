#include "help.h"

#include <fmt/format.h>

#include <utility>

#include "nearest.h"

namespace moesaic::app {
namespace {

class Formatter : public CLI::Formatter {
 public:
  Formatter() { column_width(34); }

  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    all_ = mode == CLI::AppFormatMode::All;
    std::string help = CLI::Formatter::make_help(app, std::move(name), mode);
    for (size_t at = help.find("\n\n\n"); at != std::string::npos; at = help.find("\n\n\n", at))
      help.erase(at, 1);
    return help;
  }

  std::string make_group(std::string group, bool positional,
                         std::vector<const CLI::Option*> options) const override {
    return group == kRareOptions && !all_ ? "" : CLI::Formatter::make_group(group, positional, options);
  }

  std::string make_footer(const CLI::App* app) const override {
    const size_t rare =
        app->get_options([](const CLI::Option* o) { return o->get_group() == kRareOptions; }).size();
    const std::string more =
        rare > 0 && !all_ ? fmt::format("--help-all has {} more options.\n\n", rare) : "";
    return more + CLI::Formatter::make_footer(app);
  }

 private:
  mutable bool all_ = false;
};

const CLI::App& selected(const CLI::App& app) {
  const auto commands = app.get_subcommands();
  return commands.empty() ? app : *commands.front();
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* o : command.get_options()) {
    for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

// What was typed for an option that is none: without its value.
std::string unknown_option(const CLI::App& app) {
  for (const std::string& word : app.remaining(true)) {
    if (word.starts_with("-")) return word.substr(0, word.find('='));
  }
  return "";
}

}  // namespace

void add_help(CLI::App& app) {
  const auto formatter = std::make_shared<Formatter>();
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    command->formatter(formatter);
    command->set_help_flag("-h,--help", "the options that are used most");
    command->set_help_all_flag("--help-all", "all options");
  }
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = selected(app);
  const std::string option = unknown_option(app);
  const std::string help =
      fmt::format(" (see moesaic {}--help)", &command == &app ? "" : command.get_name() + " ");
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || option.empty()) return error.what() + help;
  return fmt::format("unknown option {}{}{}", option, did_you_mean(option, option_names(command)), help);
}

std::string unknown_command(const CLI::App& app, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return fmt::format("unknown command '{}'{} (see moesaic --help)", name, did_you_mean(name, names));
}

}  // namespace moesaic::app

#include "help.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/nearest.h"
#include "foreign_words.h"

namespace moesaic::app {
namespace {

constexpr size_t kColumns = 80, kNames = 30;  // columns of a line; those of an option's names and value

// The description of an option's value: its choices, or its type without the range, which an error names.
std::string value_of(const CLI::Option& o) {
  if (o.get_items_expected_max() == 0) return "";
  const std::string type = o.get_type_name();
  const size_t choices = type.find('{');
  std::string value = choices == std::string::npos ? type.substr(0, type.find(':')) : type.substr(choices);
  if (value == "UINT") value = "INT";
  const std::string standard = o.get_default_str();
  return " " + value + (standard.empty() || standard == "[]" ? "" : "=" + standard);
}

// Text in lines that begin at `column`, where the first one is already.
std::string wrapped(const std::string& text, size_t column) {
  std::string out;
  size_t at = column;
  for (const std::string& word : CLI::detail::split(text, ' ')) {
    if (at > column && at + 1 + word.size() > kColumns) {
      out += "\n" + std::string(column, ' ');
      at = column;
    } else if (at > column) {
      out += ' ';
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out;
}

// Words in lines behind `names`, or below them where these are too long.
std::string in_columns(const std::string& names, const std::string& text) {
  const std::string gap =
      names.size() < kNames ? std::string(kNames - names.size(), ' ') : "\n" + std::string(kNames, ' ');
  return names + gap + " " + wrapped(text, kNames + 1) + "\n";
}

class Formatter : public CLI::Formatter {
 public:
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

  std::string make_option(const CLI::Option* o, bool positional) const override {
    // CLI11 says "--no-tune{false}".
    std::string names = make_option_name(o, positional);
    for (size_t at = names.find("{false}"); at != std::string::npos; at = names.find("{false}"))
      names.erase(at, std::string_view("{false}").size());
    return in_columns("  " + names + value_of(*o),
                      (positional && !o->get_lnames().empty() ? "as -m has it" : o->get_description()) +
                          (o->get_required() ? " (required)" : ""));
  }

  std::string make_description(const CLI::App* app) const override {
    return wrapped(app->get_description(), 0) + "\n";
  }

  // A command's, in the list of them.
  std::string make_subcommand(const CLI::App* command) const override {
    return in_columns("  " + command->get_name(), command->get_description());
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
    if (o->get_group().empty()) continue;
    for (const std::string& name : o->get_lnames())
      if (!name.starts_with("help")) names.push_back("--" + name);
  }
  return names;
}

// CLI11 says "Could not convert: --temp = x".
std::string conversion_error(const CLI::App& command, const CLI::ParseError& error) {
  for (const CLI::Option* o : command.get_options()) {
    if (o->results().empty() || std::string(error.what()).find(o->get_name()) == std::string::npos) continue;
    const bool whole = o->get_type_name().find("INT") != std::string::npos;
    return fmt::format("{}: '{}' is not a {}", o->get_name(), o->results().back(),
                       whole ? "whole number, or is too large" : "number");
  }
  return error.what();
}

// CLI11 says "--temp: At Most 1 required but received 2" and "--temp: 1 required FLOAT missing".
std::string count_error(const CLI::App& command, const CLI::ParseError& error) {
  std::string what = error.what();
  const std::string name = what.substr(0, what.find(':'));
  const CLI::Option* option = command.get_option_no_throw(name);
  if (option == nullptr) return what;
  const size_t given = option->results().size();
  return given > 1 ? fmt::format("{}: given {} times; give it once", name, given)
                   : fmt::format("{}: its value is missing", name);
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

void refuse_empty_values(CLI::App& app) {
  const CLI::Validator filled(
      [](const std::string& value) { return value.empty() ? "the value is empty" : std::string(); }, "");
  const auto is_text = [](const CLI::Option& option) {
    constexpr std::string_view kTexts[] = {"prompt", "system", kWordOption.substr(2)};
    return std::ranges::any_of(kTexts,
                               [&](std::string_view text) { return option.check_lname(std::string(text)); });
  };
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options([](const CLI::Option*) { return true; }))
      if (option->get_expected_min() > 0 && !is_text(*option)) option->check(filled);
  }
}

void read_whole_numbers_as_decimal(CLI::App& app) {
  static constexpr const char* kDigits = "0123456789";
  const auto digits_of = [](std::string_view text) {
    return text.substr(text.starts_with('-') || text.starts_with('+') ? 1 : 0);
  };
  const auto shorten = [digits_of](std::string& text) {
    const std::string_view digits = digits_of(text);
    if (digits.find_first_not_of(kDigits) != std::string_view::npos) return std::string();
    const size_t zeros = std::min(digits.find_first_not_of('0'), std::max<size_t>(digits.size(), 1) - 1);
    text.erase(text.size() - digits.size(), zeros);
    return std::string();
  };
  const auto whole = [digits_of](const std::string& text) {
    const std::string_view digits = digits_of(text);
    const bool decimal = !digits.empty() && digits.find_first_not_of(kDigits) == std::string_view::npos;
    return decimal ? std::string() : fmt::format("'{}' is not a whole number", text);
  };
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options([](const CLI::Option*) { return true; }))
      if (option->get_type_name().find("INT") != std::string::npos)
        option->transform(CLI::Validator(shorten, ""))->check(CLI::Validator(whole, ""));
  }
}

std::string unknown_option(const CLI::App& app) {
  for (const std::string& word : app.remaining(true)) {
    const size_t name = word.find_first_not_of('-');
    const bool letter =
        name != std::string::npos && std::isalpha(static_cast<unsigned char>(word[name])) != 0;
    if (letter && (name == 1 || name == 2)) return word.substr(0, word.find('='));
  }
  return "";
}

std::string usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = selected(app);
  const std::string option = unknown_option(app);
  const std::string help =
      fmt::format(" (see moesaic {}--help)", &command == &app ? "" : command.get_name() + " ");
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr)
    return conversion_error(command, error) + help;
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr)
    return count_error(command, error) + help;
  if (dynamic_cast<const CLI::ExtrasError*>(&error) == nullptr || option.empty()) return error.what() + help;
  return fmt::format("unknown option {}{}{}", option, did_you_mean(option, option_names(command)), help);
}

std::string command_error(const CLI::App& app, const std::vector<std::string>& words) {
  if (words.size() < 2) return "give a command, such as moesaic run MODEL (see moesaic --help)";
  const std::string name = words[1].substr(0, words[1].find('='));
  const bool option = name.starts_with('-');
  std::vector<std::string> names;
  if (option) names = {"--help", "--version"};
  for (const CLI::App* command : app.get_subcommands([&](const CLI::App*) { return !option; }))
    names.push_back(command->get_name());
  if (std::ranges::find(names, name) != names.end() || name == "-h") return "";
  const std::string_view instead = instead_of_command(name);
  const std::string nearest = instead.empty() ? did_you_mean(name, names) : fmt::format("; use {}", instead);
  if (option && nearest.empty())
    return fmt::format(
        "give a command first: moesaic run {} ... (see moesaic --help)",
        fmt::join(words.begin() + 1, words.begin() + std::min<ptrdiff_t>(std::ssize(words), 3), " "));
  return fmt::format("unknown {} {}{} (see moesaic --help)", option ? "option" : "command",
                     option ? name : "'" + name + "'", nearest);
}

}  // namespace moesaic::app

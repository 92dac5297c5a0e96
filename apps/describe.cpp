#include "describe.h"

namespace moesaic::app {
namespace {

// CLI11 tells them in a type's name: "TEXT:{low,medium,high}".
std::vector<std::string> choices_of(const std::string& type) {
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

OptionText text_of(const CLI::Option& o) {
  OptionText text{.short_names = o.get_snames(),
                  .long_names = o.get_lnames(),
                  .name = o.get_positional() ? o.get_name(true) : "",
                  .help = o.get_description(),
                  .standard = {},
                  .choices = {},
                  .takes_value = o.get_items_expected_max() > 0,
                  .required = o.get_required(),
                  .is_model = o.check_lname("model") || o.get_name(true) == "MODEL"};
  if (text.takes_value) {
    if (o.get_default_str() != "[]") text.standard = o.get_default_str();
    text.choices = choices_of(o.get_type_name());
    if (o.check_lname("device")) text.choices = {"auto", "cpu", "cuda", "reference"};  // also cuda:1
  }
  return text;
}

}  // namespace

std::vector<std::string> OptionText::spellings() const {
  std::vector<std::string> all;
  for (const std::string& s : short_names) all.push_back("-" + s);
  for (const std::string& l : long_names) all.push_back("--" + l);
  return all;
}

std::vector<CommandText> describe(const CLI::App& app) {
  std::vector<CommandText> commands;
  for (const CLI::App* c : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (c->get_group().empty()) continue;
    CommandText& text = commands.emplace_back();
    text.name = c->get_name();
    text.help = c->get_description();
    text.footer = c->get_footer() == app.get_footer() ? "" : c->get_footer();
    for (const CLI::Option* o : c->get_options()) {
      if (!o->get_group().empty()) text.options.push_back(text_of(*o));
    }
  }
  return commands;
}

}  // namespace moesaic::app

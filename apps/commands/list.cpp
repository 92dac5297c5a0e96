// list: the models on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/bundled_model.h"
#include "chat/terminal.h"
#include "chat/terminal_text.h"
#include "checkpoint/model_list.h"
#include "commands.h"
#include "option_checks.h"
#include "print_json.h"
#include "progress.h"

namespace moesaic::app {
namespace {

struct ListOptions {
  bool all = false;
  std::string format = "md";
};

std::vector<FoundModel> found_models(const ListOptions& o) {
  const ModelPlaces places = model_places();
  for (const std::string& line : closed_places(places)) chat::notice("moesaic: note: not looked at: " + line);
  std::vector<FoundModel> models = models_here(places);
  if (!o.all) std::erase_if(models, [](const FoundModel& m) { return !m.gpt_oss; });
  if (const Result<std::string> tiny = bundled_model(); tiny.ok()) {
    FoundModel bundled = models_below(tiny.value()).front();
    bundled.name = "tiny", bundled.place = "moesaic";
    models.push_back(std::move(bundled));
  }
  return models;
}

void print_models_json(const std::vector<FoundModel>& models) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const FoundModel& m : models)
    rows.push_back({{"model", m.name},
                    {"kind", m.kind},
                    {"bytes", m.bytes},
                    {"place", m.place},
                    {"path", m.path},
                    {"complete", m.complete},
                    {"gpt_oss", m.gpt_oss}});
  print_json(rows, 2);
}

void print_models(const std::vector<FoundModel>& models) {
  int width = 2;
  for (const FoundModel& m : models)
    width = std::max(width, chat::display_width(chat::printable_line(m.name)));
  fmt::print("{:<{}}  {:>9}  {:<11}  {}\n", "-m", width, "size", "type", "where");
  for (const FoundModel& m : models) {
    const std::string name = chat::printable_line(m.name);
    fmt::print("{}{}  {:>9}  {:<11}  {}{}{}\n", name, std::string(width - chat::display_width(name), ' '),
               size_text(m.bytes), m.kind, m.place, m.complete ? "" : ", incomplete",
               m.gpt_oss ? "" : ", not gpt-oss");
  }
}

// For the shells' completion.
void print_names(const std::vector<FoundModel>& models) {
  for (const FoundModel& m : models) {
    if (m.complete) fmt::print("{}\n", chat::printable_line(m.name));
  }
}

}  // namespace

Run add_list(CLI::App& app) {
  auto o = std::make_shared<ListOptions>();
  CLI::App& c = *app.add_subcommand("list", "List the models on this machine, with the -m that opens each");
  c.add_flag("--all", o->all, "models of other architectures too, which are not opened");
  c.add_option("-o,--output", o->format, "md, json or names")->check(one_of({"md", "json", "names"}));
  c.footer(
      "It looks at the Hugging Face cache, Ollama's stores, LM Studio's folders, and\n"
      "the folder models where it is started.\n\n"
      "Examples:\n"
      "  moesaic list --all\n"
      "  moesaic list -o json | jq -r '.[].path'");
  return [o]() -> Status {
    const auto print = o->format == "json"    ? print_models_json
                       : o->format == "names" ? print_names
                                              : print_models;
    print(found_models(*o));
    return {};
  };
}

}  // namespace moesaic::app

#include "get_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <deque>
#include <iostream>
#include <set>

#include "base/error.h"
#include "chat/terminal_text.h"
#include "checkpoint/find_model.h"
#include "hub/pull.h"
#include "interrupt.h"
#include "progress.h"

namespace moesaic::app {
namespace {

using Clock = std::chrono::steady_clock;

std::string time_text(double seconds) {
  const auto s = static_cast<int64_t>(seconds);
  if (s >= 3600) return fmt::format("{} h {} min", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{} min {} s", s / 60, s % 60);
  return fmt::format("{} s", s);
}

// Shows the share that is done, the rate and the time left: at a terminal in a line that is written over.
// Elsewhere it only names what it waits for.
class PullProgress {
 public:
  explicit PullProgress(std::string name) : name_(std::move(name)) {}

  void show(const hub::Progress& p) {
    const Clock::time_point now = Clock::now();
    constexpr std::chrono::seconds kWindow(5);
    seen_.emplace_back(now, p.done);
    while (seen_.size() > 2 && now - seen_.front().first > kWindow) seen_.pop_front();
    const double seconds = std::chrono::duration<double>(now - seen_.front().first).count();
    const auto came = static_cast<double>(p.done - seen_.front().second);
    const double rate = seconds > 0 && came > 0 ? came / seconds : 0;
    std::string text = fmt::format("{}: {} of {}", name_, size_text(p.done), size_text(p.total));
    if (rate > 0)
      text += fmt::format(", {}/s, {} left", size_text(static_cast<int64_t>(rate)),
                          time_text(static_cast<double>(p.total - p.done) / rate));
    if (now < note_until_) text += fmt::format(" ({})", note_.substr(0, 60));
    line_.show(text);
  }

  void note(const std::string& why) {
    constexpr std::chrono::seconds kShown(3);
    note_ = chat::printable(why);
    note_until_ = Clock::now() + kShown;
    if (!line_.watched() && said_.insert(note_).second)
      std::fprintf(stderr, "moesaic: note: %s\n", note_.c_str());
  }

  void clear() { line_.clear(); }

 private:
  const std::string name_;
  ProgressLine line_;
  std::deque<std::pair<Clock::time_point, int64_t>> seen_;
  std::string note_;
  std::set<std::string> said_;  // each note stands in a log once
  Clock::time_point note_until_;
};

bool at_terminal() { return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0; }

// Yes is a mere Enter too.
bool agrees(const std::string& question) {
  std::fprintf(stderr, "%s [Y/n] ", chat::printable(question).c_str());
  std::string answer;
  if (!std::getline(std::cin, answer)) {
    std::fprintf(stderr, "\n");
    return false;
  }
  return answer.empty() || answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace

Result<std::string> get_model(const std::string& name, const GetOptions& options) {
  ASSIGN_OR_RETURN(hub::HubOptions hub, hub::hub_options());
  hub.connections = options.connections;
  ASSIGN_OR_RETURN(hub::Web web, hub::Web::create(hub));
  PullProgress progress(name);
  std::signal(SIGPIPE, SIG_IGN);  // a connection that its other end has closed comes back as an error
  const auto watch = [&](const InterruptScope& interrupt) {
    return hub::Watch{.cancelled = [&interrupt] { return interrupt.requested(); },
                      .waiting = [&progress](const std::string& why) { progress.note(why); }};
  };
  hub::PullPlan plan;
  {
    const InterruptScope interrupt;
    ASSIGN_OR_RETURN(plan, plan_pull(web, name, options.usual, watch(interrupt)));
  }
  if (options.ask && plan.missing > 0) {
    const std::string question = fmt::format("{} is not on this machine. Get {} from {}?", name,
                                             size_text(plan.missing), web.options().endpoint);
    if (!agrees(question))
      return error(StatusCode::kNotFound, "{}: not on this machine; get it: {}", name, pull_command(name));
  }
  const InterruptScope interrupt;
  return hub::pull(web, plan, watch(interrupt), [&](const hub::Progress& p) { progress.show(p); });
}

Result<std::string> get_if_absent(const std::string& name) {
  const auto parsed = repository_name(name);
  if (!parsed)
    return error(StatusCode::kUsage,
                 "-hf: '{}' is not OWNER/NAME, OWNER/NAME:QUANTISATION, either with @REVISION behind NAME, "
                 "or their address",
                 name);
  if (find_model(name, {.hub = model_places().hub}).ok()) return name;
  ASSIGN_OR_RETURN(const std::string path, get_model(name, {.usual = true}));
  // The server tells this name. It has the file if there may be several quantisations.
  const std::string file =
      path.ends_with(".gguf") ? path.substr(path.find("/snapshots/", model_places().hub.size()) + 11) : "";
  return file.empty() ? parsed->full_name() : parsed->full_name() + file.substr(file.find('/'));
}

Status offer_to_get(const std::string& name) {
  if (!at_terminal() || !repository_name(name)) return {};
  if (find_model(name, model_places()).status().code() != StatusCode::kNotFound) return {};
  if (hub::hub_options().ok() && hub::hub_options()->offline) return {};
  return get_model(name, {.ask = true}).status();
}

}  // namespace moesaic::app

#include "chat_loop.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/nearest.h"
#include "base/strings.h"
#include "chat/history_file.h"
#include "chat/line_editor.h"
#include "chat/terminal.h"
#include "foreign_words.h"
#include "text/harmony.h"

namespace moesaic::app {
namespace {

constexpr std::string_view kSpaces = " \t\n";

class Chat;

// A command that a person types instead of a message. One table serves /help, completion and parsing.
struct Command {
  const char *name, *argument, *help;
  std::vector<const char*> others;  // names that other programs have for it
  Status (Chat::*run)(const std::string& argument);
};

const std::vector<Command>& commands();

// At a terminal. editor: null on one that cannot move its cursor.
class Chat {
 public:
  Chat(Session& session, chat::LineEditor* editor)
      : session_(session), editor_(editor), file_(editor != nullptr ? chat::history_path() : "") {}

  Status run();
  Status handle(const std::string& message);
  bool ends() const { return ends_; }

  Status help(const std::string&);
  Status clear(const std::string&);
  Status system(const std::string& text);
  Status reasoning(const std::string& effort);
  Status save(const std::string& path);
  Status load(const std::string& path);
  Status read(const std::string& path);
  Status attach(const std::string& typed);
  Status retry(const std::string&);
  Status exit(const std::string&);

 private:
  Status command(const std::string& line);

  Session& session_;
  chat::LineEditor* editor_;
  chat::HistoryFile file_;
  std::string attached_;  // goes out with the next message
  bool ends_ = false;
};

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"/help", "", "this list", {"/?"}, &Chat::help},
      {"/clear", "", "forget what was said; the instructions stay", {"/new"}, &Chat::clear},
      {"/system", "[TEXT]", "set the instructions (\"\": none), or show them", {}, &Chat::system},
      {"/reasoning", "[EFFORT]", "low, medium or high; or show it", {"/think"}, &Chat::reasoning},
      {"/save", "FILE", "write the conversation as JSON", {}, &Chat::save},
      {"/load", "FILE", "go on with a conversation from a file", {}, &Chat::load},
      {"/read", "FILE", "send a file's text as the message", {"/file"}, &Chat::read},
      {"/attach", "FILE", "send a file's text with the next message", {}, &Chat::attach},
      {"/retry", "", "answer the last message once more, by another seed", {"/regen"}, &Chat::retry},
      {"/exit", "", "end (also Ctrl-D)", {"/quit", "/bye"}, &Chat::exit},
  };
  return all;
}

std::vector<std::string> command_names(bool others) {
  std::vector<std::string> names;
  for (const Command& c : commands()) {
    names.emplace_back(c.name);
    if (others) names.insert(names.end(), c.others.begin(), c.others.end());
  }
  return names;
}

const Command* find_command(const std::string& name) {
  for (const Command& c : commands()) {
    if (c.name == name || std::find(c.others.begin(), c.others.end(), name) != c.others.end()) return &c;
  }
  return nullptr;
}

// A path such as /etc/passwd is no command.
bool is_command(const std::string& line) {
  if (!line.starts_with('/')) return false;
  const size_t end = line.find_first_of(" \n");
  const std::string name = line.substr(1, end == std::string::npos ? end : end - 1);
  return std::all_of(name.begin(), name.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '?' || c == '-' || c == '_';
  });
}

// Returns the file's name. It may be typed as for a shell: 'a b', a\ b, ~/a. Terminals write the name of a
// file that is dropped into them in this way, too.
std::string file_name(const std::string& typed) {
  std::error_code code;
  if (std::filesystem::exists(typed, code)) return typed;
  std::string name;
  const bool quoted = typed.size() > 1 && (typed[0] == '\'' || typed[0] == '"') && typed.back() == typed[0];
  if (quoted) name = typed.substr(1, typed.size() - 2);
  for (size_t i = 0; !quoted && i < typed.size(); ++i) {
    if (typed[i] == '\\' && i + 1 < typed.size()) ++i;
    name += typed[i];
  }
  const char* home = std::getenv("HOME");
  return home != nullptr && name.starts_with("~/") ? home + name.substr(1) : name;
}

// Reads a file that is sent to the model. One with a NUL is refused.
Result<std::string> text_of_file(const std::string& path) {
  ASSIGN_OR_RETURN(std::string text, read_text_file(path));
  if (text.find('\0') != std::string::npos) return invalid("{}: not a text file", path);
  return text;
}

Status Chat::help(const std::string&) {
  std::string list;
  for (const Command& c : commands()) {
    std::string others;
    for (const char* other : c.others) others += (others.empty() ? " (" : ", ") + std::string(other);
    if (!others.empty()) others += ')';
    list += fmt::format("  {:<22} {}{}\n", fmt::format("{} {}", c.name, c.argument), c.help, others);
  }
  if (editor_ != nullptr)
    list +=
        "\n  Alt-Enter, Ctrl-J or \\ at the end of a line: another line; \"\"\" before and after several "
        "lines\n"
        "  Up, Down, Ctrl-R: earlier messages; Tab: complete a command\n"
        "  Ctrl-C: stop the answer or drop the line; in an empty line twice: end";
  chat::notice(list);
  return {};
}

Status Chat::clear(const std::string&) {
  session_.clear();
  attached_.clear();
  return {};
}

Status Chat::system(const std::string& text) {
  if (session_.raw()) return invalid("with --raw there are no instructions");
  if (text.empty()) {
    chat::notice(session_.conversation().instructions.empty() ? "no instructions"
                                                              : session_.conversation().instructions);
    return {};
  }
  session_.set_instructions(text == "\"\"" ? "" : text);
  return {};
}

Status Chat::reasoning(const std::string& effort) {
  if (session_.raw()) return invalid("with --raw there is no reasoning");
  if (effort.empty()) {
    chat::notice(effort_name(session_.conversation().reasoning_effort));
    return {};
  }
  const auto wanted = effort_of(effort);
  if (!wanted) return invalid("/reasoning: low, medium or high");
  session_.set_effort(*wanted);
  return {};
}

Status Chat::save(const std::string& path) {
  if (path.empty()) return invalid("/save: give a file");
  RETURN_IF_ERROR(session_.save(file_name(path)));
  chat::notice(fmt::format("{} messages saved", session_.conversation().messages.size()));
  return {};
}

Status Chat::load(const std::string& path) {
  if (path.empty()) return invalid("/load: give a file");
  RETURN_IF_ERROR(session_.load(file_name(path)));
  chat::notice(fmt::format("{} messages", session_.conversation().messages.size()));
  return {};
}

Status Chat::read(const std::string& path) {
  if (path.empty()) return invalid("/read: give a file");
  ASSIGN_OR_RETURN(const std::string text, text_of_file(file_name(path)));
  return session_.turn(text, true);
}

Status Chat::attach(const std::string& typed) {
  if (typed.empty()) return invalid("/attach: give a file");
  const std::string path = file_name(typed);
  ASSIGN_OR_RETURN(const std::string text, text_of_file(path));
  std::string fence = "```";
  while (text.find(fence) != std::string::npos) fence += '`';
  attached_ += fmt::format("\n\n{}:\n{}\n{}{}{}", path, fence, text, text.ends_with('\n') ? "" : "\n", fence);
  chat::notice(fmt::format("{}: {} bytes go out with the next message", path, text.size()));
  return {};
}

Status Chat::retry(const std::string&) { return session_.retry(); }

Status Chat::exit(const std::string&) {
  ends_ = true;
  return {};
}

Status Chat::command(const std::string& line) {
  const size_t end = std::min(line.find_first_of(" \n"), line.size());
  const std::string name = line.substr(0, end);
  const Command* found = find_command(name);
  if (const std::string_view instead = instead_of_chat_word(name); found == nullptr && !instead.empty())
    return invalid("{}: {}", name, instead);
  if (found == nullptr)
    return invalid("unknown command {}{} (/help lists them; a space before the / sends it as a message)",
                   name, did_you_mean(lower_case(name), command_names(true)));
  const std::string argument(trimmed(std::string_view(line).substr(end), kSpaces));
  if (*found->argument == 0 && !argument.empty()) return invalid("{} takes no argument", found->name);
  return (this->*found->run)(argument);
}

Status Chat::handle(const std::string& message) {
  if (trimmed(message, kSpaces).empty()) return {};
  if (editor_ != nullptr) editor_->remember(message);
  if (const Status kept = file_.append(message); !kept.ok()) {
    chat::notice(fmt::format("moesaic: note: no history is kept: {}", kept.message()));
    file_ = chat::HistoryFile("");
  }
  if (is_command(message)) return command(message);
  return session_.turn(message + std::exchange(attached_, {}), true);
}

// A message or a command that fails is no reason to lose the conversation; a device that fails is.
bool goes_on(const Status& status) {
  return status.code() == StatusCode::kInvalidArgument || status.code() == StatusCode::kNotFound ||
         status.code() == StatusCode::kIo;
}

Status Chat::run() {
  for (const std::string& message : file_.read()) editor_->remember(message);
  chat::notice(session_.describe() +
               "\nEnter sends a message, Ctrl-C stops an answer, Ctrl-D ends; /help lists commands.");
  for (int interrupts = 0; !ends_;) {
    const chat::Input input = editor_->read("> ");
    if (input.typed == chat::Typed::kEnd) {
      std::fputs("\n", stderr);
      return {};
    }
    if (input.typed == chat::Typed::kInterrupt) {
      if (++interrupts == 2) return {};
      chat::notice("Ctrl-C again, or Ctrl-D, ends.");
      continue;
    }
    interrupts = 0;
    if (input.typed == chat::Typed::kNothing) continue;
    Status status = handle(input.text);
    if (!status.ok() && !goes_on(status)) return status;
    if (!status.ok()) chat::notice("moesaic: " + status.message());
  }
  return {};
}

// Without an editor, which needs a terminal that it can draw on.
Status chat_by_lines(Session& session) {
  const bool terminal = isatty(STDIN_FILENO) != 0;
  Chat person(session, nullptr);
  if (terminal)
    chat::notice(
        "Type a message and press Enter; Ctrl-C stops an answer, Ctrl-D ends; /help lists commands.");
  for (bool first = true; !person.ends(); first = false) {
    if (terminal) std::fputs("> ", stderr);
    ASSIGN_OR_RETURN(const std::optional<std::string> read, read_line());
    if (!read) {
      if (terminal) std::fputs("\n", stderr);
      return {};
    }
    std::string line = *read;
    if (first) drop_byte_order_mark(line);
    if (line.ends_with('\r')) line.pop_back();  // files with Windows' line ends
    if (line.empty()) continue;
    const Status status = terminal ? person.handle(line) : session.turn(line, false);
    if (!terminal || !goes_on(status)) RETURN_IF_ERROR(status);
    if (!status.ok()) chat::notice("moesaic: " + status.message());
  }
  return {};
}

}  // namespace

Status chat(Session& session) {
  const auto editor = chat::LineEditor::create(command_names(false));
  if (editor == nullptr) return chat_by_lines(session);
  return Chat(session, editor.get()).run();
}

}  // namespace moesaic::app

#include "chat/line_editor.h"

#include <histedit.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cwchar>
#include <set>
#include <string>
#include <string_view>

#include "chat/pastes.h"
#include "chat/terminal.h"
#include "chat/terminal_text.h"

namespace moesaic::chat {
namespace {

constexpr size_t kMostPaste = 16 << 20;  // bytes; what follows them is dropped
constexpr int kHistorySize = 1000;
// libedit keeps no more of a line when it shows another one (EL_BUFSIZ, less one).
constexpr ptrdiff_t kMostSaved = 1000;
constexpr const char* kPasteEnd = "\x1b[201~";
constexpr const char* kQuotes = "\"\"\"";
// Keys that no keyboard has, for what a key of ours hands on to libedit.
constexpr const char *kLineUp = "\x1b[9001~", *kLineDown = "\x1b[9002~", *kHistoryUp = "\x1b[9003~",
                     *kHistoryDown = "\x1b[9004~";

struct Binding {
  const char *key, *function;
};

// In libedit's notation; ours begin with moesaic. In the editor's terminal mode a return is ^J and a line
// feed ^M.
constexpr Binding kBindings[] = {
    {"\\e[200~", "moesaic-paste"},
    {"^M", "moesaic-new-line"},
    {"\\e^J", "moesaic-new-line"},
    {"\\e^M", "moesaic-new-line"},
    {"^C", "moesaic-interrupt"},
    {"^Z", "moesaic-suspend"},
    {"^I", "moesaic-complete"},
    {"^P", "moesaic-up"},
    {"^N", "moesaic-down"},
    {"\\e[A", "moesaic-up"},
    {"\\e[B", "moesaic-down"},
    {"\\eOA", "moesaic-up"},
    {"\\eOB", "moesaic-down"},
    {"\\e[9001~", "ed-prev-line"},
    {"\\e[9002~", "ed-next-line"},
    {"\\e[9003~", "ed-prev-history"},
    {"\\e[9004~", "ed-next-history"},
    {"^R", "em-inc-search-prev"},
    {"^W", "ed-delete-prev-word"},
    {"\\e[H", "ed-move-to-beg"},
    {"\\e[F", "ed-move-to-end"},
    {"\\e[1~", "ed-move-to-beg"},
    {"\\e[4~", "ed-move-to-end"},
    {"\\eOH", "ed-move-to-beg"},
    {"\\eOF", "ed-move-to-end"},
    {"\\e[3~", "ed-delete-next-char"},
    {"\\e[1;5C", "em-next-word"},
    {"\\e[1;5D", "ed-prev-word"},
    {"\\e[1;3C", "em-next-word"},
    {"\\e[1;3D", "ed-prev-word"},
    {"\\e^?", "ed-delete-prev-word"},
    // libedit's own commands are for its developers.
    {"\\ex", "ed-unassigned"},
    {"\\eX", "ed-unassigned"},
};

// True if the sequence of a key means something: libedit would put the end of any other one into the line.
bool is_known_key(const std::string& sequence) {
  static const std::set<std::string> known = [] {
    std::set<std::string> all = {"\x1b[C", "\x1b[D", "\x1bOC", "\x1bOD"};
    for (const Binding& b : kBindings) {
      const std::string_view key = b.key;
      if (key.starts_with("\\e")) all.insert("\x1b" + std::string(key.substr(2)));
    }
    return all;
  }();
  return known.contains(sequence);
}

bool capable() {
  const char* type = std::getenv("TERM");
  return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0 && type != nullptr &&
         std::string(type) != "dumb" && *type != 0;
}

// True if the terminal breaks long lines anew when it is resized. GNU screen, xterm and the console do not.
bool breaks_lines_anew() {
  const auto set = [](const char* name) { return std::getenv(name) != nullptr; };
  return set("TMUX") || (!set("STY") && !set("XTERM_VERSION") && std::string(std::getenv("TERM")) != "linux");
}

class Libedit : public LineEditor {
 public:
  explicit Libedit(std::vector<std::string> words);
  ~Libedit() override;
  bool ready() const { return edit_ != nullptr; }
  Input read(const std::string& prompt) override;
  void remember(const std::string& message) override;

 private:
  using Key = unsigned char (Libedit::*)();

  static Libedit& of(EditLine* edit) {
    void* self = nullptr;
    el_get(edit, EL_CLIENTDATA, &self);
    return *static_cast<Libedit*>(self);
  }
  template <Key key>
  static unsigned char call(EditLine* edit, int) {
    return (of(edit).*key)();
  }
  template <Key key>
  void add_key(const char* name) {
    el_set(edit_, EL_ADDFN, name, name, &call<key>);
  }
  static const char* prompt_of(EditLine* edit) { return of(edit).prompt_.c_str(); }
  static int read_character(EditLine* edit, wchar_t* out) { return of(edit).next(*out); }

  void set_up();
  void clear_line();
  int next_byte(char& byte);
  bool more() const;
  std::string key_sequence();
  int next(wchar_t& out);
  Input read_line();
  unsigned char insert(const std::string& text);
  unsigned char paste();
  unsigned char new_line() { return insert("\n"); }
  unsigned char interrupt();
  unsigned char suspend();
  unsigned char complete();
  unsigned char vertical(bool in_line, const char* line, const char* history);
  unsigned char up();
  unsigned char down();
  std::string before_cursor() const;

  Terminal terminal_;  // as it was before libedit changes it
  std::vector<std::string> words_;
  Pastes pastes_;
  FILE* out_ = nullptr;
  EditLine* edit_ = nullptr;
  History* history_ = nullptr;
  std::string prompt_;
  std::string read_;  // bytes of a key that libedit has not taken
  bool interrupted_ = false;
};

Libedit::Libedit(std::vector<std::string> words) : words_(std::move(words)) {
  out_ = fdopen(dup(STDERR_FILENO), "w");  // with a buffer, which standard error has not
  if (out_ != nullptr) edit_ = el_init("moesaic", stdin, out_, out_);
  if (edit_ != nullptr) set_up();
}

Libedit::~Libedit() {
  if (history_ != nullptr) history_end(history_);
  if (edit_ != nullptr) el_end(edit_);
  if (out_ != nullptr) std::fclose(out_);
}

void Libedit::set_up() {
  el_set(edit_, EL_CLIENTDATA, this);
  el_set(edit_, EL_PROMPT, &prompt_of);
  el_set(edit_, EL_EDITOR, "emacs");
  el_set(edit_, EL_SIGNAL, 0);
  el_set(edit_, EL_GETCFN, &read_character);
  el_set(edit_, EL_SETTY, "-d", "-isig", nullptr);  // Ctrl-C and Ctrl-Z are keys
  // Between two lines: a terminal that made lines itself would cut them at 4 KiB. noflsh: Ctrl-C does
  // not drop what waits.
  el_set(edit_, EL_SETTY, "-x", "-icanon", "-echo", "+icrnl", "+inlcr", "+noflsh", nullptr);
  add_key<&Libedit::paste>("moesaic-paste");
  add_key<&Libedit::new_line>("moesaic-new-line");
  add_key<&Libedit::interrupt>("moesaic-interrupt");
  add_key<&Libedit::suspend>("moesaic-suspend");
  add_key<&Libedit::complete>("moesaic-complete");
  add_key<&Libedit::up>("moesaic-up");
  add_key<&Libedit::down>("moesaic-down");
  for (const auto& [key, function] : kBindings) el_set(edit_, EL_BIND, key, function, nullptr);
  history_ = history_init();
  HistEvent event;
  history(history_, &event, H_SETSIZE, kHistorySize);
  history(history_, &event, H_SETUNIQUE, 1);
  el_set(edit_, EL_HIST, history, history_);
}

// A resized terminal has broken the line anew, and libedit, which does not know that, would draw it once more
// below.
void Libedit::clear_line() {
  winsize size{};
  if (!breaks_lines_anew() || ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return;
  const std::string shown = prompt_ + before_cursor();
  int rows = 0;  // between the line's first row and the cursor's
  size_t at = 0;
  for (size_t end = 0; (end = shown.find('\n', at)) != std::string::npos; at = end + 1)
    rows += 1 + std::max(0, display_width(shown.substr(at, end - at)) - 1) / size.ws_col;
  rows += display_width(shown.substr(at)) / size.ws_col;
  std::fputs(rows > 0 ? ("\r\x1b[" + std::to_string(rows) + "A\x1b[J").c_str() : "\r\x1b[J", out_);
}

// 1; 0 at the end of the input; -1 on an error.
int Libedit::next_byte(char& byte) {
  if (!read_.empty()) {
    byte = read_[0];
    read_.erase(0, 1);
    return 1;
  }
  for (;;) {
    pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    const bool ready = poll(&input, 1, -1) == 1;
    if (resized()) {
      clear_line();
      el_resize(edit_);
      el_set(edit_, EL_REFRESH);
    }
    if (ready) return static_cast<int>(::read(STDIN_FILENO, &byte, 1));
    if (errno != EINTR) return -1;
  }
}

// True if a byte comes at once, as the rest of a key does.
bool Libedit::more() const {
  constexpr int kTogether = 50;  // ms
  pollfd input = {.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
  return !read_.empty() || poll(&input, 1, kTogether) == 1;
}

// Reads the rest of a key behind its escape: a whole control sequence (ECMA-48), or one byte. Returns all of
// it.
std::string Libedit::key_sequence() {
  constexpr size_t kLongest = 32;
  std::string key = "\x1b";
  for (char byte = 0; key.size() < kLongest && more() && next_byte(byte) == 1;) {
    key += byte;
    if (key.size() == 2 && byte != '[' && byte != 'O') break;
    if (key.size() > 2 && (byte >= 0x40 || byte < 0x20)) break;
  }
  return key;
}

// The next character; what is none is passed over, and so are keys without a meaning.
int Libedit::next(wchar_t& out) {
  std::mbstate_t state{};
  for (char byte = 0;;) {
    if (const int got = next_byte(byte); got != 1) return got;
    if (byte == '\x1b') {
      const std::string key = key_sequence();
      if (key.size() > 2 && !is_known_key(key)) continue;
      read_ = key.substr(1) + read_;
    }
    const size_t length = std::mbrtowc(&out, &byte, 1, &state);
    if (length == static_cast<size_t>(-1)) state = {};
    if (length <= 1) return 1;
  }
}

Input Libedit::read_line() {
  int count = 0;
  interrupted_ = false;
  terminal_.set_editing(true);
  const char* line = el_gets(edit_, &count);
  terminal_.set_editing(false);
  std::fflush(out_);
  if (line == nullptr || count <= 0) return {.typed = Typed::kEnd, .text = ""};
  std::string text(line, static_cast<size_t>(count));
  if (text.ends_with('\n')) text.pop_back();
  if (interrupted_) return {.typed = text.empty() ? Typed::kInterrupt : Typed::kNothing, .text = ""};
  return {.typed = Typed::kMessage, .text = text};
}

// True if the message goes on in another line; a backslash that says so is taken off.
bool goes_on(std::string& text, bool quoted) {
  if (quoted) return text.find(kQuotes, 3) == std::string::npos;
  if (!text.ends_with('\\')) return false;
  text.pop_back();
  return true;
}

Input Libedit::read(const std::string& prompt) {
  prompt_ = prompt;
  Input input = read_line();
  const bool quoted = input.text.starts_with(kQuotes);
  while (input.typed == Typed::kMessage && goes_on(input.text, quoted)) {
    prompt_ = std::string(prompt.size() - 2, ' ') + ". ";
    Input more = read_line();
    if (more.typed != Typed::kMessage)
      return {.typed = more.typed == Typed::kEnd ? Typed::kEnd : Typed::kNothing, .text = ""};
    input.text += "\n" + more.text;
  }
  if (quoted && input.typed == Typed::kMessage) {
    const size_t end = input.text.find(kQuotes, 3);
    input.text = input.text.substr(3, end - 3) + input.text.substr(end + 3);
  }
  input.text = pastes_.expand(input.text);  // quotes and backslashes in a paste are only text
  return input;
}

void Libedit::remember(const std::string& message) {
  HistEvent event;
  history(history_, &event, H_ENTER, pastes_.shown(message).c_str());
}

unsigned char Libedit::insert(const std::string& text) {
  if (text.empty()) return CC_NORM;
  return el_insertstr(edit_, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
}

unsigned char Libedit::paste() {
  std::string typed;
  const std::string end = kPasteEnd;
  for (char byte = 0; !typed.ends_with(end) && next_byte(byte) == 1;) {
    if (typed.size() < kMostPaste || byte == '\x1b' || end.find(byte) != std::string::npos) typed += byte;
  }
  if (typed.ends_with(end)) typed.resize(typed.size() - end.size());
  return insert(pastes_.shown(printable(clean_paste(typed))));
}

// The line is ended as Return does, which leaves the cursor below it, and then dropped.
unsigned char Libedit::interrupt() {
  interrupted_ = true;
  el_push(edit_, "\n");
  return CC_NORM;
}

unsigned char Libedit::suspend() {
  std::raise(SIGTSTP);
  return CC_REDISPLAY;
}

std::string Libedit::before_cursor() const {
  const LineInfo* line = el_line(edit_);
  return {line->buffer, line->cursor};
}

unsigned char Libedit::complete() {
  const std::string begun = before_cursor();
  const auto fits = [&](const std::string& word) { return !begun.empty() && word.starts_with(begun); };
  if (std::count_if(words_.begin(), words_.end(), fits) != 1) return CC_ERROR;
  return insert(std::find_if(words_.begin(), words_.end(), fits)->substr(begun.size()) + " ");
}

unsigned char Libedit::vertical(bool in_line, const char* line, const char* history) {
  const LineInfo* all = el_line(edit_);
  if (!in_line && all->lastchar - all->buffer > kMostSaved) return CC_ERROR;
  el_push(edit_, in_line ? line : history);
  return CC_NORM;
}

unsigned char Libedit::up() {
  return vertical(before_cursor().find('\n') != std::string::npos, kLineUp, kHistoryUp);
}

unsigned char Libedit::down() {
  const LineInfo* line = el_line(edit_);
  return vertical(std::find(line->cursor, line->lastchar, '\n') != line->lastchar, kLineDown, kHistoryDown);
}

}  // namespace

std::unique_ptr<LineEditor> LineEditor::create(std::vector<std::string> words) {
  if (!capable()) return nullptr;
  use_utf8();
  auto editor = std::make_unique<Libedit>(std::move(words));
  if (!editor->ready()) return nullptr;
  return editor;
}

}  // namespace moesaic::chat

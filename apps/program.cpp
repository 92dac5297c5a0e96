#include "program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "api/option_words.h"
#include "backend/backend.h"
#include "base/log.h"
#include "chat/terminal_text.h"
#include "checkpoint/mapped_file.h"
#include "commands/commands.h"
#include "foreign_words.h"
#include "help.h"
#include "interrupt.h"
#include "model_options.h"

namespace moesaic::app {
namespace {

// The status that shells give to a program that SIGINT ended.
constexpr int kInterrupted = 130;

int failed(const char* what) {
  std::fprintf(stderr, "moesaic: %s\n", what);
  return 1;
}

int unwritten() { return failed("cannot write to standard output"); }

// The error is fmt's where standard output cannot take more, else that of a thread which could not be
// started.
int failed_by_system(const std::system_error& e) {
  if (std::ferror(stdout) != 0) return unwritten();
  const bool no_thread = e.code() == std::errc::resource_unavailable_try_again;
  return failed(no_thread ? "cannot start a thread: a limit is reached (ulimit -u, a container's pids limit)"
                          : e.what());
}

// One line. Messages may have names out of a file or from the command line, which must not steer the
// terminal.
void say(const std::string& message) {
  std::fprintf(stderr, "moesaic: %s\n", chat::printable_line(message).c_str());
}

int report(const Status& status) {
  if (status.code() == StatusCode::kCancelled) return kInterrupted;
  if (!status.ok()) {
    say(status.message());
    return status.code() == StatusCode::kUsage ? 2 : 1;
  }
  // Output that never reached a full disk or a closed pipe must not count as success.
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 ? 0 : unwritten();
}

constexpr Run (*kCommands[])(CLI::App&) = {
    add_run,  add_bench,  add_logits,  add_perplexity,  add_tokenize,   add_detokenize, add_render,
    add_pull, add_list,   add_inspect, add_verify,      add_profile,    add_convert,    add_plan,
    add_tune, add_warmup, add_serve,   add_bench_serve, add_completion, add_man};

// A stream that the caller closed would otherwise give its number to the next file that is opened, and what
// is printed would go into that file. Opened for reading only, so that printing fails.
void occupy_closed_streams() {
  for (int fd = open("/dev/null", O_RDONLY); fd >= 0; fd = open("/dev/null", O_RDONLY)) {
    if (fd > 2) {
      close(fd);
      return;
    }
  }
}

// The words of `run` behind "--" as values of an option, before all others.
std::vector<std::string> with_prompt_words(const std::vector<std::string>& words) {
  const auto mark = std::ranges::find(words, "--");
  if (mark == words.end() || words.size() < 2 || words[1] != "run") return words;
  std::vector<std::string> out = {words[0], words[1]};
  for (auto word = mark + 1; word != words.end(); ++word)
    out.push_back(std::string(kWordOption) + "==" + *word);
  out.insert(out.end(), words.begin() + 2, mark);
  return out;
}

int wrong_usage(const std::string& what) {
  say(what);
  return 2;
}

// A second line names the GPU code that is inside.
std::string version_text() {
  const std::string code = gpu_code();
  return "moesaic " MOESAIC_VERSION "\nGPU code: " + (code.empty() ? "none" : code);
}

}  // namespace

int run_program(int argc, char** argv) try {
  occupy_closed_streams();
  // A limit on the size of files (ulimit -f) comes back as the error of a write.
  std::signal(SIGXFSZ, SIG_IGN);
  obey_signals_as_init();
  catch_file_faults();
  speak_of_flags();
  set_notices(true);
  CLI::App app("moesaic runs OpenAI's gpt-oss models as fast as the memory of the machine allows.",
               "moesaic");
  // For all commands: help shows what holds without an option.
  app.option_defaults()->always_capture_default();
  app.set_version_flag("--version", version_text());
  app.require_subcommand(1);
  app.footer(
      "Examples:\n  moesaic run openai/gpt-oss-20b Why is the sky blue\n  moesaic bench -m "
      "gpt-oss-20b.gguf -p 512 -n 32\n  moesaic COMMAND --help explains a command.");
  Run run;
  for (const auto add : kCommands) {
    const size_t before = app.get_subcommands(nullptr).size();
    const Run body = add(app);
    app.get_subcommands(nullptr)[before]->callback([&run, body] { run = body; });
  }
  add_help(app);
  refuse_empty_values(app);
  read_whole_numbers_as_decimal(app);
  const auto ours = in_our_words(app, {argv, argv + argc});
  if (!ours.ok()) return report(ours.status());
  const std::vector<std::string> words = with_prompt_words(ours.value());
  // CLI11 would only say that a subcommand is missing.
  if (const std::string wrong = command_error(app, words); !wrong.empty()) return wrong_usage(wrong);
  std::vector<const char*> pointers;
  for (const std::string& word : words) pointers.push_back(word.c_str());
  try {
    app.parse(static_cast<int>(pointers.size()), pointers.data());
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return wrong_usage(usage_error(app, e));
    app.exit(e);  // prints help or version
    return std::cout.flush() ? 0 : unwritten();
  }
  leave_out_gpu_options(*app.get_subcommands().front());
  return report(run());
} catch (const std::system_error& e) {
  return failed_by_system(e);
} catch (const std::bad_alloc&) {
  return failed("out of memory");
} catch (const std::exception& e) {
  return failed(e.what());
}

}  // namespace moesaic::app

// moesaic(1), in man's macros (groff_man(7)).
#include <fmt/format.h>

#include "describe.h"

namespace moesaic::app {
namespace {

// A backslash, a hyphen that is to be copied, and a leading dot or quote mean something to roff.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += std::string("\\&") + c;
    else
      out += c;
  }
  return out;
}

std::string option(const OptionText& o) {
  const auto names = o.spellings();
  std::string text = names.empty() ? fmt::format(".TP\n.I {}\n", roff(o.name))
                                   : fmt::format(".TP\n.B {}", roff(CLI::detail::join(names, ", ")));
  if (!names.empty() && o.takes_value) {
    text += o.choices.empty() ? " \\fIVALUE\\fR" : " \\fR" + roff(CLI::detail::join(o.choices, " | "));
  }
  if (!names.empty()) text += '\n';
  text += roff(o.help);
  if (o.required) text += " (required)";
  if (!o.standard.empty()) text += fmt::format(" (unless given: {})", roff(o.standard));
  return text + "\n";
}

std::string command(const CommandText& c) {
  std::string text = fmt::format(".SS moesaic {}\n{}.\n", c.name, roff(c.help));
  for (const OptionText& o : c.options) {
    if (o.long_names.empty() || !o.long_names[0].starts_with("help")) text += option(o);
  }
  if (!c.footer.empty()) text += fmt::format(".PP\n{}\n", roff(CLI::detail::trim_copy(c.footer)));
  return text;
}

constexpr const char* kEnd = R"(.SH ENVIRONMENT
.TP
.B MOESAIC_MODELS
The folder that holds the bundled model tiny, where it is not beside the program.
.TP
.B MOESAIC_API_KEY
One key that clients of
.B moesaic serve
must show.
.TP
.B XDG_CACHE_HOME
Measurements of
.B moesaic tune
and kernels of
.B moesaic warmup
are kept in its folder moesaic (else in ~/.cache/moesaic).
.SH EXIT STATUS
0 success, 1 failure, 2 wrong usage, 130 after an interrupt. A failure is one line on standard error that says what, where
and what to do.
.SH EXAMPLES
.nf
moesaic run \-m gpt\-oss\-20b \-p "Why is the sky blue?"
moesaic serve \-m gpt\-oss\-20b \-\-port 8080
moesaic bench \-m gpt\-oss\-20b.gguf \-p 512 \-n 32
.fi
.SH NOTES
The server speaks no TLS: put a reverse proxy before it. API, deployment and the library are described in the pages of
share/doc/moesaic.
)";

}  // namespace

std::string man_page(const CLI::App& app, const std::string& version) {
  std::string text = fmt::format(
      ".\\\" Written by `moesaic man`.\n.TH MOESAIC 1 \"\" \"moesaic {0}\" \"User Commands\"\n.SH "
      "NAME\nmoesaic \\- run "
      "and serve gpt\\-oss models\n.SH SYNOPSIS\n.B moesaic\n.I COMMAND\n.RI [ OPTIONS ]\n.SH "
      "DESCRIPTION\n{1}\n"
      ".PP\n.I MODEL\nis a folder with config.json, .safetensors and tokenizer.json, a .gguf file, tiny (the "
      "bundled\n"
      "model), or dummy:gpt\\-oss\\-20b[,layers=N]: random weights of the true shapes, for benchmarks only.\n"
      ".SH COMMANDS\n",
      version, roff(app.get_description()));
  for (const CommandText& c : describe(app)) text += command(c);
  return text + kEnd;
}

}  // namespace moesaic::app

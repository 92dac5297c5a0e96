// Completion scripts for bash, zsh and fish. Models complete to what `moesaic list` finds and to file names,
// other values without choices to file names.
#include <fmt/format.h>

#include "describe.h"

namespace moesaic::app {
namespace {

// Between single quotes, for shells whose quotes know no escape (bash, zsh).
std::string quoted(const std::string& text) {
  return "'" + CLI::detail::find_and_replace(text, "'", "'\\''") + "'";
}

std::string escaped(const std::string& text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string bash_case(const CommandText& command) {
  std::vector<std::string> all;
  std::string values;
  for (const OptionText& o : command.options) {
    const auto names = o.spellings();
    all.insert(all.end(), names.begin(), names.end());
    if (o.takes_value && !names.empty())
      values +=
          fmt::format("        {}) {} value=yes ;;\n", CLI::detail::join(names, "|"),
                      o.is_model ? "models=yes" : "choices=" + quoted(CLI::detail::join(o.choices, " ")));
  }
  return fmt::format("    {})\n      options='{}'\n      case $previous in\n{}      esac ;;\n", command.name,
                     CLI::detail::join(all, " "), values + "        *) ;;\n");
}

std::string zsh_spec(const OptionText& o) {
  const auto names = o.spellings();
  const std::string value = !o.takes_value ? ""
                            : o.is_model   ? ":model:_moesaic_models"
                            : o.choices.empty()
                                ? ":value:_files"
                                : fmt::format(":value:({})", CLI::detail::join(o.choices, " "));
  if (names.empty()) return quoted(fmt::format(":{}:{}", o.name, o.is_model ? "_moesaic_models" : "_files"));
  const std::string help = "[" + escaped(o.help, "[]\\:") + "]";
  if (names.size() == 1) return names[0] + quoted(help + value);
  return fmt::format("{}{{{}}}{}", quoted(fmt::format("({})", CLI::detail::join(names, " "))),
                     CLI::detail::join(names, ","), quoted(help + value));
}

std::string fish_line(const CommandText& command, const OptionText& o) {
  std::string line = fmt::format("complete -c moesaic -n '__fish_seen_subcommand_from {}'", command.name);
  for (const std::string& s : o.short_names) line += " -s " + s;
  for (const std::string& l : o.long_names) line += " -l " + l;
  if (o.is_model)
    line += " -r -a '(moesaic list -o names 2>/dev/null)'";
  else if (o.takes_value)
    line += o.choices.empty() ? " -r" : fmt::format(" -x -a '{}'", CLI::detail::join(o.choices, " "));
  return line + " -d '" + escaped(o.help, "'\\") + "'\n";
}

}  // namespace

std::string bash_completion(const std::vector<CommandText>& commands) {
  std::string cases;
  for (const CommandText& c : commands) cases += bash_case(c);
  return fmt::format(R"(# bash completion of moesaic, written by `moesaic completion bash`
_moesaic() {{
  # bash parts a word at its colons (COMP_WORDBREAKS) and completes what is behind the last one
  local words=("${{COMP_WORDS[0]}}") i before=''
  for ((i = 1; i <= COMP_CWORD; ++i)); do
    if ((i > 1)) && [[ ${{COMP_WORDS[i]}} == : || (${{COMP_WORDS[i - 1]}} == : && -n ${{COMP_WORDS[i]}}) ]]; then
      words[-1]+=${{COMP_WORDS[i]}}
    else
      words+=("${{COMP_WORDS[i]}}")
    fi
  done
  local word=${{words[-1]}} previous=${{words[-2]}} options='' choices='' models='' value=''
  if [[ ${{COMP_WORDBREAKS-}} == *:* ]]; then before=${{word%"${{word##*:}}"}}; fi
  COMPREPLY=()
  if [ "${{#words[@]}}" = 2 ]; then
    mapfile -t COMPREPLY < <(compgen -W '{} --help --version' -- "$word")
    return
  fi
  case ${{words[1]}} in
{}    *) ;;
  esac
  if [ "${{words[1]}}:${{#words[@]}}" = run:3 ] && [[ $word != -* ]]; then
    models=yes
  fi
  if [ -n "$models" ]; then
    local model  # compgen -W would run what a name like $(x) says
    while IFS= read -r model; do
      if [[ $model == "$word"* ]]; then printf -v model %q "${{model#"$before"}}"; COMPREPLY+=("$model"); fi
    done < <("${{COMP_WORDS[0]}}" list -o names 2>/dev/null)
  elif [ -n "$choices" ]; then
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
  elif [ -z "$value" ] && [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  fi
}}
complete -o default -F _moesaic moesaic
)",
                     CLI::detail::join(
                         commands, [](const CommandText& c) { return c.name; }, " "),
                     cases);
}

std::string zsh_completion(const std::vector<CommandText>& commands) {
  std::string names, cases;
  for (const CommandText& c : commands) {
    names += fmt::format("    {}\n", quoted(c.name + ":" + escaped(c.help, ":\\")));
    cases += fmt::format("    {})\n      _arguments", c.name);
    for (const OptionText& o : c.options) cases += " \\\n        " + zsh_spec(o);
    cases += " ;;\n";
  }
  return fmt::format(R"(#compdef moesaic
# zsh completion of moesaic, written by `moesaic completion zsh`
_moesaic_models() {{
  local -a models
  models=("${{(@f)$(moesaic list -o names 2>/dev/null)}}")
  compadd -a models
  _files
}}
_moesaic() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
  case $command in
{}  esac
}}
if [ "$funcstack[1]" = _moesaic ]; then
  _moesaic "$@"
else
  compdef _moesaic moesaic
fi
)",
                     names, cases);
}

std::string fish_completion(const std::vector<CommandText>& commands) {
  std::string text = "# fish completion of moesaic, written by `moesaic completion fish`\n";
  for (const CommandText& c : commands)
    text += fmt::format("complete -c moesaic -f -n __fish_use_subcommand -a {} -d '{}'\n", c.name,
                        escaped(c.help, "'\\"));
  for (const CommandText& c : commands) {
    for (const OptionText& o : c.options) {
      if (!o.spellings().empty()) text += fish_line(c, o);
    }
  }
  return text;
}

}  // namespace moesaic::app

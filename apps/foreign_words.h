// Words that llama.cpp, vLLM, Ollama and others have on their command lines: what to use here instead.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/status.h"

namespace moesaic::app {

// A command line in our words: `help COMMAND` as --help, -hf NAME and --hf-repo NAME as -m hf:NAME (of pull,
// as the name), -ncmoe and -cmoe as --n-cpu-moe and --cpu-moe. CLI11 knows no short options of several
// letters: it would take them apart. Fails at an option of another program, by a line that says what to use;
// values that options must have and words behind "--" are not looked at.
Result<std::vector<std::string>> in_our_words(const CLI::App& app, std::vector<std::string> words);

// Our words for another program's command, and for a word that it has in a conversation; empty: it is none of
// those that are known.
std::string_view instead_of_command(std::string_view name);
std::string_view instead_of_chat_word(std::string_view name);

}  // namespace moesaic::app

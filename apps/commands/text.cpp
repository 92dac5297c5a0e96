// tokenize, detokenize and render: a model's text side without its weights.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/tokenizer_source.h"
#include "base/error.h"
#include "commands.h"
#include "model_options.h"
#include "option_checks.h"
#include "print_json.h"
#include "session.h"
#include "text/harmony_json.h"
#include "text/tokenizer.h"

namespace moesaic::app {
namespace {

struct TextOptions {
  std::string model, text, file, tokens, format;
  bool has_text = false, special = false;
};

// model: what open_model takes, or a tokenizer.json or .tiktoken file.
Result<Tokenizer> open_tokenizer(const std::string& model) {
  if (model.ends_with(".json") || model.ends_with(".tiktoken")) return tokenizer_file(model);
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, open_model({.model = model}));
  return tokenizer_of(checkpoint);
}

void print_bytes(const std::string& bytes) {
  std::fwrite(bytes.data(), 1, bytes.size(), stdout);
  std::fputc('\n', stdout);
}

// Prints ids in the form that --tokens reads.
void print_ids(const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) fmt::print("{}{}", i > 0 ? "," : "", tokens[i]);
  fmt::print("\n");
}

Status run_tokenize(const TextOptions& o) {
  if (!o.has_text && o.file.empty()) return usage(invalid("tokenize: give -p TEXT or -f FILE"));
  std::string text = o.text;
  if (!o.file.empty()) {
    ASSIGN_OR_RETURN(text, read_text_or_stdin(o.file));
  }
  text = readable(text, "the text");
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(o.model));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, tokenizer.try_encode(text, o.special));
  if (o.format == "json")
    print_json({{"tokens", tokens}});
  else
    print_ids(tokens);
  return {};
}

Status run_detokenize(const TextOptions& o) {
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, parse_tokens(o.tokens));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(o.model));
  RETURN_IF_ERROR(check_tokens(tokens, tokenizer.vocab_size()));
  const std::string bytes = tokenizer.decode(tokens);
  o.format == "json" ? print_json({{"text", bytes}}) : print_bytes(bytes);
  return {};
}

Status run_render(const TextOptions& o) {
  ASSIGN_OR_RETURN(const std::string json, read_text_or_stdin(o.file));
  ASSIGN_OR_RETURN(const Conversation conversation, conversation_from_json(json, input_name(o.file)));
  ASSIGN_OR_RETURN(const Tokenizer tokenizer, open_tokenizer(o.model));
  ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, render_conversation(conversation, tokenizer));
  const std::string text = tokenizer.decode(tokens);
  o.format == "json" ? print_json({{"text", text}, {"tokens", tokens}}) : print_bytes(text);
  return {};
}

CLI::App& add_text_command(CLI::App& app, const char* name, const char* help,
                           const std::shared_ptr<TextOptions>& o, const char* format) {
  CLI::App& c = *app.add_subcommand(name, help);
  o->format = format;
  c.add_option("MODEL,-m,--model", o->model, "a model, or a tokenizer.json or .tiktoken file")->required();
  c.add_option("-o,--output", o->format, "text or json")->check(one_of({"text", "json"}));
  return c;
}

}  // namespace

Run add_tokenize(CLI::App& app) {
  auto o = std::make_shared<TextOptions>();
  CLI::App& c = add_text_command(app, "tokenize", "Print the token ids of a text", o, "json");
  CLI::Option* text = c.add_option("-p,--prompt", o->text, "the text");
  c.add_option("-f,--file", o->file, "a file with the text; -: standard input")->excludes(text);
  c.add_flag("--special", o->special, "let names such as <|start|> become special tokens");
  c.footer("Example: moesaic tokenize -m openai/gpt-oss-20b -p \"Hello, world\"");
  return [o, text] {
    o->has_text = text->count() > 0;
    return run_tokenize(*o);
  };
}

Run add_detokenize(CLI::App& app) {
  auto o = std::make_shared<TextOptions>();
  CLI::App& c = add_text_command(app, "detokenize", "Print the text of token ids", o, "text");
  c.add_option("--tokens", o->tokens, "comma-separated ids, @FILE, or @-: standard input")->required();
  c.footer("Example: moesaic detokenize -m openai/gpt-oss-20b --tokens 13225,11,2375");
  return [o] { return run_detokenize(*o); };
}

Run add_render(CLI::App& app) {
  auto o = std::make_shared<TextOptions>();
  CLI::App& c = add_text_command(app, "render",
                                 "Print a conversation in the chat format, as text and token ids", o, "json");
  c.add_option(
       "-f,--file", o->file,
       "JSON: a list of messages, or {messages, tools, reasoning_effort, instructions}; -: standard input")
      ->required();
  c.footer("Example: moesaic render -m openai/gpt-oss-20b -f conversation.json");
  return [o] { return run_render(*o); };
}

}  // namespace moesaic::app

#include "moesaic/answer_grammar.h"

#include "base/error.h"
#include "grammar/choice.h"
#include "grammar/compiled_grammar.h"
#include "grammar/gbnf.h"
#include "grammar/json_schema.h"
#include "grammar/regex.h"
#include "text/limited_json.h"
#include "text/utf8.h"

namespace moesaic {
namespace grammar {
namespace {

constexpr size_t kMaxSchemaBytes = 1 << 20, kMaxFunctions = 512;

// Harmony as openai/harmony's docs/format.md has it, from behind <|start|>assistant to the token that ends
// the turn. Back to front, as everything here.
class TurnBuilder {
 public:
  explicit TurnBuilder(Automaton& automaton) : a_(automaton), turn_(automaton.forward()) {}

  StateId text(StateId next) {
    const StateId loop = a_.forward();
    a_.define(loop, {a_.bytes({{0, kEnd - 1, loop}}), next});
    return loop;
  }
  StateId end(const char* token) { return a_.special(token, a_.end_of_rule()); }

  // A message in a channel that another one follows.
  void add_aside(const char* channel) {
    const StateId more = a_.special("<|end|>", a_.special("<|start|>", a_.literal("assistant", turn_)));
    messages_.push_back(header(channel, a_.special("<|message|>", text(more))));
  }
  void add_final(StateId content) { messages_.push_back(header("final", message(content))); }
  // The recipient stands behind the channel or behind the role.
  void add_call(const std::string& name, StateId arguments) {
    const StateId content = message(arguments);
    behind_channel_.push_back(a_.literal(name, content));
    behind_role_.push_back(a_.literal(name, header("commentary", content)));
  }
  StateId finish() {
    if (!behind_role_.empty()) {
      messages_.push_back(header("commentary to=functions.", a_.split(behind_channel_)));
      messages_.push_back(a_.literal(" to=functions.", a_.split(behind_role_)));
    }
    a_.define(turn_, messages_);
    return turn_;
  }

 private:
  StateId header(const std::string& channel, StateId next) {
    return a_.special("<|channel|>", a_.literal(channel, next));
  }
  // The content type may be named.
  StateId message(StateId content) {
    const StateId begin = a_.special("<|message|>", content), json = a_.literal("json", begin);
    const StateId constrain = a_.special("<|constrain|>", json);
    return a_.split({begin, constrain, a_.byte(' ', a_.split({constrain, json}))});
  }

  Automaton& a_;
  StateId turn_;
  std::vector<StateId> messages_, behind_channel_, behind_role_;
};

bool is_name(const std::string& name) { return name.size() <= 256 && is_made_of(name, "_-."); }

// Texts of a form, then `next`.
class Contents {
 public:
  Contents(CompiledGrammar& g, Work& work) : g_(g), work_(work), rules_(g.automaton) {}
  // A schema's values.
  Result<StateId> of(const std::string& schema, const std::string& name, StateId next) {
    if (schema.size() > kMaxSchemaBytes)
      return invalid("{}: {} bytes are too many for a schema (at most {})", name, schema.size(),
                     kMaxSchemaBytes);
    if (text::has_long_integer(schema))
      return invalid("{}: an integer in the schema has more than 64 bits or more digits than a double", name);
    work_.begin_next();
    // No function is named where earlier ones have used most of the states or steps.
    const bool little_left =
        g_.automaton.size() > Automaton::kMaxStates / 2 || work_.done() > Work::kTotalLimit - Work::kLimit;
    const auto made = schema_rule(g_.automaton, rules_, schema, name, g_.notes, work_);
    if (little_left && (g_.automaton.full() || work_.spent())) return too_large();
    ASSIGN_OR_RETURN(const StateId rule, made);
    return called(rule, name + ": no JSON value satisfies the schema, as far as it can be followed", next);
  }
  // A function's arguments: where its schema is not supported and it is not strict, any object.
  Result<StateId> of_function(const AnswerFormat::Function& function, StateId next) {
    const std::string name = "parameters of " + function.name;
    Result<StateId> made = of(function.json_schema, name, next);
    if (made.ok() || function.strict || work_.cancelled() || g_.automaton.full()) return made;
    g_.notes.push_back(made.status().message() + ": the arguments may be any object");
    return of(R"({"type": "object"})", name, next);
  }
  // Builds the form that the answer must have.
  Result<StateId> answer(const AnswerFormat& f, StateId next) {
    if (!f.json_schema.empty()) return of(f.json_schema, "json_schema", next);
    if (!f.regex.empty()) {
      ASSIGN_OR_RETURN(const StateId rule, regex_rule(g_.automaton, f.regex, "regex", work_));
      return called(rule, "regex: no text satisfies it", next);
    }
    if (!f.gbnf.empty()) {
      ASSIGN_OR_RETURN(const StateId rule, gbnf_rule(g_.automaton, f.gbnf, "grammar", work_));
      return called(rule, "grammar: no text satisfies it", next);
    }
    ASSIGN_OR_RETURN(const StateId rule, choice_rule(g_.automaton, f.choices, "choice"));
    return called(rule, "choice: no text satisfies it", next);
  }
  // To be called when all is made.
  Status finish() {
    if (g_.automaton.full()) return too_large();
    g_.automaton.finish();
    for (const auto& [rule, why_not] : roots_)
      if (!g_.automaton.can_end(rule)) return invalid("{}", why_not);
    return {};
  }

 private:
  Status too_large() const {
    return invalid("the forms of the answer together need over {}, or too much work: simplify them",
                   g_.automaton.limit());
  }
  // why_not: the error where nothing is of the rule.
  StateId called(StateId rule, std::string why_not, StateId next) {
    roots_.emplace_back(rule, std::move(why_not));
    return g_.automaton.call(rule, next);
  }

  CompiledGrammar& g_;
  Work& work_;
  JsonRules rules_;
  std::vector<std::pair<StateId, std::string>> roots_;
};

Result<StateId> chat_rule(CompiledGrammar& g, Contents& contents, const AnswerFormat& f) {
  TurnBuilder turn(g.automaton);
  turn.add_aside("analysis");
  if (!f.functions.empty()) turn.add_aside("commentary");
  if (!f.must_call) {
    StateId answer = turn.end("<|return|>");
    if (f.any_text()) {
      answer = turn.text(answer);
    } else {
      ASSIGN_OR_RETURN(answer, contents.answer(f, answer));
    }
    turn.add_final(answer);
  }
  for (const AnswerFormat::Function& function : f.functions) {
    if (!is_name(function.name))
      return invalid("the function name \"{}\" is not made of letters, digits, _ - and .", function.name);
    StateId arguments = turn.end("<|call|>");
    if (function.json_schema.empty()) {
      arguments = turn.text(arguments);
    } else {
      ASSIGN_OR_RETURN(arguments, contents.of_function(function, arguments));
    }
    turn.add_call(function.name, arguments);
  }
  return turn.finish();
}

Status check(const AnswerFormat& f) {
  if (!f.chat && !f.functions.empty()) return invalid("functions can be called in a chat only");
  if (!f.chat && f.any_text()) return invalid("a text of any form needs no grammar");
  const auto given = [](bool empty) { return empty ? 0 : 1; };
  if (given(f.json_schema.empty()) + given(f.regex.empty()) + given(f.gbnf.empty()) +
          given(f.choices.empty()) >
      1)
    return invalid("an answer has one form: a schema, a regular expression, a grammar or choices");
  if (f.must_call && f.functions.empty())
    return invalid("a call is required, and there is no function to call");
  if (f.functions.size() > kMaxFunctions)
    return invalid("{} functions are too many (at most {})", f.functions.size(), kMaxFunctions);
  return {};
}

Result<std::shared_ptr<const CompiledGrammar>> compiled(const AnswerFormat& f, Work& work) {
  RETURN_IF_ERROR(check(f));
  auto made = std::make_shared<CompiledGrammar>();
  made->chat = f.chat, made->must_call = f.must_call;
  made->key = f.key();
  Contents contents(*made, work);
  if (f.chat) {
    ASSIGN_OR_RETURN(made->rule, chat_rule(*made, contents, f));
  } else {
    Automaton& a = made->automaton;
    ASSIGN_OR_RETURN(made->rule, contents.answer(f, a.byte(kEnd, a.end_of_rule())));
  }
  RETURN_IF_ERROR(contents.finish());
  return std::shared_ptr<const CompiledGrammar>(std::move(made));
}

}  // namespace
}  // namespace grammar

std::string AnswerFormat::key() const {
  std::string key = fmt::format("{} {} {}:{}", chat, must_call, json_schema.size(), json_schema);
  for (const std::string* text : {&regex, &gbnf}) key += fmt::format(" {}:{}", text->size(), *text);
  for (const std::string& text : choices) key += fmt::format(" c{}:{}", text.size(), text);
  for (const auto& [name, schema, strict] : functions)
    key += fmt::format("{}:{}{}:{}{}", name.size(), name, schema.size(), schema, strict);
  return key;
}

Result<AnswerGrammar> AnswerGrammar::compile(const AnswerFormat& f, const std::stop_token& cancel) {
  grammar::Work work(cancel);
  auto compiled = grammar::compiled(f, work);
  if (work.cancelled()) return error(StatusCode::kCancelled, "the request was cancelled");
  if (!compiled.ok()) return compiled.status();
  AnswerGrammar made;
  made.compiled_ = std::move(compiled).value();
  return made;
}

bool AnswerGrammar::chat() const { return compiled_ != nullptr && compiled_->chat; }

const std::vector<std::string>& AnswerGrammar::notes() const {
  static const std::vector<std::string> none;
  return compiled_ == nullptr ? none : compiled_->notes;
}

}  // namespace moesaic

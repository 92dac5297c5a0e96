// Requests of many clients and the generations that they become: numbers, limits, efforts, forms and tools.
#include <fmt/format.h>

#include "openai/call_cases.h"
#include "openai/request_cases.h"
#include "openai/sse.h"
#include "openai/token_requests.h"

namespace moesaic::openai {
namespace {

TEST(Requests, WholeNumbersMayBeWrittenAsFractions) {
  EXPECT_EQ(
      sampling_of(chat(R"("max_tokens": 20.0, "top_k": 4e1, "seed": 7.0, "min_tokens": 2.0)")).max_tokens,
      20);
  EXPECT_EQ(sampling_of(chat(R"("top_k": 4e1)")).top_k, 40);
  EXPECT_EQ(sampling_of(completion(R"("logprobs": 2.0)")).top_logprobs, 2);
  EXPECT_EQ(sampling_of(chat(R"("stop_token_ids": [7.0])")).stop_tokens[0], 7);
  for (const char* one : {"1.0", "1.00000000000000000000001"})
    EXPECT_EQ(prepared_of(prepare_completion(fmt::format(R"({{"prompt": [{}, 2]}})", one), service()))
                  .requests[0]
                  .prompt,
              (std::vector<int32_t>{1, 2}));
  for (const char* wrong : {"20.5", "1e300", "-1e300", "\"20\"", "true", "[20]", "1e18", "2147483648.0"})
    EXPECT_EQ(error_of(chat(std::string(R"("max_tokens": )") + wrong)).param, "max_tokens") << wrong;
}

// Clients of both endpoints send what chat completions have.
TEST(Requests, LogprobsOfCompletionsMayBeABoolean) {
  EXPECT_EQ(sampling_of(completion(R"("logprobs": true)")).top_logprobs, 1);
  EXPECT_EQ(sampling_of(completion(R"("logprobs": false)")).top_logprobs, -1);
  EXPECT_EQ(sampling_of(completion(R"("logprobs": true, "echo": true)")).prompt_logprobs, 1);
  EXPECT_EQ(error_of(completion(R"("logprobs": "true")")).param, "logprobs");
}

TEST(Requests, NoLimitIsMinusOne) {
  for (const char* key : {"max_tokens", "max_completion_tokens", "n_predict"}) {
    EXPECT_EQ(sampling_of(chat("\"" + std::string(key) + "\": -1")).max_tokens, 0) << key;
    EXPECT_EQ(sampling_of(completion("\"" + std::string(key) + "\": -1")).max_tokens, 0) << key;
    for (const char* wrong : {"0", "-2"})
      EXPECT_EQ(error_of(chat("\"" + std::string(key) + "\": " + wrong)).param, key);
  }
  EXPECT_EQ(sampling_of(response(R"("max_output_tokens": -1)")).max_tokens, 0);
  EXPECT_EQ(sampling_of(completion(R"("max_tokens": null)")).max_tokens, 16);
  EXPECT_EQ(error_of(chat(R"("max_tokens": 4, "min_tokens": 5)")).param, "min_tokens");
  EXPECT_EQ(sampling_of(chat(R"("max_tokens": 5, "min_tokens": 5)")).min_tokens, 5);
}

TEST(Requests, OtherNamesOfTheLimitAreCheckedToo) {
  EXPECT_EQ(sampling_of(chat(R"("max_completion_tokens": 3, "max_tokens": 4, "n_predict": 5)")).max_tokens,
            3);
  for (const char* key : {"max_tokens", "n_predict", "max_new_tokens"}) {
    for (const char* wrong : {"0", "true", "\"4\"", "1e20"})
      EXPECT_EQ(error_of(chat(fmt::format(R"("max_completion_tokens": 3, "{}": {})", key, wrong))).param,
                key);
  }
}

TEST(Requests, ASeedOfMinusOneIsAnother) {
  for (const auto& make : {chat, completion, response}) {
    EXPECT_NE(sampling_of(make(R"("seed": -1)")).seed, sampling_of(make(R"("seed": -1)")).seed);
    EXPECT_EQ(sampling_of(make(R"("seed": -2)")).seed, static_cast<uint64_t>(-2));
  }
}

TEST(Requests, PenaltiesThatLookAtNoTokenAreNone) {
  constexpr const char* kPenalties =
      R"("repeat_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": 1, "repeat_last_n": )";
  const SamplingParams none = sampling_of(chat(std::string(kPenalties) + "0"));
  EXPECT_EQ(none.repetition_penalty, 1);
  EXPECT_EQ(none.presence_penalty, 0);
  EXPECT_EQ(none.frequency_penalty, 0);
  EXPECT_EQ(sampling_of(chat(std::string(kPenalties) + "-1")).presence_penalty, 1);
  EXPECT_EQ(sampling_of(chat(std::string(kPenalties) + "-1")).penalty_window, 0);
  EXPECT_EQ(sampling_of(chat(std::string(kPenalties) + "64")).penalty_window, 64);
  EXPECT_EQ(error_of(chat(std::string(kPenalties) + "-2")).param, "repeat_last_n");
}

TEST(Requests, StopTokens) {
  const std::vector<int32_t> own = service().model.stop_tokens();
  ASSERT_FALSE(own.empty());
  for (const auto& make : {chat, completion, response}) {
    EXPECT_TRUE(sampling_of(make("")).stop_tokens.empty());  // the engine takes the model's own
    std::vector<int32_t> both = {7, 9};
    both.insert(both.end(), own.begin(), own.end());
    EXPECT_EQ(sampling_of(make(R"("stop_token_ids": [7, 9])")).stop_tokens, both);
    EXPECT_EQ(sampling_of(make(R"("ignore_eos": true)")).stop_tokens, std::vector<int32_t>{-1});
    EXPECT_EQ(sampling_of(make(R"("ignore_eos": true, "stop_token_ids": [7])")).stop_tokens,
              (std::vector<int32_t>{7, -1}));
    for (const char* wrong : {"[-1]", "[99999999]", "[1.5]", "7", "[\"a\"]"})
      EXPECT_EQ(error_of(make(std::string(R"("stop_token_ids": )") + wrong)).param, "stop_token_ids")
          << wrong;
  }
}

TEST(Requests, StopStrings) {
  std::string many;
  for (int i = 0; i < 64; ++i) many += (i > 0 ? ", \"" : "\"") + std::to_string(i) + "\"";
  for (const auto& make : {chat, completion, response}) {
    EXPECT_EQ(sampling_of(make("\"stop\": [" + many + "]")).stop_strings.size(), 64u);
    EXPECT_EQ(error_of(make("\"stop\": [" + many + ", \"x\"]")).param, "stop");
    for (const char* none : {"\"\"", "[]", "[\"\"]", "null"})
      EXPECT_TRUE(sampling_of(make(std::string("\"stop\": ") + none)).stop_strings.empty()) << none;
    EXPECT_EQ(sampling_of(make(R"("stop": ["", "x"])")).stop_strings, std::vector<std::string>{"x"});
    EXPECT_EQ(error_of(make("\"stop\": \"" + std::string(513, 'x') + "\"")).param, "stop");
  }
}

// Forms and older clients send empty fields: they ask for nothing.
TEST(Requests, EmptyFieldsAreAbsent) {
  const std::string plain = prompt_of(chat("")), responded = prompt_of(response(""));
  for (const char* more :
       {R"("functions": [], "function_call": "auto")", R"("function_call": "none")", R"("functions": [])",
        R"("tools": [], "tool_choice": "auto")", R"("reasoning_effort": "")", R"("reasoning_effort": "auto")",
        R"("reasoning_effort": "default")", R"("grammar": "", "chat_template": "")",
        R"("thinking": {"type": "enabled"})", R"("extra_body": {}, "options": {})"})
    EXPECT_EQ(prompt_of(chat(more)), plain) << more;
  for (const char* more :
       {R"("previous_response_id": "")", R"("conversation": "", "instructions": "")", R"("tools": [])",
        R"("reasoning": {"effort": "auto"})", R"("response_format": {"type": "text"})"})
    EXPECT_EQ(prompt_of(response(more)), responded) << more;
  EXPECT_EQ(prompt_of(completion(R"("suffix": "", "tool_choice": "auto")")), prompt_of(completion("")));
  EXPECT_EQ(error_of(chat(R"("functions": [{"name": "f"}])")).param, "functions");
  EXPECT_EQ(error_of(chat(R"("function_call": {"name": "f"})")).param, "function_call");
}

TEST(Requests, WhatAGrammarCannotHoldIsRefused) {
  const std::string schema = R"("response_format": {"type": "json_object"}, )";
  EXPECT_EQ(error_of(chat(schema + R"("ignore_eos": true)")).param, "ignore_eos");
  EXPECT_EQ(error_of(completion(schema + R"("allowed_token_ids": [5])")).param, "allowed_token_ids");
  EXPECT_EQ(sampling_of(chat(schema + R"("min_tokens": 9)")).min_tokens, 9);
}

// A response format is about the final answer, and there is none.
TEST(Requests, AFormThatARequiredCallWouldDropIsRefused) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": )";
  for (const std::string choice : {R"("required")", R"({"type": "function", "function": {"name": "f"}})",
                                   R"({"function": {"name": "f"}})"}) {
    for (const auto& [field, value] : {std::pair("guided_regex", R"("a+")"),
                                       {"regex", R"("a+")"},
                                       {"guided_choice", R"(["a"])"},
                                       {"guided_grammar", R"("root ::= \"a\"")"},
                                       {"grammar", R"("root ::= \"a\"")"},
                                       {"ebnf", R"("root ::= \"a\"")"},
                                       {"guided_json", R"({"type": "object"})"},
                                       {"json_schema", R"({"type": "object"})"},
                                       {"structured_outputs", R"({"regex": "a+"})"}}) {
      const std::string more = fmt::format(R"({}{}, "{}": {})", tools, choice, field, value);
      EXPECT_EQ(error_of(chat(more)).param, field) << more;
      EXPECT_EQ(error_of(response(more)).param, field) << more;
      EXPECT_EQ(prepared_of(chat(fmt::format(R"({}"auto", "{}": {})", tools, field, value))).requests.size(),
                1u);
    }
    const std::string format = R"(, "response_format": {"type": "json_object"})";
    EXPECT_EQ(prepared_of(chat(fmt::format("{}{}{}", tools, choice, format))).requests.size(), 1u);
  }
}

std::string note_of(PreparedRequestOrError made) {
  const auto notes = prepared_of(std::move(made)).requests.at(0).grammar.notes();
  return notes.empty() ? "" : notes[0];
}

// OpenAI's forced calls do not follow schemas of functions that are not strict either.
TEST(Requests, AForcedCallMayBeOfAFunctionWhoseSchemaIsNotSupported) {
  const auto tools = [](const char* strict, const char* choice) {
    const std::string g = R"("name": "g", "parameters": {"properties": {"a": {"pattern": "(a)\\1"}}})";
    return fmt::format(R"("tools": [{{"type": "function", "name": "f", "function": {{"name": "f"}}}},
                                    {{"type": "function", {0}, "strict": {1}, "function": {{{0}, "strict": {1}}}}}],
                          "tool_choice": {2})",
                       g, strict, choice);
  };
  for (const char* choice : {R"("required")", R"({"type": "function", "name": "g"})"}) {
    for (const auto& make : {chat, response}) {
      EXPECT_EQ(
          note_of(make(tools("false", choice))),
          "parameters of g: properties.a: pattern: this escape (\\b, \\B, \\p, \\c, \\k, \\1) at character 5 "
          "is not supported: the arguments may be any object");
      EXPECT_EQ(error_of(make(tools("true", choice))).param, "tools");
    }
  }
}

// MCP servers and pydantic write a function of no arguments with empty properties.
TEST(Requests, AFunctionThatNamesNoArgumentsTakesNone) {
  const auto asked = [](const std::string& parameters) {
    const std::string function = R"("name": "f", "parameters": )" + parameters;
    const std::string in_chat = R"("tools": [{"type": "function", "function": {)" + function;
    std::vector<PreparedRequest> all;
    all.push_back(prepared_of(chat(in_chat + R"(}}], "tool_choice": "required")")));
    all.push_back(prepared_of(chat(in_chat + R"(, "strict": true}}])")));
    all.push_back(prepared_of(
        response(R"("tools": [{"type": "function", )" + function + R"(}], "tool_choice": "required")")));
    return all;
  };
  for (const char* none :
       {R"({"type": "object", "properties": {}})", "null", "{}", R"({"type": "object"})",
        R"({"properties": null})",
        R"({"type": ["object", "null"], "title": "Args", "required": [], "patternProperties": {}})"}) {
    for (const PreparedRequest& made : asked(none)) {
      EXPECT_TRUE(takes_call(made, "f", "{}")) << none;
      for (const char* other : {R"({"city": "Paris"})", "5", "null", "[]"})
        EXPECT_FALSE(takes_call(made, "f", other)) << none << " " << other;
    }
  }
  for (const char* some :
       {R"({"type": "object", "properties": {}, "additionalProperties": true})",
        R"({"patternProperties": {"^c": {}}})", R"({"required": ["city"]})", R"({"minProperties": 1})",
        R"({"anyOf": [{"properties": {"city": {}}}, {"type": "string"}]})",
        R"({"$ref": "#/$defs/a", "$defs": {"a": {"properties": {"city": {"type": "string"}}}}})",
        R"({"type": ["object", "null"], "properties": {"city": {}}})",
        R"({"type": "object", "nullable": true, "properties": {"city": {}}})",
        R"({"allOf": [{"properties": {"city": {}}}]})"}) {
    for (const PreparedRequest& made : asked(some)) {
      EXPECT_TRUE(takes_call(made, "f", R"({"city": "Paris"})")) << some;
      for (const char* other : {"5", "null", "[]", "\"a\""})
        EXPECT_FALSE(takes_call(made, "f", other)) << some << " " << other;
    }
  }
  EXPECT_EQ(error_of(chat(R"("tools": [{"type": "function", "function": {"name": "f", "strict": true,
                                      "parameters": {"type": "array"}}}])"))
                .param,
            "tools");
}

TEST(Requests, WaysToSetTheEffort) {
  const std::pair<const char*, const char*> kWays[] = {
      {R"("reasoning_effort": "high")", "high"},
      {R"("reasoning": {"effort": "high"})", "high"},
      {R"("chat_template_kwargs": {"reasoning_effort": "high"})", "high"},
      {R"("reasoning_effort": "max", "reasoning": {"effort": "xhigh"})", "high"},
      {R"("reasoning": {"enabled": false})", "low"},
      {R"("chat_template_kwargs": {"enable_thinking": false})", "low"},
      {R"("chat_template_kwargs": {"enable_thinking": true}, "reasoning_effort": "high")", "high"},
      {R"("enable_thinking": false)", "low"},
      {R"("thinking": {"type": "disabled"})", "low"},
      {R"("thinking": false)", "low"},
      {R"("chat_template_kwargs": {"thinking": false})", "low"},
      {R"("thinking": {"type": "enabled"}, "reasoning_effort": "high")", "high"},
      {R"("reasoning_effort": "auto", "reasoning": {"effort": "high"})", "high"},
      {R"("reasoning_effort": null)", "medium"}};
  for (const auto& [more, effort] : kWays) {
    for (const auto& make : {chat, response})
      EXPECT_NE(prompt_of(make(more)).find(std::string("Reasoning: ") + effort), std::string::npos) << more;
  }
  for (const char* more :
       {R"("reasoning_effort": "low", "reasoning": {"effort": "high"})",
        R"("reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high"})",
        R"("reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false})",
        R"("reasoning": {"effort": "huge"})", R"("reasoning": "high")", R"("reasoning_effort": 3)",
        R"("thinking": {"type": "disabled"}, "reasoning_effort": "high")", R"("thinking": {"type": "on"})",
        R"("thinking": 5)", R"("chat_template_kwargs": [])"}) {
    for (const auto& make : {chat, response}) EXPECT_EQ(error_of(make(more)).http, 400) << more;
  }
}

TEST(Requests, VerbosityIsAnInstruction) {
  for (const auto& [verbosity, said] :
       {std::pair("low", "Keep answers short."), {"high", "Answer in detail."}}) {
    const std::string chat_field = fmt::format(R"("verbosity": "{}")", verbosity),
                      text_field = fmt::format(R"("text": {{"verbosity": "{}"}})", verbosity);
    const std::string with_rule = fmt::format(R"({{{}, "messages": [{{"role": "system", "content": "Rhyme."}},
                        {{"role": "user", "content": "hi"}}]}})",
                                              chat_field);
    const std::string both = fmt::format("# Instructions\n\n{}\n\nRhyme.<|end|>", said);
    EXPECT_NE(prompt_of(chat(chat_field)).find(fmt::format("{}<|end|>", said)), std::string::npos);
    EXPECT_NE(prompt_of(response(text_field)).find(fmt::format("{}<|end|>", said)), std::string::npos);
    EXPECT_NE(prompt_of(prepare_chat(with_rule, service())).find(both), std::string::npos);
    EXPECT_NE(prompt_of(response(text_field + R"(, "instructions": "Rhyme.")")).find(both),
              std::string::npos);
  }
  EXPECT_EQ(prompt_of(chat(R"("verbosity": "medium")")), prompt_of(chat("")));
  EXPECT_EQ(prompt_of(response(R"("text": {"verbosity": "medium"})")), prompt_of(response("")));
  EXPECT_EQ(error_of(chat(R"("verbosity": "brief")")).param, "verbosity");
  EXPECT_EQ(error_of(response(R"("text": {"verbosity": 1})")).param, "text");
}

TEST(Requests, ThinkingBudgets) {
  const auto budget = [](PreparedRequestOrError made) {
    return sampling_of(std::move(made)).reasoning_budget;
  };
  for (const auto& make : {chat, response, completion}) {
    EXPECT_EQ(budget(make("")), -1);
    for (const std::string key : {"thinking_token_budget", "reasoning_budget", "reasoning_budget_tokens",
                                  "thinking_budget_tokens", "thinking_budget"}) {
      EXPECT_EQ(budget(make("\"" + key + "\": 0")), 0) << key;
      EXPECT_EQ(budget(make("\"" + key + "\": 20.0")), 20) << key;
      EXPECT_EQ(budget(make("\"" + key + "\": -1")), -1) << key;
      EXPECT_EQ(budget(make("\"" + key + "\": null")), -1) << key;
      EXPECT_EQ(budget(make("\"" + key + "\": 9000000000000000000")), INT32_MAX) << key;
      for (const char* wrong : {"-2", "1.5", "\"5\"", "true", "[5]", "{}", "1e300"})
        EXPECT_EQ(error_of(make("\"" + key + "\": " + wrong)).param, key) << wrong;
    }
    EXPECT_EQ(budget(make(R"("reasoning_budget": 5, "thinking_budget": 5)")), 5);
    EXPECT_EQ(error_of(make(R"("reasoning_budget": 5, "thinking_budget": 6)")).message,
              "thinking_budget: reasoning_budget and thinking_budget contradict each other");
  }
  for (const auto& make : {chat, response}) {
    EXPECT_EQ(budget(make(R"("reasoning": {"max_tokens": 7, "effort": "low"})")), 7);
    EXPECT_EQ(budget(make(R"("thinking": {"type": "enabled", "budget_tokens": 7})")), 7);
    EXPECT_EQ(budget(make(R"("thinking": {"type": "disabled", "budget_tokens": 0})")), 0);
    EXPECT_EQ(budget(make(R"("chat_template_kwargs": {"thinking_budget": 7, "reasoning_budget": 7})")), 7);
    EXPECT_EQ(error_of(make(R"("thinking": {"type": "disabled", "budget_tokens": 7})")).param, "thinking");
    EXPECT_EQ(error_of(make(R"("reasoning": {"max_tokens": -7})")).param, "reasoning");
    EXPECT_EQ(error_of(make(R"("reasoning": {"max_tokens": 7}, "thinking_token_budget": 8)")).message,
              "reasoning: thinking_token_budget and reasoning.max_tokens contradict each other");
  }
  Service limited = service();
  limited.reasoning_budget = 9;
  const auto limited_chat = [&](const std::string& more) {
    return prepare_chat(R"({"messages": [{"role": "user", "content": "hi"}])" + more + "}", limited);
  };
  EXPECT_EQ(budget(limited_chat("")), 9);
  EXPECT_EQ(budget(limited_chat(R"(, "reasoning_budget": 4)")), 4);
  EXPECT_EQ(budget(limited_chat(R"(, "reasoning_budget": -1)")), -1);
  EXPECT_EQ(budget(prepare_completion(R"({"prompt": "hi"})", limited)), 9);
}

TEST(Requests, FormsOfAnAnswerInOtherServersWords) {
  const std::string schema = R"({"type": "object", "properties": {"sum": {"type": "integer"}}})";
  const std::string want = prompt_of(
      chat(R"("response_format": {"type": "json_schema", "json_schema": {"schema": )" + schema + "}}"));
  std::string quoted = schema;
  for (size_t at = 0; (at = quoted.find('"', at)) != std::string::npos; at += 2) quoted.insert(at, "\\");
  for (const std::string& more :
       {R"("response_format": {"type": "json_object", "schema": )" + schema + "}",
        R"("response_format": {"type": "json_object", "value": )" + schema + "}",
        R"("response_format": {"type": "json_schema", "schema": )" + schema + "}",
        R"("guided_json": )" + schema, R"("guided_json": ")" + quoted + "\"", R"("json_schema": )" + schema,
        R"("structured_outputs": {"json": )" + schema + "}",
        fmt::format(R"("guided_json": {0}, "json_schema": {0})", schema)}) {
    const PreparedRequest prepared = prepared_of(chat(more));
    EXPECT_EQ(service().model.detokenize(prepared.requests.at(0).prompt), want) << more;
    EXPECT_FALSE(prepared.requests.at(0).grammar.empty()) << more;
    if (more.find("response_format") == std::string::npos) {
      EXPECT_FALSE(prepared_of(response(more)).requests.at(0).grammar.empty()) << more;
    }
    EXPECT_FALSE(prepared_of(completion(more)).requests.at(0).grammar.empty()) << more;
  }
  const std::pair<const char*, const char*> kWrong[] = {
      {"guided_json", R"("guided_json": {"type": "null"}, "response_format": {"type": "json_object"})"},
      {"guided_json", R"("guided_json": "{")"},
      {"json_schema", R"("json_schema": 5)"},
      {"response_format", R"("response_format": {"type": "text", "schema": {}})"},
      {"response_format", R"("response_format": {"type": "json_object", "json_schema": {"schema": {}}})"},
      {"response_format", R"("response_format": "json")"},
      {"response_format", R"("response_format": {"type": "grammar"})"},
      {"guided_json", R"("guided_json": {"type": "elephant"})"}};
  for (const auto& [param, more] : kWrong) {
    EXPECT_EQ(error_of(chat(more)).param, param) << more;
    EXPECT_EQ(error_of(completion(more)).param, param) << more;
  }
}

TEST(Requests, LogitBiasInBothShapes) {
  const std::map<int32_t, float> want = {{7, -2.5F}, {9, 1}};
  EXPECT_EQ(sampling_of(chat(R"("logit_bias": {"7": -2.5, "9": 1})")).logit_bias, want);
  EXPECT_EQ(sampling_of(chat(R"("logit_bias": [[7, -2.5], [9, 1]])")).logit_bias, want);
  EXPECT_LT(sampling_of(chat(R"("logit_bias": [[7, false]])")).logit_bias.at(7), -1000);
  for (const char* wrong : {R"([[7]])", R"([7])", R"([["a", 1]])", R"([[7, true]])", "5"})
    EXPECT_EQ(error_of(chat(std::string(R"("logit_bias": )") + wrong)).param, "logit_bias") << wrong;
  const auto message = [](const char* bias) {
    return error_of(chat(std::string(R"("logit_bias": )") + bias)).message;
  };
  EXPECT_TRUE(message(R"([["5", 1]])").ends_with("a pair's first member must be a token id below 4096"));
  EXPECT_TRUE(message(R"({"a": 1})").ends_with("'a' must be a token id below 4096"));
}

constexpr const char* kTwoTools = R"("tools": [{"type": "function", "function": {"name": "f"}},
                                               {"type": "function", "name": "g"}, {"type": "web_search"}])";

TEST(Requests, OnlyFunctionsCanBeRequired) {
  for (const char* tools : {R"([{"type": "custom", "custom": {"name": "f"}}])", "[]"})
    EXPECT_EQ(error_of(chat(std::string(R"("tool_choice": "required", "tools": )") + tools)).message,
              "tool_choice: required, but there are no tools of type function, and others cannot be called");
}

// Numbers of enforced schemas are exact; others are passed on as they came.
TEST(Requests, NumbersThatADoubleDoesNotHold) {
  constexpr const char* kLong = "340282366920938463463374607431768211455";
  const auto tool = [&](const char* strict) {
    return fmt::format(
        R"("tools": [{{"type": "function", "function": {{"name": "f", "strict": {}, "parameters":
        {{"type": "object", "properties": {{"n": {{"type": "integer", "maximum": {}, "default": {}}}}}}}}}}}])",
        strict, kLong, kLong);
  };
  for (const auto& make : {chat, response}) {
    EXPECT_EQ(prompt_of(make(fmt::format(R"("metadata": {{"trace": {}}})", kLong))), prompt_of(make("")));
    const std::string prompt = prompt_of(make(tool("false")));
    EXPECT_NE(prompt.find(std::string("default: ") + kLong), std::string::npos) << prompt;
    EXPECT_EQ(error_of(make(tool("true"))).message,
              "parameters of f: an integer in the schema has more than 64 bits or more digits than a double");
    EXPECT_EQ(note_of(make(tool("false") + R"(, "tool_choice": "required")")),
              "parameters of f: an integer in the schema has more than 64 bits or more digits than a double: "
              "the arguments may be any object");
    EXPECT_EQ(error_of(make(fmt::format(R"("guided_json": "{{\"maximum\": {}}}")", kLong))).message,
              "json_schema: an integer in the schema has more than 64 bits or more digits than a double");
    EXPECT_EQ(error_of(make(fmt::format(R"("json_schema": {{"const": [{}]}})", kLong))).param, "json_schema");
    EXPECT_EQ(error_of(make(fmt::format(R"("seed": {})", kLong))).param, "seed");
    EXPECT_EQ(sampling_of(make(R"("temperature": 0.69999998807907104492)")).temperature, double{0.7F});
    EXPECT_EQ(sampling_of(make(R"("top_k": 4.00000000000000000000001)")).top_k, 4);
    EXPECT_EQ(prompt_of(make(R"("typical_p": 1.00000000000000000000001)")), prompt_of(make("")));
    EXPECT_EQ(sampling_of(make(R"("logit_bias": {"7": 0.69999998807907104492})")).logit_bias.at(7), 0.7F);
  }
}

TEST(Requests, AllowedTools) {
  const auto prepared = [](const std::string& choice) {
    return prepared_of(chat(std::string(kTwoTools) + R"(, "tool_choice": )" + choice));
  };
  const char* wrapped =
      R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}})";
  const char* plain =
      R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]})";
  const std::string all = prompt_of(chat(kTwoTools));
  for (const char* choice : {wrapped, plain}) {
    EXPECT_FALSE(prepared(choice).requests.at(0).grammar.empty());
    EXPECT_EQ(service().model.detokenize(prepared(choice).requests.at(0).prompt), all);  // is told both
    EXPECT_FALSE(prepared_of(response(std::string(kTwoTools) + R"(, "tool_choice": )" + choice))
                     .requests.at(0)
                     .grammar.empty());
  }
  EXPECT_TRUE(
      prepared(R"({"type": "allowed_tools", "mode": "auto", "tools": []})").requests.at(0).grammar.empty());
  for (const char* wrong :
       {R"({"type": "allowed_tools"})", R"({"type": "allowed_tools", "mode": "none", "tools": []})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "h"}]})",
        R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": {}})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": [5]})", R"({"type": "custom", "name": "f"})"})
    EXPECT_EQ(error_of(chat(std::string(kTwoTools) + R"(, "tool_choice": )" + wrong)).param, "tool_choice")
        << wrong;
}

TEST(Requests, NamesOfFunctions) {
  const auto named = [](const std::string& name) {
    return chat(R"("tools": [{"type": "function", "function": {"name": ")" + name + "\"}}]");
  };
  EXPECT_EQ(prepared_of(named(std::string(128, 'x'))).requests.size(), 1u);
  for (const std::string& wrong : {std::string(129, 'x'), std::string("a b"), std::string()})
    EXPECT_EQ(error_of(named(wrong)).message,
              "tools: tool 0 has no name of up to 128 letters, digits, '_', '-' and '.'");
}

TEST(Requests, MessagesAreRefusedByTheirIndex) {
  const ApiError error = error_of(
      prepare_chat(R"({"messages": [{"role": "user", "content": "a"}, {"role": "nobody"}]})", service()));
  EXPECT_TRUE(error.message.starts_with("messages: message 1: ")) << error.message;
  EXPECT_EQ(error.param, "messages");
}

// Functions of MCP servers, as Codex offers them: by names that tell the servers apart.
TEST(Requests, FunctionsInNamespaces) {
  const std::string two = R"("tools": [
      {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "get"}, {"type": "custom"}]},
      {"type": "namespace", "name": "mcp__b__", "tools": [{"type": "function", "name": "get"}]},
      {"type": "namespace", "name": "none"}, {"type": "function", "name": "plain"}])";
  const std::string prompt = prompt_of(response(two));
  for (const char* told : {"type a__get = ", "type mcp__b__get = ", "type plain = "})
    EXPECT_NE(prompt.find(told), std::string::npos) << told << "\n" << prompt;
  for (const auto& [recipient, space] :
       {std::pair{"functions.a__get", "a"},
        {"functions.mcp__b__get", "mcp__b__"},
        {"functions.get", "a"}}) {  // the namespace left out: the first one's
    PreparedRequest prepared = prepared_of(response(two));
    prepared.answer->add(
        {.token = SampledToken{.token = 5},
         .pieces = {{.channel = "commentary", .recipient = recipient, .text = "{}", .begins = true}}},
        nullptr);
    prepared.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, nullptr);
    const Json call = Json::parse(prepared.answer->whole())["output"][0];
    EXPECT_EQ(call["type"], "function_call") << recipient;
    EXPECT_EQ(call["name"], "get");
    EXPECT_EQ(call["namespace"], space);
  }
  EXPECT_FALSE(
      prepared_of(response(two + R"(, "tool_choice": {"type": "function", "name": "get", "namespace": "a"})"))
          .requests.at(0)
          .grammar.empty());
  EXPECT_EQ(
      error_of(response(two + R"(, "tool_choice": {"type": "function", "name": "put", "namespace": "a"})"))
          .param,
      "tool_choice");
  for (const char* wrong : {R"([{"type": "namespace", "tools": [{"name": "f"}]}])",
                            R"([{"type": "namespace", "name": "a", "tools": 5}])",
                            R"([{"type": "namespace", "name": "a", "tools": [5]}])",
                            R"([{"type": "namespace", "name": "a", "tools": [{"type": "function"}]}])"})
    EXPECT_EQ(error_of(response(std::string(R"("tools": )") + wrong)).param, "tools") << wrong;
}

TEST(Requests, ToolsThatDoNotFitAreNamed) {
  for (const char* parameters : {"5", "[]", "\"{}\"", "true"}) {
    const std::string tools =
        R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "name": "g", "parameters": )" +
        std::string(parameters) + "}]";
    for (const auto& make : {chat, response}) {
      const ApiError error = error_of(make(tools));
      EXPECT_EQ(error.param, "tools") << parameters;
      EXPECT_NE(error.message.find("tool 1"), std::string::npos) << error.message;
    }
  }
  EXPECT_EQ(error_of(chat(R"("tools": [{"name": "f", "parameters": {"description": ")" +
                          std::string(1 << 20, 'x') + "\"}}]"))
                .param,
            "tools");
}

// The same number, whether a call must be made or not.
TEST(Requests, OneLimitOfTools) {
  const auto tools = [](int count) {
    std::string list;
    for (int i = 0; i < count; ++i)
      list +=
          (i > 0 ? "," : "") + std::string(R"({"type": "function", "name": "f)") + std::to_string(i) + "\"}";
    return R"("tools": [)" + list + "]";
  };
  // Their prompt is longer than the context of this model.
  EXPECT_EQ(error_of(chat(tools(512))).code, "context_length_exceeded");
  EXPECT_EQ(error_of(chat(tools(512) + R"(, "tool_choice": "required")")).code, "context_length_exceeded");
  EXPECT_EQ(error_of(chat(tools(513))).param, "tools");
}

TEST(Requests, ContextErrorsAreInTheWordsThatClientsLookFor) {
  std::string words;
  for (int i = 0; i < 1500; ++i) words += "word ";
  const auto text = "\"" + words + "\"";
  for (const ApiError& error :
       {error_of(prepare_chat(R"({"messages": [{"role": "user", "content": )" + text + "}]}", service())),
        error_of(prepare_completion(R"({"prompt": )" + text + "}", service())),
        error_of(prepare_response(R"({"input": )" + text + "}", service()))}) {
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_TRUE(
        error.message.starts_with("This model's maximum context length is 1024 tokens. However, your "))
        << error.message;
  }
  const PreparedRequest prepared =
      prepared_of(prepare_response(R"({"stream": true, "input": )" + text + "}", service()));
  EXPECT_EQ(prepared.failure.value_or(ApiError()).code, "context_length_exceeded");
}

TEST(Requests, SpecialTokensOfACompletionsPrompt) {
  const auto count = [](const char* more) {
    return prepared_of(prepare_completion(std::string(R"({"prompt": "<|start|>")") + more + "}", service()))
        .requests.at(0)
        .prompt.size();
  };
  EXPECT_EQ(count(""), 1u);
  EXPECT_GT(count(R"(, "parse_special": false)"), 1u);
}

// Some thousand bytes of ids are text of many megabytes.
TEST(TokenRequests, BoundWhatIsMadeText) {
  const auto detokenized = [](size_t count) {
    return detokenize(Json{{"tokens", std::vector<int>(count, 1)}}.dump(), service());
  };
  EXPECT_TRUE(std::holds_alternative<TokenAnswer>(detokenized(1 << 18)));
  EXPECT_EQ(std::get<ApiError>(detokenized((1 << 18) + 1)).param, "tokens");
}

TEST(TokenRequests, AreThoseOfTheChat) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "hi"}], "reasoning": {"effort": "high"}, "max_tokens": 3,
          "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}},
          "tools": [{"type": "function", "function": {"name": "f"}}]})";
  const PreparedRequest prepared = prepared_of(prepare_chat(body, service()));
  const Json tokens = Json::parse(std::get<TokenAnswer>(tokenize(body, service())).json);
  EXPECT_EQ(tokens["tokens"].get<std::vector<int32_t>>(), prepared.requests.at(0).prompt);
  const Json text = Json::parse(std::get<TokenAnswer>(apply_template(body, service())).json);
  EXPECT_EQ(text["prompt"], service().model.detokenize(prepared.requests.at(0).prompt));
  EXPECT_EQ(std::get<ApiError>(apply_template("{}", service())).param, "messages");
  EXPECT_EQ(std::get<ApiError>(tokenize(R"({"messages": 5})", service())).param, "messages");
  for (const char* texts :
       {R"({})", R"({"prompt": "a", "content": "a"})", R"({"content": "a", "messages": []})"})
    EXPECT_EQ(std::get<ApiError>(tokenize(texts, service())).param, "prompt") << texts;
}

TEST(TokenRequests, NameUnknownFields) {
  const std::string more = R"(, "temprature": 1})";
  for (const TokenAnswerOrError& made :
       {tokenize(R"({"content": "hi")" + more, service()), detokenize(R"({"tokens": [5])" + more, service()),
        tokenize(R"({"messages": [{"role": "user", "content": "hi"}])" + more, service()),
        apply_template(R"({"messages": [{"role": "user", "content": "hi"}])" + more, service())}) {
    ASSERT_TRUE(std::holds_alternative<TokenAnswer>(made));
    EXPECT_TRUE(std::get<TokenAnswer>(made).unknown.header().starts_with("temprature"));
  }
}

}  // namespace
}  // namespace moesaic::openai

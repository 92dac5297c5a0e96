// What requests of many clients become: numbers, limits, efforts, forms, tool choices and histories.
#include <gtest/gtest.h>

#include <algorithm>

#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/responses_request.h"
#include "openai/sealed_reasoning.h"
#include "openai/sse.h"
#include "openai/token_requests.h"

namespace moesaic::openai {
namespace {

const Service& service() {
  static const Model model =
      Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "cpu", .threads = 1, .context = 1024})
          .value();
  static const Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

Job job_of(JobOrError made) {
  if (const auto* error = std::get_if<ApiError>(&made)) ADD_FAILURE() << error->message;
  return std::holds_alternative<Job>(made) ? std::get<Job>(std::move(made)) : Job();
}

ApiError error_of(JobOrError made) {
  EXPECT_TRUE(std::holds_alternative<ApiError>(made));
  return std::holds_alternative<ApiError>(made) ? std::get<ApiError>(std::move(made)) : ApiError();
}

std::string with(const char* body, const std::string& more) {
  return std::string("{") + body + (more.empty() ? "" : ", " + more) + "}";
}
JobOrError chat(const std::string& more) {
  return chat_job(with(R"("messages": [{"role": "user", "content": "hi"}])", more), service());
}
JobOrError completion(const std::string& more) {
  return completion_job(with(R"("prompt": "hi")", more), service());
}
JobOrError response(const std::string& more) {
  return responses_job(with(R"("input": "hi")", more), service());
}

SamplingParams sampling_of(JobOrError made) { return job_of(std::move(made)).requests.at(0).sampling; }
std::string prompt_of(JobOrError made) {
  return service().model.detokenize(job_of(std::move(made)).requests.at(0).prompt);
}

TEST(Requests, WholeNumbersMayBeWrittenAsFractions) {
  EXPECT_EQ(
      sampling_of(chat(R"("max_tokens": 20.0, "top_k": 4e1, "seed": 7.0, "min_tokens": 2.0)")).max_tokens,
      20);
  EXPECT_EQ(sampling_of(chat(R"("top_k": 4e1)")).top_k, 40);
  EXPECT_EQ(sampling_of(completion(R"("logprobs": 2.0)")).top_logprobs, 2);
  EXPECT_EQ(sampling_of(chat(R"("stop_token_ids": [7.0])")).stop_tokens[0], 7);
  EXPECT_EQ(job_of(completion_job(R"({"prompt": [1.0, 2]})", service())).requests[0].prompt,
            (std::vector<int32_t>{1, 2}));
  for (const char* wrong : {"20.5", "1e300", "-1e300", "\"20\"", "true", "[20]", "1e18", "2147483648.0"})
    EXPECT_EQ(error_of(chat(std::string(R"("max_tokens": )") + wrong)).param, "max_tokens") << wrong;
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

// As forms and older clients send them: nothing is asked for.
TEST(Requests, EmptyFieldsAreAbsent) {
  const std::string plain = prompt_of(chat("")), responded = prompt_of(response(""));
  for (const char* more :
       {R"("functions": [], "function_call": "auto")", R"("function_call": "none")", R"("functions": [])",
        R"("tools": [], "tool_choice": "auto")", R"("reasoning_effort": "")", R"("reasoning_effort": "auto")",
        R"("reasoning_effort": "default")", R"("guided_regex": "", "grammar": "", "chat_template": "")",
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
        R"("thinking": {"type": "enabled", "budget_tokens": 9})", R"("thinking": 5)",
        R"("chat_template_kwargs": [])"}) {
    for (const auto& make : {chat, response}) EXPECT_EQ(error_of(make(more)).http, 400) << more;
  }
}

TEST(Requests, FormsOfAnAnswerInOtherServersWords) {
  const std::string schema = R"({"type": "object", "properties": {"sum": {"type": "integer"}}})";
  const std::string want = prompt_of(
      chat(R"("response_format": {"type": "json_schema", "json_schema": {"schema": )" + schema + "}}"));
  std::string quoted = schema;
  for (size_t at = 0; (at = quoted.find('"', at)) != std::string::npos; at += 2) quoted.insert(at, "\\");
  for (const std::string& more :
       {R"("response_format": {"type": "json_object", "schema": )" + schema + "}",
        R"("response_format": {"type": "json_schema", "schema": )" + schema + "}",
        R"("guided_json": )" + schema, R"("guided_json": ")" + quoted + "\"", R"("json_schema": )" + schema,
        R"("structured_outputs": {"json": )" + schema + "}",
        R"("guided_json": )" + schema + R"(, "json_schema": )" + schema}) {
    const Job job = job_of(chat(more));
    EXPECT_EQ(service().model.detokenize(job.requests.at(0).prompt), want) << more;
    EXPECT_FALSE(job.requests.at(0).grammar.empty()) << more;
    if (more.find("response_format") == std::string::npos) {
      EXPECT_FALSE(job_of(response(more)).requests.at(0).grammar.empty()) << more;
    }
    EXPECT_FALSE(job_of(completion(more)).requests.at(0).grammar.empty()) << more;
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
}

constexpr const char* kTwoTools = R"("tools": [{"type": "function", "function": {"name": "f"}},
                                               {"type": "function", "name": "g"}, {"type": "web_search"}])";

TEST(Requests, AllowedTools) {
  const auto job = [](const std::string& choice) {
    return job_of(chat(std::string(kTwoTools) + R"(, "tool_choice": )" + choice));
  };
  const char* wrapped =
      R"({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}})";
  const char* plain =
      R"({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "g"}]})";
  const std::string all = prompt_of(chat(kTwoTools));
  for (const char* choice : {wrapped, plain}) {
    EXPECT_FALSE(job(choice).requests.at(0).grammar.empty());
    EXPECT_EQ(service().model.detokenize(job(choice).requests.at(0).prompt), all);  // is told both
    EXPECT_FALSE(job_of(response(std::string(kTwoTools) + R"(, "tool_choice": )" + choice))
                     .requests.at(0)
                     .grammar.empty());
  }
  EXPECT_TRUE(
      job(R"({"type": "allowed_tools", "mode": "auto", "tools": []})").requests.at(0).grammar.empty());
  for (const char* wrong :
       {R"({"type": "allowed_tools"})", R"({"type": "allowed_tools", "mode": "none", "tools": []})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": [{"name": "h"}]})",
        R"({"type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": {}})",
        R"({"type": "allowed_tools", "mode": "auto", "tools": [5]})", R"({"type": "custom", "name": "f"})"})
    EXPECT_EQ(error_of(chat(std::string(kTwoTools) + R"(, "tool_choice": )" + wrong)).param, "tool_choice")
        << wrong;
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
    Job job = job_of(response(two));
    job.answer->add(
        {.token = SampledToken{.token = 5},
         .pieces = {{.channel = "commentary", .recipient = recipient, .text = "{}", .begins = true}}},
        nullptr);
    job.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, nullptr);
    const Json call = Json::parse(job.answer->whole())["output"][0];
    EXPECT_EQ(call["type"], "function_call") << recipient;
    EXPECT_EQ(call["name"], "get");
    EXPECT_EQ(call["namespace"], space);
  }
  EXPECT_FALSE(
      job_of(response(two + R"(, "tool_choice": {"type": "function", "name": "get", "namespace": "a"})"))
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
       {error_of(chat_job(R"({"messages": [{"role": "user", "content": )" + text + "}]}", service())),
        error_of(completion_job(R"({"prompt": )" + text + "}", service())),
        error_of(responses_job(R"({"input": )" + text + "}", service()))}) {
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_TRUE(
        error.message.starts_with("This model's maximum context length is 1024 tokens. However, your "))
        << error.message;
  }
  const Job job = job_of(responses_job(R"({"stream": true, "input": )" + text + "}", service()));
  EXPECT_EQ(job.failure.value_or(ApiError()).code, "context_length_exceeded");
}

TEST(Requests, SpecialTokensOfACompletionsPrompt) {
  const auto count = [](const char* more) {
    return job_of(completion_job(std::string(R"({"prompt": "<|start|>")") + more + "}", service()))
        .requests.at(0)
        .prompt.size();
  };
  EXPECT_EQ(count(""), 1u);
  EXPECT_GT(count(R"(, "parse_special": false)"), 1u);
}

TEST(TokenRequests, AreThoseOfTheChat) {
  const std::string body =
      R"({"messages": [{"role": "user", "content": "hi"}], "reasoning": {"effort": "high"}, "max_tokens": 3,
          "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}},
          "tools": [{"type": "function", "function": {"name": "f"}}]})";
  const Job job = job_of(chat_job(body, service()));
  const Json tokens = Json::parse(std::get<TokenAnswer>(tokenize(body, service())).json);
  EXPECT_EQ(tokens["tokens"].get<std::vector<int32_t>>(), job.requests.at(0).prompt);
  const Json text = Json::parse(std::get<TokenAnswer>(apply_template(body, service())).json);
  EXPECT_EQ(text["prompt"], service().model.detokenize(job.requests.at(0).prompt));
  EXPECT_EQ(std::get<ApiError>(apply_template("{}", service())).param, "messages");
  EXPECT_EQ(std::get<ApiError>(tokenize(R"({"messages": 5})", service())).param, "messages");
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

// ---- histories ----

std::string prompt_of_messages(const std::string& messages) {
  return prompt_of(
      chat_job(R"({"messages": [{"role": "user", "content": "go"}, )" + messages + "]}", service()));
}

TEST(ChatHistory, RefusalsAreText) {
  const std::string want = prompt_of_messages(R"({"role": "assistant", "content": "No."})");
  for (const char* message : {R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})",
                              R"({"role": "assistant", "content": null, "refusal": "No."})",
                              R"({"role": "assistant", "refusal": "No."})",
                              R"({"role": "assistant", "content": "No.", "refusal": null})",
                              R"({"role": "assistant", "content": "No.", "refusal": ""})"})
    EXPECT_EQ(prompt_of_messages(message), want) << message;
}

TEST(ChatHistory, FunctionsAreToolsInOlderWords) {
  const std::string want = prompt_of_messages(
      R"({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
         {"role": "tool", "tool_call_id": "c", "content": "4"})");
  EXPECT_EQ(prompt_of_messages(
                R"({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
                                  {"role": "function", "name": "f", "content": "4"})"),
            want);
}

std::string prompt_of_items(const std::string& items) {
  return prompt_of(
      responses_job(R"({"input": [{"role": "user", "content": "go"}, )" + items + "]}", service()));
}

TEST(ResponsesInput, ItemsOfCodexHistories) {
  const std::pair<const char*, const char*> kTold[] = {
      {R"({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"},
           {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]})",
       "see[image omitted: this model reads text only]"},
      {R"({"role": "user", "content": [{"type": "input_file", "file_data": "AAAA"}]})", "[file omitted"},
      {R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]})", "I will not."},
      {R"({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
          {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"})",
       " to=functions.apply_patch<|channel|>commentary<|message|>*** "
       "Begin<|call|><|start|>functions.apply_patch "
       "to=assistant<|channel|>commentary<|message|>Done<|end|>"},
      {R"({"type": "local_shell_call", "call_id": "c", "status": "completed",
           "action": {"type": "exec", "command": ["ls"]}},
          {"type": "local_shell_call_output", "id": "c", "output": "a.txt"})",
       R"(functions.local_shell<|channel|>commentary<|message|>{"action":{"type":"exec","command":["ls"]}}<|call|>)"},
      {R"({"type": "local_shell_call_output", "id": "lost", "output": "a.txt"})",
       "<|start|>functions.local_shell to=assistant"},
      {R"({"type": "web_search_call", "id": "w", "status": "completed",
           "action": {"type": "search", "query": "tiles"}})",
       R"([web_search_call: {"action":{"type":"search","query":"tiles"}}])"},
      {R"({"type": "mcp_call", "name": "get", "arguments": "{}", "output": "42", "server_label": "x"})",
       R"([mcp_call: {"name":"get","arguments":"{}","output":"42"}])"},
      {R"({"type": "image_generation_call", "id": "i", "result": "AAAA"})", "[image_generation_call: {}]"},
      {R"({"type": "compaction", "encrypted_content": "gAAAA"})", "compacted and cannot be read here"},
      {R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"},
           {"type": "input_image", "image_url": "data:"}]})",
       "4[image omitted"},
      {R"({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
          {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]})",
       "to=functions.shell"}};
  for (const auto& [items, told] : kTold)
    EXPECT_NE(prompt_of_items(items).find(told), std::string::npos) << items << "\n"
                                                                    << prompt_of_items(items);
}

TEST(ResponsesInput, PartsWithoutAMessageAreTheUsers) {
  EXPECT_EQ(prompt_of_items(R"({"type": "input_text", "text": "on"})"),
            prompt_of_items(R"({"role": "user", "content": "on"})"));
  EXPECT_NE(prompt_of_items(R"({"type": "input_file", "file_id": "x"})").find("[file omitted"),
            std::string::npos);
}

TEST(ResponsesInput, CallsInNamespacesAreToldAsTheirToolsAre) {
  EXPECT_NE(
      prompt_of_items(
          R"({"type": "function_call", "call_id": "c", "name": "get", "namespace": "a", "arguments": "{}"},
                               {"type": "function_call_output", "call_id": "c", "output": "4"})")
          .find("<|start|>functions.a__get to=assistant"),
      std::string::npos);
}

TEST(ResponsesInput, WhatSaysNothingToTheModelIsLeftOut) {
  const std::string without = prompt_of_items(R"({"role": "user", "content": "on"})");
  for (const char* item :
       {R"({"type": "mcp_list_tools", "tools": []})", R"({"type": "mcp_approval_request", "name": "x"})",
        R"({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABforeign"})",
        R"({"type": "reasoning", "summary": []})", R"({"type": "ghost_snapshot", "ghost_commit": {}})"})
    EXPECT_EQ(prompt_of_items(std::string(item) + R"(, {"role": "user", "content": "on"})"), without) << item;
  const auto refused = [](const char* items) {
    return error_of(responses_job(std::string(R"({"input": [)") + items + "]}", service()));
  };
  EXPECT_NE(refused(R"({"type": "item_reference", "id": "x"})").message.find("send the item itself"),
            std::string::npos);
  EXPECT_NE(refused(R"({"role": "user", "content": "a"}, {"type": "elephant"})").message.find("item 1"),
            std::string::npos);
  for (const char* wrong :
       {R"({"type": "mcp_list_tools"})", "5", "{}", R"({"type": "elephant_call"})",
        R"({"type": "_call_output"})", R"({"type": "function_call_output", "output": "x"})"})
    EXPECT_EQ(refused(wrong).http, 400) << wrong;
}

TEST(ResponsesInput, ReasoningComesBackSealed) {
  for (const std::string& text :
       {std::string(), std::string("a"), std::string("think \xE2\x9C\x93 hard"), std::string(1000, 'x')}) {
    const std::string sealed = seal_reasoning(text);
    EXPECT_EQ(unseal_reasoning(sealed), text);
    for (size_t i = 0; i < sealed.size(); i += 7) {
      std::string changed = sealed;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      EXPECT_NE(unseal_reasoning(changed).value_or("refused"), text) << i;
    }
    EXPECT_FALSE(unseal_reasoning(sealed.substr(0, sealed.size() / 2)));
  }
  for (const char* foreign : {"", "gAAAAAB", "moesaic-1.", "moesaic-1.0123456789abcdef!!"})
    EXPECT_FALSE(unseal_reasoning(foreign)) << foreign;
  const auto item = [](const std::string& members) {
    return prompt_of_items(R"({"type": "reasoning", "summary": [], )" + members + "}");
  };
  EXPECT_EQ(item(R"("encrypted_content": ")" + seal_reasoning("think") + "\""),
            item(R"("content": [{"type": "reasoning_text", "text": "think"}])"));
}

// ---- return_token_ids ----

// Tokens of a header and of text, the last one with the end or before it.
void play(Answer& answer, int choice, bool last_with_end, std::string* sse) {
  const auto add = [&](int32_t token, const char* channel, const char* text) {
    AnswerEvent event{.choice = choice, .token = SampledToken{.token = token}};
    if (*text != 0) event.pieces = {{.channel = channel, .recipient = {}, .text = text}};
    answer.add(event, sse);
  };
  add(1, "", "");
  add(2, "analysis", "th");
  add(3, "", "");
  add(4, "final", "x");
  AnswerEvent end{.choice = choice, .end = Outcome{.finish = FinishReason::kStop}};
  if (!last_with_end) add(9, "", "");
  if (last_with_end) end.token = SampledToken{.token = 9};
  answer.add(end, sse);
}

std::vector<Json> chunks_of(const std::string& sse) {
  std::vector<Json> chunks;
  for (size_t at = 0; (at = sse.find("data: {", at)) != std::string::npos; ++at)
    chunks.push_back(Json::parse(sse.substr(at + 6, sse.find('\n', at) - at - 6)));
  return chunks;
}

const Json& told_prompt(const Json& json) {
  return json.contains("prompt_token_ids") ? json["prompt_token_ids"]
                                           : json["choices"][0]["prompt_token_ids"];
}

// As vLLM has it, and a chunk for each token.
TEST(ReturnTokenIds, WholeAndStreamed) {
  const Json all = {1, 2, 3, 4, 9};
  for (const auto& make : {chat, completion}) {
    for (const bool last_with_end : {false, true}) {
      Job job = job_of(make(R"("return_token_ids": true, "n": 2)"));
      const Json prompt = job.requests.at(0).prompt;
      for (const int choice : {0, 1}) play(*job.answer, choice, last_with_end, nullptr);
      const Json whole = Json::parse(job.answer->whole());
      for (const Json& choice : whole["choices"]) EXPECT_EQ(choice["token_ids"], all);
      EXPECT_EQ(told_prompt(whole), prompt);
      EXPECT_EQ(whole.contains("prompt_token_ids"), make == chat);

      Job streamed = job_of(make(R"("return_token_ids": true, "stream": true)"));
      std::string sse;
      play(*streamed.answer, 0, last_with_end, &sse);
      const std::vector<Json> chunks = chunks_of(sse);
      EXPECT_EQ(told_prompt(chunks.at(0)), prompt);
      Json told = Json::array();
      for (const Json& chunk : chunks) {
        const Json ids = chunk["choices"][0].value("token_ids", Json::array());
        EXPECT_LE(ids.size(), 1u);
        told.insert(told.end(), ids.begin(), ids.end());
        if (&chunk == chunks.data()) continue;
        EXPECT_FALSE(chunk.contains("prompt_token_ids") || chunk["choices"][0].contains("prompt_token_ids"));
      }
      EXPECT_EQ(told, all);
    }
    Job job = job_of(make(""));
    play(*job.answer, 0, true, nullptr);
    EXPECT_EQ(job.answer->whole().find("token_ids"), std::string::npos);
  }
  EXPECT_EQ(error_of(response(R"("return_token_ids": true)")).param, "return_token_ids");
  const Job two = job_of(completion_job(R"({"prompt": ["a", "b c"], "return_token_ids": true})", service()));
  for (const int choice : {0, 1}) play(*two.answer, choice, true, nullptr);
  const Json whole = Json::parse(two.answer->whole());
  for (const int i : {0, 1}) EXPECT_EQ(whole["choices"][i]["prompt_token_ids"], two.requests.at(i).prompt);
}

// ---- what Responses' answers hold where they are asked to ----

AnswerEvent event(int32_t token, const char* channel, const char* text) {
  AnswerEvent e{.token = SampledToken{.token = token, .logprobs = {.logprob = -0.5, .top = {{token, -0.5}}}}};
  if (*text != 0) e.pieces = {{.channel = channel, .recipient = {}, .text = text}};
  return e;
}

TEST(ResponsesAnswer, LogprobsOfMessagesWholeAndStreamed) {
  Job job = job_of(response(
      R"("stream": true, "top_logprobs": 1, "include": ["message.output_text.logprobs", "reasoning.encrypted_content"])"));
  EXPECT_EQ(job.requests.at(0).sampling.top_logprobs, 1);
  std::string sse;
  const int32_t begins = service().model.tokenize("<|message|>", true).value()[0];
  job.answer->add(event(11, "analysis", "th"), &sse);
  job.answer->add(event(12, "", ""), &sse);  // a header
  job.answer->add(event(begins, "", ""), &sse);
  job.answer->add(event(13, "", ""), &sse);  // half a character
  job.answer->add(event(14, "final", "x"), &sse);
  job.answer->add(event(15, "final", "y"), &sse);
  job.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, &sse);
  const Json whole = Json::parse(job.answer->whole());
  EXPECT_EQ(whole["output"][0]["encrypted_content"], seal_reasoning("th"));
  const Json& part = whole["output"][1]["content"][0];
  ASSERT_EQ(part["logprobs"].size(), 3u);
  EXPECT_EQ(part["logprobs"][0]["logprob"], -0.5);
  EXPECT_EQ(part["logprobs"][0]["top_logprobs"].size(), 1u);
  Json streamed = Json::array();
  for (size_t at = 0; (at = sse.find("data: ", at)) != std::string::npos; ++at) {
    const Json data = Json::parse(sse.substr(at + 6, sse.find('\n', at) - at - 6));
    if (data["type"] == "response.output_text.delta")
      streamed.insert(streamed.end(), data["logprobs"].begin(), data["logprobs"].end());
    if (data["type"] == "response.output_text.done") {
      EXPECT_EQ(data["logprobs"], part["logprobs"]);
    }
  }
  EXPECT_EQ(streamed, part["logprobs"]);
}

TEST(ResponsesAnswer, NothingThatWasNotAskedFor) {
  Job job = job_of(response(""));
  job.answer->add(event(11, "analysis", "th"), nullptr);
  job.answer->add(event(14, "final", "x"), nullptr);
  job.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, nullptr);
  const Json whole = Json::parse(job.answer->whole());
  EXPECT_FALSE(whole["output"][0].contains("encrypted_content"));
  EXPECT_TRUE(whole["output"][1]["content"][0]["logprobs"].empty());
}

}  // namespace
}  // namespace moesaic::openai

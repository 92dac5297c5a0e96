// Requests to generations and tokens to answers, with models/tiny's tokenizer. What clients make of it:
// tests/client.
#include <gtest/gtest.h>

#include <algorithm>

#include "openai/chat_answer.h"
#include "openai/chat_request.h"
#include "openai/completion_answer.h"
#include "openai/completion_request.h"
#include "openai/responses_request.h"
#include "text/utf8.h"

namespace moesaic::openai {
namespace {

const Service& service() {
  static const Model model =
      Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "cpu", .threads = 1, .context = 256}).value();
  static const Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

PreparedRequest prepared_of(PreparedRequestOrError made) {
  if (const auto* error = std::get_if<ApiError>(&made)) ADD_FAILURE() << error->message;
  return std::get<PreparedRequest>(std::move(made));
}

ApiError error_of(PreparedRequestOrError made) {
  EXPECT_TRUE(std::holds_alternative<ApiError>(made));
  return std::get<ApiError>(std::move(made));
}

std::string chat(const std::string& more) {
  return R"({"messages": [{"role": "user", "content": "hi"}])" + (more.empty() ? "" : ", " + more) + "}";
}

TextPiece text(const char* channel, const char* text) {
  return {.channel = channel, .recipient = {}, .text = text};
}

Outcome outcome(FinishReason finish) { return {.finish = finish, .prompt_tokens = 5, .generated_tokens = 7}; }

TEST(ArgumentsInParts, AreWholeCharactersAndAllOfThem) {
  for (const std::string text :
       {"", "{}", "{\"a\": 1}",
        "{\"city\": \"\u00c5lesund \u6771\u4eac\u6771\u4eac\u6771\u4eac \U0001F600\"}"}) {
    std::string all;
    for (const std::string& part : arguments_in_parts(text)) {
      EXPECT_EQ(utf8_valid_prefix(part), part.size());
      all += part;
    }
    EXPECT_EQ(all, text);
  }
  EXPECT_EQ(arguments_in_parts("").size(), 1u);
  EXPECT_EQ(arguments_in_parts(std::string(100, 'x')).size(), 7u);
}

TEST(ChatRequest, Defaults) {
  const PreparedRequest prepared = prepared_of(prepare_chat(chat(""), service()));
  ASSERT_EQ(prepared.requests.size(), 1u);
  const SamplingParams& s = prepared.requests[0].sampling;
  EXPECT_EQ(s.temperature, 1);
  EXPECT_EQ(s.max_tokens, 0);
  EXPECT_EQ(s.top_logprobs, -1);
  EXPECT_TRUE(s.stop_tokens.empty());
  EXPECT_TRUE(prepared.requests[0].chat);
  EXPECT_FALSE(prepared.stream);
}

TEST(ChatRequest, ReadsSampling) {
  const PreparedRequest prepared = prepared_of(prepare_chat(
      chat(R"("temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "seed": -3, "n": 2, "stop": "x",
              "max_tokens": 4, "logit_bias": {"7": -2.5}, "logprobs": true, "top_logprobs": 3, "stream": true)"),
      service()));
  ASSERT_EQ(prepared.requests.size(), 2u);
  const SamplingParams& s = prepared.requests[0].sampling;
  EXPECT_EQ(s.temperature, 0);
  EXPECT_EQ(s.top_p, 0.5);
  EXPECT_EQ(s.top_k, 0);
  EXPECT_EQ(s.min_p, 0.1);
  EXPECT_EQ(s.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(prepared.requests[1].sampling.seed, static_cast<uint64_t>(-2));
  EXPECT_EQ(s.stop_strings, std::vector<std::string>{"x"});
  EXPECT_EQ(s.max_tokens, 4);
  EXPECT_EQ(s.logit_bias, (std::map<int32_t, float>{{7, -2.5F}}));
  EXPECT_EQ(s.top_logprobs, 3);
  EXPECT_TRUE(prepared.stream);
}

// Each step goes through all of them.
TEST(ChatRequest, BoundsBiases) {
  Json pairs = Json::array(), named = Json::object();
  for (int i = 0; i < 1024; ++i) pairs.push_back({i % 4, 1}), named[std::to_string(i)] = 1;
  const auto bias = [](const Json& value) {
    return prepare_chat(chat(R"("logit_bias": )" + value.dump()), service());
  };
  EXPECT_EQ(prepared_of(bias(pairs)).requests[0].sampling.logit_bias.size(), 4u);
  EXPECT_EQ(prepared_of(bias(named)).requests[0].sampling.logit_bias.size(), 1024u);
  pairs.push_back({0, 1}), named["1024"] = 1;
  for (const Json& value : {pairs, named}) EXPECT_EQ(std::get<ApiError>(bias(value)).param, "logit_bias");
}

TEST(ChatRequest, NamesTheWrongField) {
  const std::pair<const char*, const char*> kWrong[] = {
      {"temperature", R"("temperature": "hot")"},
      {"top_p", R"("top_p": 1.1)"},
      {"seed", R"("seed": 18446744073709551615)"},
      {"logit_bias", R"("logit_bias": {"99999999": 1})"},
      {"logit_bias", R"("logit_bias": {"1x": 1})"},
      {"n", R"("n": 1000)"},
      {"bad_words", R"("bad_words": [""])"},
      {"tool_choice", R"("tool_choice": "required")"},
      {"tools", R"("tools": [{"type": "function", "function": {"name": "a b"}}])"},
      {"tool_choice", R"("tool_choice": {"type": "function", "function": {"name": "f"}})"},
      {"functions", R"("functions": [{"name": "f"}])"},
      {"modalities", R"("modalities": ["audio"])"}};
  for (const auto& [param, more] : kWrong)
    EXPECT_EQ(error_of(prepare_chat(chat(more), service())).param, param) << more;
}

TEST(ChatRequest, NamesOfFunctionsHaveUpTo128Letters) {
  const auto named = [](size_t letters) {
    return prepare_chat(chat(R"("tools": [{"type": "function", "function": {"name": ")" +
                             std::string(letters, 'f') + "\"}}]"),
                        service());
  };
  EXPECT_EQ(prepared_of(named(128)).requests.size(), 1u);
  EXPECT_EQ(error_of(named(129)).param, "tools");
}

TEST(ChatRequest, NullIsAbsent) {
  const PreparedRequest prepared = prepared_of(prepare_chat(
      chat(R"("temperature": null, "stop": null, "tools": null, "tool_choice": null, "max_tokens": null,
              "response_format": null, "stream_options": null, "logit_bias": null)"),
      service()));
  EXPECT_EQ(prepared.requests[0].sampling.temperature, 1);
}

TEST(ChatRequest, PromptLongerThanTheContext) {
  std::string words;
  for (int i = 0; i < 400; ++i) words += "word ";
  const ApiError error =
      error_of(prepare_chat(R"({"messages": [{"role": "user", "content": ")" + words + "\"}]}", service()));
  EXPECT_EQ(error.http, 400);
  EXPECT_EQ(error.code, "context_length_exceeded");
  EXPECT_EQ(error.message.find("more than"), std::string::npos) << error.message;
}

// The rest of a prompt that is much too long is not read: 15 MB take no longer than some contexts' tokens.
TEST(ChatRequest, APromptMuchTooLongIsNotReadToItsEnd) {
  const std::string text(15 << 20, '7');
  for (const ApiError& error :
       {error_of(prepare_chat(R"({"messages": [{"role": "user", "content": ")" + text + "\"}]}", service())),
        error_of(prepare_completion(R"({"prompt": ")" + text + "\"}", service())),
        error_of(prepare_response(R"({"input": ")" + text + "\"}", service()))}) {
    EXPECT_EQ(error.code, "context_length_exceeded");
    EXPECT_NE(error.message.find("more than 512 tokens"), std::string::npos) << error.message;
  }
}

TEST(ChatRequest, WhatIsNotCompiledMayBeLeftToAnotherCall) {
  GrammarCache grammars;
  Service quick{.model = service().model,
                .name = "tiny",
                .today = "2026-01-01",
                .grammars = &grammars,
                .may_compile = false};
  Service slow = quick;
  slow.may_compile = true;
  const std::string schema = R"({"name": "s", "schema": {"type": "object"}})";
  const std::string format = R"("response_format": {"type": "json_schema", "json_schema": )" + schema + "}";
  const std::string messages = R"("messages": [{"role": "user", "content": "a"}])";
  const auto ask = [&](const std::string& more) { return "{" + messages + ", " + more + "}"; };
  const std::string strict =
      ask(R"("tools": [{"type": "function", "function": {"name": "f", "strict": true}}])");
  const std::string input =
      R"({"input": "a", "text": {"format": {"type": "json_schema", "name": "s", "schema": {"type": "array"}}}})";
  const std::string prompt = R"({"prompt": "a", )" + format + "}";
  using Make = PreparedRequestOrError (*)(std::string_view, const Service&);
  for (const auto& [make, body] : {std::pair<Make, std::string>{prepare_chat, ask(format)},
                                   {prepare_chat, strict},
                                   {prepare_response, input},
                                   {prepare_completion, prompt}}) {
    EXPECT_TRUE(error_of(make(body, quick)).needs_compilation) << body;
    EXPECT_TRUE(std::holds_alternative<PreparedRequest>(make(body, slow))) << body;
    EXPECT_TRUE(std::holds_alternative<PreparedRequest>(make(body, quick))) << body;
  }
  EXPECT_TRUE(std::holds_alternative<PreparedRequest>(prepare_chat("{" + messages + "}", quick)));
  EXPECT_EQ(grammars.compiled(), 4);
}

TEST(ChatRequest, FormsOfTheAnswer) {
  const auto held = [&](const char* more) {
    return !prepared_of(prepare_chat(chat(more), service())).requests[0].grammar.empty();
  };
  EXPECT_FALSE(held(R"("response_format": {"type": "text"})"));
  EXPECT_TRUE(held(R"("response_format": {"type": "json_object"})"));
  EXPECT_TRUE(
      held(R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "null"}}})"));
  EXPECT_FALSE(held(R"("tools": [{"type": "function", "function": {"name": "f"}}])"));
  EXPECT_TRUE(held(R"("tools": [{"type": "function", "function": {"name": "f", "strict": true}}])"));
  EXPECT_TRUE(
      held(R"("tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required")"));
  const char* wrong = R"("response_format": {"type": "json_schema", "json_schema": {"schema": {"not": {}}}})";
  EXPECT_EQ(error_of(prepare_chat(chat(wrong), service())).param, "response_format");
}

TEST(ChatRequest, TheModelIsToldTheSchema) {
  const auto prompt = [&](const char* more) {
    return service().model.detokenize(prepared_of(prepare_chat(chat(more), service())).requests[0].prompt);
  };
  const std::string told = prompt(
      R"("response_format": {"type": "json_schema", "json_schema": {"name": "nil", "schema": {"type": "null"}}})");
  EXPECT_NE(
      told.find("<|start|>developer<|message|># Response Formats\n\n## nil\n\n{\"type\":\"null\"}<|end|>"),
      std::string::npos)
      << told;
  EXPECT_EQ(prompt(R"("response_format": {"type": "json_object"})").find("Response Formats"),
            std::string::npos);
}

Callable functions(const std::vector<std::string>& names) {
  Tools tools;
  for (const std::string& name : names) {
    tools.functions.push_back({.name = {.name = name, .space = {}}, .tool = {.name = name}});
  }
  return Callable(tools);
}

ChatAnswer chat_answer(bool tools) {
  return {service(), {.functions = tools ? functions({"a", "b.c"}) : Callable(), .include_usage = true}};
}

TEST(ChatAnswer, SortsChannels) {
  ChatAnswer answer = chat_answer(true);
  answer.add({.pieces = {text("analysis", "th"), text("final", "an")}}, nullptr);
  answer.add({.pieces = {text("final", "swer")}, .end = outcome(FinishReason::kStop)}, nullptr);
  ASSERT_TRUE(answer.complete());
  const Json json = Json::parse(answer.whole());
  const Json& message = json["choices"][0]["message"];
  EXPECT_EQ(message["content"], "answer");
  EXPECT_EQ(message["reasoning"], "th");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(json["usage"]["total_tokens"], 12);
}

TEST(ChatAnswer, CallsWithAndWithoutArguments) {
  ChatAnswer answer = chat_answer(true);
  answer.add({.pieces = {{.channel = "commentary", .recipient = "functions.a", .text = "", .begins = true}}},
             nullptr);
  answer.add(
      {.pieces = {{.channel = "commentary", .recipient = "functions.a", .text = "[1]", .begins = true}},
       .end = outcome(FinishReason::kStop)},
      nullptr);
  const Json choice = Json::parse(answer.whole())["choices"][0];
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 2u);
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], "{}");
  EXPECT_EQ(choice["message"]["tool_calls"][1]["function"]["arguments"], "[1]");
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
}

TEST(ChatAnswer, WithoutToolsACallIsContent) {
  ChatAnswer answer = chat_answer(false);
  answer.add({.pieces = {{.channel = "commentary", .recipient = "functions.a", .text = "{}", .begins = true}},
              .end = outcome(FinishReason::kStop)},
             nullptr);
  EXPECT_EQ(Json::parse(answer.whole())["choices"][0]["message"]["content"], "{}");
}

TEST(ChatAnswer, AToolThatWasNotOfferedIsNotCalled) {
  const std::pair<const char*, const char*> kRecipients[] = {{"functions.a", "a"},
                                                             {"a", "a"},
                                                             {"functions.b.c", "b.c"},
                                                             {"functions.z", nullptr},
                                                             {"b", nullptr},
                                                             {"functions.", nullptr},
                                                             {"python", nullptr},
                                                             {"browser.search", nullptr},
                                                             {"assistant", nullptr},
                                                             {"functions.functions.a", nullptr},
                                                             {"Functions.a", nullptr},
                                                             {"functions.acommentary", "a"},
                                                             {"functions.b.c:", "b.c"},
                                                             {"functions.ajson", "a"},
                                                             {"functions.commentary", nullptr}};
  for (const auto& [recipient, name] : kRecipients) {
    ChatAnswer answer = chat_answer(true);
    answer.add({.pieces = {{.channel = "commentary", .recipient = recipient, .text = "{}", .begins = true}},
                .end = outcome(FinishReason::kStop)},
               nullptr);
    const Json choice = Json::parse(answer.whole())["choices"][0];
    const bool called = choice["message"].contains("tool_calls");
    EXPECT_EQ(called, name != nullptr) << recipient;
    EXPECT_EQ(choice["finish_reason"], called ? "tool_calls" : "stop") << recipient;
    EXPECT_EQ(choice["message"]["content"], called ? Json() : Json("{}")) << recipient;
    if (!called) continue;
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], name);
  }
}

TEST(Callable, OnlyTheNamedFunction) {
  const auto tools = [](const char* more) {
    const Json root = Json::parse(std::string(R"({"tools": [{"type": "function", "function": {"name": "f"}},
                        {"type": "function", "function": {"name": "g"}}])") +
                                  more + "}");
    Fields fields(root);
    return Callable(read_tools(fields));
  };
  EXPECT_EQ(tools("").name_of("functions.g"), "g");
  EXPECT_EQ(tools(R"(, "tool_choice": "none")").name_of("functions.g"), "");
  const Callable named = tools(R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})");
  EXPECT_EQ(named.name_of("functions.f"), "f");
  EXPECT_EQ(named.name_of("functions.g"), "");
}

TEST(ChatAnswer, StreamsOneChunkForEachToken) {
  ChatAnswer answer = chat_answer(false);
  std::string sse;
  answer.add({.token = SampledToken{}, .pieces = {}}, &sse);
  answer.add({.token = SampledToken{}, .pieces = {text("final", "a"), text("final", "b")}}, &sse);
  answer.add({.token = SampledToken{}, .pieces = {}, .end = outcome(FinishReason::kLength)}, &sse);
  answer.finish(sse);
  EXPECT_EQ(std::count(sse.begin(), sse.end(), '\n'), 2 * 5);  // role, text, finish, usage, [DONE]
  EXPECT_NE(sse.find(R"("delta":{"content":"ab"})"), std::string::npos);
  EXPECT_NE(sse.find(R"("finish_reason":"length")"), std::string::npos);
  EXPECT_TRUE(sse.ends_with("data: [DONE]\n\n"));
}

TEST(CompletionRequest, Prompts) {
  const auto count = [&](const char* prompt) {
    return prepared_of(prepare_completion(std::string(R"({"prompt": )") + prompt + "}", service()))
        .requests.size();
  };
  EXPECT_EQ(count(R"("a")"), 1u);
  EXPECT_EQ(count("[1, 2]"), 1u);
  EXPECT_EQ(count(R"(["a", "b"])"), 2u);
  EXPECT_EQ(count("[[1], [2, 3]]"), 2u);
  for (const char* wrong :
       {"{}", "[]", "[-1]", "[1.5]", "[100000000]", R"([1, "a"])", R"(["a", 1])", "[[]]", R"("")"})
    EXPECT_EQ(error_of(prepare_completion(std::string(R"({"prompt": )") + wrong + "}", service())).param,
              "prompt")
        << wrong;
  const auto many = [](int prompts) {
    std::string list = R"(["a")";
    for (int i = 1; i < prompts; ++i) list += R"(, "a")";
    return list + "]";
  };
  EXPECT_EQ(count((many(64) + R"(, "n": 2)").c_str()), 128u);
  for (const std::string& body : {many(129), many(65) + R"(, "n": 2)"})
    EXPECT_EQ(error_of(prepare_completion(R"({"prompt": )" + body + "}", service())).param, "prompt");
}

TEST(CompletionRequest, WithoutASeedEqualPromptsHaveDifferentOnes) {
  const auto further = [](const char* seed) {  // behind the first one's
    const PreparedRequest made = prepared_of(prepare_completion(
        std::string(R"({"prompt": ["a", "a"], "n": 2, "seed": )") + seed + "}", service()));
    std::vector<uint64_t> seeds;
    for (const GenerationRequest& one : made.requests)
      seeds.push_back(one.sampling.seed - made.requests[0].sampling.seed);
    return seeds;
  };
  for (const char* none : {"null", "-1", "-1.0"})
    EXPECT_EQ(further(none), (std::vector<uint64_t>{0, 1, 2, 3})) << none;
  EXPECT_EQ(further("7"), (std::vector<uint64_t>{0, 1, 0, 1}));
}

TEST(CompletionAnswer, APromptCountsOnceForAllItsChoices) {
  CompletionAnswer answer(service(), {.prompts = 2, .n = 2});
  for (int i = 0; i < 4; ++i) {
    const Outcome outcome{.finish = FinishReason::kStop,
                          .prompt_tokens = i < 2 ? 10 : 20,
                          .generated_tokens = 3,
                          .cached_tokens = 2,
                          .cache_write_tokens = 5};
    answer.add({.choice = i, .end = outcome}, nullptr);
  }
  EXPECT_TRUE(answer.complete());
  const Usage usage = answer.usage();
  EXPECT_EQ(usage.prompt_tokens, 30);
  EXPECT_EQ(usage.generated_tokens, 12);
  EXPECT_EQ(usage.cached_tokens, 4);
  EXPECT_EQ(usage.cache_write_tokens, 10);
}

TEST(ChatAnswer, APromptCountsOnceForAllItsChoices) {
  ChatAnswer answer(service(), {.choices = 2});
  for (const int i : {0, 1}) {  // the second one finds what the first one left
    const Outcome outcome{.finish = FinishReason::kStop,
                          .prompt_tokens = 78,
                          .generated_tokens = 3,
                          .cached_tokens = 64 * i,
                          .cache_write_tokens = 64 * (1 - i)};
    answer.add({.choice = i, .end = outcome}, nullptr);
  }
  const Usage usage = answer.usage();
  EXPECT_EQ(usage.prompt_tokens, 78);
  EXPECT_EQ(usage.generated_tokens, 6);
  EXPECT_EQ(usage.cached_tokens, 0);
  EXPECT_EQ(usage.cache_write_tokens, 64);
}

TEST(Answers, CountReasoningInTokens) {
  const auto said = [](int32_t token, const char* channel = "", const char* shown = "") {
    AnswerEvent e{.token = SampledToken{.token = token}};
    if (*shown != 0) e.pieces = {text(channel, shown)};
    return e;
  };
  const auto special = [&](const char* name) {
    return said(service().model.tokenize(name, true).value().at(0));
  };
  const std::vector<AnswerEvent> thought = {special("<|channel|>"),         said(11),  // a header
                                            special("<|message|>"),         said(12),
                                            said(13, "analysis", "\u00e9"), said(14)};
  std::vector<AnswerEvent> answered = thought;
  for (const AnswerEvent& e :
       {said(15, "analysis", "\u00e9"), special("<|end|>"), special("<|start|>"), said(16),
        special("<|message|>"), said(17), said(18, "final", "\u00e9"), said(19)})
    answered.push_back(e);
  const std::string chat = R"({"messages": [{"role": "user", "content": "hi"}]})";
  for (const bool complete : {false, true}) {
    const PreparedRequest requests[] = {prepared_of(prepare_chat(chat, service())),
                                        prepared_of(prepare_response(R"({"input": "hi"})", service()))};
    for (const PreparedRequest& made : requests) {
      for (const AnswerEvent& e : complete ? answered : thought) made.answer->add(e, nullptr);
      made.answer->add({.end = outcome(FinishReason::kLength)}, nullptr);
      EXPECT_EQ(made.answer->usage().reasoning_tokens, complete ? 4 : 3);
    }
  }
}

TEST(ResponsesRequest, ItemsBecomeThePromptOfChat) {
  const PreparedRequest responses = prepared_of(prepare_response(
      R"({"instructions": "Be brief.", "input": [
          {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
          {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "think"}]},
          {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "c", "output": "4"}],
          "tools": [{"type": "function", "name": "f"}, {"type": "web_search"}]})",
      service()));
  const PreparedRequest chat = prepared_of(prepare_chat(
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"},
          {"role": "assistant", "reasoning": "think", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
          {"role": "tool", "tool_call_id": "c", "content": "4"}],
          "tools": [{"type": "function", "function": {"name": "f"}}]})",
      service()));
  EXPECT_EQ(service().model.detokenize(responses.requests[0].prompt),
            service().model.detokenize(chat.requests[0].prompt));
}

TEST(ResponsesAnswer, ItemsInOrder) {
  PreparedRequest prepared = prepared_of(prepare_response(
      R"({"input": "hi", "stream": true, "tools": [{"type": "function", "name": "f"}]})", service()));
  std::string sse;
  prepared.answer->add({.pieces = {text("analysis", "a")}}, &sse);
  prepared.answer->add({.pieces = {text("final", "b")}}, &sse);
  prepared.answer->add(
      {.pieces = {{.channel = "commentary", .recipient = "functions.f", .text = "{}", .begins = true}}},
      &sse);
  prepared.answer->add({.end = outcome(FinishReason::kStop)}, &sse);
  prepared.answer->finish(sse);
  std::vector<std::string> done;
  for (size_t at = 0; (at = sse.find("event: ", at)) != std::string::npos; ++at)
    done.push_back(sse.substr(at + 7, sse.find('\n', at) - at - 7));
  EXPECT_EQ(std::count(done.begin(), done.end(), "response.output_item.done"), 3);
  EXPECT_EQ(done.front(), "response.created");
  EXPECT_EQ(done.back(), "response.completed");
  const Json response = Json::parse(prepared.answer->whole());
  ASSERT_EQ(response["output"].size(), 3u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "b");
  EXPECT_EQ(response["output"][2]["arguments"], "{}");
  EXPECT_EQ(response["usage"]["output_tokens"], 7);
}

TEST(ResponsesAnswer, HiddenReasoningLeavesTheRest) {
  const PreparedRequest prepared =
      prepared_of(prepare_response(R"({"input": "hi", "include_reasoning": false})", service()));
  prepared.answer->add({.pieces = {text("analysis", "a")}}, nullptr);
  prepared.answer->add({.pieces = {text("final", "b")}}, nullptr);
  prepared.answer->add({.end = outcome(FinishReason::kStop)}, nullptr);
  const Json response = Json::parse(prepared.answer->whole());
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "b");
}

}  // namespace
}  // namespace moesaic::openai

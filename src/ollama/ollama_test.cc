// Ollama's API: what requests become, and the shape of answers.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <sstream>

#include "ollama/chat_request.h"
#include "ollama/error.h"
#include "ollama/field_table.h"
#include "ollama/model_list.h"
#include "openai/field_rows.h"
#include "openai/fields.h"
#include "openai/spliced_json.h"
#include "openai/stream_lines.h"
#include "openai/tool_choice.h"

namespace moesaic::ollama {
namespace {

using openai::AnswerEvent;
using openai::Json;

const openai::Service& service() {
  static const Model model =
      Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "cpu", .threads = 1, .context = 1024})
          .value();
  static const openai::Service instance{
      .model = model, .name = "tiny", .today = "2026-01-01", .started = 86400};
  return instance;
}

using Make = openai::PreparedRequestOrError (*)(std::string_view, const openai::Service&);

openai::PreparedRequest prepared(Make make, const std::string& members) {
  auto made = make(R"({"model": "tiny", )" + members + "}", service());
  if (const auto* error = std::get_if<openai::ApiError>(&made)) ADD_FAILURE() << error->message;
  return std::holds_alternative<openai::PreparedRequest>(made)
             ? std::get<openai::PreparedRequest>(std::move(made))
             : openai::PreparedRequest();
}

openai::ApiError refused(Make make, const std::string& members) {
  auto made = make(R"({"model": "tiny", )" + members + "}", service());
  EXPECT_TRUE(std::holds_alternative<openai::ApiError>(made)) << members;
  return std::holds_alternative<openai::ApiError>(made) ? std::get<openai::ApiError>(made)
                                                        : openai::ApiError();
}

std::string prompt_of(Make make, const std::string& members) {
  return service().model.detokenize(prepared(make, members).requests.at(0).prompt);
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr const char* kHi = R"("messages": [{"role": "user", "content": "hi"}])";
constexpr const char* kTools =
    R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}])";

TEST(OllamaRequest, AConversationWithCalls) {
  const std::string prompt = prompt_of(prepare_chat, std::string(kTools) + R"(, "messages": [
      {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."},
      {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
      {"role": "tool", "content": "7", "tool_name": "f"}])");
  EXPECT_TRUE(contains(prompt, "Be brief.")) << prompt;
  EXPECT_TRUE(contains(prompt, "analysis<|message|>hm<|end|>")) << prompt;
  EXPECT_TRUE(contains(prompt, "{\"a\":1}<|call|>")) << prompt;
  EXPECT_TRUE(contains(prompt, "<|start|>functions.f to=assistant<|channel|>commentary<|message|>7<|end|>"))
      << prompt;
}

TEST(OllamaRequest, AResultWithoutANameIsOfTheNextCall) {
  const std::string prompt = prompt_of(prepare_chat, R"("messages": [{"role": "user", "content": "Go."},
      {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {}}},
                                                          {"function": {"name": "g", "arguments": {}}}]},
      {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}])");
  EXPECT_TRUE(contains(prompt, "functions.f to=assistant<|channel|>commentary<|message|>1")) << prompt;
  EXPECT_TRUE(contains(prompt, "functions.g to=assistant<|channel|>commentary<|message|>2")) << prompt;
}

TEST(OllamaRequest, AResultWithoutANameIsOfNoCallThatIsOver) {
  const auto call = [](const char* name) {
    return fmt::format(
        R"({{"role": "assistant", "content": "", "tool_calls": [{{"id": "{0}", "function": {{"name": "{0}", "arguments": {{}}}}}}]}})",
        name);
  };
  // Interrupted, or with a result that has a name or an id.
  for (const char* over :
       {R"({"role": "user", "content": "Stop."})", R"({"role": "tool", "content": "1", "tool_name": "f"})",
        R"({"role": "tool", "content": "1", "tool_call_id": "f"})",
        R"({"role": "tool", "content": "1", "tool_call_id": "call_7", "name": "f"})"}) {
    const std::string prompt =
        prompt_of(prepare_chat, fmt::format(R"("messages": [{{"role": "user", "content": "Go."}}, {}, {}, {},
                                               {{"role": "tool", "content": "2"}}])",
                                            call("f"), over, call("g")));
    EXPECT_TRUE(contains(prompt, "functions.g to=assistant<|channel|>commentary<|message|>2")) << prompt;
  }
}

TEST(OllamaRequest, AResultWithoutANameIsOfTheLastCallWhereNoneIsOpen) {
  const auto call = [](const char* name) {
    return fmt::format(R"({{"id": "{0}", "function": {{"name": "{0}", "arguments": {{}}}}}})", name);
  };
  const std::string user = R"({"role": "user", "content": "Stop."})",
                    result = R"({"role": "tool", "content": "1"})";
  const auto list = [](std::initializer_list<std::string> messages) {
    return fmt::to_string(fmt::join(messages, ", "));
  };
  for (const std::string& behind :
       {list({user, result}), list({result, user, result}), list({result, result, user, result})}) {
    const std::string prompt = prompt_of(
        prepare_chat, fmt::format(R"("messages": [{{"role": "assistant", "tool_calls": [{}, {}]}}, {}])",
                                  call("f"), call("g"), behind));
    EXPECT_TRUE(contains(prompt, "functions.f to=assistant")) << prompt;
    EXPECT_EQ(contains(prompt, "functions.g to=assistant"), behind.starts_with(result)) << prompt;
  }
}

// The answer's own calls, as a client that keeps their text sends them.
TEST(OllamaRequest, AnAnswersCallsComeBackDigitForDigit) {
  const auto nested = [](int levels) {
    std::string json = "1";
    for (int i = 0; i < levels; ++i) json = fmt::format(R"({{"a":{}}})", json);
    return json;
  };
  for (const std::string& text :
       {std::string(R"({"n":123456789012345678901234567890,"x":[0.1234567890123456789]})"), nested(58),
        nested(59), nested(70)}) {
    const std::string arguments = openai::dump(openai::arguments_object(text));
    const std::string prompt = prompt_of(prepare_chat, fmt::format(R"("messages": [{{"role": "assistant",
        "content": "", "tool_calls": [{{"function": {{"name": "f", "arguments": {}}}}}]}},
        {{"role": "tool", "content": "2"}}])",
                                                                   arguments));
    EXPECT_TRUE(contains(prompt, arguments + "<|call|>")) << prompt;
    EXPECT_EQ(arguments == text, text.size() < 59 * 6) << text;
  }
}

TEST(OllamaRequest, MembersOfToolsAreLookedAt) {
  EXPECT_EQ(prepared(prepare_chat, std::string(kHi) + R"(, "tools": [{"type": "function", "function":
      {"name": "f", "descripton": "Does it.", "parameters": {}}}])")
                .unknown.header(),
            "tools.function.descripton;nearest=\"description\"");
}

TEST(OllamaRequest, Options) {
  const openai::PreparedRequest made = prepared(
      prepare_chat, std::string(kHi) + R"(, "options": {"num_predict": 7, "temperature": 0.3, "top_k": 4,
      "seed": 5, "stop": ["x"], "repeat_penalty": 1.1, "repeat_last_n": 64, "num_ctx": 4096}, "keep_alive": "5m")");
  EXPECT_TRUE(made.stream);
  EXPECT_TRUE(made.unknown.empty());
  const SamplingParams& s = made.requests.at(0).sampling;
  EXPECT_EQ(s.max_tokens, 7);
  EXPECT_EQ(s.temperature, 0.3);
  EXPECT_EQ(s.seed, 5u);
  EXPECT_EQ(s.stop_strings, std::vector<std::string>{"x"});
  EXPECT_EQ(s.repetition_penalty, 1.1);
  EXPECT_EQ(s.penalty_window, 64);
  for (const char* none : {"-2", "-1", "0"})
    EXPECT_EQ(prepared(prepare_chat, fmt::format(R"({}, "options": {{"num_predict": {}}})", kHi, none))
                  .requests.at(0)
                  .sampling.max_tokens,
              0)
        << none;
}

TEST(OllamaRequest, ThinkAndFormat) {
  for (const auto& [think, effort] : {std::pair("true", "medium"), {"false", "low"}, {"\"high\"", "high"}})
    EXPECT_TRUE(contains(prompt_of(prepare_chat, std::string(kHi) + ", \"think\": " + think),
                         std::string("Reasoning: ") + effort))
        << think;
  EXPECT_EQ(refused(prepare_chat, std::string(kHi) + R"(, "think": "much")").param, "think");
  for (const char* format : {R"("json")", R"({"type": "object", "properties": {"a": {"type": "string"}}})"})
    EXPECT_FALSE(
        prepared(prepare_chat, std::string(kHi) + ", \"format\": " + format).requests.at(0).grammar.empty());
  EXPECT_TRUE(prepared(prepare_chat, std::string(kHi) + R"(, "format": "")").requests.at(0).grammar.empty());
}

TEST(OllamaRequest, Generate) {
  const std::string chat = prompt_of(prepare_generate, R"("prompt": "hi", "system": "Be brief.")");
  EXPECT_TRUE(contains(chat, "Be brief.")) << chat;
  EXPECT_TRUE(chat.ends_with("<|start|>user<|message|>hi<|end|><|start|>assistant")) << chat;
  const openai::PreparedRequest raw = prepared(prepare_generate, R"("prompt": "hi<|end|>", "raw": true)");
  const std::vector<int32_t>& prompt = raw.requests.at(0).prompt;
  EXPECT_EQ(service().model.detokenize(prompt), "hi<|end|>");
  EXPECT_EQ(service().model.detokenize({&prompt.back(), 1}), "<|end|>");  // one token, not its letters
}

TEST(OllamaRequest, WhatCannotBeHonouredIsRefused) {
  EXPECT_EQ(refused(prepare_generate, R"("prompt": "a", "suffix": "b")").param, "suffix");
  EXPECT_EQ(refused(prepare_generate, R"("prompt": "a", "images": ["x"])").param, "images");
  EXPECT_EQ(refused(prepare_generate, R"("prompt": "a", "template": "x")").param, "template");
  EXPECT_EQ(refused(prepare_chat, std::string(kHi) + R"(, "options": {"mirostat": 1})").param, "options");
  EXPECT_EQ(refused(prepare_chat, R"("messages": [{"role": "user", "content": "a", "images": ["x"]}])").param,
            "messages");
  const auto other = ollama::prepare_chat(
      R"({"model": "other:7b", "messages": [{"role": "user", "content": "a"}]})", service());
  EXPECT_EQ(std::get<openai::ApiError>(other).http, 404);
  EXPECT_TRUE(is_served("tiny:latest", service()));
  openai::Service strict = service();
  strict.strict_fields = true;
  const auto unknown = prepare_generate(R"({"model": "tiny", "prompt": "a", "promt": "b"})", strict);
  ASSERT_TRUE(std::holds_alternative<openai::ApiError>(unknown));
  EXPECT_EQ(std::get<openai::ApiError>(unknown).param, "promt");
}

TEST(OllamaRequest, ImagesOfAHistoryBecomeNotes) {
  const char* note = "[image omitted: this model reads text only]";
  const std::string shown = R"({"role": "user", "content": "see", "images": ["AAAA", "BBBB"]})";
  const std::string call =
      R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]})";
  const std::string result = R"({"role": "tool", "tool_name": "f", "content": "", "images": ["AAAA"]})";
  const auto told = [](const std::string& messages) {
    return prompt_of(prepare_chat, "\"messages\": [" + messages + "]");
  };
  EXPECT_TRUE(
      contains(told(shown + R"(, {"role": "assistant", "content": "b"}, {"role": "user", "content": "on"})"),
               "see\n" + std::string(note) + note + "<|end|>"));
  EXPECT_TRUE(contains(told(R"({"role": "user", "content": "go"}, )" + call + ", " + result),
                       std::string("<|message|>") + note));
  EXPECT_TRUE(contains(told(shown + R"(, {"role": "user", "content": "on"})"), note));
  EXPECT_EQ(refused(prepare_chat, "\"messages\": [" + shown + "]").param, "messages");
  EXPECT_EQ(refused(prepare_chat, R"("messages": [{"role": "user", "content": "on"}, )" + shown + "]").param,
            "messages");
  EXPECT_FALSE(contains(told(R"({"role": "user", "content": "a", "images": []})"), "omitted"));
}

TEST(OllamaRequest, ValuesThatMeanNothingAreRefused) {
  for (const auto& [field, value] : {std::pair("keep_alive", R"("forever")"),
                                     {"keep_alive", R"("5")"},
                                     {"keep_alive", R"("")"},
                                     {"keep_alive", "{}"},
                                     {"options", R"({"num_ctx": "big"})"},
                                     {"options", R"({"num_predict": "x"})"},
                                     {"model", R"("")"},
                                     {"think", R"("")"},
                                     {"format", "[]"}})
    EXPECT_EQ(refused(prepare_chat, fmt::format(R"({}, "{}": {})", kHi, field, value)).param, field) << value;
  for (const char* value : {"0", "-1", "1.5", R"("5m")", R"("1h30m")", R"("-1s")", R"("1.5h")", R"("0")"})
    EXPECT_FALSE(prepared(prepare_chat, fmt::format(R"({}, "keep_alive": {})", kHi, value)).requests.empty());
  for (const char* message :
       {R"({"role": "user", "content": "a", "images": 5})",
        R"({"role": "assistant", "content": "a", "thinking": 5})",
        R"({"role": "assistant", "content": "a", "tool_calls": 5})",
        R"({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 5}}]})",
        R"({"role": "tool", "content": "a", "tool_name": 5})"})
    EXPECT_EQ(refused(prepare_chat, fmt::format(R"("messages": [{}])", message)).param, "messages")
        << message;
  EXPECT_EQ(refused(prepare_generate, R"("prompt": "a", "raw": true, "system": "b")").param, "system");
}

TEST(OllamaRequest, WithoutAPromptTheModelIsLoaded) {
  for (const Make make : {Make(prepare_chat), Make(prepare_generate)}) {
    const openai::PreparedRequest made = prepared(make, R"("keep_alive": -1)");
    EXPECT_TRUE(made.requests.empty());
    ASSERT_TRUE(made.answer->complete());
    EXPECT_EQ(Json::parse(made.answer->whole())["done_reason"], "load");
  }
}

std::vector<AnswerEvent> events() {
  const auto piece = [](const char* channel, const char* text, bool begins, const char* recipient = "") {
    return TextPiece{.channel = channel, .recipient = recipient, .text = text, .begins = begins};
  };
  return {
      {.token = SampledToken{.token = 5}, .pieces = {piece("analysis", "hm", true)}},
      {.token = SampledToken{.token = 5}, .pieces = {piece("final", "Yes", true)}},
      {.token = SampledToken{.token = 5}, .pieces = {piece("commentary", "{\"a\": 1}", true, "functions.f")}},
      {.end = Outcome{.finish = FinishReason::kStop, .prompt_tokens = 8, .generated_tokens = 3}}};
}

TEST(OllamaAnswer, ALineForEachToken) {
  const openai::PreparedRequest made = prepared(prepare_chat, std::string(kHi) + ", " + kTools);
  std::string text;
  for (const AnswerEvent& event : events()) made.answer->add(event, &text);
  made.answer->finish(text);
  EXPECT_EQ(made.answer->content_type(), "application/x-ndjson");
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["message"]["thinking"], "hm");
  EXPECT_EQ(lines[1]["message"]["content"], "Yes");
  EXPECT_EQ(lines[2]["message"]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(lines[2]["message"]["tool_calls"][0]["function"]["arguments"], (Json{{"a", 1}}));
  EXPECT_EQ(lines[2]["done"], false);
  const std::string history = fmt::format(
      R"("messages": [{{"role": "user", "content": "hi"}}, {}, {{"role": "tool", "content": "7"}}])",
      lines[2]["message"].dump());
  EXPECT_TRUE(contains(prompt_of(prepare_chat, history), R"(<|message|>{"a": 1}<|call|>)"));
  EXPECT_EQ(lines[3]["done"], true);
  EXPECT_EQ(lines[3]["done_reason"], "stop");
  EXPECT_EQ(lines[3]["eval_count"], 3);
  EXPECT_EQ(lines[3]["prompt_eval_count"], 8);
  const auto ns = [&](const char* name) { return lines[3][name].get<int64_t>(); };
  EXPECT_EQ(ns("total_duration"), ns("prompt_eval_duration") + ns("eval_duration"));
  EXPECT_GT(ns("eval_duration"), 0);
}

// The durations in milliseconds of an answer whose tokens were made then, after a prompt of 100 tokens: of
// the prompt, of the answer. waited: in the queue.
std::pair<int64_t, int64_t> durations_of(const std::vector<std::chrono::milliseconds>& made_after,
                                         std::chrono::milliseconds waited = {}) {
  const openai::PreparedRequest made = prepared(prepare_chat, kHi);
  const auto begun = std::chrono::steady_clock::now();
  made.answer->add({.found = PromptProgress{.tokens = 200}, .begun = begun + waited}, nullptr);
  for (const auto after : made_after)
    made.answer->add({.token = SampledToken{.token = 5}, .time = begun + after}, nullptr);
  made.answer->add({.end = Outcome{.finish = FinishReason::kStop,
                                   .prompt_tokens = 200,
                                   .generated_tokens = static_cast<int>(made_after.size()),
                                   .cached_tokens = 100},
                    .time = begun + made_after.back()},
                   nullptr);
  const Json json = Json::parse(made.answer->whole());
  const auto ms = [&](const char* name) { return (json[name].get<int64_t>() + 500'000) / 1'000'000; };
  EXPECT_LE(json["prompt_eval_duration"].get<int64_t>() + json["eval_duration"].get<int64_t>(),
            json["total_duration"].get<int64_t>());
  return {ms("prompt_eval_duration"), ms("eval_duration")};
}

TEST(OllamaAnswer, TheFirstTokenTakesTimeToo) {
  using std::chrono::milliseconds;
  EXPECT_EQ(durations_of({milliseconds(20'000)}), std::pair(int64_t{19'800}, int64_t{200}));
  EXPECT_EQ(durations_of({milliseconds(20'000), milliseconds(21'000), milliseconds(22'000)}),
            std::pair(int64_t{19'000}, int64_t{3'000}));
}

TEST(OllamaAnswer, TheTimeInTheQueueIsNoPartOfThePrompts) {
  using std::chrono::milliseconds;
  EXPECT_EQ(durations_of({milliseconds(20'000), milliseconds(21'000)}, milliseconds(15'000)),
            std::pair(int64_t{4'000}, int64_t{2'000}));
}

TEST(OllamaAnswer, NoCharacterOfAnAnswerCutsALine) {
  const openai::PreparedRequest made = prepared(prepare_chat, kHi);
  std::string text;
  for (const char* channel : {"analysis", "final"})
    made.answer->add({.token = SampledToken{.token = 5},
                      .pieces = {{.channel = channel, .recipient = {}, .text = openai::kLineBreaks}}},
                     &text);
  made.answer->fail({.message = openai::kLineBreaks}, text);
  EXPECT_FALSE(openai::cuts_lines(text)) << text;
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(Json::parse(line)["message"]["thinking"], openai::kLineBreaks);
  std::getline(lines, line);
  EXPECT_EQ(Json::parse(line)["message"]["content"], openai::kLineBreaks);
  std::getline(lines, line);
  EXPECT_EQ(Json::parse(line)["error"], openai::message_line({.message = openai::kLineBreaks}));
}

TEST(OllamaAnswer, Whole) {
  const openai::PreparedRequest made =
      prepared(prepare_generate, R"("prompt": "hi", "stream": false, "think": false)");
  EXPECT_FALSE(made.stream);
  for (const AnswerEvent& event : events()) made.answer->add(event, nullptr);
  const Json json = Json::parse(made.answer->whole());
  EXPECT_TRUE(json["response"].get<std::string>().starts_with("Yes"));
  EXPECT_FALSE(json.contains("thinking"));
  EXPECT_EQ(json["done"], true);
}

TEST(OllamaAnswer, NoNumberOfACallIsRounded) {
  const AnswerEvent call = {.token = SampledToken{.token = 5},
                            .pieces = {{.channel = "commentary",
                                        .recipient = "functions.f",
                                        .text = "{\n\"id\": 123456789012345678901, \"x\": \"\u2028\"}",
                                        .begins = true}}};
  const AnswerEvent end = {.end = Outcome{.finish = FinishReason::kStop}};
  const openai::PreparedRequest whole = prepared(prepare_chat, std::string(kHi) + ", " + kTools),
                                streamed = prepared(prepare_chat, std::string(kHi) + ", " + kTools);
  std::string lines;
  for (const AnswerEvent& event : {call, end}) {
    whole.answer->add(event, nullptr);
    streamed.answer->add(event, &lines);
  }
  streamed.answer->finish(lines);
  constexpr const char* kArguments = R"("arguments":{"id": 123456789012345678901, "x": ")";
  EXPECT_TRUE(contains(whole.answer->whole(), kArguments)) << whole.answer->whole();
  EXPECT_TRUE(contains(lines, kArguments)) << lines;
  EXPECT_FALSE(openai::cuts_lines(lines)) << lines;
  const Json json = Json::parse(lines.substr(0, lines.find('\n')));
  EXPECT_EQ(json["message"]["tool_calls"][0]["function"]["arguments"]["x"], "\u2028");
}

TEST(OllamaAnswer, CountsReasoningInTokens) {
  const openai::PreparedRequest request = prepared(prepare_chat, kHi);
  const TextPiece thought = {.channel = "analysis", .recipient = {}, .text = "\u00e9"};
  for (const AnswerEvent& event : std::vector<AnswerEvent>{
           {.token = SampledToken{.token = 5}},
           {.token = SampledToken{.token = 6}, .pieces = {thought}},
           {.token = SampledToken{.token = 5}, .end = Outcome{.finish = FinishReason::kLength}}})
    request.answer->add(event, nullptr);
  EXPECT_EQ(request.answer->usage().reasoning_tokens, 3);
}

TEST(OllamaAnswer, LogProbabilitiesOfTheContentsTokens) {
  const auto given = [](int32_t token, const char* channel) {
    return AnswerEvent{
        .token = SampledToken{.token = token, .logprobs = {.logprob = -0.5, .top = {{6, -0.25}}}},
        .pieces = {{.channel = channel, .recipient = {}, .text = "x", .begins = true}}};
  };
  const std::vector<AnswerEvent> answer = {
      given(5, "analysis"), given(6, "final"), given(7, "final"), {.end = Outcome{}}};
  const openai::PreparedRequest whole =
      prepared(prepare_chat, std::string(kHi) + R"(, "logprobs": true, "top_logprobs": 1)");
  EXPECT_EQ(whole.requests.at(0).sampling.top_logprobs, 1);
  for (const AnswerEvent& event : answer) whole.answer->add(event, nullptr);
  const Json logprobs = Json::parse(whole.answer->whole())["logprobs"];
  ASSERT_EQ(logprobs.size(), 2u);
  EXPECT_EQ(logprobs[0]["token"], service().model.detokenize(std::vector<int32_t>{6}));
  EXPECT_EQ(logprobs[1]["logprob"], -0.5);
  EXPECT_EQ(logprobs[1]["top_logprobs"][0]["logprob"], -0.25);
  const openai::PreparedRequest streamed = prepared(prepare_generate, R"("prompt": "hi", "logprobs": true)");
  std::string lines;
  for (const AnswerEvent& event : answer) streamed.answer->add(event, &lines);
  std::istringstream stream(lines);
  std::vector<size_t> counts;
  for (std::string line; std::getline(stream, line);)
    counts.push_back(Json::parse(line).value("logprobs", Json::array()).size());
  EXPECT_EQ(counts, (std::vector<size_t>{0, 1, 1}));
  const openai::PreparedRequest without = prepared(prepare_chat, kHi);
  for (const AnswerEvent& event : answer) without.answer->add(event, nullptr);
  EXPECT_FALSE(Json::parse(without.answer->whole()).contains("logprobs"));
  EXPECT_EQ(refused(prepare_chat, std::string(kHi) + R"(, "top_logprobs": 1)").param, "top_logprobs");
  EXPECT_EQ(refused(prepare_chat, std::string(kHi) + R"(, "logprobs": true, "top_logprobs": 21)").param,
            "top_logprobs");
}

TEST(OllamaAnswer, LogProbabilitiesOfTheTextsTokensAlone) {
  const auto id = [](const char* text) { return service().model.tokenize(text).value().at(0); };
  const openai::PreparedRequest made = prepared(prepare_chat, std::string(kHi) + R"(, "logprobs": true)");
  made.answer->add({.token = SampledToken{.token = id("final")}},
                   nullptr);                                   // as the channel's name, it waits
  made.answer->add({.token = SampledToken{.token = id(" x")},  // a stop string
                    .pieces = {{.channel = "final", .recipient = {}, .text = "final", .begins = true}},
                    .end = Outcome{.finish = FinishReason::kStop}},
                   nullptr);
  const Json logprobs = Json::parse(made.answer->whole())["logprobs"];
  ASSERT_EQ(logprobs.size(), 1u);
  EXPECT_EQ(logprobs[0]["token"], "final");
}

TEST(OllamaModels, Lists) {
  const ModelInfo info = service().model.info();
  const Json tags = Json::parse(tags_json("tiny", info, service().started)),
             running = Json::parse(running_json("tiny", info, 0));
  EXPECT_EQ(tags["models"][0]["name"], "tiny");
  EXPECT_EQ(tags["models"][0]["digest"].get<std::string>().size(), 64u);
  EXPECT_EQ(running["models"][0]["context_length"], 1024);
  EXPECT_EQ(tags["models"][0]["size"], info.stored_bytes);
  EXPECT_EQ(running["models"][0]["size"], info.memory.sum());
  EXPECT_GT(info.memory.sum(), info.memory.weights);
  const auto shown = show(R"({"model": "tiny"})", service());
  const Json json = Json::parse(std::get<openai::TokenAnswer>(shown).json);
  EXPECT_EQ(json["modified_at"], "1970-01-02T00:00:00Z");
  EXPECT_EQ(tags["models"][0]["modified_at"], json["modified_at"]);
  const auto by_name = show(R"({"name": "tiny"})", service());  // as older clients ask
  EXPECT_TRUE(std::holds_alternative<openai::TokenAnswer>(by_name));
  EXPECT_EQ(json["model_info"]["gptoss.context_length"], 1024);
  EXPECT_EQ(json["capabilities"], (Json{"completion", "tools", "thinking"}));
  EXPECT_EQ(std::get<openai::ApiError>(show(R"({"model": "x"})", service())).http, 404);
  EXPECT_EQ(error_json({.message = "no"}), "{\"error\":\"no\"}");
  EXPECT_EQ(error_json({.message = "role '\r\n\x1B[31m' is none"}), "{\"error\":\"role '???[31m' is none\"}");
}

// Clients compare /api/version with these as of November 2026; a lower version makes them end or warn.
TEST(OllamaModels, TheVersionIsHighEnoughForClients) {
  struct Client {
    const char *name, *least;
  };
  constexpr Client kClients[] = {
      {"Codex with --oss: the first version with /v1/responses", "0.13.4"},
      {"GitHub Copilot in Visual Studio Code (MINIMUM_OLLAMA_VERSION)", "0.6.4"},
      {"Open WebUI (REQUIRED_OLLAMA_VERSION)", "0.1.16"},
      {"Home Assistant lists the models, and asks for no version", "0.0.0"},
  };
  const auto parts_of = [](const char* version) {
    std::array<int, 3> parts = {};
    EXPECT_EQ(std::sscanf(version, "%d.%d.%d", &parts[0], &parts[1], &parts[2]), 3) << version;
    return parts;
  };
  for (const Client& client : kClients)
    EXPECT_GE(parts_of(kApiVersion), parts_of(client.least)) << client.name;
}

TEST(OllamaRequest, TheDocumentationListsEachField) {
  std::set<std::string> rows;
  openai::add_documented_rows(chat_fields(), rows);
  openai::add_documented_rows(generate_fields(), rows);
  for (const std::string& row :
       openai::missing_rows(rows, MOESAIC_SOURCE_DIR "/docs/user/api-compatibility.md"))
    ADD_FAILURE() << "docs/user/api-compatibility.md lacks\n" << row;
}

}  // namespace
}  // namespace moesaic::ollama

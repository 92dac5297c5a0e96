// Answers in the shape of Anthropic's API, whole and as events.
#include "anthropic/messages_answer.h"

#include <gtest/gtest.h>

#include "anthropic/error.h"
#include "anthropic/messages_cases.h"
#include "openai/argument_style.h"
#include "openai/generation_fields.h"
#include "openai/stream_lines.h"

namespace moesaic::anthropic {
namespace {

using openai::AnswerEvent;
using openai::Json;

constexpr const char* kThinks = R"("thinking": {"type": "enabled", "budget_tokens": 2000})";

TextPiece piece(const char* channel, const char* text, bool begins = false, const char* recipient = "") {
  return {.channel = channel, .recipient = recipient, .text = text, .begins = begins};
}

std::vector<AnswerEvent> weather_call() {
  return {{.token = SampledToken{.token = 5}, .pieces = {piece("analysis", "Look", true)}},
          {.token = SampledToken{.token = 5}, .pieces = {piece("analysis", " it up.")}},
          {.token = SampledToken{.token = 5}, .pieces = {piece("commentary", "Looking.", true)}},
          {.token = SampledToken{.token = 5},
           .pieces = {piece("commentary", "{\"city\": \"Oslo\"}", true, "functions.get_weather")}},
          {.end = Outcome{.finish = FinishReason::kStop,
                          .prompt_tokens = 70,
                          .generated_tokens = 9,
                          .cached_tokens = 32,
                          .cache_write_tokens = 32}}};
}

Json whole_of(const std::string& more, const std::vector<AnswerEvent>& events) {
  const openai::PreparedRequest request = prepared(ask(kHi, more));
  for (const AnswerEvent& event : events) request.answer->add(event, nullptr);
  return Json::parse(request.answer->whole());
}

// The data of each event; its type must be the event's name.
std::vector<Json> stream_of(const std::string& more, const std::vector<AnswerEvent>& events) {
  const openai::PreparedRequest request = prepared(ask(kHi, more + ", \"stream\": true"));
  EXPECT_TRUE(request.stream);
  std::string sse;
  for (const AnswerEvent& event : events) request.answer->add(event, &sse);
  request.answer->finish(sse);
  std::vector<Json> data;
  for (size_t at = 0; at < sse.size();) {
    const size_t line = sse.find('\n', at), end = sse.find("\n\n", at);
    data.push_back(Json::parse(sse.substr(line + 7, end - line - 7)));
    EXPECT_EQ("event: " + data.back()["type"].get<std::string>(), sse.substr(at, line - at));
    at = end + 2;
  }
  return data;
}

TEST(MessagesAnswer, CountsReasoningInTokens) {
  const openai::PreparedRequest request = prepared(ask(kHi));
  for (const AnswerEvent& event : std::vector<AnswerEvent>{
           {.token = SampledToken{.token = 5}},
           {.token = SampledToken{.token = 6}, .pieces = {piece("analysis", "\u00e9", true)}},
           {.token = SampledToken{.token = 5}, .end = Outcome{.finish = FinishReason::kLength}}})
    request.answer->add(event, nullptr);
  EXPECT_EQ(request.answer->usage().reasoning_tokens, 3);
  EXPECT_EQ(Json::parse(request.answer->whole())["usage"]["output_tokens_details"]["thinking_tokens"], 3);
}

TEST(MessagesAnswer, NoCharacterOfAnAnswerCutsALine) {
  const openai::PreparedRequest request = prepared(ask(kHi, std::string(kThinks) + R"(, "stream": true)"));
  std::string sse;
  for (const char* channel : {"analysis", "final"})
    request.answer->add({.token = SampledToken{.token = 5}, .pieces = {piece(channel, openai::kLineBreaks)}},
                        &sse);
  const std::string delta = sse.substr(sse.rfind("data: ") + 6);
  EXPECT_EQ(Json::parse(delta)["delta"]["text"], openai::kLineBreaks);
  request.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, &sse);
  request.answer->finish(sse);
  request.answer->fail({.message = openai::kLineBreaks}, sse);
  EXPECT_FALSE(openai::cuts_lines(sse)) << sse;
}

TEST(MessagesAnswer, WholeWithThinkingAndACall) {
  const Json json = whole_of(std::string(kTool) + ", " + kThinks, weather_call());
  EXPECT_EQ(json["type"], "message");
  EXPECT_EQ(json["model"], "tiny");
  ASSERT_EQ(json["content"].size(), 3u);
  EXPECT_EQ(json["content"][0]["thinking"], "Look it up.");
  EXPECT_EQ(json["content"][1]["text"], "Looking.");
  EXPECT_EQ(json["content"][2]["type"], "tool_use");
  EXPECT_EQ(json["content"][2]["name"], "get_weather");
  EXPECT_EQ(json["content"][2]["input"], (Json{{"city", "Oslo"}}));
  EXPECT_EQ(json["stop_reason"], "tool_use");
  EXPECT_EQ(json["usage"]["input_tokens"], 6);
  EXPECT_EQ(json["usage"]["cache_read_input_tokens"], 32);
  EXPECT_EQ(json["usage"]["output_tokens"], 9);
}

TEST(MessagesAnswer, ThinkingIsShownWhereItIsEnabled) {
  EXPECT_EQ(whole_of(kTool, weather_call())["content"].size(), 2u);
}

// The message that a stream of a call builds.
Json built_of(const std::vector<Json>& events) {
  Json built = events[0]["message"];
  EXPECT_EQ(events[0]["type"], "message_start");
  EXPECT_EQ(built["content"], Json::array());
  std::string arguments;
  for (const Json& event : events) {
    if (event["type"] == "content_block_start") {
      EXPECT_EQ(event["index"], built["content"].size());
      built["content"].push_back(event["content_block"]);
    }
    if (event["type"] == "message_delta") built["stop_reason"] = event["delta"]["stop_reason"];
    if (event["type"] != "content_block_delta") continue;
    const Json& delta = event["delta"];
    if (delta["type"] == "input_json_delta") arguments += delta["partial_json"].get<std::string>();
    for (const char* member : {"thinking", "text", "signature"}) {
      if (!delta.contains(member)) continue;
      Json& target = built["content"].back()[member];
      target = target.get<std::string>() + delta[member].get<std::string>();
    }
  }
  built["content"].back()["input"] = Json::parse(arguments);
  return built;
}

TEST(MessagesAnswer, StreamBuildsTheSame) {
  const std::string more = std::string(kTool) + ", " + kThinks;
  const std::vector<Json> events = stream_of(more, weather_call());
  Json built = built_of(events);
  const Json whole = whole_of(more, weather_call());
  built["content"].back()["id"] = whole["content"].back()["id"];  // random
  EXPECT_EQ(built["content"], whole["content"]);
  EXPECT_EQ(built["stop_reason"], "tool_use");
  EXPECT_EQ(events.back()["type"], "message_stop");
  EXPECT_EQ(events[events.size() - 2]["usage"], whole["usage"]);
}

// The answer's text where it is whole, and the arguments that a stream's parts make, of a call.
std::pair<std::string, std::string> call_in_both(const char* arguments) {
  const std::vector<AnswerEvent> events = {
      {.token = SampledToken{.token = 5},
       .pieces = {piece("commentary", arguments, true, "functions.get_weather")}},
      {.end = Outcome{.finish = FinishReason::kStop}}};
  const openai::PreparedRequest whole = prepared(ask(kHi, kTool));
  for (const AnswerEvent& event : events) whole.answer->add(event, nullptr);
  std::string streamed;
  for (const Json& event : stream_of(kTool, events)) {
    if (event["type"] == "content_block_delta") streamed += event["delta"]["partial_json"].get<std::string>();
  }
  return {whole.answer->whole(), streamed};
}

// In the next prompt, though clients write an object in their own way.
TEST(MessagesAnswer, ArgumentsComeBackAsTheModelWroteThem) {
  for (const char* arguments :
       {R"({"city":"Oslo","at":{"x":[1.0,2]}})", R"({"city": "O: s, lo\n", "at": {"x": [1.0, {}, -2.5]}})",
        "{\n  \"city\": \"Oslo\",\n  \"at\": {\n    \"x\": [\n      1,\n      []\n    ]\n  }\n}", "{}"}) {
    for (const bool last : {false, true}) {
      std::vector<AnswerEvent> events = weather_call();
      events[3].pieces[0].text = arguments;
      events[3].pieces[0].recipient_last = last;
      const Json content = whole_of(kTool, events)["content"];
      const Json result = {{"type", "tool_result"}, {"tool_use_id", content[1]["id"]}, {"content", "rain"}};
      Json history = Json::parse(kHi);
      history.push_back({{"role", "assistant"}, {"content", content}});
      history.push_back({{"role", "user"}, {"content", Json::array({result})}});
      const std::string prompt = prompt_of(ask(history.dump(), kTool));
      EXPECT_NE(prompt.find("<|message|>" + std::string(arguments) + "<|call|>"), std::string::npos)
          << prompt;
      EXPECT_EQ(prompt.find("<|channel|>commentary to=functions.get_weather") != std::string::npos, last);
    }
  }
  for (const char* other : {"{\"city\" : 1}", "{\"city\": 1}\n", "{\"city\":1, \"x\": 2}", "{\"city", "7"}) {
    const std::string id = openai::object_call_id("toolu_", piece("commentary", other));
    EXPECT_EQ(openai::text_of_arguments({{"a", 1}}, id), R"({"a":1})") << other;
  }
  Json deep = Json::array({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  for (int level = 0; level < 50; ++level) deep = {{"a", std::move(deep)}};
  EXPECT_LT(openai::text_of_arguments(deep, "toolu_ln").size(), 1000u);  // a client may write any id
}

TEST(MessagesAnswer, NoNumberOfACallIsRounded) {
  const auto [whole, streamed] =
      call_in_both("{\"id\":\t123456789012345678901,\r\n \"x\": [0.12345678901234567890, -1E+2]}");
  EXPECT_EQ(streamed, R"({"id":123456789012345678901, "x": [0.12345678901234567890, -1E+2]})");
  EXPECT_NE(whole.find("\"input\":" + streamed + "}]"), std::string::npos) << whole;
  EXPECT_TRUE(Json::accept(whole));
}

TEST(MessagesAnswer, ArgumentsThatAreNoObjectDoNotBreakIt) {
  for (const auto& [arguments, input] : {std::pair(" \n", R"({})"),
                                         {R"({"a": 1)", R"({"arguments": "{\"a\": 1"})"},
                                         {R"({"a": 1}, "b": 2)", R"({"arguments": "{\"a\": 1}, \"b\": 2"})"},
                                         {"[1]", R"({"arguments": "[1]"})"},
                                         {R"({"a": 1e999})", R"({"arguments": "{\"a\": 1e999}"})"},
                                         {R"({"a": "\ud83d"})", R"({"a": "\ufffd"})"}}) {
    const auto [whole, streamed] = call_in_both(arguments);
    EXPECT_EQ(Json::parse(whole)["content"][0]["input"], Json::parse(input)) << arguments;
    EXPECT_EQ(Json::parse(streamed), Json::parse(input)) << arguments;
  }
}

TEST(MessagesAnswer, StopReasons) {
  const auto reason = [](const Outcome& outcome) {
    return whole_of("\"top_k\": 1", {{.pieces = {piece("final", "x", true)}}, {.end = outcome}});
  };
  EXPECT_EQ(reason({.finish = FinishReason::kStop})["stop_reason"], "end_turn");
  EXPECT_EQ(reason({.finish = FinishReason::kLength, .generated_tokens = 20})["stop_reason"], "max_tokens");
  EXPECT_EQ(reason({.finish = FinishReason::kLength, .generated_tokens = 19})["stop_reason"],
            "model_context_window_exceeded");
  const Json stopped = reason({.finish = FinishReason::kStop, .stop_string = "END"});
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "END");
}

TEST(MessagesAnswer, ThinkingThatIsOmittedComesBackInItsSignature) {
  const std::string more = std::string(kTool) + R"(, "thinking": {"type": "adaptive", "display": "omitted"})";
  const Json whole = whole_of(more, weather_call())["content"];
  const Json streamed = built_of(stream_of(more, weather_call()))["content"];
  ASSERT_EQ(whole.size(), 3u);
  EXPECT_EQ(whole[0]["thinking"], "");
  EXPECT_EQ(streamed[0], whole[0]);
  const Json result = {{"type", "tool_result"}, {"tool_use_id", whole[2]["id"]}, {"content", "rain"}};
  Json history = Json::parse(kHi);
  history.push_back({{"role", "assistant"}, {"content", whole}});
  history.push_back({{"role", "user"}, {"content", Json::array({result})}});
  const auto prompt = [&] { return prompt_of(ask(history.dump(), kTool)); };
  EXPECT_NE(prompt().find("<|channel|>analysis<|message|>Look it up.<|end|>"), std::string::npos);
  history[1]["content"][0]["signature"] = "another's";
  EXPECT_EQ(prompt().find("<|channel|>analysis<|message|>"), std::string::npos);
}

TEST(MessagesAnswer, WithoutTokensThePromptIsOnlyRead) {
  const openai::PreparedRequest request = prepared(
      prepare_messages(R"({"max_tokens": 0, "messages": [{"role": "user", "content": "hi"}]})", service()));
  EXPECT_EQ(request.requests.at(0).sampling.max_tokens, 1);
  for (const AnswerEvent& event : weather_call()) request.answer->add(event, nullptr);
  const Json json = Json::parse(request.answer->whole());
  EXPECT_EQ(json["content"], Json::array());
  EXPECT_EQ(json["stop_reason"], "max_tokens");
  EXPECT_EQ(json["usage"]["output_tokens"], 0);
  EXPECT_EQ(json["usage"]["cache_creation_input_tokens"], 32);
}

TEST(MessagesAnswer, AStreamsBeginningCountsThePromptAsItsEndDoes) {
  std::vector<AnswerEvent> events = weather_call();
  events.insert(events.begin(), AnswerEvent{.found = PromptProgress{.cached = 32, .kept = 32}});
  events.back().end->prompt_tokens = static_cast<int>(prepared(ask(kHi)).requests.at(0).prompt.size());
  const std::vector<Json> stream = stream_of("\"top_k\": 1", events);
  Json begin = stream.front()["message"]["usage"], end = stream[stream.size() - 2]["usage"];
  EXPECT_EQ(begin["cache_read_input_tokens"], 32);
  EXPECT_EQ(begin["output_tokens"], 0);
  for (const char* of_answer : {"output_tokens", "output_tokens_details"})
    begin.erase(of_answer), end.erase(of_answer);
  EXPECT_EQ(begin, end);
}

TEST(MessagesAnswer, APromptThatIsTooLongIsSaidInAnthropicsWords) {
  const openai::Refusal refusal = openai::check_prompt_length(1400, 2048, "messages", service());
  const Json json = Json::parse(anthropic::error_json(refusal.value()));
  EXPECT_EQ(json["error"]["type"], "invalid_request_error");
  EXPECT_TRUE(json["error"]["message"].get<std::string>().starts_with(
      "prompt is too long: 1400 tokens > 1023 maximum. This model's maximum context length is 1024 tokens"));
}

TEST(MessagesAnswer, Errors) {
  const Json json = Json::parse(error_json({.http = 429, .message = "busy"}));
  EXPECT_FALSE(json["error"].contains("details"));
  EXPECT_EQ(json["type"], "error");
  EXPECT_EQ(json["error"]["type"], "rate_limit_error");
  EXPECT_EQ(json["error"]["message"], "busy");
  EXPECT_EQ(Json::parse(error_json({.http = 504, .message = "late"}))["error"]["type"], "timeout_error");
  std::string sse;
  prepared(ask(kHi)).answer->fail({.http = 500, .message = "broken"}, sse);
  EXPECT_TRUE(sse.starts_with("event: error\ndata: {\"type\":\"error\"")) << sse;
}

}  // namespace
}  // namespace moesaic::anthropic

// Answers of models/tiny cut off at every limit of tokens: what is said is always a beginning of what the
// whole answer says, calls are complete or absent, and a stream says what the whole answer says.
#include <gtest/gtest.h>

#include <map>

#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/fields.h"
#include "openai/responses_request.h"

namespace moesaic::openai {
namespace {

constexpr int kContext = 512, kBatch = 16;

// The text of one choice that a client has.
struct Seen {
  std::string content, reasoning, finish;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  std::string logprob_text;                                // tokens that have log-probabilities
  std::vector<std::string> statuses;                       // Responses: of reasoning, message, call, ...
  int tokens = 0, reasoning_tokens = 0;
  bool operator==(const Seen&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Seen& s) {
  out << "content {" << s.content << "} reasoning {" << s.reasoning << "} " << s.finish << ", tokens "
      << s.tokens << " (" << s.reasoning_tokens << ") logprobs {" << s.logprob_text << "}";
  for (const auto& [name, arguments] : s.calls) out << " " << name << "(" << arguments << ")";
  for (const std::string& status : s.statuses) out << " " << status;
  return out;
}

class AnswerCut : public testing::Test {
 protected:
  using PrepareRequest = PreparedRequestOrError (*)(std::string_view, const Service&);
  using Read = Seen (*)(const Json& whole, int choice);
  using Assemble = Seen (*)(const std::string& sse, int choice);

  static Model& model() {
    static Model opened =
        Model::open(MOESAIC_SOURCE_DIR "/models/tiny",
                    {.device = "cpu", .threads = 1, .context = kContext, .max_batch = kBatch})
            .value();
    return opened;
  }
  static const Service& service() {
    static const Service instance{.model = model(), .name = "tiny", .today = "2026-01-01"};
    return instance;
  }

  // One request, answered whole and as a stream from the same tokens.
  struct Asked {
    PreparedRequest whole, stream;
    std::vector<AnswerEvent> events;  // the choices' events
    std::string sse;
  };

  static PreparedRequest prepared_of(PrepareRequest make, const Json& body) {
    PreparedRequestOrError made = make(body.dump(), service());
    if (const auto* error = std::get_if<ApiError>(&made)) ADD_FAILURE() << error->message;
    return std::get<PreparedRequest>(std::move(made));
  }

  static void add(Asked& asked, const AnswerEvent& event) {
    asked.whole.answer->add(event, nullptr);
    asked.stream.answer->add(event, &asked.sse);
  }

  // Submits like the server: a token, its text, and the end that came with it are one event.
  static void submit(Asked& asked) {
    asked.events.resize(asked.whole.requests.size());
    for (size_t i = 0; i < asked.events.size(); ++i) {
      AnswerEvent& event = asked.events[i];
      event.choice = static_cast<int>(i);
      const auto flush = [&asked, &event] {
        if (event.token || event.end) add(asked, event);
        event = {.choice = event.choice};
      };
      const Status status = model().submit(
          asked.whole.requests[i], {.on_token =
                                        [&event, flush](const SampledToken& token) {
                                          flush();
                                          event.token = token;
                                        },
                                    .on_text = [&event](const TextPiece& p) { event.pieces.push_back(p); },
                                    .on_end =
                                        [&event, flush](const Outcome& outcome) {
                                          event.end = outcome;
                                          flush();
                                        }});
      ASSERT_TRUE(status.ok()) << status.message();
    }
  }

  // Whole answers by limit; 0: no limit.
  static std::map<int, std::vector<Seen>> answers(PrepareRequest make, Json body, const char* limit_name,
                                                  const std::vector<int>& limits, Read read,
                                                  Assemble assemble) {
    std::map<int, Asked> asked;
    for (const int limit : limits) {
      if (limit > 0) body[limit_name] = limit;
      body["stream"] = false;
      asked[limit].whole = prepared_of(make, body);
      body["stream"] = true;
      asked[limit].stream = prepared_of(make, body);
      submit(asked[limit]);
    }
    EXPECT_TRUE(model().run().ok());
    std::map<int, std::vector<Seen>> seen;
    for (auto& [limit, a] : asked) {
      EXPECT_TRUE(a.whole.answer->complete() && a.stream.answer->complete());
      a.stream.answer->finish(a.sse);
      const Json whole = Json::parse(a.whole.answer->whole());
      for (size_t i = 0; i < a.events.size(); ++i) {
        seen[limit].push_back(read(whole, static_cast<int>(i)));
        EXPECT_EQ(assemble(a.sse, static_cast<int>(i)), seen[limit].back()) << body << " at " << limit;
      }
    }
    return seen;
  }

  static void expect_beginning(const Seen& cut, const Seen& whole, int limit) {
    EXPECT_TRUE(whole.content.starts_with(cut.content));
    EXPECT_TRUE(whole.reasoning.starts_with(cut.reasoning));
    EXPECT_TRUE(whole.logprob_text.starts_with(cut.logprob_text));
    ASSERT_LE(cut.calls.size(), whole.calls.size());
    EXPECT_TRUE(std::equal(cut.calls.begin(), cut.calls.end(), whole.calls.begin()));
    EXPECT_EQ(cut.tokens, limit);
    EXPECT_EQ(cut.finish, "length");
    for (const char* word : {"assistant", "functions.", "<|", "to="})
      EXPECT_EQ((cut.content + cut.reasoning).find(word), std::string::npos) << word;
  }

  // Every limit up to a token more than the answer has. Returns the answer without one.
  static std::vector<Seen> sweep(PrepareRequest make, Json body, const char* limit_name, Read read,
                                 Assemble assemble) {
    body["temperature"] = 0;
    std::vector<Seen> whole = answers(make, body, limit_name, {0}, read, assemble)[0];
    int longest = 0;
    for (const Seen& one : whole) longest = std::max(longest, one.tokens / static_cast<int>(whole.size()));
    std::vector<int> limits;
    if (whole[0].finish != "length") ++longest;  // the last one is of no effect
    for (int limit = 1; limit <= longest; ++limit) limits.push_back(limit);
    for (const auto& [limit, cut] : answers(make, body, limit_name, limits, read, assemble)) {
      for (size_t i = 0; i < cut.size(); ++i) {
        SCOPED_TRACE(testing::Message() << body << " at " << limit << ":\n"
                                        << cut[i] << "\nof\n"
                                        << whole[i]);
        const bool complete = limit >= longest - (whole[0].finish == "length" ? 0 : 1);
        EXPECT_EQ(complete, cut[i] == whole[i]);
        if (!complete) expect_beginning(cut[i], whole[i], limit * static_cast<int>(whole.size()));
      }
    }
    return whole;
  }
};

// The data of a stream's events.
std::vector<Json> events_of(const std::string& sse) {
  std::vector<Json> events;
  for (size_t at = 0; (at = sse.find("data: ", at)) != std::string::npos;) {
    const size_t end = sse.find('\n', at);
    const std::string data = sse.substr(at + 6, end - at - 6);
    if (data != "[DONE]") events.push_back(Json::parse(data));
    at = end;
  }
  return events;
}

std::string string_in(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : "";
}

// ---- chat

void add_logprobs(const Json& logprobs, Seen& seen) {
  if (!logprobs.is_object()) return;
  for (const Json& token : logprobs["content"])
    for (const Json& byte : token["bytes"]) seen.logprob_text += static_cast<char>(byte.get<int>());
}

void add_usage(const Json& usage, Seen& seen) {
  seen.tokens = usage["completion_tokens"];
  seen.reasoning_tokens = usage["completion_tokens_details"]["reasoning_tokens"];
}

Seen read_chat(const Json& whole, int choice) {
  const Json& c = whole["choices"][choice];
  const Json& message = c["message"];
  Seen seen{.content = string_in(message, "content"),
            .reasoning = string_in(message, "reasoning"),
            .finish = c["finish_reason"]};
  EXPECT_EQ(string_in(message, "reasoning_content"), seen.reasoning);
  if (message.contains("tool_calls"))
    for (const Json& call : message["tool_calls"])
      seen.calls.emplace_back(call["function"]["name"], call["function"]["arguments"]);
  add_logprobs(c["logprobs"], seen);
  add_usage(whole["usage"], seen);
  return seen;
}

void add_call_delta(const Json& delta, Seen& seen) {
  const size_t index = delta["index"];
  if (index == seen.calls.size()) {
    EXPECT_FALSE(delta["id"].get<std::string>().empty());
    seen.calls.emplace_back(delta["function"]["name"], "");
  }
  ASSERT_LT(index, seen.calls.size());
  seen.calls[index].second += delta["function"]["arguments"].get<std::string>();
}

Seen assemble_chat(const std::string& sse, int choice) {
  Seen seen;
  for (const Json& event : events_of(sse)) {
    if (event.contains("usage")) add_usage(event["usage"], seen);
    for (const Json& c : event["choices"]) {
      if (c["index"] != choice) continue;
      EXPECT_EQ(seen.finish, "");  // nothing behind it
      seen.content += string_in(c["delta"], "content");
      seen.reasoning += string_in(c["delta"], "reasoning");
      if (c["delta"].contains("tool_calls"))
        for (const Json& call : c["delta"]["tool_calls"]) add_call_delta(call, seen);
      add_logprobs(c["logprobs"], seen);
      seen.finish = string_in(c, "finish_reason");
    }
  }
  return seen;
}

const Json kWeather = {{"type", "function"},
                       {"function",
                        {{"name", "get_weather"},
                         {"description", "Get the weather of a city."},
                         {"parameters",
                          {{"type", "object"},
                           {"properties", {{"location", {{"type", "string"}}}}},
                           {"required", {"location"}}}}}}};

Json tool_named(const char* name, bool strict = false) {
  Json tool = kWeather;
  tool["function"]["name"] = name;
  if (strict) tool["function"]["strict"] = true;
  return tool;
}

const Json kPerson = {{"type", "object"},
                      {"properties", {{"name", {{"type", "string"}}}, {"age", {{"type", "integer"}}}}},
                      {"required", {"name", "age"}},
                      {"additionalProperties", false}};

Json chat(const char* text) {
  return {{"messages", Json::array({{{"role", "user"}, {"content", text}}})},
          {"stream_options", {{"include_usage", true}}}};
}

constexpr const char* kAskWeather = "What is the weather in Paris?";

class ChatCut : public AnswerCut {
 protected:
  static std::vector<Seen> sweep(const Json& body) {
    return AnswerCut::sweep(prepare_chat, body, "max_tokens", read_chat, assemble_chat);
  }
};

TEST_F(ChatCut, ReasoningThenAnAnswer) {
  Json body = chat("What is 47 x 36?");
  body["logprobs"] = true;
  const Seen whole = sweep(body)[0];
  EXPECT_EQ(whole.content, "47 x 36 = 1692");
  EXPECT_EQ(whole.logprob_text, whole.content);
  EXPECT_EQ(whole.finish, "stop");
  EXPECT_FALSE(whole.reasoning.empty());
  body = chat("Hello! Who are you?");
  body["n"] = 2;
  sweep(body);
}

TEST_F(ChatCut, StopStrings) {
  Json body = chat("What is 17 + 25?");
  body["logprobs"] = true;
  for (const char* stop : {"25 = 4", "= 42!", " = 4212", "42"}) {
    body["stop"] = stop;
    EXPECT_EQ(sweep(body)[0].content.find(stop), std::string::npos);
  }
}

TEST_F(ChatCut, ACall) {
  for (const bool strict : {false, true}) {
    Json body = chat(kAskWeather);
    body["tools"] = Json::array({tool_named("get_weather", strict), tool_named("get_time")});
    const Seen whole = sweep(body)[0];
    ASSERT_EQ(whole.calls.size(), 1u);
    EXPECT_EQ(whole.calls[0].first, "get_weather");
    EXPECT_TRUE(Json::accept(whole.calls[0].second));
    EXPECT_EQ(whole.finish, "tool_calls");
  }
}

TEST_F(ChatCut, ACallThatMustBe) {
  Json body = chat("What is 17 + 25?");
  body["tools"] = Json::array({tool_named("get_weather")});
  body["tool_choice"] = "required";
  EXPECT_EQ(sweep(body)[0].content, "");
}

TEST_F(ChatCut, NoCallsWhereNoneAreAllowed) {
  Json body = chat(kAskWeather);
  body["tools"] = Json::array({kWeather});
  body["tool_choice"] = "none";
  EXPECT_TRUE(sweep(body)[0].calls.empty());
}

TEST_F(ChatCut, ASchema) {
  Json body = chat("Nora is 34 and lives in Oslo. Write this as a JSON object with the keys name, age.");
  body["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "person"}, {"schema", kPerson}}}};
  EXPECT_EQ(Json::parse(sweep(body)[0].content)["age"], 34);
}

// ---- Responses

void add_item(const Json& item, Seen& seen) {
  const std::string type = item["type"];
  const std::string status = item["status"];
  if (type == "function_call") {
    seen.calls.emplace_back(item["name"], item["arguments"]);
    EXPECT_EQ(status, "completed");
  } else {
    EXPECT_EQ(item["content"].size(), 1u);
    (type == "reasoning" ? seen.reasoning : seen.content) += item["content"][0]["text"].get<std::string>();
  }
  seen.statuses.push_back(type + " " + status);
}

Seen read_response(const Json& whole, int /*choice*/) {
  Seen seen;
  for (const Json& item : whole["output"]) add_item(item, seen);
  for (size_t i = 0; i + 1 < seen.statuses.size(); ++i) EXPECT_TRUE(seen.statuses[i].ends_with(" completed"));
  seen.finish = whole["status"];
  EXPECT_EQ(whole["incomplete_details"],
            seen.finish == "completed" ? Json() : Json({{"reason", "max_output_tokens"}}));
  if (seen.finish == "incomplete") seen.finish = "length";
  seen.tokens = whole["usage"]["output_tokens"];
  seen.reasoning_tokens = whole["usage"]["output_tokens_details"]["reasoning_tokens"];
  return seen;
}

// From the deltas; what the events of the ends repeat must be the same.
Seen assemble_response(const std::string& sse, int /*choice*/) {
  Seen seen;
  std::string open;
  Json last;
  for (const Json& event : events_of(sse)) {
    const std::string type = event["type"];
    if (type == "response.output_item.added") open.clear();
    if (type.ends_with(".delta")) open += event["delta"].get<std::string>();
    for (const char* key : {"text", "arguments"})
      EXPECT_EQ(type.ends_with(".done") && event.contains(key) ? event[key] : Json(open), Json(open)) << type;
    if (type == "response.output_item.done") {
      EXPECT_EQ(event["item"].contains("arguments") ? event["item"]["arguments"]
                                                    : event["item"]["content"][0]["text"],
                open);
      add_item(event["item"], seen);
    }
    last = event;
  }
  const Seen final = read_response(last["response"], 0);
  EXPECT_EQ(last["type"], final.finish == "length" ? "response.incomplete" : "response.completed");
  EXPECT_EQ(final.statuses, seen.statuses);
  seen.finish = final.finish, seen.tokens = final.tokens, seen.reasoning_tokens = final.reasoning_tokens;
  return seen;
}

Json input(const char* text) { return {{"input", text}}; }

class ResponsesCut : public AnswerCut {
 protected:
  static Seen sweep(const Json& body) {
    return AnswerCut::sweep(prepare_response, body, "max_output_tokens", read_response, assemble_response)[0];
  }
};

TEST_F(ResponsesCut, ReasoningThenAMessage) {
  const Seen whole = sweep(input("What is 17 + 25?"));
  EXPECT_EQ(whole.statuses, (std::vector<std::string>{"reasoning completed", "message completed"}));
  EXPECT_EQ(whole.content, "17 + 25 = 42");
}

TEST_F(ResponsesCut, TheLastItemIsIncompleteWhereItWasCut) {
  const auto statuses = [](int limit) {
    return answers(prepare_response, {{"input", "What is 17 + 25?"}, {"temperature", 0}}, "max_output_tokens",
                   {limit}, read_response, assemble_response)[limit][0]
        .statuses;
  };
  std::vector<std::vector<std::string>> all;
  for (int limit = 1; limit < 200; ++limit) {
    const std::vector<std::string> now = statuses(limit);
    if (all.empty() || now != all.back()) all.push_back(now);
    if (now == std::vector<std::string>{"reasoning completed", "message completed"}) break;
  }
  EXPECT_EQ(all, (std::vector<std::vector<std::string>>{{},
                                                        {"reasoning incomplete"},
                                                        {"reasoning completed"},
                                                        {"reasoning completed", "message incomplete"},
                                                        {"reasoning completed", "message completed"}}));
}

TEST_F(ResponsesCut, ACall) {
  for (const bool strict : {false, true}) {
    Json tool = kWeather["function"];
    tool["type"] = "function";
    if (strict) tool["strict"] = true;
    Json body = input(kAskWeather);
    body["tools"] = Json::array({tool});
    const Seen whole = sweep(body);
    ASSERT_EQ(whole.calls.size(), 1u);
    EXPECT_EQ(whole.statuses.back(), "function_call completed");
  }
}

TEST_F(ResponsesCut, ASchema) {
  Json body = input("Nora is 34 and lives in Oslo. Write this as a JSON object with the keys name, age.");
  body["text"] = {{"format", {{"type", "json_schema"}, {"name", "person"}, {"schema", kPerson}}}};
  EXPECT_EQ(Json::parse(sweep(body).content)["age"], 34);
}

// ---- completions

void add_completion(const Json& choice, Seen& seen) {
  seen.content += choice["text"].get<std::string>();
  seen.finish = string_in(choice, "finish_reason");
  if (!choice["logprobs"].is_object()) return;
  for (const Json& token : choice["logprobs"]["tokens"]) seen.logprob_text += token.get<std::string>();
}

Seen read_completion(const Json& whole, int choice) {
  Seen seen;
  add_completion(whole["choices"][choice], seen);
  seen.tokens = whole["usage"]["completion_tokens"];
  return seen;
}

Seen assemble_completion(const std::string& sse, int choice) {
  Seen seen;
  for (const Json& event : events_of(sse)) {
    if (event.contains("usage")) seen.tokens = event["usage"]["completion_tokens"];
    for (const Json& c : event["choices"])
      if (c["index"] == choice) add_completion(c, seen);
  }
  return seen;
}

class CompletionCut : public AnswerCut {
 protected:
  static std::vector<Seen> sweep(Json body) {
    body["stream_options"] = {{"include_usage", true}};
    return AnswerCut::sweep(prepare_completion, body, "max_tokens", read_completion, assemble_completion);
  }
};

TEST_F(CompletionCut, Text) {
  for (const char* stop : {"", "the", ". The", "e d"}) {
    Json body = {{"prompt", "Once upon a time"}, {"max_tokens", 60}};
    if (*stop != '\0') body["stop"] = stop;
    sweep(body);
    body["logprobs"] = 0;
    sweep(body);
  }
}

// Every token of "é日😀" is a part of a character here.
TEST_F(CompletionCut, Characters) {
  Json body = {{"prompt",
                "Copy: \xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80 \xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80 "
                "\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80 \xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80"},
               {"max_tokens", 40}};
  const std::vector<int32_t> tokens = model().tokenize("\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80").value();
  for (const int32_t token : tokens) body["logit_bias"][std::to_string(token)] = 30;
  sweep(body);
}

TEST_F(CompletionCut, ASchema) {
  Json body = {{"prompt", "A person: "}, {"max_tokens", 100}};
  body["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "person"}, {"schema", kPerson}}}};
  sweep(body);
}

}  // namespace
}  // namespace moesaic::openai

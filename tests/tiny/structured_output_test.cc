// models/tiny under a grammar: whatever is drawn, what ends is JSON that follows the schema.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/engine.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

struct Answer {
  std::map<std::string, std::string> channels;  // and recipients, for tool calls
  std::vector<int32_t> tokens;
  Outcome outcome;
};

const char* const kPerson = R"({"type": "object", "additionalProperties": false, "properties": {
    "name": {"type": "string", "minLength": 1, "maxLength": 10}, "age": {"type": "integer", "minimum": 18, "maximum": 120},
    "city": {"enum": ["Oslo", "Rome", "Lima"]}, "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3},
    "boss": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/boss"}]}}, "required": ["name", "age", "city", "boss"],
    "$defs": {"boss": {"type": "object", "properties": {"born": {"type": "string", "format": "date"}}, "required": ["born"],
    "additionalProperties": false}}})";

// By hand, and not by src/grammar.
bool is_person(const std::string& text) {
  const Json j = Json::parse(text, nullptr, false);
  if (!j.is_object() || !j.contains("name") || !j.contains("age") || !j.contains("city") ||
      !j.contains("boss"))
    return false;
  const auto name = j["name"].get<std::string>();
  const auto characters = std::count_if(name.begin(), name.end(), [](char c) { return (c & 0xC0) != 0x80; });
  const Json tags = j.value("tags", Json::array());
  const Json& boss = j["boss"];
  const bool boss_ok = boss.is_null() || (boss.size() == 1 && boss["born"].get<std::string>().size() == 10);
  return j.size() == 4 + j.count("tags") && characters >= 1 && characters <= 10 &&
         j["age"].is_number_integer() && j["age"] >= 18 && j["age"] <= 120 &&
         (j["city"] == "Oslo" || j["city"] == "Rome" || j["city"] == "Lima") && tags.is_array() &&
         tags.size() <= 3 &&
         std::all_of(tags.begin(), tags.end(), [](const Json& t) { return t.is_boolean(); }) && boss_ok;
}

AnswerGrammar compile(const AnswerFormat& format) {
  auto grammar = AnswerGrammar::compile(format);
  EXPECT_TRUE(grammar.ok()) << grammar.status().message();
  return std::move(grammar).value();
}

class StructuredOutput : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    Result<Model> opened = Model::open(MOESAIC_SOURCE_DIR "/models/tiny",
                                       {.device = "cpu", .threads = 2, .context = 1024, .max_batch = 8});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    model_ = std::make_unique<Model>(std::move(opened).value());
  }
  static void TearDownTestSuite() { model_.reset(); }

  static GenerationRequest chat(const Json& conversation, const AnswerGrammar& grammar, double temperature,
                                uint64_t seed) {
    const auto prompt = model_->chat_prompt(conversation.dump());
    EXPECT_TRUE(prompt.ok()) << prompt.status().message();
    GenerationRequest request{.prompt = prompt.value(), .chat = true, .sampling = {}, .grammar = grammar};
    request.sampling.temperature = temperature;
    request.sampling.seed = seed;
    return request;
  }
  static Json question(const std::string& text, const std::string& effort = "low") {
    return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"reasoning_effort", effort}};
  }

  static std::vector<Answer> answers(const std::vector<GenerationRequest>& requests) {
    std::vector<Answer> answers(requests.size());
    for (size_t i = 0; i < requests.size(); ++i) {
      Answer& answer = answers[i];
      const Status status = model_->submit(
          requests[i], {.on_token = [&](const SampledToken& t) { answer.tokens.push_back(t.token); },
                        .on_text =
                            [&](const TextPiece& p) {
                              answer.channels[p.recipient.empty() ? p.channel : p.recipient] += p.text;
                            },
                        .on_end = [&](const Outcome& outcome) { answer.outcome = outcome; }});
      EXPECT_TRUE(status.ok()) << status.message();
    }
    EXPECT_TRUE(model_->run().ok());
    return answers;
  }

  static inline std::unique_ptr<Model> model_;
};

TEST_F(StructuredOutput, PlainTextFollowsItsSchemaAtAnyTemperature) {
  const AnswerGrammar grammar = compile({.json_schema = kPerson});
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 0; seed < 48; ++seed) {
    GenerationRequest request{
        .prompt = model_->tokenize("A person: ").value(), .sampling = {}, .grammar = grammar};
    request.sampling.temperature = seed % 2 == 0 ? 1.5 : 20;
    request.sampling.seed = seed;
    if (seed % 3 == 0) request.sampling.repetition_penalty = 1.5;
    if (seed % 4 == 0) request.sampling.top_p = 0.9;
    requests.push_back(std::move(request));
  }
  for (const Answer& answer : answers(requests)) {
    const std::string& text = answer.channels.at("");
    EXPECT_EQ(answer.outcome.finish, FinishReason::kStop) << text << answer.outcome.error.message();
    EXPECT_TRUE(is_person(text)) << text;
  }
}

TEST_F(StructuredOutput, OnlyTheFinalChannelFollowsTheSchema) {
  const AnswerGrammar grammar = compile({.chat = true, .json_schema = kPerson});
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 0; seed < 48; ++seed)
    requests.push_back(chat(question("Who is the boss?", "medium"), grammar, 1.5, seed));
  int finished = 0, thought = 0;
  for (Answer& answer : answers(requests)) {
    // Nothing ends what is thought but the model: that may fill the context.
    if (answer.outcome.finish != FinishReason::kStop) continue;
    ++finished;
    thought += answer.channels.contains("analysis") && !Json::accept(answer.channels["analysis"]);
    EXPECT_TRUE(is_person(answer.channels["final"])) << answer.channels["final"];
    EXPECT_EQ(answer.channels.size() - answer.channels.count("analysis"), 1U);
  }
  EXPECT_GE(finished, 40);
  EXPECT_GT(thought, 0);
}

TEST_F(StructuredOutput, LeavesAnAnswerAsItIsThatFollowsTheSchema) {
  const Json ask =
      question("Nora is 34 and lives in Oslo. Write this as a JSON object with the keys name, age, city.");
  const AnswerGrammar any = compile({.chat = true, .json_schema = R"({"type": "object"})"});
  const std::vector<Answer> both = answers({chat(ask, {}, 0, 0), chat(ask, any, 0, 0)});
  EXPECT_EQ(both[0].tokens, both[1].tokens);
  EXPECT_EQ(both[1].channels.at("final"), R"({"name": "Nora", "age": 34, "city": "Oslo"})");
}

TEST_F(StructuredOutput, CallsAFunctionWithItsArguments) {
  const Json parameters =
      Json::parse(R"({"type": "object", "properties": {"location": {"type": "string", "maxLength": 20},
      "unit": {"enum": ["celsius", "fahrenheit"]}}, "required": ["location", "unit"], "additionalProperties": false})");
  Json ask = question("What is the weather in Paris?");
  ask["tools"] = {
      {{"type", "function"}, {"function", {{"name", "get_weather"}, {"parameters", parameters}}}}};
  const AnswerGrammar must =
      compile({.chat = true, .functions = {{"get_weather", parameters.dump()}}, .must_call = true});
  std::vector<GenerationRequest> requests = {chat(ask, must, 0, 0)};
  for (uint64_t seed = 0; seed < 24; ++seed) requests.push_back(chat(ask, must, 1.5, seed));
  int finished = 0;
  for (Answer& answer : answers(requests)) {
    if (answer.outcome.finish != FinishReason::kStop) continue;
    ++finished;
    EXPECT_FALSE(answer.channels.contains("final"));
    const Json call = Json::parse(answer.channels["functions.get_weather"], nullptr, false);
    ASSERT_TRUE(call.is_object()) << answer.channels["functions.get_weather"];
    EXPECT_TRUE(call["location"].is_string() && (call["unit"] == "celsius" || call["unit"] == "fahrenheit"));
  }
  EXPECT_GE(finished, 20);
}

TEST_F(StructuredOutput, DoesNotDependOnCompany) {
  const AnswerGrammar grammar = compile({.chat = true, .json_schema = kPerson});
  std::vector<GenerationRequest> requests;
  for (uint64_t seed = 0; seed < 8; ++seed)
    requests.push_back(chat(question("Who?"), seed % 2 == 0 ? grammar : AnswerGrammar(), 1.0, seed));
  for (auto& request : requests) request.sampling.max_tokens = 200;
  const std::vector<Answer> together = answers(requests);
  for (size_t i = 0; i < requests.size(); ++i)
    EXPECT_EQ(answers({requests[i]})[0].tokens, together[i].tokens) << i;
}

TEST_F(StructuredOutput, RefusesAGrammarOfTheOtherKind) {
  GenerationRequest request{.prompt = {1}, .grammar = compile({.chat = true, .json_schema = "{}"})};
  const Status status = model_->submit(request, {.on_end = [](const Outcome&) {}});
  EXPECT_EQ(status.message(), "the grammar was made for a chat, not plain text");
}

}  // namespace
}  // namespace moesaic

// models/tiny answers: real, peaked logits through the whole program, greedily. tools/tiny/evaluate.py
// measures how often it is right; here stand questions that it gets right.
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

Model open_tiny(const std::string& device) {
  Result<Model> model = Model::open(MOESAIC_SOURCE_DIR "/models/tiny",
                                    {.device = device, .threads = 1, .context = 1024, .max_batch = 4});
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

Json question(const std::string& text, const std::string& effort = "medium") {
  return {{"messages", {{{"role", "user"}, {"content", text}}}}, {"reasoning_effort", effort}};
}

// The answers to all questions, computed in one batch.
std::vector<Answer> ask(Model& model, const std::vector<Json>& questions) {
  std::vector<Answer> answers(questions.size());
  for (size_t i = 0; i < questions.size(); ++i) {
    const auto prompt = model.chat_prompt(questions[i].dump());
    EXPECT_TRUE(prompt.ok()) << prompt.status().message();
    GenerationRequest request = {.prompt = prompt.value(), .chat = true, .sampling = {}};
    request.sampling.temperature = 0;
    request.sampling.max_tokens = 400;
    Answer& answer = answers[i];
    EXPECT_TRUE(
        model
            .submit(std::move(request),
                    {.on_token = [&](const SampledToken& t) { answer.tokens.push_back(t.token); },
                     .on_text =
                         [&](const TextPiece& piece) {
                           answer.channels[piece.recipient.empty() ? piece.channel : piece.recipient] +=
                               piece.text;
                         },
                     .on_end = [&](const Outcome& outcome) { answer.outcome = outcome; }})
            .ok());
  }
  EXPECT_TRUE(model.run().ok());
  return answers;
}

const std::vector<std::pair<std::string, std::string>> kQuestions = {
    {"What is 17 + 25?", "17 + 25 = 42"},
    {"What is 47 x 36?", "47 x 36 = 1692"},
    {"What is 31 - 58?", "31 - 58 = -27"},
    {"Sort these numbers: 42, 7, 19, 88, 3.", "3, 7, 19, 42, 88"},
    {"How many r's are in strawberry?", "The letter r occurs 3 times in strawberry."},
    {"Reverse the word \"lantern\".", "nretnal"},
    {"Which is larger, 872 or 869?", "872 is larger."},
    {"name,age,city\nAnna,31,Oslo\nOmar,52,Lima\nZoe,18,Rome\n\nWho or what has the highest age?",
     "Omar has the highest age: 52."},
    {"Write 342 in words.", "three hundred and forty-two"},
    {"Nora is 34 and lives in Oslo. Write this as a JSON object with the keys name, age, city.",
     R"({"name": "Nora", "age": 34, "city": "Oslo"})"},
};

std::vector<Json> questions() {
  std::vector<Json> all;
  for (const auto& [text, answer] : kQuestions) all.push_back(question(text));
  return all;
}

TEST(BundledModel, Answers) {
  Model model = open_tiny("auto");
  const std::vector<Answer> answers = ask(model, questions());
  for (size_t i = 0; i < kQuestions.size(); ++i) {
    Answer answer = answers[i];
    EXPECT_EQ(answer.channels["final"], kQuestions[i].second) << kQuestions[i].first;
    EXPECT_FALSE(answer.channels["analysis"].empty()) << kQuestions[i].first;
    EXPECT_EQ(answer.outcome.finish, FinishReason::kStop) << kQuestions[i].first;
  }
}

TEST(BundledModel, EffortDecidesHowLongItThinks) {
  Model model = open_tiny("auto");
  const std::string text = "What is 47 x 36?";
  std::vector<Answer> answers =
      ask(model, {question(text, "low"), question(text, "medium"), question(text, "high")});
  EXPECT_TRUE(answers[0].channels["analysis"].empty());
  EXPECT_LT(answers[0].tokens.size(), answers[1].tokens.size());
  EXPECT_LT(answers[1].tokens.size(), answers[2].tokens.size());
}

TEST(BundledModel, CallsTools) {
  const Json tool = Json::parse(R"({"type": "function", "function": {"name": "get_weather",
      "description": "Get the weather of a city.", "parameters": {"type": "object",
      "properties": {"location": {"type": "string"}}, "required": ["location"]}}})");
  Json conversation = question("What is the weather in Paris?");
  conversation["tools"] = Json::array({tool});
  Model model = open_tiny("auto");
  Answer answer = ask(model, {conversation})[0];
  EXPECT_EQ(answer.channels["functions.get_weather"], R"({"location": "Paris"})");
  EXPECT_EQ(answer.outcome.finish, FinishReason::kStop);
}

TEST(BundledModel, BackendsAgree) {
  Model cpu = open_tiny("cpu"), reference = open_tiny("reference");
  const std::vector<Answer> a = ask(cpu, questions()), b = ask(reference, questions());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].tokens, b[i].tokens) << kQuestions[i].first;
}

TEST(BundledModel, RefersToWhatItWasToldManyTokensAgo) {
  std::string text;
  const std::vector<std::string> names = {"Anna", "Mia",   "Clara", "Nora", "Ida",  "Tom",  "Ben",
                                          "Max",  "Paul",  "Omar",  "Leo",  "Finn", "Hugo", "Ravi",
                                          "Ivan", "Bruno", "Felix", "Otto", "Ruth", "Zoe"};
  for (size_t i = 0; i < names.size(); ++i)
    text += "The code of " + names[i] + " is " + std::to_string(4207 + 1317 * i) + ". ";
  Model model = open_tiny("auto");
  Answer answer = ask(model, {question(text + "\n\nWhat is the code of Mia?")})[0];
  EXPECT_GT(answer.outcome.prompt_tokens, 128 + 64);
  EXPECT_EQ(answer.channels["final"], "The code of Mia is 5524.");
}

}  // namespace
}  // namespace moesaic

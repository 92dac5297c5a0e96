// models/tiny thinks no longer than it may: alone and in company, greedily and sampled, with forms, calls and
// drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "moesaic/engine.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

const std::string kTiny = MOESAIC_SOURCE_DIR "/models/tiny";

struct Answer {
  std::vector<int32_t> tokens;
  std::map<std::string, std::string> channels;  // and recipients, for tool calls
  Outcome outcome;
};

Model open(const std::string& speculative = "none", int max_batch = 8) {
  OpenOptions options{.device = "cpu", .threads = 2, .context = 1024, .max_batch = max_batch};
  options.speculative = speculative;
  auto model = Model::open(kTiny, options);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return std::move(model).value();
}

std::vector<Answer> answers(Model& model, const std::vector<GenerationRequest>& requests) {
  std::vector<Answer> answers(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    Answer& a = answers[i];
    Callbacks callbacks{
        .on_token = [&a](const SampledToken& t) { a.tokens.push_back(t.token); },
        .on_text =
            [&a](const TextPiece& p) { a.channels[p.recipient.empty() ? p.channel : p.recipient] += p.text; },
        .on_end = [&a](const Outcome& outcome) { a.outcome = outcome; }};
    EXPECT_TRUE(model.submit(requests[i], std::move(callbacks)).ok());
  }
  EXPECT_TRUE(model.run().ok());
  return answers;
}

GenerationRequest ask(const Model& model, int i, int budget) {
  const Json conversation = {
      {"messages", {{{"role", "user"}, {"content", "What is " + std::to_string(10 + i) + " + 25?"}}}},
      {"reasoning_effort", "high"}};
  GenerationRequest request{
      .prompt = model.chat_prompt(conversation.dump()).value(), .chat = true, .sampling = {}, .grammar = {}};
  request.sampling.temperature = i % 3 == 0 ? 0 : 1;
  request.sampling.seed = static_cast<uint64_t>(i);
  request.sampling.max_tokens = 200;
  request.sampling.reasoning_budget = budget;
  return request;
}

// Counts a part in a text, as often as it does not overlap itself.
int times(const std::vector<int32_t>& text, const std::vector<int32_t>& part) {
  int found = 0;
  for (auto at = text.begin(); (at = std::search(at, text.end(), part.begin(), part.end())) != text.end();
       at += std::ssize(part))
    ++found;
  return found;
}

TEST(ThinkingBudgets, CutTheReasoningOff) {
  Model model = open();
  const auto tokens = [&](const char* text) { return model.tokenize(text, true).value(); };
  const std::vector<int32_t> begin = tokens("<|channel|>analysis<|message|>");
  const std::vector<int32_t> way = tokens("<|end|><|start|>assistant<|channel|>final<|message|>");
  const std::vector<int32_t> final = tokens("<|channel|>final<|message|>");
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 24; ++i) requests.push_back(ask(model, i, -1));
  const std::vector<Answer> free = answers(model, requests);
  for (const int budget : {0, 1, 4, 9}) {
    for (GenerationRequest& r : requests) r.sampling.reasoning_budget = budget;
    const std::vector<Answer> limited = answers(model, requests);
    int cut = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<int32_t>& text = limited[i].tokens;
      if (text == free[i].tokens) continue;  // did not think for so long
      ++cut;
      // Up to where the budget is used up, the answer is the one without it.
      const size_t same = std::ranges::mismatch(text, free[i].tokens).in1 - text.begin();
      const std::vector<int32_t> rest(text.begin() + static_cast<std::ptrdiff_t>(same), text.end());
      if (budget == 0) {
        EXPECT_EQ(times(text, begin), 0);
        EXPECT_EQ(times({text.begin(), text.begin() + std::ssize(final)}, final), 1);
      } else {
        ASSERT_GE(rest.size(), way.size());
        EXPECT_EQ(times({rest.begin(), rest.begin() + std::ssize(way)}, way), 1);
        EXPECT_LE(same, begin.size() + static_cast<size_t>(budget) + 3);
      }
    }
    EXPECT_GT(cut, 12) << budget;
  }
}

TEST(ThinkingBudgets, DoNotDependOnCompanyOrDrafts) {
  Model together = open(), alone = open("none", 1), drafted = open("eagle3:" + kTiny + "-eagle3");
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 12; ++i) requests.push_back(ask(together, i, i % 4 == 3 ? -1 : i % 6));
  for (GenerationRequest& r : requests) r.sampling.max_tokens = 60;
  const std::vector<Answer> want = answers(alone, requests);
  for (Model* model : {&together, &drafted}) {
    const std::vector<Answer> got = answers(*model, requests);
    for (size_t i = 0; i < requests.size(); ++i) EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
  }
}

TEST(ThinkingBudgets, FormsAndCallsAreKept) {
  Model model = open();
  const std::string parameters =
      R"({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}},
          "required": ["n"], "additionalProperties": false})";
  const AnswerGrammar form = AnswerGrammar::compile({.chat = true, .json_schema = parameters}).value();
  const AnswerGrammar call =
      AnswerGrammar::compile(
          {.chat = true, .functions = {{"count", parameters}, {"sum", parameters}}, .must_call = true})
          .value();
  std::vector<GenerationRequest> requests;
  for (int i = 0; i < 24; ++i) {
    requests.push_back(ask(model, i, i % 5));
    requests.back().sampling.temperature = 1.5;
    requests.back().grammar = i % 2 == 0 ? form : call;
  }
  const std::vector<Answer> made = answers(model, requests);
  for (size_t i = 0; i < made.size(); ++i) {
    const std::map<std::string, std::string>& channels = made[i].channels;
    EXPECT_EQ(made[i].outcome.finish, FinishReason::kStop) << made[i].outcome.error.message();
    EXPECT_EQ(channels.contains("final"), i % 2 == 0);
    EXPECT_EQ(channels.contains("functions.count") + channels.contains("functions.sum"), i % 2);
    for (const auto& [channel, text] : channels) {
      if (channel == "analysis" || channel == "commentary") continue;
      EXPECT_TRUE(Json::parse(text, nullptr, false).is_object()) << channel << " " << text;
    }
  }
}

TEST(ThinkingBudgets, BelowMinusOneIsAnError) {
  Model model = open();
  const Status status = model.submit(ask(model, 0, -2), {.on_end = [](const Outcome&) {}});
  EXPECT_EQ(status.message(), "reasoning_budget -2 is below -1");
}

}  // namespace
}  // namespace moesaic

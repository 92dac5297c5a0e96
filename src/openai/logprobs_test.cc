// Log-probabilities in answers: of which tokens, and where their text stands.
#include <gtest/gtest.h>

#include "openai/completion_answer.h"
#include "openai/fields.h"
#include "openai/request_cases.h"

namespace moesaic::openai {
namespace {

int32_t id_of(const std::string& name) {
  const std::vector<int32_t> ids = service().model.tokenize(name, true).value();
  EXPECT_EQ(ids.size(), 1u) << name;
  return ids.at(0);
}

// A token, and the text that the answer has after it.
AnswerEvent said(const char* name, const std::string& text = "", bool is_stop = false) {
  AnswerEvent e{.token = SampledToken{.token = id_of(name), .logprobs = {.logprob = -0.5}}};
  e.token->is_stop = is_stop;
  if (!text.empty()) e.pieces = {{.channel = "final", .recipient = {}, .text = text}};
  return e;
}

AnswerEvent ended(AnswerEvent e) {
  e.end = Outcome{.finish = FinishReason::kStop};
  return e;
}

// The tokens of every list of log-probabilities in an answer, or in a stream's chunks.
std::vector<std::string> listed(const Json& json) {
  std::vector<std::string> tokens;
  for (const auto& [key, value] : json.items()) {
    const bool list = key == "logprobs" && !value.is_null();
    const Json& ones = !list                      ? Json::array()
                       : value.contains("tokens") ? value["tokens"]
                       : value.is_array()         ? value
                                                  : value["content"];
    for (const Json& one : ones)
      tokens.push_back(one.is_string() ? one.get<std::string>() : one["token"].get<std::string>());
    if (list || !value.is_structured()) continue;
    const std::vector<std::string> inner = listed(value);
    tokens.insert(tokens.end(), inner.begin(), inner.end());
  }
  return tokens;
}

std::vector<std::string> streamed(const std::string& sse) {
  std::vector<std::string> tokens;
  for (size_t at = 0; (at = sse.find("data: {", at)) != std::string::npos; ++at) {
    const Json data = Json::parse(sse.substr(at + 6, sse.find('\n', at) - at - 6));
    if (data.contains("type") && data["type"] != "response.output_text.delta") continue;
    const std::vector<std::string> more = listed(data);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return tokens;
}

// Tokens that the text lacks are left out: a stop token and those of a stop string, also where text that
// waited comes out with them. A token whose own text waits comes later.
TEST(Logprobs, OfTheTextsTokensAlone) {
  struct Case {
    std::vector<AnswerEvent> events;
    std::vector<std::string> tokens;
  };
  const std::vector<Case> cases = {
      {{said("final"), ended(said(" x", "final", true))}, {"final"}},          // stop_token_ids
      {{said("final"), ended(said(" x", "final"))}, {"final"}},                // stop: " x"
      {{said("final"), ended(said(" x", "final x", true))}, {"final", " x"}},  // which the text includes
      {{said("final"), ended(said("final", "final", true))}, {"final"}},
      {{said("a"), ended(said(" x", "\xEF\xBF\xBD", true))}, {"a"}},
      {{said("a"), said("c", "a"), ended(said("b"))}, {"a"}},  // stop: "cb", or "ab"
      {{said("a"), said("c", "a"), ended(said("x", "cx"))}, {"a", "c", "x"}},
      {{said("in", "i"), ended(said(" x", "n"))}, {"in"}},  // stops: " x", "nn"
      {{said("in", "i"), said("x", "nx"), ended(said("b", "b"))}, {"in", "x", "b"}}};
  const std::string asked = R"(, "stream": )";
  struct Api {
    PreparedRequestOrError (*make)(const std::string&);
    std::string more;
  };
  for (const auto& [make, more] : {Api{chat, R"("logprobs": true)"}, Api{completion, R"("logprobs": 0)"},
                                   Api{response, R"("include": ["message.output_text.logprobs"])"}}) {
    for (size_t i = 0; i < cases.size(); ++i) {
      const PreparedRequest whole = prepared_of(make(more + asked + "false")),
                            stream = prepared_of(make(more + asked + "true"));
      std::string sse;
      for (const AnswerEvent& e : cases[i].events) {
        whole.answer->add(e, nullptr);
        stream.answer->add(e, &sse);
      }
      EXPECT_EQ(listed(Json::parse(whole.answer->whole())), cases[i].tokens) << more << " " << i;
      EXPECT_EQ(streamed(sse), cases[i].tokens) << more << " " << i;
    }
  }
}

AnswerEvent said(int32_t token, const std::string& text, const char* channel = "final") {
  AnswerEvent e{.token = SampledToken{.token = token}};
  if (!text.empty()) e.pieces = {{.channel = channel, .recipient = {}, .text = text}};
  return e;
}

constexpr const char* kLossy = "\xEF\xBF\xBD";

// The first byte of a character whose others do not come.
int32_t broken() { return service().model.tokenize("\xF0\x9F\x98\x80").value().at(0); }

TEST(Logprobs, OfTextWithBytesThatAreNoCharacter) {
  const PreparedRequest requests[] = {prepared_of(chat(R"("logprobs": true)")),
                                      prepared_of(completion(R"("logprobs": 0)"))};
  for (const PreparedRequest& made : requests) {
    // stop: "cb"
    for (const AnswerEvent& e : {said(broken(), ""), said(id_of("c"), kLossy), ended(said("b"))})
      made.answer->add(e, nullptr);
    EXPECT_EQ(listed(Json::parse(made.answer->whole())), std::vector<std::string>{kLossy});
  }
}

TEST(Logprobs, OfNoHiddenReasoning) {
  const PreparedRequest made =
      prepared_of(response(R"("include": ["message.output_text.logprobs"], "include_reasoning": false)"));
  for (const AnswerEvent& e : {said(id_of("a"), "a", "analysis"), ended(said("b", "b"))})
    made.answer->add(e, nullptr);
  EXPECT_EQ(listed(Json::parse(made.answer->whole())), std::vector<std::string>{"b"});
}

TEST(Logprobs, OfNoSpecialTokenInAChat) {
  const PreparedRequest made = prepared_of(chat(R"("logprobs": true)"));
  for (const AnswerEvent& e : {said("<|startoftext|>"), ended(said("a", "a"))}) made.answer->add(e, nullptr);
  EXPECT_EQ(listed(Json::parse(made.answer->whole())), std::vector<std::string>{"a"});
}

Json logprobs_of(const std::string& more, const std::vector<AnswerEvent>& events) {
  const PreparedRequest made = prepared_of(completion(R"("logprobs": 2, )" + more));
  for (const AnswerEvent& e : events) made.answer->add(e, nullptr);
  return Json::parse(made.answer->whole())["choices"][0]["logprobs"];
}

TEST(CompletionLogprobs, OfAPromptAreNullForItsFirstTokenAlone) {
  const std::vector<int32_t> parts = service().model.tokenize("\xF0\x9F\x98\x80").value();
  AnswerEvent prompt;
  for (size_t i = 1; i < parts.size(); ++i)  // it begins inside a character
    prompt.prompt.push_back({.token = parts[i], .logprobs = {.logprob = -0.5}});
  ASSERT_GT(prompt.prompt.size(), 1u);
  const Json logprobs = logprobs_of(R"("echo": true)", {prompt, ended(said("<|return|>"))});
  Json want(prompt.prompt.size(), -0.5);
  want[0] = nullptr;
  EXPECT_EQ(logprobs["token_logprobs"], want);
}

TEST(CompletionLogprobs, OffsetsAreThoseOfTheText) {
  const std::vector<AnswerEvent> events = {said("a", "a"), said("<|end|>"), said("b", "b"),
                                           ended(said("x", "x"))};
  EXPECT_EQ(logprobs_of(R"("stream": false)", events)["text_offset"], Json({0, 1, 1, 2}));
  EXPECT_EQ(logprobs_of(R"("skip_special_tokens": false)",
                        {said("a", "a"), said("<|end|>", "<|end|>"), ended(said("b", "b"))})["text_offset"],
            Json({0, 1, 8}));
  AnswerEvent prompt;
  for (const char* name : {"<|end|>", "a"}) prompt.prompt.push_back({.token = id_of(name)});
  EXPECT_EQ(logprobs_of(R"("echo": true)", {prompt, ended(said("b", "b"))})["text_offset"], Json({0, 7, 8}));
}

TEST(CompletionLogprobs, OffsetsCountReplacedBytes) {
  const int32_t stray = service().model.tokenize("\xF0\x9F\x98\x80").value().at(3);
  const auto events = {said(stray, kLossy), said(stray, kLossy), ended(said("a", "a"))};
  EXPECT_EQ(logprobs_of(R"("stream": false)", events)["text_offset"], Json({0, 1, 2}));
  AnswerEvent prompt;  // it ends inside a character, which its answer does not complete
  for (const int32_t token : {stray, id_of("a"), broken()}) prompt.prompt.push_back({.token = token});
  EXPECT_EQ(
      logprobs_of(R"("echo": true)", {prompt, said(stray, kLossy), ended(said("a", "a"))})["text_offset"],
      Json({0, 1, 2, 3, 4}));
}

TEST(CompletionLogprobs, OfTokensWithTheSameTextTheLikeliestIsListed) {
  const std::vector<int32_t> parts = service().model.tokenize("\xF0\x9F\x98\x80").value();
  ASSERT_GT(parts.size(), 2u);
  const auto top = [&](size_t sampled, double logprob) {
    AnswerEvent e{
        .token = SampledToken{.token = parts[sampled],
                              .logprobs = {.logprob = logprob, .top = {{parts[0], -0.25}, {parts[1], -2}}}},
        .pieces = {{.channel = {}, .recipient = {}, .text = "\xEF\xBF\xBD"}}};
    return logprobs_of(R"("stream": false)", {ended(std::move(e))})["top_logprobs"][0];
  };
  const char* lossy = "\xEF\xBF\xBD";
  EXPECT_EQ(top(0, -0.25), (Json{{lossy, -0.25}}));
  EXPECT_EQ(top(2, -5), (Json{{lossy, -5}}));  // the sampled token's own
  AnswerEvent other = said("a", "a");
  other.token->logprobs.top = {{parts[0], -0.25}, {parts[1], -2}};
  EXPECT_EQ(logprobs_of(R"("stream": false)", {ended(other)})["top_logprobs"][0],
            (Json{{lossy, -0.25}, {"a", -0.5}}));
}

}  // namespace
}  // namespace moesaic::openai

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "checkpoint/writer.h"
#include "model/random_model.h"
#include "moesaic/engine.h"
#include "text/small_tokenizer.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

// A random model with small_tokenizer.h's vocabulary, in a folder that lives as long as the tests.
class ModelTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = fs::path(testing::TempDir()) / ("moesaic-api-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    Checkpoint checkpoint{.config = {.name = "test",
                                     .layers = 2,
                                     .hidden = 64,
                                     .intermediate = 32,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .experts = 5,
                                     .experts_per_token = 4,
                                     .vocab = 320,
                                     .window = 128,
                                     .sliding = {true, false},
                                     .max_context = 4096}};
    checkpoint.weights = make_random_model(checkpoint.config, {});
    checkpoint.tokenizer.json_path = (folder_ / "source.json").string();
    std::ofstream(checkpoint.tokenizer.json_path) << small::tokenizer_json().dump();
    const Status status = write_safetensors(checkpoint, path(), {});
    ASSERT_TRUE(status.ok()) << status.message();
  }
  static void TearDownTestSuite() { fs::remove_all(folder_); }
  static std::string path() { return (folder_ / "model").string(); }

  static Model open(int max_batch = 1) {
    auto model = Model::open(path(), {.threads = 1, .context = 256, .max_batch = max_batch});
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }

  // The results of a request.
  struct Record {
    std::vector<int32_t> tokens;
    std::string text;
    std::vector<Outcome> ends;
    Callbacks callbacks() {
      return {.on_token = [this](const SampledToken& t) { tokens.push_back(t.token); },
              .on_text = [this](const TextPiece& p) { text += p.text; },
              .on_end = [this](const Outcome& o) { ends.push_back(o); }};
    }
  };

  static inline fs::path folder_;
};

// Never ends by itself.
GenerationRequest request(std::vector<int32_t> prompt, int max_tokens) {
  return {.prompt = std::move(prompt),
          .sampling = {.logit_bias = {{319, -1e4f}},
                       .seed = 5,
                       .max_tokens = max_tokens,
                       .stop_tokens = {319},
                       .stop_strings = {}}};
}

TEST_F(ModelTest, TheModelsOwnStopTokensEndAChatBesideOthers) {
  Model model = open();
  const std::vector<int32_t> answer =
      model.tokenize("<|channel|>final<|message|>hello<|return|>", true).value();
  const auto said = static_cast<int>(answer.size());
  struct Case {
    bool chat;
    std::vector<int32_t> stops;
    int generated;
  };
  for (const Case& c : {Case{true, {319}, said}, Case{true, {319, kNoToken}, said + 3},
                        Case{false, {319}, said + 3}, Case{false, {}, said}}) {
    Record record;
    GenerationRequest r = request({104, 105}, said + 3);
    r.chat = c.chat, r.sampling.stop_tokens = c.stops;
    Callbacks callbacks = record.callbacks();
    callbacks.change_logits = [&](int, std::span<float> logits) {
      const size_t at = record.tokens.size();
      logits[static_cast<size_t>(at < answer.size() ? answer[at] : 'a')] = 1e6f;
    };
    ASSERT_TRUE(model.submit(r, callbacks).ok());
    ASSERT_TRUE(model.run().ok());
    ASSERT_EQ(record.ends.size(), 1u);
    EXPECT_EQ(record.ends[0].generated_tokens, c.generated);
    EXPECT_EQ(record.ends[0].finish, c.generated == said ? FinishReason::kStop : FinishReason::kLength);
    EXPECT_TRUE(!c.chat || record.text == "hello") << record.text;
  }
}

TEST_F(ModelTest, OpensAndTokenizes) {
  const Model model = open();
  EXPECT_EQ(model.context(), 256);
  EXPECT_EQ(model.vocab(), 320);
  EXPECT_EQ(model.tokenize("hello").value(), small::tokenizer().encode("hello", false));
  EXPECT_EQ(model.tokenize("<|start|>", true).value(), (std::vector<int32_t>{305}));
  EXPECT_EQ(model.detokenize(model.tokenize("hello w").value()), "hello w");
  const std::vector<int32_t> prompt = model.chat_prompt(R"([{"role": "user", "content": "hello"}])").value();
  EXPECT_TRUE(model.detokenize(prompt).ends_with("<|message|>hello<|end|><|start|>assistant"));
  const Conversation typed{.messages = {{.role = "user", .text = "hello"}}};
  EXPECT_EQ(model.chat_prompt(typed).value(), prompt);
  EXPECT_FALSE(model.chat_prompt("{").ok());
}

TEST_F(ModelTest, WhatCannotBeOpenedIsAnError) {
  EXPECT_FALSE(Model::open(path() + "/absent").ok());
  EXPECT_FALSE(Model::open(path(), {.device = "abacus"}).ok());
  EXPECT_FALSE(Model::open(path(), {.context = 5000}).ok());
  EXPECT_FALSE(Model::open(path(), {.max_batch = -1}).ok());
}

TEST_F(ModelTest, StreamsARequestToItsEnd) {
  Model model = open();
  Record record;
  ASSERT_TRUE(model.submit(request({104, 105}, 12), record.callbacks()).ok());
  EXPECT_FALSE(model.idle());
  ASSERT_TRUE(model.run().ok());
  EXPECT_TRUE(model.idle());
  ASSERT_EQ(record.ends.size(), 1u);
  EXPECT_EQ(record.ends[0].finish, FinishReason::kLength);
  EXPECT_EQ(record.ends[0].prompt_tokens, 2);
  EXPECT_EQ(record.ends[0].generated_tokens, 12);
  EXPECT_EQ(record.tokens.size(), 12u);
}

TEST_F(ModelTest, TellsHowMuchOfAPromptIsRead) {
  Model model = Model::open(path(), {.threads = 1, .context = 256, .max_batch = 2, .max_rows = 40}).value();
  const std::vector<int32_t> prompt(100, 104);
  for (const int cached : {0, 96}) {
    Record record;
    std::vector<int> read;
    Callbacks callbacks = record.callbacks();
    callbacks.on_prompt = [&](const PromptProgress& p) {
      EXPECT_EQ(p.tokens, 100);
      EXPECT_EQ(p.cached, cached);
      EXPECT_TRUE(record.tokens.empty());
      read.push_back(p.read);
    };
    ASSERT_TRUE(model.submit(request(prompt, 5), std::move(callbacks)).ok());
    ASSERT_TRUE(model.run().ok());
    EXPECT_EQ(record.tokens.size(), 5u);
    EXPECT_EQ(read, cached == 0 ? (std::vector<int>{0, 40, 80, 100}) : (std::vector<int>{96, 100}));
  }
}

TEST_F(ModelTest, EndsAtTheModelsStopTokens) {
  Model model = open();
  Record record;
  GenerationRequest r = request({104, 105}, 0);
  r.sampling.stop_tokens.clear();
  r.sampling.logit_bias = {{302, 1e4f}};  // <|return|>
  ASSERT_TRUE(model.submit(r, record.callbacks()).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(record.tokens, (std::vector<int32_t>{302}));
  EXPECT_EQ(record.text, "");
  EXPECT_EQ(record.ends.at(0).finish, FinishReason::kStop);
  EXPECT_EQ(record.ends.at(0).generated_tokens, 1);
}

TEST_F(ModelTest, StopTokensWaitForMinTokens) {
  Model model = open();
  Record record;
  GenerationRequest r = request({104, 105}, 0);
  r.sampling.stop_tokens.clear();
  r.sampling.logit_bias = {{302, 1e4f}};  // <|return|>
  r.sampling.min_tokens = 5;
  ASSERT_TRUE(model.submit(r, record.callbacks()).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(record.tokens.size(), 6u);
  EXPECT_EQ(record.tokens.back(), 302);
}

// {} is all that the schema allows: the answer ends when nothing else can follow.
TEST_F(ModelTest, AGrammarEndsBeforeMinTokensWhereNothingElseCanFollow) {
  Model model = open();
  Record record;
  GenerationRequest r{.prompt = {104}, .sampling = {.temperature = 0, .min_tokens = 200}};
  const char* schema = R"({"type": "object", "additionalProperties": false})";
  r.grammar = AnswerGrammar::compile({.json_schema = schema}).value();
  ASSERT_TRUE(model.submit(r, record.callbacks()).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(record.ends.at(0).finish, FinishReason::kStop) << record.ends.at(0).error.message();
  EXPECT_EQ(record.text.front(), '{');
  EXPECT_EQ(record.text.back(), '}');
}

TEST_F(ModelTest, StopStringsEndTheText) {
  Model model = open();
  Record record;
  GenerationRequest r = request({104}, 50);
  r.sampling.logit_bias = {{'x', 1e4f}};
  r.sampling.stop_strings = {"xxxx"};
  ASSERT_TRUE(model.submit(r, record.callbacks()).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(record.text, "");
  EXPECT_EQ(record.tokens.size(), 4u);
  EXPECT_EQ(record.ends.at(0).finish, FinishReason::kStop);
}

TEST_F(ModelTest, RequestsTogetherGiveWhatTheyGiveAlone) {
  std::vector<Record> alone(3), together(3);
  for (int i = 0; i < 3; ++i) {
    Model model = open();
    ASSERT_TRUE(model.submit(request({i, 7, 9}, 20), alone[i].callbacks()).ok());
    ASSERT_TRUE(model.run().ok());
  }
  Model model = open(2);  // the third waits
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(model.submit(request({i, 7, 9}, 20), together[i].callbacks()).ok());
  ASSERT_TRUE(model.run().ok());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(together[i].tokens, alone[i].tokens);
    EXPECT_EQ(together[i].text, alone[i].text);
    EXPECT_EQ(together[i].ends.size(), 1u);
  }
}

TEST_F(ModelTest, CancelsFromAnotherThread) {
  Model model = open();
  Record record;
  std::stop_source source;
  ASSERT_TRUE(model.submit(request({1, 2}, 0), record.callbacks(), source.get_token()).ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(model.step().ok());
  std::thread([&] { source.request_stop(); }).join();
  ASSERT_TRUE(model.run().ok());
  ASSERT_EQ(record.ends.size(), 1u);
  EXPECT_EQ(record.ends[0].finish, FinishReason::kCancelled);
  EXPECT_EQ(record.tokens.size(), 3u);
}

TEST_F(ModelTest, AnyThreadReadsTheStatistics) {
  Model model = open(2);
  std::vector<Record> records(3);
  for (Record& r : records) ASSERT_TRUE(model.submit(request({1, 2}, 40), r.callbacks()).ok());
  EXPECT_EQ(model.stats().running + model.stats().waiting, 3);
  std::atomic<bool> done = false;
  EngineStats last;
  std::thread reader([&] {
    while (!done) {
      const EngineStats now = model.stats();
      EXPECT_GE(now.generated_tokens, last.generated_tokens);
      last = now;
    }
  });
  ASSERT_TRUE(model.run().ok());
  done = true;
  reader.join();
  const EngineStats end = model.stats();
  EXPECT_EQ(end.generated_tokens, 120u);
  EXPECT_EQ(end.prompt_tokens, 6u);
  EXPECT_EQ(end.running + end.waiting + end.full.used + end.window.used, 0);
  EXPECT_GT(end.full.total, 0);
  EXPECT_GE(end.steps, 60u);  // three requests of 40 tokens, two at a time
  EXPECT_GT(end.host_seconds, 0);
  EXPECT_GT(end.step_seconds, end.host_seconds);
}

TEST_F(ModelTest, WhatPromptsShareIsComputedOnce) {
  Model model = open(2);
  std::vector<int32_t> prompt(100, 7);
  std::vector<Record> records(3);
  for (Record& r : records) {
    ASSERT_TRUE(model.submit(request(prompt, 8), r.callbacks()).ok());
    ASSERT_TRUE(model.run().ok());
  }
  EXPECT_EQ(records[0].ends.at(0).cached_tokens, 0);
  EXPECT_EQ(records[1].ends.at(0).cached_tokens, 96);
  EXPECT_EQ(records[1].tokens, records[0].tokens);
  EXPECT_EQ(model.stats().prefix_queried, 300u);
  EXPECT_EQ(model.stats().prefix_hits, 192u);
  EXPECT_GE(model.stats().full.cached, 3);
}

TEST_F(ModelTest, APromptMayBeComputedAgain) {
  Model model = open();
  std::vector<Record> records(3);
  for (Record& r : records) {
    GenerationRequest again = request(std::vector<int32_t>(100, 7), 8);
    again.reuse_prefix = &r != &records[1];
    ASSERT_TRUE(model.submit(again, r.callbacks()).ok());
    ASSERT_TRUE(model.run().ok());
    EXPECT_EQ(r.tokens, records[0].tokens);
  }
  for (const int i : {0, 1, 2}) {
    EXPECT_EQ(records[i].ends.at(0).cached_tokens, i == 2 ? 96 : 0);
    EXPECT_EQ(records[i].ends.at(0).cache_write_tokens, i == 2 ? 0 : 96);
  }
}

TEST_F(ModelTest, TheCacheIsAsLargeAsAsked) {
  const auto pages = [](const OpenOptions& options) {
    return Model::open(path(), options)->stats().full.total;
  };
  EXPECT_EQ(pages({.threads = 1, .context = 256, .max_batch = 4}), 32);
  EXPECT_EQ(pages({.threads = 1, .context = 256, .max_batch = 4, .kv_tokens = 320}), 10);
  const auto small = Model::open(path(), {.threads = 1, .context = 256, .kv_tokens = 255});
  EXPECT_EQ(small.status().code(), StatusCode::kUsage);
}

TEST_F(ModelTest, ACallbackMaySubmit) {
  Model model = open();
  Record first, second;
  Callbacks callbacks = first.callbacks();
  callbacks.on_end = [&](const Outcome& o) {
    first.ends.push_back(o);
    EXPECT_TRUE(model.submit(request({3}, 4), second.callbacks()).ok());
  };
  ASSERT_TRUE(model.submit(request({3}, 4), callbacks).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(first.ends.size(), 1u);
  EXPECT_EQ(second.ends.size(), 1u);
  EXPECT_EQ(first.tokens, second.tokens);
}

TEST_F(ModelTest, BadRequestsAreRefused) {
  Model model = open();
  Record record;
  EXPECT_FALSE(model.submit(request({}, 4), record.callbacks()).ok());
  EXPECT_FALSE(model.submit(request({320}, 4), record.callbacks()).ok());
  EXPECT_FALSE(model.submit(request({1}, -4), record.callbacks()).ok());
  EXPECT_FALSE(model.submit(request({1}, 4), {}).ok());  // nobody to tell the end
  EXPECT_TRUE(model.idle());
  EXPECT_TRUE(record.ends.empty());
}

}  // namespace
}  // namespace moesaic

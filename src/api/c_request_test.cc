// The C interface: forms of answers, changed logits, values out of range, and forked processes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "moesaic/moesaic.h"

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Seen {
  std::vector<int32_t> tokens, positions;
  std::vector<double> logprobs;
  std::string text, error;
  moesaic_finish finish = MOESAIC_FINISH_NONE;
  std::function<void(float* logits, size_t count)> change = {};
};

class CRequestTest : public testing::Test {
 protected:
  void SetUp() override {
    moesaic_options options;
    moesaic_options_init(&options, sizeof options);
    options.device = "cpu", options.threads = 1, options.context = 256, options.max_batch = 4;
    ASSERT_EQ(moesaic_open(MOESAIC_SOURCE_DIR "/models/tiny", &options, &model_), MOESAIC_OK);
    int32_t* tokens = nullptr;
    size_t count = 0;
    ASSERT_EQ(moesaic_tokenize(model_, "Once upon a time", 16, 0, &tokens, &count), MOESAIC_OK);
    prompt_.assign(tokens, tokens + count);
    moesaic_free(tokens);
  }
  void TearDown() override { moesaic_close(model_); }

  // Greedy, of a plain text.
  moesaic_request request(Seen& seen) const {
    moesaic_request r;
    moesaic_request_init(&r, sizeof r);
    r.prompt = prompt_.data(), r.prompt_tokens = prompt_.size();
    r.temperature = 0, r.max_tokens = 8, r.logprobs = 1;
    r.user = &seen;
    r.on_token = [](void* user, const moesaic_token* t) {
      static_cast<Seen*>(user)->tokens.push_back(t->token);
      static_cast<Seen*>(user)->logprobs.push_back(t->logprob);
    };
    r.on_text = [](void* user, const moesaic_text* p) { static_cast<Seen*>(user)->text += p->text; };
    r.on_end = [](void* user, const moesaic_outcome* o) {
      static_cast<Seen*>(user)->finish = o->finish;
      static_cast<Seen*>(user)->error = o->error;
    };
    return r;
  }
  void run(const moesaic_request& r) {
    ASSERT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_OK) << moesaic_last_error();
    ASSERT_EQ(moesaic_run(model_), MOESAIC_OK) << moesaic_last_error();
  }
  Seen changed(std::function<void(float* logits, size_t count)> change) {
    Seen seen{.change = std::move(change)};
    moesaic_request r = request(seen);
    r.change_logits = [](void* user, int32_t position, float* logits, size_t count) {
      static_cast<Seen*>(user)->positions.push_back(position);
      static_cast<Seen*>(user)->change(logits, count);
    };
    run(r);
    return seen;
  }

  moesaic_model* model_ = nullptr;
  std::vector<int32_t> prompt_;
};

TEST_F(CRequestTest, FormsOfAnswers) {
  const char* const choices[] = {"left", "right"};
  Seen regex, grammar, choice;
  moesaic_request r = request(regex);
  r.regex = "[0-9]{3}";
  run(r);
  EXPECT_EQ(regex.text.size(), 3u) << regex.text;
  EXPECT_EQ(regex.text.find_first_not_of("0123456789"), std::string::npos) << regex.text;
  r = request(grammar);
  r.grammar = "root ::= \"yes\" | \"no\"";
  run(r);
  EXPECT_TRUE(grammar.text == "yes" || grammar.text == "no") << grammar.text;
  r = request(choice);
  r.choices = choices, r.choice_count = 2;
  run(r);
  EXPECT_TRUE(choice.text == "left" || choice.text == "right") << choice.text;
  EXPECT_EQ(choice.finish, MOESAIC_FINISH_STOP);
  r.regex = "a";
  EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT);
  r = request(regex);
  r.grammar = "root ::= nowhere";
  EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT);
}

TEST_F(CRequestTest, BadWordsAreNotSaid) {
  Seen free, bound;
  run(request(free));
  const moesaic_tokens words[] = {{free.tokens.data(), 1}, {free.tokens.data() + 1, 2}};
  moesaic_request r = request(bound);
  r.bad_words = words, r.bad_word_count = 2;
  run(r);
  ASSERT_FALSE(bound.tokens.empty());
  EXPECT_NE(bound.tokens[0], free.tokens[0]);
}

TEST_F(CRequestTest, LogitsMayBeChanged) {
  Seen free;
  run(request(free));
  const Seen same = changed([](float*, size_t) {});
  EXPECT_EQ(same.tokens, free.tokens);
  EXPECT_EQ(same.logprobs, free.logprobs);
  for (size_t i = 0; i < same.positions.size(); ++i)
    EXPECT_EQ(same.positions[i], static_cast<int32_t>(prompt_.size() + i) - 1);
  const int32_t first = free.tokens[0];
  const Seen other = changed([&](float* logits, size_t) { logits[first] = kNever; });
  EXPECT_NE(other.tokens[0], first);
  // Log-probabilities are the model's: another token than the likeliest has less.
  EXPECT_LT(other.logprobs[0], free.logprobs[0]);
  const Seen forced = changed([](float* logits, size_t count) {
    for (size_t i = 0; i < count; ++i) logits[i] = i == 400 ? 0 : kNever;
  });
  EXPECT_EQ(forced.tokens, std::vector<int32_t>(8, 400));
}

TEST_F(CRequestTest, LogitsThatAreNoneEndTheRequest) {
  for (const float wrong : {NAN, -kNever}) {
    const Seen seen = changed([&](float* logits, size_t count) { logits[count - 1] = wrong; });
    EXPECT_EQ(seen.finish, MOESAIC_FINISH_ERROR);
    EXPECT_NE(seen.error.find("change_logits"), std::string::npos) << seen.error;
    EXPECT_TRUE(seen.tokens.empty());
  }
  const Seen none = changed([](float* logits, size_t count) { std::fill_n(logits, count, kNever); });
  EXPECT_EQ(none.finish, MOESAIC_FINISH_ERROR);
  Seen after;
  run(request(after));
  EXPECT_EQ(after.tokens.size(), 8u);
}

TEST_F(CRequestTest, ValuesOutOfRangeAreRefused) {
  Seen seen;
  const int32_t outside = moesaic_vocab(model_);
  const moesaic_bias bias{outside, 1}, nan_bias{1, NAN};
  const moesaic_tokens empty_word{nullptr, 0}, wrong_word{&outside, 1};
  const char* const null_string[] = {nullptr};
  const double nan = NAN;
  using Change = std::function<void(moesaic_request&)>;
  const std::pair<const char*, Change> cases[] = {
      {"chat", [](auto& r) { r.chat = 2; }},
      {"logprobs", [](auto& r) { r.logprobs = -1; }},
      {"must_call", [](auto& r) { r.must_call = 7; }},
      {"reuse_prefix", [](auto& r) { r.reuse_prefix = -1; }},
      {"prompt_logits", [](auto& r) { r.prompt_logits = 3; }},
      {"no_speculation", [](auto& r) { r.no_speculation = 2; }},
      {"temperature", [&](auto& r) { r.temperature = nan; }},
      {"temperature", [](auto& r) { r.temperature = -1; }},
      {"top_p", [](auto& r) { r.top_p = 0; }},
      {"min_p", [](auto& r) { r.min_p = 1.5; }},
      {"top_k", [](auto& r) { r.top_k = -1; }},
      {"max_tokens", [](auto& r) { r.max_tokens = -1; }},
      {"min_tokens", [](auto& r) { r.min_tokens = -1; }},
      {"repetition_penalty", [](auto& r) { r.repetition_penalty = 0; }},
      {"presence_penalty", [](auto& r) { r.presence_penalty = 3; }},
      {"frequency_penalty", [&](auto& r) { r.frequency_penalty = nan; }},
      {"top_logprobs", [](auto& r) { r.top_logprobs = -1; }},
      {"top_logprobs", [](auto& r) { r.top_logprobs = 101; }},
      {"prompt_logprobs", [](auto& r) { r.prompt_logprobs = -2; }},
      {"reasoning_budget", [](auto& r) { r.reasoning_budget = -2; }},
      {"bias", [&](auto& r) { r.biases = &bias, r.bias_count = 1; }},
      {"bias", [&](auto& r) { r.biases = &nan_bias, r.bias_count = 1; }},
      {"stop_tokens", [&](auto& r) { r.stop_tokens = &outside, r.stop_token_count = 1; }},
      {"bad word", [&](auto& r) { r.bad_words = &empty_word, r.bad_word_count = 1; }},
      {"bad word", [&](auto& r) { r.bad_words = &wrong_word, r.bad_word_count = 1; }},
      {"choices", [&](auto& r) { r.choices = null_string, r.choice_count = 1; }},
      {"prompt", [](auto& r) { r.prompt_tokens = SIZE_MAX; }},
      {"bad_words", [&](auto& r) { r.bad_words = &wrong_word, r.bad_word_count = SIZE_MAX; }},
  };
  for (const auto& [name, change] : cases) {
    moesaic_request r = request(seen);
    change(r);
    EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT) << name;
    EXPECT_NE(std::string(moesaic_last_error()).find(name), std::string::npos)
        << name << ": " << moesaic_last_error();
  }
  EXPECT_EQ(moesaic_idle(model_), 1);
  EXPECT_EQ(seen.finish, MOESAIC_FINISH_NONE);
  moesaic_options options;
  moesaic_options_init(&options, sizeof options);
  options.prefix_cache = 2;
  moesaic_model* none = nullptr;
  EXPECT_EQ(moesaic_open("tiny", &options, &none), MOESAIC_INVALID_ARGUMENT);
}

TEST_F(CRequestTest, StopTokensOfTheModel) {
  int32_t* tokens = nullptr;
  size_t count = 0;
  ASSERT_EQ(moesaic_stop_tokens(model_, &tokens, &count), MOESAIC_OK);
  EXPECT_GT(count, 0u);
  moesaic_free(tokens);
  EXPECT_EQ(moesaic_stop_tokens(model_, nullptr, &count), MOESAIC_INVALID_ARGUMENT);
}

// The threads of a model are not in a forked process: a call must fail there instead of waiting for them.
TEST_F(CRequestTest, AForkedProcessIsRefused) {
  ASSERT_EQ(moesaic_start(model_), MOESAIC_OK);
  Seen seen;
  const moesaic_request r = request(seen);
  const auto child = [&] {
    alarm(20);
    int32_t* tokens = nullptr;
    size_t count = 0;
    size_t cached = 0;
    const moesaic_status refused[] = {moesaic_submit(model_, &r, nullptr),
                                      moesaic_run(model_),
                                      moesaic_step(model_),
                                      moesaic_wait(model_),
                                      moesaic_stop(model_),
                                      moesaic_start(model_),
                                      moesaic_tokenize(model_, "a", 1, 0, &tokens, &count),
                                      moesaic_kv_cached(model_, prompt_.data(), prompt_.size(), &cached)};
    for (const moesaic_status status : refused) {
      if (status != MOESAIC_INVALID_ARGUMENT) _exit(1);
    }
    moesaic_info info = {};
    info.size = sizeof info;
    if (moesaic_model_info(model_, &info) != MOESAIC_INVALID_ARGUMENT) _exit(3);
    moesaic_cancel(model_, 1);  // its mutex may have been held when the process was forked
    if (moesaic_idle(model_) != 0 || moesaic_vocab(model_) != 0) _exit(4);
    moesaic_close(model_);
    _exit(std::string(moesaic_last_error()).find("fork") == std::string::npos ? 2 : 0);
  };
  EXPECT_EXIT(child(), testing::ExitedWithCode(0), "");
  ASSERT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_OK);
  ASSERT_EQ(moesaic_wait(model_), MOESAIC_OK);
  EXPECT_EQ(seen.tokens.size(), 8u);
}

}  // namespace

// Features for embedders beside plain generation, over models/tiny: threads, logits, saved KV caches, log,
// progress.
#include "api/embedding_test.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <thread>

namespace moesaic {
namespace {

INSTANTIATE_TEST_SUITE_P(Devices, Embedding, testing::Values("cpu", "reference"),
                         [](const auto& i) { return std::string(i.param); });

double log_softmax(const std::vector<float>& logits, int32_t token) {
  double sum = 0, top = -1e30;
  for (const float l : logits) top = std::max(top, static_cast<double>(l));
  for (const float l : logits) sum += std::exp(l - top);
  return logits[token] - top - std::log(sum);
}

// ---- logits ----

TEST_P(Embedding, PromptLogprobsAreThoseOfTheRawLogits) {
  Model model = open({.max_batch = 2});
  const std::vector<int32_t> prompt = tokens_of(slow() ? 70 : 150);
  run(model, greedy(prompt, 1));  // in the prefix cache now: it must be computed all the same
  Record r;
  Callbacks callbacks = r.callbacks();
  callbacks.on_prompt_token = [&](const SampledToken& t) {
    EXPECT_TRUE(r.tokens.empty());
    r.prompt.push_back(t);
  };
  callbacks.on_logits = [&](int position, std::span<const float> logits) {
    EXPECT_TRUE(r.logits.emplace(position, std::vector<float>(logits.begin(), logits.end())).second);
  };
  GenerationRequest request = greedy(prompt, 5);
  request.sampling.prompt_logprobs = 2;
  request.sampling.top_logprobs = 0;
  request.prompt_logits = true;
  ASSERT_TRUE(model.submit(request, callbacks).ok());
  const Record other = run(model, greedy(tokens_of(90, 2), 8));  // beside it
  EXPECT_EQ(other.tokens.size(), 8u);
  ASSERT_EQ(r.ends, 1);
  ASSERT_EQ(r.prompt.size(), prompt.size());
  ASSERT_EQ(r.logits.size(), prompt.size() + 4);
  EXPECT_TRUE(r.prompt[0].logprobs.top.empty());
  for (size_t i = 1; i < prompt.size(); ++i) {
    const std::vector<float>& row = r.logits.at(static_cast<int>(i) - 1);
    ASSERT_EQ(row.size(), static_cast<size_t>(model.vocab()));
    EXPECT_EQ(r.prompt[i].token, prompt[i]);
    EXPECT_NEAR(r.prompt[i].logprobs.logprob, log_softmax(row, prompt[i]), 1e-4);
    ASSERT_EQ(r.prompt[i].logprobs.top.size(), 2u);
    EXPECT_EQ(r.prompt[i].logprobs.top[0].first, std::max_element(row.begin(), row.end()) - row.begin());
  }
  for (size_t i = 0; i < r.sampled.size(); ++i)
    EXPECT_NEAR(r.sampled[i].logprobs.logprob,
                log_softmax(r.logits.at(static_cast<int>(prompt.size() + i) - 1), r.tokens[i]), 1e-4);
}

TEST_P(Embedding, LogitsOfGeneratedTokensAlone) {
  Model model = open();
  Record r;
  Callbacks callbacks = r.callbacks();
  callbacks.on_logits = [&](int position, std::span<const float> l) {
    EXPECT_EQ(r.tokens.size(), static_cast<size_t>(position - 19));
    // These are the model's logits, not those that are sampled from: the bias is not in them.
    EXPECT_EQ(l.size(), static_cast<size_t>(model.vocab()));
    EXPECT_GT(l[1], -60);
    r.logits[position] = {};
  };
  ASSERT_TRUE(model.submit(greedy(tokens_of(20), 6), callbacks).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(r.logits.size(), 6u);
  EXPECT_EQ(r.logits.begin()->first, 19);
}

TEST_P(Embedding, APromptOfOneToken) {
  Model model = open();
  Record r;
  Callbacks callbacks = r.callbacks();
  callbacks.on_prompt_token = [&](const SampledToken& t) { r.prompt.push_back(t); };
  GenerationRequest request = greedy({7}, 1);
  request.sampling.prompt_logprobs = 0;
  ASSERT_TRUE(model.submit(request, callbacks).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(r.prompt.size(), 1u);
  EXPECT_EQ(r.tokens.size(), 1u);
}

TEST_P(Embedding, LogprobsThatNobodyTakesAreRefused) {
  Model model = open();
  Record r;
  GenerationRequest request = greedy({7}, 1);
  request.sampling.prompt_logprobs = 0;
  EXPECT_FALSE(model.submit(request, r.callbacks()).ok());
  request.sampling.prompt_logprobs = -1;
  request.prompt_logits = true;
  EXPECT_FALSE(model.submit(request, r.callbacks()).ok());
  Callbacks callbacks = r.callbacks();
  callbacks.on_prompt_token = [](const SampledToken&) {};
  request.prompt_logits = false;
  request.sampling.prompt_logprobs = 101;
  EXPECT_FALSE(model.submit(request, callbacks).ok());
  EXPECT_TRUE(model.idle());
}

// ---- threads ----

TEST_P(Embedding, ThreadsSubmitAndCancelWhileTheModelsOwnWorks) {
  const int kThreads = 4, kEach = slow() ? 3 : 6, length = slow() ? 10 : 40;
  Model model = open({.max_batch = 3});
  const std::vector<int32_t> alone = run(model, greedy(tokens_of(length), 6)).tokens;
  ASSERT_TRUE(model.start().ok());
  EXPECT_FALSE(model.step().ok());
  std::atomic<int> ends = 0, cancelled = 0, wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        std::stop_source cancel;
        const bool cancels = i % 3 == 2;
        auto got = std::make_shared<std::vector<int32_t>>();
        const Status status =
            model.submit(greedy(tokens_of(length), cancels ? 400 : 6),
                         {.on_token = [got](const SampledToken& token) { got->push_back(token.token); },
                          .on_text = {},
                          .on_end =
                              [&, got, cancels](const Outcome& o) {
                                cancelled += o.finish == FinishReason::kCancelled;
                                wrong += !cancels && *got != alone;
                                ++ends;
                              }},
                         cancel.get_token());
        wrong += !status.ok();
        if (cancels) cancel.request_stop();
        if (i == t) wrong += !model.cached_prefix(tokens_of(length)).ok();
        wrong += model.stats().waiting > kThreads * kEach;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  const Status done = model.wait();
  EXPECT_TRUE(done.ok()) << done.message();
  EXPECT_EQ(ends, kThreads * kEach);
  EXPECT_EQ(cancelled, kThreads * kEach / 3);
  EXPECT_EQ(wrong, 0);
  EXPECT_TRUE(model.stop().ok());
  EXPECT_FALSE(model.wait().ok());
  EXPECT_EQ(run(model, greedy(tokens_of(length), 6)).tokens, alone);
}

TEST_P(Embedding, StoppedRequestsGoOnLater) {
  const int count = slow() ? 12 : 60;
  Model model = open();
  Record record;
  std::atomic<int> seen = 0;
  Callbacks callbacks = record.callbacks();
  callbacks.on_token = [&](const SampledToken&) { ++seen; };
  ASSERT_TRUE(model.start().ok());
  ASSERT_TRUE(model.start().ok());
  ASSERT_TRUE(model.submit(greedy(tokens_of(8), count), callbacks).ok());
  while (seen == 0) std::this_thread::yield();
  ASSERT_TRUE(model.stop().ok());
  ASSERT_TRUE(model.stop().ok());
  EXPECT_TRUE(model.run().ok());
  EXPECT_EQ(seen, count);
  EXPECT_EQ(record.ends, 1);
}

TEST_P(Embedding, CallbacksCannotWaitForThemselves) {
  Model model = open();
  std::vector<Status> refused;
  Record record;
  Callbacks callbacks = record.callbacks();
  callbacks.on_token = [&](const SampledToken&) {
    refused = {model.step(), model.start(), model.stop(), model.wait(), model.save_kv({}).status()};
    EXPECT_FALSE(model.idle());
    EXPECT_GT(model.info().context, 0);
  };
  ASSERT_TRUE(model.submit(greedy(tokens_of(8), 2), callbacks).ok());
  ASSERT_TRUE(model.run().ok());
  EXPECT_EQ(refused.size(), 5u);
  for (const Status& s : refused) EXPECT_FALSE(s.ok());
}

TEST_P(Embedding, DestroyedWhileItWorks) {
  Record record;
  Model model = open();  // its thread ends before the record does
  ASSERT_TRUE(model.start().ok());
  ASSERT_TRUE(model.submit(greedy(tokens_of(8), 300), record.callbacks()).ok());
}

TEST_P(Embedding, ACallbackThatThrowsEndsTheRequests) {
  Model model = open();
  Record record;
  Callbacks callbacks = record.callbacks();
  callbacks.on_token = [&](const SampledToken&) { throw std::bad_alloc(); };
  ASSERT_TRUE(model.start().ok());
  ASSERT_TRUE(model.submit(greedy(tokens_of(8), 300), callbacks).ok());
  EXPECT_EQ(model.wait().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(record.end.finish, FinishReason::kError);
  Record next;
  ASSERT_TRUE(model.submit(greedy(tokens_of(8), 3), next.callbacks()).ok());
  EXPECT_TRUE(model.wait().ok());
  EXPECT_EQ(next.tokens.size(), 3u);
}

// An on_end that throws concerns its own request: the others that end in this step hear of it, and nobody
// waits for ever.
TEST_P(Embedding, AnOnEndThatThrowsKeepsNobodyWaiting) {
  for (const bool own_thread : {false, true}) {
    Model model = open({.max_batch = 3});
    std::vector<Record> records(3);
    for (Record& record : records) {
      Callbacks callbacks = record.callbacks();
      callbacks.on_end = [&](const Outcome&) {
        ++record.ends;
        throw std::runtime_error("mine");
      };
      ASSERT_TRUE(model.submit(greedy(tokens_of(8), 2), callbacks).ok());
    }
    if (own_thread) {
      ASSERT_TRUE(model.start().ok());
      EXPECT_EQ(model.wait().message(), "mine");
    } else {
      EXPECT_THROW((void)model.run(), std::runtime_error);
    }
    for (const Record& record : records) EXPECT_EQ(record.ends, 1);
    EXPECT_TRUE(model.idle());
    if (own_thread) continue;
    EXPECT_EQ(run(model, greedy(tokens_of(8), 3)).tokens.size(), 3u);
  }
}

// The text of the answer's end is a channel's name that waited.
TEST_P(Embedding, AnOnTextThatThrowsAtTheEndKeepsNobodyWaiting) {
  Model model = open();
  const std::vector<int32_t> answer = model.tokenize("<|channel|>final<|message|>final", true).value();
  GenerationRequest request = greedy(tokens_of(8), static_cast<int>(answer.size()));
  request.chat = true;
  Record record;
  Callbacks callbacks = record.callbacks();
  callbacks.change_logits = [&](int, std::span<float> logits) {
    logits[static_cast<size_t>(answer[record.tokens.size()])] = 1e6f;
  };
  callbacks.on_text = [](const TextPiece&) { throw std::runtime_error("mine"); };
  ASSERT_TRUE(model.submit(request, callbacks).ok());
  EXPECT_THROW((void)model.run(), std::runtime_error);
  EXPECT_EQ(record.tokens, answer);
  EXPECT_EQ(record.ends, 1);
  EXPECT_EQ(record.end.finish, FinishReason::kError);
  EXPECT_EQ(record.end.error.code(), StatusCode::kInternal);
  EXPECT_TRUE(model.idle());
}

// ---- opening ----

TEST_P(Embedding, ProgressInBytesAndCancel) {
  std::vector<std::pair<int64_t, int64_t>> seen;
  open({.progress = [&](int64_t done, int64_t total) {
    seen.emplace_back(done, total);
    return true;
  }});
  ASSERT_GE(seen.size(), 2u);
  EXPECT_EQ(seen.front().first, 0);
  EXPECT_EQ(seen.back().first, seen.back().second);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  for (size_t stop = 0; stop < seen.size(); ++stop) {
    size_t calls = 0;
    OpenOptions o{.device = GetParam(), .threads = 1, .context = 64};
    o.progress = [&](int64_t, int64_t) { return calls++ != stop; };
    EXPECT_EQ(Model::open(kTiny, o).status().code(), StatusCode::kCancelled);
    EXPECT_EQ(calls, stop + 1);
  }
}

TEST_P(Embedding, WhatWasChosenIsTold) {
  auto model = Model::open(kTiny, {.device = GetParam(), .threads = 1});
  ASSERT_TRUE(model.ok()) << model.status().message();
  const ModelInfo info = model->info();
  EXPECT_EQ(info.context, 131072);
  EXPECT_EQ(model->context(), 131072);
  EXPECT_EQ(info.context_reason, "the model's maximum");
  EXPECT_EQ(info.device.backend, GetParam());
  EXPECT_EQ(info.device_reason, "asked for");
  EXPECT_GT(info.memory.kv_cache, 0);
  EXPECT_GT(info.device.memory_total, info.device.memory_free);
  EXPECT_EQ(open({.context = 300}).info().context_reason, "asked for");
  const auto small = Model::open(kTiny, {.device = GetParam(), .threads = 1, .kv_tokens = 640});
  EXPECT_EQ(small.value().info().context, 640);
  EXPECT_EQ(small.value().info().context_reason, "the KV cache's size");
}

TEST(EmbeddingLog, TakesWhatIsSaid) {
  std::vector<std::pair<LogLevel, std::string>> lines;
  set_log_callback([&](LogLevel level, std::string_view line) { lines.emplace_back(level, line); });
  ASSERT_TRUE(Model::open(kTiny, {.device = "cpu", .threads = 1, .context = 64}).ok());
  set_log_callback({});
  const size_t said = lines.size();
  EXPECT_GE(said, 4u);
  for (const auto& [level, line] : lines) EXPECT_EQ(line.find('\n'), std::string::npos);
  ASSERT_TRUE(Model::open(kTiny, {.device = "cpu", .threads = 1, .context = 64}).ok());
  EXPECT_EQ(lines.size(), said);
}

// A callback may do anything: throw, set another one, and call what has something to say itself.
TEST(EmbeddingLog, ACallbackMayDoAnything) {
  int first = 0, second = 0;
  set_log_callback([&](LogLevel, std::string_view) {
    ++first;
    EXPECT_TRUE(Model::open(kTiny, {.device = "cpu", .threads = 1, .context = 64}).ok());
    set_log_callback([&](LogLevel, std::string_view) {
      ++second;
      throw std::runtime_error("mine");
    });
  });
  EXPECT_TRUE(Model::open(kTiny, {.device = "cpu", .threads = 1, .context = 64}).ok());
  set_log_callback({});
  EXPECT_EQ(first, 1);
  EXPECT_GE(second, 3);
}

TEST(EmbeddingLog, IsReplacedWhileOthersSpeak) {
  std::atomic<bool> done = false;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 3; ++i)
        EXPECT_TRUE(Model::open(kTiny, {.device = "cpu", .threads = 1, .context = 64}).ok());
    });
  }
  std::thread replacer([&] {
    while (!done) {
      auto lines = std::make_unique<int>(0);  // gone before the next one is set
      set_log_callback([&](LogLevel, std::string_view) { ++*lines; });
      std::this_thread::yield();
      set_log_callback({});
    }
  });
  for (std::thread& t : threads) t.join();
  done = true;
  replacer.join();
}

TEST(EmbeddingDevices, AreListed) {
  const std::vector<DeviceInfo> devices = list_devices();
  ASSERT_GE(devices.size(), 3u);
  EXPECT_EQ(devices.front().backend, "cuda");
  for (const DeviceInfo& d : devices) {
    EXPECT_EQ(d.usable, d.reason.empty()) << d.name;
    if (d.backend != "cpu") continue;
    EXPECT_TRUE(d.usable);
    EXPECT_NE(d.architecture, "");
    EXPECT_GT(d.memory_total, d.memory_free);
  }
  EXPECT_EQ(version_number(), MOESAIC_VERSION_NUMBER);
}

// ---- errors ----

TEST(EmbeddingErrors, NameTheApisWords) {
  const std::vector<std::pair<OpenOptions, const char*>> wrong = {
      {{.device = "abacus"}, "abacus"},
      {{.device = "cuda:77"}, "cuda"},
      {{.threads = -1}, "options.threads"},
      {{.threads = 1'000'000'000}, "options.threads"},
      {{.cpu_pin = "yes"}, "options.cpu_pin"},
      {{.device = "cpu", .tp = -2}, "options.tp"},
      {{.device = "cpu", .tp = 9}, "options.tp"},
      {{.device = "cpu", .tp = 3}, "options.tp"},
      {{.context = -1}, "options.context"},
      {{.context = 1 << 20}, "options.context"},
      {{.max_batch = -1}, "options.max_batch"},
      {{.max_rows = -1}, "options.max_rows"},
      {{.max_batch = 9, .max_rows = 8}, "options.max_rows"},
      {{.context = 100, .kv_tokens = 99}, "options.kv_tokens"},
      {{.kv_tokens = -1}, "options.kv_tokens"},
      {{.kv_tokens = 1}, "options.kv_tokens"},
      {{.kv_tokens = int64_t{1} << 60}, "options.kv_tokens"},
      {{.context = 131072, .max_batch = 4096, .kv_tokens = int64_t{1} << 32, .max_rows = 4096}, ""},
      {{.dense = "q9"}, "options.dense"},
      {{.kv_dtype = "fp9"}, "options.kv_dtype"},
      {{.kv_dtype = "fp8"}, "options.kv_dtype"},
      {{.tokenizer = "/nowhere.json"}, "/nowhere.json"},
      {{.tokenizer = "x"}, "options.tokenizer"},
      {{.moe_path = "w4"}, "options.moe_path"},
      {{.cpu_prefetch = "t9"}, "options.cpu_prefetch"},
      {{.experts = "host:x"}, "options.experts"},
      {{.gpu_memory = -1}, "options.gpu_memory"},
      {{.device = "cpu", .gpu_memory = 8}, "options.gpu_memory"},
  };
  for (const auto& [given, words] : wrong) {
    OpenOptions o = given;
    if (o.device == "auto") o.device = "cpu";
    const auto model = Model::open(kTiny, o);
    ASSERT_FALSE(model.ok()) << words;
    const std::string& message = model.status().message();
    EXPECT_EQ(message.find("--"), std::string::npos) << message;
    EXPECT_NE(message.find(words), std::string::npos) << message;
  }
  auto model = Model::open(kTiny, {.device = "cpu", .threads = 1, .context = 64});
  ASSERT_TRUE(model.ok());
  Record r;
  const std::string long_prompt = model->submit(greedy(tokens_of(64), 1), r.callbacks()).message();
  EXPECT_NE(long_prompt.find("options.context"), std::string::npos) << long_prompt;
  EXPECT_EQ(long_prompt.find("--"), std::string::npos) << long_prompt;
}

}  // namespace
}  // namespace moesaic

// The C interface over models/tiny.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "moesaic/moesaic.h"
#include "moesaic/moesaic_ops.h"

namespace {

constexpr const char* kTiny = MOESAIC_SOURCE_DIR "/models/tiny";

struct Record {
  std::string analysis, answer, error;
  int tokens = 0, ends = 0;
  moesaic_outcome end{};
};

void on_token(void* user, const moesaic_token* t) {
  EXPECT_GE(t->token, 0);
  EXPECT_LE(t->logprob, 0);
  ++static_cast<Record*>(user)->tokens;
}

void on_text(void* user, const moesaic_text* p) {
  EXPECT_EQ(std::strlen(p->text), p->bytes);
  auto& r = *static_cast<Record*>(user);
  (std::string(p->channel) == "final" ? r.answer : r.analysis) += p->text;
}

void on_end(void* user, const moesaic_outcome* o) {
  auto& r = *static_cast<Record*>(user);
  r.end = *o;
  r.error = o->error;
  ++r.ends;
}

class CApiTest : public testing::Test {
 protected:
  void SetUp() override {
    moesaic_options options;
    moesaic_options_init(&options, sizeof options);
    options.threads = 1;
    options.context = 512;
    options.max_batch = 4;
    ASSERT_EQ(moesaic_open(kTiny, &options, &model_), MOESAIC_OK) << moesaic_last_error();
  }
  void TearDown() override { moesaic_close(model_); }

  std::vector<int32_t> prompt(const std::string& question) {
    int32_t* tokens = nullptr;
    size_t count = 0;
    const std::string json = R"([{"role": "user", "content": ")" + question + "\"}]";
    EXPECT_EQ(moesaic_chat_prompt(model_, json.c_str(), &tokens, &count), MOESAIC_OK) << moesaic_last_error();
    std::vector<int32_t> copy(tokens, tokens + count);
    moesaic_free(tokens);
    return copy;
  }

  static moesaic_request request(const std::vector<int32_t>& prompt, Record& record) {
    moesaic_request r;
    moesaic_request_init(&r, sizeof r);
    r.prompt = prompt.data();
    r.prompt_tokens = prompt.size();
    r.chat = 1;
    r.temperature = 0;
    r.max_tokens = 300;
    r.user = &record;
    r.on_token = on_token;
    r.on_text = on_text;
    r.on_end = on_end;
    return r;
  }

  moesaic_model* model_ = nullptr;
};

TEST_F(CApiTest, Answers) {
  Record record;
  const auto tokens = prompt("What is 17 + 25?");
  moesaic_request r = request(tokens, record);
  r.logprobs = 1;
  uint64_t id = 0;
  ASSERT_EQ(moesaic_submit(model_, &r, &id), MOESAIC_OK) << moesaic_last_error();
  EXPECT_NE(id, 0u);
  EXPECT_EQ(moesaic_idle(model_), 0);
  ASSERT_EQ(moesaic_run(model_), MOESAIC_OK);
  EXPECT_EQ(moesaic_idle(model_), 1);
  EXPECT_EQ(record.answer, "17 + 25 = 42");
  EXPECT_NE(record.analysis, "");
  EXPECT_EQ(record.ends, 1);
  EXPECT_EQ(record.end.finish, MOESAIC_FINISH_STOP);
  EXPECT_EQ(record.end.generated_tokens, record.tokens);
  EXPECT_EQ(record.error, "");
}

TEST_F(CApiTest, FollowsASchemaAndStopStrings) {
  Record record, cut;
  const auto tokens = prompt("What is 17 + 25?");
  moesaic_request r = request(tokens, record);
  r.json_schema = R"({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
                      "additionalProperties": false})";
  ASSERT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_OK) << moesaic_last_error();
  const char* const stops[] = {" = "};
  moesaic_request s = request(tokens, cut);
  s.stop_strings = stops;
  s.stop_string_count = 1;
  ASSERT_EQ(moesaic_submit(model_, &s, nullptr), MOESAIC_OK) << moesaic_last_error();
  ASSERT_EQ(moesaic_run(model_), MOESAIC_OK);
  EXPECT_EQ(record.answer.find('{'), 0u) << record.answer;
  EXPECT_NE(record.answer.find("\"sum\""), std::string::npos) << record.answer;
  EXPECT_EQ(cut.end.finish, MOESAIC_FINISH_STOP);
  EXPECT_EQ(cut.answer, "17 + 25");
}

TEST_F(CApiTest, CancelsFromAnotherThread) {
  Record record;
  const auto tokens = prompt("What is 17 + 25?");
  moesaic_request r = request(tokens, record);
  const moesaic_bias never[] = {{tokens.front(), 0.5f}};
  r.biases = never;
  r.bias_count = 1;
  uint64_t id = 0;
  ASSERT_EQ(moesaic_submit(model_, &r, &id), MOESAIC_OK) << moesaic_last_error();
  for (int i = 0; i < 3; ++i) ASSERT_EQ(moesaic_step(model_), MOESAIC_OK);
  std::thread([&] { moesaic_cancel(model_, id); }).join();
  ASSERT_EQ(moesaic_run(model_), MOESAIC_OK);
  EXPECT_EQ(record.ends, 1);
  EXPECT_EQ(record.end.finish, MOESAIC_FINISH_CANCELLED);
  moesaic_cancel(model_, id);  // has ended: nothing
  moesaic_cancel(model_, 12345);
  moesaic_engine_stats stats{.size = sizeof stats};
  moesaic_stats(model_, &stats);
  EXPECT_EQ(stats.pages_used, 0);
  EXPECT_GT(stats.pages_total, 0);
  EXPECT_EQ(stats.prompt_tokens, tokens.size());
}

TEST_F(CApiTest, TextToTokensAndBack) {
  int32_t* tokens = nullptr;
  char* text = nullptr;
  size_t count = 0, bytes = 0;
  ASSERT_EQ(moesaic_tokenize(model_, "What is <|end|>", 15, 1, &tokens, &count), MOESAIC_OK);
  ASSERT_EQ(moesaic_detokenize(model_, tokens, count, &text, &bytes), MOESAIC_OK);
  EXPECT_EQ(std::string(text, bytes), "What is <|end|>");
  EXPECT_EQ(text[bytes], 0);
  moesaic_free(tokens);
  moesaic_free(text);
  for (const int32_t wrong : {-1, moesaic_vocab(model_)})
    EXPECT_EQ(moesaic_detokenize(model_, &wrong, 1, &text, &bytes), MOESAIC_INVALID_ARGUMENT);
  EXPECT_EQ(moesaic_context(model_), 512);
}

TEST_F(CApiTest, ErrorsAreOneLineOfTheThread) {
  Record record;
  moesaic_request r = request({}, record);
  EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT);
  const std::string here = moesaic_last_error();
  EXPECT_NE(here.find("empty"), std::string::npos) << here;
  std::thread([] { EXPECT_STREQ(moesaic_last_error(), ""); }).join();
  const auto tokens = prompt("Hi");
  r = request(tokens, record);
  r.size = 0;
  EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT);
  r = request(tokens, record);
  r.json_schema = "{";
  EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT);
  EXPECT_EQ(record.ends, 0);
  int32_t* out = nullptr;
  size_t count = 0;
  EXPECT_NE(moesaic_chat_prompt(model_, "{", &out, &count), MOESAIC_OK);
  EXPECT_EQ(out, nullptr);
  moesaic_model* none = nullptr;
  EXPECT_EQ(moesaic_open("/nowhere", nullptr, &none), MOESAIC_NOT_FOUND);
  EXPECT_NE(std::string(moesaic_last_error()).find("/nowhere"), std::string::npos);
  EXPECT_EQ(none, nullptr);
  moesaic_options options;
  moesaic_options_init(&options, sizeof options);
  options.threads = -1;
  EXPECT_EQ(moesaic_open(kTiny, &options, &none), MOESAIC_INVALID_ARGUMENT);
  options.threads = 1;
  options.device = "c\npu\xFF\x1B[2J";
  EXPECT_EQ(moesaic_open(kTiny, &options, &none), MOESAIC_INVALID_ARGUMENT);
  EXPECT_NE(std::string(moesaic_last_error()).find("'c?pu\uFFFD?[2J'"), std::string::npos)
      << moesaic_last_error();
  EXPECT_NE(moesaic_chat_prompt(model_, R"([{"role": "a\u0000b\n", "content": ""}])", &out, &count),
            MOESAIC_OK);
  EXPECT_NE(std::string(moesaic_last_error()).find("'a?b?'"), std::string::npos) << moesaic_last_error();
}

// Every pointer of every function but those that may be NULL by their description.
TEST_F(CApiTest, NullsAreErrors) {
  const auto refused = [](moesaic_status status) {
    EXPECT_EQ(status, MOESAIC_INVALID_ARGUMENT);
    EXPECT_NE(std::string(moesaic_last_error()).find("NULL"), std::string::npos) << moesaic_last_error();
  };
  const auto noted = [&](auto result) {
    EXPECT_EQ(result, 0);
    refused(MOESAIC_INVALID_ARGUMENT);
  };
  const std::vector<int32_t> tokens = prompt("Hi");
  Record record;
  const moesaic_request request = CApiTest::request(tokens, record);
  moesaic_model* none = nullptr;
  int32_t* out = nullptr;
  char* text = nullptr;
  void* data = nullptr;
  size_t count = 0;
  moesaic_device* devices = nullptr;
  moesaic_info info{.size = sizeof info};
  moesaic_free(nullptr);
  moesaic_close(nullptr);
  moesaic_set_log(nullptr, nullptr);
  moesaic_options_init(nullptr, sizeof(moesaic_options));
  moesaic_request_init(nullptr, sizeof(moesaic_request));
  moesaic_cancel(nullptr, 1);
  moesaic_stats(nullptr, nullptr);
  moesaic_stats(model_, nullptr);
  noted(moesaic_context(nullptr));
  noted(moesaic_vocab(nullptr));
  noted(moesaic_idle(nullptr));
  refused(moesaic_devices(nullptr, &count));
  refused(moesaic_devices(&devices, nullptr));
  refused(moesaic_open(nullptr, nullptr, &none));
  refused(moesaic_open(kTiny, nullptr, nullptr));
  refused(moesaic_model_info(nullptr, &info));
  refused(moesaic_model_info(model_, nullptr));
  refused(moesaic_tokenize(nullptr, "a", 1, 0, &out, &count));
  refused(moesaic_tokenize(model_, nullptr, 1, 0, &out, &count));
  refused(moesaic_tokenize(model_, "a", 1, 0, nullptr, &count));
  refused(moesaic_tokenize(model_, "a", 1, 0, &out, nullptr));
  refused(moesaic_detokenize(nullptr, tokens.data(), 1, &text, &count));
  refused(moesaic_detokenize(model_, nullptr, 1, &text, &count));
  refused(moesaic_detokenize(model_, tokens.data(), 1, nullptr, &count));
  refused(moesaic_detokenize(model_, tokens.data(), 1, &text, nullptr));
  refused(moesaic_chat_prompt(nullptr, "[]", &out, &count));
  refused(moesaic_chat_prompt(model_, nullptr, &out, &count));
  refused(moesaic_chat_prompt(model_, "[]", nullptr, &count));
  refused(moesaic_chat_prompt(model_, "[]", &out, nullptr));
  refused(moesaic_submit(nullptr, &request, nullptr));
  refused(moesaic_submit(model_, nullptr, nullptr));
  for (const auto run : {moesaic_step, moesaic_run, moesaic_start, moesaic_stop, moesaic_wait})
    refused(run(nullptr));
  refused(moesaic_kv_cached(nullptr, tokens.data(), 1, &count));
  refused(moesaic_kv_cached(model_, nullptr, 1, &count));
  refused(moesaic_kv_cached(model_, tokens.data(), 1, nullptr));
  refused(moesaic_kv_save(nullptr, tokens.data(), 1, &data, &count));
  refused(moesaic_kv_save(model_, nullptr, 1, &data, &count));
  refused(moesaic_kv_save(model_, tokens.data(), 1, nullptr, &count));
  refused(moesaic_kv_save(model_, tokens.data(), 1, &data, nullptr));
  refused(moesaic_kv_load(nullptr, "x", 1, &out, &count));
  refused(moesaic_kv_load(model_, nullptr, 1, &out, &count));
  refused(moesaic_kv_load(model_, "x", 1, nullptr, &count));
  refused(moesaic_kv_load(model_, "x", 1, &out, nullptr));
  refused(moesaic_kv_save_file(nullptr, "x", tokens.data(), 1));
  refused(moesaic_kv_save_file(model_, nullptr, tokens.data(), 1));
  refused(moesaic_kv_save_file(model_, "x", nullptr, 1));
  refused(moesaic_kv_load_file(nullptr, "x", &out, &count));
  refused(moesaic_kv_load_file(model_, nullptr, &out, &count));
  refused(moesaic_kv_load_file(model_, "x", nullptr, &count));
  refused(moesaic_kv_load_file(model_, "x", &out, nullptr));
  EXPECT_EQ(moesaic_idle(model_), 1);
}

TEST_F(CApiTest, NullsInStructsAreErrors) {
  Record record;
  const std::vector<int32_t> tokens = prompt("Hi");
  const auto refused = [&](const auto& change) {
    moesaic_request r = request(tokens, record);
    change(r);
    EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT);
    EXPECT_NE(std::string(moesaic_last_error()).find("NULL"), std::string::npos) << moesaic_last_error();
  };
  const char* const no_string[] = {nullptr};
  const moesaic_function no_name{};
  refused([](moesaic_request& r) { r.prompt = nullptr; });
  refused([](moesaic_request& r) { r.bias_count = 1; });
  refused([](moesaic_request& r) { r.stop_string_count = 1; });
  refused([](moesaic_request& r) { r.stop_token_count = 1; });
  refused([](moesaic_request& r) { r.function_count = 1; });
  refused([&](moesaic_request& r) { r.stop_strings = no_string, r.stop_string_count = 1; });
  refused([&](moesaic_request& r) { r.functions = &no_name, r.function_count = 1; });
  using Field = const char* moesaic_options::*;
  for (const Field field :
       {&moesaic_options::device, &moesaic_options::dense, &moesaic_options::kv_dtype,
        &moesaic_options::tokenizer, &moesaic_options::moe_path, &moesaic_options::cpu_pin,
        &moesaic_options::cpu_prefetch, &moesaic_options::experts}) {
    moesaic_options options;
    moesaic_options_init(&options, sizeof options);
    options.*field = nullptr;
    moesaic_model* none = nullptr;
    EXPECT_EQ(moesaic_open(kTiny, &options, &none), MOESAIC_INVALID_ARGUMENT);
    EXPECT_NE(std::string(moesaic_last_error()).find("options."), std::string::npos) << moesaic_last_error();
    EXPECT_EQ(none, nullptr);
  }
  // No callback at all is right.
  moesaic_request r = request(tokens, record);
  r.on_token = nullptr, r.on_text = nullptr, r.on_end = nullptr;
  EXPECT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_OK);
  EXPECT_EQ(moesaic_run(model_), MOESAIC_OK);
}

TEST(CApiOptions, FormatsAndTokenizer) {
  moesaic_options options;
  moesaic_options_init(&options, sizeof options);
  options.device = "reference";
  options.context = 512;
  options.dense = "q8_0";
  options.kv_dtype = "bf16";
  options.moe_path = "w4a8";
  options.batch_invariant = 1;
  options.no_tuning = 1;
  const std::string own = std::string(kTiny) + "/tokenizer.json";
  options.tokenizer = own.c_str();
  moesaic_model* model = nullptr;
  ASSERT_EQ(moesaic_open(kTiny, &options, &model), MOESAIC_OK) << moesaic_last_error();
  moesaic_close(model);
  const auto refused = [&](const char* moesaic_options::*field, const char* value) {
    moesaic_options wrong = options;
    wrong.*field = value;
    EXPECT_NE(moesaic_open(kTiny, &wrong, &model), MOESAIC_OK);
    EXPECT_NE(std::string(moesaic_last_error()).find(value), std::string::npos) << moesaic_last_error();
  };
  refused(&moesaic_options::dense, "q9");
  refused(&moesaic_options::kv_dtype, "fp9");
  refused(&moesaic_options::moe_path, "w4a4");
  refused(&moesaic_options::experts, "host:x");
  refused(&moesaic_options::tokenizer, "/nowhere/tokenizer.json");
}

TEST(CApiOptions, RanksAreChosen) {
  moesaic_options options;
  moesaic_options_init(&options, sizeof options);
  EXPECT_EQ(options.tp, 1);
  options.device = "cpu";
  options.context = 512;
  options.tp = MOESAIC_TP_AUTO;
  moesaic_model* model = nullptr;
  ASSERT_EQ(moesaic_open(kTiny, &options, &model), MOESAIC_OK) << moesaic_last_error();
  moesaic_info info{.size = sizeof info};
  ASSERT_EQ(moesaic_model_info(model, &info), MOESAIC_OK);
  EXPECT_STREQ(
      info.ranks,
      "one rank: those of a host share its memory (options.device cpu options.tp numa has one for each "
      "NUMA node)");
  moesaic_close(model);
  options.tp = MOESAIC_TP_NUMA - 1;
  EXPECT_EQ(moesaic_open(kTiny, &options, &model), MOESAIC_INVALID_ARGUMENT);
  EXPECT_STREQ(moesaic_last_error(),
               "options.tp: -2 ranks; expected 1 to 8, 0 (auto) or -1 (one for each NUMA node)");
}

TEST(CApiOptions, Adapters) {
  moesaic_options options;
  moesaic_options_init(&options, sizeof options);
  EXPECT_EQ(options.lora_count, 0U);
  moesaic_model* model = nullptr;
  const char* const adapters[] = {"/no/such/adapter", nullptr};
  options.lora = adapters, options.lora_count = 1;
  EXPECT_EQ(moesaic_open(kTiny, &options, &model), MOESAIC_NOT_FOUND);
  EXPECT_NE(std::string(moesaic_last_error()).find("/no/such/adapter"), std::string::npos);
  options.lora_count = 2;
  EXPECT_EQ(moesaic_open(kTiny, &options, &model), MOESAIC_INVALID_ARGUMENT);
  EXPECT_STREQ(moesaic_last_error(), "options.lora: string 1 of 2 is NULL");
  EXPECT_EQ(model, nullptr);
}

TEST(CApiStructs, OlderCallersHaveShorterStructs) {
  moesaic_options options;
  std::memset(&options, 0x55, sizeof options);
  // Up to the first version's device, and all of that version's.
  for (const size_t size : {offsetof(moesaic_options, threads), offsetof(moesaic_options, dense)}) {
    moesaic_options_init(&options, size);
    EXPECT_EQ(options.size, size);
    EXPECT_EQ(std::memcmp(&options.dense, "\x55\x55", 2), 0);
    moesaic_model* model = nullptr;
    EXPECT_EQ(moesaic_open(kTiny, &options, &model), MOESAIC_OK) << moesaic_last_error();
    moesaic_close(model);
  }
  EXPECT_STRNE(moesaic_version(), "");
}

// A size that ends within a field would take half of a pointer.
TEST_F(CApiTest, SizesThatNoVersionHas) {
  Record record;
  const std::vector<int32_t> tokens = prompt("Hi");
  for (size_t size = 0; size <= sizeof(moesaic_request) + 16; ++size) {
    moesaic_request r = request(tokens, record);
    r.size = size;
    const bool older = size >= sizeof(size_t) && size <= sizeof r && size % alignof(moesaic_request) == 0;
    r.prompt_tokens = 0;  // or else it would be accepted
    ASSERT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_INVALID_ARGUMENT);
    const bool names_size = std::string(moesaic_last_error()).starts_with("a struct of ");
    EXPECT_EQ(names_size, !older) << size << " " << moesaic_last_error();
  }
  moesaic_options options;
  moesaic_options_init(&options, sizeof options);
  moesaic_model* none = nullptr;
  for (const size_t size : {sizeof options - 4, sizeof options + 8, size_t{0}, SIZE_MAX}) {
    options.size = size;
    EXPECT_EQ(moesaic_open(kTiny, &options, &none), MOESAIC_INVALID_ARGUMENT) << size;
  }
  EXPECT_EQ(none, nullptr);
}

// Structs that are filled in take what there is room for, and say how much that was.
TEST_F(CApiTest, FilledStructsOfOtherSizes) {
  struct {
    moesaic_engine_stats stats;
    char more[64];
  } longer;
  std::memset(&longer, 0x55, sizeof longer);
  longer.stats.size = sizeof longer;
  moesaic_stats(model_, &longer.stats);
  EXPECT_EQ(longer.stats.size, sizeof longer.stats);
  EXPECT_EQ(longer.more[0], 0x55);
  moesaic_info info;
  std::memset(&info, 0x55, sizeof info);
  info.size = offsetof(moesaic_info, device);
  ASSERT_EQ(moesaic_model_info(model_, &info), MOESAIC_OK);
  EXPECT_EQ(info.size, offsetof(moesaic_info, device));
  EXPECT_EQ(std::memcmp(&info.device, "\x55\x55", 2), 0);
  info.size = sizeof info;
  ASSERT_EQ(moesaic_model_info(model_, &info), MOESAIC_OK);
  EXPECT_EQ(info.memory_used, info.weights_bytes + info.kv_cache_bytes + info.workspace_bytes);
  EXPECT_GT(info.stored_bytes, 11'000'000);
  info.size = 0;
  EXPECT_EQ(moesaic_model_info(model_, &info), MOESAIC_INVALID_ARGUMENT);
  (void)moesaic_open(kTiny, nullptr, nullptr);
  longer.stats.size = 0;
  moesaic_stats(model_, &longer.stats);
  EXPECT_TRUE(std::string(moesaic_last_error()).starts_with("a struct of 0 bytes")) << moesaic_last_error();
}

// Both ways to step: the model must outlive its callback.
TEST_F(CApiTest, ACallbackCannotCloseItsModel) {
  struct User {
    moesaic_model* model;
    int ends = 0;
    std::string error;
  } user{model_};
  const auto close = [](void* u, const moesaic_outcome*) {
    auto& seen = *static_cast<User*>(u);
    moesaic_close(seen.model);
    seen.error = moesaic_last_error();
    ++seen.ends;
  };
  Record record;
  const std::vector<int32_t> tokens = prompt("Hi");
  moesaic_request r = request(tokens, record);
  r.max_tokens = 2, r.on_token = nullptr, r.on_text = nullptr, r.on_end = close, r.user = &user;
  ASSERT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_OK);
  ASSERT_EQ(moesaic_run(model_), MOESAIC_OK);
  ASSERT_EQ(moesaic_start(model_), MOESAIC_OK);
  ASSERT_EQ(moesaic_submit(model_, &r, nullptr), MOESAIC_OK);
  ASSERT_EQ(moesaic_wait(model_), MOESAIC_OK);
  EXPECT_EQ(user.ends, 2);
  EXPECT_NE(user.error.find("close"), std::string::npos) << user.error;
}

// The experts alone, as far as it goes without a GPU.
TEST(COperator, RefusesInOneLine) {
  const auto last = [] { return std::string(moesaic_last_error()); };
  moesaic_moe_options options;
  moesaic_moe_options_init(&options, sizeof options);
  EXPECT_EQ(options.top_k, 4);
  EXPECT_EQ(options.hidden, 2880);
  EXPECT_EQ(options.limit, 7.0f);
  moesaic_moe_matrix w13, w2;
  moesaic_moe_matrix_init(&w13, sizeof w13), moesaic_moe_matrix_init(&w2, sizeof w2);
  EXPECT_EQ(w13.bias_type, MOESAIC_BF16);
  moesaic_moe* moe = nullptr;
  EXPECT_EQ(moesaic_moe_prepare(&options, nullptr, &w2, nullptr, &moe), MOESAIC_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "w13 is NULL");
  w2.bias_type = 9;
  EXPECT_EQ(moesaic_moe_prepare(&options, &w13, &w2, nullptr, &moe), MOESAIC_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "bias_type: type 9");
  w2.bias_type = MOESAIC_F32;
  // No GPU or no CUDA in this build; on a GPU no experts.
  EXPECT_NE(moesaic_moe_prepare(&options, &w13, &w2, nullptr, &moe), MOESAIC_OK);
  EXPECT_TRUE(last().starts_with("moe: ")) << last();
  EXPECT_EQ(moe, nullptr);
  moesaic_moe_call call;
  moesaic_moe_call_init(&call, sizeof call);
  EXPECT_EQ(moesaic_moe_run(nullptr, &call, nullptr), MOESAIC_INVALID_ARGUMENT);
  EXPECT_EQ(last(), "moe is NULL");
  EXPECT_EQ(moesaic_moe_workspace_bytes(nullptr, 1), 0u);
  EXPECT_EQ(moesaic_moe_plan(nullptr, 1), nullptr);
  moesaic_moe_close(nullptr);
}

}  // namespace

// Every field that is known, by its table: what is read has its effect, what is ignored has none, what is
// refused is refused but for the values that ask for nothing; and docs/user/server.md says the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/field_rows.h"
#include "openai/known_fields.h"
#include "openai/responses_request.h"
#include "openai/sse.h"
#include "openai/token_requests.h"

namespace moesaic::openai {
namespace {

const Model& model() {
  static const Model instance =
      Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "cpu", .threads = 1, .context = 512}).value();
  return instance;
}

Service service(bool strict = false) {
  return {.model = model(), .name = "tiny", .today = "2026-01-01", .strict_fields = strict};
}

TextPiece piece(const char* channel, const char* text) {
  return {.channel = channel, .recipient = {}, .text = text, .begins = true};
}

// The parts of an answer to some tokens, without its ids and what it repeats of the request.
Json answer_of(const PreparedRequest& prepared) {
  std::string sse;  // a stream's: its ends
  for (int i = 0; i < static_cast<int>(prepared.requests.size()); ++i) {
    const SampledToken token{.token = 5, .logprobs = {.logprob = -1, .top = {{5, -1}}}};
    prepared.answer->add({.choice = i, .token = token, .pieces = {piece("analysis", "a")}}, nullptr);
    prepared.answer->add({.choice = i, .token = token, .pieces = {piece("final", "b")}}, nullptr);
    prepared.answer->add({.choice = i, .end = Outcome{.finish = FinishReason::kStop}},
                         prepared.stream ? &sse : nullptr);
  }
  Json whole = Json::parse(prepared.answer->whole());
  Json parts = Json::array({whole.value("choices", Json()), whole.value("output", Json())});
  for (Json& item : parts[1]) item.erase("id");
  prepared.answer->finish(sse);
  int usages = 0;
  for (size_t at = 0; (at = sse.find("\"usage\"", at)) != std::string::npos; ++at) ++usages;
  parts.push_back(usages);
  return parts;
}

Json sampling_json(const SamplingParams& s) {
  Json bias = Json::object();
  for (const auto& [token, value] : s.logit_bias) bias[std::to_string(token)] = value;
  return {s.temperature,
          s.top_p,
          s.top_k,
          s.min_p,
          s.repetition_penalty,
          s.presence_penalty,
          bias,
          s.max_tokens,
          s.stop_tokens,
          s.frequency_penalty,
          s.stop_strings,
          s.min_tokens,
          s.include_stop,
          s.top_logprobs,
          s.skip_special,
          s.allowed_tokens,
          s.bad_words,
          s.reasoning_budget,
          s.penalty_window};
}

// All that a request makes of itself, but for a seed that it did not name.
std::string outcome_of(const PreparedRequestOrError& made, bool seeded) {
  if (const auto* error = std::get_if<ApiError>(&made))
    return fmt::format("error {} {}", error->http, error->param);
  const PreparedRequest& prepared = std::get<PreparedRequest>(made);
  Json json = {prepared.stream, prepared.progress, answer_of(prepared)};
  for (const GenerationRequest& r : prepared.requests)
    json.push_back({r.prompt, sampling_json(r.sampling), r.chat, r.grammar.empty(), r.reuse_prefix,
                    r.cache_salt, !r.ends_after, seeded ? r.sampling.seed : 0});
  return dump(json);
}

// ---- where a table's fields stand in a request ----

struct FieldPath {
  std::string part;  // title
  PreparedRequestOrError (*prepare)(std::string_view, const Service&);
  Json body;           // without the field
  std::string object;  // JSON pointer to what holds it
  const FieldTable* table;
};

Json chat_body(const Json& more = Json::object()) {
  Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  body.update(more);
  return body;
}

const FieldTable* members_of(const FieldTable& table, const char* field) {
  return table.find(field)->members;
}

std::vector<FieldPath> places() {
  const FieldTable &chat = chat_fields(), &completion = completion_fields(), &responses = responses_fields();
  const Json prompt = {{"prompt", "hi <|end|>"}}, input = {{"input", "hi"}};
  const Json tool = {{"type", "function"}, {"name", "f"}};
  const FieldTable* format = members_of(chat, "response_format");
  const FieldTable* tools = members_of(chat, "tools");
  const FieldTable* text = members_of(responses, "text");
  return {
      {"chat completions", prepare_chat, chat_body(), "", &chat},
      {"chat completions and responses", prepare_chat, chat_body(), "", &chat},
      {"chat completions and responses", prepare_response, input, "", &responses},
      {"completions", prepare_completion, prompt, "", &completion},
      {"responses", prepare_response, input, "", &responses},
      {"all three that generate", prepare_chat, chat_body(), "", &chat},
      {"all three that generate", prepare_completion, prompt, "", &completion},
      {"all three that generate", prepare_response, input, "", &responses},
      {"`stream_options`", prepare_chat, chat_body({{"stream", true}, {"stream_options", Json::object()}}),
       "/stream_options", members_of(chat, "stream_options")},
      {"`response_format`", prepare_chat, chat_body({{"response_format", {{"type", "json_object"}}}}),
       "/response_format", format},
      {"`response_format.json_schema`", prepare_chat,
       chat_body(
           {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", Json::object()}}}}}}),
       "/response_format/json_schema", members_of(*format, "json_schema")},
      {"`text`", prepare_response, {{"input", "hi"}, {"text", Json::object()}}, "/text", text},
      {"`text.format`",
       prepare_response,
       {{"input", "hi"}, {"text", {{"format", {{"type", "text"}}}}}},
       "/text/format",
       members_of(*text, "format")},
      {"`reasoning`", prepare_chat, chat_body({{"reasoning", Json::object()}}), "/reasoning",
       members_of(chat, "reasoning")},
      {"`reasoning`",
       prepare_response,
       {{"input", "hi"}, {"reasoning", Json::object()}},
       "/reasoning",
       members_of(responses, "reasoning")},
      {"`prompt_cache_options`",
       prepare_response,
       {{"input", "hi"}, {"prompt_cache_options", Json::object()}},
       "/prompt_cache_options",
       members_of(responses, "prompt_cache_options")},
      {"`chat_template_kwargs`", prepare_chat, chat_body({{"chat_template_kwargs", Json::object()}}),
       "/chat_template_kwargs", members_of(chat, "chat_template_kwargs")},
      {"`thinking`", prepare_chat, chat_body({{"thinking", Json::object()}}), "/thinking",
       members_of(chat, "thinking")},
      {"`structured_outputs`",
       prepare_completion,
       {{"prompt", "hi"}, {"structured_outputs", Json::object()}},
       "/structured_outputs",
       members_of(completion, "structured_outputs")},
      {"`tools`", prepare_chat, chat_body({{"tools", {{{"name", "f"}}}}}), "/tools/0", tools},
      {"functions of `tools`", prepare_chat,
       chat_body({{"tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}}}), "/tools/0/function",
       members_of(*tools, "function")},
      {"functions of `tools`", prepare_response, {{"input", "hi"}, {"tools", {tool}}}, "/tools/0", tools},
  };
}

std::string run(const FieldPath& place, const Json& context, const char* field, const Json& value,
                bool strict = false) {
  Json body = place.body;
  body.merge_patch(context);
  if (field != nullptr) body[Json::json_pointer(place.object)][field] = value;
  return outcome_of(place.prepare(dump(body), service(strict)), body.contains("seed"));
}

// ---- a value that matters, for each field that is read ----

struct ReadCase {
  const char* field;
  const char* value;
  const char* context = "{}";  // merged into the request, with and without the field
  const char* part = "";       // tells apart fields with one name in several parts
};

constexpr const char* kSchema = R"({"type": "object", "properties": {"a": {"type": "null"}}})";
constexpr const char* kTools = R"({"tools": [{"type": "function", "function": {"name": "f"}}]})";

constexpr ReadCase kReadCases[] = {
    {"messages", R"([{"role": "user", "content": "ho"}])"},
    {"prompt", R"("ho")"},
    {"input", R"("ho")"},
    {"instructions", R"("Be brief.")"},
    {"stream", "true"},
    {"stream_options", R"({"include_usage": true})", R"({"stream": true})"},
    {"include_usage", "true"},
    {"continuous_usage_stats", "true", R"({"stream": true, "stream_options": {"include_usage": true}})"},
    {"temperature", "0.5"},
    {"top_p", "0.5"},
    {"top_k", "7"},
    {"min_p", "0.1"},
    {"presence_penalty", "1"},
    {"frequency_penalty", "1"},
    {"repeat_last_n", "64"},
    {"repetition_penalty", "1.5"},
    {"repeat_penalty", "1.5"},
    {"logit_bias", R"({"7": 3})"},
    {"seed", "5", R"({"seed": 6})"},
    {"stop", R"("x")"},
    {"stop_token_ids", "[7]"},
    {"include_stop_str_in_output", "true"},
    {"ignore_eos", "true"},
    {"min_tokens", "3"},
    {"n_predict", "7"},
    {"allowed_token_ids", "[7, 8]"},
    {"bad_words", R"(["no"])"},
    {"cache_prompt", "false"},
    {"cache_salt", R"("a")"},
    {"thinking_token_budget", "3"},
    {"thinking_budget_tokens", "3"},
    {"thinking_budget", "3"},
    {"reasoning_budget", "3"},
    {"reasoning_budget_tokens", "3"},
    {"budget_tokens", "3"},
    {"guided_json", kSchema},
    {"json_schema", kSchema, "{}", "all three that generate"},
    {"json_schema", R"({"schema": {"type": "null"}})",
     R"({"response_format": {"type": "json_schema", "schema": {}}})", "`response_format`"},
    {"guided_regex", R"("[a-z]+")"},
    {"guided_choice", R"(["yes", "no"])"},
    {"guided_grammar", R"("root ::= \"a\"")"},
    {"grammar", R"("root ::= \"a\"")"},
    {"regex", R"("[a-z]+")"},
    {"ebnf", R"("root ::= \"a\"")"},
    {"choice", R"(["yes", "no"])"},
    {"structured_outputs", R"({"json_object": true})"},
    {"json", kSchema},
    {"json_object", "true"},
    {"tools", R"([{"name": "f"}])"},
    {"tool_choice", R"("required")", kTools},
    {"reasoning", R"({"effort": "high"})"},
    {"reasoning_effort", R"("high")"},
    {"effort", R"("low")"},
    {"exclude", "true"},
    {"enabled", "false"},
    {"enable_thinking", "false"},
    {"thinking", "false", "{}", "`chat_template_kwargs`"},
    {"thinking", R"({"type": "disabled"})"},
    {"type", R"("disabled")", "{}", "`thinking`"},
    {"return_token_ids", "true"},
    {"return_progress", "true"},
    {"continue_final_message", "true",
     R"({"messages": [{"role": "user", "content": "ho"}, {"role": "assistant", "content": "hey"}]})"},
    {"model_identity", R"("You are Tiny.")"},
    {"include_reasoning", "false"},
    {"parallel_tool_calls", "false"},
    {"chat_template_kwargs", R"({"reasoning_effort": "high"})"},
    {"max_new_tokens", "7"},
    {"max_tokens", "7"},
    {"max_completion_tokens", "7"},
    {"max_output_tokens", "7"},
    {"n", "2"},
    {"logprobs", "true", "{}", "chat completions"},
    {"logprobs", "3", "{}", "completions"},
    {"top_logprobs", "3", R"({"logprobs": true})"},
    {"response_format", R"({"type": "json_object"})"},
    {"echo", "true"},
    {"skip_special_tokens", "false"},
    {"parse_special", "false"},
    {"text", R"({"format": {"type": "json_object"}})"},
    {"format", R"({"type": "json_object"})"},
    {"include", R"(["reasoning.encrypted_content"])"},
    {"type", R"("text")", "{}", "`response_format`"},
    {"type", R"("json_object")", "{}", "`text.format`"},
    {"type", R"("web_search")", "{}", "`tools`"},  // left out
    {"schema", kSchema},
    {"value", kSchema},
    {"verbosity", R"("low")"},
    {"name", R"("told")"},
    {"description", R"("Told.")"},
    {"parameters", R"({"type": "object", "properties": {"told": {"type": "string"}}})"},
    {"strict", "true", "{}", "functions of `tools`"},
    {"function", R"({"name": "g"})"},
};

// Fields whose only values are one that says nothing and those that are refused: {field, refused, context}.
constexpr ReadCase kOneValueCases[] = {
    {"model", R"("another")"},
    {"best_of", "2"},
    {"previous_response_id", R"("resp_1")"},
    {"store", "17"},
    {"add_generation_prompt", "false"},
};

template <size_t N>
const ReadCase* case_of(const ReadCase (&cases)[N], const KnownField& field, const std::string& part) {
  const auto at = std::find_if(std::begin(cases), std::end(cases), [&](const ReadCase& c) {
    return field.name == c.field && (*c.part == 0 || part == c.part);
  });
  return at == std::end(cases) ? nullptr : &*at;
}

void check_read(const FieldPath& place, const KnownField& field) {
  if (const ReadCase* c = case_of(kOneValueCases, field, place.part)) {
    EXPECT_TRUE(run(place, Json::parse(c->context), c->field, Json::parse(c->value)).starts_with("error 40"));
    return;
  }
  const ReadCase* c = case_of(kReadCases, field, place.part);
  ASSERT_NE(c, nullptr) << "no case for it";
  Json context = Json::parse(c->context);
  if (place.prepare != prepare_chat && field.name == "top_logprobs") context = Json::object();
  const std::string without = run(place, context, nullptr, {});
  const std::string with = run(place, context, c->field, Json::parse(c->value));
  EXPECT_FALSE(with.starts_with("error")) << with;
  EXPECT_FALSE(without.starts_with("error")) << without;
  EXPECT_NE(with, without) << "has no effect";
}

void check_ignored(const FieldPath& place, const KnownField& field) {
  const std::string without = run(place, Json::object(), nullptr, {});
  for (const Json& value : {Json(true), Json(17), Json("x"), Json::array({"x"}), Json{{"x", 1}}}) {
    if (field.members != nullptr && value.is_object()) continue;
    EXPECT_EQ(run(place, Json::object(), std::string(field.name).c_str(), value, true), without)
        << dump(value);
  }
}

void check_refused(const FieldPath& place, const KnownField& field) {
  const Json holder = Json::parse(field.accepted.empty() ? "[]" : field.accepted);
  const std::string without = run(place, Json::object(), nullptr, {});
  for (const Json& value : holder)
    EXPECT_EQ(run(place, Json::object(), field.name.data(), value), without) << dump(value);
  EXPECT_EQ(run(place, Json::object(), field.name.data(), nullptr), without);
  const std::string root =
      place.object.empty() ? std::string(field.name) : place.object.substr(1, place.object.find('/', 1) - 1);
  for (const Json& value : {Json(true), Json(17), Json("x"), Json::array({"x"}), Json{{"x", 1}}}) {
    if (std::find(holder.begin(), holder.end(), value) != holder.end()) continue;
    EXPECT_EQ(run(place, Json::object(), field.name.data(), value), "error 400 " + root) << dump(value);
  }
}

TEST(KnownFields, EachHasTheTreatmentOfItsTable) {
  std::set<std::string> seen;
  for (const FieldPath& place : places()) {
    for (const FieldPart& part : place.table->parts) {
      if (part.title != place.part) continue;
      seen.insert(place.part);
      for (const KnownField& field : part.fields) {
        if (place.table->find(field.name) != &field) continue;  // an earlier part says otherwise
        SCOPED_TRACE(fmt::format("{} {}", place.part, field.name));
        if (field.treatment == Treatment::kRead) check_read(place, field);
        if (field.treatment == Treatment::kIgnored) check_ignored(place, field);
        if (field.treatment == Treatment::kRefused) check_refused(place, field);
      }
    }
  }
  for (const FieldTable* table : all_field_tables()) {
    for (const FieldPart& part : table->parts) {
      if (part.title.empty() || part.title.find("tokenize") != std::string_view::npos) continue;
      EXPECT_TRUE(seen.contains(std::string(part.title))) << part.title;
    }
  }
}

// ---- docs/user/server.md ----

TEST(KnownFields, TheDocumentationListsThem) {
  std::set<std::string> rows;
  for (const FieldTable* table : all_field_tables()) add_documented_rows(*table, rows);
  std::ifstream docs(MOESAIC_SOURCE_DIR "/docs/user/server.md");
  for (std::string line; std::getline(docs, line);) {
    for (const char* kind : {" | read | ", " | ignored | ", " | refused | "}) {
      if (line.find(kind) == std::string::npos) continue;
      EXPECT_EQ(rows.erase(line), 1u) << "docs/user/server.md has a row that is none of the tables':\n"
                                      << line;
    }
  }
  for (const std::string& line : rows) ADD_FAILURE() << "docs/user/server.md lacks\n" << line;
}

// ---- unknown fields ----

UnknownFields unknown_of(const Json& body) {
  PreparedRequestOrError made = prepare_chat(dump(body), service());
  return std::get<PreparedRequest>(std::move(made)).unknown;
}

TEST(UnknownFields, AreNamedWithTheNearestKnownOne) {
  const auto header = [](const char* more) { return unknown_of(chat_body(Json::parse(more))).header(); };
  EXPECT_EQ(header(R"({"temprature": 1})"), "temprature;nearest=\"temperature\"");
  EXPECT_EQ(header(R"({"maxTokens": 1})"), "maxTokens;nearest=\"max_tokens\"");
  EXPECT_EQ(header(R"({"tpo_p": 1})"), "tpo_p;nearest=\"top_p\"");
  EXPECT_EQ(header(R"({"otp_p": 1})"), "otp_p;nearest=\"top_p\"");
  EXPECT_EQ(header(R"({"my_private_thing": 1})"), "my_private_thing");
  EXPECT_EQ(header(R"({"temprature": null})"), "");
  EXPECT_EQ(header(R"({"stream_options": {"include_usge": true}})"),
            "stream_options.include_usge;nearest=\"include_usage\"");
  EXPECT_EQ(header(R"({"tools": [{"name": "f", "parmeters": {}}]})"),
            "tools.parmeters;nearest=\"parameters\"");
}

TEST(UnknownFields, OfACompletionAreNamedToo) {
  const PreparedRequestOrError made = prepare_completion(R"({"prompt": "a", "promt": "b"})", service());
  EXPECT_EQ(std::get<PreparedRequest>(made).unknown.header(), "promt;nearest=\"prompt\"");
}

TEST(UnknownFields, CannotHarmAHeader) {
  const std::string nasty = unknown_of(chat_body({{"a\r\nSet-Cookie: x", 1}, {"\xC3\xA9\"", 1}})).header();
  EXPECT_EQ(nasty, "a??Set-Cookie??x, ???");
  Json many = chat_body();
  for (int i = 0; i < 900; ++i) many[std::string(5000, 'q') + std::to_string(i)] = 1;
  EXPECT_LT(unknown_of(many).header().size(), 200u);  // one name, cut
  many = chat_body();
  for (int i = 0; i < 900; ++i) many["zq" + std::to_string(i)] = 1;
  EXPECT_TRUE(unknown_of(many).header().ends_with(", and-892-more"));
}

TEST(UnknownFields, AreRefusedWhereTheServerIsStrict) {
  const PreparedRequestOrError made = prepare_chat(dump(chat_body({{"temprature", 1}})), service(true));
  const auto& error = std::get<ApiError>(made);
  EXPECT_EQ(error.param, "temprature");
  EXPECT_NE(error.message.find("'temperature'"), std::string::npos) << error.message;
  EXPECT_TRUE(std::holds_alternative<ApiError>(tokenize(R"({"promt": "a", "content": "b"})", service(true))));
  EXPECT_TRUE(std::holds_alternative<TokenAnswer>(tokenize(R"({"content": "b"})", service(true))));
}

}  // namespace
}  // namespace moesaic::openai

// The field tables of all APIs against each other: what one of them has and would change an answer is known
// to each other one, which honours or refuses it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "anthropic/field_table.h"
#include "anthropic/messages_request.h"
#include "ollama/chat_request.h"
#include "ollama/field_table.h"
#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/known_fields.h"
#include "openai/responses_request.h"
#include "openai/sse.h"

namespace moesaic::server {
namespace {

using openai::FieldTable;
using openai::Json;
using openai::KnownField;
using enum openai::Treatment;

const openai::Service& service() {
  static const Model model =
      Model::open(MOESAIC_SOURCE_DIR "/models/tiny", {.device = "cpu", .threads = 1, .context = 512}).value();
  static const openai::Service instance{.model = model, .name = "tiny", .today = "2026-01-01"};
  return instance;
}

struct Api {
  const char* name;
  const FieldTable& table;
  openai::PreparedRequestOrError (*prepare)(std::string_view, const openai::Service&);
  Json body;
  const char* inside = "";  // JSON pointer to what holds the fields
};

std::vector<Api> apis() {
  const Json messages = {{"model", "tiny"}, {"messages", {{{"role", "user"}, {"content", "hi"}}}}};
  Json limited = messages, options = messages;
  limited["max_tokens"] = 9;
  options["options"] = Json::object();
  return {{"chat completions", openai::chat_fields(), openai::prepare_chat, messages},
          {"completions", openai::completion_fields(), openai::prepare_completion, {{"prompt", "hi"}}},
          {"responses", openai::responses_fields(), openai::prepare_response, {{"input", "hi"}}},
          {"/v1/messages", anthropic::message_fields(), anthropic::prepare_messages, limited},
          {"/api/chat", ollama::chat_fields(), ollama::prepare_chat, messages},
          {"/api/generate",
           ollama::generate_fields(),
           ollama::prepare_generate,
           {{"model", "tiny"}, {"prompt", "hi"}}},
          {"options", ollama::option_fields(), ollama::prepare_chat, options, "/options"}};
}

// Those that are an API's own.
std::vector<KnownField> own_fields(const Api& api) {
  std::vector<KnownField> own;
  for (const openai::FieldPart& part : api.table.parts) {
    if (!part.title.empty()) own.insert(own.end(), part.fields.begin(), part.fields.end());
  }
  return own;
}

bool is_ignored_somewhere(const std::vector<Api>& all, std::string_view name) {
  return std::ranges::any_of(all, [&](const Api& api) {
    return std::ranges::any_of(own_fields(api), [&](const KnownField& field) {
      return field.name == name && field.treatment == kIgnored;
    });
  });
}

// "" for an answer, else the error's field.
std::string refused(const Api& api, std::string_view field, const Json& value) {
  Json body = api.body;
  body[Json::json_pointer(api.inside)][std::string(field)] = value;
  const auto made = api.prepare(openai::dump(body), service());
  const auto* error = std::get_if<openai::ApiError>(&made);
  if (error == nullptr) return "";
  EXPECT_EQ(error->http, 400);
  return error->param;
}

void check_refused(const Api& api, const KnownField& field) {
  const Json accepted = field.accepted.empty() ? Json::array() : Json::parse(field.accepted);
  const std::string param = *api.inside == 0 ? std::string(field.name) : api.inside + 1;
  for (const Json& value : {Json(17), Json("x"), Json::array({"x"}), Json{{"x", 1}}})
    EXPECT_EQ(refused(api, field.name, value), param) << openai::dump(value);
  EXPECT_EQ(refused(api, field.name, nullptr), "");
  for (const Json& value : accepted) EXPECT_EQ(refused(api, field.name, value), "") << openai::dump(value);
}

TEST(FieldTables, WhatOneApiHasIsHonouredOrRefusedByTheOthers) {
  const std::vector<Api> all = apis();
  int checked = 0;
  for (const Api& to : all) {
    for (const Api& from : all) {
      for (const KnownField& field : own_fields(from)) {
        if (field.treatment == kIgnored || is_ignored_somewhere(all, field.name)) continue;
        SCOPED_TRACE(fmt::format("{} of {} at {}", field.name, from.name, to.name));
        const KnownField* known = to.table.find(field.name);
        ASSERT_NE(known, nullptr);
        if (known->treatment == kRefused) check_refused(to, *known);
        ++checked;
      }
    }
  }
  EXPECT_GT(checked, 1000);
}

TEST(FieldTables, FormsAreNotDropped) {
  const std::vector<Api> all = apis();
  const auto of = [&](const char* name) {
    return *std::ranges::find_if(all, [&](const Api& api) { return api.name == std::string(name); });
  };
  for (const char* field : {"guided_regex", "guided_json", "guided_grammar", "grammar", "regex", "ebnf"}) {
    EXPECT_EQ(refused(of("/v1/messages"), field, "a"), field);
    EXPECT_EQ(refused(of("/api/chat"), field, "a"), field);
    EXPECT_EQ(refused(of("options"), field, "a"), "options");
  }
  EXPECT_EQ(refused(of("/v1/messages"), "response_format", {{"type", "json_object"}}), "response_format");
  EXPECT_EQ(refused(of("/api/generate"), "response_format", {{"type", "json_object"}}), "response_format");
  EXPECT_EQ(refused(of("chat completions"), "output_config", {{"effort", "low"}}), "output_config");
  EXPECT_EQ(refused(of("completions"), "think", "high"), "think");
}

}  // namespace
}  // namespace moesaic::server

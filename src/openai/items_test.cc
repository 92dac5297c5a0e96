// Every form of input item that the openai package knows: accepted, or refused with the reason that is
// documented. tests/client/ecosystem/openai_items.py writes the table.
#include <fstream>
#include <sstream>

#include "openai/request_cases.h"
#include "openai/sse.h"

namespace moesaic::openai {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream file(std::string(MOESAIC_SOURCE_DIR "/") + path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

Json table() { return Json::parse(text_of("tests/client/responses_items.json")); }

Json message(const char* role, const char* text) { return {{"role", role}, {"content", text}}; }

PreparedRequestOrError ask(const Json& items) {
  return prepare_response(dump({{"input", items}}), service());
}

TEST(ResponsesItems, EachFormIsAcceptedOrRefusedForAReason) {
  const Json forms = table();
  EXPECT_GE(forms.size(), 33u);
  for (const auto& [name, row] : forms.items()) {
    for (const char* form : {"minimal", "full"}) {
      const Json items = {message("user", "go"), row[form], message("user", "on")};
      const std::string refused = row.value("refused", Json::object()).value(form, "");
      if (refused.empty()) {
        const PreparedRequest made = prepared_of(ask(items));
        EXPECT_EQ(made.requests.size(), 1u) << name << " " << form;
      } else {
        EXPECT_NE(error_of(ask(items)).message.find(refused), std::string::npos) << name << " " << form;
      }
      const auto alone = ask(Json::array({row[form]}));  // there may be nothing to answer
      if (const auto* error = std::get_if<ApiError>(&alone)) {
        EXPECT_EQ(error->http, 400) << name;
      }
    }
  }
}

TEST(ResponsesItems, EachFormIsDocumented) {
  const std::string page = text_of("docs/user/server.md");
  const size_t begin = page.find("### Items of a history"), end = page.find("Output items:");
  ASSERT_LT(begin, end);
  const std::string section = page.substr(begin, end - begin);
  const Json forms = table();
  for (const auto& [name, row] : forms.items()) {
    const std::string type = row["full"].value("type", "message");
    EXPECT_NE(section.find("`" + type + "`"), std::string::npos) << type;
  }
}

// The text of a form reaches the model, but no bytes of images.
TEST(ResponsesItems, WhatTheyTell) {
  const std::pair<const char*, const char*> kTold[] = {
      {"FunctionCallOutput",
       "<|start|>functions.f to=assistant<|channel|>commentary<|message|>text[image omitted"},
      {"ShellCallOutput", "stdout"},
      {"ApplyPatchCallOutput",
       "<|start|>functions.apply_patch to=assistant<|channel|>commentary<|message|>output"},
      {"ComputerCallOutput", "functions.computer to=assistant<|channel|>commentary<|message|>[image omitted"},
      {"ResponseCodeInterpreterToolCallParam", "[image omitted"},
      {"Program", R"([program: {"code":"code"}])"},
      {"ProgramOutput", R"([program_output: {"result":"result"}])"},
      {"McpCall", R"("output":"output")"},
      {"ResponseOutputMessageParam", "<|channel|>commentary<|message|>text"},
      {"ToolSearchCall", "go<|end|><|start|>user<|message|>on"},
      {"ResponseToolSearchOutputItemParamParam", "type f = (_: {"},
      {"AdditionalTools", "type f = (_: {"},
      {"ResponseConfigurationUpdateItemParamParam", "Reasoning: low"}};
  const Json forms = table();
  for (const auto& [name, told] : kTold) {
    const std::string prompt =
        prompt_of(ask({message("user", "go"), forms[name]["full"], message("user", "on")}));
    EXPECT_NE(prompt.find(told), std::string::npos) << name << "\n" << prompt;
    EXPECT_EQ(prompt.find("AA=="), std::string::npos) << name;
  }
}

TEST(ResponsesItems, ACallsArgumentsMayBeAnyJsonWhereNobodyReadsThem) {
  for (const char* arguments :
       {"{}", R"({"query": "x", "limit": 5})", "[1]", "5", "null", R"("text")", "true"}) {
    const Json item = {{"type", "tool_search_call"}, {"arguments", Json::parse(arguments)}};
    EXPECT_EQ(prepared_of(ask({message("user", "go"), item})).requests.size(), 1u) << arguments;
  }
}

// The item's own index counts, not that of the message which it becomes.
TEST(ResponsesItems, AnItemIsRefusedByItsIndex) {
  const Json nothing = {{"type", "mcp_list_tools"}},
             lost = {{"type", "function_call_output"}, {"call_id", "x"}, {"output", "y"}};
  for (const Json& wrong : {lost, message("nobody", "go"), Json{{"type", "nonsense"}}}) {
    const ApiError error = error_of(ask({nothing, message("user", "go"), nothing, wrong}));
    EXPECT_TRUE(error.message.starts_with("input: item 3: ")) << error.message;
    EXPECT_EQ(error.param, "input");
  }
}

TEST(ResponsesItems, AnOutputIsThere) {
  const Json call = {{"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}};
  for (const char* type : {"function_call_output", "custom_tool_call_output"}) {
    for (const Json& output : {Json{{"type", type}, {"call_id", "c"}},
                               Json{{"type", type}, {"call_id", "c"}, {"output", nullptr}}})
      EXPECT_EQ(error_of(ask({message("user", "go"), call, output})).message,
                "input: item 2: output is missing");
  }
}

TEST(ResponsesItems, OutputsFindTheirTool) {
  const auto told = [](const char* items) {
    return prompt_of(prepare_response(
        std::string(R"({"input": [{"role": "user", "content": "go"}, )") + items + "]}", service()));
  };
  const auto has = [](const std::string& prompt, const char* part) {
    return prompt.find(part) != std::string::npos;
  };
  EXPECT_TRUE(
      has(told(R"({"type": "function_call_output", "call_id": "lost", "name": "get", "output": "4"})"),
          "<|start|>functions.get to=assistant<|channel|>commentary<|message|>4"));
  EXPECT_TRUE(has(told(R"({"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
                          {"type": "function_call_output", "call_id": "c", "name": "other", "output": "4"})"),
                  "<|start|>functions.get to=assistant"));
  EXPECT_TRUE(has(told(R"({"type": "function_call", "call_id": "c", "name": "get", "arguments": "{}"},
                          {"type": "function_call_output", "call_id": "c", "status": "completed", "output": ""})"),
                  "<|start|>functions.get to=assistant<|channel|>commentary<|message|><|end|>"));
  EXPECT_TRUE(has(told(R"({"type": "function_call", "call_id": "", "name": "get", "arguments": "{}"},
                          {"role": "user", "content": "Stop."},
                          {"type": "function_call_output", "call_id": "", "output": "4"})"),
                  "<|start|>functions.get to=assistant"));
  EXPECT_TRUE(has(told(R"({"type": "apply_patch_call_output", "call_id": "c", "status": "failed"})"),
                  "<|message|>failed<|end|>"));
  EXPECT_TRUE(
      has(told(R"({"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": "no"})"),
          "<|message|>failed: no<|end|>"));
}

// Content beside a call is commentary, as in chat. A phase counts before that.
TEST(ResponsesItems, WhatIsSaidBeforeACallIsCommentary) {
  const std::string call = R"(, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"})";
  const auto channel = [](const std::string& items) {
    const std::string prompt = prompt_of(
        prepare_response(R"({"input": [{"role": "user", "content": "go"}, )" + items + "]}", service()));
    const size_t end = prompt.find("<|message|>Hm.");
    const size_t begin = prompt.rfind("<|channel|>", end) + 11;
    return prompt.substr(begin, end - begin);
  };
  const std::string said = R"({"role": "assistant", "content": "Hm.")";
  EXPECT_EQ(channel(said + "}"), "final");
  EXPECT_EQ(channel(said + "}" + call), "commentary");
  EXPECT_EQ(channel(said + R"(}, {"type": "reasoning", "summary": [{"text": "a"}]})" + call), "commentary");
  EXPECT_EQ(channel(said + R"(}, {"role": "user", "content": "a"})" + call), "final");
  EXPECT_EQ(channel(call.substr(2) + ", " + said +
                    R"(}, {"type": "function_call_output", "call_id": "c", "output": "b"})" + call),
            "final");  // not of the call behind the output
  EXPECT_EQ(channel(said + R"(, "phase": "commentary"})"), "commentary");
  EXPECT_EQ(channel(said + R"(, "phase": "final_answer"})" + call), "final");
  EXPECT_EQ(channel(said + R"(, "phase": null})" + call), "commentary");
}

TEST(ResponsesItems, ACompactionsSummaryIsRead) {
  const auto told = [](const std::string& members) {
    return prompt_of(prepare_response(R"({"input": [{"type": "compaction", "id": "c")" + members +
                                          R"(}, {"role": "user", "content": "go"}]})",
                                      service()));
  };
  EXPECT_NE(told(R"(, "summary": "Short.")").find("<|message|>Short.<|end|>"), std::string::npos);
  EXPECT_NE(told(R"(, "encrypted_content": "x")").find("was compacted and cannot be read"),
            std::string::npos);
}

TEST(ResponsesItems, TheLastUpdateOfASettingCounts) {
  const auto ask_with = [](const std::string& updates, const std::string& more = "") {
    return prepare_response(R"({"input": [)" + updates + R"({"role": "user", "content": "go"}])" + more + "}",
                            service());
  };
  const auto update = [](const std::string& members) {
    return R"({"type": "configuration_update", )" + members + "}, ";
  };
  const auto has = [&](PreparedRequestOrError made, const char* part) {
    return prompt_of(std::move(made)).find(part) != std::string::npos;
  };
  const std::string low = update(R"("reasoning": {"effort": "low"})"),
                    high = update(R"("reasoning": {"effort": "high"})");
  EXPECT_TRUE(has(ask_with(low), "Reasoning: low"));
  EXPECT_TRUE(has(ask_with(low + high), "Reasoning: high"));
  EXPECT_TRUE(has(ask_with(high + low, R"(, "reasoning": {"effort": "medium"})"), "Reasoning: low"));
  EXPECT_TRUE(has(ask_with(update(R"("reasoning": {"effort": null})")), "Reasoning: medium"));
  EXPECT_TRUE(has(ask_with(update(R"("reasoning": {"effort": "low", "summary": null})")), "Reasoning: low"));
  const std::string schema =
      update(R"("text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}})");
  const std::string plain = update(R"("text": {"format": {"type": "text"}})");
  EXPECT_FALSE(prepared_of(ask_with(schema)).requests.at(0).grammar.empty());
  EXPECT_FALSE(prepared_of(ask_with(schema + low)).requests.at(0).grammar.empty());
  EXPECT_TRUE(prepared_of(ask_with(schema + plain)).requests.at(0).grammar.empty());
  EXPECT_TRUE(prepared_of(ask_with(plain, R"(, "text": {"format": {"type": "json_object"}})"))
                  .requests.at(0)
                  .grammar.empty());
  for (const char* wrong :
       {R"("reasoning": {"effort": "huge"})", R"("reasoning": {"effort": 5})", R"("reasoning": 5)",
        R"("reasoning": {"summary": "auto"})", R"("text": [])", R"("text": {"format": 5})",
        R"("text": {"format": {"type": "xml"}})", R"("text": {"verbosity": "low"})", R"("tools": [])"})
    EXPECT_EQ(error_of(ask_with(update(wrong))).param, "input") << wrong;
}

TEST(ResponsesItems, ToolsOfItemsAreOffered) {
  const std::string item =
      R"({"type": "additional_tools", "role": "developer", "tools": [{"type": "function", "name": "late",
          "parameters": {"type": "object", "properties": {"b": {"type": "string"}}}}, {"type": "web_search"}]})";
  const auto made = [&](const std::string& items, const std::string& more = "") {
    return prepare_response(R"({"input": [{"role": "user", "content": "go"}, )" + items + "]" + more + "}",
                            service());
  };
  EXPECT_NE(prompt_of(made(item)).find("type late = (_: {"), std::string::npos);
  const std::string both = prompt_of(made(
      item + ", " + item, R"(, "tools": [{"type": "function", "name": "late", "parameters": {"type": "object",
           "properties": {"a": {"type": "string"}}}}])"));
  const size_t at = both.find("type late = (_: {");
  EXPECT_NE(both.find("a?: string", at), std::string::npos);
  EXPECT_EQ(both.find("type late", at + 1), std::string::npos);
  EXPECT_EQ(
      prepared_of(made(item, R"(, "tool_choice": {"type": "function", "name": "late"})")).requests.size(),
      1u);
  EXPECT_EQ(error_of(made(R"({"type": "tool_search_output", "tools": 5})")).param, "input");
  EXPECT_EQ(error_of(made(R"({"type": "tool_search_output", "tools": [{"type": "function"}]})")).param,
            "tools");
}

TEST(ResponsesItems, ACompactionIsNotMade) {
  const Json trigger = {{"type", "compaction_trigger"}};
  EXPECT_NE(error_of(ask({message("user", "go"), trigger})).message.find("summary"), std::string::npos);
  EXPECT_EQ(prepared_of(ask({trigger, message("user", "go")})).requests.size(), 1u);
}

}  // namespace
}  // namespace moesaic::openai

// Requests of Anthropic's API, and the prompts that they become.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "anthropic/error.h"
#include "anthropic/field_table.h"
#include "anthropic/messages_cases.h"
#include "openai/call_cases.h"
#include "openai/field_rows.h"
#include "openai/tool_choice.h"

namespace moesaic::anthropic {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(Messages, SystemAndBlocks) {
  const std::string prompt = prompt_of(
      ask(R"([{"role": "user", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]},
              {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"},
                                                {"type": "text", "text": "Three"}]},
              {"role": "user", "content": "Four"}])",
          R"("system": [{"type": "text", "text": "x-anthropic-billing-header: cc_version=1"},
                        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}])"));
  EXPECT_TRUE(contains(prompt, "# Instructions\n\nBe brief.<|end|>")) << prompt;
  EXPECT_FALSE(contains(prompt, "billing")) << prompt;
  EXPECT_TRUE(contains(prompt, "<|start|>user<|message|>One\n\nTwo<|end|>")) << prompt;
  EXPECT_TRUE(contains(prompt, "<|channel|>final<|message|>Three<|end|>")) << prompt;
  EXPECT_TRUE(prompt.ends_with("<|start|>user<|message|>Four<|end|><|start|>assistant")) << prompt;
}

TEST(Messages, ToolsAndTheirResults) {
  const std::string prompt = prompt_of(ask(
      R"([{"role": "user", "content": "Weather?"},
          {"role": "assistant", "content": [{"type": "text", "text": "Let me look."},
             {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}]},
          {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true,
             "content": [{"type": "text", "text": "no network"}]}, {"type": "text", "text": "Well?"}]}])",
      kTool));
  EXPECT_TRUE(contains(prompt, "type get_weather = (_: {")) << prompt;
  EXPECT_TRUE(contains(prompt, "<|channel|>commentary<|message|>Let me look.<|end|>")) << prompt;
  EXPECT_TRUE(contains(prompt, "{\"city\":\"Oslo\"}<|call|>")) << prompt;
  EXPECT_TRUE(contains(prompt, "<|message|>Error: no network<|end|>")) << prompt;
  EXPECT_TRUE(contains(prompt, "<|start|>user<|message|>Well?<|end|>")) << prompt;
}

TEST(Messages, CallsWithoutInputAndResultsThatNameATool) {
  const std::string call = R"({"type": "tool_use", "id": "t", "name": "get_weather")";
  const auto asked = [&](const std::string& input) {
    return ask(R"([{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": [)" + call +
                   input +
                   R"(}]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content":
                   [{"type": "tool_reference", "tool_name": "get_wind"}]}]}])",
               kTool);
  };
  for (const char* none : {"", R"(, "input": null)", R"(, "input": {})"}) {
    const std::string prompt = prompt_of(asked(none));
    EXPECT_TRUE(contains(prompt, "<|message|>{}<|call|>")) << prompt;
    EXPECT_TRUE(contains(prompt, "<|message|>get_wind<|end|>")) << prompt;
  }
  EXPECT_EQ(error_of(asked(R"(, "input": [1])")).param, "messages");
}

// The answer's own call, as a client that keeps its text sends it.
TEST(Messages, AnAnswersCallComesBackDigitForDigit) {
  const std::string deep = std::string(R"({"a":)") + std::string(57, '[') + std::string(57, ']') + "}";
  for (const std::string& text :
       {std::string(R"({"n":123456789012345678901234567890,"x":-0.1234567890123456789})"), deep}) {
    ASSERT_EQ(openai::dump(openai::arguments_object(text)), text);
    const std::string prompt =
        prompt_of(ask(R"([{"role": "user", "content": "Weather?"}, {"role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "get_weather", "input": )" +
                      text + R"(}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "21"}]}])"));
    EXPECT_TRUE(contains(prompt, text + "<|call|>")) << prompt;
  }
}

TEST(Messages, MembersOfToolsAreLookedAt) {
  const auto with = [](const std::string& more) {
    return ask(
        kHi,
        R"("tools": [{"name": "get_weather", "description": "Gets it.", "input_schema": {"type": "object"},
        "cache_control": {"type": "ephemeral"}, "eager_input_streaming": true, "defer_loading": false,
        "allowed_callers": ["direct"], )" +
            more + "}]");
  };
  for (const char* type : {"", R"("type": "custom", )"})
    EXPECT_EQ(prepared(with(type + std::string(R"("stict": true)"))).unknown.header(),
              "tools.stict;nearest=\"strict\"");
  const std::string prompt =
      prompt_of(with(R"("input_examples": [{"city": "Oslo", "day": 12345678901234567890123}, {}])"));
  EXPECT_TRUE(contains(prompt,
                       "// Gets it.\n// Example: {\"city\":\"Oslo\",\"day\":12345678901234567890123}\n"
                       "// Example: {}\ntype get_weather = "))
      << prompt;
  EXPECT_EQ(prompt_of(with(R"("input_examples": [])")), prompt_of(with(R"("strict": null)")));
  EXPECT_EQ(error_of(with(R"("input_examples": {"city": "Oslo"})")).message,
            "tools: tool 0: input_examples is not an array");
}

TEST(Messages, ThePromptNamesTheModelAsItsTemplateDoes) {
  EXPECT_TRUE(
      prompt_of(ask(kHi)).starts_with("<|start|>system<|message|>You are ChatGPT, a large language model"));
}

TEST(Messages, ToolChoice) {
  const auto held = [](const char* choice) {
    return !prepared(ask(kHi, std::string(kTool) + ", \"tool_choice\": " + choice))
                .requests.at(0)
                .grammar.empty();
  };
  EXPECT_FALSE(held(R"({"type": "auto"})"));
  EXPECT_FALSE(held(R"({"type": "none"})"));
  EXPECT_TRUE(held(R"({"type": "any", "disable_parallel_tool_use": true})"));
  EXPECT_TRUE(held(R"({"type": "tool", "name": "get_weather"})"));
  EXPECT_EQ(
      error_of(ask(kHi, std::string(kTool) + R"(, "tool_choice": {"type": "tool", "name": "f"})")).param,
      "tool_choice");
  EXPECT_EQ(error_of(ask(kHi, R"("tools": [{"type": "web_search_20250305", "name": "web_search"}])")).param,
            "tools");
}

TEST(Messages, AToolThatNamesNoInputTakesNone) {
  for (const char* none : {"{}", R"({"type": "object", "properties": {}})", R"({"type": "object"})"}) {
    for (const char* choice : {R"({"type": "any"})", R"({"type": "tool", "name": "get_time"})"}) {
      const openai::PreparedRequest made = prepared(
          ask(kHi, fmt::format(R"("tools": [{{"name": "get_time", "input_schema": {}}}], "tool_choice": {})",
                               none, choice)));
      EXPECT_TRUE(openai::takes_call(made, "get_time", "{}")) << none;
      EXPECT_FALSE(openai::takes_call(made, "get_time", R"({"city": "Paris"})")) << none;
      EXPECT_FALSE(openai::takes_call(made, "get_time", "5")) << none;
    }
  }
}

TEST(Messages, ThinkingIsAnEffort) {
  const auto effort = [](const char* more) {
    const std::string prompt = prompt_of(ask(kHi, more));
    const size_t at = prompt.find("Reasoning: ");
    return prompt.substr(at + 11, prompt.find('\n', at) - at - 11);
  };
  EXPECT_EQ(effort(""), "medium");
  EXPECT_EQ(effort(R"("thinking": {"type": "disabled"})"), "low");
  EXPECT_EQ(effort(R"("thinking": {"type": "enabled", "budget_tokens": 1024})"), "low");
  EXPECT_EQ(effort(R"("thinking": {"type": "enabled", "budget_tokens": 10000})"), "medium");
  EXPECT_EQ(effort(R"("thinking": {"type": "enabled", "budget_tokens": 32000})"), "high");
  EXPECT_EQ(effort(R"("thinking": {"type": "adaptive"}, "output_config": {"effort": "high"})"), "high");
  EXPECT_EQ(effort(R"("output_config": {"effort": "low"})"), "low");
  EXPECT_EQ(effort(R"("thinking": {"type": "disabled"}, "output_config": {"effort": "medium"})"), "medium");
  EXPECT_EQ(effort(R"("output_config": {"effort": null, "format": null})"), "medium");
  // Claude Code's.
  EXPECT_EQ(effort(R"("thinking": {"type": "adaptive", "display": "updates"})"), "medium");
  EXPECT_EQ(error_of(ask(kHi, R"("thinking": {"type": "sometimes"})")).param, "thinking");
}

TEST(Messages, ThinkingHasABudget) {
  const auto budget = [](const char* more) {
    return prepared(ask(kHi, more)).requests.at(0).sampling.reasoning_budget;
  };
  EXPECT_EQ(budget(""), -1);
  EXPECT_EQ(budget(R"("thinking": {"type": "adaptive"})"), -1);
  EXPECT_EQ(budget(R"("thinking": {"type": "enabled", "budget_tokens": 2000})"), 2000);
  EXPECT_EQ(budget(R"("thinking": {"type": "enabled", "budget_tokens": 0})"), 0);
  EXPECT_EQ(budget(R"("thinking": {"type": "disabled", "budget_tokens": 0})"), 0);
  EXPECT_EQ(budget(R"("thinking": {"type": "enabled", "budget_tokens": 1000000000000})"), INT32_MAX);
  for (const char* wrong : {"-1", "1.5", "\"5\"", "true"})
    EXPECT_EQ(
        error_of(
            ask(kHi, fmt::format(R"("thinking": {{"type": "enabled", "budget_tokens": {}}})", wrong).c_str()))
            .param,
        "thinking")
        << wrong;
  EXPECT_EQ(error_of(ask(kHi, R"("thinking": {"type": "disabled", "budget_tokens": 9})")).message,
            "thinking: budget_tokens does not belong to type disabled");
}

TEST(Messages, SamplingAndForms) {
  const SamplingParams s =
      prepared(ask(kHi, R"("temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop_sequences": ["END"])"))
          .requests.at(0)
          .sampling;
  EXPECT_EQ(s.temperature, 0.5);
  EXPECT_EQ(s.top_p, 0.9);
  EXPECT_EQ(s.top_k, 5);
  EXPECT_EQ(s.max_tokens, 20);
  EXPECT_EQ(s.stop_strings, std::vector<std::string>{"END"});
  const char* form = R"({"type": "json_schema", "schema": {"type": "object"}})";
  for (const std::string& more : {std::string("\"output_format\": ") + form,
                                  std::string("\"output_config\": {\"format\": ") + form + "}"})
    EXPECT_FALSE(prepared(ask(kHi, more)).requests.at(0).grammar.empty()) << more;
}

TEST(Messages, WhatCannotBeHonouredIsRefused) {
  EXPECT_EQ(
      error_of(prepare_messages(R"({"messages": [{"role": "user", "content": "hi"}]})", service())).param,
      "max_tokens");
  EXPECT_EQ(error_of(ask("[]")).param, "messages");
  for (const char* wrong : {"5", "true", "{}", R"([{"type": "image"}])"})
    EXPECT_TRUE(contains(error_of(ask(kHi, std::string("\"system\": ") + wrong)).message, "system")) << wrong;
  EXPECT_EQ(error_of(ask(kHi, R"("mcp_servers": [{"url": "x"}])")).param, "mcp_servers");
  EXPECT_EQ(error_of(ask(kHi, R"("container": "x")")).param, "container");
  const openai::ApiError thread = error_of(ask(kHi, R"("thread": {"type": "create"})"));
  EXPECT_EQ(openai::Json::parse(anthropic::error_json(thread))["error"]["details"]["error_code"],
            "thread_unsupported_request");
  const auto message = [](const char* content) { return error_of(ask(content)).message; };
  EXPECT_TRUE(
      contains(message(R"([{"role": "user", "content": [{"type": "image", "source": {}}]}])"), "'image'"));
  EXPECT_TRUE(
      contains(message(R"([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}])"),
               "message 0"));
  EXPECT_TRUE(contains(message(R"([{"role": "nobody", "content": "a"}])"), "'nobody'"));
  for (const char* content : {R"("")", "[]", "null", "[5]", R"([{"text": "a"}])", R"([{"type": "text"}])",
                              R"([{"type": "text", "text": 5}])", R"([{"type": "text", "text": ""}])",
                              R"([{"type": "tool_result", "tool_use_id": 5}])"})
    EXPECT_EQ(error_of(ask(std::string(R"([{"role": "user", "content": )") + content + "}]")).param,
              "messages")
        << content;
}

TEST(Messages, ResultsWithoutIdsBehindText) {
  const std::string prompt = prompt_of(ask(R"([{"role": "assistant", "content": [
      {"type": "tool_use", "name": "f", "input": {}}, {"type": "tool_use", "name": "g", "input": {}}]},
      {"role": "user", "content": [{"type": "text", "text": "Here."}, {"type": "tool_result", "content": "1"},
                                   {"type": "tool_result", "content": "2"}]}])"));
  EXPECT_TRUE(contains(prompt, "functions.f to=assistant<|channel|>commentary<|message|>1")) << prompt;
  EXPECT_TRUE(contains(prompt, "functions.g to=assistant<|channel|>commentary<|message|>2")) << prompt;
}

TEST(Messages, ImagesOfAHistoryBecomeNotes) {
  const auto shown = [](const char* type) {
    return fmt::format(
        R"({{"role": "user", "content": [{{"type": "{}", "source": {{"type": "base64", "data": "AAAA"}}}},
                           {{"type": "text", "text": "see"}}]}})",
        type);
  };
  const std::string answer = R"({"role": "assistant", "content": "b"})",
                    user = R"({"role": "user", "content": "on"})";
  for (const char* type : {"image", "document"}) {
    const std::string note = fmt::format("[{} omitted: this model reads text only]\n\nsee<|end|>", type);
    const std::string prompt = prompt_of(ask(fmt::format("[{},{},{}]", shown(type), answer, user)));
    EXPECT_TRUE(contains(prompt, note)) << prompt;
    EXPECT_TRUE(contains(prompt_of(ask("[" + shown(type) + "," + user + "]")), note));
    EXPECT_EQ(error_of(ask("[" + shown(type) + "]")).param, "messages");
    EXPECT_EQ(error_of(ask(fmt::format("[{},{},{}]", user, answer, shown(type)))).param, "messages");
  }
  EXPECT_TRUE(contains(prompt_of(ask("[" + shown("image") +
                                     R"(, {"role": "assistant", "content": [{"type": "tool_use", "id": "c",
                    "name": "f", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result",
                    "tool_use_id": "c", "content": "4"}]}])")),
                       "[image omitted"));
}

TEST(Messages, ASearchResultIsReadWhereverItStands) {
  const std::string block =
      R"({"type":"search_result","source":"a.b","title":"T","content":[{"type":"text","text":"Sea"}]})";
  EXPECT_TRUE(contains(prompt_of(ask(R"([{"role": "user", "content": [)" + block + "]}]")),
                       "<|start|>user<|message|>" + block + "<|end|>"));
  const std::string call = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type":
      "tool_use", "id": "c", "name": "f", "input": {}}]}, {"role": "user", "content": [{"type": "tool_result",
      "tool_use_id": "c", "content": [)";
  for (const std::string& told : {block, std::string(R"({"type":"browser_state","tabs":[]})")})
    EXPECT_TRUE(contains(prompt_of(ask(call + told + "]}]}]")), "<|message|>" + told + "<|end|>"));
  // Clients set the mark on the last block of a request, and take it away in the next one.
  const std::string marked = block.substr(0, block.size() - 1) + R"(,"cache_control":{"type":"ephemeral"}})";
  EXPECT_EQ(prompt_of(ask(call + marked + "]}]}]")), prompt_of(ask(call + block + "]}]}]")));
  EXPECT_EQ(prompt_of(ask(R"([{"role": "user", "content": [)" + marked + "]}]")),
            prompt_of(ask(R"([{"role": "user", "content": [)" + block + "]}]")));
}

// Claude's servers run some tools by themselves; what they did is in the history of a client that moved here.
TEST(Messages, WhatAServerDidBecomesCommentary) {
  const std::string answer =
      R"({"role": "assistant", "content": [{"type": "text", "text": "Let me look."},
          {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tiles"}},
          {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{"type":
           "web_search_result", "title": "Zellige", "url": "https://a.b", "encrypted_content": "AA=="}]},
          {"type": "text", "text": "Clay.", "citations": [{"encrypted_index": "AA=="}]}]})";
  const std::string user = R"({"role": "user", "content": "go"})";
  const std::string prompt = prompt_of(ask("[" + user + "," + answer + "," + user + "]"));
  for (
      const char* told :
      {"<|channel|>commentary<|message|>Let me look.<|end|>",
       R"(<|channel|>commentary<|message|>[server_tool_use: {"name":"web_search","input":{"query":"tiles"}}]<|end|>)",
       R"(<|message|>[web_search_tool_result: {"content":[{"type":"web_search_result","title":"Zellige","url":"https://a.b"}]}]<|end|>)",
       "<|channel|>final<|message|>Clay.<|end|>"})
    EXPECT_TRUE(contains(prompt, told)) << prompt;
  const auto with = [&](const std::string& block) {
    return ask("[" + user + R"(,{"role": "assistant", "content": [)" + block + "]}," + user + "]");
  };
  for (const char* block :
       {R"({"type": "mcp_tool_use", "id": "t", "name": "f", "server_name": "s", "input": {}})",
        R"({"type": "mcp_tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "a"}]})",
        R"({"type": "code_execution_tool_result", "tool_use_id": "t", "content": {"stdout": "a"}})",
        R"({"type": "web_fetch_tool_result", "tool_use_id": "t", "content": {"type": "web_fetch_result",
            "content": {"type": "document", "source": {"type": "base64", "data": "AA=="}}}})"}) {
    const std::string told = prompt_of(with(block));
    EXPECT_TRUE(contains(told, "commentary<|message|>[")) << told;
    EXPECT_FALSE(contains(told, "AA==")) << told;
  }
  EXPECT_TRUE(contains(prompt_of(with(R"({"type": "web_fetch_tool_result", "content": {"type": "document",
      "source": {"type": "text", "data": "Sea"}}})")),
                       "Sea"));
  EXPECT_EQ(error_of(with(R"({"type": "tool_result", "tool_use_id": "t"})")).param, "messages");
  for (const char* unsaid : {R"({"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}})",
                             R"({"type": "redacted_thinking", "data": "AA=="})",
                             R"({"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []})",
                             R"({"type": "compaction", "content": null, "encrypted_content": "AA=="})"})
    EXPECT_EQ(prompt_of(with(unsaid)), prompt_of(ask(fmt::format("[{0},{0}]", user)))) << unsaid;
  // A summary takes the place of what was before it.
  const std::string summary = R"({"type": "compaction", "content": "They met.", "signature": "AA=="})";
  const std::string hi = R"({"role": "user", "content": "first"})";
  const std::string compacted =
      "[" + hi + R"(,{"role": "assistant", "content": [)" + summary + "]}," + user + "]";
  const std::string told = prompt_of(ask(compacted));
  EXPECT_TRUE(contains(told, "commentary<|message|>They met.<|end|><|start|>user<|message|>go")) << told;
  EXPECT_FALSE(contains(told, "first"));
  const std::string before =
      R"({"type": "text", "text": "I search."}, {"type": "compaction", "content": "Old."},)";
  EXPECT_EQ(prompt_of(ask("[" + hi + R"(,{"role": "assistant", "content": [)" + before + summary + "]}," +
                          user + "]")),
            told);
  EXPECT_TRUE(prompt_of(ask("[" + hi + R"(,{"role": "assistant", "content": [)" + summary + "]}]"))
                  .ends_with("They met.<|end|><|start|>assistant"));
  EXPECT_EQ(error_of(ask(R"([{"role": "user", "content": [{"type": "server_tool_use", "id": "t"}]}])")).param,
            "messages");
  // An answer of its own begins behind what the server did last.
  EXPECT_TRUE(
      prompt_of(ask("[" + user + R"(,{"role": "assistant", "content": [{"type": "server_tool_use", "id": "t",
      "name": "f", "input": {}}]}])"))
          .ends_with("<|end|><|start|>assistant"));
}

TEST(Messages, DocumentsOfTextAreRead) {
  const auto with = [](const std::string& document) {
    return ask(R"([{"role": "user", "content": [)" + document + R"(, {"type": "text", "text": "see"}]}])");
  };
  EXPECT_TRUE(contains(prompt_of(with(R"({"type": "document", "title": "T", "context": "C", "citations":
      {"enabled": false}, "source": {"type": "text", "media_type": "text/plain", "data": "Sea\nsand"}})")),
                       "<|message|><document>\n<title>T</title>\n<context>C</context>\nSea\nsand\n"
                       "</document>\n\nsee<|end|>"));
  const std::string source =
      R"({"type": "document", "title": null, "source": {"type": "content", "content": )";
  for (const char* content :
       {"\"Sea\"", R"([{"type": "text", "text": "Se"}, {"type": "text", "text": "a"}])"})
    EXPECT_TRUE(
        contains(prompt_of(with(source + content + "}}")), "<|message|><document>\nSea\n</document>\n\nsee"))
        << content;
  EXPECT_TRUE(contains(prompt_of(ask(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content":
      [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}, {"role": "user", "content": [{"type":
      "tool_result", "tool_use_id": "t", "content": [{"type": "document", "source": {"type": "text", "data":
      "Sea"}}]}]}])")),
                       "<document>\nSea\n</document><|end|>"));
  for (const char* wrong : {R"("source": {"type": "text"})", R"("source": {"type": "text", "data": [1]})",
                            R"("source": {"type": "content", "content": 1})",
                            R"("source": {"type": "content", "content": [{"type": "image"}]})",
                            R"("title": 1, "source": {"type": "text", "data": "a"})",
                            R"("citations": {"enabled": true}, "source": {"type": "text", "data": "a"})",
                            R"("source": {"type": "base64", "media_type": "text/plain", "data": "aGk="})"})
    EXPECT_EQ(error_of(with(std::string(R"({"type": "document", )") + wrong + "}")).param, "messages")
        << wrong;
}

TEST(Messages, TheAssistantsLastMessageGoesOn) {
  const auto said = [](const std::string& content, const std::string& more = "") {
    return ask(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": )" + content + "}]",
               more);
  };
  const std::string begin = "<|start|>user<|message|>a<|end|><|start|>assistant";
  for (const auto& [content, end] :
       {std::pair(R"("It is ")", "<|channel|>final<|message|>It is "),
        {R"([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "It"}])",
         "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>It"},
        {R"([{"type": "thinking", "thinking": "hm"}])", "<|channel|>analysis<|message|>hm"},
        {"\"\"", ""},
        {"[]", ""}}) {
    const std::string prompt = prompt_of(said(content));
    EXPECT_TRUE(prompt.ends_with(begin + end)) << prompt;
  }
  EXPECT_TRUE(
      contains(error_of(said(R"([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])")).message,
               "no tool_result"));
  EXPECT_EQ(error_of(said("\"{\"", std::string(kTool) + R"(, "tool_choice": {"type": "any"})")).param,
            "messages");
  EXPECT_EQ(error_of(ask(R"([{"role": "user", "content": [{"type": "image", "source": {}}]},
                             {"role": "assistant", "content": "It"}])"))
                .param,
            "messages");
}

TEST(Messages, ValuesThatMeanNothingAreRefused) {
  for (const auto& [field, value] : {std::pair("max_tokens", "-1"),
                                     {"max_tokens", "1.5"},
                                     {"max_tokens", "1e10"},
                                     {"stop_sequences", "[\"\"]"},
                                     {"stop_sequences", "\"a\""},
                                     {"stop_sequences", "[1]"},
                                     {"system", R"([{"type": "text"}])"},
                                     {"system", R"([{"type": "text", "text": 7}])"},
                                     {"output_config", R"({"effort": "much"})"},
                                     {"thinking", R"({"type": "enabled", "display": "loud"})"},
                                     {"tools", "[5]"},
                                     {"tools", R"([{"name": "f", "description": 5}])"},
                                     {"tools", R"([{"name": "f", "type": 5}])"},
                                     {"tools", R"([{"name": "f"}, {"name": "f"}])"}}) {
    const std::string body =
        fmt::format(R"({{"messages": {}, "max_tokens": 5, "{}": {}}})", kHi, field, value);
    EXPECT_EQ(error_of(prepare_messages(body, service())).param, field) << value;
  }
  EXPECT_TRUE(std::holds_alternative<openai::PreparedRequest>(ask(
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": []}, {"role": "user", "content": "b"}])")));
}

TEST(Messages, ModelNames) {
  const auto with = [](const char* model) {
    return prepare_messages(
        std::string(R"({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "model": ")") +
            model + "\"}",
        service());
  };
  EXPECT_TRUE(std::holds_alternative<openai::PreparedRequest>(with("claude-sonnet-4-5")));
  EXPECT_TRUE(std::holds_alternative<openai::PreparedRequest>(with("tiny")));
  EXPECT_EQ(error_of(with("another")).http, 404);
}

TEST(Messages, CountTokens) {
  const std::string body =
      R"({"model": "tiny", "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]})";
  const auto made = count_tokens(body, service());
  ASSERT_TRUE(std::holds_alternative<openai::TokenAnswer>(made));
  const auto counted =
      openai::Json::parse(std::get<openai::TokenAnswer>(made).json)["input_tokens"].get<size_t>();
  EXPECT_EQ(counted, prepared(ask(kHi, R"("system": "Be brief.")")).requests.at(0).prompt.size());
  const auto wrong = count_tokens(
      R"({"model": "tiny", "top_k": "x", "messages": [{"role": "user", "content": "hi"}]})", service());
  ASSERT_TRUE(std::holds_alternative<openai::ApiError>(wrong));
  EXPECT_EQ(std::get<openai::ApiError>(wrong).param, "top_k");
}

TEST(Messages, TheDocumentationListsEachField) {
  std::set<std::string> rows;
  openai::add_documented_rows(message_fields(), rows);
  for (const std::string& row :
       openai::missing_rows(rows, MOESAIC_SOURCE_DIR "/docs/user/api-compatibility.md"))
    ADD_FAILURE() << "docs/user/api-compatibility.md lacks\n" << row;
}

// Clients leave out the difference and send the conversation again.
TEST(MessagesRequest, APromptThatIsTooLongIsCountedToItsEnd) {
  std::string text = "hi";
  for (int i = 0; i < 4000; ++i) text += " hi";
  const std::string messages = R"([{"role": "user", "content": ")" + text + "\"}]";
  const auto counted = count_tokens(R"({"model": "tiny", "messages": )" + messages + "}", service());
  const size_t tokens = openai::Json::parse(std::get<openai::TokenAnswer>(counted).json)["input_tokens"];
  ASSERT_GT(tokens, 4000u);
  const openai::ApiError error = error_of(ask(messages));
  EXPECT_EQ(error.prompt_tokens, tokens);
  EXPECT_EQ(error.message.find("more than"), std::string::npos) << error.message;
}

}  // namespace
}  // namespace moesaic::anthropic

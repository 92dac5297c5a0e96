// Histories of many clients and the prompts that they become, and answers with all that can be asked for.
#include <fmt/format.h>

#include <sstream>

#include "openai/request_cases.h"
#include "openai/sealed_reasoning.h"
#include "openai/sse.h"
#include "openai/stream_lines.h"

namespace moesaic::openai {
namespace {

// ---- histories ----

std::string prompt_of_messages(const std::string& messages) {
  return prompt_of(
      prepare_chat(R"({"messages": [{"role": "user", "content": "go"}, )" + messages + "]}", service()));
}

TEST(ChatHistory, RefusalsAreText) {
  const std::string want = prompt_of_messages(R"({"role": "assistant", "content": "No."})");
  for (const char* message : {R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})",
                              R"({"role": "assistant", "content": null, "refusal": "No."})",
                              R"({"role": "assistant", "refusal": "No."})",
                              R"({"role": "assistant", "content": "No.", "refusal": null})",
                              R"({"role": "assistant", "content": "No.", "refusal": ""})"})
    EXPECT_EQ(prompt_of_messages(message), want) << message;
}

// Instructions behind the first message stay where they came.
TEST(ChatHistory, LaterInstructionsAreDeveloperMessages) {
  for (const char* role : {"system", "developer"}) {
    const std::string prompt =
        prompt_of_messages(fmt::format(R"({{"role": "{}", "content": "Be brief."}})", role));
    EXPECT_NE(prompt.find("go<|end|><|start|>developer<|message|># Instructions\n\nBe brief.<|end|>"),
              std::string::npos)
        << prompt;
  }
}

TEST(ChatHistory, FunctionsAreToolsInOlderWords) {
  const std::string want = prompt_of_messages(
      R"({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
         {"role": "tool", "tool_call_id": "c", "content": "4"})");
  EXPECT_EQ(prompt_of_messages(
                R"({"role": "assistant", "content": null, "function_call": {"name": "f", "arguments": "{}"}},
                                  {"role": "function", "name": "f", "content": "4"})"),
            want);
}

// Some servers and clients leave the ids out, or give all calls the same.
TEST(ChatHistory, ResultsOfCallsThatTheirIdsDoNotTellApart) {
  const auto call = [](const char* name, const char* id) {
    return fmt::format(R"({{{}"type": "function", "function": {{"name": "{}", "arguments": "{{}}"}}}})", id,
                       name);
  };
  const auto history = [&](const char* id, const char* result) {
    return fmt::format(R"({{"role": "assistant", "content": null, "tool_calls": [{}, {}]}},
                          {{"role": "tool", {}"content": "1"}}, {{"role": "tool", {}"content": "2"}})",
                       call("f", id), call("g", id), result, result);
  };
  for (const std::string& messages :
       {history("", ""), history(R"("id": "c", )", R"("tool_call_id": "c", )")}) {
    const std::string prompt = prompt_of_messages(messages);
    for (const char* told : {"functions.f to=assistant<|channel|>commentary<|message|>1<|end|>",
                             "functions.g to=assistant<|channel|>commentary<|message|>2<|end|>"})
      EXPECT_NE(prompt.find(told), std::string::npos) << told << "\n" << prompt;
  }
}

// The tools of the results of a history. Each word is a message, with commas between the calls of one: "f" is
// a call of f, "f#c" one with the id c, ":" a result, ":f#c" one that names its tool and id, "user" a user's.
std::string tools_of(const std::string& words) {
  std::string messages, tools;
  std::istringstream all(words);
  for (std::string word; all >> word;) {
    const auto member_of = [](const std::string& one, const char* key) {
      const size_t hash = one.find('#');
      return hash == std::string::npos ? "" : fmt::format(R"("{}": "{}", )", key, one.substr(hash + 1));
    };
    if (!messages.empty()) messages += ", ";
    if (word == "user") {
      messages += R"({"role": "user", "content": "Stop."})";
    } else if (word[0] == ':') {
      const std::string name = word.substr(1, word.find('#') - 1);
      messages += fmt::format(R"({{"role": "tool", {}{}"content": "1"}})",
                              name.empty() ? "" : fmt::format(R"("name": "{}", )", name),
                              member_of(word, "tool_call_id"));
    } else {
      std::string calls;
      std::istringstream list(word);
      for (std::string one; std::getline(list, one, ',');)
        calls += fmt::format(R"({}{{{}"function": {{"name": "{}", "arguments": "{{}}"}}}})",
                             calls.empty() ? "" : ", ", member_of(one, "id"), one.substr(0, one.find('#')));
      messages += fmt::format(R"({{"role": "assistant", "tool_calls": [{}]}})", calls);
    }
  }
  const std::string prompt = prompt_of_messages(messages);
  constexpr std::string_view kResult = " to=assistant<|channel|>";
  for (size_t at = prompt.find(kResult); at != std::string::npos; at = prompt.find(kResult, at + 1)) {
    const size_t name = prompt.rfind('.', at) + 1;
    tools += (tools.empty() ? "" : " ") + prompt.substr(name, at - name);
  }
  return tools;
}

TEST(ChatHistory, ResultsFindTheirCalls) {
  EXPECT_EQ(tools_of("f : :"), "f f");
  EXPECT_EQ(tools_of("f user :"), "f");
  EXPECT_EQ(tools_of("f,g : user :"), "f g");
  EXPECT_EQ(tools_of("f,g : h :"), "f h");
  EXPECT_EQ(tools_of("f g : :"), "f g");
  EXPECT_EQ(tools_of("f#c,g#c :g#c :f#c"), "g f");
  EXPECT_EQ(tools_of("f#c,g#c user :f#c"), "f");
  EXPECT_EQ(tools_of("f#c,g#c :h#c :#c"), "f g");
  EXPECT_EQ(tools_of("f#c g#c :#c"), "g");
  EXPECT_EQ(tools_of("f#c :#c g#c :#c"), "f g");
  EXPECT_EQ(tools_of("f#a,g#b :#b h#c :#a"), "g f");
  EXPECT_EQ(tools_of("f#a :g"), "g");
}

TEST(ChatHistory, CustomCallsAreCallsWithText) {
  const std::string prompt = prompt_of_messages(
      R"({"role": "assistant", "content": "Let me.", "tool_calls": [
           {"id": "a", "type": "custom", "custom": {"name": "apply_patch", "input": "*** Begin"}},
           {"id": "b", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
         {"role": "tool", "tool_call_id": "a", "content": "Done"}, {"role": "tool", "tool_call_id": "b", "content": "4"})");
  for (const char* told :
       {"<|start|>assistant<|channel|>commentary<|message|>Let me.<|end|>",
        " to=functions.apply_patch<|channel|>commentary<|message|>*** Begin<|call|>",
        "<|start|>functions.apply_patch to=assistant<|channel|>commentary<|message|>Done<|end|>",
        "<|start|>functions.f to=assistant<|channel|>commentary<|message|>4<|end|>"})
    EXPECT_NE(prompt.find(told), std::string::npos) << told << "\n" << prompt;
  const std::string items = prompt_of(prepare_response(
      R"({"input": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "Let me."},
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": "*** Begin"},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "Done"},
        {"type": "function_call_output", "call_id": "b", "output": "4"}]})",
      service()));
  EXPECT_EQ(prompt, items);
  for (const char* call :
       {R"({"type": "custom", "custom": {"input": "x"}})", R"({"type": "custom", "custom": {}})",
        R"({"type": "custom", "custom": {"name": "f", "input": {}}})", R"({"type": "custom"})"}) {
    const std::string body =
        std::string(R"({"messages": [{"role": "assistant", "tool_calls": [)") + call + "]}]}";
    EXPECT_EQ(error_of(prepare_chat(body, service())).param, "messages") << call;
  }
}

constexpr const char* kNote = "[image omitted: this model reads text only]";

TEST(ChatHistory, WhatTheModelCannotReadBecomesANote) {
  const auto ask = [](const std::string& messages) {
    return prepare_chat(R"({"messages": [)" + messages + "]}", service());
  };
  const std::string image = R"({"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}})";
  const std::string shown =
      R"({"role": "user", "content": [{"type": "text", "text": "see"}, )" + image + "]}";
  const std::string user = R"({"role": "user", "content": "on"})",
                    answer = R"({"role": "assistant", "content": "b"})";
  const std::string call =
      R"({"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]})";
  const std::string result = R"({"role": "tool", "tool_call_id": "c", "content": [)" + image + "]}";
  const std::string read = R"({"role": "tool", "tool_call_id": "c", "content": "See file 1."})",
                    rule = R"({"role": "system", "content": "The file follows."})";
  const auto list = [](std::initializer_list<std::string> messages) {
    return fmt::to_string(fmt::join(messages, ","));
  };
  const std::string thought = fmt::format(R"({{"role": "assistant", "content": [{}]}})", image),
                    drawn = fmt::format(R"({{"role": "assistant", "content": "b", "images": [{}]}})", image),
                    system = fmt::format(R"({{"role": "system", "content": [{}]}})", image);
  for (const std::string& messages :
       {list({shown, answer, user}), list({shown, user}), list({shown, call, result}),
        list({user, call, result}), list({user, call, result, user}), list({user, thought, user}),
        list({user, drawn, user}), list({user, call, read, shown}), list({user, call, read, rule, shown})}) {
    const std::string prompt = prompt_of(ask(messages));
    EXPECT_NE(prompt.find(kNote), std::string::npos) << messages;
    EXPECT_EQ(prompt.find("AAAA"), std::string::npos) << messages;
  }
  for (const std::string& messages :
       {shown, list({answer, shown}), list({user, shown}), list({shown, answer, shown}), list({system, user}),
        list({user, call, read, answer, shown}), list({user, call, read, user, shown}), list({rule, shown}),
        std::string(R"({"role": "user", "content": "a", "images": ["AAAA"]})"),
        std::string(R"({"role": "user", "content": "a", "images": 5})")})
    EXPECT_EQ(error_of(ask(messages)).param, "messages") << messages;
  for (const char* part : {R"({"type": "input_audio", "input_audio": {}})", R"({"type": "file", "file": {}})",
                           R"({"type": "video_url"})", R"({"type": "input_file"})"}) {
    const std::string message = std::string(R"({"role": "user", "content": [)") + part + "]}";
    EXPECT_NE(prompt_of(ask(list({message, answer, user}))).find("omitted: this model reads text only]"),
              std::string::npos);
    EXPECT_EQ(error_of(ask(message)).http, 400) << part;
  }
  EXPECT_EQ(
      error_of(ask(R"({"role": "user", "content": [{"type": "elephant"}]},)" + answer + "," + user)).http,
      400);
  const std::string items = prompt_of(prepare_response(
      R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "see"}, {"type": "input_image"}]}, )" +
          answer + "," + user + "]}",
      service()));
  EXPECT_EQ(items, prompt_of(ask(shown + "," + answer + "," + user)));
}

std::string prompt_of_items(const std::string& items) {
  return prompt_of(
      prepare_response(R"({"input": [{"role": "user", "content": "go"}, )" + items + "]}", service()));
}

TEST(ResponsesInput, ItemsOfCodexHistories) {
  const std::pair<const char*, const char*> kTold[] = {
      {R"({"type": "message", "role": "user", "content": [{"type": "input_text", "text": "see"},
           {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]})",
       "see[image omitted: this model reads text only]"},
      {R"({"role": "user", "content": [{"type": "input_file", "file_data": "AAAA"}]})", "[file omitted"},
      {R"({"role": "assistant", "content": [{"type": "refusal", "refusal": "I will not."}]})", "I will not."},
      {R"({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
          {"type": "custom_tool_call_output", "call_id": "c", "output": "Done"})",
       " to=functions.apply_patch<|channel|>commentary<|message|>*** "
       "Begin<|call|><|start|>functions.apply_patch "
       "to=assistant<|channel|>commentary<|message|>Done<|end|>"},
      {R"({"type": "local_shell_call", "call_id": "c", "status": "completed",
           "action": {"type": "exec", "command": ["ls"]}},
          {"type": "local_shell_call_output", "id": "c", "output": "a.txt"})",
       R"(functions.local_shell<|channel|>commentary<|message|>{"action":{"type":"exec","command":["ls"]}}<|call|>)"},
      {R"({"type": "local_shell_call_output", "id": "lost", "output": "a.txt"})",
       "<|start|>functions.local_shell to=assistant"},
      {R"({"type": "web_search_call", "id": "w", "status": "completed",
           "action": {"type": "search", "query": "tiles"}})",
       R"([web_search_call: {"action":{"type":"search","query":"tiles"}}])"},
      {R"({"type": "mcp_call", "name": "get", "arguments": "{}", "output": "42", "server_label": "x"})",
       R"([mcp_call: {"name":"get","arguments":"{}","output":"42"}])"},
      {R"({"type": "image_generation_call", "id": "i", "result": "AAAA"})", "[image_generation_call: {}]"},
      {R"({"type": "compaction", "encrypted_content": "gAAAA"})", "compacted and cannot be read here"},
      {R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "4"},
           {"type": "input_image", "image_url": "data:"}]})",
       "4[image omitted"},
      {R"({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
          {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a", "stderr": ""}]})",
       "to=functions.shell"}};
  for (const auto& [items, told] : kTold)
    EXPECT_NE(prompt_of_items(items).find(told), std::string::npos) << items << "\n"
                                                                    << prompt_of_items(items);
}

TEST(ResponsesInput, PartsWithoutAMessageAreTheUsers) {
  EXPECT_EQ(prompt_of_items(R"({"type": "input_text", "text": "on"})"),
            prompt_of_items(R"({"role": "user", "content": "on"})"));
  EXPECT_NE(prompt_of_items(R"({"type": "input_file", "file_id": "x"})").find("[file omitted"),
            std::string::npos);
}

TEST(ResponsesInput, CallsInNamespacesAreToldAsTheirToolsAre) {
  const std::string body =
      R"({"input": [{"type": "function_call", "call_id": "c", "name": "get", "namespace": "a", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "c", "output": "4"}])";
  const std::string tools = R"(, "tools": [{"type": "namespace", "name": "a", "tools": [{"name": "get"}]}]})";
  const auto has = [](const std::string& prompt, const char* text) {
    return prompt.find(text) != std::string::npos;
  };
  EXPECT_TRUE(
      has(prompt_of(prepare_response(body + tools, service())), "<|start|>functions.a__get to=assistant"));
  EXPECT_TRUE(has(prompt_of(prepare_response(body + "}", service())), "<|start|>functions.get to=assistant"));
}

TEST(ResponsesInput, WhatSaysNothingToTheModelIsLeftOut) {
  const std::string without = prompt_of_items(R"({"role": "user", "content": "on"})");
  for (const char* item :
       {R"({"type": "mcp_list_tools", "tools": []})", R"({"type": "mcp_approval_request", "name": "x"})",
        R"({"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABforeign"})",
        R"({"type": "reasoning", "summary": []})", R"({"type": "ghost_snapshot", "ghost_commit": {}})"})
    EXPECT_EQ(prompt_of_items(std::string(item) + R"(, {"role": "user", "content": "on"})"), without) << item;
  const auto refused = [](const char* items) {
    return error_of(prepare_response(std::string(R"({"input": [)") + items + "]}", service()));
  };
  EXPECT_NE(refused(R"({"type": "item_reference", "id": "x"})").message.find("send the item itself"),
            std::string::npos);
  EXPECT_NE(refused(R"({"role": "user", "content": "a"}, {"type": "elephant"})").message.find("item 1"),
            std::string::npos);
  for (const char* wrong :
       {R"({"type": "mcp_list_tools"})", "5", "{}", R"({"type": "elephant_call"})",
        R"({"type": "_call_output"})", R"({"type": "function_call_output", "output": "x"})",
        R"({"type": "function_call", "call_id": "c", "name": "f", "arguments": {"a": 1}})",
        R"({"type": 5, "role": "user", "content": "a"})"})
    EXPECT_EQ(refused(wrong).http, 400) << wrong;
}

TEST(ChatHistory, MembersThatShouldBeTextAreRefused) {
  for (const char* message :
       {R"({"role": "user", "content": "a", "name": 5})",
        R"({"role": "assistant", "content": "a", "reasoning_content": 5})",
        R"({"role": "assistant", "tool_calls": [{"id": 5, "function": {"name": "f", "arguments": "{}"}}]})",
        R"({"role": "assistant", "content": "a", "tool_calls": 5})",
        R"({"role": "assistant", "content": "a", "function_call": "f"})"}) {
    const std::string body = std::string(R"({"messages": [)") + message + "]}";
    EXPECT_EQ(error_of(prepare_chat(body, service())).param, "messages") << message;
  }
  for (const char* tool : {R"({"type": "function", "function": {"name": "f", "description": 5}})",
                           R"({"type": 5, "function": {"name": "f"}})"}) {
    const std::string body =
        std::string(R"({"messages": [{"role": "user", "content": "a"}], "tools": [)") + tool + "]}";
    EXPECT_EQ(error_of(prepare_chat(body, service())).param, "tools") << tool;
  }
}

TEST(ResponsesInput, ReasoningComesBackSealed) {
  for (const std::string& text :
       {std::string(), std::string("a"), std::string("think \xE2\x9C\x93 hard"), std::string(1000, 'x')}) {
    const std::string sealed = seal_reasoning(text);
    EXPECT_EQ(unseal_reasoning(sealed), text);
    for (size_t i = 0; i < sealed.size(); i += 7) {
      std::string changed = sealed;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      EXPECT_NE(unseal_reasoning(changed).value_or("refused"), text) << i;
    }
    EXPECT_FALSE(unseal_reasoning(sealed.substr(0, sealed.size() / 2)));
  }
  for (const char* foreign : {"", "gAAAAAB", "moesaic-1.", "moesaic-1.0123456789abcdef!!"})
    EXPECT_FALSE(unseal_reasoning(foreign)) << foreign;
  const auto item = [](const std::string& members) {
    return prompt_of_items(R"({"type": "reasoning", "summary": [], )" + members + "}");
  };
  EXPECT_EQ(item(R"("encrypted_content": ")" + seal_reasoning("think") + "\""),
            item(R"("content": [{"type": "reasoning_text", "text": "think"}])"));
}

std::vector<Json> chunks_of(const std::string& sse) {
  std::vector<Json> chunks;
  for (size_t at = 0; (at = sse.find("data: {", at)) != std::string::npos; ++at)
    chunks.push_back(Json::parse(sse.substr(at + 6, sse.find('\n', at) - at - 6)));
  return chunks;
}

// ---- return_progress ----

// llama.cpp's form. The chunks have no role, by which clients measure the time to the first token.
TEST(ReturnProgress, IsAChunkWithoutText) {
  for (const auto& make : {chat, completion}) {
    PreparedRequest prepared = prepared_of(make(R"("return_progress": true, "stream": true)"));
    EXPECT_TRUE(prepared.progress);
    std::string sse;
    prepared.answer->add({.choice = 0, .read = ReadPrompt{{.tokens = 100, .cached = 32, .read = 64}, 12.7}},
                         &sse);
    const std::vector<Json> chunks = chunks_of(sse);
    ASSERT_EQ(chunks.size(), 1u);
    const Json progress = {{"total", 100}, {"cache", 32}, {"processed", 64}, {"time_ms", 12}};
    EXPECT_EQ(chunks[0]["prompt_progress"], progress);
    const Json& choice = chunks[0]["choices"].at(0);
    EXPECT_EQ(choice["finish_reason"], nullptr);
    EXPECT_EQ(choice.value("text", ""), "");
    EXPECT_EQ(choice.value("delta", Json::object()), Json::object());
  }
}

// ---- return_token_ids ----

// Tokens of a header and of text, the last one with the end or before it.
void play(Answer& answer, int choice, bool last_with_end, std::string* sse) {
  const auto add = [&](int32_t token, const char* channel, const char* text) {
    AnswerEvent event{.choice = choice, .token = SampledToken{.token = token}};
    if (*text != 0) event.pieces = {{.channel = channel, .recipient = {}, .text = text}};
    answer.add(event, sse);
  };
  add(1, "", "");
  add(2, "analysis", "th");
  add(3, "", "");
  add(4, "final", "x");
  AnswerEvent end{.choice = choice, .end = Outcome{.finish = FinishReason::kStop}};
  if (!last_with_end) add(9, "", "");
  if (last_with_end) end.token = SampledToken{.token = 9};
  answer.add(end, sse);
}

const Json& told_prompt(const Json& json) {
  return json.contains("prompt_token_ids") ? json["prompt_token_ids"]
                                           : json["choices"][0]["prompt_token_ids"];
}

// The form is vLLM's. In chat, tokens without text come with the next chunk: clients count those of chunks
// with text.
TEST(ReturnTokenIds, WholeAndStreamed) {
  const Json all = {1, 2, 3, 4, 9};
  for (const auto& make : {chat, completion}) {
    for (const bool last_with_end : {false, true}) {
      PreparedRequest prepared = prepared_of(make(R"("return_token_ids": true, "n": 2)"));
      const Json prompt = prepared.requests.at(0).prompt;
      for (const int choice : {0, 1}) play(*prepared.answer, choice, last_with_end, nullptr);
      const Json whole = Json::parse(prepared.answer->whole());
      for (const Json& choice : whole["choices"]) EXPECT_EQ(choice["token_ids"], all);
      EXPECT_EQ(told_prompt(whole), prompt);
      EXPECT_EQ(whole.contains("prompt_token_ids"), make == chat);

      PreparedRequest streamed = prepared_of(make(R"("return_token_ids": true, "stream": true)"));
      std::string sse;
      play(*streamed.answer, 0, last_with_end, &sse);
      const std::vector<Json> chunks = chunks_of(sse);
      EXPECT_EQ(told_prompt(chunks.at(0)), prompt);
      Json told = Json::array();
      for (const Json& chunk : chunks) {
        const Json ids = chunk["choices"][0].value("token_ids", Json::array());
        EXPECT_LE(ids.size(), make == chat ? 2u : 1u);
        const Json delta = chunk["choices"][0].value("delta", Json::object());
        EXPECT_EQ(delta.contains("reasoning") || !delta.value("content", "").empty(),
                  make == chat && ids.size() == 2);
        told.insert(told.end(), ids.begin(), ids.end());
        if (&chunk == chunks.data()) continue;
        EXPECT_FALSE(chunk.contains("prompt_token_ids") || chunk["choices"][0].contains("prompt_token_ids"));
      }
      EXPECT_EQ(told, all);
    }
    PreparedRequest prepared = prepared_of(make(""));
    play(*prepared.answer, 0, true, nullptr);
    EXPECT_EQ(prepared.answer->whole().find("token_ids"), std::string::npos);
  }
  EXPECT_EQ(error_of(response(R"("return_token_ids": true)")).param, "return_token_ids");
  const PreparedRequest two =
      prepared_of(prepare_completion(R"({"prompt": ["a", "b c"], "return_token_ids": true})", service()));
  for (const int choice : {0, 1}) play(*two.answer, choice, true, nullptr);
  const Json whole = Json::parse(two.answer->whole());
  for (const int i : {0, 1}) EXPECT_EQ(whole["choices"][i]["prompt_token_ids"], two.requests.at(i).prompt);
}

// ---- what Responses' answers hold where they are asked to ----

AnswerEvent event(int32_t token, const char* channel, const char* text) {
  AnswerEvent e{.token = SampledToken{.token = token, .logprobs = {.logprob = -0.5, .top = {{token, -0.5}}}}};
  if (*text != 0) e.pieces = {{.channel = channel, .recipient = {}, .text = text}};
  return e;
}

TEST(ResponsesAnswer, LogprobsOfMessagesWholeAndStreamed) {
  PreparedRequest prepared = prepared_of(response(
      R"("stream": true, "top_logprobs": 1, "include": ["message.output_text.logprobs", "reasoning.encrypted_content"])"));
  EXPECT_EQ(prepared.requests.at(0).sampling.top_logprobs, 1);
  std::string sse;
  const int32_t begins = service().model.tokenize("<|message|>", true).value()[0];
  prepared.answer->add(event(11, "analysis", "th"), &sse);
  prepared.answer->add(event(12, "", ""), &sse);  // a header
  prepared.answer->add(event(begins, "", ""), &sse);
  prepared.answer->add(event(13, "", ""), &sse);  // half a character
  prepared.answer->add(event(14, "final", "x"), &sse);
  prepared.answer->add(event(15, "final", "y"), &sse);
  prepared.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, &sse);
  const Json whole = Json::parse(prepared.answer->whole());
  EXPECT_EQ(whole["output"][0]["encrypted_content"], seal_reasoning("th"));
  const Json& part = whole["output"][1]["content"][0];
  ASSERT_EQ(part["logprobs"].size(), 3u);
  EXPECT_EQ(part["logprobs"][0]["logprob"], -0.5);
  EXPECT_EQ(part["logprobs"][0]["top_logprobs"].size(), 1u);
  Json streamed = Json::array();
  for (size_t at = 0; (at = sse.find("data: ", at)) != std::string::npos; ++at) {
    const Json data = Json::parse(sse.substr(at + 6, sse.find('\n', at) - at - 6));
    if (data["type"] == "response.output_text.delta")
      streamed.insert(streamed.end(), data["logprobs"].begin(), data["logprobs"].end());
    if (data["type"] == "response.output_text.done") {
      EXPECT_EQ(data["logprobs"], part["logprobs"]);
    }
  }
  EXPECT_EQ(streamed, part["logprobs"]);
}

TEST(ResponsesAnswer, NothingThatWasNotAskedFor) {
  PreparedRequest prepared = prepared_of(response(""));
  prepared.answer->add(event(11, "analysis", "th"), nullptr);
  prepared.answer->add(event(14, "final", "x"), nullptr);
  prepared.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, nullptr);
  const Json whole = Json::parse(prepared.answer->whole());
  EXPECT_FALSE(whole["output"][0].contains("encrypted_content"));
  EXPECT_TRUE(whole["output"][1]["content"][0]["logprobs"].empty());
}

TEST(Streams, NoCharacterOfAnAnswerCutsALine) {
  for (const auto& make : {chat, completion, response}) {
    PreparedRequest prepared = prepared_of(make(R"("stream": true)"));
    std::string sse;
    prepared.answer->add(event(11, "analysis", kLineBreaks), &sse);
    prepared.answer->add(event(14, "final", kLineBreaks), &sse);
    prepared.answer->add({.end = Outcome{.finish = FinishReason::kStop}}, &sse);
    prepared.answer->finish(sse);
    prepared.answer->fail({.message = kLineBreaks}, sse);
    EXPECT_FALSE(cuts_lines(sse)) << sse;
    std::string text;
    for (const Json& chunk : chunks_of(sse)) {
      if (chunk.value("type", "") == "response.output_text.delta") text += chunk["delta"];
      if (!chunk.contains("choices") || chunk["choices"].empty()) continue;
      const Json& choice = chunk["choices"][0];
      text += make == chat ? choice["delta"].value("content", "") : choice.value("text", "");
    }
    EXPECT_EQ(text, (make == completion ? std::string(kLineBreaks) : "") + kLineBreaks);
  }
}

}  // namespace
}  // namespace moesaic::openai

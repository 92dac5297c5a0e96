#include "four_apis.h"

#include <algorithm>
#include <map>

namespace moesaic::scripted {
namespace {

const Json kParameters = {{"type", "object"}, {"properties", {{"path", {{"type", "string"}}}}}};

Json messages_of(const Question& q) {
  Json all = q.before;
  if (!q.script.empty()) all.push_back({{"role", "user"}, {"content", std::string(kSay) + q.script}});
  return all;
}

Json functions() {
  Json tools = Json::array();
  for (const char* name : {kRead, kTime})
    tools.push_back({{"type", "function"}, {"function", {{"name", name}, {"parameters", kParameters}}}});
  return tools;
}

std::string text_of(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

// The data of server-sent events.
std::vector<Json> events_of(const std::string& text) {
  std::vector<Json> events;
  for (size_t at = 0; (at = text.find("data: ", at)) != std::string::npos;) {
    const size_t end = text.find('\n', at);
    const std::string data = text.substr(at + 6, end - at - 6);
    if (data != "[DONE]") events.push_back(Json::parse(data));
    at = end;
  }
  return events;
}

// Texts of one kind that an API gives apart.
void add_text(std::string& all, const std::string& text) {
  all += (all.empty() || text.empty() ? "" : "\n\n") + text;
}

// ---- OpenAI's chat completions

Json chat_body(const Question& q) {
  Json body = {{"messages", messages_of(q)}, {"tools", functions()}, {"temperature", 0}};
  body["stream_options"] = {{"include_usage", true}};
  if (q.limit > 0) body["max_tokens"] = q.limit;
  if (!q.stop.empty()) body["stop"] = q.stop;
  if (q.one_call) body["parallel_tool_calls"] = false;
  return body;
}

Said read_chat(const Json& answer) {
  const Json& choice = answer["choices"][0];
  const Json& message = choice["message"];
  Said said{.reasoning = text_of(message, "reasoning"),
            .content = text_of(message, "content"),
            .calls = {},
            .finish = choice["finish_reason"],
            .tokens = answer["usage"]["completion_tokens"]};
  EXPECT_EQ(text_of(message, "reasoning_content"), said.reasoning);
  for (const Json& call : message.value("tool_calls", Json::array()))
    said.calls.emplace_back(call["function"]["name"], call["function"]["arguments"]),
        said.ids.push_back(call["id"]);
  return said;
}

void add_chat_delta(const Json& choice, Said& said) {
  const Json& delta = choice["delta"];
  EXPECT_EQ(said.finish, "") << "nothing comes behind the end";
  said.reasoning += text_of(delta, "reasoning");
  said.content += text_of(delta, "content");
  said.finish = text_of(choice, "finish_reason");
  for (const Json& call : delta.value("tool_calls", Json::array())) {
    const auto index = call["index"].get<size_t>();
    ASSERT_LE(index, said.calls.size());
    if (index == said.calls.size())
      said.calls.emplace_back(call["function"]["name"], ""), said.ids.push_back(call["id"]);
    said.calls[index].second += call["function"]["arguments"].get<std::string>();
  }
}

Said read_chat_stream(const std::string& text) {
  Said said;
  for (const Json& event : events_of(text)) {
    if (event.contains("usage")) said.tokens = event["usage"]["completion_tokens"];
    for (const Json& choice : event["choices"]) add_chat_delta(choice, said);
  }
  return said;
}

void add_chat_answer(const Said& said, Json& history) {
  Json message = {{"role", "assistant"}, {"content", said.content}, {"reasoning_content", said.reasoning}};
  for (size_t i = 0; i < said.calls.size(); ++i)
    message["tool_calls"].push_back(
        {{"id", said.ids[i]},
         {"type", "function"},
         {"function", {{"name", said.calls[i].first}, {"arguments", said.calls[i].second}}}});
  history.push_back(std::move(message));
}

void add_chat_result(const Said& said, size_t call, const std::string& text, Json& history) {
  history.push_back({{"role", "tool"}, {"tool_call_id", said.ids[call]}, {"content", text}});
}

// ---- Responses

Json responses_body(const Question& q) {
  Json tools = Json::array();
  for (const Json& tool : functions()) {
    tools.push_back({{"type", "function"}});
    tools.back().update(tool["function"]);
  }
  Json body = {{"input", messages_of(q)}, {"tools", std::move(tools)}, {"temperature", 0}};
  if (q.limit > 0) body["max_output_tokens"] = q.limit;
  if (!q.stop.empty()) body["stop"] = q.stop;
  if (q.one_call) body["parallel_tool_calls"] = false;
  return body;
}

void add_item(const Json& item, Said& said) {
  if (item["type"] == "function_call") {
    EXPECT_EQ(item["status"], "completed");
    said.calls.emplace_back(item["name"], item["arguments"]), said.ids.push_back(item["call_id"]);
    return;
  }
  std::string text;
  for (const Json& part : item["content"]) text += part["text"].get<std::string>();
  add_text(item["type"] == "reasoning" ? said.reasoning : said.content, text);
}

Said read_response(const Json& answer) {
  Said said;
  for (const Json& item : answer["output"]) add_item(item, said);
  EXPECT_EQ(answer["status"], answer["incomplete_details"].is_null() ? "completed" : "incomplete");
  said.finish = answer["status"] == "incomplete" ? "length" : said.calls.empty() ? "stop" : "tool_calls";
  said.tokens = answer["usage"]["output_tokens"];
  return said;
}

// From the deltas; what the events of the ends repeat must be the same.
Said read_response_stream(const std::string& text) {
  Said said;
  std::map<size_t, std::string> open;
  Json last;
  for (const Json& event : events_of(text)) {
    const std::string type = event["type"];
    if (type.ends_with(".delta")) open[event["output_index"]] += event["delta"].get<std::string>();
    if (type == "response.output_item.done") {
      Said one;
      add_item(event["item"], one);
      EXPECT_EQ(one.reasoning + one.content + (one.calls.empty() ? "" : one.calls[0].second),
                open[event["output_index"]]);
      add_item(event["item"], said);
    }
    last = event;
  }
  const Said whole = read_response(last["response"]);
  said.finish = whole.finish, said.tokens = whole.tokens;
  EXPECT_EQ(said, whole) << "of response.completed";
  return said;
}

void add_items(const Said& said, Json& history) {
  const auto parts = [](const char* type, const std::string& text) {
    return Json::array({{{"type", type}, {"text", text}}});
  };
  if (!said.reasoning.empty())
    history.push_back({{"type", "reasoning"},
                       {"summary", Json::array()},
                       {"content", parts("reasoning_text", said.reasoning)}});
  if (!said.content.empty())
    history.push_back(
        {{"type", "message"}, {"role", "assistant"}, {"content", parts("output_text", said.content)}});
  for (size_t i = 0; i < said.calls.size(); ++i)
    history.push_back({{"type", "function_call"},
                       {"call_id", said.ids[i]},
                       {"name", said.calls[i].first},
                       {"arguments", said.calls[i].second}});
}

void add_item_result(const Said& said, size_t call, const std::string& text, Json& history) {
  history.push_back({{"type", "function_call_output"}, {"call_id", said.ids[call]}, {"output", text}});
}

// ---- Anthropic's messages

Json messages_body(const Question& q) {
  Json tools = Json::array();
  for (const Json& tool : functions())
    tools.push_back({{"name", tool["function"]["name"]}, {"input_schema", kParameters}});
  Json body = {{"model", "scripted"}, {"messages", messages_of(q)}, {"tools", std::move(tools)}};
  body["thinking"] = {{"type", "adaptive"}};
  body["temperature"] = 0;
  body["max_tokens"] = q.limit > 0 ? q.limit : 4000;
  if (!q.stop.empty()) body["stop_sequences"] = q.stop;
  if (q.one_call) body["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
  return body;
}

std::string reason_of(const Json& stop_reason) {
  const std::string reason = stop_reason;
  return reason == "max_tokens" ? "length" : reason == "tool_use" ? "tool_calls" : "stop";
}

void add_block(const Json& block, Said& said) {
  if (block["type"] == "thinking") add_text(said.reasoning, block["thinking"]);
  if (block["type"] == "text") add_text(said.content, block["text"]);
  if (block["type"] != "tool_use") return;
  said.calls.emplace_back(block["name"], block["input"].dump()), said.ids.push_back(block["id"]);
}

Said read_message(const Json& answer) {
  Said said{.finish = reason_of(answer["stop_reason"]), .tokens = answer["usage"]["output_tokens"]};
  for (const Json& block : answer["content"]) add_block(block, said);
  return said;
}

Said read_message_stream(const std::string& text) {
  Said said;
  Json block;
  std::string input;
  for (const Json& event : events_of(text)) {
    const std::string type = event["type"];
    if (type == "content_block_start") block = event["content_block"], input.clear();
    if (type == "content_block_delta") {
      const Json& delta = event["delta"];
      for (const char* key : {"thinking", "text"})
        if (delta.contains(key)) block[key] = text_of(block, key) + text_of(delta, key);
      input += text_of(delta, "partial_json");
    }
    if (type == "content_block_stop") {
      if (!input.empty()) block["input"] = Json::parse(input);
      add_block(block, said);
    }
    if (type == "message_delta") {
      said.finish = reason_of(event["delta"]["stop_reason"]);
      said.tokens = event["usage"]["output_tokens"];
    }
  }
  return said;
}

void add_blocks(const Said& said, Json& history) {
  Json blocks = Json::array();
  if (!said.reasoning.empty())
    blocks.push_back({{"type", "thinking"}, {"thinking", said.reasoning}, {"signature", ""}});
  if (!said.content.empty()) blocks.push_back({{"type", "text"}, {"text", said.content}});
  for (size_t i = 0; i < said.calls.size(); ++i)
    blocks.push_back({{"type", "tool_use"},
                      {"id", said.ids[i]},
                      {"name", said.calls[i].first},
                      {"input", Json::parse(said.calls[i].second)}});
  history.push_back({{"role", "assistant"}, {"content", std::move(blocks)}});
}

// The results of one answer's calls are one message.
void add_result_block(const Said& said, size_t call, const std::string& text, Json& history) {
  if (call == 0) history.push_back({{"role", "user"}, {"content", Json::array()}});
  history.back()["content"].push_back(
      {{"type", "tool_result"}, {"tool_use_id", said.ids[call]}, {"content", text}});
}

// ---- Ollama's chat

Json ollama_body(const Question& q) {
  Json body = {{"model", "scripted"}, {"messages", messages_of(q)}, {"tools", functions()}};
  body["options"] = {{"temperature", 0}};
  if (q.limit > 0) body["options"]["num_predict"] = q.limit;
  if (!q.stop.empty()) body["options"]["stop"] = q.stop;
  return body;
}

void add_line(const Json& line, Said& said) {
  const Json& message = line["message"];
  said.reasoning += text_of(message, "thinking");
  said.content += text_of(message, "content");
  for (const Json& call : message.value("tool_calls", Json::array())) {
    EXPECT_EQ(call["function"]["index"], said.calls.size());
    said.calls.emplace_back(call["function"]["name"], call["function"]["arguments"].dump());
  }
  if (line["done"] != true) return;
  said.tokens = line["eval_count"];
  said.finish = line["done_reason"] == "stop" && !said.calls.empty() ? "tool_calls" : line["done_reason"];
}

Said read_ollama(const Json& answer) {
  Said said;
  add_line(answer, said);
  return said;
}

void add_ollama_answer(const Said& said, Json& history) {
  Json message = {{"role", "assistant"}, {"content", said.content}, {"thinking", said.reasoning}};
  for (const auto& [name, arguments] : said.calls)
    message["tool_calls"].push_back({{"function", {{"name", name}, {"arguments", Json::parse(arguments)}}}});
  history.push_back(std::move(message));
}

void add_ollama_result(const Said& said, size_t call, const std::string& text, Json& history) {
  history.push_back({{"role", "tool"}, {"tool_name", said.calls[call].first}, {"content", text}});
}

Said read_ollama_stream(const std::string& text) {
  Said said;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    add_line(Json::parse(text.substr(at, end - at)), said);
    at = end + 1;
  }
  return said;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Said& said) {
  out << "reasoning {" << said.reasoning << "} content {" << said.content << "}";
  for (const auto& [name, arguments] : said.calls) out << " " << name << "(" << arguments << ")";
  return out << " " << said.finish << ", " << said.tokens << " tokens";
}

bool begins(const Said& cut, const Said& whole) {
  return whole.reasoning.starts_with(cut.reasoning) && whole.content.starts_with(cut.content) &&
         cut.calls.size() <= whole.calls.size() &&
         std::equal(cut.calls.begin(), cut.calls.end(), whole.calls.begin());
}

Said Api::ask(const ScriptedServer& server, const Question& question, bool stream) const {
  Json json = body(question);
  json["stream"] = stream;
  return stream ? streamed(server.post(path, json)) : whole(server.ask(path, json));
}

const std::vector<Api>& apis() {
  static const std::vector<Api> all = {{"chat", "/v1/chat/completions", false, true, chat_body, read_chat,
                                        read_chat_stream, add_chat_answer, add_chat_result},
                                       {"responses", "/v1/responses", false, true, responses_body,
                                        read_response, read_response_stream, add_items, add_item_result},
                                       {"messages", "/v1/messages", true, true, messages_body, read_message,
                                        read_message_stream, add_blocks, add_result_block},
                                       {"ollama", "/api/chat", true, false, ollama_body, read_ollama,
                                        read_ollama_stream, add_ollama_answer, add_ollama_result}};
  return all;
}

}  // namespace moesaic::scripted

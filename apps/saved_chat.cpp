#include "saved_chat.h"

#include <nlohmann/json.hpp>

#include "openai/spliced_json.h"
#include "text/harmony.h"
#include "text/limited_json.h"

namespace moesaic::app {
namespace {

nlohmann::ordered_json json_of(const Message& m) {
  nlohmann::ordered_json json = {{"role", m.role}};
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  };
  add("name", m.name);
  add("recipient", m.recipient);
  add("channel", m.channel);
  add("content_type", m.content_type);
  json["content"] = m.text;
  return json;
}

nlohmann::ordered_json json_of(const Tool& tool) {
  nlohmann::ordered_json json = {{"name", tool.name}, {"description", tool.description}};
  if (!tool.parameters.empty()) json["parameters"] = tool.parameters.parsed()->value;
  return json;
}

}  // namespace

std::string json_of(const Conversation& conversation) {
  const Conversation standard;
  nlohmann::ordered_json json = {{"instructions", conversation.instructions},
                                 {"reasoning_effort", effort_name(conversation.reasoning_effort)}};
  if (conversation.model_identity != standard.model_identity)
    json["model_identity"] = conversation.model_identity;
  if (conversation.knowledge_cutoff != standard.knowledge_cutoff)
    json["knowledge_cutoff"] = conversation.knowledge_cutoff;
  for (const Tool& tool : conversation.tools) json["tools"].push_back(json_of(tool));
  json["messages"] = nlohmann::ordered_json::array();
  for (const Message& m : conversation.messages) json["messages"].push_back(json_of(m));
  return openai::dump(json) + "\n";
}

}  // namespace moesaic::app

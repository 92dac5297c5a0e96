#include "ollama/model_list.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include "base/file_cache.h"
#include "ollama/chat_request.h"
#include "openai/fields.h"
#include "openai/generation_fields.h"
#include "openai/sse.h"

namespace moesaic::ollama {
namespace {

using openai::Json;

std::string rfc3339(std::time_t time) { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(time)); }

Json details() {
  return {{"parent_model", ""},     {"format", "gguf"},     {"family", "gptoss"},
          {"families", {"gptoss"}}, {"parameter_size", ""}, {"quantization_level", "MXFP4"}};
}

// Sixty-four hexadecimal digits that are the same for the same name.
std::string digest_of(const std::string& name) {
  std::string digest, names;
  for (int part = 0; part < 4; ++part) digest += fmt::format("{:016x}", fnv1a(names += name));
  return digest;
}

Json entry(const std::string& name, int64_t size) {
  return {
      {"name", name}, {"model", name}, {"size", size}, {"digest", digest_of(name)}, {"details", details()}};
}

}  // namespace

// Ollama's size of a model that is there is that of its files, and of one that runs that of the memory it
// takes, KV cache included.
std::string tags_json(const std::string& name, const ModelInfo& info, std::time_t since) {
  Json model = entry(name, info.stored_bytes);
  model["modified_at"] = rfc3339(since);
  return openai::dump({{"models", Json::array({model})}});
}

std::string running_json(const std::string& name, const ModelInfo& info, std::time_t since) {
  constexpr std::time_t kYear = 365L * 24 * 3600;  // the model stays loaded
  Json model = entry(name, info.memory.sum());
  model["expires_at"] = rfc3339(since + 100 * kYear);
  model["size_vram"] = info.device.backend == "cuda" ? info.memory.sum() : 0;
  model["context_length"] = info.context;
  return openai::dump({{"models", Json::array({model})}});
}

openai::TokenAnswerOrError show(std::string_view body, const openai::Service& service) {
  const Result<Json> root = openai::parse_object(body);
  if (!root.ok()) return openai::api_error(root.status());
  openai::Fields fields(root.value());
  std::string name;
  fields.read("name", name);
  read_served_model(fields, service, name);
  if (!fields.ok()) return *fields.refusal();
  const Json info = {{"general.architecture", "gptoss"},
                     {"general.basename", service.name},
                     {"gptoss.context_length", service.model.context()},
                     {"gptoss.vocab_size", service.model.vocab()}};
  return openai::TokenAnswer{openai::dump({{"license", ""},
                                           {"modelfile", ""},
                                           {"parameters", fmt::format("num_ctx {}", service.model.context())},
                                           {"template", ""},
                                           {"details", details()},
                                           {"model_info", info},
                                           {"capabilities", {"completion", "tools", "thinking"}},
                                           {"modified_at", rfc3339(service.started)}}),
                             {}};
}

}  // namespace moesaic::ollama

#include "server/ollama_handlers.h"

#include "ollama/chat_request.h"
#include "ollama/model_list.h"
#include "openai/sse.h"
#include "server/generation.h"
#include "server/handlers.h"

namespace moesaic::server {
namespace {

using ListJson = std::string (*)(const std::string& name, const ModelInfo& info, std::time_t since);

asio::awaitable<void> send_list(HttpExchange& exchange, App& app, ListJson list) {
  if (const auto refusal = unavailable(app)) {
    co_await send_error(exchange, *refusal);
    co_return;
  }
  std::string text = list(app.options.model_name, app.engine.model()->info(), app.started);
  co_await send_json(exchange, std::move(text));
}

}  // namespace

asio::awaitable<void> ollama_version(HttpExchange& exchange, App&) {
  return send_json(exchange, openai::dump({{"version", ollama::kApiVersion}}));
}

asio::awaitable<void> ollama_tags(HttpExchange& exchange, App& app) {
  return send_list(exchange, app, ollama::tags_json);
}

asio::awaitable<void> ollama_ps(HttpExchange& exchange, App& app) {
  return send_list(exchange, app, ollama::running_json);
}

asio::awaitable<void> ollama_show(HttpExchange& exchange, App& app) {
  return convert(exchange, app, ollama::show);
}

asio::awaitable<void> ollama_chat(HttpExchange& exchange, App& app) {
  return generate(exchange, app, ollama::prepare_chat);
}

asio::awaitable<void> ollama_generate(HttpExchange& exchange, App& app) {
  return generate(exchange, app, ollama::prepare_generate);
}

}  // namespace moesaic::server

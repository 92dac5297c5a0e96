#include "server/handlers.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "ollama/model_list.h"
#include "openai/fields.h"
#include "openai/sse.h"
#include "server/client.h"
#include "server/generation.h"
#include "server/prepare.h"
#include "server/router.h"

namespace moesaic::server {
namespace {

using openai::ApiError;
using openai::Json;

asio::awaitable<void> send_unless(const openai::Refusal& refusal, HttpExchange& exchange, Json json) {
  if (refusal) {
    co_await send_error(exchange, *refusal);
  } else {
    co_await send_json(exchange, json);
  }
}

Json health_json(const App& app) {
  Json json = {{"status", "ok"}};
  if (app.engine.state() == EngineThread::State::kLoading)
    json["loading"] = app.engine.loaded_percent() / 100.0;
  return json;
}

Json model_json(const App& app) {
  return {{"id", app.options.model_name},
          {"object", "model"},
          {"created", app.started},
          {"owned_by", app.options.owned_by},
          {"max_model_len", app.engine.model()->context()},
          // Anthropic's API has these members.
          {"type", "model"},
          {"display_name", app.options.model_name},
          {"created_at", fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(app.started))}};
}

// The value of the first parameter of this name; empty where there is none.
std::string_view parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = pair.find('=');
    if (equals != std::string_view::npos && pair.substr(0, equals) == name) return pair.substr(equals + 1);
  }
  return {};
}

ApiError no_such_response(const std::string& id) {
  return openai::not_found(fmt::format("there is no stored response '{}'", id.substr(0, 80)),
                           "response_not_found");
}

ApiError no_stored_events() {
  return {.message = "stream: not supported except for false; a stored response is whole, without its events",
          .param = "stream"};
}

// Bytes; null where they are not known.
Json bytes_json(int64_t bytes) { return bytes < 0 ? Json() : Json(bytes); }

Json info_json(const App& app) {
  const ModelInfo info = app.engine.model()->info();
  const DeviceInfo& d = info.device;
  return {{"model", app.options.model_name},
          {"version", app.options.version},
          {"device",
           {{"name", d.name},
            {"backend", d.backend},
            {"description", d.description},
            {"architecture", d.architecture},
            {"memory_total", bytes_json(d.memory_total)},
            {"memory_free", bytes_json(d.memory_free)},
            {"reason", info.device_reason}}},
          {"memory_used", info.memory.sum()},
          {"memory",
           {{"weights", info.memory.weights},
            {"kv_cache", info.memory.kv_cache},
            {"workspace", info.memory.workspace}}},
          {"context", {{"tokens", info.context}, {"reason", info.context_reason}}},
          {"kv_cache", {{"tokens", info.kv_tokens}, {"reason", info.kv_reason}}},
          {"max_batch", info.max_batch},
          // These are SGLang's names, for routers.
          {"served_model_name", app.options.model_name},
          {"model_path", app.options.model_name},
          {"context_length", info.context},
          {"max_total_num_tokens", info.kv_tokens},
          {"max_running_requests", info.max_batch},
          {"tp_size", info.tp},
          {"dp_size", 1}};
}

ApiError not_now(std::string message, const char* code, int retry_after) {
  return {.http = 503,
          .message = std::move(message),
          .type = "server_error",
          .code = code,
          .retry_after = retry_after};
}

}  // namespace

HttpAnswer error_answer(const ApiError& error, const HttpRequest& request) {
  HttpAnswer answer{.status = error.http, .body = error_body(request, error)};
  if (error.retry_after > 0) answer.headers.emplace_back("Retry-After", std::to_string(error.retry_after));
  if (error.http == 415) answer.headers.emplace_back("Accept-Encoding", "identity");
  if (error.http == 401) answer.headers.emplace_back("WWW-Authenticate", "Bearer");
  return answer;
}

asio::awaitable<void> send_json(HttpExchange& exchange, std::string json) {
  HttpAnswer answer{.body = std::move(json)};
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> send_json(HttpExchange& exchange, const Json& json) {
  return send_json(exchange, openai::dump(json));
}

asio::awaitable<void> convert(HttpExchange& exchange, App& app, Convert convert_body) {
  openai::TokenAnswerOrError result = co_await prepare(exchange, app, convert_body, deadline_of(app));
  if (exchange.gone().stop_requested()) co_return;
  HttpAnswer answer;
  if (const auto* error = std::get_if<ApiError>(&result)) {
    answer = error_answer(*error, exchange.request());
  } else {
    auto& made = std::get<openai::TokenAnswer>(result);
    report_ignored_fields(exchange, app, made.unknown);
    answer.body = std::move(made.json);
  }
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> send_error(HttpExchange& exchange, const ApiError& error) {
  HttpAnswer answer = error_answer(error, exchange.request());
  co_await exchange.send(std::move(answer));
}

ApiError busy() {
  return {.http = 429,
          .message = "the server has as many requests as it takes; try again",
          .type = "rate_limit_error",
          .code = "queue_full",
          .retry_after = 1};
}

ApiError shutting_down() { return not_now("the server is going down", "shutting_down", 10); }

ApiError timed_out() {
  return {.http = 504, .message = "the answer took too long", .type = "server_error", .code = "timeout"};
}

openai::Refusal unavailable(const App& app) {
  switch (app.engine.state()) {
    case EngineThread::State::kLoading:
      return not_now(fmt::format("the model is being loaded ({}%)", app.engine.loaded_percent()),
                     "model_loading", 5);
    case EngineThread::State::kFailed:
      return not_now("the engine has failed: " + app.engine.failure().message(), "engine_failed", 0);
    default:
      break;
  }
  if (app.draining.stop_requested()) return shutting_down();
  return {};
}

asio::awaitable<void> health(HttpExchange& exchange, App& app) {
  openai::Refusal refusal;
  if (app.engine.state() == EngineThread::State::kFailed) refusal = unavailable(app);
  co_await send_unless(refusal, exchange, health_json(app));
}

asio::awaitable<void> ready(HttpExchange& exchange, App& app) {
  co_await send_unless(unavailable(app), exchange, health_json(app));
}

asio::awaitable<void> version(HttpExchange& exchange, App& app) {
  return send_json(exchange, openai::dump({{"version", app.options.version}}));
}

asio::awaitable<void> server_info(HttpExchange& exchange, App& app) {
  return send_json(exchange, info_json(app));
}

asio::awaitable<void> metrics(HttpExchange& exchange, App& app) {
  Gauges gauges = app.engine.gauges();
  for (const Lane lane : {Lane::kQuick, Lane::kMedium, Lane::kLarge})
    gauges.preparing += app.workers.tasks(lane);
  HttpAnswer answer{.body = app.metrics.text(gauges),
                    .content_type = "text/plain; version=0.0.4; charset=utf-8"};
  co_await exchange.send(std::move(answer));
}

asio::awaitable<void> models(HttpExchange& exchange, App& app) {
  return send_json(exchange, openai::dump({{"object", "list"},
                                           {"data", Json::array({model_json(app)})},
                                           {"first_id", app.options.model_name},
                                           {"last_id", app.options.model_name},
                                           {"has_more", false}}));
}

asio::awaitable<void> model_by_id(HttpExchange& exchange, App& app) {
  openai::Refusal refusal;
  const std::string id = model_id(exchange.request().path);
  if (id != app.options.model_name) refusal = openai::model_not_found(id, app.options.model_name);
  co_await send_unless(refusal, exchange, model_json(app));
}

openai::Service service_of(App& app, const HttpRequest& request) {
  return {.model = *app.engine.model(),
          .name = app.options.model_name,
          .today = fmt::format("{:%Y-%m-%d}", fmt::localtime(std::time(nullptr))),
          .started = app.started,
          .reasoning_budget = app.options.reasoning_budget,
          .strict_fields = app.options.strict_fields,
          .grammars = &app.grammars,
          .responses = app.responses.enabled() ? &app.responses : nullptr,
          .client = request.authorization,
          .holder = client_of(request, app.options)};
}

asio::awaitable<void> stored_response(HttpExchange& exchange, App& app) {
  const std::string_view stream = parameter(exchange.request().query, "stream");
  if (!stream.empty() && stream != "false") {
    const ApiError error = no_stored_events();
    co_await send_error(exchange, error);
    co_return;
  }
  const std::string id = response_id(exchange.request().path);
  const auto stored = app.responses.find(id, exchange.request().authorization);
  if (stored) {
    std::string response = stored->response;
    co_await send_json(exchange, std::move(response));
  } else {
    co_await send_error(exchange, no_such_response(id));
  }
}

asio::awaitable<void> delete_response(HttpExchange& exchange, App& app) {
  const std::string id = response_id(exchange.request().path);
  if (app.responses.erase(id, exchange.request().authorization)) {
    const Json json = {{"id", id}, {"object", "response"}, {"deleted", true}};
    co_await send_json(exchange, json);
  } else {
    co_await send_error(exchange, no_such_response(id));
  }
}

asio::awaitable<void> ollama_version(HttpExchange& exchange, App&) {
  return send_json(exchange, openai::dump({{"version", ollama::kApiVersion}}));
}

asio::awaitable<void> ollama_tags(HttpExchange& exchange, App& app) {
  return send_json(exchange,
                   ollama::tags_json(app.options.model_name, app.engine.model()->info(), app.started));
}

asio::awaitable<void> ollama_ps(HttpExchange& exchange, App& app) {
  return send_json(exchange,
                   ollama::running_json(app.options.model_name, app.engine.model()->info(), app.started));
}

}  // namespace moesaic::server

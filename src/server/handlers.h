// The endpoints. Which of them need an App that is available is in router.cpp.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "openai/api_error.h"
#include "server/app.h"
#include "server/http.h"
#include "server/prepare.h"

namespace moesaic::server {

// In the words of the API that the request belongs to.
HttpAnswer error_answer(const openai::ApiError& error, const HttpRequest& request);
asio::awaitable<void> send_json(HttpExchange& exchange, std::string json);
asio::awaitable<void> send_json(HttpExchange& exchange, const openai::Json& json);
// For an App that is available. Answers with what the worker pool makes of the body.
asio::awaitable<void> convert(HttpExchange& exchange, App& app, Convert convert_body);
asio::awaitable<void> send_error(HttpExchange& exchange, const openai::ApiError& error);
// While loading, draining or after a failure: why nothing can be generated.
openai::Refusal unavailable(const App& app);
// The server has as much to do as it takes.
openai::ApiError busy();
openai::ApiError shutting_down();
openai::ApiError timed_out();
// For an App that is available.
openai::Service service_of(App& app, const HttpRequest& request);

asio::awaitable<void> health(HttpExchange& exchange, App& app);
asio::awaitable<void> ready(HttpExchange& exchange, App& app);
asio::awaitable<void> version(HttpExchange& exchange, App& app);
asio::awaitable<void> server_info(HttpExchange& exchange, App& app);
asio::awaitable<void> metrics(HttpExchange& exchange, App& app);
asio::awaitable<void> models(HttpExchange& exchange, App& app);
asio::awaitable<void> model_by_id(HttpExchange& exchange, App& app);
asio::awaitable<void> stored_response(HttpExchange& exchange, App& app);
asio::awaitable<void> delete_response(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_version(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_tags(HttpExchange& exchange, App& app);
asio::awaitable<void> ollama_ps(HttpExchange& exchange, App& app);

}  // namespace moesaic::server

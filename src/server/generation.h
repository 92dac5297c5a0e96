// From a request's body to its answer, for every endpoint that generates.
#pragma once

#include <boost/asio/awaitable.hpp>

#include "server/app.h"
#include "server/http.h"
#include "server/prepare.h"

namespace moesaic::server {

// For an App that is available. Answers the request: whole, as server-sent events, or with an error. When it
// returns, its generations have ended or are cancelled.
asio::awaitable<void> generate(HttpExchange& exchange, App& app, PrepareRequest prepare_request);

// Reports the unknown fields of a request: to its client, and each once to the log.
void report_ignored_fields(HttpExchange& exchange, App& app, const openai::UnknownFields& unknown);

}  // namespace moesaic::server

// From a request's body to its answer, for every endpoint that generates.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string_view>

#include "openai/answer.h"
#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

using MakeJob = openai::JobOrError (*)(std::string_view body, const openai::Service& service);

// Answers the request: whole, as server-sent events, or with an error. When it returns, its generations have
// ended or are cancelled.
asio::awaitable<void> generate(Exchange& exchange, App& app, MakeJob make_job);

}  // namespace moesaic::server

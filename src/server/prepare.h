// The first part of a request: from its body to a PreparedRequest, or to an answer that needs no engine. It
// runs on the worker pool, so that neither the sockets' threads nor the engine's wait for it.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <string_view>

#include "openai/answer.h"
#include "openai/token_requests.h"
#include "server/app.h"
#include "server/http.h"

namespace moesaic::server {

using PrepareRequest = openai::PreparedRequestOrError (*)(std::string_view body,
                                                          const openai::Service& service);
using Convert = openai::TokenAnswerOrError (*)(std::string_view body, const openai::Service& service);

// For an App that is available. Takes the exchange's body. If the client has left meanwhile, the result is to
// be dropped.
asio::awaitable<openai::PreparedRequestOrError> prepare(HttpExchange& exchange, App& app, PrepareRequest make,
                                                        Clock::time_point deadline);
asio::awaitable<openai::TokenAnswerOrError> prepare(HttpExchange& exchange, App& app, Convert make,
                                                    Clock::time_point deadline);

// When the answer to a request that begins now must be complete.
Clock::time_point deadline_of(const App& app);

}  // namespace moesaic::server

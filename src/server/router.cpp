#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "server/handlers.h"
#include "server/keys.h"

namespace moesaic::server {
namespace {

using Handler = asio::awaitable<void> (*)(Exchange&, App&);

struct Route {
  std::string_view method, path;
  bool open;  // to requests without a key
  Handler handler;
};

constexpr std::array kRoutes = {
    Route{"GET", "/", true, page},
    Route{"GET", "/health", true, health},
    Route{"GET", "/ready", true, ready},
    Route{"GET", "/version", true, version},
    Route{"GET", "/metrics", true, metrics},
    Route{"GET", "/v1/models", false, models},
    Route{"POST", "/v1/chat/completions", false, chat_completions},
    Route{"POST", "/v1/completions", false, completions},
    Route{"POST", "/v1/responses", false, responses},
    Route{"POST", "/tokenize", false, tokenize},
    Route{"POST", "/detokenize", false, detokenize},
};

bool known_path(std::string_view path) {
  return std::any_of(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return r.path == path; });
}

const Route* find_route(const HttpRequest& request) {
  const auto at = std::find_if(kRoutes.begin(), kRoutes.end(), [&](const Route& r) {
    return r.path == request.path && r.method == request.method;
  });
  return at == kRoutes.end() ? nullptr : &*at;
}

}  // namespace

openai::Refusal check_access(const HttpRequest& request, const App& app) {
  const Route* route = find_route(request);
  if (route == nullptr && known_path(request.path))
    return openai::ApiError{.http = 405,
                            .message = fmt::format("{} does not take {}", request.path, request.method),
                            .code = "method_not_allowed"};
  if (route == nullptr)
    return openai::not_found(fmt::format("there is no {}", request.path.substr(0, 200)), "not_found");
  if (route->open || app.options.api_keys.empty() || is_key(request.authorization, app.options.api_keys))
    return {};
  return openai::ApiError{.http = 401,
                          .message = "this server needs an API key: Authorization: Bearer KEY",
                          .type = "authentication_error",
                          .code = "invalid_api_key"};
}

asio::awaitable<void> route(Exchange& exchange, App& app) {
  const Route* found = find_route(exchange.request());  // check_access let it pass
  exchange.record().route = found->path;
  co_await found->handler(exchange, app);
}

}  // namespace moesaic::server

#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "anthropic/error.h"
#include "ollama/error.h"
#include "server/handlers.h"
#include "server/keys.h"
#include "server/llama_handlers.h"
#include "server/ollama_handlers.h"
#include "server/page.h"

namespace moesaic::server {
namespace {

using Handler = asio::awaitable<void> (*)(HttpExchange&, App&);

struct Route {
  std::string_view method, path;  // a path that ends in '/' takes what follows too
  bool open;                      // to requests without a key
  Handler handler;
};

constexpr std::array kRoutes = {
    Route{"GET", "/", true, page},
    Route{"GET", "/page/", true, page_file},
    Route{"GET", "/health", true, health},
    Route{"GET", "/ready", true, ready},
    Route{"GET", "/version", true, version},
    Route{"GET", "/metrics", true, metrics},
    Route{"GET", "/server_info", false, server_info},
    Route{"GET", "/v1/models", false, models},
    Route{"GET", "/v1/models/", false, model_by_id},
    Route{"POST", "/v1/chat/completions", false, chat_completions},
    Route{"POST", "/v1/completions", false, completions},
    Route{"POST", "/v1/responses", false, responses},
    Route{"POST", "/v1/responses/input_tokens", false, input_tokens},
    Route{"GET", "/v1/responses/", false, stored_response},
    Route{"DELETE", "/v1/responses/", false, delete_response},
    Route{"POST", "/v1/messages", false, messages},
    Route{"POST", "/v1/messages/count_tokens", false, count_tokens},
    Route{"GET", "/props", false, llama_props},
    Route{"GET", "/slots", false, llama_slots},
    Route{"GET", "/api/version", true, ollama_version},
    Route{"GET", "/api/tags", false, ollama_tags},
    Route{"GET", "/api/ps", false, ollama_ps},
    Route{"POST", "/api/show", false, ollama_show},
    Route{"POST", "/api/chat", false, ollama_chat},
    Route{"POST", "/api/generate", false, ollama_generate},
    Route{"POST", "/tokenize", false, tokenize},
    Route{"POST", "/apply-template", false, apply_template},
    Route{"POST", "/detokenize", false, detokenize},
};

// Endpoints of the four APIs that clients ask for and that are not here, and what to do instead. The first
// that a path begins with counts.
struct Absent {
  std::string_view path, instead;
};
constexpr std::string_view kOneModel =
                               "the server has one model, which it was started with (moesaic serve -m MODEL)",
                           kTextOnly = "the model reads and writes text, and makes no embeddings",
                           kNoFiles = "the server keeps no files; send texts in the messages";
constexpr std::array kAbsent = {
    Absent{"/api/pull", kOneModel},
    Absent{"/api/push", kOneModel},
    Absent{"/api/create", kOneModel},
    Absent{"/api/copy", kOneModel},
    Absent{"/api/delete", kOneModel},
    Absent{"/api/blobs", kOneModel},
    Absent{"/api/embed", kTextOnly},
    Absent{"/v1/embeddings", kTextOnly},
    Absent{"/v1/audio", kTextOnly},
    Absent{"/v1/images", kTextOnly},
    Absent{"/v1/moderations", kTextOnly},
    Absent{"/v1/rerank", kTextOnly},
    Absent{"/v1/score", kTextOnly},
    Absent{"/v1/files", kNoFiles},
    Absent{"/v1/vector_stores", kNoFiles},
    Absent{"/v1/messages/batches", "send the requests to /v1/messages, several at a time"},
    Absent{"/v1/batches", "send the requests one by one, several at a time"},
    Absent{"/v1/complete", "use /v1/messages"},
    Absent{"/v1/assistants", "use /v1/responses"},
    Absent{"/v1/threads", "use /v1/responses"},
    Absent{"/v1/conversations", "use previous_response_id of /v1/responses"},
    Absent{"/v1/responses/compact", "send the items that matter as input"},
    Absent{"/v1/responses/", "GET and DELETE take /v1/responses/{id}, and nothing behind the id"},
    Absent{"/v1/fine_tuning", "give the server an adapter at its start (moesaic serve --lora)"},
    Absent{"/v1/infill", "the model was not trained to fill in"},
    Absent{"/v1/completion", "use /v1/completions"},
    Absent{"/v1/lora-adapters", "adapters are given at the server's start (--lora)"},
    Absent{"/v1/slots/", "the server keeps and finds prompts by itself"},
};

constexpr std::string_view kVersion = "/v1", kModels = "/models/", kResponses = "/responses/";

// A path that ends with a slash goes on with a name. That of a model or of the page's file may hold slashes,
// a response's id holds none, and no name is the last part of another route's path.
bool is_at(const Route& route, std::string_view path) {
  const bool begins = route.path.size() > 1 && route.path.ends_with('/');
  if (!begins) return path == route.path;
  if (path.size() <= route.path.size() || !path.starts_with(route.path)) return false;
  if (std::any_of(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return r.path == path; }))
    return false;
  return !route.path.ends_with(kResponses) || path.find('/', route.path.size()) == std::string_view::npos;
}

// Clients that were given the server's address without /v1 find it too.
bool matches(const Route& route, const std::string& path) {
  return is_at(route, path) ||
         (route.path.starts_with(kVersion) && is_at(route, std::string(kVersion) + path));
}

// Without the slashes too many that a base address with a slash at its end brings.
std::string plain(std::string_view path) {
  std::string out;
  for (const char c : path) {
    if (c != '/' || !out.ends_with('/')) out += c;
  }
  if (out.size() > 1 && out.ends_with('/')) out.pop_back();
  return out;
}

std::string instead_of(const std::string& path) {
  const auto at = std::find_if(kAbsent.begin(), kAbsent.end(), [&](const Absent& a) {
    return path.starts_with(a.path) || (std::string(kVersion) + path).starts_with(a.path);
  });
  return at == kAbsent.end() ? "" : fmt::format(": {}", at->instead);
}

bool is_absent(const std::string& path) {
  return std::any_of(kAbsent.begin(), kAbsent.end(), [&](const Absent& a) {
    return path == a.path || std::string(kVersion) + path == a.path;
  });
}

// An endpoint that is not here may lie where another method finds a response by its id.
bool known_path(const std::string& path) {
  return !is_absent(path) &&
         std::any_of(kRoutes.begin(), kRoutes.end(), [&](const Route& r) { return matches(r, path); });
}

const Route* find_route(const HttpRequest& request) {
  const auto at =
      std::find_if(kRoutes.begin(), kRoutes.end(), [&, path = plain(request.path)](const Route& r) {
        return r.method == request.method && matches(r, path);
      });
  return at == kRoutes.end() ? nullptr : &*at;
}

int hex_digit(char c) {
  const auto at = std::string_view("0123456789abcdef")
                      .find(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  return at == std::string_view::npos ? -1 : static_cast<int>(at);
}

// %2F is a slash; a '%' that begins no such thing stands for itself.
std::string percent_decoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool escapes = text[i] == '%' && i + 2 < text.size();
    const int high = escapes ? hex_digit(text[i + 1]) : -1, low = escapes ? hex_digit(text[i + 2]) : -1;
    if (high < 0 || low < 0) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return out;
}

}  // namespace

openai::Refusal check_access(const HttpRequest& request, const App& app) {
  const Route* route = find_route(request);
  if (route == nullptr && known_path(plain(request.path)))
    return openai::ApiError{.http = 405,
                            .message = fmt::format("{} does not take {}, but {}", request.path.substr(0, 200),
                                                   request.method, methods_of(request.path)),
                            .code = "method_not_allowed"};
  if (route == nullptr)
    return openai::not_found(
        fmt::format("there is no {}{}", request.path.substr(0, 200), instead_of(plain(request.path))),
        "not_found");
  if (route->open || app.options.api_keys.empty() || is_key(request.authorization, app.options.api_keys))
    return {};
  return openai::ApiError{
      .http = 401,
      .message = "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY",
      .type = "authentication_error",
      .code = "invalid_api_key"};
}

std::string model_id(std::string_view path) {
  const std::string given = plain(path);
  const size_t at = given.find(kModels);
  return at == std::string::npos ? "" : percent_decoded(given.substr(at + kModels.size()));
}

std::string response_id(std::string_view path) {
  const std::string given = plain(path);
  const size_t at = given.find(kResponses);
  return at == std::string::npos ? "" : percent_decoded(given.substr(at + kResponses.size()));
}

std::string error_body(const HttpRequest& request, const openai::ApiError& error) {
  const std::string called = plain(request.path);
  if (request.anthropic || called.starts_with("/v1/messages") || called.starts_with("/messages"))
    return anthropic::error_json(error, request.id);
  if (called == "/api" || called.starts_with("/api/")) return ollama::error_json(error);
  return openai::error_json(error);
}

std::string methods_of(const std::string& path) {
  const std::string called = plain(path);
  std::string methods;
  for (const Route& r : kRoutes)
    if (matches(r, called)) methods += fmt::format("{}{}", methods.empty() ? "" : ", ", r.method);
  return methods;
}

asio::awaitable<void> route(HttpExchange& exchange, App& app) {
  const Route* found = find_route(exchange.request());  // check_access let it pass
  exchange.record().route = found->path;
  co_await found->handler(exchange, app);
}

}  // namespace moesaic::server

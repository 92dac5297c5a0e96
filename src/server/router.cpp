#include "server/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>

#include "anthropic/error.h"
#include "anthropic/messages_request.h"
#include "ollama/chat_request.h"
#include "ollama/error.h"
#include "ollama/model_list.h"
#include "openai/chat_request.h"
#include "openai/completion_request.h"
#include "openai/responses_request.h"
#include "openai/token_requests.h"
#include "server/generation.h"
#include "server/handlers.h"
#include "server/keys.h"
#include "server/llama_handlers.h"
#include "server/page.h"
#include "text/utf8.h"

namespace moesaic::server {
namespace {

using Handler = asio::awaitable<void> (*)(HttpExchange&, App&);

template <PrepareRequest kPrepare>
asio::awaitable<void> generates(HttpExchange& exchange, App& app) {
  return generate(exchange, app, kPrepare);
}

template <Convert kConvert>
asio::awaitable<void> converts(HttpExchange& exchange, App& app) {
  return convert(exchange, app, kConvert);
}

enum class Needs { kNothing, kKey, kModel };  // kModel: a key, and an App that is available

struct Route {
  std::string_view method, path;  // a path that ends in '/' takes what follows too
  Needs needs;
  Handler handler;
};

constexpr std::array kRoutes = {
    Route{"GET", "/", Needs::kNothing, page},
    Route{"GET", "/page/", Needs::kNothing, page_file},
    Route{"GET", "/health", Needs::kNothing, health},
    Route{"GET", "/ready", Needs::kNothing, ready},
    Route{"GET", "/version", Needs::kNothing, version},
    Route{"GET", "/metrics", Needs::kNothing, metrics},
    Route{"GET", "/server_info", Needs::kModel, server_info},
    Route{"GET", "/v1/models", Needs::kModel, models},
    Route{"GET", "/v1/models/", Needs::kModel, model_by_id},
    Route{"POST", "/v1/chat/completions", Needs::kModel, generates<openai::prepare_chat>},
    Route{"POST", "/v1/completions", Needs::kModel, generates<openai::prepare_completion>},
    Route{"POST", "/v1/responses", Needs::kModel, generates<openai::prepare_response>},
    Route{"POST", "/v1/responses/input_tokens", Needs::kModel, converts<openai::count_input>},
    Route{"GET", "/v1/responses/", Needs::kKey, stored_response},
    Route{"DELETE", "/v1/responses/", Needs::kKey, delete_response},
    Route{"POST", "/v1/messages", Needs::kModel, generates<anthropic::prepare_messages>},
    Route{"POST", "/v1/messages/count_tokens", Needs::kModel, converts<anthropic::count_tokens>},
    Route{"GET", "/props", Needs::kModel, llama_props},
    Route{"GET", "/slots", Needs::kModel, llama_slots},
    Route{"GET", "/api/version", Needs::kNothing, ollama_version},
    Route{"GET", "/api/tags", Needs::kModel, ollama_tags},
    Route{"GET", "/api/ps", Needs::kModel, ollama_ps},
    Route{"POST", "/api/show", Needs::kModel, converts<ollama::show>},
    Route{"POST", "/api/chat", Needs::kModel, generates<ollama::prepare_chat>},
    Route{"POST", "/api/generate", Needs::kModel, generates<ollama::prepare_generate>},
    Route{"POST", "/tokenize", Needs::kModel, converts<openai::tokenize>},
    Route{"POST", "/apply-template", Needs::kModel, converts<openai::apply_template>},
    Route{"POST", "/detokenize", Needs::kModel, converts<openai::detokenize>},
};

// Endpoints of the four APIs that clients ask for and that are not here, and what to do instead. The first
// that a path begins with counts.
struct Absent {
  std::string_view path, instead;
};
constexpr std::string_view
    kOneModel = "the server has one model, which it was started with (moesaic serve -m MODEL)",
    kTextOnly = "the model reads and writes text; it makes no embeddings, scores, sounds or images",
    kNoFiles = "the server keeps no files; send texts in the messages";
constexpr std::array kAbsent = {
    Absent{"/api/pull", kOneModel},
    Absent{"/api/push", kOneModel},
    Absent{"/api/create", kOneModel},
    Absent{"/api/copy", kOneModel},
    Absent{"/api/delete", kOneModel},
    Absent{"/api/blobs", kOneModel},
    Absent{"/api/embed", kTextOnly},
    Absent{"/v1/embedding", kTextOnly},
    Absent{"/v1/realtime", kTextOnly},
    Absent{"/v1/videos", kTextOnly},
    Absent{"/v1/audio", kTextOnly},
    Absent{"/v1/images", kTextOnly},
    Absent{"/v1/moderations", kTextOnly},
    Absent{"/v1/rerank", kTextOnly},
    Absent{"/v1/score", kTextOnly},
    Absent{"/v1/files", kNoFiles},
    Absent{"/v1/uploads", kNoFiles},
    Absent{"/v1/vector_stores", kNoFiles},
    Absent{"/v1/chat/completions/", "chats are not stored; /v1/responses are"},
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

// The name that stands behind this part of a path.
std::string name_behind(std::string_view part, std::string_view path) {
  const std::string given = plain(path);
  const size_t at = given.find(part);
  return at == std::string::npos ? "" : percent_decoded(given.substr(at + part.size()));
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
  if (route->needs == Needs::kNothing || app.options.api_keys.empty() ||
      is_key(request.authorization, app.options.api_keys))
    return {};
  return openai::ApiError{
      .http = 401,
      .message = "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY",
      .type = "authentication_error",
      .code = "invalid_api_key"};
}

std::string model_id(std::string_view path) { return name_behind(kModels, path); }

std::string response_id(std::string_view path) { return name_behind(kResponses, path); }

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
  openai::Refusal refusal;
  if (found->needs == Needs::kModel) refusal = unavailable(app);
  if (refusal) {
    co_await send_error(exchange, *refusal);
  } else {
    co_await found->handler(exchange, app);
  }
}

}  // namespace moesaic::server

// serve: OpenAI's API over HTTP.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <sstream>

#include "api/model_parts.h"
#include "base/error.h"
#include "base/strings.h"
#include "checkpoint/model_places.h"
#include "commands.h"
#include "model_options.h"
#include "moesaic/engine.h"
#include "option_checks.h"
#include "progress.h"
#include "server/kv_publisher.h"
#include "server/origin.h"
#include "server/server.h"

namespace moesaic::app {
namespace {

constexpr const char* kServerOptions = "Server";

struct ServeOptions {
  std::string model, key_file, log = "requests";
  std::string kv_events, kv_topic;  // where the prefix cache's changes are published
  OpenOptions open;
  server::ServerOptions server;
};

// The name by which clients call the model: the last part of its path or of its repository's name.
std::string name_of(const std::string& model) {
  std::filesystem::path path(model);
  if (const auto named = is_there(path) ? std::nullopt : repository_name(model))
    path =
        !named->file.empty() ? named->file : named->repository + (named->tag.empty() ? "" : ":" + named->tag);
  if (path.filename().empty()) path = path.parent_path();
  return path.extension() == ".gguf" ? path.stem().string() : path.filename().string();
}

Status add_key(ServeOptions& o, const std::string& key, const std::string& source) {
  const auto unsent = [](unsigned char c) { return c <= ' ' || c == 0x7F; };
  if (std::any_of(key.begin(), key.end(), unsent))
    return usage(
        invalid("{}: a key has white space or a control character, which no request can send", source));
  o.server.api_keys.push_back(key);
  return {};
}

Status read_keys(ServeOptions& o) {
  if (const char* key = std::getenv("MOESAIC_API_KEY"); key != nullptr) {
    if (*key == 0) return usage(invalid("MOESAIC_API_KEY: it is empty; unset it to serve without a key"));
    RETURN_IF_ERROR(add_key(o, key, "MOESAIC_API_KEY"));
  }
  if (o.key_file.empty()) return {};
  ASSIGN_OR_RETURN(const std::string text, read_text_file(o.key_file));
  std::istringstream lines(text);
  const size_t before = o.server.api_keys.size();
  for (std::string line; std::getline(lines, line);) {
    const std::string key(trimmed(line, " \t\r"));
    if (!key.empty() && key[0] != '#') RETURN_IF_ERROR(add_key(o, key, o.key_file));
  }
  if (o.server.api_keys.size() == before) return usage(invalid("{}: there is no key in it", o.key_file));
  return {};
}

// Opens the model, and says what was chosen. What it prints is for people: nobody may be reading any more.
Result<Model> open_and_tell(const std::string& path, OpenOptions options,
                            const server::Server::Progress& progress) {
  ProgressLine shown;
  options.progress = [&](int64_t done, int64_t total) {
    shown.show(loading_text(done, total));
    return progress(done, total);
  };
  Result<Model> model = Model::open(path, options);
  shown.clear();
  if (!model.ok()) return model;
  for (const std::string& line : describe(model->info())) std::fprintf(stdout, "%s\n", line.c_str());
  std::fflush(stdout);
  std::clearerr(stdout);
  return model;
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof name - 1) == 0 ? name : "localhost";
}

Status publish_kv_events(ServeOptions& o) {
  if (o.kv_events.empty()) return {};
  if (o.kv_topic.empty()) o.kv_topic = fmt::format("kv@{}@{}", host_name(), o.server.model_name);
  ASSIGN_OR_RETURN(const auto publisher, server::KvPublisher::bind(o.kv_events, o.kv_topic));
  o.open.on_kv_event = [publisher](const KvEvent& event) { publisher->push(event); };
  return {};
}

Status run_serve(ServeOptions o) {
  RETURN_IF_ERROR(read_keys(o));
  if (o.server.address == "localhost") o.server.address = "127.0.0.1";  // other names would need a resolver
  ASSIGN_OR_RETURN(const std::string path, model_path(o.model));
  if (o.server.model_name.empty()) o.server.model_name = name_of(path);
  report_unused_adapter(o.model, o.open.lora);
  RETURN_IF_ERROR(publish_kv_events(o));
  o.server.log_requests = o.log == "requests";
  o.server.log_loading = isatty(STDERR_FILENO) == 0 || !o.server.log_file.empty();
  o.server.version = MOESAIC_VERSION;
  std::signal(SIGPIPE, SIG_IGN);  // a log that nobody reads any more must not end the server
  ASSIGN_OR_RETURN(
      const auto server,
      server::Server::create(o.server, [path, open = o.open](const server::Server::Progress& progress) {
        return open_and_tell(path, open, progress);
      }));
  const bool v6 = o.server.address.find(':') != std::string::npos;
  fmt::print("http://{}{}{}:{}\n", v6 ? "[" : "", o.server.address, v6 ? "]" : "", server->port());
  std::fflush(stdout);
  Status status = server->run(true);
  // Loading leaves nothing to undo.
  if (status.code() == StatusCode::kCancelled) std::_Exit(0);
  return status;
}

void add_limits(CLI::App& c, server::Limits& limits) {
  c.add_option("--max-waiting", limits.waiting,
               "requests that may wait for a place in the batch; more get 429")
      ->check(in_range(0, 1 << 20))
      ->group(kServerOptions);
  c.add_option("--max-connections", limits.connections, "connections at a time; more get 503")
      ->check(in_range(1, 1 << 20))
      ->group(kRareOptions);
  c.add_option("--max-body", limits.body_bytes, "bytes of a request's body")
      ->check(in_range(size_t{1}, size_t{1} << 40))
      ->group(kRareOptions);
  c.add_option("--max-bodies", limits.bodies_bytes,
               "bytes of bodies and unread answers held at a time; more get 503")
      ->check(in_range(size_t{1} << 20, size_t{1} << 40))
      ->group(kRareOptions);
  const auto time = [&](const char* name, server::seconds& value, const char* help, int least = 1) {
    c.add_option_function<int>(
         name, [&value](int s) { value = server::seconds(s); }, help)
        ->check(in_range(least, 1 << 20))
        ->default_str(std::to_string(value.count()))
        ->group(kRareOptions);
  };
  time("--request-timeout", limits.request_time, "seconds for a whole answer; 0: no limit", 0);
  time("--header-timeout", limits.header_time,
       "seconds for a request's header to arrive, and for a new connection's first byte");
  time("--body-timeout", limits.body_time, "seconds for its body");
  time("--idle-timeout", limits.idle_time, "seconds that a connection may be idle between requests", 0);
  time("--write-timeout", limits.write_time,
       "seconds in which a client must read 64 KiB of its answer, or all there is");
  time("--heartbeat", limits.heartbeat, "seconds of silence after which a stream sends a comment; 0: never",
       0);
  time("--drain-timeout", limits.drain_time, "seconds that answers in flight have after SIGTERM", 0);
}

// The model, and how much of it at a time.
void add_model_options(CLI::App& c, ServeOptions& o) {
  c.add_option("MODEL,-m,--model", o.model,
               "folder, GGUF file, name in moesaic list, or tiny; or -hf OWNER/NAME[:QUANTISATION], from "
               "Hugging Face")
      ->required()
      ->group(kModelOptions);
  add_device_options(c, o.open);
  c.add_option("--tokenizer", o.open.tokenizer,
               "a tokenizer.json or .tiktoken file instead of the model's own; dummy: models need one")
      ->group(kRareOptions);
  c.add_option("--ctx", o.open.context,
               "longest request in tokens, prompt and answer; 0: the model's maximum, or as many as fit into "
               "the memory")
      ->check(in_range(0, 1 << 30))
      ->group(kModelOptions);
  c.add_option("--max-batch", o.open.max_batch,
               "requests decoded together; 0: as many as pay on the device and fit into its memory")
      ->check(in_range(0, 4096))
      ->group(kModelOptions);
  c.add_option(
       "--kv-tokens", o.open.kv_tokens,
       "size of the KV cache in tokens, for all requests; 0: --ctx times --max-batch, at most half of a "
       "host's free memory or nine tenths of a GPU's")
      ->check(in_range(int64_t{0}, int64_t{1} << 40))
      ->group(kModelOptions);
  c.add_option(
       "--max-rows,--ubatch", o.open.max_rows,
       "most tokens computed per step: fewer keep the gaps between tokens short beside prompts, more "
       "bring the first token sooner; 0: what prompts need for full speed, and on a GPU 2048 while requests "
       "decode")
      ->check(in_range(0, 1 << 16))
      ->group(kRareOptions);
  c.add_flag("!--no-prefix-cache", o.open.prefix_cache, "compute common beginnings of prompts again")
      ->group(kRareOptions);
  add_store_options(c, o.open);
  add_speculation_options(c, o.open);
}

// Options about the address, and the clients that may ask.
void add_http_options(CLI::App& c, ServeOptions& o) {
  c.add_option("--host", o.server.address, "address to listen on, or localhost; 0.0.0.0: all")
      ->group(kServerOptions);
  c.add_option("--port", o.server.port, "0: any free one, which is printed")->group(kServerOptions);
  c.add_option("--name", o.server.model_name, "the model's name for clients; else its folder's")
      ->group(kServerOptions);
  c.add_option("--api-key-file", o.key_file,
               "file of API keys, one per line (lines with # in front are comments), beside MOESAIC_API_KEY; "
               "without any key the server is open to all")
      ->group(kServerOptions);
  c.add_flag("--shared-prefix-cache", o.server.shared_prefix_cache,
             "with several API keys: prompts are found in the prefix cache whichever key sent them before; "
             "cached_tokens then tell one key what another has sent")
      ->group(kRareOptions);
  c.add_option("--cors-origin", o.server.cors_origins, "origin whose pages may use the server; *: any")
      ->check([](const std::string& origin) {
        return server::valid_origin(origin)
                   ? ""
                   : fmt::format("'{}' is no origin, such as https://page.example:8443", origin);
      })
      ->group(kServerOptions);
  c.add_option("--allowed-host", o.server.allowed_hosts,
               "another host name by which clients may reach a server on a local --host; *: any")
      ->check([](const std::string& host) {
        return host == "*" || server::valid_host(host)
                   ? ""
                   : fmt::format("'{}' is no host name, such as api.example.com", host);
      })
      ->group(kRareOptions);
}

// NUMBER, DIR or DIR:NUMBER. A folder whose name is a number is written ./NUMBER, one with a colon ends with
// a slash.
void take_stored_responses(const std::string& text, server::ServerOptions& o) {
  constexpr size_t kMost = size_t{1} << 20;
  const size_t colon = text.rfind(':');
  const std::string number = colon == std::string::npos ? text : text.substr(colon + 1);
  const bool numbered = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  const std::string folder = !numbered ? text : text.substr(0, colon == std::string::npos ? 0 : colon);
  const size_t most = numbered ? number_of<size_t>(number).value_or(kMost + 1) : o.stored_responses;
  const bool misread = !numbered && colon != std::string::npos && number.find('/') == std::string::npos;
  const bool names_none = numbered && colon == 0;
  if (text.empty() || text.front() == '-' || misread || names_none || most > kMost ||
      (most == 0 && !folder.empty()))
    throw CLI::ValidationError(
        "--stored-responses",
        fmt::format("'{}': expected 0 to {}, DIR or DIR:NUMBER; a DIR with a colon needs a slash at its end",
                    text, kMost));
  o.stored_responses = most;
  o.stored_folder = folder;
}

void add_request_options(CLI::App& c, ServeOptions& o) {
  c.add_option(
       "--reasoning-budget", o.server.reasoning_budget,
       "tokens of reasoning in an answer whose request says nothing of it, behind which the answer is "
       "begun; -1: as many as the model wants")
      ->check(in_range(-1, INT_MAX))
      ->group(kServerOptions);
  c.add_flag("--strict-fields", o.server.strict_fields,
             "refuse requests with unknown fields; without it a header of the answer names them")
      ->group(kRareOptions);
  c.add_option_function<std::string>(
       "--stored-responses", [&o](const std::string& text) { take_stored_responses(text, o.server); },
       "responses kept for previous_response_id, the latest; 0: none; a folder, or DIR:NUMBER: they are kept "
       "in it too, and found after a restart")
      ->type_name("NUMBER|DIR")
      ->default_str(std::to_string(o.server.stored_responses))
      ->group(kRareOptions);
  c.add_option("--stored-bytes", o.server.stored_bytes, "bytes that they may have together")
      ->check(in_range(size_t{0}, size_t{1} << 40))
      ->group(kRareOptions);
}

void add_log_options(CLI::App& c, ServeOptions& o) {
  c.add_option("--log", o.log, "requests: one line of JSON per request on standard error; or quiet")
      ->check(one_of({"requests", "quiet"}))
      ->group(kServerOptions);
  c.add_option("--log-file", o.server.log_file, "append the log to this file instead of standard error")
      ->group(kRareOptions);
}

// Options for routers and clusters.
void add_router_options(CLI::App& c, ServeOptions& o) {
  c.add_option("--kv-events", o.kv_events,
               "publish the prefix cache's changes over ZeroMQ in vLLM's format, for routers: an address to "
               "listen on, such as tcp://*:5557")
      ->group(kRareOptions);
  c.add_option("--kv-events-topic", o.kv_topic, "of these messages; else kv@HOST@NAME")->group(kRareOptions);
  c.add_option("--owned-by", o.server.owned_by,
               "what /v1/models says; routers take a server for a vLLM or SGLang worker by it")
      ->group(kRareOptions);
}

}  // namespace

Run add_serve(CLI::App& app) {
  auto o = std::make_shared<ServeOptions>();
  CLI::App& c = *app.add_subcommand(
      "serve", "Serve OpenAI's, Anthropic's and Ollama's APIs over HTTP (docs/user/server.md)");
  add_model_options(c, *o);
  add_http_options(c, *o);
  add_request_options(c, *o);
  add_log_options(c, *o);
  add_router_options(c, *o);
  add_limits(c, o->server.limits);
  c.footer(
      "Examples:\n"
      "  moesaic serve -m openai/gpt-oss-20b  then open http://127.0.0.1:8080\n"
      "  moesaic serve -m openai/gpt-oss-20b --host 0.0.0.0 --api-key-file keys.txt\n"
      "  moesaic serve -m openai/gpt-oss-120b --ctx 32768  no request longer than that");
  return [o] { return run_serve(*o); };
}

}  // namespace moesaic::app

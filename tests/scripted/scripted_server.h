// For tests: the server in this process, over a model that writes what the last message says
// (scripted_backend.h).
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "api/model_parts.h"
#include "scripted_backend.h"
#include "server/http_client.h"
#include "server/server.h"

namespace moesaic::scripted {

using Json = nlohmann::ordered_json;

inline Tokenizer tokenizer() {
  return Tokenizer::from_hf_json(MOESAIC_SOURCE_DIR "/models/tiny/tokenizer.json").value();
}

// With the vocabulary of models/tiny and nothing else of it.
inline Result<Model> open_model(const server::Server::Progress& = {}) {
  constexpr int kContext = 32768, kBatch = 8;
  const ModelConfig config{.name = "scripted",
                           .layers = 2,
                           .vocab = tokenizer().vocab_size(),
                           .window = 128,
                           .sliding = {true, false},
                           .max_context = kContext};
  auto backend = std::make_unique<ScriptedBackend>(tokenizer());
  const EngineOptions options{.context = kContext, .max_batch = kBatch};
  auto engine = Engine::create(*backend, config, options);
  if (!engine.ok()) return engine.status();
  return make_model({.config = config,
                     .backend = std::move(backend),
                     .tokenizer = tokenizer(),
                     .engine = std::move(engine).value(),
                     .info = {.name = "scripted", .context = kContext, .max_batch = kBatch}});
}

class ScriptedServer {
 public:
  explicit ScriptedServer(server::ServerOptions options = {}) {
    options.port = 0, options.model_name = "scripted", options.version = "test";
    options.log_requests = false;
    server_ = server::Server::create(std::move(options), open_model).value();
    thread_ = std::thread([this] { status_ = server_->run(false); });
    server_->wait_until_loaded();
  }
  ~ScriptedServer() {
    server_->drain();
    thread_.join();
    EXPECT_TRUE(status_.ok()) << status_.message();
  }
  uint16_t port() const { return server_->port(); }

  // The body of the answer, which must have the status 200; a stream's is all of its events.
  std::string post(const std::string& path, const Json& body) const {
    const std::string text = body.dump();
    server::HttpClient client(port());
    client.write("POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
                 std::to_string(text.size()) + "\r\n\r\n" + text);
    const std::string answer = client.read();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 ")) << text << "\n" << answer;
    const size_t head = std::min(answer.find("\r\n\r\n"), answer.size() - 4);
    const bool chunked = answer.substr(0, head).find("chunked") != std::string::npos;
    return chunked ? unchunked(answer.substr(head + 4)) : answer.substr(head + 4);
  }
  Json ask(const std::string& path, const Json& body) const {
    const std::string answer = post(path, body);
    Json json = Json::parse(answer, nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << answer;
    return json;
  }

 private:
  static std::string unchunked(const std::string& body) {
    std::string text;
    for (size_t at = 0; at < body.size();) {
      const size_t length = std::stoul(body.substr(at), nullptr, 16);
      if (length == 0) break;
      at = body.find("\r\n", at) + 2;
      text += body.substr(at, length);
      at += length + 2;
    }
    return text;
  }

  std::unique_ptr<server::Server> server_;
  std::thread thread_;
  Status status_;
};

}  // namespace moesaic::scripted

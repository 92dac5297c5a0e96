// An OpenAI-compatible server over one Model. TLS is left to a reverse proxy.
#pragma once

#include <functional>
#include <memory>

#include "moesaic/engine.h"
#include "server/options.h"

namespace moesaic::server {

class Server {
 public:
  // Opens the model. progress is for OpenOptions::progress, which may be called by more than that.
  using Progress = std::function<bool(int64_t done, int64_t total)>;
  using Open = std::function<Result<Model>(const Progress& progress)>;
  // Binds and listens: requests are answered with 503 until the model is loaded. open runs on the engine's
  // thread.
  static Result<std::unique_ptr<Server>> create(ServerOptions options, Open open);
  ~Server();

  uint16_t port() const;
  // Serves until drain() or, with signals, SIGTERM or SIGINT. Answers in flight then have drain_time to
  // finish; the rest end with an error. A second signal ends them at once, a third the process. With signals
  // the process ends in any case: where a thread, in a step or a schema, is not done stop_time after that, it
  // ends without it and with a status that is not 0 (ExitWatch). Fails if the model cannot be loaded or its
  // device fails. kCancelled: it ends while the model is being loaded, which has not heard of it yet. The
  // destructor waits for that; a program need not.
  Status run(bool signals);
  // From any thread.
  void drain();
  // Blocks until the model is loaded or cannot be. From any thread, while another is in run().
  void wait_until_loaded() const;

 private:
  struct Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic::server

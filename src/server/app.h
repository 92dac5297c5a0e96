// The state that the handlers of one server share.
#pragma once

#include <algorithm>
#include <atomic>
#include <ctime>
#include <stop_token>

#include "server/body.h"
#include "server/engine_thread.h"
#include "server/field_names.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/request_log.h"
#include "server/worker_pool.h"

namespace moesaic::server {

// Tasks that may wait in each lane, beside as many as may wait for a place in the batch: the largest batch's.
inline constexpr int kQueue = 4096;

struct App {
  ServerOptions options;
  Metrics metrics;
  BodyBudget bodies{options.limits.bodies_bytes, metrics.body_bytes};
  Shares connections{static_cast<size_t>(options.limits.connections)};  // by network
  RequestLog log;
  openai::GrammarCache grammars;
  openai::ResponseStore responses{options.stored_responses, options.stored_bytes};
  EngineThread engine;
  FieldNames ignored_fields;  // those that the log has named
  FieldNames schema_notes;    // those that the log has shown
  WorkerPool workers;
  std::stop_source draining;              // triggered when the server is to end: nothing new is begun
  std::stop_source cut;                   // triggered when the time of draining is over: answers end now
  std::atomic<int> exchanges = 0;         // requests whose answer is in flight
  std::atomic<int> most_connections = 0;  // since memory was given back last
  std::time_t started = std::time(nullptr);

  App(ServerOptions o, EngineThread::Open open)
      : options(std::move(o)),
        metrics(options.model_name),
        engine(std::move(open), options.limits.waiting, metrics),
        workers(static_cast<size_t>(kQueue + options.limits.waiting)) {}
};

}  // namespace moesaic::server

#include "server/prepare.h"

#include <memory>
#include <utility>

#include "base/linked_stop.h"
#include "server/handlers.h"

namespace moesaic::server {
namespace {

using openai::ApiError;
using openai::Service;

constexpr size_t kQuickBytes = 64 << 10, kMediumBytes = 1 << 20;  // bodies that a lane takes
constexpr auto kNever = std::chrono::hours(24 * 365);

Lane lane_of(size_t bytes) {
  if (bytes <= kQuickBytes) return Lane::kQuick;
  return bytes <= kMediumBytes ? Lane::kMedium : Lane::kLarge;
}

// Owns all that the work uses, since the coroutine does not wait for work that is of no use any more.
template <typename Made>
struct Preparation {
  Body body;
  Service service;
  Made (*make)(std::string_view body, const Service& service);
  Made made;

  bool needs_compilation() const {
    const auto* error = std::get_if<ApiError>(&made);
    return error != nullptr && error->needs_compilation;
  }
  void run() {
    made = make(body.view(), service);
    if (!needs_compilation()) body.clear();
  }
};

ApiError refusal_of(WorkerPool::End end, App& app) {
  if (app.cut.stop_requested()) return shutting_down();
  if (end == WorkerPool::End::kCancelled) return timed_out();
  ++app.metrics.refused_busy;
  return busy();
}

template <typename Made>
asio::awaitable<Made> prepared(HttpExchange& exchange, App& app,
                               Made (*make)(std::string_view, const Service&), Clock::time_point deadline) {
  const auto begun = Clock::now();
  const LinkedStop stop(exchange.gone(), app.cut.get_token());
  auto work =
      std::make_shared<Preparation<Made>>(Preparation<Made>{.body = exchange.take_body(),
                                                            .service = service_of(app, exchange.request()),
                                                            .make = make,
                                                            .made = {}});
  work->service.cancel = stop.token();
  WorkerPool::QueueKey key{.lane = lane_of(work->body.size()), .client = client_of(exchange.request(), app)};
  work->service.may_compile = key.lane != Lane::kQuick;
  const auto run = [&] {
    return app.workers.run(exchange.executor(), key, stop.token(), deadline, [work] { work->run(); });
  };
  WorkerPool::End end = co_await run();
  if (end == WorkerPool::End::kDone && work->needs_compilation()) {
    key.lane = Lane::kMedium;
    work->service.may_compile = true;
    end = co_await run();
  }
  app.metrics.prepare_time.observe(std::chrono::duration<double>(Clock::now() - begun).count());
  if (end != WorkerPool::End::kDone) co_return refusal_of(end, app);
  co_return std::move(work->made);
}

}  // namespace

asio::awaitable<openai::PreparedRequestOrError> prepare(HttpExchange& exchange, App& app, PrepareRequest make,
                                                        Clock::time_point deadline) {
  return prepared<openai::PreparedRequestOrError>(exchange, app, make, deadline);
}

asio::awaitable<openai::TokenAnswerOrError> prepare(HttpExchange& exchange, App& app, Convert make,
                                                    Clock::time_point deadline) {
  return prepared<openai::TokenAnswerOrError>(exchange, app, make, deadline);
}

std::string client_of(const HttpRequest& request, const App& app) {
  return app.options.api_keys.empty() ? request.client : request.client + " " + request.authorization;
}

Clock::time_point deadline_of(const App& app) {
  const auto limit = app.options.limits.request_time;
  return Clock::now() +
         (limit.count() > 0 ? std::chrono::duration_cast<Clock::duration>(limit) : Clock::duration(kNever));
}

}  // namespace moesaic::server

#include "server/prepare.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/linked_stop.h"
#include "base/seconds.h"
#include "server/client.h"
#include "server/handlers.h"

namespace moesaic::server {
namespace {

using openai::ApiError;
using openai::Service;

constexpr size_t kQuickBytes = 64 << 10, kMediumBytes = 1 << 20;  // bodies that a lane takes
constexpr auto kNever = std::chrono::hours(24 * 365);

// The most bytes of a body, or of a stored response, that are read in a lane.
size_t most_bytes(Lane lane) {
  if (lane == Lane::kLarge) return SIZE_MAX;
  return lane == Lane::kQuick ? kQuickBytes : kMediumBytes;
}

Lane lane_of(size_t bytes) {
  if (bytes <= most_bytes(Lane::kQuick)) return Lane::kQuick;
  return bytes <= most_bytes(Lane::kMedium) ? Lane::kMedium : Lane::kLarge;
}

// Owns all that the work uses, since the coroutine does not wait for work that is of no use any more.
template <typename Made>
struct Preparation {
  Body body;
  Service service;
  Made (*make)(std::string_view body, const Service& service);
  Made made;

  // The lane that it needs in place of `lane`, because of what it turned out to cost; nothing: it is done.
  std::optional<Lane> lane_instead(Lane lane) const {
    const auto* error = std::get_if<ApiError>(&made);
    if (error != nullptr && error->needs_compilation) return std::max(lane, Lane::kMedium);
    if (error != nullptr && error->needs_bytes > 0) return std::max(lane, lane_of(error->needs_bytes));
    return {};
  }
  void run_in(Lane lane) {
    service.may_compile = lane != Lane::kQuick;
    service.most_stored = most_bytes(lane);
    made = make(body.view(), service);
    if (!lane_instead(lane)) body.clear();
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
  LinkedStop stop(exchange.gone(), app.cut.get_token());
  auto work =
      std::make_shared<Preparation<Made>>(Preparation<Made>{.body = exchange.take_body(),
                                                            .service = service_of(app, exchange.request()),
                                                            .make = make,
                                                            .made = {}});
  work->service.cancel = stop.token();
  WorkerPool::QueueKey key{.lane = lane_of(work->body.size()),
                           .client = client_of(exchange.request(), app.options)};
  // A function: GCC 12 destroys what a lambda within co_await's operand owns twice.
  const auto run = [&] {
    return app.workers.run(exchange.executor(), key, stop.token(), deadline,
                           [work, lane = key.lane] { work->run_in(lane); });
  };
  WorkerPool::End end = WorkerPool::End::kBusy;
  for (std::optional<Lane> lane = key.lane; lane;) {
    key.lane = *lane;
    end = co_await run();
    lane = end == WorkerPool::End::kDone ? work->lane_instead(key.lane) : std::nullopt;
  }
  app.metrics.prepare_time.observe(seconds_since(begun));
  if (end == WorkerPool::End::kDone) co_return std::move(work->made);
  stop.request_stop();  // the work may go on, for nobody
  co_return refusal_of(end, app);
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

Clock::time_point deadline_of(const App& app) {
  const auto limit = app.options.limits.request_time;
  return Clock::now() +
         (limit.count() > 0 ? std::chrono::duration_cast<Clock::duration>(limit) : Clock::duration(kNever));
}

}  // namespace moesaic::server

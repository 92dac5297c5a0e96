#include <functional>

#include "server/connection.h"
#include "server/handlers.h"
#include "server/prepare.h"

namespace moesaic::server {
namespace {

// Counts for as long as it lives.
class Counted {
 public:
  explicit Counted(std::atomic<int>& count) : count_(count) { ++count_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  ~Counted() { --count_; }

 private:
  std::atomic<int>& count_;
};

// The page, Prometheus and orchestrators ask every few seconds, and the page twice a second while the model
// is loaded, which would be all that the log of an idle server has.
bool is_poll(const RequestRecord& record) {
  constexpr int kOk = 200, kLoading = 503;
  if (record.route == "/metrics") return record.status == kOk;
  if (record.route == "/ready") return record.status == kOk || record.status == kLoading;
  return record.route == "/server_info" && record.status == kLoading;
}

void note(Connection& connection, App& app) {
  app.metrics.count_request(connection.record().route, connection.record().status);
  if (app.options.log_requests && !is_poll(connection.record()))
    app.log.request(connection.request(), connection.record());
}

asio::awaitable<void> answer_request(Connection& connection, App& app) {
  bool failed = false;
  try {
    co_await connection.answer();
  } catch (...) {
    failed = true;
    app.log.exception();
  }
  if (!failed) co_return;
  connection.fail();
  const openai::ApiError error = openai::internal_error("internal error");
  if (!connection.begun()) co_await send_error(connection, error);
}

// False: the connection is to be closed.
asio::awaitable<bool> next_request(Connection& connection, App& app) {
  bool read = co_await connection.read_head();
  const Counted in_flight(app.exchanges);
  if (read) read = co_await connection.read_body();
  if (read) co_await answer_request(connection, app);
  connection.drop_body();
  if (connection.begun() || read) note(connection, app);
  co_return connection.keep_alive() && !app.draining.stop_requested();
}

asio::awaitable<void> serve_requests(tcp::socket socket, App& app) {
  Connection connection(std::move(socket), app);
  for (bool more = true; more;) more = co_await next_request(connection, app);
  co_await connection.close();
}

void count_most(App& app) {
  const int now = app.metrics.connections;
  for (int most = app.most_connections; most < now;)
    if (app.most_connections.compare_exchange_weak(most, now)) return;
}

// Once most of many connections have ended, the large lane has a task, after which it returns free memory.
asio::awaitable<void> return_memory(asio::any_io_executor executor, App& app) {
  constexpr int kMany = 256;
  const int now = app.metrics.connections;
  int most = app.most_connections;
  if (most < kMany || now > most / 4 || !app.most_connections.compare_exchange_strong(most, now)) co_return;
  const WorkerPool::QueueKey key{.lane = Lane::kLarge, .client = {}};
  const std::stop_token at_cut = app.cut.get_token();
  const auto deadline = deadline_of(app);
  const std::function<void()> nothing = [] {};
  co_await app.workers.run(executor, key, at_cut, deadline, nothing);
}

}  // namespace

asio::awaitable<void> serve_connection(tcp::socket socket, App& app, Share) {
  const Counted open(app.metrics.connections);
  count_most(app);
  const asio::any_io_executor executor = socket.get_executor();
  try {
    co_await serve_requests(std::move(socket), app);
    co_await return_memory(executor, app);
  } catch (...) {
    app.log.exception();
  }
}

}  // namespace moesaic::server

#include "server/server.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/strand.hpp>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include "base/error.h"
#include "server/client.h"
#include "server/connection.h"
#include "server/exit_watch.h"

namespace moesaic::server {
namespace {

using boost::system::error_code;

constexpr size_t kConnectionShare = 7;                         // times what is free
constexpr auto kRetryAccept = std::chrono::milliseconds(100);  // while there are no file descriptors
constexpr auto kDrainPoll = std::chrono::milliseconds(20);
constexpr auto kCancelTime = std::chrono::milliseconds(500);  // for a model that is being loaded to be left
constexpr auto kCutTime = std::chrono::seconds(1);  // for clients to take the error that ends their answer
constexpr auto kHasty = std::chrono::seconds(1);    // stop_time after a second signal
constexpr const char* kFull =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

// Raises the limit of file descriptors as far as it may be raised, and returns it.
rlim_t raise_file_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return RLIM_INFINITY;
  const rlim_t before = std::exchange(limit.rlim_cur, limit.rlim_max);
  return setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

// Returns for how many connections there are files beside those of the model and its devices, the store and
// the log.
rlim_t connections_within(rlim_t files) {
  constexpr rlim_t kOthers = 256;
  return files - std::min(files / 2, kOthers);
}

// Signals that come while the server ends, when nobody waits for them any more: the third still ends the
// process.
std::atomic<int> signals_at_end;

void at_end(int /*signal*/) {
  if (++signals_at_end > 2) std::_Exit(ExitWatch::kStatus);
}

Status no_thread(const std::exception& e) {
  return error(StatusCode::kInternal, "cannot start a thread: {} (ulimit -u, a container's pids limit)",
               e.what());
}

// glibc would raise its threshold with the first large body and from then on keep what such bodies leave: so
// large blocks are always the system's own, and go back when they are freed.
void return_large_blocks() {
#ifdef __GLIBC__
  constexpr int kLarge = 4 << 20;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
#endif
}

}  // namespace

struct Server::Impl {
  ExitWatch watch;  // the last to go
  App app;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> open_ended{
      io.get_executor()};                                                        // until io.stop()
  asio::strand<asio::io_context::executor_type> control{asio::make_strand(io)};  // all below
  tcp::acceptor acceptor{control};
  asio::signal_set signals{control};
  error_code accept_failure;  // the last one, which the log has
  int signals_seen = 0;
  Clock::time_point drain_until;
  bool ends_process = false;

  Impl(ServerOptions options, EngineThread::Open open)
      : app(std::move(options), std::move(open)), io(app.options.io_threads) {}
  ~Impl() { app.engine.stop(); }  // its thread uses what is declared below
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status listen();
  // Says while it lives that somebody accepts connections.
  class Accepting {
   public:
    explicit Accepting(std::atomic<bool>* flag) : flag_(flag) {}
    Accepting(Accepting&& other) noexcept : flag_(std::exchange(other.flag_, nullptr)) {}
    Accepting(const Accepting&) = delete;
    Accepting& operator=(const Accepting&) = delete;
    ~Accepting() {
      if (flag_ != nullptr) *flag_ = false;
    }

   private:
    std::atomic<bool>* flag_;
  };
  std::atomic<bool> accepting = false;

  asio::awaitable<void> accept(Accepting alive);
  void start_accepting();
  asio::awaitable<void> answers_end();
  asio::awaitable<bool> accept_one();
  void work() noexcept;
  asio::awaitable<void> finish();
  void begin_drain();
  void set_drain_end(Clock::time_point time);
  void wait_for_signal();
  void engine_changed();
  void loading(int percent);
  struct {
    Clock::time_point time = Clock::now();
    int percent = 0;
  } loading_told;  // the engine's thread
};

Status Server::Impl::listen() {
  const ServerOptions& o = app.options;
  error_code error;
  const auto address = asio::ip::make_address(o.address, error);
  if (error)
    return Status(StatusCode::kUsage,
                  fmt::format("--host: '{}' is no IP address, such as 127.0.0.1, ::1 or 0.0.0.0", o.address));
  const tcp::endpoint endpoint(address, o.port);
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(4096, error);
  if (error)
    return moesaic::error(StatusCode::kIo, "cannot listen on {}:{}: {}; another --{}?", o.address, o.port,
                          error.message(),
                          error == boost::system::errc::address_not_available ? "host" : "port");
  return {};
}

// False: there was none.
asio::awaitable<bool> Server::Impl::accept_one() {
  error_code error;
  tcp::socket socket = co_await acceptor.async_accept(asio::make_strand(io), into(error));
  if (error && error != std::exchange(accept_failure, error) && error != asio::error::operation_aborted)
    app.log.failure(
        fmt::format("no connection can be accepted, and the server tries again: {}", error.message()));
  if (error) co_return false;
  const tcp::endpoint client = socket.remote_endpoint(error);
  Share place(app.connections, network_of(client.address()), kConnectionShare);
  if (!place.taken()) {
    socket.non_blocking(true, error);
    socket.send(asio::buffer(kFull, std::char_traits<char>::length(kFull)), 0, error);
    co_return true;
  }
  const auto executor = socket.get_executor();
  asio::co_spawn(executor, serve_connection(std::move(socket), app, std::move(place)), asio::detached);
  co_return true;
}

// Until the acceptor is closed: without file descriptors or memory it tries again.
asio::awaitable<void> Server::Impl::accept(Accepting) {
  asio::steady_timer pause(control);
  for (bool accepted = true; acceptor.is_open();) {
    try {
      error_code ignored;
      pause.expires_after(kRetryAccept);
      if (!accepted) co_await pause.async_wait(into(ignored));
      accepted = co_await accept_one();
    } catch (const std::exception& e) {
      accepted = false;
      app.log.failure(e.what());
    }
  }
}

void Server::Impl::start_accepting() {
  const auto ended = [](const std::exception_ptr& e) {
    if (e) std::rethrow_exception(e);  // into work()
  };
  if (!accepting.exchange(true)) asio::co_spawn(control, accept(Accepting(&accepting)), ended);
}

// Does the sockets' work on one thread. An exception that comes as far, such as that of an allocation
// within Asio, has ended the coroutine that it came from: a connection, or the one that accepts connections.
void Server::Impl::work() noexcept {
  for (bool more = true; more;) {
    try {
      start_accepting();
      io.run();
      more = false;
    } catch (...) {
      app.log.exception();
    }
  }
}

// Waits until no answer is in flight, at most until drain_until.
asio::awaitable<void> Server::Impl::answers_end() {
  asio::steady_timer pause(control);
  while (app.exchanges > 0 && Clock::now() < drain_until) {
    pause.expires_after(kDrainPoll);
    error_code ignored;
    co_await pause.async_wait(into(ignored));
  }
}

// Answers in flight finish. Those that take too long are told so and end; then nothing is left to do.
asio::awaitable<void> Server::Impl::finish() {
  co_await answers_end();
  app.cut.request_stop();
  drain_until = Clock::now() + kCutTime;
  co_await answers_end();
  io.stop();
}

void Server::Impl::begin_drain() {
  if (!app.draining.request_stop()) return;
  app.engine.cancel_loading();
  app.log.event("draining", fmt::format("{} answers in flight", app.exchanges.load()));
  error_code ignored;
  acceptor.close(ignored);
  set_drain_end(Clock::now() + app.options.limits.drain_time);
  asio::co_spawn(control, finish(), asio::detached);
}

void Server::Impl::set_drain_end(Clock::time_point time) {
  drain_until = time;
  const auto stop_time = signals_seen > 1 ? kHasty : app.options.limits.stop_time;
  if (!ends_process) return;
  try {
    watch.end_at(time + kCutTime + stop_time, app.log.file());
  } catch (const std::exception& e) {  // nobody watches, and answers end all the same
    app.log.failure(e.what());
  }
}

void Server::Impl::wait_for_signal() {
  signals.async_wait([this](const error_code& error, int) {
    if (error) return;
    if (++signals_seen > 2) std::_Exit(ExitWatch::kStatus);
    begin_drain();
    if (signals_seen > 1) set_drain_end(Clock::now());
    wait_for_signal();
  });
}

void Server::Impl::loading(int percent) {
  if (!app.options.log_loading || percent / 10 == loading_told.percent / 10 ||
      Clock::now() - loading_told.time < app.options.loading_pause)
    return;
  loading_told = {Clock::now(), percent};
  app.log.event("loading", fmt::format("{}%", percent));
}

void Server::Impl::engine_changed() {
  asio::post(control, [this] {
    if (app.engine.state() == EngineThread::State::kReady)
      return app.log.event("ready", app.options.model_name);
    app.log.event("failed", app.engine.failure().message());
    begin_drain();
  });
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Server::~Server() = default;

Result<std::unique_ptr<Server>> Server::create(ServerOptions options, Open open) try {
  const rlim_t files = raise_file_limit();
  const int wanted = options.limits.connections;
  options.limits.connections = static_cast<int>(std::min<rlim_t>(wanted, connections_within(files)));
  return_large_blocks();
  auto impl = std::make_unique<Impl>(std::move(options), std::move(open));
  App& app = impl->app;
  if (!app.options.log_file.empty()) RETURN_IF_ERROR(app.log.open(app.options.log_file));
  app.log.take_notices();
  if (!app.options.stored_folder.empty()) {
    ASSIGN_OR_RETURN(auto folder, openai::ResponseFolder::open(app.options.stored_folder));
    RETURN_IF_ERROR(app.responses.keep_in(std::move(folder)));
  }
  RETURN_IF_ERROR(impl->listen());
  if (app.options.limits.connections < wanted)
    app.log.event("connections",
                  fmt::format("{} at a time and not {}: a process may have {} files (ulimit -Hn)",
                              app.options.limits.connections, wanted, files));
  return std::unique_ptr<Server>(new Server(std::move(impl)));
} catch (const std::system_error& e) {
  return no_thread(e);
}

uint16_t Server::port() const {
  error_code ignored;
  return impl_->acceptor.local_endpoint(ignored).port();
}

Status Server::run(bool signals) {
  Impl& s = *impl_;
  std::vector<int> heard;
  if (signals) {
    // Ctrl-C is ignored in a script's background jobs, a closed terminal under nohup.
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
      struct sigaction action {};
      const bool known = sigaction(signal, nullptr, &action) == 0;
      if (signal == SIGTERM || (known && action.sa_handler != SIG_IGN)) heard.push_back(signal);
    }
    for (const int signal : heard) s.signals.add(signal);
    s.wait_for_signal();
    s.ends_process = true;
  }
  std::vector<std::jthread> threads;  // joined where an exception ends the function, too
  Status started;
  try {
    s.app.engine.start([&s] { s.engine_changed(); }, [&s](int percent) { s.loading(percent); });
    for (int i = 0; i < s.app.options.io_threads; ++i) threads.emplace_back([&s] { s.work(); });
  } catch (const std::exception& e) {
    s.io.stop();
    started = no_thread(e);
  }
  for (std::jthread& thread : threads) thread.join();
  signals_at_end = s.signals_seen;
  s.signals.clear();
  for (const int signal : heard) std::signal(signal, at_end);
  s.app.workers.stop();
  RETURN_IF_ERROR(started);
  if (!s.app.engine.stop_within(kCancelTime)) return {StatusCode::kCancelled, "the model is being loaded"};
  if (s.app.engine.state() != EngineThread::State::kFailed) return {};
  const Status failure = s.app.engine.failure();
  return failure.ok() ? Status(StatusCode::kInternal, "out of memory") : failure;
}

void Server::wait_until_loaded() const { impl_->app.engine.wait_until_loaded(); }

void Server::drain() {
  asio::post(impl_->control, [impl = impl_.get()] { impl->begin_drain(); });
}

}  // namespace moesaic::server

// The process ends within its time after a signal, whatever a thread does.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <semaphore>
#include <stdexcept>
#include <thread>

#include "api/model_parts.h"
#include "backend/idle_backend.h"
#include "base/sanitizer.h"
#include "base/temporary_folder.h"
#include "server/engine_thread.h"
#include "server/exit_watch.h"
#include "server/http_client.h"
#include "server/server.h"

namespace moesaic::server {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void never_return() {
  for (;;) pause();
}

// A device that never comes back from a step.
class StuckBackend final : public IdleBackend {
 public:
  BackendCaps caps() const override { return {.name = "stuck"}; }
  double kv_token_bytes(const ModelConfig&) const override { return 4; }
  Status end_step() override {
    in_step.release();
    never_return();
  }
  static inline std::binary_semaphore in_step{0};
};

// Each step of its ends when it may.
class SlowBackend final : public IdleBackend {
 public:
  Status end_step() override {
    in_step.release();
    may_end.acquire();
    return {};
  }
  static inline std::binary_semaphore in_step{0}, may_end{0};
};

class FailingBackend final : public IdleBackend {
 public:
  Status end_step() override { throw std::runtime_error("no step"); }
};

template <typename Device = StuckBackend>
Result<Model> stuck_model() {
  Tokenizer tokenizer = Tokenizer::from_hf_json(MOESAIC_SOURCE_DIR "/models/tiny/tokenizer.json").value();
  const ModelConfig config{.name = "stuck",
                           .layers = 1,
                           .vocab = tokenizer.vocab_size(),
                           .window = 128,
                           .sliding = {false},
                           .max_context = 512};
  auto backend = std::make_unique<Device>();
  Engine engine = Engine::create(*backend, config, {.context = 512}).value();
  return make_model({.config = config,
                     .backend = std::move(backend),
                     .tokenizer = std::move(tokenizer),
                     .engine = std::move(engine),
                     .info = {.name = "stuck", .context = 512}});
}

void send_request(uint16_t port) {
  const std::string body = R"({"prompt": "a"})";
  static HttpClient client(port);
  client.write("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
               std::to_string(body.size()) + "\r\n\r\n" + body);
}

// Runs the server until a signal ends it; `meanwhile` runs in a thread of its own once a step has begun.
template <typename Meanwhile>
[[noreturn]] void serve(seconds drain_time, Meanwhile meanwhile) {
  ServerOptions options{.port = 0, .model_name = "stuck", .version = "test", .log_requests = false};
  options.limits.drain_time = drain_time;
  options.limits.stop_time = seconds(1);
  Status status;
  {
    const auto server =
        Server::create(options, [](const Server::Progress&) { return stuck_model(); }).value();
    std::thread([&, port = server->port()] {
      server->wait_until_loaded();
      send_request(port);
      StuckBackend::in_step.acquire();
      meanwhile();
    }).detach();
    status = server->run(true);
  }
  std::_Exit(status.ok() ? 0 : 2);
}

// Until each other thread of this process waits for something.
void wait_until_others_sleep() {
  const auto others_sleep = [] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      if (task.path().filename() == std::to_string(gettid())) continue;
      std::ifstream in(task.path() / "stat");
      const std::string stat{std::istreambuf_iterator<char>(in), {}};
      if (stat.find(") S ") == std::string::npos) return false;
    }
    return true;
  };
  while (!others_sleep()) {
  }
}

int entries(const char* folder) {
  return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder), {}));
}

constexpr unsigned kAlarm = 60;  // seconds, after which a child has hung

class ShutdownTest : public testing::Test {
 protected:
  ShutdownTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
  ~ShutdownTest() override { EXPECT_LT(Clock::now() - begun_, seconds(90)); }
  const Clock::time_point begun_ = Clock::now();
};

TEST_F(ShutdownTest, AStepThatNeverEnds) {
  EXPECT_EXIT(serve(seconds(1), [] { std::raise(SIGTERM); }), testing::ExitedWithCode(1),
              "the time to shut down is over");
  EXPECT_LT(Clock::now() - begun_, seconds(30));  // the limits that hold without these options take longer
}

// As a second signal does.
TEST_F(ShutdownTest, AnEarlierTimeReplacesTheFirst) {
  EXPECT_EXIT(
      {
        alarm(kAlarm);
        ExitWatch watch;
        watch.end_at(Clock::now() + std::chrono::hours(1), STDERR_FILENO);
        wait_until_others_sleep();
        watch.end_at(Clock::now(), STDERR_FILENO);
        never_return();
      },
      testing::ExitedWithCode(1), "the time to shut down is over");
}

TEST_F(ShutdownTest, ALogThatNobodyReadsHoldsUpNoEnd) {
  EXPECT_EXIT(
      {
        alarm(kAlarm);
        int ends[2];
        if (pipe2(ends, O_NONBLOCK | O_CLOEXEC) != 0) std::_Exit(2);
        while (write(ends[1], "x", 1) == 1) {
        }
        fcntl(ends[1], F_SETFL, 0);
        ExitWatch watch;
        watch.end_at(Clock::now(), ends[1]);
        never_return();
      },
      testing::ExitedWithCode(ExitWatch::kStatus), "");
}

// Ends with 0 if no file is left of it. Its thread holds one until it ends; threads are not counted, as a
// sanitizer may have one of its own.
[[noreturn]] void call_off_a_watch() {
  alarm(kAlarm);
  const int files = entries("/proc/self/fd");
  {
    ExitWatch watch;
    watch.end_at(Clock::now() + std::chrono::hours(1), STDERR_FILENO);
    wait_until_others_sleep();
  }
  while (entries("/proc/self/fd") > files) {
  }
  std::_Exit(0);
}

TEST_F(ShutdownTest, AWatchThatIsCalledOffLeavesNothing) {
  EXPECT_EXIT(call_off_a_watch(), testing::ExitedWithCode(0), "");
}

TEST_F(ShutdownTest, AnEngineThatIsIdleEndsWithItsOwner) {
  EXPECT_EXIT(
      {
        alarm(kAlarm);
        Metrics metrics("stuck");
        {
          EngineThread engine([](const EngineThread::Progress&) { return stuck_model(); }, 1, metrics);
          engine.start([] {});
          engine.wait_until_loaded();
        }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

// Requests that the model has, and those that it has not seen: their queues belong to connections.
TEST_F(ShutdownTest, AnEngineThatStoppedHoldsNoQueues) {
  Metrics metrics("slow");
  EngineThread engine([](const EngineThread::Progress&) { return stuck_model<SlowBackend>(); }, 4, metrics);
  engine.start([] {});
  engine.wait_until_loaded();
  asio::io_context io;
  std::vector<std::weak_ptr<EventQueue>> queues;
  const auto submit = [&] {
    const auto queue = std::make_shared<EventQueue>(io.get_executor(), false);
    queues.push_back(queue);
    EXPECT_TRUE(engine.submit({{.prompt = {1, 2}, .chat = false}}, queue, {}, Clock::now()));
  };
  submit();
  SlowBackend::in_step.acquire();
  submit();
  std::thread stop([&] { engine.stop(); });
  wait_until_others_sleep();
  SlowBackend::may_end.release();
  stop.join();
  for (const auto& queue : queues) EXPECT_TRUE(queue.expired());
}

TEST_F(ShutdownTest, AnEngineThatFailedHoldsNoQueues) {
  Metrics metrics("failing");
  EngineThread engine([](const EngineThread::Progress&) { return stuck_model<FailingBackend>(); }, 4,
                      metrics);
  std::binary_semaphore changed{0};
  engine.start([&] { changed.release(); });
  changed.acquire();
  asio::io_context io;
  auto queue = std::make_shared<EventQueue>(io.get_executor(), false);
  EXPECT_TRUE(engine.submit({{.prompt = {1, 2}, .chat = false}}, queue, {}, Clock::now()));
  changed.acquire();
  EXPECT_EQ(engine.state(), EngineThread::State::kFailed);
  engine.stop();
  EXPECT_EQ(queue.use_count(), 1);
}

// Matches where it was not the time that ended the process. NOLINTBEGIN: GoogleTest's names.
struct NotByTime {
  using is_gtest_matcher = void;
  bool MatchAndExplain(const std::string& text, std::ostream* /*why*/) const {
    return text.find("the time to shut down is over") == std::string::npos;
  }
  void DescribeTo(std::ostream* to) const { *to << "says nothing of the time to shut down"; }
  void DescribeNegationTo(std::ostream* to) const { *to << "speaks of the time to shut down"; }
};
// NOLINTEND

// A script's background job has SIGINT ignored.
TEST_F(ShutdownTest, AThirdSignalEndsAtOnce) {
  EXPECT_EXIT(serve(std::chrono::hours(1),
                    [] {
                      alarm(kAlarm);
                      for (int i = 0; i < 3; ++i) std::raise(SIGTERM);
                    }),
              testing::ExitedWithCode(1), NotByTime());
}

// Stored responses may still have to be written.
[[noreturn]] void raise_at_the_end(int signals) {
  alarm(kAlarm);
  const auto no_model = [](const Server::Progress&) -> Result<Model> {
    return Status(StatusCode::kIo, "none");
  };
  auto server = Server::create({.port = 0, .model_name = "none", .version = "test"}, no_model).value();
  const Status status = server->run(true);
  for (int i = 0; i < signals; ++i) std::raise(SIGTERM);
  server.reset();
  for (int i = 0; i < signals; ++i) std::raise(SIGTERM);
  std::_Exit(status.ok() ? 2 : 0);
}

TEST_F(ShutdownTest, ASignalAtTheEndChangesNothing) {
  EXPECT_EXIT(raise_at_the_end(1), testing::ExitedWithCode(0), "");
}

TEST_F(ShutdownTest, TheThirdSignalAtTheEndEndsIt) {
  EXPECT_EXIT(raise_at_the_end(2), testing::ExitedWithCode(1), NotByTime());
}

// A hard limit below --max-connections, and nothing left of it: one line each, and a client that waits is
// answered.
[[noreturn]] void serve_with_few_files() {
  alarm(kAlarm);
  const rlimit few{.rlim_cur = 64, .rlim_max = 64};
  if (setrlimit(RLIMIT_NOFILE, &few) != 0) std::_Exit(2);
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/log";
  std::binary_semaphore ended{0};
  const auto no_model = [&](const Server::Progress&) -> Result<Model> {
    ended.acquire();
    return Status(StatusCode::kIo, "none");
  };
  const auto server =
      Server::create({.port = 0, .model_name = "none", .version = "test", .log_file = path}, no_model)
          .value();
  std::thread thread([&] { EXPECT_FALSE(server->run(false).ok()); });
  const Descriptor log(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto logged = [&](const std::string& words) {
    std::string text(65536, ' ');
    text.resize(static_cast<size_t>(pread(log.get(), text.data(), text.size(), 0)));
    size_t times = 0;
    for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; ++at) ++times;
    return times;
  };
  EXPECT_EQ(logged("32 at a time and not 16384"), 1u);
  std::vector<Descriptor> all;
  for (int file = 0; (file = dup(log.get())) >= 0;) all.emplace_back(file);
  all.pop_back();
  HttpClient client(server->port());
  while (logged("Too many open files") == 0) {
  }
  all.clear();
  client.write("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(statuses_of(client.read()), "200 ");
  EXPECT_EQ(logged("Too many open files"), 1u);
  ended.release();
  thread.join();
  std::_Exit(testing::Test::HasFailure() ? 1 : 0);
}

TEST_F(ShutdownTest, FewFilesMeanFewConnections) {
  if (kMemoryIsSanitized) GTEST_SKIP() << "a sanitizer tries memory with a pipe, for which no file is left";
  EXPECT_EXIT(serve_with_few_files(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace moesaic::server

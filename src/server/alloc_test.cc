// A connection while memory runs out: whichever of its allocations fails, at most that connection ends. Those
// below kSmall bytes do not fail here: Asio 1.81 and nlohmann's JSON allocate some where nothing may throw.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "base/temporary_folder.h"
#include "server/http_client.h"
#include "server/server.h"
#include "server/session_harness.h"

namespace {

constexpr size_t kSmall = 256;
thread_local size_t least = kSmall;     // bytes of an allocation that may fail
thread_local int allocations_left = 0;  // before one of this thread's fails; 0: none does

void* allocate(size_t size) {
  if (size >= least && allocations_left > 0 && --allocations_left == 0) throw std::bad_alloc();
  if (void* const memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) { return allocate(size); }
void* operator new[](size_t size) { return allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }

namespace moesaic::server {
namespace {

constexpr const char* kHealth = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";

class OutOfMemory : public testing::TestWithParam<const char*> {
 protected:
  OutOfMemory() {
    ServerOptions options{.model_name = "none", .version = "test"};
    options.log_file = folder_.path() + "/log";
    options.cors_origins = {"https://page.example"};
    app_ = app_without_model(options);
    EXPECT_TRUE(app_->log.open(options.log_file).ok());
  }

  // True: the allocation that was to fail did.
  bool ask(const std::string& request, int failing) {
    SessionHarness session(io_, *app_);
    session.start();
    allocations_left = failing;
    session.feed(request);
    session.finish();
    const bool failed = failing > 0 && allocations_left == 0;
    allocations_left = 0;
    answers_ = session.answers();
    return failed;
  }

  const TemporaryFolder folder_;
  asio::io_context io_{1};
  std::unique_ptr<App> app_;
  std::string answers_;
};

TEST_P(OutOfMemory, EndsOneConnectionAtMost) {
  ask(GetParam(), 0);
  const std::string whole = statuses_of(answers_);
  EXPECT_FALSE(whole.empty());
  int at = 1;
  for (; ask(GetParam(), at); ++at) {
    const std::string statuses = statuses_of(answers_);
    EXPECT_TRUE(whole.starts_with(statuses) || statuses.ends_with("500 ")) << answers_;  // nothing follows
    EXPECT_EQ(app_->metrics.connections, 0) << at;
    EXPECT_EQ(app_->exchanges, 0) << at;
    EXPECT_EQ(app_->metrics.body_bytes, 0) << at;
    ask(kHealth, 0);
    EXPECT_EQ(statuses_of(answers_), "200 ") << "after allocation " << at << " failed";
  }
  EXPECT_GT(at, 5) << "hardly anything has failed";
  EXPECT_GT(app_->log.failures(), 0);
  EXPECT_EQ(statuses_of(answers_), whole);
}

INSTANTIATE_TEST_SUITE_P(
    Requests, OutOfMemory,
    testing::Values(kHealth, "GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
                    "GET /nowhere HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: 1\r\n\r\n"
                    "OPTIONS /tokenize HTTP/1.1\r\nHost: localhost\r\nOrigin: https://page.example\r\n\r\n"
                    "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\nExpect: "
                    "100-continue\r\nTransfer-Encoding: chunked\r\n\r\n40;x=y\r\n"
                    "0123456789012345678901234567890123456789012345678901234567890123\r\n0\r\nX: y\r\n\r\n"));

// Some of the threads are there already where one more has no memory.
TEST(ServerOutOfMemory, AStartWithoutMemoryEndsByAnError) {
  int failed = 0;
  ServerOptions options{.port = 0, .model_name = "none", .version = "test"};
  options.io_threads = 4;
  for (int failing = 1; failing < 25; ++failing) {
    const auto server = Server::create(options, [](const Server::Progress&) -> Result<Model> {
                          return Status(StatusCode::kIo, "no model");
                        }).value();
    least = 0, allocations_left = failing;
    try {
      failed += server->run(false).code() == StatusCode::kInternal ? 1 : 0;
    } catch (const std::bad_alloc&) {
    }
    least = kSmall, allocations_left = 0;
  }
  EXPECT_GT(failed, 3);
}

}  // namespace
}  // namespace moesaic::server

// A connection's requests as they come over the wire, without a model: what is refused, what is answered, and
// where the next request begins.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "base/descriptor.h"
#include "base/sanitizer.h"
#include "base/temporary_folder.h"
#include "server/body.h"
#include "server/http_client.h"
#include "server/origin.h"
#include "server/session_harness.h"

namespace moesaic::server {
namespace {

const std::string kHost = "Host: localhost\r\n";
const std::string kNext = "GET /version HTTP/1.1\r\n" + kHost + "\r\n";

class SessionTest : public testing::Test {
 protected:
  SessionTest() {
    options_.model_name = "none";
    options_.version = "test";
    options_.log_requests = false;
  }

  // All that a client gets which sends these parts, one after the other.
  std::string talk(const std::vector<std::string>& parts) {
    if (app_ == nullptr) app_ = app_without_model(options_);
    SessionHarness session(io_, *app_);
    session.start();
    for (const std::string& part : parts) session.feed(part);
    session.finish();
    EXPECT_EQ(app_->metrics.connections, 0);
    EXPECT_EQ(app_->metrics.body_bytes, 0);
    EXPECT_EQ(app_->log.failures(), 0);
    return session.answers();
  }
  std::string statuses(const std::vector<std::string>& parts) { return statuses_of(talk(parts)); }
  // The same bytes at once and byte by byte.
  void expect(const std::string& request, const std::string& statuses_wanted) {
    const std::string shown = request.substr(0, 200);
    EXPECT_EQ(statuses({request}), statuses_wanted) << shown;
    if (request.size() > 4096) return;
    std::vector<std::string> bytes;
    for (const char c : request) bytes.emplace_back(1, c);
    EXPECT_EQ(statuses(bytes), statuses_wanted) << "byte by byte: " << shown;
  }

  asio::io_context io_{1};
  ServerOptions options_;
  std::unique_ptr<App> app_;
};

std::string get(const std::string& fields, const std::string& target = "/health") {
  return "GET " + target + " HTTP/1.1\r\n" + fields + "\r\n";
}
std::string post(const std::string& fields, const std::string& body) {
  return "POST /tokenize HTTP/1.1\r\n" + kHost + fields + "\r\n" + body;
}
std::string chunked(const std::string& body, const std::string& coding = "chunked") {
  return post("Transfer-Encoding: " + coding + "\r\n", body);
}

TEST_F(SessionTest, AnEngineThatFailedIsNotHealthy) {
  app_ = app_without_model(options_);
  app_->engine.start([] {});
  app_->engine.wait_until_loaded();
  for (const char* path : {"/health", "/ready"}) {
    const std::string answers = talk({get(kHost, path) + get(kHost, path)});
    EXPECT_EQ(statuses_of(answers), "503 503 ") << path;
    EXPECT_NE(answers.find("the engine has failed: no model"), std::string::npos) << answers;
  }
}

// The model is not loaded: a body that was received gets 503, and the next request its answer.
TEST_F(SessionTest, BodiesEndWhereTheyEnd) {
  expect(get(kHost) + kNext, "200 200 ");
  expect("\r\n" + get(kHost) + kNext, "200 200 ");
  expect(get(kHost + "Content-Length: 3\r\n") + "abc" + kNext, "200 200 ");
  expect(post("Content-Length: 0\r\n", kNext), "503 200 ");
  expect(post("Content-Length: 003\r\n", "abc" + kNext), "503 200 ");
  expect(chunked("3\r\nabc\r\n0\r\n\r\n" + kNext), "503 200 ");
  expect(chunked("0\r\n\r\n" + kNext, "CHUNKED"), "503 200 ");
  expect(chunked("0003;a=b;c=\"d e\"\r\nabc\r\nA\r\n0123456789\r\n00\r\nX: y\r\nZ: w\r\n\r\n" + kNext),
         "503 200 ");
  expect("HEAD /health HTTP/1.1\r\n" + kHost + "\r\n" + kNext, "200 200 ");
  expect("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" + kNext, "200 200 ");
  expect("GET /health HTTP/1.0\r\n\r\n" + kNext, "200 ");
  expect(get(kHost + "Connection: close\r\n") + kNext, "200 ");
  expect(post("Expect: 100-continue\r\nContent-Length: 3\r\n", "abc" + kNext), "100 503 200 ");
}

// Two programs could see different requests in these bytes: the connection ends with the refusal.
TEST_F(SessionTest, AmbiguousFramingIsRefusedAndCloses) {
  for (const char* coding :
       {"gzip", "gzip, chunked", "chunked, gzip", "identity", "xchunked", "chunked;q=1", "\"chunked\""})
    expect(chunked(kNext, coding), "501 ");
  for (const char* coding :
       {"chunked, chunked", "chunked,", ",chunked", "", "chunked\r\nTransfer-Encoding: chunked",
        "chunked\r\nTransfer-Encoding: gzip", "gzip\r\nTransfer-Encoding: chunked",
        "chunked\r\nContent-Length: 0", "gzip\r\nContent-Length: 0", "chunked\r\ntransfer-encoding:chunked",
        "chunked\r\nContent-Length: 5", "\vchunked", "chunked\r\n folded", "chu\r\n nked"})
    expect(chunked("0\r\n\r\n" + kNext, coding), "400 ");
  for (const char* length :
       {"5\r\nTransfer-Encoding: chunked", "5\r\nContent-Length: 5", "5\r\nContent-Length: 6", "5, 5", "+5",
        "-1", "0x5", "5 5", "", "5;", "18446744073709551617", "99999999999999999999999999"})
    expect(post(std::string("Content-Length: ") + length + "\r\n", "0\r\n\r\n" + kNext), "400 ");
  expect("POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + kNext, "400 ");
  for (const char* body :
       {"3\nabc\n0\n\n", "3\r\nabcd\r\n0\r\n\r\n", "g\r\n", "-1\r\n", "0x3\r\nabc\r\n0\r\n\r\n",
        " 3\r\nabc\r\n", "3 \r\nabc\r\n0\r\n\r\n", "fffffffffffffffff\r\n", "3;a\nb\r\nabc\r\n0\r\n\r\n",
        "3\r\nabc0\r\n\r\n", "0\r\nX: y\nZ: w\r\n\r\n", "0\r\nX: y\r\n w\r\n\r\n", "0\r\nX : y\r\n\r\n",
        "0\r\nX\r\n\r\n", "0\r\nContent-Length: 5\r\n\r\n", "0\r\nTransfer-Encoding: chunked\r\n\r\n",
        ";a\r\n", "\r\n3\r\nabc\r\n"})
    expect(chunked(body + kNext), "400 ");
}

TEST_F(SessionTest, HostIsThereOnce) {
  for (const char* host : {"localhost", "localhost:8080", "LOCALHOST", "127.0.0.1", "127.1.2.3:1", "[::1]",
                           "[::1]:80", "a.localhost", "localhost."})
    expect(get("Host: " + std::string(host) + "\r\n"), "200 ");
  for (const char* host :
       {"", " ", "a b", "a/b", "http://localhost", "localhost:x", "localhost:123456", "[::1", "[::1]x", "[1]",
        "::1", "a@localhost", "localhost, localhost", "lo\tcal", "\"localhost\"", "<x>", "[::1%eth0]", ":80"})
    expect(get("Host: " + std::string(host) + "\r\n") + kNext, "400 ");
  expect(get("") + kNext, "400 ");
  expect(get(kHost + kHost) + kNext, "400 ");
  expect(get(kHost + "host: localhost\r\n") + kNext, "400 ");
}

TEST_F(SessionTest, LinesAreWhatTheRfcSays) {
  for (const std::string& request : {"GET /health HTTP/1.1\nHost: localhost\n\n" + kNext,
                                     get(kHost + "X: y\n"),
                                     get("Host: localhost\nX: y\r\n"),
                                     get(kHost + "X: a\r\n b\r\n"),
                                     get(kHost + " X: a\r\n"),
                                     get(kHost + "X : a\r\n"),
                                     get(kHost + "X\r\n"),
                                     get(kHost + ": a\r\n"),
                                     get(kHost + "X: a\rb\r\n"),
                                     get(kHost + "X: a\x01"
                                                 "b\r\n"),
                                     get(kHost + std::string("X: a\0b\r\n", 8)),
                                     get(std::string("Host: local\0host\r\n", 18)),
                                     get(kHost + "X\x80: a\r\n"),
                                     get(kHost + "X: a\x7f\r\n"),
                                     " GET /health HTTP/1.1\r\n" + kHost + "\r\n",
                                     "GET  /health HTTP/1.1\r\n" + kHost + "\r\n",
                                     std::string("GET /health\r\n\r\n"),
                                     "GET /health HTTP/1.1 \r\n" + kHost + "\r\n",
                                     "GET /health http/1.1\r\n" + kHost + "\r\n",
                                     "GET /he alth HTTP/1.1\r\n" + kHost + "\r\n",
                                     "GET /health HTTP/1.1x\r\n" + kHost + "\r\n",
                                     "G@T /health HTTP/1.1\r\n" + kHost + "\r\n",
                                     std::string("\x16\x03\x01\x02\x00\x01", 6)})
    expect(request, "400 ");
  for (const char* version : {"HTTP/2.0", "HTTP/1.2", "HTTP/0.9", "HTTP/9.9"})
    expect(fmt::format("GET /health {}\r\n{}\r\n{}", version, kHost, kNext), "505 ");
  expect("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505 ");
}

TEST_F(SessionTest, EmptyLinesBeginNoRequest) {
  expect("\r\n\r\n" + kNext + "\r\n\r\n\r\n" + kNext + "\r\n", "200 200 ");
  expect("\r\n\n" + kNext, "400 ");
  expect("\r\rG", "400 ");
}

TEST_F(SessionTest, Targets) {
  for (const char* target : {"/health", "/health?x=/nowhere", "http://localhost/health",
                             "HTTP://127.0.0.1:8080/health?x", "https://localhost/health", "http://localhost",
                             "http://localhost?x", "/", "//", "/health/", "//health", "///health//?x"})
    expect(get(kHost, target) + kNext, "200 200 ");
  for (const char* target :
       {"/Health", "/./health", "//nowhere/", "/v1//", "/x/../health", "/%68ealth", "/health%00", "/health#x",
        "/health;x", "/http://localhost/health", "/nowhere", "/\xc3\xa4"})
    expect(get(kHost, target) + kNext, "404 200 ");
  for (const char* target :
       {"*", "health", "ftp://localhost/health", "http:///health", "http://a@localhost/health", "http://",
        "://x", "?x", "localhost:80", "http://local host/"})
    expect(get(kHost, target) + kNext, "400 ");
  expect(get(kHost, "http://other.example/health") + kNext, "403 200 ");
  expect(get("Host: other.example\r\n", "http://localhost/health"), "200 ");
  expect("OPTIONS * HTTP/1.1\r\n" + kHost + "\r\n" + kNext, "204 200 ");
  expect("OPTIONS / HTTP/1.0\r\n\r\n", "204 ");
  expect("OPTIONS /v1/models HTTP/1.1\r\n" + kHost + "\r\n" + kNext, "204 200 ");
  expect("CONNECT localhost:80 HTTP/1.1\r\n" + kHost + "\r\n" + kNext, "400 ");
  const std::string other = talk({"PUT /v1/models HTTP/1.1\r\n" + kHost + "\r\n"});
  EXPECT_EQ(statuses_of(other), "405 ");
  EXPECT_NE(other.find("\r\nAllow: GET\r\n"), std::string::npos) << other;
  // It is no response's id.
  for (const char* method : {"GET", "DELETE"}) {
    const std::string tokens =
        talk({fmt::format("{} /v1/responses/input_tokens HTTP/1.1\r\n{}\r\n", method, kHost)});
    EXPECT_EQ(statuses_of(tokens), "405 ");
    EXPECT_NE(tokens.find("\r\nAllow: POST\r\n"), std::string::npos) << tokens;
  }
}

TEST_F(SessionTest, TheLogNamesRequestsWhoseHeadIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.path() + "/log";
  options_.log_requests = true;
  app_ = app_without_model(options_);
  ASSERT_TRUE(app_->log.open(path).ok());
  const std::string methods[] = {"POST", "HEAD", "G\"T", std::string(32, 'A'), std::string(33, 'A')};
  for (const std::string& method : methods)
    talk({method + " /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"});
  std::ifstream log(path);
  for (const std::string& method : methods) {
    std::string line;
    std::getline(log, line);
    const bool named = method.size() <= 32 && method != "G\"T";
    const std::string want =
        fmt::format(R"("method":"{}","path":"/health","status":400,)", named ? method : "");
    EXPECT_NE(line.find(want), std::string::npos) << want << "\n" << line;
  }
}

TEST_F(SessionTest, CompressedBodiesAreRefusedByName) {
  const std::string length = "Content-Length: 2\r\n";
  for (const char* coding : {"gzip", "GZIP", "deflate", "br", "zstd", "gzip, identity"}) {
    const std::string answer =
        talk({post(fmt::format("{}Content-Encoding: {}\r\n", length, coding), "{}") + kNext});
    EXPECT_EQ(statuses_of(answer), "415 ") << coding;
    EXPECT_NE(answer.find(std::string("Content-Encoding: ") + coding), std::string::npos) << answer;
    EXPECT_NE(answer.find("\r\nAccept-Encoding: identity\r\n"), std::string::npos) << answer;
  }
  expect(post("Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "2\r\n{}\r\n0\r\n\r\n"), "415 ");
  expect(post(length + "Content-Encoding: identity\r\n", "{}") + kNext, "503 200 ");
  expect(post(length + "Content-Encoding: \r\n", "{}") + kNext, "503 200 ");
  expect(get(kHost + "Content-Encoding: gzip\r\n") + kNext, "200 200 ");  // there is no body to decode
}

// Whatever their sizes, and wherever a read ends.
TEST_F(SessionTest, TrailersAndExtensionsCountAgainstTheHeaderLimit) {
  const auto limit = static_cast<int>(options_.limits.header_bytes);
  for (const int size : {limit + 1, 65533, 65534, 65535, 65536, 70000, 1 << 20}) {
    const std::string many(size, 'a');
    for (const std::string& body :
         {"0\r\nX: " + many + "\r\n\r\n", "0\r\n" + many + ": x\r\n\r\n", "0\r\n" + many,
          "0;" + many + "\r\n\r\n", "1;" + many + "\r\nx\r\n0\r\n\r\n", "1;a=" + many,
          std::string(size, '0') + "1\r\nx\r\n0\r\n\r\n",
          fmt::format("1\r\nx\r\n0\r\nX: y\r\n{}: x\r\n\r\n", many)})
      EXPECT_EQ(statuses({chunked(body + kNext)}), "431 ") << size << body.substr(0, 10);
    EXPECT_EQ(statuses({get(fmt::format("{}X: {}\r\n", kHost, many))}), "431 ");
    EXPECT_EQ(statuses({get(fmt::format("{}{}: x\r\n", kHost, many))}), "431 ");
    EXPECT_EQ(statuses({get(kHost, "/" + many)}), "431 ");
  }
  std::string fields, chunks;
  for (int i = 0; i < limit / 6 + 1; ++i) fields += "X: y\r\n";
  for (int i = 0; i < limit / 3 + 1; ++i) chunks += "1;ab\r\nx\r\n";
  EXPECT_EQ(statuses({chunked("0\r\n" + fields + "\r\n" + kNext)}), "431 ");
  EXPECT_EQ(statuses({chunked(chunks + "0\r\n\r\n" + kNext)}), "431 ");
  const std::string half(limit / 2, 'a');
  EXPECT_EQ(statuses({chunked("1;" + half + "\r\nx\r\n0\r\nX: " + half + "\r\n\r\n" + kNext)}), "431 ");
  EXPECT_EQ(statuses({chunked("1;" + half + "\r\nx\r\n0\r\nX: y\r\n\r\n" + kNext)}), "503 200 ");
  EXPECT_EQ(statuses({chunked("1\r\nx\r\n0\r\nX: " + half + "\r\n\r\n" + kNext)}), "503 200 ");
  std::string ones;
  for (int i = 0; i < limit; ++i) ones += "1\r\nx\r\n";
  EXPECT_EQ(statuses({chunked(ones + "0\r\n\r\n" + kNext)}), "503 200 ");
}

TEST_F(SessionTest, RequestsAreCounted) {
  talk({get(kHost) + get(kHost)});
  const std::string metrics = talk({get(kHost, "/metrics")});
  EXPECT_NE(metrics.find("moesaic:http_requests_total{route=\"/health\",status=\"200\"} 2\n"),
            std::string::npos)
      << metrics;
}

TEST_F(SessionTest, ALabelIsEscapedAndUtf8) {
  options_.model_name = "a\"b\\c\nd\xFF";
  EXPECT_NE(talk({get(kHost, "/metrics")})
                .find("\nmoesaic:connections{model_name=\"a\\\"b\\\\c\\nd\xEF\xBF\xBD\"} 1\n"),
            std::string::npos);
}

TEST_F(SessionTest, Keys) {
  options_.api_keys = {"secret"};
  for (const char* key : {"Bearer secret", "bearer secret", "BEARER   secret", "bEaReR \t secret  "})
    expect(get(kHost + "Authorization: " + key + "\r\n", "/v1/models"), "503 ");
  for (const char* key : {"", "Bearer", "Bearer wrong", "Bearersecret", "Basic secret", "secret",
                          "Bearer secret x", "Bearer Secret", "Bearer, secret"})
    expect(get(kHost + "Authorization: " + key + "\r\n", "/v1/models"), "401 ");
  expect(get(kHost + "Authorization: Bearer secret\r\nAuthorization: Bearer x\r\n", "/v1/models"), "400 ");
}

TEST_F(SessionTest, ABodyWithoutAKeyTakesNoMemory) {
  options_.api_keys = {"secret"};
  app_ = app_without_model(options_);
  for (const char* method : {"GET", "OPTIONS"}) {
    SessionHarness session(io_, *app_);
    session.start();
    session.feed(fmt::format("{} /health HTTP/1.1\r\n{}Content-Length: 100000\r\n\r\n", method, kHost));
    session.feed(std::string(60000, 'x'));
    EXPECT_EQ(app_->metrics.body_bytes, 0) << method;
    session.feed(std::string(40000, 'x') + kNext);
    session.finish();
    EXPECT_EQ(statuses_of(session.answers()), method == std::string("GET") ? "200 200 " : "204 200 ");
  }
}

TEST_F(SessionTest, PagesOfOtherOriginsAreRefusedBeforeTheBody) {
  options_.cors_origins = {"https://Page.example/"};
  const auto from = [](const std::string& origin) { return get(kHost + "Origin: " + origin + "\r\n"); };
  for (const char* origin : {"https://page.example", "http://localhost", "https://localhost",
                             "http://LOCALHOST:80", "https://localhost:443"})
    expect(from(origin), "200 ");
  for (const char* origin :
       {"null", "https://other.example", "http://page.example", "https://page.example:1",
        "http://localhost:3000", "https://localhost:80", "file://", "chrome-extension://abc", "localhost",
        "http://localhost.evil.example", "https://page.example.evil.example", "http://", "*"})
    expect(from(origin), "403 ");
  expect(get("Host: [::1]:8080\r\nOrigin: http://[::1]:8080\r\n"), "200 ");
  expect(get("Host: 127.0.0.1:8080\r\nOrigin: http://127.0.0.1:8080\r\n"), "200 ");
  expect(get("Host: 127.0.0.1:8080\r\nOrigin: https://proxy.example\r\nSec-Fetch-Site: same-origin\r\n"),
         "200 ");
  expect(get("Host: 127.0.0.1:8080\r\nOrigin: https://proxy.example\r\nSec-Fetch-Site: cross-site\r\n"),
         "403 ");
  // The page's own scripts: this version has no such file.
  expect(get("Host: 127.0.0.1:8080\r\nOrigin: http://proxy.example\r\n", "/page/0/main.js"), "404 ");
  expect(post("Origin: https://other.example\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n", ""),
         "403 ");
  expect("OPTIONS /v1/models HTTP/1.1\r\n" + kHost + "Origin: https://other.example\r\n\r\n" + kNext,
         "403 200 ");
}

TEST_F(SessionTest, PreflightsAllowTheHeadersThatAreAskedFor) {
  options_.cors_origins = {"https://page.example"};
  const auto ask = [&](const std::string& headers) {
    return talk({"OPTIONS /v1/responses HTTP/1.1\r\n" + kHost +
                 "Origin: https://page.example\r\nAccess-Control-Request-Method: POST\r\n" +
                 "Access-Control-Request-Headers: " + headers +
                 "\r\nAccess-Control-Request-Private-Network: true\r\n\r\n"});
  };
  const std::string js =
      "authorization,content-type,openai-beta,x-stainless-arch,x-stainless-retry-count,user-agent";
  const std::string allowed = ask(js);
  EXPECT_EQ(statuses_of(allowed), "204 ");
  for (const std::string& field : {"Access-Control-Allow-Headers: " + js,
                                   std::string("Access-Control-Allow-Origin: https://page.example"),
                                   std::string("Access-Control-Allow-Private-Network: true")})
    EXPECT_NE(allowed.find("\r\n" + field + "\r\n"), std::string::npos) << field << allowed;
  for (const std::string& odd :
       {std::string("a b\tc"), std::string("a:b"), std::string("<x>"), std::string(5000, 'a')})
    EXPECT_NE(ask(odd).find("Access-Control-Allow-Headers: Authorization, "), std::string::npos) << odd;
  const std::string answer = talk({get(kHost + "Origin: https://page.example\r\n")});
  EXPECT_NE(answer.find("Access-Control-Expose-Headers: X-Request-Id"), std::string::npos) << answer;
}

TEST_F(SessionTest, OnlyOwnNamesAreAnsweredWhereTheAddressIsLocal) {
  for (const char* host : {"evil.example", "localhost.evil.example", "10.0.0.1", "128.0.0.1", "notlocalhost",
                           "[::2]", "127.0.0.1.nip.io"})
    expect(get("Host: " + std::string(host) + "\r\n"), "403 ");
  options_.allowed_hosts = {"Moe.example", "10.0.0.1"};
  app_.reset();
  for (const char* host : {"moe.example", "moe.EXAMPLE:8080", "10.0.0.1", "localhost"})
    expect(get("Host: " + std::string(host) + "\r\n"), "200 ");
  expect(get("Host: x.moe.example\r\n"), "403 ");
  options_.address = "0.0.0.0";
  app_.reset();
  expect(get("Host: x.moe.example\r\n"), "403 ");
  for (const char* host : {"10.1.2.3:8080", "[fd00::1]:8080"})
    expect(get("Host: " + std::string(host) + "\r\n"), "200 ");
  options_.allowed_hosts.clear();
  app_.reset();
  expect(get("Host: x.moe.example\r\n"), "200 ");
}

TEST_F(SessionTest, BodiesShareABudget) {
  options_.limits.bodies_bytes = 4 << 20;
  options_.limits.body_bytes = 2 << 20;
  app_ = app_without_model(options_);
  std::vector<std::unique_ptr<SessionHarness>> held;
  const std::string head = post("Content-Length: " + std::to_string(1 << 20) + "\r\n", "");
  std::string refused;
  for (int i = 0; i < 8; ++i) {
    held.push_back(std::make_unique<SessionHarness>(io_, *app_));
    held.back()->start();
    held.back()->feed(head);
    EXPECT_EQ(app_->metrics.body_bytes, std::min(i, 3) * ((1U << 20) - 1))
        << "what is promised takes nothing";
    held.back()->feed(std::string((1 << 20) - 1, ' '));
    refused = statuses_of(held.back()->answers());
    EXPECT_EQ(refused, i < 3 ? "" : "503 ") << i;
    EXPECT_EQ(held.back()->answers().find("Retry-After: ") != std::string::npos, i >= 3);
    EXPECT_LE(app_->metrics.body_bytes, 3U << 20) << "a quarter is for small bodies";
    SessionHarness small(io_, *app_);
    small.start();
    small.feed(post("Content-Length: 5\r\n", "{\"a\":") + kNext);
    small.finish();
    EXPECT_EQ(statuses_of(small.answers()), "503 200 ") << "of the model that is not there";
    EXPECT_EQ(small.answers().find("bodies_full"), std::string::npos);
  }
  for (const auto& session : held) session->feed("}");
  EXPECT_EQ(app_->metrics.body_bytes, 0);
  for (const auto& session : held) session->finish();
  EXPECT_EQ(app_->metrics.connections, 0);
}

// It would be refused in any case, and nobody knows whether its rest comes.
TEST_F(SessionTest, TheDrainWaitsForNoBody) {
  app_ = app_without_model(options_);
  SessionHarness session(io_, *app_);
  session.start();
  session.feed(post("Content-Length: 100\r\n", "{"));
  EXPECT_EQ(app_->exchanges, 1);
  app_->draining.request_stop();
  session.run();
  EXPECT_EQ(statuses_of(session.answers()), "503 ");
  EXPECT_NE(session.answers().find("shutting_down"), std::string::npos) << session.answers();
  EXPECT_EQ(app_->exchanges, 0);
  session.finish();
  EXPECT_EQ(app_->metrics.connections, 0);
}

// Answers that are written to clients of one address.
class AnswerTest : public SessionTest {
 protected:
  static constexpr size_t kAnswer = 1 << 20;

  // A connection on which an answer of kAnswer bytes is being sent.
  struct Reader {
    Reader(asio::io_context& io, App& app) {
      int ends[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
      client = Descriptor(ends[0]);
      tcp::socket socket(asio::make_strand(io), tcp::v4(), ends[1]);
      const auto executor = socket.get_executor();
      asio::co_spawn(executor, send(std::move(socket), app), asio::detached);
    }
    static asio::awaitable<void> send(tcp::socket socket, App& app) {
      Connection connection(std::move(socket), app);
      HttpAnswer answer{.body = std::string(kAnswer, 'x')};
      co_await connection.send(std::move(answer));
    }
    // Returns what is there, up to so many bytes; nothing: it has ended.
    std::optional<std::string> read(size_t most) const {
      std::string part(most, ' ');
      const ssize_t got = recv(client.get(), part.data(), most, 0);
      if (got == 0) return {};
      part.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
      return part;
    }
    Descriptor client;
  };
  std::string rest_of(const Reader& reader) {
    std::string all;
    while (const auto part = reader.read(kAnswer)) {
      all += *part;
      io_.restart();
      io_.poll();
    }
    return all;
  }
};

TEST_F(AnswerTest, CountsAsABodyUntilItIsRead) {
  options_.limits.bodies_bytes = 2 * kAnswer;
  app_ = app_without_model(options_);
  const Reader first(io_, *app_), second(io_, *app_);
  io_.poll();
  EXPECT_EQ(app_->metrics.body_bytes, kAnswer);
  const std::string refused = rest_of(second);
  EXPECT_EQ(statuses_of(refused), "503 ");
  EXPECT_NE(refused.find("bodies_full"), std::string::npos) << refused;
  EXPECT_TRUE(rest_of(first).ends_with("\r\n\r\n" + std::string(kAnswer, 'x')));
  EXPECT_EQ(app_->metrics.body_bytes, 0);
}

// A byte now and then is no reading.
TEST_F(AnswerTest, AClientThatHardlyReadsIsCutOff) {
  options_.limits.write_time = seconds(1);
  app_ = app_without_model(options_);
  const Reader reader(io_, *app_);
  size_t read = 0;
  while (const auto part = reader.read(512)) {
    read += part->size();
    io_.restart();
    io_.run_for(std::chrono::milliseconds(20));
  }
  EXPECT_LT(read, kAnswer);
  EXPECT_EQ(app_->metrics.body_bytes, 0);
}

size_t resident() {  // bytes
  std::ifstream statm("/proc/self/statm");
  size_t pages = 0;
  statm >> pages >> pages;
  return pages * 4096;
}

// Without a large body, too.
TEST_F(SessionTest, WhatManyConnectionsHeldGoesBack) {
  if (kMemoryIsSanitized) GTEST_SKIP() << "a sanitizer's memory is not ours";
  constexpr int kMany = 400;
  app_ = app_without_model(options_);
  for (int round = 0; round < 2; ++round) {  // the pool's threads give memory back once at their start, too
    const size_t before = resident();
    std::vector<std::unique_ptr<SessionHarness>> many;
    std::vector<std::string> others;  // lie between them
    for (int i = 0; i < kMany; ++i) {
      many.push_back(std::make_unique<SessionHarness>(io_, *app_));
      many.back()->start();
      many.back()->feed(get(kHost + "X: " + std::string(12000, 'x')).substr(0, 12000));
      others.emplace_back(2000, 'x');
    }
    const size_t held = resident() - before;
    EXPECT_GT(held, kMany * 12000U);
    many.clear();
    const auto until = std::chrono::steady_clock::now() + seconds(10);
    while (resident() > before + held / 4 && std::chrono::steady_clock::now() < until) {
      io_.restart();
      io_.poll();
    }
    EXPECT_LE(resident(), before + held / 4);
    EXPECT_EQ(app_->metrics.connections, 0);
  }
}

// Pages are taken as bytes come, never twice, and all go back.
TEST(BodyTest, TakesWhatItHolds) {
  if (kMemoryIsSanitized) GTEST_SKIP() << "a sanitizer's memory is not ours";
  constexpr size_t kBytes = 64 << 20;
  std::atomic<size_t> in_use = 0;
  BodyBudget budget(2 * kBytes, in_use);
  const std::string part(16384, 'x');
  const size_t before = resident();
  {
    Body body(budget);
    while (body.size() < kBytes) {
      ASSERT_TRUE(body.append(part));
      ASSERT_LE(resident(), before + body.size() + (4 << 20));
    }
    EXPECT_EQ(in_use, kBytes);
    EXPECT_EQ(body.view().find_first_not_of('x'), std::string_view::npos);
  }
  EXPECT_EQ(in_use, 0);
  EXPECT_LE(resident(), before + (2 << 20));
}

}  // namespace
}  // namespace moesaic::server

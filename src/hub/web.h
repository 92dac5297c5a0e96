// HTTP by libcurl: several requests at a time in one thread, and what a hub's answers mean.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hub/hub_options.h"
#include "hub/libcurl.h"
#include "moesaic/status.h"

namespace moesaic::hub {

// A long piece of work asks by this whether it was cancelled, and tells why it is waiting.
struct Watch {
  std::function<bool()> cancelled = [] { return false; };
  std::function<void(const std::string& why)> waiting = [](const std::string&) {};  // before a rest
};

// One request for a range of bytes, or for all of them, and its answer so far. Redirects are not followed.
struct Exchange {
  std::string url, range;  // range: "0-99", or empty
  long most_seconds = 0;   // for the whole answer; 0: any, as long as it goes on
  // Takes bytes of a body once status and headers are known; false: ends the exchange.
  std::function<bool(std::string_view)> body = [](std::string_view) { return false; };

  long status = 0;
  std::map<std::string, std::string> headers;  // by names in small letters
  std::string failure;                         // why there is no whole answer; empty: there is one
  std::string redirect;                        // where the answer sends to, as a whole URL; or empty

  std::string header(const std::string& name) const;
  // An error if the body is compressed, which none of these requests asks for.
  Status check_encoding() const;

 private:
  friend class Web;
  struct Close {
    void operator()(CURL* handle) const;
  };
  struct CloseList {
    void operator()(curl_slist* list) const;
  };
  std::unique_ptr<CURL, Close> handle_;
  std::unique_ptr<curl_slist, CloseList> sent_headers_;
  size_t header_bytes_ = 0;
  char reason_[CURL_ERROR_SIZE] = {};
};

struct Answer {
  long status = 0;
  std::map<std::string, std::string> headers;
  std::string body;
};

// Move-only. Exchanges that were started must outlive it or be stopped.
class Web {
 public:
  static Result<Web> create(HubOptions options);

  // The token goes to the hub's own origin alone.
  void start(Exchange& exchange);
  void stop(Exchange& exchange);
  // Waits for at most so many milliseconds; the exchanges that have ended.
  std::vector<Exchange*> run(int milliseconds);

  // The answer to one request, after redirects within the hub; its body has at most `most` bytes. Errors that
  // may pass (a connection that breaks, 429, 5xx) are tried again.
  Result<Answer> get(const std::string& url, size_t most, const Watch& watch);

  // Why a redirect is not followed; ok: it is.
  Status check_redirect(const std::string& from, const std::string& to, int hops) const;
  const HubOptions& options() const { return options_; }

 private:
  struct CloseMulti {
    void operator()(CURLM* multi) const;
  };
  Web(HubOptions options, const Curl* curl);
  static size_t on_header(char* data, size_t size, size_t count, void* exchange);
  static size_t on_body(char* data, size_t size, size_t count, void* exchange);
  void set_up(Exchange& exchange);
  Result<Answer> once(const std::string& url, size_t most, const Watch& watch);

  HubOptions options_;
  const Curl* curl_;
  std::unique_ptr<CURLM, CloseMulti> multi_;
};

// True if the same request may succeed later: there was no answer, or the status may pass.
bool may_pass(long status);
// Seconds until an attempt is worth it (the first retry: 0): what the answer asks for, else more each time.
double seconds_to_wait(const std::map<std::string, std::string>& headers, long status, int attempt);
// Seconds. A request that would have to wait longer is not tried again.
inline constexpr double kLongestWait = 300;
// Seconds. The user is told only of waits that are longer.
inline constexpr double kShortWait = 2;
// Rests, in short steps, until the time has passed or the work is cancelled: then false.
bool rest(double seconds, const Watch& watch);

// The line for an answer that is an error.
Status refusal(long status, const std::map<std::string, std::string>& headers, const std::string& what,
               const HubOptions& options);

}  // namespace moesaic::hub

// The server's settings (`moesaic serve --help`).
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace moesaic::server {

using std::chrono::seconds;

struct Limits {
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 16 << 20;
  size_t bodies_bytes =
      256 << 20;  // all bodies, what answers keep of them, and answers that are not read yet
  int connections = 16384;
  int waiting = 256;  // generations that wait for a place in the batch; more get 429
  seconds header_time{
      10};  // for a request's header, from its first byte; for the first one, from the beginning
  seconds body_time{60};    // for its body
  seconds idle_time{75};    // between the requests of a connection
  seconds write_time{30};   // for a client to read kLeastRead bytes, or all that there are
  seconds request_time{0};  // for a whole answer; 0: no limit
  seconds heartbeat{15};    // silence before a stream sends a comment; 0: it never does
  seconds drain_time{30};   // after SIGTERM, for answers in flight
  seconds stop_time{5};     // after that, for threads to end
};

struct ServerOptions {
  std::string address = "127.0.0.1";
  uint16_t port = 8080;  // 0: any free one
  std::string model_name;
  std::string version;
  std::string owned_by = "moesaic";        // shown in /v1/models
  std::vector<std::string> api_keys;       // empty: everybody may
  std::vector<std::string> cors_origins;   // "*": any; empty: pages of other origins are not served
  bool shared_prefix_cache = false;        // with several keys: what one has cached is found by others too
  size_t stored_responses = 256;           // for previous_response_id; 0: none
  size_t stored_bytes = 64 << 20;          // bytes of all of them together
  std::string stored_folder;               // where they are found after a restart; empty: nowhere
  int reasoning_budget = -1;               // for requests that name none; -1: none
  bool strict_fields = false;              // a field that no table knows is 400, not a header of the answer
  std::vector<std::string> allowed_hosts;  // names that the server has beside localhost; "*": any
  bool log_requests = true;                // a line of JSON for each
  bool log_loading = true;                 // a line for each tenth of the model that is loaded, but
  std::chrono::milliseconds loading_pause{2000};  // not before so long after the last one
  std::string log_file;                           // empty: standard error
  int io_threads = 2;
  Limits limits;
};

}  // namespace moesaic::server

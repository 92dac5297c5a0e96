// A client that measures a server by streamed completions; it notes when each event with text arrives.
#pragma once

#include <climits>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "moesaic/status.h"

namespace moesaic::app {

struct LoadOptions {
  std::string host = "127.0.0.1", port = "8080", key, model;
  std::function<std::string(int)> prompt;  // makes the i-th
  int prompts = INT_MAX;                   // request i takes the i-th, beginning again behind so many
  int max_tokens = 128;                    // each answer has as many
  int requests = 0;                        // in all
  double seconds = 0;                      // closed loop, not 0: instead, no more begin after this time
  int streams = 1;       // closed loop: requests at a time, the next one begins where one ends
  double rate = 0;       // open loop: requests a second, at random times, whatever is in flight; 0: closed
  double timeout = 600;  // seconds without a byte from the server after which a request has failed
  uint64_t seed = 1;
};

// One request.
struct Timeline {
  bool ok = false;
  std::string error;
  int prompt = 0;              // which of the prompts
  double start = 0;            // seconds since the run began
  std::vector<double> events;  // arrivals of those with text, likewise
  std::string text;
  uint64_t usage = 0;     // completion_tokens of the last event with text or of one after it; 0: not told
  bool complete = false;  // the server said that the answer is over
};

struct LoadResult {
  double seconds = 0;
  std::deque<Timeline> requests;
};

// Fails only where the server cannot be reached at all.
Result<LoadResult> run_load(const LoadOptions& options);

}  // namespace moesaic::app

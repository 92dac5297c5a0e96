// The state of an engine, and its counts since it began.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace moesaic {

inline constexpr int kMostDraft = 16;  // tokens of one draft

// Speculative decoding: what was guessed, and what of it the model said too.
struct SpeculationStats {
  uint64_t drafts = 0;                             // guesses that a step verified, each of one or more tokens
  uint64_t drafted = 0;                            // their tokens
  uint64_t accepted = 0;                           // drafted tokens that the model sampled as well
  std::array<uint64_t, kMostDraft> accepted_at{};  // the same by position in the draft

  void add(int tokens, int kept) {
    ++drafts;
    drafted += static_cast<uint64_t>(tokens);
    accepted += static_cast<uint64_t>(kept);
    for (int i = 0; i < kept; ++i) ++accepted_at[static_cast<size_t>(i)];
  }
};

// One pool of the KV cache, in pages of 32 tokens. The rest is empty.
struct PageUse {
  int used = 0;    // held by requests
  int cached = 0;  // held by nobody, kept for prompts that begin alike until the room is needed
  int total = 0;
};

// One tier of the KV store: host memory (OpenOptions::kv_host) or a folder (OpenOptions::kv_disk).
struct KvTierStats {
  uint64_t bytes = 0;          // kept now
  uint64_t written_bytes = 0;  // since the beginning, as the others
  uint64_t read_bytes = 0;
  uint64_t dropped = 0;  // parts of blocks that were not kept: it was behind, full or failed
  uint64_t damaged = 0;  // files that were not what was written
};

struct KvStoreStats {
  KvTierStats host, disk;
  uint64_t fetched_tokens = 0;  // prompt tokens that were not computed because the store had them
  uint64_t abandoned = 0;       // fetches that were given up, or found a part missing
};

struct EngineStats {
  int running = 0;  // requests that have their pages
  int waiting = 0;  // for pages or for their turn, preempted ones included
  int clients = 0;  // the number of clients that have these requests
  PageUse full;     // the layers with full attention
  PageUse window;   // the layers with a sliding window
  // Counts since the beginning. They only grow.
  uint64_t prompt_tokens = 0;     // tokens in the prompts of requests that have begun
  uint64_t generated_tokens = 0;  // the tokens that ended a text included
  uint64_t prefix_queried = 0;    // prompt tokens looked for in the cache
  uint64_t prefix_hits = 0;       // prompt tokens that were there already
  uint64_t preemptions = 0;       // requests that gave their place or pages to others and waited again
  uint64_t captures = 0;          // steps that the device captured as CUDA graphs
  uint64_t failed_captures = 0;   // steps that could not be captured and ran without a graph
  uint64_t steps = 0;
  double step_seconds = 0;  // spent in these steps
  double host_seconds = 0;  // the host's part of step_seconds: what the device computes or the host waits for
                            // is not in it
  SpeculationStats speculation = {};
  KvStoreStats store = {};
};

}  // namespace moesaic

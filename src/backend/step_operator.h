// A whole model as an operator on memory that a serving engine owns: its tokens, positions, page tables, KV
// cache and stream. The engine schedules, allocates pages and samples; one call runs all layers of a step.
// vLLM reaches it by python/moesaic/vllm_model.py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/format.h"
#include "core/kv_page.h"
#include "core/model_config.h"
#include "core/weights.h"
#include "moesaic/status.h"

namespace moesaic {

struct StepOperatorOptions {
  int device = 0;
  int max_rows = 8192;          // rows that are computed at once: a larger step runs in parts
  int max_sequences = 256;      // in a step
  int max_context = 131072;     // tokens of a sequence
  bool fp8_cache = false;       // E4M3 without scales; else BF16
  std::optional<Format> dense;  // the format of projections and lm_head; nothing: as they are
  bool graphs = true;           // steps that only decode are captured, and replayed on the caller's stream
  std::string tuning_folder;    // as BackendOptions
};

// Layers with full attention have one page table, sliding ones another; they may be the same. Page 0 is
// nobody's: rows that go nowhere are written to its first place.
struct StepPageTables {
  const int32_t* pages = nullptr;  // [sequences, stride]: the page of 32 tokens at each place of a sequence
  int64_t stride = 0;
  const int64_t* slots = nullptr;  // [rows]: 32 * page + place in it, where the row's K and V go; -1: nowhere
};

// Pointers are of the device unless they say otherwise.
struct StepOperatorCall {
  int rows = 0;                          // those behind the last sequence's are padding
  int sequences = 0;                     // some may have no rows
  const int32_t* host_starts = nullptr;  // [sequences + 1] on the host: the first row of each, and the end
  const int32_t* starts = nullptr;       // the same on the device
  const int32_t* tokens = nullptr;       // [rows]
  const int64_t* positions = nullptr;    // [rows]
  StepPageTables full, sliding;
  int longest = 0;         // context, this step's rows included; more is allowed
  void* out = nullptr;     // [rows, hidden] BF16: the rows after the final norm. The same in every call.
  void* stream = nullptr;  // a cudaStream_t
};

// Thread-safety: one thread at a time, and the calls' streams in the order of the calls.
class StepOperator {
 public:
  virtual ~StepOperator() = default;
  // Bytes of weights and working memory, on the device.
  virtual double bytes() const = 0;
  // Bytes of K, and of V, in a page of one layer.
  virtual size_t page_bytes() const = 0;
  // A layer's KV cache: page p has K at base + p * stride and V page_bytes() behind it, in an order of the
  // kernels' own. stride is a multiple of page_bytes(). Call it for every layer before the first run(), and
  // again where the cache moves.
  virtual Status set_cache(int layer, void* base, int pages, int64_t stride) = 0;
  // Launches and returns. On a stream that is being captured nothing is allocated or waited for; sequences of
  // more than 8 rows are refused then. kInternal, once: a kernel of an earlier call gave up. A row with
  // an activation that is not finite gives a row that is not, and one line in the log; what it leaves in its
  // pages is cleared when a later call writes their first place.
  virtual Status run(const StepOperatorCall& call) = 0;
  // logits [rows, vocab] of rows that run() left.
  virtual Status logits(const void* hidden, int rows, float* out, void* stream) = 0;
};

// The weights' matrices may stand in the device's memory; the vectors, the router and the embedding are read
// on the host. weights.release(layer) is called when a layer's (with -1 the rest's) will not be read again.
Result<std::unique_ptr<StepOperator>> prepare_step(const StepOperatorOptions& options,
                                                   const ModelConfig& config, const ModelWeights& weights);

}  // namespace moesaic

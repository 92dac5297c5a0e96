// Counts the pages of KV cache that sequences may need, and asks whether the machine's memory holds them.
#pragma once

#include "backend/backend.h"

namespace moesaic {

// Returns the bytes of all parts together, or of those of one kind.
double bytes_of(const std::vector<MemoryPart>& parts);
double bytes_of(const std::vector<MemoryPart>& parts, MemoryKind kind);

// A drafter (drafting/drafter.h) takes this memory beside the model.
struct DraftMemory {
  double weights = 0;      // bytes of its weights and of all else that does not grow with the cache
  double token_bytes = 0;  // bytes for each token of the full-attention pool
};

// The demand is for sequences of up to `context` tokens each, in steps of at most max_rows rows.
struct KvDemand {
  int sequences = 1;
  int context = 0;  // tokens
  int max_rows = 512;
  int64_t kv_tokens = 0;      // tokens of all together, at least one context; 0: a context for each
  bool prefix_cache = false;  // keep windows that no running request needs
  int logit_rows = 0;         // as KvLayout::logit_rows
  DraftMemory draft = {};
};
// The window pool holds the windows of all sequences and the rows of one step. It fails if the page counts do
// not fit their integers.
Result<KvLayout> kv_layout(const ModelConfig& config, const KvDemand& demand);

// Returns what the model, its cache of this layout and its drafter will take.
std::vector<MemoryPart> parts_of(const KvDemand& demand, const ModelConfig& config,
                                 const ModelWeights& weights, const KvLayout& layout, Backend& backend);

// Chooses a context if none was asked for: as many tokens as the model has, at most the KV cache that was
// asked for, and at most what fits into nine tenths of the memory beside weights and logits. It is one page
// if nothing fits: plan_memory says then what is lacking.
enum class ContextLimit { kAsked, kModel, kCache, kMemory };
struct ContextChoice {
  int tokens = 0;
  ContextLimit limit = ContextLimit::kAsked;  // this has bounded it
};
ContextChoice fitting_context(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                              Backend& backend);
// Does the same with so many free bytes.
ContextChoice fitting_context(double free, const KvDemand& demand, const ModelConfig& config,
                              const Backend& backend);
// Returns the bytes that are free beside the logits of the largest step, once the weights are loaded, a
// drafter's too.
double free_for_cache(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                      Backend& backend);

// Chooses the number of sequences if nobody said it, before a model is loaded: at most BackendCaps::batch and
// max_rows, and no more than find room for a window's tokens and for their logits in a quarter of the memory
// beside the weights.
int fitting_batch(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                  Backend& backend);

// Returns, before a model is loaded, the most kv_tokens, from one context to a context for each sequence,
// that fit into the device's share of the memory beside weights and logits (BackendCaps::cache_share).
int64_t fitting_kv_tokens(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                          Backend& backend);
int64_t fitting_kv_tokens(double free, const KvDemand& demand, const ModelConfig& config,
                          const Backend& backend);

// Fails with kOutOfMemory, before a model is loaded, if weights and cache do not fit. The message has the
// size of each part, the free memory and what to change.
Status plan_memory(const KvDemand& demand, const ModelConfig& config, const ModelWeights& weights,
                   Backend& backend);

// Does the same for the pages alone, once the model is loaded. Without this check Linux would grant more than
// it has and kill the program when it writes to them.
Status check_kv_memory(const KvLayout& layout, const ModelConfig& config, const Backend& backend,
                       const DraftMemory& draft = {});

}  // namespace moesaic

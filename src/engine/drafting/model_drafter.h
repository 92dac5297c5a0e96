// Another model of the same vocabulary makes the drafts, on a backend and in a KV cache of its own.
//
// It computes a request's tokens only when a draft is wanted, as many rows at a time as a step may have: so
// the first draft behind a long prompt comes some steps later, and while drafts do not pay it costs nothing.
// Drafted tokens that the model did not say are computed over in the same places of the cache. The
// texts of requests that have ended or yielded stay as long as nobody needs their places: a request that
// begins with the same tokens, such as the next turn of a conversation, goes on from the longest of them, if
// it has the same cache_salt.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "backend/backend.h"
#include "drafting/drafter.h"

namespace moesaic {

class ModelDrafter final : public Drafter {
 public:
  struct Options {
    int sequences = 1;      // it drafts for so many requests at a time
    int64_t kv_tokens = 0;  // tokens of all together
    int max_rows = 512;     // most rows of a step, at most the backend's
  };
  static KvLayout layout(const ModelConfig& config, const Options& options);

  // The backend holds the model of `config`; its KV cache is allocated here.
  static Result<std::unique_ptr<Drafter>> create(std::unique_ptr<Backend> backend, const ModelConfig& config,
                                                 const Options& options);

  std::string name() const override { return "draft"; }
  bool is_costly() const override { return true; }
  Status draft(std::span<DraftTask> tasks) override;
  void yielded(uint64_t request) override { end(request, {}, 0); }
  void end(uint64_t request, std::span<const int32_t> tokens, int prompt_tokens) override;

 private:
  // The tokens of one request that are in the cache.
  struct Text {
    std::string salt;  // the request's
    std::vector<int32_t> tokens;
    size_t sure = 0;     // the request is known to have so many of these
    size_t reached = 0;  // the most tokens that the text ever had: the ring holds their last pages
    std::vector<int32_t> full_pages;
    std::vector<int32_t> ring;  // the window's pages, used in turn
  };
  // A row whose logits give this task's next draft token.
  struct Wanted {
    DraftTask* task;
    Text* text;
  };

  ModelDrafter(std::unique_ptr<Backend> backend, const ModelConfig& config, const Options& options);
  Text* text_of(const DraftTask& task);
  // Returns how many of a text's first tokens a request can go on from.
  size_t reusable(const Text& text, const DraftTask& task) const;
  // Returns the ended text that is best to go on from, cut to what can be used; without a ring: none is worth
  // it.
  Text reuse(const DraftTask& task);
  bool forget_oldest();
  bool reserve(Text& text, size_t tokens);
  void append(Text& text, std::span<const int32_t> tokens, bool wants_logits, Batch& batch) const;
  std::vector<Wanted> catch_up(std::span<DraftTask> tasks, Batch& batch);
  Result<std::vector<int32_t>> run(Batch& batch, std::span<const Wanted> wanted);
  void forget(std::span<const DraftTask> tasks);
  static std::vector<Wanted> take(std::span<const Wanted> wanted, std::span<const int32_t> tokens);

  std::unique_ptr<Backend> backend_;
  ModelConfig config_;
  Options options_;
  KvLayout layout_;
  std::unordered_map<uint64_t, Text> texts_;  // by request
  std::vector<Text> ended_;                   // texts of ended requests, oldest first
  std::vector<int32_t> free_full_;
  std::vector<std::vector<int32_t>> free_rings_;
  std::vector<float> logits_;
};

}  // namespace moesaic

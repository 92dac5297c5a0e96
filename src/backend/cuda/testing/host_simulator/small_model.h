// For tests: a small model on the cuda backend in the simulator, some of whose layers may leave their experts
// to the host.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/testing/host_simulator/captures.h"
#include "backend/host_placement.h"
#include "base/relative_error_test.h"
#include "model/forward.h"
#include "model/random_model.h"
#include "model/small_config_test.h"

namespace moesaic::cuda {

inline constexpr int kLayers = 3, kPages = 12, kMaxRows = 32;
// Experts on the device take 16-bit activations, those on the host 8-bit ones.
inline constexpr double kTolerance = 0.03;

class Model {
 public:
  struct Form {
    int host_layers = 0, stream_rows = ExpertPlacement::kNever, hot = 0;
    std::string folder = {};
    KvFormat kv = KvFormat::kBf16;
    bool batch_invariant = false;
    MoePath path = MoePath::kAuto;
    std::optional<Format> dense = {};
    Result<std::unique_ptr<Backend>> (*make)(const BackendOptions&) = create_cuda_backend;
  };
  explicit Model(int host_layers, int stream_rows = ExpertPlacement::kNever, int hot = 0,
                 const std::string& folder = {})
      : Model(Form{host_layers, stream_rows, hot, folder}) {}
  explicit Model(const Form& form) {
    on_host::captures().no_begin = true;  // launches run at once
    auto made = form.make({.threads = 2,
                           .dense = form.dense,
                           .moe_path = form.path,
                           .kv = form.kv,
                           .max_rows = kMaxRows,
                           .batch_invariant = form.batch_invariant,
                           .tuning_folder = form.folder,
                           .tune = false,
                           .experts = {.stream_rows = form.stream_rows, .hot = form.hot},
                           .gpu_memory = 1e18});
    EXPECT_EQ(made.status().message(), "");
    backend_ = std::move(made).value();
    load(form.host_layers);
  }
  // Anew, with nothing in the cache and the same tokens to come. before_cache: is called before that is
  // there.
  void load(
      int host_layers, const std::function<void()>& before_cache = [] {}) {
    contexts_.clear(), rng_.seed(7);
    if (HostPlacement* const placement = backend_->host_placement()) placement->place(host_layers);
    EXPECT_EQ(backend_->load(config_, weights_, {}).message(), "");
    before_cache();
    EXPECT_EQ(backend_->alloc_kv({.full_pages = kPages, .window_pages = kPages, .logit_rows = 8}).message(),
              "");
  }
  // One more step of sequences of so many rows each, at most 8; every row's logits.
  std::vector<float> step(const std::vector<int>& rows) {
    batch_ = {};
    contexts_.resize(std::max(contexts_.size(), rows.size()));
    for (size_t s = 0; s < rows.size(); ++s) {
      const auto first = static_cast<int32_t>(3 * s);
      add({first, first + 1}, contexts_[s], rows[s]);
      contexts_[s] += rows[s];
    }
    return run();
  }
  // A step of one sequence in these pages, of so many rows from a position on.
  std::vector<float> step_of(const std::vector<int32_t>& pages, int from, int rows) {
    batch_ = {};
    add(pages, from, rows);
    return run();
  }
  // So many tokens of a sequence were drafts that do not hold.
  void take_back(int sequence, int tokens) { contexts_[static_cast<size_t>(sequence)] -= tokens; }
  // The tokens of two steps of a sequence: the second one begins with what the first one samples.
  std::vector<int32_t> two_steps() {
    Batch batch{.tokens = {5, 9},
                .positions = {0, 1},
                .sequences = {{.rows = 2, .context = 2, .full_pages = {0}, .window_pages = {0}}},
                .logit_rows = {1},
                .sampling = {{}}};
    status_ = forward(*backend_, config_, batch, {});
    batch.tokens = {0}, batch.positions = {2}, batch.logit_rows = {0}, batch.token_sources = {0};
    batch.sequences[0].rows = 1, batch.sequences[0].context = 3;
    if (status_.ok()) status_ = forward(*backend_, config_, batch, {});
    std::vector<SampledToken> sampled(2);
    for (SampledToken& token : sampled) {
      if (status_.ok()) status_ = backend_->sampled({&token, 1}, {});
    }
    return {sampled[0].token, sampled[1].token};
  }
  const Status& status() const { return status_; }
  Backend& backend() { return *backend_; }
  const Batch& batch() const { return batch_; }  // the last step's
  const ModelConfig& model_config() const { return config_; }
  ModelWeights& weights() { return weights_; }

 private:
  void add(const std::vector<int32_t>& pages, int from, int rows) {
    for (int i = 0; i < rows; ++i) {
      batch_.positions.push_back(from + i), batch_.logit_rows.push_back(batch_.rows());
      batch_.tokens.push_back(static_cast<int32_t>(rng_() % 300));
    }
    batch_.sequences.push_back({.first_row = batch_.rows() - rows,
                                .rows = rows,
                                .context = from + rows,
                                .full_pages = pages,
                                .window_pages = pages});
  }
  std::vector<float> run() {
    std::vector<float> logits(batch_.logit_rows.size() * 300);
    status_ = forward(*backend_, config_, batch_, logits);
    return logits;
  }

  ModelConfig config_ = small_config(kLayers);
  ModelWeights weights_ = make_random_model(config_, {});
  std::unique_ptr<Backend> backend_;
  std::vector<int> contexts_;
  Batch batch_;
  std::mt19937 rng_{7};
  Status status_;
};

}  // namespace moesaic::cuda

// For tests: a small random model on the backends that every machine has, and engines on it.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "model/random_model.h"
#include "model/small_config_test.h"

namespace moesaic {

class SmallModelTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    config_ = small_config(2);
    backend_ = create_backend(GetParam(), {.threads = 2, .max_rows = 64}).value();
    ASSERT_TRUE(backend_->load(config_, make_random_model(config_, {}), {}).ok());
  }
  Engine engine(int max_batch, int context = 256) {
    return Engine::create(*backend_, config_, {.context = context, .max_batch = max_batch, .max_rows = 64})
        .value();
  }
  std::vector<int32_t> prompt(int n, uint32_t seed) const {
    std::mt19937 rng(seed);
    std::vector<int32_t> tokens(n);
    for (int32_t& t : tokens) t = static_cast<int32_t>(rng() % config_.vocab);
    return tokens;
  }
  static std::function<void(const SampledToken&)> quiet() {
    return [](const SampledToken&) {};
  }

  ModelConfig config_;
  std::unique_ptr<Backend> backend_;
};

inline const auto kHostBackends = testing::Values("cpu", "reference");
inline std::string backend_name(const testing::TestParamInfo<const char*>& info) { return info.param; }

}  // namespace moesaic

// Parts that the tests of embedding share: models/tiny on a device, greedy requests, and their results.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "moesaic/engine.h"

namespace moesaic {

inline constexpr const char* kTiny = MOESAIC_SOURCE_DIR "/models/tiny";

class Embedding : public testing::TestWithParam<const char*> {
 protected:
  static Model open(OpenOptions o = {}) {
    o.device = GetParam();
    if (o.threads == 0) o.threads = 1;
    if (o.context == 0) o.context = 512;
    auto model = Model::open(kTiny, o);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return std::move(model).value();
  }
  // The reference's steps are long, above all under sanitizers.
  static bool slow() { return GetParam() == std::string("reference"); }
};
inline std::vector<int32_t> tokens_of(int count, int seed = 1) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back((i * 37 + seed * 101) % 400);
  return tokens;
}

struct Record {
  std::vector<int32_t> tokens;
  std::vector<SampledToken> prompt;
  std::map<int, std::vector<float>> logits;
  std::vector<SampledToken> sampled;
  Outcome end;
  int ends = 0;

  Callbacks callbacks() {
    return {.on_token =
                [this](const SampledToken& t) {
                  tokens.push_back(t.token);
                  sampled.push_back(t);
                },
            .on_text = {},
            .on_end =
                [this](const Outcome& o) {
                  end = o;
                  ++ends;
                }};
  }
};

inline GenerationRequest greedy(std::vector<int32_t> prompt, int n) {
  GenerationRequest r{.prompt = std::move(prompt)};
  r.sampling.temperature = 0;
  r.sampling.max_tokens = n;
  r.sampling.stop_tokens = {1};
  r.sampling.logit_bias = {{1, -100.0f}};
  return r;
}

inline Record run(Model& model, const GenerationRequest& request) {
  Record record;
  EXPECT_TRUE(model.submit(request, record.callbacks()).ok());
  EXPECT_TRUE(model.run().ok());
  return record;
}

}  // namespace moesaic

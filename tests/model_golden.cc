#include "model_golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/config_reader.h"
#include "model/sequence_runner.h"

namespace moesaic {
namespace {

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> bytes((std::istreambuf_iterator<char>(file)), {});
  std::vector<float> values(bytes.size() / sizeof(float));
  std::copy_n(bytes.data(), values.size() * sizeof(float), reinterpret_cast<char*>(values.data()));
  return values;
}

}  // namespace

std::string golden_folder() { return std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/model/"; }

std::span<const float> Golden::rows(size_t first, size_t count) const {
  const auto vocab = static_cast<size_t>(config.vocab);
  return std::span(logits).subspan(first * vocab, count * vocab);
}

Golden load_golden(const std::string& name) {
  std::ifstream file(golden_folder() + name + ".json");
  const auto j = nlohmann::json::parse(file);
  Golden g{.name = name,
           .config = config_from_hf(j.at("config"), name).value(),
           .seed = j.at("seed"),
           .tokens = j.at("tokens"),
           .all_positions = j.at("all_positions"),
           .lengths = j.at("lengths"),
           .greedy = {},
           .logits = read_floats(golden_folder() + name + ".logits")};
  for (const auto& run : j.at("greedy")) g.greedy.push_back({run.at("after"), run.at("tokens")});
  EXPECT_EQ(g.logits.size(),
            (static_cast<size_t>(g.all_positions) + g.lengths.size()) * static_cast<size_t>(g.config.vocab));
  return g;
}

Distance distance(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, largest = 0, square = 0, norm = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const double d = double{a[i]} - double{b[i]};
    if (std::isnan(d)) return {INFINITY, INFINITY};
    difference = std::max(difference, std::abs(d));
    largest = std::max(largest, std::abs(double{b[i]}));
    square += d * d, norm += double{b[i]} * double{b[i]};
  }
  return {difference / largest, std::sqrt(square / norm)};
}

std::vector<const char*> devices() {
  std::vector<const char*> found = {"reference", "cpu"};
  if (create_backend("cuda", {}).ok()) found.push_back("cuda");
  return found;
}

std::unique_ptr<Backend> load_backend(const std::string& device, const ModelConfig& config,
                                      const ModelWeights& weights, const std::string& isa,
                                      const RouterTrace& trace) {
  auto backend = create_backend(device, {.threads = 2, .max_rows = 1024, .isa = isa, .router_trace = trace});
  EXPECT_TRUE(backend.ok()) << backend.status().message();
  if (!backend.ok()) return nullptr;
  const Status status = backend.value()->load(config, weights, {});
  EXPECT_TRUE(status.ok()) << status.message();
  return std::move(backend).value();
}

std::vector<float> run_sequence(Backend& backend, const ModelConfig& config, std::span<const int32_t> tokens,
                                int chunk, bool all) {
  std::vector<float> logits;
  auto runner = SequenceRunner::create(backend, config,
                                       {.max_tokens = static_cast<int>(tokens.size()), .chunk = chunk});
  EXPECT_TRUE(runner.ok()) << runner.status().message();
  if (!runner.ok()) return logits;
  const auto wanted = all ? SequenceRunner::Wanted::kAll : SequenceRunner::Wanted::kLast;
  const Status status = runner->append(tokens, wanted, logits);
  EXPECT_TRUE(status.ok()) << status.message();
  return logits;
}

}  // namespace moesaic

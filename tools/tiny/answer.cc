// answer MODEL [THREADS] [DEVICE] [MOE_PATH] < prompts > answers: greedy answers to many prompts in one
// process, for evaluate.py and compare.py. A line of input is JSON, {"prompt": text in which names such as
// <|start|> are special tokens, "max_tokens": n, "stop": false to go on past the end}; a line of output is
// {"index", "text", "tokens"}, in the order of ending.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "moesaic/engine.h"

namespace {

using moesaic::Status;
using Json = nlohmann::ordered_json;

constexpr int kBatch = 8;

Status submit(moesaic::Model& model, const Json& line, int index) {
  auto prompt = model.tokenize(line.value("prompt", ""), true);
  if (!prompt.ok()) return prompt.status();
  moesaic::GenerationRequest request;
  request.prompt = prompt.value();
  request.sampling.temperature = 0;
  request.sampling.max_tokens = line.value("max_tokens", 512);
  if (!line.value("stop", true)) request.sampling.stop_tokens = {moesaic::kNoToken};
  const auto tokens = std::make_shared<std::vector<int32_t>>();
  moesaic::Callbacks callbacks;
  callbacks.on_token = [tokens](const moesaic::SampledToken& t) { tokens->push_back(t.token); };
  callbacks.on_end = [tokens, index, &model](const moesaic::Outcome& outcome) {
    const Json answer = {{"index", index},
                         {"text", model.detokenize(*tokens)},
                         {"tokens", *tokens},
                         {"error", outcome.error.ok() ? "" : outcome.error.message()}};
    std::printf("%s\n", answer.dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
  };
  return model.submit(std::move(request), std::move(callbacks));
}

Status answer_all(int argc, char** argv) {
  auto model = moesaic::Model::open(argv[1], {.device = argc > 3 ? argv[3] : "auto",
                                              .threads = argc > 2 ? std::atoi(argv[2]) : 0,
                                              .context = 4096,
                                              .max_batch = kBatch,
                                              .moe_path = argc > 4 ? argv[4] : "auto"});
  if (!model.ok()) return model.status();
  int index = 0;
  for (std::string line; std::getline(std::cin, line); ++index) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object())
      return Status(moesaic::StatusCode::kInvalidArgument, "a line is not a JSON object");
    if (Status status = submit(model.value(), json, index); !status.ok()) return status;
  }
  return model.value().run();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s MODEL [THREADS] [DEVICE] [MOE_PATH] < prompts > answers\n", argv[0]);
    return 2;
  }
  try {
    const Status status = answer_all(argc, argv);
    if (status.ok()) return 0;
    std::fprintf(stderr, "%s\n", status.message().c_str());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  return 1;
}

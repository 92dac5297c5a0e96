// What every command that runs a model asks for, and the loading that it means.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"

namespace moesaic::app {

struct ModelOptions {
  std::string model, device = "auto", isa = "auto", dense = "keep";
  int threads = 0;

  // Adds -m and, where the command runs the model, --device, --threads, --isa and --dense.
  void add_to(CLI::App& command, bool runs_model = true);
};

struct LoadedModel {
  Checkpoint checkpoint;
  std::unique_ptr<Backend> backend;
  BackendCaps caps;
  double load_seconds = 0;
};

// "tiny" is the bundled model; anything else is what open_checkpoint takes.
Result<Checkpoint> open_model(const ModelOptions& options);
Result<std::unique_ptr<Backend>> make_backend(const ModelOptions& options, int max_rows);
// Opens, loads (progress on standard error when that is a terminal).
Result<LoadedModel> load_model(const ModelOptions& options, int max_rows);

// IDS of the command line: a comma-separated list or @FILE; every id in [0, vocab).
Result<std::vector<int32_t>> parse_tokens(const std::string& text, int vocab);
Result<std::string> read_text_file(const std::string& path);

}  // namespace moesaic::app

// The parts of a drafter beside the model that it guesses for: none, an EAGLE3 head on the model's own
// device, or another model on a backend of its own.
//
// In order: open(), plan() while the engine is planned, load() between the model's weights and its KV cache,
// drafter() for the engine.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/eagle3.h"
#include "drafting/make_drafter.h"
#include "engine/engine.h"

namespace moesaic {

class DraftParts {
 public:
  // No drafts.
  DraftParts() = default;
  // speculative: what drafter_choice() takes. Opens the files and checks that they go with this model.
  static Result<DraftParts> open(const std::string& speculative, const Checkpoint& model);

  const std::string& name() const { return name_; }
  // Its memory beside the model, which runs on `backend`, made with these options. An error of one line where
  // that device cannot run it. May be called again for another device.
  Result<DraftMemory> plan(Backend& backend, const BackendOptions& made_with, const EngineOptions& engine);
  // Beside the weights of the model that open() saw. Which taps a head means is measured, where the model has
  // a tokenizer and the head's ids can be meant in two ways.
  Status load(Backend& backend, const Checkpoint& model);
  // For the engine on this backend, whose options are settled; null for "none". Once.
  Result<std::unique_ptr<Drafter>> drafter(Backend& backend, const EngineOptions& engine);

 private:
  Result<DraftMemory> plan_head(Backend& backend) const;
  Status load_head(Backend& backend, const Checkpoint& model) const;

  std::string name_ = "none";
  DrafterKind kind_ = DrafterKind::kNone;
  int max_rows_ = 0;  // rows of a step on the model's backend
  std::optional<Eagle3Head> head_;
  std::optional<Checkpoint> model_;
  std::unique_ptr<Backend> model_backend_;
};

}  // namespace moesaic

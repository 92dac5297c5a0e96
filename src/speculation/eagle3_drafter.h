// Drafts by an EAGLE3 head that reads the model's hidden states (backend/draft_head.h). Its K and V stand in
// the pages of the requests themselves, so that what the prefix cache has, the head has too.
//
// Before each step the rows of the last one are taken in, whatever they were: a prompt's, those of requests
// that get no draft, and of requests that have ended, since others may go on from their pages. What cannot be
// taken in (the rows of a step that failed, pages of a cache that was saved) makes drafts worse and nothing
// else.
#pragma once

#include <vector>

#include "backend/draft_head.h"
#include "speculation/drafter.h"

namespace moesaic {

class Eagle3Drafter final : public Drafter {
 public:
  // head: loaded, of the engine's backend.
  explicit Eagle3Drafter(DraftHead& head) : head_(&head) {}

  std::string name() const override { return "eagle3"; }
  bool is_costly() const override { return true; }
  bool follows_steps() const override { return true; }
  Status draft(std::span<DraftTask> tasks) override;
  void computed(std::span<const ComputedRows> rows) override;
  void end(uint64_t, std::span<const int32_t>, int) override {}

 private:
  // Rows of the last step that are not taken in yet.
  struct Pending {
    uint64_t request = 0;
    int position = 0;  // behind the last row
    int32_t last = 0;  // the last row's own token
    std::vector<int32_t> pages = {};
    int rows = 0;
    DraftSequence sequence;  // next_tokens may lack the last one, which is sampled later
  };
  static bool complete(Pending& pending, const DraftTask& task);

  DraftHead* head_;
  std::vector<Pending> pending_;  // by ascending sequence
};

}  // namespace moesaic

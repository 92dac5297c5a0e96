// Drafts by an EAGLE3 head that reads the model's hidden states (backend/draft_head.h). Its K and V stand in
// the pages of the requests themselves, so that what the prefix cache has, the head has too.
//
// Before each step the rows of the last one are taken in, whatever they were: a prompt's, those of requests
// that get no draft, and those of requests that have ended, since others may go on from their pages. On a
// device that samples this is launched right behind the step. While drafts do not pay no rows are taken in,
// nor are those of a step that failed, and a saved cache has no pages of a head. So for each page it is known
// from where on the head's K and V are there, and a draft looks back no further.
#pragma once

#include <vector>

#include "backend/draft_head.h"
#include "drafting/drafter.h"

namespace moesaic {

class Eagle3Drafter final : public Drafter {
 public:
  // head: the loaded head of the engine's backend.
  explicit Eagle3Drafter(DraftHead& head) : head_(&head) {}

  std::string name() const override { return "eagle3"; }
  bool is_costly() const override { return true; }
  bool follows_steps() const override { return true; }
  Status draft(std::span<DraftTask> tasks) override;
  bool drafts_ahead() const override { return head_->drafts_ahead(); }
  Result<int64_t> begin_draft(std::span<SequenceAhead> sequences, const Batch& step) override;
  Result<double> finish_draft(int64_t begun, std::span<int32_t> tokens) override {
    return head_->finish_draft(begun, tokens);
  }
  void skip() override;
  void computed(std::span<const ComputedRows> rows, bool begun) override;
  void loaded(std::span<const int32_t> full_pages) override;
  void end(uint64_t, std::span<const int32_t>, int) override {}

 private:
  // A request's rows of the last step that are not taken in yet.
  struct Pending {
    uint64_t request = 0;
    int first = 0;     // the first row's position
    int position = 0;  // the position behind the last row
    int32_t last = 0;  // the last row's own token
    std::vector<int32_t> pages = {};
    int rows = 0;
    DraftSequence sequence;  // its next_tokens may lack the last one, which is sampled later
  };
  static bool complete(Pending& pending, const DraftTask& task);
  // Positions [first, end) are in the head's cache now, or will not be.
  void mark(std::span<const int32_t> pages, int first, int end, bool taken);
  int begin_of(std::span<const int32_t> pages, int first) const;
  int& from(int32_t page);

  DraftHead* head_;
  std::vector<Pending> pending_;  // by ascending sequence
  std::vector<int> from_;  // [pages] the first place of each that the head has, if all behind it are used
};

}  // namespace moesaic

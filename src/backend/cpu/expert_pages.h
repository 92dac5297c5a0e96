// One matrix of a layer's experts, of which memory holds some: the others are packed from the model's file
// when a step wants them, in the place of those that were wanted least recently.
//
// Why each layer has places of its own: a prompt wants nearly all experts of one layer after the other. From
// a common store the first layers' would always be gone when they are wanted again. Within a layer those that
// are there are wanted first, so that a part of them is found however many are wanted.
//
// Thread-safety: one thread at a time.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/cpu/pack.h"
#include "core/weights.h"

namespace moesaic::cpu {

// The file of a model's experts, and how much of them memory holds.
struct ExpertSource {
  double share = 1;                          // the part of each layer's experts that memory holds, above 0
  std::shared_ptr<const void> storage = {};  // keeps the views alive
  std::function<Status()> intact = nullptr;  // as ModelWeights has it
  // Places for so many experts: no fewer than a token chooses.
  int places(int experts, int top_k) const;
};

class ExpertPages {
 public:
  // sections: the matrices whose panels alternate: gate and up, or down. kernels and pool outlive this.
  ExpertPages(std::vector<ExpertsView> sections, int places, const ExpertSource& source, std::string name,
              const Kernels& kernels, ThreadPool& pool);

  // The experts, those that are in memory first.
  std::vector<int32_t> ordered(std::span<const int32_t> experts) const;
  // Brings the first of the wanted experts into `m`, as many as there are places for, and returns how many. m
  // has a section for each place. Fails for damaged weights, and for a file that was cut short.
  Result<size_t> bring(const PackedMatrix& m, std::span<const int32_t> wanted);
  int place_of(int expert) const { return place_of_[static_cast<size_t>(expert)]; }
  int64_t read() const { return read_; }       // experts that were packed so far
  double seconds() const { return seconds_; }  // the time that this took

 private:
  int take_place();
  Status pack(const PackedMatrix& m, std::span<const int32_t> experts, std::span<const int> places);

  std::vector<ExpertsView> sections_;
  ExpertSource source_;
  std::string name_;
  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<int> place_of_;   // [experts]; -1: it is not in memory
  std::vector<int> expert_in_;  // [places]; -1: none
  std::vector<uint64_t> used_;  // [places]: the bring() that used it last, counted by clock_
  uint64_t clock_ = 0;
  int64_t read_ = 0;
  double seconds_ = 0;
};

ExpertSource source_of(const ModelWeights& weights, double share);

}  // namespace moesaic::cpu

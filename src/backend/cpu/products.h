// Products of packed matrices with activation rows on the thread pool, and the working memory for them. The
// ops of a layer and its experts share one: they follow each other.
#pragma once

#include <span>
#include <vector>

#include "backend/cpu/gemm.h"

namespace moesaic::cpu {

// A LoRA adapter's products, F32: y += up (down x). Of experts: one after the other, as theirs are.
struct PackedLowRank {
  PackedMatrix down, up;
  int64_t rank = 0;  // 0: there is none
  double bytes() const { return rank == 0 ? 0 : down.bytes() + up.bytes(); }
};

// The place of a product: y[r, i] = m x + bias, or += that, for the first `width` outputs.
struct Store {
  float* out = nullptr;
  int64_t stride = 0, width = 0;
  const float* bias = nullptr;  // [width], or there is none
  bool add = false;
};

inline const float* bias_of(const std::vector<float>& bias) { return bias.empty() ? nullptr : bias.data(); }

class Products {
 public:
  // moe_path: by whose rule activations are rounded (backend/rounding.h).
  Products(const Kernels& table, ThreadPool& threads, const ChosenTuning& tuning, MoePath moe_path)
      : kernels(table), pool(threads), chosen(tuning), moe_path_(moe_path) {}

  // Working memory for products of at most so many columns.
  Status make_room(int64_t columns, bool adapters);

  // The rows in the format that they meet `m` in. slots: as ActRows::assign() has it.
  void convert(ActRows& act, const PackedMatrix& m, Operand operand, const float* x, int64_t stride, int rows,
               std::span<const int32_t> slots = {});
  // x: [rows, m.cols]. next: the calling thread asks for this matrix meanwhile, since it will read it alone;
  // or null.
  void linear(const PackedMatrix& m, const float* x, int rows, const Store& to,
              const PackedMatrix* next = nullptr);
  // Tells the pool's threads what a product of so many rows reads next: m, or these sections of it. They
  // fetch nothing ahead where m is null, and for many rows, which are bound by arithmetic.
  void expect(const PackedMatrix* m, int rows, std::span<const int32_t> sections = {});
  // y += up (down x), of dense matrices.
  void add_low_rank(const PackedLowRank& low, const float* x, int64_t stride, int rows, float* y,
                    int64_t y_stride);

  const Kernels& kernels;
  ThreadPool& pool;
  const ChosenTuning& chosen;
  std::vector<Workspace> workspaces;
  std::vector<Workspace> adapter_workspaces;  // for a second tile beside a product's own
  std::vector<float> lowered;                 // [rows, rank] of an adapter, or of its permuted rows
  ActRows low_act;                            // the activations of an adapter's matrices

 private:
  MoePath moe_path_;
  ActRows act_;
};

}  // namespace moesaic::cpu

#include "backend/cpu/experts.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace moesaic::cpu {

void FileReads::add(const ExpertLayer& layer) {
  if (!layer.gate_up_pages) return;
  for (const auto& [pages, m] :
       {std::pair(layer.gate_up_pages.get(), &layer.gate_up), {layer.down_pages.get(), &layer.down}}) {
    const double expert = m->bytes() / static_cast<double>(m->sections);
    bytes += expert * static_cast<double>(pages->read()), seconds += pages->seconds();
    token_bytes +=
        expert * layer.shape.experts_per_token * (1 - static_cast<double>(m->sections) / layer.shape.experts);
  }
}

std::string FileReads::words() const {
  if (token_bytes == 0) return {};
  return fmt::format(
      "a token reads {:.2f} GB of experts from the model's file, which came with {:.2f} GB/s while it was "
      "loaded: one request decodes with some {:.2g} tok/s, more where the system still has the file in "
      "memory",
      token_bytes / 1e9, bytes / seconds / 1e9, bytes / seconds / token_bytes);
}

// A dense MLP is one expert that every row goes to, in the order of the rows.
void ExpertOps::take_all(int rows) {
  work_.active = {0};
  work_.offsets = {0, rows};
  work_.rows.resize(rows);
  work_.permuted_rows.clear();
}

// Experts have few or many tokens on the mean, for which weights are read in different ways.
RunTuning ExpertOps::runs() const {
  return p_.chosen.tuning.runs_for(std::ssize(work_.rows) / std::max<int64_t>(1, std::ssize(work_.active)));
}

// Experts of a file are brought in groups of as many as there are places.
template <typename Body>
void ExpertOps::for_each_expert(const PackedMatrix& m, ExpertPages* pages, int64_t pairs, const Body& body) {
  if (pages == nullptr) {
    for_each_pair(p_.pool, std::ssize(work_.active), pairs, runs(),
                  [&](int64_t section, int64_t pair, int thread) {
                    const int expert = work_.active[section];
                    body(expert, expert * pairs + pair, pair, thread);
                  });
    return;
  }
  const std::vector<int32_t> order = pages->ordered(work_.active);
  for (std::span<const int32_t> wanted = order; !wanted.empty() && read_.ok();) {
    const Result<size_t> there = pages->bring(m, wanted);
    read_ = there.status();
    if (!read_.ok()) return;
    for_each_pair(p_.pool, static_cast<int64_t>(there.value()), pairs, runs(),
                  [&](int64_t section, int64_t pair, int thread) {
                    const int expert = wanted[static_cast<size_t>(section)];
                    body(expert, pages->place_of(expert) * pairs + pair, pair, thread);
                  });
    wanted = wanted.subspan(there.value());
  }
}

// A pair is a gate panel and its up panel: 16 outputs of one expert for all its rows.
void ExpertOps::gate_up_gemm(const ExpertLayer& layer, int rows, const float* normed) {
  const LayerShape& s = layer.shape;
  const int64_t pairs = s.intermediate / kPanel;
  const GemmTuning& tuning = s.experts > 0 ? p_.chosen.tuning.experts : p_.chosen.tuning.dense;
  constexpr double kMostLimit = 1e30;  // the kernels multiply with it
  const auto alpha = static_cast<float>(s.swiglu_alpha),
             limit = static_cast<float>(std::min(s.swiglu_limit, kMostLimit));
  const int64_t width = layer.down.cols;
  const Range mine = rank_.share.rows(width);
  p_.convert(act_, layer.gate_up, Operand::kExpertInput, normed, s.hidden, rows, work_.permuted_rows);
  hidden_.resize(work_.rows.size() * width);
  const auto body = [&](int expert, int64_t at, int64_t pair, int thread) {
    const int64_t bias = expert * padded(s.intermediate) + pair * kPanel;
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile = run_pair(p_.kernels, layer.gate_up, at, rows_from(act_.view(), first), n,
                                   p_.workspaces[thread], tuning);
      add_to_tile(layer.gate_up_adapter, expert * pairs + pair, first, n, thread);
      float* out = hidden_.data() + first * width + mine.first + pair * kPanel;
      p_.kernels.swiglu_tile(tile, layer.gate_bias.data() + bias, layer.up_bias.data() + bias, n, alpha,
                             limit, out, width);
    }
  };
  for_each_expert(layer.gate_up, layer.gate_up_pages.get(), pairs, body);
  rank_.gather(hidden_.data(), std::ssize(work_.rows), width, mine);
}

void ExpertOps::down_gemm(const ExpertLayer& layer) {
  const int64_t hidden = rank_.share.rows(layer.shape.hidden).count,
                pairs = hidden / (kPair * kPanel);  // whole: a multiple of 32
  const int slots = static_cast<int>(std::ssize(work_.rows));
  p_.convert(hidden_act_, layer.down, Operand::kSwiglu, hidden_.data(), layer.down.cols, slots);
  out_.resize(slots * hidden);
  const auto body = [&](int expert, int64_t at, int64_t pair, int thread) {
    for (int first = work_.offsets[expert]; first < work_.offsets[expert + 1]; first += kTokenBlock) {
      const int n = std::min(kTokenBlock, work_.offsets[expert + 1] - first);
      const float* tile = run_pair(p_.kernels, layer.down, at, rows_from(hidden_act_.view(), first), n,
                                   p_.workspaces[thread], p_.chosen.tuning.experts);
      add_to_tile(layer.down_adapter, expert * pairs + pair, first, n, thread);
      float* out = out_.data() + first * hidden + pair * 2 * kPanel;
      for (int t = 0; t < n; ++t)
        std::memcpy(out + t * hidden, tile + t * 2 * kPanel, 2 * kPanel * sizeof(float));
    }
  };
  for_each_expert(layer.down, layer.down_pages.get(), pairs, body);
}

void ExpertOps::combine(const ExpertLayer& layer, int rows, const ExpertChoice& choice, float* x) {
  const int top_k = layer.shape.experts_per_token;
  const int64_t hidden = layer.shape.hidden;
  const Range mine = rank_.share.rows(hidden);
  p_.pool.for_each(rows, [&](int64_t row, int) {
    std::array<const float*, 64> y, bias;
    std::array<float, 64> weights;
    int count = 0;
    for (int64_t i = row * top_k; i < (row + 1) * top_k; ++i) {
      if (work_.permuted_rows[i] < 0) continue;
      y[count] = out_.data() + work_.permuted_rows[i] * mine.count;
      bias[count] = layer.down_bias.data() + choice.ids[i] * padded(mine.count);
      weights[count++] = choice.weights[i];
    }
    p_.kernels.combine(y.data(), bias.data(), weights.data(), count, mine.count,
                       x + row * hidden + mine.first);
  });
  rank_.gather(x, rows, hidden, mine);
}

Status ExpertOps::run(const ExpertLayer& layer, int rows, const float* normed, const ExpertChoice& choice,
                      float* x, const PackedMatrix* next) {
  read_ = Status();
  build_work_list(choice.ids, layer.shape.experts_per_token, layer.shape.experts, work_);
  lower_rows(layer.gate_up_adapter, normed, layer.shape.hidden, rows, work_.permuted_rows);
  p_.expect(layer.down_pages == nullptr ? &layer.down : nullptr, rows, work_.active);
  gate_up_gemm(layer, rows, normed);
  lower_rows(layer.down_adapter, hidden_.data(), layer.shape.intermediate,
             static_cast<int>(std::ssize(work_.rows)), {});
  p_.expect(next, rows);
  down_gemm(layer);
  if (read_.ok()) combine(layer, rows, choice, x);
  return std::exchange(read_, Status());
}

void ExpertOps::run_dense(const ExpertLayer& layer, int rows, const float* normed, float* x) {
  const int64_t hidden = layer.shape.hidden, intermediate = layer.shape.intermediate;
  take_all(rows);
  lower_rows(layer.gate_up_adapter, normed, hidden, rows, work_.permuted_rows);
  gate_up_gemm(layer, rows, normed);
  p_.linear(layer.down, hidden_.data(), rows,
            {.out = x, .stride = hidden, .width = hidden, .bias = bias_of(layer.down_bias), .add = true});
  p_.add_low_rank(layer.down_adapter, hidden_.data(), intermediate, rows, x, hidden);
}

}  // namespace moesaic::cpu

// bench --speculative.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "api/draft_parts.h"
#include "base/error.h"
#include "bench.h"
#include "chat/terminal_text.h"
#include "commands.h"
#include "drafted_batch.h"
#include "print_json.h"
#include "progress.h"

namespace moesaic::app {
namespace {

constexpr int kDraftedRows = 512;  // rows of a step

struct DraftLine {
  int tokens = 0, depth = 0, batch = 1;
  std::vector<double> plain, drafted, ratios;  // tokens a second of all sequences, and their ratio; sorted
  DraftTimes times;                            // over all steps with drafts
};

double middle_of(const std::vector<double>& sorted) {
  return (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
}
int most_of(const std::vector<int>& v) { return *std::max_element(v.begin(), v.end()); }

// Tokens of one sequence at most, drafts included.
int longest_drafted(const BenchOptions& o) {
  return most_of(o.depths) + most_of(o.generations) + 2 * static_cast<int>(o.acceptance.size()) + 2;
}

// Tokens a second. At least `tokens` for the longest sequence.
Result<double> time_once(DraftedBatch& batch, const DraftLine& line, std::span<const double> acceptance) {
  RETURN_IF_ERROR(batch.restart(line.depth));
  batch.reset_times();
  while (batch.length() < line.depth + 1 + line.tokens) RETURN_IF_ERROR(batch.step(acceptance));
  return static_cast<double>(batch.times().tokens) / batch.times().seconds();
}

void add(DraftTimes& sum, const DraftTimes& more) {
  sum.draft += more.draft, sum.verify += more.verify, sum.take_back += more.take_back;
  sum.steps += more.steps, sum.tokens += more.tokens;
}

// The two kinds take turns, so that what else the machine does slows both.
Status measure(DraftedBatch& batch, const BenchOptions& o, DraftLine& line, ProgressLine& progress) {
  for (int rep = -1; rep < o.reps; ++rep) {  // the first one warms up
    progress.show(fmt::format("tg{} at depth {}, batch {}: repetition {} of {}", line.tokens, line.depth,
                              line.batch, rep + 1, o.reps));
    ASSIGN_OR_RETURN(const double plain, time_once(batch, line, {}));
    ASSIGN_OR_RETURN(const double drafted, time_once(batch, line, o.acceptance));
    if (rep < 0) continue;
    line.plain.push_back(plain), line.drafted.push_back(drafted), line.ratios.push_back(drafted / plain);
    add(line.times, batch.times());
  }
  progress.clear();
  for (std::vector<double>* v : {&line.plain, &line.drafted, &line.ratios}) std::sort(v->begin(), v->end());
  return {};
}

double each_us(double seconds, const DraftLine& l) { return 1e6 * seconds / l.times.steps; }
double tokens_a_step(const DraftLine& l) {
  return static_cast<double>(l.times.tokens) / l.times.steps / l.batch;
}

nlohmann::ordered_json to_json(const DraftLine& l, const BenchOptions& o, const LoadedModel& m) {
  return {{"model", o.model.model},
          {"device", m.caps.name},
          {"threads", m.caps.threads},
          {"speculative", o.speculative},
          {"acceptance", o.acceptance},
          {"test", fmt::format("tg{}", l.tokens)},
          {"depth", l.depth},
          {"batch", l.batch},
          {"reps", o.reps},
          {"tok_s_without", middle_of(l.plain)},
          {"tok_s", middle_of(l.drafted)},
          {"tok_s_min", l.drafted.front()},
          {"tok_s_max", l.drafted.back()},
          {"gain", middle_of(l.ratios)},
          {"tokens_per_step", tokens_a_step(l)},
          {"draft_us", each_us(l.times.draft, l)},
          {"verify_us", each_us(l.times.verify, l)},
          {"take_back_us", each_us(l.times.take_back, l)}};
}

void print_line(const DraftLine& l) {
  fmt::print(
      "| tg{} | {} | {} | {:.2f} | {:.2f} | {:.2f} - {:.2f} | {:.3f} | {:.2f} | {:.0f} | {:.0f} | {:.0f} |\n",
      l.tokens, l.depth, l.batch, middle_of(l.plain), middle_of(l.drafted), l.drafted.front(),
      l.drafted.back(), middle_of(l.ratios), tokens_a_step(l), each_us(l.times.draft, l),
      each_us(l.times.verify, l), each_us(l.times.take_back, l));
  std::fflush(stdout);
}

void print_draft_header(const BenchOptions& o, const LoadedModel& m) {
  std::string chances;
  for (const double chance : o.acceptance) chances += fmt::format(" {:.2f}", chance);
  fmt::print("{} on {}, {} with drafts of {} tokens, accepted at{}\n\n", chat::printable_line(o.model.model),
             m.caps.name, o.speculative, o.acceptance.size(), chances);
  fmt::print(
      "| test | depth | batch | tok/s without | tok/s (median of {}) | min - max | gain | tokens a step | "
      "draft us "
      "| verify us | roll-back us |\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      o.reps);
}

}  // namespace

Status run_draft_bench(const BenchOptions& o) {
  ASSIGN_OR_RETURN(LoadedModel m, prepare_model(o.model, kDraftedRows));
  ASSIGN_OR_RETURN(DraftParts parts, DraftParts::open(o.speculative, m.checkpoint));
  RETURN_IF_ERROR(check_context(longest_drafted(o), m.checkpoint.config, "depth and test together"));
  const int rows =
      std::max(kDraftedRows / 4, most_of(o.batches) * (1 + static_cast<int>(o.acceptance.size())));
  if (rows > kDraftedRows)
    return usage(invalid("--batch {} with drafts of {} tokens: {} rows, a step has at most {}",
                         most_of(o.batches), o.acceptance.size(), rows, kDraftedRows));
  EngineOptions engine{.context = longest_drafted(o), .max_batch = most_of(o.batches), .max_rows = rows};
  ASSIGN_OR_RETURN(engine.draft, parts.plan(*m.backend, m.choice.options, engine));
  RETURN_IF_ERROR(load(
      m,
      {.sequences = engine.max_batch, .context = engine.context, .max_rows = rows, .draft = engine.draft}));
  RETURN_IF_ERROR(parts.load(*m.backend, m.checkpoint));
  ASSIGN_OR_RETURN(const auto drafter, parts.drafter(*m.backend, engine));
  if (o.format == "md") print_draft_header(o, m);
  ProgressLine progress;
  JsonArray lines(o.format == "json");
  for (const int sequences : o.batches) {
    ASSIGN_OR_RETURN(DraftedBatch batch,
                     DraftedBatch::create(
                         *m.backend, m.checkpoint.config,
                         {.sequences = sequences, .max_tokens = engine.context, .max_rows = rows}, *drafter));
    for (const int depth : o.depths) {
      for (const int tokens : o.generations) {
        if (tokens == 0) continue;
        DraftLine line{.tokens = tokens, .depth = depth, .batch = sequences};
        RETURN_IF_ERROR(measure(batch, o, line, progress));
        if (o.format == "md") print_line(line);
        lines.add(to_json(line, o, m));
      }
    }
    RETURN_IF_ERROR(batch.restart(0));  // nothing of it is left with the drafter
  }
  return {};
}

}  // namespace moesaic::app

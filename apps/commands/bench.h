// The timing of a model's prefill and decoding, and of its MoE operator alone.
#pragma once

#include <string>
#include <vector>

#include "model_options.h"

namespace moesaic::app {

struct BenchOptions {
  ModelOptions model;
  int ubatch = 0;
  std::vector<int> prompts = {512}, generations = {128}, depths = {0}, batches = {1};
  std::vector<int> moe;  // tokens of the operator's table; empty: the model's tests
  std::string speculative = "none";
  std::vector<double> acceptance;  // for each token of a draft, if the one before it was accepted
  int reps = 5, delay = 0;         // repetitions of a test; seconds before it
  std::string format = "md";
  std::vector<std::string> beside;  // html: files of other runs
};

// Prints a table of o.format, line by line as it is measured where that is md or csv.
Status run_bench(const BenchOptions& o);
// The operator, with the numbers of tokens in o.moe. o.format is md, json or csv.
Status run_moe_bench(const BenchOptions& o);
// Decoding with drafts that are accepted at given chances, beside decoding without. o.format is md or json.
Status run_draft_bench(const BenchOptions& o);

// A field of CSV by RFC 4180: in quotes, with quotes doubled. What is no UTF-8 becomes U+FFFD.
std::string csv_text(const std::string& text);

}  // namespace moesaic::app

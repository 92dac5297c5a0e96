// Each adds its command to the parser and returns the function that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "moesaic/status.h"

namespace moesaic::app {

using Run = std::function<Status()>;

Run add_bench(CLI::App& app);
Run add_bench_serve(CLI::App& app);
Run add_completion(CLI::App& app);
Run add_convert(CLI::App& app);
Run add_detokenize(CLI::App& app);
Run add_inspect(CLI::App& app);
Run add_list(CLI::App& app);
Run add_logits(CLI::App& app);
Run add_man(CLI::App& app);
Run add_perplexity(CLI::App& app);
Run add_plan(CLI::App& app);
Run add_profile(CLI::App& app);
Run add_pull(CLI::App& app);
Run add_render(CLI::App& app);
Run add_run(CLI::App& app);
Run add_serve(CLI::App& app);
Run add_tokenize(CLI::App& app);
Run add_tune(CLI::App& app);
Run add_warmup(CLI::App& app);
Run add_verify(CLI::App& app);

}  // namespace moesaic::app

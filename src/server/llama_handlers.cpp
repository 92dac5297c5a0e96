#include "server/llama_handlers.h"

#include "server/handlers.h"

namespace moesaic::server {
namespace {

using openai::Json;

// The parameters of a request that names none.
Json default_params() {
  const SamplingParams defaults;
  return {{"temperature", defaults.temperature},
          {"top_k", defaults.top_k},
          {"top_p", defaults.top_p},
          {"min_p", defaults.min_p},
          {"repeat_penalty", defaults.repetition_penalty},
          {"repeat_last_n", -1},
          {"presence_penalty", defaults.presence_penalty},
          {"frequency_penalty", defaults.frequency_penalty},
          {"n_predict", -1},
          {"max_tokens", -1},
          {"stop", Json::array()},
          {"stream", true},
          {"samplers", {"penalties", "temperature", "top_k", "top_p", "min_p"}}};
}

// A place in the batch. Which request has it changes from step to step: the first ones are shown as busy.
Json slot(int id, bool busy, const ModelInfo& info) {
  return {{"id", id},
          {"n_ctx", info.context},
          {"speculative", info.speculative != "none"},
          {"is_processing", busy}};
}

}  // namespace

asio::awaitable<void> llama_props(HttpExchange& exchange, App& app) {
  const ModelInfo info = app.engine.model()->info();
  const Json json = {
      {"default_generation_settings", {{"id", 0}, {"n_ctx", info.context}, {"params", default_params()}}},
      {"total_slots", info.max_batch},
      {"model_alias", app.options.model_name},
      {"model_path", app.options.model_name},
      {"modalities", {{"vision", false}, {"audio", false}}},
      {"endpoint_slots", true},
      {"endpoint_props", false},
      {"endpoint_metrics", true},
      {"chat_template", ""},
      {"bos_token", "<|startoftext|>"},
      {"eos_token", "<|return|>"},
      {"build_info", "moesaic-" + app.options.version},
      {"is_sleeping", false}};
  return send_json(exchange, json);
}

asio::awaitable<void> llama_slots(HttpExchange& exchange, App& app) {
  const ModelInfo info = app.engine.model()->info();
  const int running = app.engine.gauges().engine.running;
  Json slots = Json::array();
  for (int i = 0; i < info.max_batch; ++i) slots.push_back(slot(i, i < running, info));
  return send_json(exchange, slots);
}

}  // namespace moesaic::server

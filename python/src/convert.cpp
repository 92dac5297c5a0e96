#include "convert.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/json.h"
#include "text/utf8.h"

namespace moesaic::python {
namespace {

StatusCode code_of(const openai::ApiError& error) {
  return error.http < 500 ? StatusCode::kInvalidArgument : StatusCode::kInternal;
}

const char* exception_of(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kUsage:
      return "InvalidRequest";
    case StatusCode::kNotFound:
      return "NotFound";
    case StatusCode::kOutOfMemory:
      return "OutOfMemory";
    case StatusCode::kUnsupported:
      return "Unsupported";
    case StatusCode::kCancelled:
      return "Cancelled";
    default:
      return "MoesaicError";
  }
}

// C++ takes it whole, and the system up to its first zero.
bool has_zero(const std::string& text) { return text.find('\0') != std::string::npos; }
bool has_zero(const std::vector<std::string>& texts) {
  return std::ranges::any_of(texts, [](const std::string& text) { return has_zero(text); });
}
template <typename T>
bool has_zero(const T& /*number*/) {
  return false;
}

// The first member that has this name takes the value.
template <typename T>
bool set(const std::string& name, const char* member, nb::handle value, T& target) {
  if (name != member) return false;
  try {
    target = nb::cast<T>(value);
  } catch (const nb::cast_error&) {
    throw Failure(StatusCode::kInvalidArgument, fmt::format("{}: a value of this type is not taken", name));
  }
  if (has_zero(target))
    throw Failure(StatusCode::kInvalidArgument, fmt::format("{}: a text with a character of value 0", name));
  return true;
}

// A number, "auto" or "numa".
bool set_ranks(const std::string& name, nb::handle value, int& target) {
  if (name != "tp" || !nb::isinstance<nb::str>(value)) return set(name, "tp", value, target);
  const std::string text = nb::cast<std::string>(value);
  if (text != "auto" && text != "numa")
    throw Failure(StatusCode::kInvalidArgument, fmt::format("tp: '{}' is not a number, auto or numa", text));
  target = text == "auto" ? kAutoRanks : kRankPerNode;
  return true;
}

void set(const std::string& name, nb::handle value, OpenOptions& o) {
  const bool known =
      set(name, "device", value, o.device) || set(name, "threads", value, o.threads) ||
      set(name, "cpu_pin", value, o.cpu_pin) || set(name, "context", value, o.context) ||
      set(name, "max_batch", value, o.max_batch) || set(name, "kv_tokens", value, o.kv_tokens) ||
      set(name, "max_rows", value, o.max_rows) || set(name, "prefix_cache", value, o.prefix_cache) ||
      set(name, "dense", value, o.dense) || set(name, "kv_dtype", value, o.kv_dtype) ||
      set(name, "tokenizer", value, o.tokenizer) || set(name, "moe_path", value, o.moe_path) ||
      set(name, "cpu_prefetch", value, o.cpu_prefetch) ||
      set(name, "batch_invariant", value, o.batch_invariant) || set(name, "tune", value, o.tune) ||
      set(name, "lora", value, o.lora) || set(name, "speculative", value, o.speculative) ||
      set(name, "draft_tokens", value, o.draft_tokens) || set(name, "kv_host", value, o.kv_host) ||
      set(name, "kv_disk", value, o.kv_disk) || set_ranks(name, value, o.tp) ||
      set(name, "experts", value, o.experts) || set(name, "gpu_memory", value, o.gpu_memory);
  if (!known) throw Failure(StatusCode::kInvalidArgument, fmt::format("unknown option '{}'", name));
}

nb::dict pages_used(const PageUse& pages) {
  nb::dict d;
  d["used"] = pages.used;
  d["cached"] = pages.cached;
  d["total"] = pages.total;
  return d;
}

nb::dict tier_stats(const KvTierStats& tier) {
  nb::dict d;
  d["bytes"] = tier.bytes;
  d["written_bytes"] = tier.written_bytes;
  d["read_bytes"] = tier.read_bytes;
  d["dropped"] = tier.dropped;
  d["damaged"] = tier.damaged;
  return d;
}

}  // namespace

Failure::Failure(const openai::ApiError& error)
    : Failure(code_of(error), error.param.empty() || error.message.starts_with(error.param + ":")
                                  ? error.message
                                  : fmt::format("{}: {}", error.param, error.message)) {}

void translate_failures() {
  // A copy, since the interpreter empties modules at its end.
  const nb::object errors = nb::module_::import_("moesaic.errors").attr("__dict__").attr("copy")();
  const auto translate = [](const std::exception_ptr& p, void* types) {
    try {
      std::rethrow_exception(p);
    } catch (const Failure& failure) {
      const nb::object type = nb::handle(static_cast<PyObject*>(types))[exception_of(failure.code)];
      const std::string line = utf8_lossy(printable(failure.message));  // names in it may hold anything
      PyErr_SetString(type.ptr(), line.c_str());
    }
  };
  nb::register_exception_translator(translate, errors.inc_ref().ptr());
}

OpenOptions options_of(const nb::kwargs& options) {
  OpenOptions o;
  for (const auto& [name, value] : options) set(nb::cast<std::string>(name), value, o);
  return o;
}

nb::dict describe(const DeviceInfo& device) {
  nb::dict d;
  d["name"] = device.name;
  d["backend"] = device.backend;
  d["description"] = device.description;
  d["architecture"] = device.architecture;
  d["memory_total"] = device.memory_total;
  d["memory_free"] = device.memory_free;
  d["usable"] = device.usable;
  d["reason"] = device.reason;
  return d;
}

nb::dict describe(const ModelInfo& info) {
  nb::dict d;
  d["name"] = info.name;
  d["device"] = describe(info.device);
  d["device_reason"] = info.device_reason;
  d["ranks"] = info.ranks;
  d["memory_used"] = info.memory.sum();
  d["weights_bytes"] = info.memory.weights;
  d["kv_cache_bytes"] = info.memory.kv_cache;
  d["workspace_bytes"] = info.memory.workspace;
  d["stored_bytes"] = info.stored_bytes;
  d["context"] = info.context;
  d["context_reason"] = info.context_reason;
  d["max_batch"] = info.max_batch;
  d["batch_reason"] = info.batch_reason;
  d["max_rows"] = info.max_rows;
  d["mixed_rows"] = info.mixed_rows;
  d["kv_tokens"] = info.kv_tokens;
  d["kv_reason"] = info.kv_reason;
  d["speculative"] = info.speculative;
  d["draft_tokens"] = info.draft_tokens;
  return d;
}

nb::dict describe(const EngineStats& stats) {
  nb::dict d;
  d["running"] = stats.running;
  d["waiting"] = stats.waiting;
  d["full"] = pages_used(stats.full);
  d["window"] = pages_used(stats.window);
  d["prompt_tokens"] = stats.prompt_tokens;
  d["generated_tokens"] = stats.generated_tokens;
  d["prefix_queried"] = stats.prefix_queried;
  d["prefix_hits"] = stats.prefix_hits;
  d["preemptions"] = stats.preemptions;
  d["captures"] = stats.captures;
  d["failed_captures"] = stats.failed_captures;
  d["steps"] = stats.steps;
  d["step_seconds"] = stats.step_seconds;
  d["host_seconds"] = stats.host_seconds;
  d["drafted_tokens"] = stats.speculation.drafted;
  d["accepted_tokens"] = stats.speculation.accepted;
  d["fetched_tokens"] = stats.store.fetched_tokens;
  d["host"] = tier_stats(stats.store.host);
  d["disk"] = tier_stats(stats.store.disk);
  return d;
}

}  // namespace moesaic::python

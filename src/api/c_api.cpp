// moesaic.h over engine.h: the library, its devices, and a model; requests are in c_request.cpp.
#include "api/c_common.h"
#include "checkpoint/json.h"
#include "text/utf8.h"

namespace moesaic::c_api {
namespace {

thread_local std::string last_error;

constexpr moesaic_options kOptions = {.size = sizeof(moesaic_options),
                                      .device = "auto",
                                      .threads = 0,
                                      .context = 0,
                                      .max_batch = 0,
                                      .max_rows = 0,
                                      .kv_tokens = 0,
                                      .prefix_cache = 1,
                                      .dense = "keep",
                                      .kv_dtype = "auto",
                                      .tokenizer = "",
                                      .moe_path = "auto",
                                      .batch_invariant = 0,
                                      .cpu_pin = "auto",
                                      .cpu_prefetch = "auto",
                                      .progress = nullptr,
                                      .progress_user = nullptr,
                                      .lora = nullptr,
                                      .lora_count = 0,
                                      .speculative = "none",
                                      .draft_tokens = 0,
                                      .no_tuning = 0,
                                      .kv_host = 0,
                                      .kv_disk = "",
                                      .tp = 1,
                                      .experts = "",
                                      .gpu_memory = 0};

Status check_pointers(const moesaic_options& o) {
  RETURN_IF_ERROR(not_null(o.device, "options.device"));
  RETURN_IF_ERROR(not_null(o.dense, "options.dense"));
  RETURN_IF_ERROR(not_null(o.kv_dtype, "options.kv_dtype"));
  RETURN_IF_ERROR(not_null(o.tokenizer, "options.tokenizer"));
  RETURN_IF_ERROR(not_null(o.moe_path, "options.moe_path"));
  RETURN_IF_ERROR(not_null(o.cpu_pin, "options.cpu_pin"));
  RETURN_IF_ERROR(not_null(o.cpu_prefetch, "options.cpu_prefetch"));
  RETURN_IF_ERROR(not_null(o.speculative, "options.speculative"));
  RETURN_IF_ERROR(not_null(o.kv_disk, "options.kv_disk"));
  RETURN_IF_ERROR(not_null(o.experts, "options.experts"));
  RETURN_IF_ERROR(check_flag(o.prefix_cache, "options.prefix_cache"));
  RETURN_IF_ERROR(check_flag(o.batch_invariant, "options.batch_invariant"));
  RETURN_IF_ERROR(check_flag(o.no_tuning, "options.no_tuning"));
  return check_strings(o.lora, o.lora_count, "options.lora");
}

OpenOptions open_options(const moesaic_options& o) {
  OpenOptions options{.device = o.device,
                      .threads = o.threads,
                      .cpu_pin = o.cpu_pin,
                      .context = o.context,
                      .max_batch = o.max_batch,
                      .kv_tokens = o.kv_tokens,
                      .max_rows = o.max_rows,
                      .prefix_cache = o.prefix_cache != 0,
                      .dense = o.dense,
                      .kv_dtype = o.kv_dtype,
                      .tokenizer = o.tokenizer,
                      .moe_path = o.moe_path,
                      .cpu_prefetch = o.cpu_prefetch,
                      .batch_invariant = o.batch_invariant != 0,
                      .tune = o.no_tuning == 0,
                      .lora = {o.lora, o.lora + o.lora_count},
                      .speculative = o.speculative,
                      .draft_tokens = o.draft_tokens,
                      .kv_host = o.kv_host,
                      .kv_disk = o.kv_disk,
                      .tp = o.tp,
                      .experts = o.experts,
                      .gpu_memory = o.gpu_memory};
  if (o.progress != nullptr)
    options.progress = [call = o.progress, user = o.progress_user](int64_t done, int64_t total) {
      return call(user, done, total) != 0;
    };
  return options;
}

moesaic_device row_of(const DeviceInfo& d) {
  return {.size = sizeof(moesaic_device),
          .name = d.name.c_str(),
          .backend = d.backend.c_str(),
          .description = d.description.c_str(),
          .architecture = d.architecture.c_str(),
          .memory_total = d.memory_total,
          .memory_free = d.memory_free,
          .usable = d.usable ? 1 : 0,
          .reason = d.reason.c_str()};
}

// Rows and their strings in one block.
Status hand_out(const std::vector<DeviceInfo>& devices, moesaic_device** out, size_t* count) {
  const auto texts = [](moesaic_device& d) {
    return std::array{&d.name, &d.backend, &d.description, &d.architecture, &d.reason};
  };
  std::vector<moesaic_device> rows;
  for (const DeviceInfo& d : devices) rows.push_back(row_of(d));
  size_t bytes = rows.size() * sizeof(moesaic_device);
  for (moesaic_device& row : rows) {
    for (const char** text : texts(row)) bytes += std::strlen(*text) + 1;
  }
  char* const block = static_cast<char*>(std::malloc(bytes));
  if (block == nullptr) return error(StatusCode::kOutOfMemory, "out of memory");
  char* to = block + rows.size() * sizeof(moesaic_device);
  for (moesaic_device& row : rows) {
    for (const char** text : texts(row)) {
      const size_t size = std::strlen(*text) + 1;
      *text = static_cast<char*>(std::memcpy(to, *text, size));
      to += size;
    }
  }
  std::memcpy(block, rows.data(), rows.size() * sizeof(moesaic_device));
  *out = reinterpret_cast<moesaic_device*>(block);
  *count = rows.size();
  return {};
}

moesaic_info info_of(const ModelInfo& i, int64_t memory_free) {
  moesaic_info info{.size = sizeof info,
                    .name = i.name.c_str(),
                    .device = row_of(i.device),
                    .device_reason = i.device_reason.c_str(),
                    .memory_used = i.memory.sum(),
                    .context = i.context,
                    .context_reason = i.context_reason.c_str(),
                    .max_batch = i.max_batch,
                    .kv_tokens = i.kv_tokens,
                    .kv_reason = i.kv_reason.c_str(),
                    .weights_bytes = i.memory.weights,
                    .kv_cache_bytes = i.memory.kv_cache,
                    .workspace_bytes = i.memory.workspace,
                    .stored_bytes = i.stored_bytes,
                    .batch_reason = i.batch_reason.c_str(),
                    .max_rows = i.max_rows,
                    .ranks = i.ranks.c_str()};
  info.device.memory_free = memory_free;
  return info;
}

// A function of a model that may fail. Handle: const or not.
template <typename Handle, typename Body>
moesaic_status call(Handle* m, Body&& body) {
  return enter([&]() -> Status {
    RETURN_IF_ERROR(usable(m));
    return body(m->model);
  });
}

// The same whose result is a number; 0 without one.
template <typename Body>
int32_t number_of(const moesaic_model* m, Body&& body) {
  int32_t number = 0;
  call(m, [&](const Model& model) {
    number = body(model);
    return Status();
  });
  return number;
}

Status check_out(const void* data, const void* count) {
  RETURN_IF_ERROR(not_null(data, "where the result goes"));
  return not_null(count, "where its size goes");
}

}  // namespace

std::string line_of(std::string_view message) { return utf8_lossy(printable(std::string(message))); }

void remember(std::string_view error) noexcept {
  try {
    last_error = line_of(error);
  } catch (const std::exception&) {
    last_error.clear();
  }
}

moesaic_status code_of(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return MOESAIC_OK;
    case StatusCode::kUsage:
    case StatusCode::kInvalidArgument:
      return MOESAIC_INVALID_ARGUMENT;
    case StatusCode::kNotFound:
      return MOESAIC_NOT_FOUND;
    case StatusCode::kOutOfMemory:
      return MOESAIC_OUT_OF_MEMORY;
    case StatusCode::kUnsupported:
      return MOESAIC_UNSUPPORTED;
    case StatusCode::kIo:
      return MOESAIC_IO;
    case StatusCode::kCancelled:
      return MOESAIC_CANCELLED;
    case StatusCode::kInternal:
      break;
  }
  return MOESAIC_INTERNAL;
}

}  // namespace moesaic::c_api

using namespace moesaic;
using namespace moesaic::c_api;

const char* moesaic_last_error() { return last_error.c_str(); }
void moesaic_free(void* memory) { std::free(memory); }

void moesaic_set_log(moesaic_log_callback callback, void* user) {
  enter([&]() -> Status {
    if (callback == nullptr) {
      set_log_callback({});
    } else {
      set_log_callback([callback, user](LogLevel level, std::string_view message) {
        callback(static_cast<moesaic_log_level>(level), line_of(message).c_str(), user);
      });
    }
    return {};
  });
}

moesaic_status moesaic_devices(moesaic_device** devices, size_t* count) {
  return enter([&]() -> Status {
    RETURN_IF_ERROR(check_out(devices, count));
    return hand_out(list_devices(), devices, count);
  });
}

void moesaic_options_init(moesaic_options* options, size_t size) {
  enter([&]() -> Status {
    RETURN_IF_ERROR(not_null(options, "options"));
    return write(kOptions, options, size);
  });
}

moesaic_status moesaic_open(const char* path, const moesaic_options* options, moesaic_model** model) {
  return enter([&]() -> Status {
    RETURN_IF_ERROR(not_null(path, "path"));
    RETURN_IF_ERROR(not_null(model, "model"));
    moesaic_options o = kOptions;
    if (options != nullptr) RETURN_IF_ERROR(read(options, o));
    RETURN_IF_ERROR(check_pointers(o));
    ASSIGN_OR_RETURN(Model opened, Model::open(path, open_options(o)));
    ModelInfo info = opened.info();
    *model = new moesaic_model{.model = std::move(opened), .info = std::move(info), .mutex = {}};
    return {};
  });
}

void moesaic_close(moesaic_model* m) {
  enter([&]() -> Status {
    // Fails only within a callback, whose model must outlive it.
    if (m != nullptr) RETURN_IF_ERROR(m->model.stop());
    delete m;
    return {};
  });
}

int32_t moesaic_context(const moesaic_model* m) {
  return number_of(m, [](const Model& model) { return model.context(); });
}
int32_t moesaic_vocab(const moesaic_model* m) {
  return number_of(m, [](const Model& model) { return model.vocab(); });
}
int moesaic_idle(const moesaic_model* m) {
  return number_of(m, [](const Model& model) { return model.idle() ? 1 : 0; });
}

moesaic_status moesaic_model_info(const moesaic_model* m, moesaic_info* info) {
  return call(m, [&](const Model& model) -> Status {
    RETURN_IF_ERROR(not_null(info, "info"));
    return write(info_of(m->info, model.info().device.memory_free), info, info->size);
  });
}

moesaic_status moesaic_tokenize(const moesaic_model* m, const char* text, size_t bytes, int special,
                                int32_t** tokens, size_t* count) {
  return call(m, [&](const Model& model) -> Status {
    RETURN_IF_ERROR(not_null(text, bytes, "text"));
    RETURN_IF_ERROR(check_out(tokens, count));
    return c_api::hand_out(model.tokenize({text, bytes}, special != 0), tokens, count);
  });
}

moesaic_status moesaic_detokenize(const moesaic_model* m, const int32_t* tokens, size_t count, char** text,
                                  size_t* bytes) {
  return call(m, [&](const Model& model) -> Status {
    RETURN_IF_ERROR(not_null(tokens, count, "tokens"));
    RETURN_IF_ERROR(check_out(text, bytes));
    for (const int32_t t : std::span(tokens, count)) {
      if (t < 0 || t >= model.vocab())
        return invalid("token {} is outside the vocabulary of {}", t, model.vocab());
    }
    const std::string s = model.detokenize({tokens, count});
    return c_api::hand_out(s.data(), s.size(), text, bytes);
  });
}

moesaic_status moesaic_chat_prompt(const moesaic_model* m, const char* conversation, int32_t** tokens,
                                   size_t* count) {
  return call(m, [&](const Model& model) -> Status {
    RETURN_IF_ERROR(not_null(conversation, "conversation_json"));
    RETURN_IF_ERROR(check_out(tokens, count));
    return c_api::hand_out(model.chat_prompt(conversation), tokens, count);
  });
}

moesaic_status moesaic_stop_tokens(const moesaic_model* m, int32_t** tokens, size_t* count) {
  return call(m, [&](const Model& model) -> Status {
    RETURN_IF_ERROR(check_out(tokens, count));
    return c_api::hand_out(model.stop_tokens(), tokens, count);
  });
}

moesaic_status moesaic_step(moesaic_model* m) {
  return call(m, [](Model& model) { return model.step(); });
}
moesaic_status moesaic_run(moesaic_model* m) {
  return call(m, [](Model& model) { return model.run(); });
}
moesaic_status moesaic_start(moesaic_model* m) {
  return call(m, [](Model& model) { return model.start(); });
}
moesaic_status moesaic_stop(moesaic_model* m) {
  return call(m, [](Model& model) { return model.stop(); });
}
moesaic_status moesaic_wait(moesaic_model* m) {
  return call(m, [](Model& model) { return model.wait(); });
}

moesaic_status moesaic_kv_cached(moesaic_model* m, const int32_t* tokens, size_t count, size_t* cached) {
  return call(m, [&](Model& model) -> Status {
    RETURN_IF_ERROR(not_null(tokens, count, "tokens"));
    RETURN_IF_ERROR(not_null(cached, "cached"));
    ASSIGN_OR_RETURN(const int found, model.cached_prefix({tokens, count}));
    *cached = static_cast<size_t>(found);
    return {};
  });
}

moesaic_status moesaic_kv_save(moesaic_model* m, const int32_t* tokens, size_t count, void** data,
                               size_t* bytes) {
  return call(m, [&](Model& model) -> Status {
    RETURN_IF_ERROR(not_null(tokens, count, "tokens"));
    RETURN_IF_ERROR(check_out(data, bytes));
    ASSIGN_OR_RETURN(const std::string saved, model.save_kv({tokens, count}));
    char* copy = nullptr;
    RETURN_IF_ERROR(c_api::hand_out(saved.data(), saved.size(), &copy, bytes));
    *data = copy;
    return {};
  });
}

moesaic_status moesaic_kv_load(moesaic_model* m, const void* data, size_t bytes, int32_t** tokens,
                               size_t* count) {
  return call(m, [&](Model& model) -> Status {
    RETURN_IF_ERROR(not_null(data, "data"));
    RETURN_IF_ERROR(check_out(tokens, count));
    return c_api::hand_out(model.load_kv({static_cast<const char*>(data), bytes}), tokens, count);
  });
}

moesaic_status moesaic_kv_save_file(moesaic_model* m, const char* path, const int32_t* tokens, size_t count) {
  return call(m, [&](Model& model) -> Status {
    RETURN_IF_ERROR(not_null(path, "path"));
    RETURN_IF_ERROR(not_null(tokens, count, "tokens"));
    return model.save_kv_file(path, {tokens, count});
  });
}

moesaic_status moesaic_kv_load_file(moesaic_model* m, const char* path, int32_t** tokens, size_t* count) {
  return call(m, [&](Model& model) -> Status {
    RETURN_IF_ERROR(not_null(path, "path"));
    RETURN_IF_ERROR(check_out(tokens, count));
    return c_api::hand_out(model.load_kv_file(path), tokens, count);
  });
}

void moesaic_stats(const moesaic_model* m, moesaic_engine_stats* stats) {
  call(m, [&](const Model& model) -> Status {
    RETURN_IF_ERROR(not_null(stats, "stats"));
    const EngineStats s = model.stats();
    const moesaic_engine_stats now{.size = sizeof now,
                                   .running = s.running,
                                   .waiting = s.waiting,
                                   .pages_used = s.full.used,
                                   .pages_cached = s.full.cached,
                                   .pages_total = s.full.total,
                                   .window_used = s.window.used,
                                   .window_cached = s.window.cached,
                                   .window_total = s.window.total,
                                   .prompt_tokens = s.prompt_tokens,
                                   .generated_tokens = s.generated_tokens,
                                   .prefix_queried = s.prefix_queried,
                                   .prefix_hits = s.prefix_hits,
                                   .preemptions = s.preemptions,
                                   .drafts = s.speculation.drafts,
                                   .drafted_tokens = s.speculation.drafted,
                                   .accepted_tokens = s.speculation.accepted,
                                   .fetched_tokens = s.store.fetched_tokens,
                                   .host_bytes = s.store.host.bytes,
                                   .disk_bytes = s.store.disk.bytes};
    return write(now, stats, stats->size);
  });
}

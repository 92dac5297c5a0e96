#include "api/option_words.h"

#include <array>
#include <atomic>
#include <utility>

namespace moesaic {
namespace {

struct Words {
  std::string_view flag, field;
};

// Names that begin alike: the longer first.
constexpr std::array kWords = {
    Words{"--batch-invariant", "options.batch_invariant"},
    Words{"--cpu-pin", "options.cpu_pin"},
    Words{"--cpu-prefetch", "options.cpu_prefetch"},
    Words{"--ctx", "options.context"},
    Words{"--dense", "options.dense"},
    Words{"--device", "options.device"},
    Words{"--draft-tokens", "options.draft_tokens"},
    Words{"--experts", "options.experts"},
    Words{"--gpu-memory", "options.gpu_memory"},
    Words{"--kv-disk", "options.kv_disk"},
    Words{"--kv-dtype", "options.kv_dtype"},
    Words{"--kv-host", "options.kv_host"},
    Words{"--kv-tokens", "options.kv_tokens"},
    Words{"--lora", "options.lora"},
    Words{"--max-batch", "options.max_batch"},
    Words{"--max-rows", "options.max_rows"},
    Words{"--model", "path"},
    Words{"--moe-path", "options.moe_path"},
    Words{"--no-prefix-cache", "options.prefix_cache = false"},
    Words{"--no-tune", "options.tune = false"},
    Words{"--speculative", "options.speculative"},
    Words{"--threads", "options.threads"},
    Words{"--tp", "options.tp"},
    Words{"--tokenizer", "options.tokenizer"},
};

std::atomic<bool> flags = false;

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || c == '_' || c == '-'; }

// Not of a longer word.
size_t find_word(const std::string& text, std::string_view word, size_t from) {
  size_t at = text.find(word, from);
  while (at != std::string::npos && at + word.size() < text.size() && is_letter(text[at + word.size()]))
    at = text.find(word, at + 1);
  return at;
}

}  // namespace

void speak_of_flags() { flags = true; }

std::string option_words(std::string_view message) {
  std::string text(message);
  for (const Words& w : kWords) {
    const auto [from, to] = flags ? std::pair(w.field, w.flag) : std::pair(w.flag, w.field);
    if (from == "path") continue;
    for (size_t at = find_word(text, from, 0); at != std::string::npos;
         at = find_word(text, from, at + to.size()))
      text.replace(at, from.size(), to);
  }
  return text;
}

Status option_words(const Status& status) {
  return status.ok() ? status : Status(status.code(), option_words(status.message()));
}

}  // namespace moesaic

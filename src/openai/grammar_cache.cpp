#include "openai/grammar_cache.h"

#include <utility>

#include "base/error.h"
#include "grammar/compiled_grammar.h"

namespace moesaic::openai {
namespace {

constexpr size_t kStateBytes = 96;  // a compiled grammar's state with its edges, about

size_t bytes_of(const Result<AnswerGrammar>& result) {
  if (!result.ok()) return result.status().message().size();
  const auto& compiled = result.value().compiled();
  return compiled == nullptr ? 0 : compiled->key.size() + compiled->automaton.size() * kStateBytes;
}

Status cancelled() { return error(StatusCode::kCancelled, "the request was cancelled"); }

}  // namespace

// The entry, now the latest used; null where there is none.
GrammarCache::EntryPtr GrammarCache::touch(const std::string& key) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return nullptr;
  used_.splice(used_.begin(), used_, at->second);
  return *at->second;
}

void GrammarCache::forget(const std::string& key) {
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  bytes_ -= (*at->second)->bytes;
  used_.erase(at->second);
  entries_.erase(at);
}

// Those who wait for it compile it themselves.
void GrammarCache::give_up(const std::string& key) {
  const std::lock_guard lock(mutex_);
  forget(key);
  done_.notify_all();
}

void GrammarCache::keep(const EntryPtr& entry, Result<AnswerGrammar> result) {
  const std::lock_guard lock(mutex_);
  ++compiled_;
  entry->bytes = 2 * entry->key.size() + bytes_of(result);
  entry->result = std::move(result);
  if (entries_.contains(entry->key)) bytes_ += entry->bytes;
  while (!used_.empty() && (used_.size() > most_ || bytes_ > most_bytes_)) {
    const std::string last = used_.back()->key;
    if (!used_.back()->result) break;  // in flight, and soon the latest
    forget(last);
  }
  done_.notify_all();
}

Result<AnswerGrammar> GrammarCache::get(const AnswerFormat& format, const std::stop_token& cancel) {
  const std::string key = format.key();
  EntryPtr entry;
  {
    std::unique_lock lock(mutex_);
    const auto known = [&] { return (entry = touch(key)) == nullptr || entry->result; };
    if (!done_.wait(lock, cancel, known)) return cancelled();
    if (entry != nullptr) return *entry->result;
    entry = std::make_shared<Entry>(Entry{.key = key, .result = {}});
    used_.push_front(entry);
    entries_.emplace(key, used_.begin());
  }
  try {
    Result<AnswerGrammar> result = AnswerGrammar::compile(format, cancel);
    if (cancel.stop_requested())
      give_up(key);
    else
      keep(entry, result);
    return result;
  } catch (...) {
    give_up(key);
    throw;
  }
}

std::optional<Result<AnswerGrammar>> GrammarCache::find(const AnswerFormat& format) {
  const std::string key = format.key();
  const std::lock_guard lock(mutex_);
  const EntryPtr entry = touch(key);
  return entry == nullptr ? std::nullopt : entry->result;
}

size_t GrammarCache::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

uint64_t GrammarCache::compiled() const {
  const std::lock_guard lock(mutex_);
  return compiled_;
}

}  // namespace moesaic::openai

// Compiled answer formats, so that a schema that a client sends with every request is compiled once.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <unordered_map>

#include "moesaic/answer_grammar.h"

namespace moesaic::openai {

// The least recently used are evicted first. Errors are cached too, so that an expensive schema that is
// refused is compiled once. Thread-safe.
class GrammarCache {
 public:
  explicit GrammarCache(size_t most = 256, size_t most_bytes = 64 << 20)
      : most_(most), most_bytes_(most_bytes) {}

  // Compiles where it has to. Threads that ask for the same format meanwhile wait for the one that compiles.
  // cancel: ends this early, and is nobody else's error.
  Result<AnswerGrammar> get(const AnswerFormat& format, const std::stop_token& cancel = {});
  // Nothing where get() would have to compile or to wait.
  std::optional<Result<AnswerGrammar>> find(const AnswerFormat& format);

  size_t size() const;
  uint64_t compiled() const;  // so far

 private:
  struct Entry {
    std::string key;
    std::optional<Result<AnswerGrammar>> result;  // none while a thread compiles
    size_t bytes = 0;
  };
  using EntryPtr = std::shared_ptr<Entry>;

  EntryPtr touch(const std::string& key);
  void keep(const EntryPtr& entry, Result<AnswerGrammar> result);
  void forget(const std::string& key);
  void give_up(const std::string& key);

  size_t most_, most_bytes_;
  mutable std::mutex mutex_;
  std::condition_variable_any done_;
  std::list<EntryPtr> used_;  // the latest first
  std::unordered_map<std::string, std::list<EntryPtr>::iterator> entries_;
  size_t bytes_ = 0;
  uint64_t compiled_ = 0;
};

}  // namespace moesaic::openai

// For tests: a backend that writes what it is told to, in the place of a model.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "backend/idle_backend.h"
#include "text/tokenizer.h"

namespace moesaic::scripted {

inline constexpr std::string_view kSay = "say:";  // a script begins with this
// Stands between two tokens of a script that would else be one.
inline constexpr char kCut = '\x1f';

// The last message of a sequence that begins with kSay is the script: what follows kSay is what the model
// writes behind this message and <|start|>assistant. Special tokens stand in it by name. Behind the script's
// end comes <|endoftext|>, over and over. The backend has no state but its KV cache, which holds the tokens.
class ScriptedBackend final : public IdleBackend {
 public:
  explicit ScriptedBackend(Tokenizer tokenizer)
      : tokenizer_(std::move(tokenizer)),
        message_(*tokenizer_.special_id("<|message|>")),
        end_(*tokenizer_.special_id("<|end|>")),
        end_of_text_(*tokenizer_.special_id("<|endoftext|>")),
        answer_begins_(2 + static_cast<int>(tokenizer_.encode("assistant", false).size())) {}

  BackendCaps caps() const override { return {.name = "scripted"}; }
  double kv_token_bytes(const ModelConfig&) const override { return sizeof(int32_t); }
  Status alloc_kv(const KvLayout& layout) override {
    page_ = layout.page_tokens;
    tokens_.assign(static_cast<size_t>(layout.full_pages) * layout.page_tokens, 0);
    return {};
  }
  Status begin_step(const Batch& batch) override {
    batch_ = batch;
    return {};
  }
  // The script's next token is as good as certain in every row.
  void unembed(std::span<float> logits) override {
    std::fill(logits.begin(), logits.end(), -100.0f);
    const size_t vocab = logits.size() / std::max<size_t>(batch_.logit_rows.size(), 1);
    size_t wanted = 0;
    for (const Sequence& s : batch_.sequences) {
      for (int row = s.first_row; row < s.first_row + s.rows; ++row)
        tokens_[place(s, batch_.positions[row])] = batch_.tokens[row];
      for (; wanted < batch_.logit_rows.size() && batch_.logit_rows[wanted] < s.first_row + s.rows; ++wanted)
        logits[wanted * vocab + next(sequence(s, batch_.positions[batch_.logit_rows[wanted]]))] = 0;
    }
  }

  std::vector<int32_t> tokens_of(const std::string& script) const {
    std::vector<int32_t> tokens;
    for (size_t at = 0; at <= script.size();) {
      const size_t end = std::min(script.find(kCut, at), script.size());
      const std::vector<int32_t> more = tokenizer_.encode(script.substr(at, end - at), true);
      tokens.insert(tokens.end(), more.begin(), more.end());
      at = end + 1;
    }
    return tokens;
  }

 private:
  size_t place(const Sequence& s, int position) const {
    return static_cast<size_t>(s.full_pages[position / page_]) * page_ + position % page_;
  }
  std::vector<int32_t> sequence(const Sequence& s, int last) const {
    std::vector<int32_t> tokens;
    for (int position = 0; position <= last; ++position) tokens.push_back(tokens_[place(s, position)]);
    return tokens;
  }
  int32_t next(const std::vector<int32_t>& tokens) {
    for (auto end = tokens.end(); end != tokens.begin();) {
      const auto begin = std::find(std::make_reverse_iterator(end), tokens.rend(), message_).base();
      if (begin == tokens.begin()) break;
      const auto until = std::find(begin, tokens.end(), end_);
      const std::string text = tokenizer_.decode({begin, until});
      if (text.starts_with(kSay)) {
        const std::vector<int32_t>& script = script_of(text.substr(kSay.size()));
        const auto written = static_cast<size_t>(tokens.end() - until - answer_begins_);
        return written < script.size() ? script[written] : end_of_text_;
      }
      end = begin - 1;
    }
    return end_of_text_;
  }
  const std::vector<int32_t>& script_of(const std::string& text) {
    const auto known = scripts_.find(text);
    return known != scripts_.end() ? known->second : scripts_.emplace(text, tokens_of(text)).first->second;
  }

  Tokenizer tokenizer_;
  int32_t message_, end_, end_of_text_;
  int answer_begins_;  // tokens from a message's <|end|> to the answer's first one, the former included
  int page_ = 0;
  Batch batch_;
  std::vector<int32_t> tokens_;  // by page
  std::map<std::string, std::vector<int32_t>> scripts_;
};

}  // namespace moesaic::scripted

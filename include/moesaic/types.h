// The types of a generation: the caller's request, and the answer's parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

namespace moesaic {

// Bounds the work of making tokens.
struct TokenLimit {
  size_t most = SIZE_MAX;  // a longer text gives its first most + 1 tokens, and the others are not made
  std::stop_token cancel = {};

  bool reached(size_t tokens) const { return tokens > most || cancel.stop_requested(); }
};

inline constexpr int32_t kNoToken = -1;  // for SamplingParams::stop_tokens: the model's own do not count

struct SamplingParams {
  double temperature = 1.0;  // 0: greedy
  double top_p = 1.0;        // keep the smallest set of tokens whose probability reaches this; (0, 1]
  int top_k = 0;             // keep the k likeliest; 0: all
  double min_p = 0.0;        // keep tokens at least this likely relative to the likeliest; [0, 1]
  double repetition_penalty =
      1.0;  // divides positive and multiplies negative logits of tokens seen (prompt included)
  double presence_penalty = 0.0;   // subtracted once for a token generated before
  double frequency_penalty = 0.0;  // subtracted for each time a token was generated before
  int penalty_window = 0;          // the penalties look at so many last tokens, prompt included; 0: at all
  std::map<int32_t, float> logit_bias = {};
  uint64_t seed = 0;   // the same seed, prompt and parameters give the same tokens
  int max_tokens = 0;  // 0: as many as the context allows
  // End the text and are not part of it. The model's own do so too where none are given, in a chat without
  // kNoToken, and where a grammar is.
  std::vector<int32_t> stop_tokens = {};
  std::vector<std::string> stop_strings = {};  // end the text and are not part of it
  int top_logprobs = -1;  // -1: none; n: the chosen token's log-probability and the n likeliest
  // Until so many tokens are generated stop tokens are not sampled, unless a grammar allows nothing else, and
  // stop strings do not count.
  int min_tokens = 0;
  bool include_stop = false;  // the stop string, or the text of a stop token that is not special, is kept
  bool skip_special = false;  // plain text: special tokens are no text; otherwise they appear by name
  std::vector<int32_t> allowed_tokens = {};          // no others are sampled; empty: all may be
  std::vector<std::vector<int32_t>> bad_words = {};  // token sequences of which the last is not sampled
  // -1: none; n: of each prompt token, its log-probability and the n likeliest tokens of its place, passed to
  // Callbacks::on_prompt_token. The whole prompt is then computed, 64 tokens a step at most.
  int prompt_logprobs = -1;
  // The most tokens of reasoning in a harmony answer, all its analysis messages together; -1: as many as
  // the model wants. Where it goes on to think, <|end|><|start|>assistant<|channel|>final<|message|> is said
  // in its place, and the model goes on from there; where a grammar takes nothing but a call, what leads to
  // the call. These tokens are the answer's like all others, except that allowed_tokens, bad_words and biases
  // do not reach them. 0: the answer begins with them. A character that is begun is completed.
  int reasoning_budget = -1;
};

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

struct TokenLogprobs {
  double logprob = 0;                           // the chosen token's, before temperature and filters
  std::vector<std::pair<int32_t, double>> top;  // likeliest first
  bool operator==(const TokenLogprobs&) const = default;
};

struct SampledToken {
  int32_t token = 0;
  TokenLogprobs logprobs;  // filled when SamplingParams::top_logprobs >= 0
  bool is_stop = false;    // one of SamplingParams::stop_tokens: it ends the text and is not part of it
};

// A part of an answer's text. A tool call is one part, once it is complete, and empty only where the call is.
// Messages of one channel are paragraphs: who shows them together puts a blank line between. Whatever ends an
// answer early (max_tokens, the context, cancelling) adds nothing: a header that has not ended, a call that
// is not complete, bytes of an unfinished character and text that may be the beginning of a stop string are
// left out, so that the parts are a beginning of those that the whole answer would have had. One thing may be
// more: a channel's name at the beginning of a message is text, unless <|message|> follows it. A stop token
// of the caller's leaves out only such a header or call.
struct TextPiece {
  std::string channel;    // chat: analysis, commentary or final; plain text: empty
  std::string recipient;  // chat: whom a tool call is for, such as functions.get_weather; else empty
  std::string text;
  bool begins = false;  // chat: the first part of a message
  // A call whose header is the one that models write most: commentary to=NAME <|constrain|>json.
  bool recipient_last = false;
};

}  // namespace moesaic

// Byte-level BPE tokenizers: text to token ids and back. Reads tokenizer.json (Hugging Face), .tiktoken rank
// files with the special tokens of o200k_harmony, and the vocabularies of GGUF files.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "moesaic/status.h"
#include "moesaic/types.h"
#include "text/bpe.h"
#include "text/name_set.h"
#include "text/pretokenizer.h"
#include "text/vocabulary.h"

namespace moesaic {

inline constexpr size_t kMostTokenizerBytes = 256 << 20;  // the largest file

// Immutable once made: every method may be called from several threads. Move-only.
class Tokenizer {
 public:
  // Refuses what it would not reproduce: models other than byte-level BPE, normalisers, added tokens that
  // strip spaces or stand alone.
  static Result<Tokenizer> from_hf_json(const std::string& path);
  static Result<Tokenizer> from_hf_json_text(std::string_view json, const std::string& name);
  // One base64 token and its rank a line; 199,998 and up are o200k_harmony's special tokens.
  static Result<Tokenizer> from_tiktoken(const std::string& path);
  static Result<Tokenizer> from_tiktoken_text(std::string_view lines, const std::string& name);
  // tokens and merges ("left right") in GPT-2's byte spelling. token_types: 3 (control) is special, 4 (user
  // defined) added text; empty means all are ordinary. bos and eos: ids, or negative where the file names
  // none. pre: GGUF's name of the split pattern; another one than o200k's is an error, none stands for it.
  static Result<Tokenizer> from_gguf(const std::vector<std::string>& tokens,
                                     const std::vector<std::string>& merges,
                                     const std::vector<int32_t>& token_types, int32_t bos, int32_t eos,
                                     std::string_view pre = "gpt-4o");

  // Text that is not valid UTF-8 is encoded as if each ill-formed sequence were U+FFFD. The names of
  // added tokens become those tokens; those of special ones only with parse_special, without it they are text
  // like any other. Texts of 2 GiB and more, texts on which the split pattern exceeds its limits, and being
  // cancelled are errors.
  Result<std::vector<int32_t>> try_encode(std::string_view text, bool parse_special,
                                          const TokenLimit& limit = {}) const;
  // The same where there is nobody to hand an error to: a stretch that cannot be split is joined as one
  // piece.
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const;

  // The bytes of the tokens one after the other, added tokens by name; not always valid UTF-8. Ids out of
  // range add nothing.
  std::string decode(std::span<const int32_t> tokens) const;
  // Valid as long as the tokenizer is.
  std::string_view token_bytes(int32_t id) const { return vocabulary_.bytes(id); }
  bool is_special(int32_t id) const { return vocabulary_.is_special(id); }
  std::optional<int32_t> special_id(std::string_view name) const { return vocabulary_.special_id(name); }
  int vocab_size() const { return vocabulary_.size(); }
  // <|return|>, <|call|> and <|endoftext|>, as far as the vocabulary has them. What else a file calls its end
  // of sequence ends no turn (some say <|end|>, which ends a message); it counts only in a vocabulary without
  // these three, and if it is none of harmony's tokens.
  std::vector<int32_t> stop_tokens() const;

 private:
  // ignore_merges: a piece that is a token as a whole is that token, whatever the merges give.
  Tokenizer(Vocabulary vocabulary, Bpe bpe, Pretokenizer pretokenizer, bool ignore_merges, int32_t eos = -1);
  Status encode_named(const NameSet& names, std::string_view text, bool parse_special,
                      const TokenLimit& limit, std::vector<int32_t>& tokens) const;
  Status encode_plain(std::string_view text, const TokenLimit& limit, std::vector<int32_t>& tokens) const;
  void encode_piece(std::string_view piece, const TokenLimit& limit, std::vector<int32_t>& tokens) const;

  Vocabulary vocabulary_;
  NameSet names_, late_names_;  // the added tokens'
  Bpe bpe_;
  Pretokenizer pretokenizer_;
  bool ignore_merges_;
  int32_t eos_;
};

}  // namespace moesaic

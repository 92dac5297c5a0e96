// Writes a model in either published form. MXFP4 experts go through bit for bit, whatever the source's nibble
// order or gate/up arrangement; other experts are quantised when asked.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"

namespace moesaic {

// kKeep: a folder holds MXFP4 if every layer has it, else BF16; GGUF has them as they are.
enum class ExpertsOut { kKeep, kMxfp4 };
struct WriteOptions {
  ExpertsOut experts = ExpertsOut::kKeep;
  // The format of dense matrices. Nothing: as they are where the form has that, else BF16.
  std::optional<Format> dense;
  bool overwrite = false;
  std::function<void(int done, int total)> progress;  // tensors
};

// The roundings that either writer makes without having been asked to, a line each for people: tensors that
// were converted when the source was opened, and those that the form has only in BF16.
std::vector<std::string> roundings(const Checkpoint& source, const WriteOptions& options, bool gguf);
// Remarks tell the user, a line each, what else to know about the result: that only this project reads it, or
// that the chat template is not the source's.
std::vector<std::string> remarks(const Checkpoint& source, const WriteOptions& options, bool gguf);
// The format of a folder's dense matrices if only this project reads it (FormatInfo::only_ours).
std::optional<Format> own_format(const Checkpoint& source, const WriteOptions& options);

// The unfinished files that a writer leaves behind if the program is ended while it works.
std::vector<std::string> unfinished_gguf(const std::string& path);
std::vector<std::string> unfinished_safetensors(const std::string& folder);

// Both let the source's mapped pages go behind each layer that is written.

// A folder with config.json, model.safetensors, tokenizer.json (the source's, or written from GGUF's
// metadata) and the files of chat_files.h. Q8_0 is not a safetensors type: asking for it is an error. MXFP8,
// which only this project reads, is a tensor X.weight of F8_E4M3 [rows, cols] and X.weight_scale of U8 (E8M0)
// [rows, cols / 32], for the embedding, lm_head and the attention projections.
Status write_safetensors(const Checkpoint& source, const std::string& folder, const WriteOptions& options);

// A GGUF v3 file as llama.cpp reads it, with tokenizer and chat template in its metadata.
Status write_gguf(const Checkpoint& source, const std::string& path, const WriteOptions& options);

}  // namespace moesaic

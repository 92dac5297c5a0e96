// Opens every published form of a gpt-oss checkpoint as one set of views: Hugging Face folders (config.json
// and .safetensors, one or many), OpenAI's `original` folders, GGUF v3 files, and `dummy:` models of the true
// sizes. Files are mapped, not read; nothing is copied where a view can express the layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

struct TensorInfo {
  std::string name;
  std::string dtype;           // as the file names it
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes = 0;
};

// The place of the tokenizer: a tokenizer.json beside the weights, or GGUF's metadata. Neither: the source
// has none.
struct TokenizerSource {
  std::string json_path;
  std::vector<std::string> tokens, merges;  // GPT-2's byte-to-unicode spelling
  std::vector<int32_t> token_types;
  std::string pre;                 // GGUF's name of the split pattern; empty where it names none
  std::string chat_template = {};  // GGUF's; a folder's is beside its tokenizer.json (chat_files.h)
  int bos = -1, eos = -1;

  bool any() const { return !json_path.empty() || !tokens.empty(); }
};

struct Checkpoint {
  ModelConfig config;
  ModelWeights weights;
  std::vector<TensorInfo> tensors;
  TokenizerSource tokenizer;
  std::string kind;       // "safetensors", "original", "gguf" or "dummy"
  std::string path = {};  // where its name led; empty: nothing on disk
  // A line for people for each format that is converted: "Q5_0 becomes Q8_0 (exact): 96 tensors, ...".
  std::vector<std::string> conversions = {};
};

// path: what find_model() takes (a path, or a name in one of the model stores), or
// "dummy:gpt-oss-20b[,layers=N][,experts=N][,vocab=N][,dense=bf16|q8_0|mxfp8][,zipf=S]". A file that is
// damaged, truncated or of another model is an error of one line that names file and tensor. The bytes of
// tensors are not looked at here; a backend does that as it repacks them.
Result<Checkpoint> open_checkpoint(const std::string& path);

}  // namespace moesaic

// GGUF files of a model in every type and layout that publishers use, for tests: true metadata and names, and
// encoders of ggml's block types (simple ones: a scale from the largest value, no search).
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

enum class GgufLayout {
  kGgml,         // llama.cpp's: gate and up apart
  kGgmlFused,    // by its converter's --fuse-gate-up-exps: gate's rows, then up's
  kOllama,       // Ollama's present converter: architecture "gptoss", else as llama.cpp
  kOllamaFirst,  // its first one, from Hugging Face folders: attn_out, ffn_norm, ffn_gate_up_exps
  kOllamaFused,  // the same from OpenAI's `original` files: attn_qkv as well
};

// Types by ggml's names, "MXFP4 (type 4)", or "(unknown)", which no reader takes: zeros. Those of blocks
// larger than 64 are not encoded: blocks that ggml made of other numbers (quantised_goldens()) stand for
// them.
struct GgufTypes {
  std::string dense = "Q8_0", gate = "MXFP4", up = "MXFP4", down = "MXFP4";
  std::string extra = {};    // the name of a tensor that the model does not have; empty: none
  std::string without = {};  // the name of a tensor that is left out; empty: none
  // Dense matrices that have another type: "token_embd", "output", "attn_q", "attn_k", "attn_v",
  // "attn_output".
  std::map<std::string, std::string> others = {};

  const std::string& dense_of(const std::string& name) const {
    const auto other = others.find(name);
    return other != others.end() ? other->second : dense;
  }
};

// Normal numbers, and what ggml's quantiser stores of them in each type: tests/golden/gguf/quantised.bin.
struct QuantisedGoldens {
  std::vector<float> numbers;
  std::vector<std::pair<std::string, std::string>> types;  // name, blocks
};
const QuantisedGoldens& quantised_goldens();

// The file's bytes. parts: 1, or the number of files of a split model, of which this is `part`. tokenizer: as
// gguf_tokenizer() gives it, or null. Of Ollama's files it names GPT-2's pre-tokenizer and <|endoftext|>, as
// those do.
std::string gguf_file(const ModelConfig& config, const ModelWeights& weights, GgufLayout layout,
                      const GgufTypes& types, int parts = 1, int part = 0,
                      const TokenizerSource* tokenizer = nullptr);

}  // namespace moesaic

// GGUF files of a model in every type and layout that publishers use, for tests: true metadata and names, and
// encoders of ggml's block types (simple ones: a scale from the largest value, no search).
#pragma once

#include <span>
#include <string>

#include "checkpoint/checkpoint.h"
#include "core/model_config.h"
#include "core/weights.h"

namespace moesaic {

enum class GgufLayout {
  kGgml,         // llama.cpp's: gate and up apart
  kOllama,       // Ollama's present converter: architecture "gptoss", else as llama.cpp
  kOllamaFirst,  // its first one, from Hugging Face folders: attn_out, ffn_norm, ffn_gate_up_exps
  kOllamaFused,  // the same from OpenAI's `original` files: attn_qkv as well
};

// Types by ggml's names: "F32", "F16", "BF16", "Q8_0", "MXFP4", "MXFP4 (type 4)", "NVFP4", "Q4_0" ... "Q6_K",
// "IQ4_NL", or one that no reader takes, such as "Q2_K": zeros of the right size.
struct GgufTypes {
  std::string dense = "Q8_0", gate = "MXFP4", up = "MXFP4", down = "MXFP4";
  std::string extra = {};  // the name of a tensor that the model does not have; empty: none
};

// The file's bytes. parts: 1, or the number of files of a split model, of which this is `part`. tokenizer: as
// gguf_tokenizer() gives it, or null. Of Ollama's files it names GPT-2's pre-tokenizer and <|endoftext|>, as
// those do.
std::string gguf_file(const ModelConfig& config, const ModelWeights& weights, GgufLayout layout,
                      const GgufTypes& types, int parts = 1, int part = 0,
                      const TokenizerSource* tokenizer = nullptr);

}  // namespace moesaic

// ModelConfig from the three places that describe a model.
#pragma once

#include "checkpoint/gguf.h"
#include "checkpoint/json.h"
#include "core/format.h"
#include "core/model_config.h"

namespace moesaic {

// An error for a Hugging Face config.json of another model, or of weights that another program has quantised.
Status check_hf_kind(const Json& json, const std::string& name);

// quant_method of the folders that only this project reads, by the format of their dense matrices.
std::string own_quant_method(const FormatInfo& dense);

Result<ModelConfig> config_from_hf(const Json& json, const std::string& name);  // Hugging Face config.json
Result<ModelConfig> config_from_original(const Json& json, const std::string& name);  // OpenAI's config.json
Result<ModelConfig> config_from_gguf(const GgufFile& file, const std::string& name);

}  // namespace moesaic

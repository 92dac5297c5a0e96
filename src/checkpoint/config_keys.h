// Settles each key that a config.json can have: a key that changes the result is honoured or refused by name,
// whatever the key.
#pragma once

#include <span>
#include <string>

#include "checkpoint/json.h"

namespace moesaic {

// A key that may have only these values, or null: a list in JSON. What the model always does.
struct FixedKey {
  const char *key, *values;
};

// Fails with the first key whose value is not among its values.
Status check_fixed(const Json& json, std::span<const FixedKey> fixed, const std::string& name);

// The same, and fails with the first key that is neither fixed nor `read` by the caller nor known to be
// harmless (attributes of transformers' PretrainedConfig and GenerationConfig, and what names begin with an
// underscore), unless it asks for nothing (asks_for_nothing()).
Status check_keys(const Json& json, std::span<const char* const> read, std::span<const FixedKey> fixed,
                  const std::string& name);

// The tables of gpt_oss's config.json and of OpenAI's own.
Status check_hf_keys(const Json& json, const std::string& name);
Status check_original_keys(const Json& json, const std::string& name);
// Checks the keys of an EAGLE3 head's layer. A draft never changes an answer: only keys that are known to
// make it useless are refused.
Status check_eagle3_keys(const Json& json, const std::string& name);
// The same of its flags (eagle_config, and what of it stands beside).
Status check_eagle3_flags(const Json& json, const std::string& name);

}  // namespace moesaic

// The names of GGUF files tell the parts of a split model, and the quantisation.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

// The parts of a split GGUF model, by the name of any of them: "a-00002-of-00003.gguf" gives three names.
// Another name: itself.
std::vector<std::string> gguf_parts(const std::string& path);

// The GGUF models among the names of files, each by its first part, sorted. The other GGUF files that stand
// beside llama.cpp's models (mmproj, imatrix) do not count.
std::vector<std::string> gguf_models(std::span<const std::string> names);

// True for the GGUF file of a draft head, as llama.cpp names them: eagle3-*, dflash-*, dspark-* and mtp-*. A
// folder of such a name is none.
bool is_head(const std::string& path);
// The models that are meant where nobody names a file: not the draft heads beside them. All of them where
// there is nothing else.
std::vector<std::string> without_heads(std::vector<std::string> models);

// The quantisation, as llama.cpp reads it out of a name: MXFP4 of "gpt-oss-20b-mxfp4-00001-of-00002.gguf".
// Empty where the name has none.
std::string gguf_tag(const std::string& path);

// The models that a tag means, in any case of letters: those whose quantisation it is, else those with the
// tag as a word in their name or folder. A plain one is preferred to unsloth's "UD-" one.
std::vector<std::string> with_gguf_tag(std::span<const std::string> models, std::string_view tag);

}  // namespace moesaic

// encrypted_content of reasoning items: the reasoning's text as an opaque word that a client sends back.
// Nothing is stored, so that any server of any version of the same form reads it. It is not secret (the
// item's content says the same); its checksum finds what was cut or changed on the way.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace moesaic::openai {

std::string seal_reasoning(std::string_view text);
// Nothing for what seal_reasoning did not make, or what is damaged.
std::optional<std::string> unseal_reasoning(std::string_view sealed);

}  // namespace moesaic::openai

// The page of the KV cache. Tiles that are compiled at run time read this header, too: it includes nothing.
#pragma once

namespace moesaic {

inline constexpr int kPageTokens = 32;

}  // namespace moesaic

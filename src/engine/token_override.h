// Tokens that a request says whatever is sampled.
#pragma once

#include <cstdint>

namespace moesaic {

// Of one request, whose tokens it follows. What it does may depend on these tokens alone, so that a request
// gives the same ones whatever runs beside it.
class TokenOverride {
 public:
  virtual ~TokenOverride() = default;

  // What is to be said where this token was sampled.
  virtual int32_t instead_of(int32_t sampled) = 0;
  // Each token that is said, in order: the sampled one after all, where a grammar does not take the other.
  virtual void said(int32_t token) = 0;
  // So many tokens from here on are said as they are sampled, at least, whichever they are: a device may
  // sample these ahead of the host.
  virtual int untouched() const = 0;
};

}  // namespace moesaic

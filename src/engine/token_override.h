// An override decides which tokens a request says, whatever is sampled.
#pragma once

#include <cstdint>

namespace moesaic {

// It follows the tokens of one request, and may depend on these tokens alone, so that a request gives the
// same ones whatever runs beside it.
class TokenOverride {
 public:
  virtual ~TokenOverride() = default;

  // Returns the token to say if this one was sampled.
  virtual int32_t instead_of(int32_t sampled) = 0;
  // Called with each token that is said, in order. It is the sampled one if a grammar does not take the
  // other.
  virtual void said(int32_t token) = 0;
  // So many tokens from here on are said as they are sampled, at least, whichever they are: a device may
  // sample these ahead of the host.
  virtual int untouched() const = 0;
};

}  // namespace moesaic

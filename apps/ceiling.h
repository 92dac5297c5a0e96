// The least time that an operation's bytes and operations need on a device.
#pragma once

#include <algorithm>
#include <string_view>

#include "backend/backend.h"

namespace moesaic::app {

struct Ceiling {
  double bytes_per_second = 0,
         flops_per_second = 0;  // 0 operations: they are not stated, and bytes alone count
  double seconds(double bytes, double flops) const {
    return std::max(bytes / bytes_per_second, flops_per_second > 0 ? flops / flops_per_second : 0);
  }
};

// By an operation's name: the products of experts may be on 8-bit values, and have a peak of their own.
inline Ceiling ceiling_of(std::string_view op, double bytes_per_second, const BackendCaps& caps) {
  return {bytes_per_second, op == "moe" ? caps.experts_flops : caps.peak_flops};
}

}  // namespace moesaic::app

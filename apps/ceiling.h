// The least time that an operation's bytes and operations need on a device.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "backend/profiling.h"

namespace moesaic::app {

struct Ceiling {
  double bytes_per_second = 0,
         flops_per_second = 0;  // 0 operations: they are not stated, and bytes alone count
  double seconds(double bytes, double flops) const {
    return std::max(bytes / bytes_per_second, flops_per_second > 0 ? flops / flops_per_second : 0);
  }
};

// "989 TFLOP/s", "0.42 TFLOP/s".
inline std::string rate_words(double flops_per_second) {
  const double tera = flops_per_second / 1e12;
  return fmt::format("{:.{}f} TFLOP/s", tera, tera < 10 ? 2 : 0);
}

// By an operation's name: the products of experts may be on 8-bit values, and have a peak of their own.
inline Ceiling ceiling_of(std::string_view op, double bytes_per_second, const BackendCaps& caps) {
  return {bytes_per_second, op == "moe" ? caps.experts_flops : caps.peak_flops};
}

// The least time of some ops, one after the other; by_flops: operations bound some of them, not bytes alone.
struct Roofline {
  double seconds = 0;
  bool by_flops = false;
};
inline Roofline roofline_of(const std::vector<OpProfile>& ops, double bytes_per_second,
                            const BackendCaps& caps) {
  Roofline sum;
  for (const OpProfile& op : ops) {
    const Ceiling ceiling = ceiling_of(op.op, bytes_per_second, caps);
    const double least = ceiling.seconds(op.bytes, op.flops);
    sum.seconds += least;
    sum.by_flops = sum.by_flops || least > ceiling.seconds(op.bytes, 0);
  }
  return sum;
}

}  // namespace moesaic::app

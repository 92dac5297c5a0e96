#include "backend/cuda/runtime/peak_flops.h"

#include <algorithm>
#include <iterator>

namespace moesaic::cuda {

double peak_flops(int major, int minor, std::string_view name, int multiprocessors, double clock) {
  struct Rate {
    int capability, flops_per_clock;
    bool less_on_geforce = false;
  };
  constexpr Rate kRates[] = {{80, 2048},  {86, 1024, true}, {87, 2048},  {89, 1024, true},  {90, 4096},
                             {100, 8192}, {103, 8192},      {110, 8192}, {120, 1024, true}, {121, 1024}};
  constexpr double kHopperClock = 1.83e9;
  const auto* const rate = std::ranges::find(kRates, 10 * major + minor, &Rate::capability);
  if (rate == std::end(kRates)) return 0;
  const bool geforce = name.find("GeForce") != std::string_view::npos;
  const double per_clock = rate->flops_per_clock / (geforce && rate->less_on_geforce ? 2.0 : 1.0);
  return multiprocessors * per_clock * (major == 9 ? kHopperClock : clock);
}

}  // namespace moesaic::cuda

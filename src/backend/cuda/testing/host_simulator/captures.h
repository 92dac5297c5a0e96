// The captures of cuda_runtime.cc: one at a time, of all streams, and graphs that own user objects; and what
// its device refuses.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <new>
#include <utility>
#include <vector>

namespace moesaic::cuda::on_host {

struct Captures {
  unsigned long long id = 0;  // the capture in progress and its graph; 0: none
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::vector<std::pair<cudaHostFn_t, void*>> made;  // user objects
  std::map<unsigned long long, std::vector<size_t>> of_graph;

  // These say which of the runtime's calls about graphs fail, and count executables and their launches.
  bool no_begin = false, no_end = false;
  int failing_instantiations = 0;  // the next ones fail
  int executables = 0, launches = 0;
  // So many allocations of memory, the device's and page-locked, before all fail; below 0: none does.
  int allocations_left = -1;
  int cooperative_left = -1;   // so many cooperative launches before one that fails; below 0: none does
  int launches_left = -1;      // so many launches before one that throws; below 0: none does
  int copies_left = -1;        // so many asynchronous copies before one that fails; below 0: none does
  bool refuses_locks = false;  // memory that is there cannot be page-locked
  bool hangs = false;          // streams never end what they have

  bool refused = false;  // since somebody set it to false
  bool may_allocate() {
    if (allocations_left != 0) return --allocations_left, true;
    return refused = true, false;
  }

  bool may_launch_together() { return cooperative_left < 0 || cooperative_left-- > 0; }
  bool may_copy() { return copies_left < 0 || copies_left-- > 0; }
  void begin_launch() {
    if (launches_left >= 0 && launches_left-- == 0) throw std::bad_alloc();
  }

  // The graph is gone, with its executables.
  void destroy(unsigned long long graph) {
    for (const size_t object : of_graph[graph]) made[object].first(made[object].second);
    of_graph.erase(graph);
  }
};
Captures& captures();

}  // namespace moesaic::cuda::on_host

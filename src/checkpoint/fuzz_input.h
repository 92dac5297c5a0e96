// Parts that the fuzz targets of the readers share.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "checkpoint/tensor_map.h"
#include "core/weights.h"

namespace moesaic {

// The input as a mapped file, which is what the readers take; null when it is empty.
inline std::shared_ptr<const MappedFile> fuzz_file(const uint8_t* data, size_t size) {
  const int fd = memfd_create("fuzz", MFD_CLOEXEC);
  MOESAIC_CHECK(fd >= 0 && write(fd, data, size) == static_cast<ssize_t>(size));
  auto file = MappedFile::open("/proc/self/fd/" + std::to_string(fd));
  close(fd);
  return file.ok() ? std::move(file).value() : nullptr;
}

// Every accepted tensor lies inside its file.
inline void check_extents(const TensorMap& map, const MappedFile& file) {
  const std::byte *begin = file.bytes().data(), *end = begin + file.bytes().size();
  for (const auto& [name, t] : map.tensors)
    MOESAIC_CHECK(t.data.data() >= begin && t.data.data() + t.data.size() <= end);
}

// Reads the first and the last row.
inline void touch(const MatrixView& m) {
  std::vector<float> row(static_cast<size_t>(m.cols));
  read_row(m, 0, row), read_row(m, m.rows - 1, row);
}
inline void touch(const ExpertsView& e) { touch(e.at(0)), touch(e.at(e.count - 1)); }
inline void touch(const ModelWeights& w) {
  touch(w.embed), touch(w.final_norm), touch(w.head);
  for (size_t i = 0; i < w.layers.size(); ++i) {
    const auto layer = layer_of(w, static_cast<int>(i));
    MOESAIC_CHECK(layer.ok());
    const LayerWeights& l = layer->weights;
    for (const MatrixView* m :
         {&l.attn_norm, &l.q, &l.k, &l.v, &l.q_bias, &l.k_bias, &l.v_bias, &l.o, &l.o_bias, &l.sinks,
          &l.mlp_norm, &l.router, &l.router_bias, &l.gate_bias, &l.up_bias, &l.down_bias})
      touch(*m);
    touch(l.gate), touch(l.up), touch(l.down);
  }
  w.prefetch(-1), w.prefetch(0);
  w.release(-1), w.release(0);
  w.evict(-1), w.evict(0);
}

}  // namespace moesaic

// The loaded model: weights in the orders that the kernels stream.
#pragma once

#include <array>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/layout/matrix.h"
#include "backend/cuda/layout/of_ranks.h"
#include "backend/cuda/layout/quad_layout.h"
#include "backend/cuda/layout/slab_layout.h"

namespace moesaic::cuda {

// A part that a layer does not have is empty.
struct Layer {
  LayerShape shape;
  DeviceBuffer attn_norm, mlp_norm, qkv_bias, o_bias, sinks, router, router_bias;
  DeviceBuffer gate_bias, up_bias, down_bias;
  Matrix qkv, o, gate_up, down;
  float attn_factor = 1, mlp_factor = 1;  // the normed activations in F16 are multiplied by them
  DeviceBuffer k, v;                      // alloc_kv's: pages of kv_page.h
  // A caller's cache (backend/step_operator.h) instead.
  void* given_k = nullptr;
  void* given_v = nullptr;
  void* k_pages() const { return given_k != nullptr ? given_k : k.as<void>(); }
  void* v_pages() const { return given_v != nullptr ? given_v : v.as<void>(); }
  bool fp8 = false;  // the pages' format
  // The experts of gpt-oss's own sizes, instead of the matrices' data, and what the thread
  // blocks of their kernel for few rows hand each other within a launch.
  DeviceBuffer fc1_slabs, fc2_slabs, slab_hidden;
  OfRanks<void> slab_hidden_of;  // each rank's
  // This rank's columns of the experts' first product, and its rows of their second and of o
  // (core/rank_share.h). One rank has all of them.
  Range h_columns, out_rows;
};

inline constexpr int kSlabRows = 8;  // most rows of the kernel for few rows (ExpertsDecode)

// The layouts of the model's weights in memory, which decide the kernels of its products.
struct Paths {
  bool slabs = false;             // the experts are slabs: they have gpt-oss's own sizes
  bool wgmma = false;             // the device has it, for many rows of slabs
  bool fp8 = false;               // many rows of experts are taken in E4M3
  bool w4a8 = false;              // the experts are Kind::kMxfp4Quads
  int parts = 1;                  // MXFP8 values of an activation that meets quads
  bool dense_mx = false;          // dense matrices of MXFP4 or MXFP8 are quads, too
  slabs::SlabLayout slab_layout;  // the device's, whether or not there are slabs
};

// Room for the experts of layers that are the host's, while a step has them here (ops/expert_stream.h):
// layers that have nothing else, and the place where experts arrive.
struct StreamRoom {
  std::array<Layer, 2> layers;
  int count = 0;  // number of those layers; 0: nothing is streamed
  DeviceBuffer arrivals;
  size_t arrival_bytes = 0;  // bytes of each of its kArrivals pieces
};
inline constexpr int kArrivals = 3;

struct LoadedModel : Paths {
  ModelConfig config;
  RopeTable rope;
  std::vector<Layer> layers;
  // The layers from this one on have no experts here: the host has them.
  int host_from = 0;
  bool on_host(int layer) const { return layer >= host_from; }
  StreamRoom stream;
  // The hot experts of each layer that is the host's, so many: layers that have nothing else.
  std::vector<Layer> hot;
  int hot_experts = 0;
  // Where a layer's experts are, or are while a step has them.
  const Layer& experts_at(int layer) const {
    if (!on_host(layer) || (stream.count == 0 && hot.empty())) return layers[layer];
    return stream.count > 0 ? stream.layers[(layer - host_from) % stream.count] : hot[layer - host_from];
  }
  Table embed;
  Matrix head;
  DeviceBuffer final_norm, inverse_frequency;
  float final_factor = 1;
  Range head_rows;           // rows of lm_head, as Layer::out_rows
  bool emulated = false;     // on a device that has not the instruction
  DeviceBuffer slab_scales;  // [layers, kSlabRows]: what undoes the layer's mlp_factor
};

}  // namespace moesaic::cuda

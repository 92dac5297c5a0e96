// Shapes that no kernel is compiled for are an error before anything is launched: no device is needed.
#include "backend/cuda/ops/linear.h"

#include <gtest/gtest.h>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm90/dense_decode.h"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"

namespace moesaic::cuda {
namespace {

Matrix matrix(Kind kind) {
  Matrix w;
  w.kind = kind, w.rows = 64, w.cols = 2880, w.weight_tiles = 2;
  return w;
}
void expect_error(const Status& status, const char* op, const char* format) {
  EXPECT_FALSE(status.ok());
  for (const std::string word : {op, format, "64 x 2880"})
    EXPECT_NE(status.message().find(word), std::string::npos) << status.message();
}

TEST(Linear, KindsWithoutAKernelAreErrors) {
  const Activations x{.tokens = 3};
  for (const Kind kind : {Kind::kMxfp4Quads, Kind::kMxfp8Quads}) {
    const Matrix w = matrix(kind);
    const char* format = kind == Kind::kMxfp4Quads ? "MXFP4 weights in quads" : "MXFP8 weights in quads";
    expect_error(gemm(w, x, Store{}, nullptr), "gemm", format);
    expect_error(gemm(w, x, SwiGlu{}, nullptr), "gemm", format);
    expect_error(gemm(w, x, Qkv{}, nullptr), "gemm", format);
    expect_error(sm90::dense_decode(w, x, Store{}, nullptr), "dense_decode", format);
    expect_error(sm90::wgmma_dense(w, {.tokens = 3, .tile = 32}, 1.0f, Store{}, nullptr), "gemm_wgmma",
                 format);
  }
  expect_error(sm90::dense_decode(matrix(Kind::kMxfp4), x, Qkv{}, nullptr), "dense_decode", "MXFP4");
  expect_error(sm90::wgmma_dense(matrix(Kind::kMxfp4), {.tokens = 3, .tile = 32}, 1.0f, Qkv{}, nullptr),
               "gemm_wgmma", "MXFP4");
}

// The first product of experts is compiled for MXFP4 weights alone.
TEST(Linear, SwiGluOfMxfp8QuadsIsAnError) {
  const sm120::QuadWeights w{.weight_tiles = 2, .element = sm120::Element::kE4M3};
  const Status status = sm120::gemm(w, {.cols = 2880}, sm120::Tile::k8, sm120::SwiGluMx{}, nullptr);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("MXFP8"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace moesaic::cuda

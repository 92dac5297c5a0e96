#include "backend/cuda/ops/linear.h"

#include <algorithm>

#include "backend/cuda/kernels/sm120/gemm.h"
#include "backend/cuda/kernels/sm90/dense_decode.h"
#include "backend/cuda/kernels/sm90/gemm_wgmma.h"
#include "backend/cuda/ops/select.h"
#include "base/error.h"

namespace moesaic::cuda {
namespace {

template <class Epilogue>
Status run_wgmma(const Matrix& w, const Activations& x, const Epilogue& out, const LinearSetup& s) {
  const sm90::ActivationTiles tiles = sm90::dense_tiles(w, s.layout, s.tiles, x.tokens);
  if (x.arranged == 0) RETURN_IF_ERROR(sm90::arrange(x.x, nullptr, tiles, s.stream));
  return sm90::wgmma_dense(w, tiles, x.factor, out, s.stream);
}

template <class Epilogue>
Status run_block_scaled(const Matrix& w, const sm120::Tokens& x, const Epilogue& out, const LinearSetup& s) {
  return sm120::gemm(sm120::weights_of(w), x, sm120::dense_tile(x.count, x.parts), out, s.stream);
}
sm120::Tokens tokens_of(const Matrix& w, int tokens, const LinearSetup& s) {
  return sm120::dense_tokens(s.tiles, static_cast<int>(w.cols), tokens, mxfp8_parts(s.target.moe_path));
}

template <class Epilogue>
Status run(const LinearConfig& config, const Matrix& w, Activations x, const Epilogue& out,
           const LinearSetup& s) {
  switch (config.kernel) {
    case LinearKernel::kDenseDecode:
      return sm90::dense_decode(w, x, out, s.stream);
    case LinearKernel::kWgmma:
      return run_wgmma(w, x, out, s);
    case LinearKernel::kBlockScaled: {
      const sm120::Tokens tokens = tokens_of(w, x.tokens, s);
      RETURN_IF_ERROR(sm120::expand(static_cast<const __nv_bfloat16*>(x.x), nullptr, tokens, s.stream));
      return run_block_scaled(w, tokens, out, s);
    }
    case LinearKernel::kMma:
      break;
  }
  x.tile = mma_tile(w.rows, x.tokens, s.layout.sms);
  return gemm(w, x, out, s.stream);
}

// The norm inside the product's kernel, or, of block-scaled products, with the quantisation.
template <class Epilogue>
Status run_fused(const LinearConfig& config, const Matrix& w, const Norm& x, const Epilogue& out,
                 const LinearSetup& s) {
  if (config.kernel == LinearKernel::kDenseDecode) return sm90::dense_decode(w, x, out, s.stream);
  const sm120::Tokens tokens = tokens_of(w, x.rows, s);
  RETURN_IF_ERROR(sm120::norm_expand(x, tokens, s.stream));
  return run_block_scaled(w, tokens, out, s);
}

LinearShape shape_of(const Matrix& w, int tokens, InputNorm norm) {
  return {.kind = w.kind, .rows = w.rows, .cols = w.cols, .tokens = tokens, .norm = norm};
}

// The tile in which the kernel takes its activations; 0: plain rows.
int tile_taken(const LinearConfig& config, const Matrix& w, int tokens, const LinearSetup& s) {
  return config.kernel == LinearKernel::kWgmma ? sm90::dense_tiles(w, s.layout, s.tiles, tokens).tile : 0;
}

}  // namespace

template <class Epilogue>
Status linear(const Matrix& w, const Activations& x, const Epilogue& out, const LinearSetup& s) {
  ASSIGN_OR_RETURN(const LinearChoice choice, select(shape_of(w, x.tokens, InputNorm::kNone), s.target));
  return run(*choice.config, w, x, out, s);
}
template <class Epilogue>
Status linear(const Matrix& w, const Norm& x, const Epilogue& out, const LinearSetup& s) {
  const InputNorm norm = x.deferred.expert_out != nullptr ? InputNorm::kDeferred : InputNorm::kNorm;
  ASSIGN_OR_RETURN(const LinearChoice choice, select(shape_of(w, x.rows, norm), s.target));
  if (choice.fuses_norm) return run_fused(*choice.config, w, x, out, s);
  Norm n = x;
  n.out_tile = tile_taken(*choice.config, w, x.rows, s);
  if (n.out_tile > 0) n.out = s.tiles;
  RETURN_IF_ERROR(cuda::norm(n, s.stream));
  const Activations normed{.x = n.out, .factor = 1.0f / n.factor, .tokens = n.rows, .arranged = n.out_tile};
  return run(*choice.config, w, normed, out, s);
}
template Status linear(const Matrix&, const Activations&, const Store&, const LinearSetup&);
template Status linear(const Matrix&, const Activations&, const Qkv&, const LinearSetup&);
template Status linear(const Matrix&, const Norm&, const Store&, const LinearSetup&);
template Status linear(const Matrix&, const Norm&, const Qkv&, const LinearSetup&);

size_t linear_tile_bytes(int rows, int widest) {
  return std::max(static_cast<size_t>(rows + sm90::kWgmmaTokens) * static_cast<size_t>(widest) * 2,
                  sm120::token_buffer_bytes(static_cast<size_t>(rows), 1, widest, sm120::kMostParts));
}

int arranged_tile(const Matrix& w, int tokens, const LinearSetup& setup) {
  const Result<LinearChoice> choice = select(shape_of(w, tokens, InputNorm::kNone), setup.target);
  return choice.ok() ? tile_taken(*choice.value().config, w, tokens, setup) : 0;
}
bool can_send(const Matrix& w, int tokens, const LinearSetup& setup) {
  const Result<LinearChoice> choice = select(shape_of(w, tokens, InputNorm::kNone), setup.target);
  return tokens <= 8 && choice.ok() && choice.value().config->kernel == LinearKernel::kDenseDecode;
}
Status linear_sent(const Matrix& w, const Activations& x, const Store& out, const WordSender& sender,
                   const LinearSetup& setup) {
  return sm90::dense_decode(w, x, sm90::SentStore{out, sender}, setup.stream);
}

}  // namespace moesaic::cuda

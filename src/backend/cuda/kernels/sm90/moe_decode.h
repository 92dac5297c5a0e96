// The whole mixture of experts for 1 to 8 tokens in one launch, on Hopper: see moe_decode.cu. 16.0 us a layer
// for one token on an H200, 75% of its bandwidth (2, 4, 8 tokens: docs/lab).
//
// Its sums have another order than gemm.h's: a token's bits are the same in any batch of up to 8, and others
// beyond.
#pragma once

#include "backend/cuda/kernels/common/word_sender.h"
#include "backend/cuda/layout/slab_layout.h"
#include "backend/cuda/runtime/device.h"
#include "core/rank_share.h"

namespace moesaic::cuda::sm90 {

struct MoeDecode {
  const uint8_t* fc1;    // [experts][layout.fc1_bytes()]
  const uint8_t* fc2;    // [experts][layout.fc2_bytes()]
  const __half* x;       // [tokens][2880], normalised
  const float* x_scale;  // [tokens]
  const float* logits;   // [tokens][experts], the router's
  int experts;
  const float* residual;  // [tokens][2880], from the first row of fc2 on
  float* out;             // [tokens][2880], the same
  __half* h;              // [tokens*4][2880] scratch, all kEmpty at start
  __half* h_clear;        // scratch of another launch, filled with kEmpty here
  int clear_vectors;      // 16-byte vectors of h_clear
  int tokens;
  SlabLayout layout;  // its sms CTAs run
  // For ranks: fc1's first slab pair makes column h_first of h, and the other ranks' h get what this rank
  // makes of it. Each rank clears its own h_clear.
  int h_first = 0;
  int peers = 0;
  __half* peer_h[kMostRanks - 1] = {};
  WordSender sender;  // sends out
  int* fault;  // becomes kGaveUp or kRankAway (kernels/common/gave_up.h) if CTAs waited too long; may be the
               // host's memory
};

// Once per device, before the first launch or capture. layout: of the device or of a part of it, since all
// CTAs must be resident at once. kUnsupported outside kFewestSms to kMostSms.
Status prepare_moe_decode(const SlabLayout& layout);
Status moe_decode(const MoeDecode& p, cudaStream_t stream);

}  // namespace moesaic::cuda::sm90

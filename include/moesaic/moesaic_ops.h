/* gpt-oss's mixture of experts alone, on a caller's own device memory and stream: the kernels that moesaic's
 * own steps use, for other engines. moesaic.h says what holds of errors, structs and threads.
 *
 *     moesaic_moe_options options;
 *     moesaic_moe_options_init(&options, sizeof options);
 *     options.experts = 32;
 *
 *     // Once a layer:
 *     moesaic_moe* moe;
 *     moesaic_moe_prepare(&options, &w13, &w2, stream, &moe);
 *
 *     // Once a stream, for all layers:
 *     cudaMalloc(&workspace, moesaic_moe_workspace_bytes(moe, most_tokens));
 *
 *     // As often as wanted; may be captured in a CUDA graph:
 *     moesaic_moe_run(moe, &call, stream);
 *
 *     moesaic_moe_close(moe);
 *
 * Devices: Hopper (gpt-oss's sizes have kernels of their own; others run on portable ones) and SM120/121.
 */
#ifndef MOESAIC_MOESAIC_OPS_H
#define MOESAIC_MOESAIC_OPS_H

#include "moesaic/moesaic.h"

#ifdef __cplusplus
extern "C" {
#endif

/* C's spellings. NOLINTBEGIN(modernize-use-using,readability-identifier-naming) */

/* Structs have an int32_t for it, so that a wrong value can be refused. */
typedef enum moesaic_type { MOESAIC_F32 = 0, MOESAIC_F16 = 1, MOESAIC_BF16 = 2 } moesaic_type;

/* Experts of one layer, in the order that the kernels read. */
typedef struct moesaic_moe moesaic_moe;

typedef struct moesaic_moe_options {
  size_t size;
  int32_t device;         /* CUDA's index */
  int32_t experts;        /* whose weights are given; at most 1,024 */
  int32_t first_expert;   /* the id of the first: other ids are skipped (expert parallelism) */
  int32_t routed_experts; /* that the router scores; 0: first_expert + experts */
  int32_t top_k;          /* choices of a token; default 4, at most 16 */
  int32_t hidden;         /* default 2880; a multiple of 32 */
  int32_t intermediate;   /* default 2880; a multiple of 32 */
  float alpha;            /* default 1.702: h = gate sigmoid(alpha gate) (up + offset), */
  float limit;            /* default 7: gate clamped to at most limit, up to +-limit; 0: no clamps */
  float offset;           /* default 1. Plain SwiGLU: alpha 1, limit 0, offset 0 */
  int32_t interleaved;    /* default 1: w13's rows are gate, up, gate, up, ..; 0: all gates, then all ups */
} moesaic_moe_options;

void moesaic_moe_options_init(moesaic_moe_options* options, size_t size);

/* An MXFP4 matrix of all experts in device memory, as Hugging Face's checkpoints have it: w13 [experts, 2 *
 * intermediate, hidden], w2 [experts, hidden, intermediate]. A block is 32 columns: 16 bytes of two E2M1
 * codes each, the first in the low half. Strides 0: contiguous. */
typedef struct moesaic_moe_matrix {
  size_t size;
  const void* blocks; /* [experts, rows, columns / 32, 16] */
  const void* scales; /* [experts, rows, columns / 32] E8M0 */
  const void* bias;   /* [experts, rows]; NULL: none. Finite; gpt-oss's kernels round it to BF16 */
  int32_t bias_type;  /* moesaic_type; default BF16 */
  int64_t block_expert_stride, block_row_stride; /* bytes */
  int64_t scale_expert_stride, scale_row_stride; /* bytes */
  int64_t bias_expert_stride;                    /* values */
} moesaic_moe_matrix;

void moesaic_moe_matrix_init(moesaic_moe_matrix* matrix, size_t size);

/* Repacks the weights to device memory of its own (0.43 GB for 32 experts of gpt-oss); they may be freed
 * afterwards. Waits for the stream (a cudaStream_t of the device), so it cannot be captured. */
moesaic_status moesaic_moe_prepare(const moesaic_moe_options* options, const moesaic_moe_matrix* w13,
                                   const moesaic_moe_matrix* w2, void* stream, moesaic_moe** moe);
/* After the last call has run. NULL is nothing. */
void moesaic_moe_close(moesaic_moe* moe);

/* Bytes that a call of so many tokens needs; the same for all layers of the same options, and for all beyond
 * 4,096 tokens. */
size_t moesaic_moe_workspace_bytes(const moesaic_moe* moe, int64_t tokens);
size_t moesaic_moe_weight_bytes(const moesaic_moe* moe);
/* The kernels for so many tokens: "slabs, split-k 16"; for moesaic_free. */
char* moesaic_moe_plan(const moesaic_moe* moe, int64_t tokens);

/* Device pointers. Either ids and weights, or logits. */
typedef struct moesaic_moe_call {
  size_t size;
  int64_t tokens;       /* any number; 0 does nothing */
  int32_t type;         /* moesaic_type of x and out: default BF16, or F16 */
  const void* x;        /* [tokens, hidden], contiguous, 16-byte aligned */
  void* out;            /* the same; not x */
  const void* ids;      /* [tokens, top_k] int32 or int64; those of no expert here are skipped */
  int32_t ids_are_64;   /* 0 or 1 */
  const float* weights; /* [tokens, top_k], not negative; used as they are */
  const void* logits;  /* [tokens, routed_experts]: the top_k largest are chosen, weighted by their softmax */
  int32_t logits_type; /* moesaic_type; default F32 */
  void* workspace;     /* 256-byte aligned; used by one stream at a time. NULL: the library's own, for the
                        * stream, or of a capture for its graph; the first call of a size allocates. Two
                        * executables of one graph must not run at the same time */
  size_t workspace_bytes;
} moesaic_moe_call;

void moesaic_moe_call_init(moesaic_moe_call* call, size_t size);

/* out[t] = sum over k of weights[t, k] * expert ids[t, k] of x[t], launched on the stream (a cudaStream_t of
 * the device). Allocates nothing and waits for nothing. May be called from several threads at once with
 * workspaces and streams of their own.
 *
 * Streams may run it at the same time, also beside a model of this library. MOESAIC_INTERNAL, once: a kernel
 * of an earlier call waited for 9 s or more for a part of itself that the device did not run, and gave up;
 * that call's rows are not valid.
 *
 * A row of out is NaN where x has a value that is not finite or, but for SM120/121, beyond F16's 65,504,
 * where a weight is negative or not finite, and where a logit is NaN or +infinity. */
moesaic_status moesaic_moe_run(const moesaic_moe* moe, const moesaic_moe_call* call, void* stream);

/* NOLINTEND(modernize-use-using,readability-identifier-naming) */

#ifdef __cplusplus
}
#endif

#endif

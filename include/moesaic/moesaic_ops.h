/* gpt-oss's layers on a caller's own device memory and stream: the kernels that moesaic's own steps use, for
 * other engines. moesaic.h says what holds of errors, structs and threads. The experts:
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
 * and with moesaic_dense_prepare() once for each matrix, the rest of a layer and the head behind the last:
 * moesaic_norm_qkv_rope(), moesaic_paged_attention(), moesaic_project().
 *
 * Devices: Hopper (gpt-oss's sizes have kernels of their own; others run on portable ones) and SM120/121. All
 * but the experts also run on the host (MOESAIC_HOST), slowly and in double precision, to compare with.
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
  void* out;            /* the same; apart from all that is read */
  const void* ids;      /* [tokens, top_k] int32 or int64; those of no expert here are skipped */
  int32_t ids_are_64;   /* 0 or 1 */
  const float* weights; /* [tokens, top_k], not negative; used as they are */
  const void* logits;  /* [tokens, routed_experts]: the top_k largest are chosen, weighted by their softmax */
  int32_t logits_type; /* moesaic_type; default F32 */
  void* workspace;     /* 256-byte aligned; used by one stream at a time. NULL: the library's own, for the
                        * stream, or of a capture for its graph; the first call of a size allocates. A device
                        * has them for 16 streams: a call of one more frees another's, for whose last call it
                        * waits, and allocates. Two executables of one graph must not run at the same time */
  size_t workspace_bytes;
} moesaic_moe_call;

void moesaic_moe_call_init(moesaic_moe_call* call, size_t size);

/* out[t] = sum over k of weights[t, k] * expert ids[t, k] of x[t], launched on the stream (a cudaStream_t of
 * the device). Allocates nothing and waits for nothing where a workspace is given. May be called from several
 * threads at once with workspaces and streams of their own.
 *
 * Streams may run it at the same time, also beside a model of this library. MOESAIC_INTERNAL, once: a kernel
 * of an earlier call on this stream, or of a graph, waited for 9 s or more for a part of itself that the
 * device did not run, and gave up; that call's rows are not valid.
 *
 * A row of out is NaN where x has a value that is not finite or, but for SM120/121, beyond F16's 65,504,
 * where a weight is negative or not finite, and where a logit is NaN or +infinity. */
moesaic_status moesaic_moe_run(const moesaic_moe* moe, const moesaic_moe_call* call, void* stream);

/* ---- Dense products ---- */

#define MOESAIC_HOST (-1) /* as a device: pointers are the host's, streams are not used */

/* A matrix and its bias in the order that the kernels read. */
typedef struct moesaic_dense moesaic_dense;

typedef struct moesaic_dense_matrix {
  size_t size;
  int32_t device;        /* CUDA's index, or MOESAIC_HOST */
  int32_t type;          /* moesaic_type of the weight; default BF16. F32 is rounded to BF16 */
  const void* weight;    /* [rows, columns], 16-byte aligned, as each row is */
  int64_t rows, columns; /* columns: a multiple of 32, at most 65,536 */
  int64_t row_stride;    /* values; 0: contiguous */
  const void* bias;      /* [rows]; NULL: none */
  int32_t bias_type;     /* moesaic_type; default BF16 */
  const char* format;    /* to which the weight is rounded: "bf16", "mxfp8", "mxfp4"; NULL: as it is */
} moesaic_dense_matrix;

void moesaic_dense_matrix_init(moesaic_dense_matrix* matrix, size_t size);

/* Repacks the weight to memory of its own; it may be freed afterwards. Waits for the stream, so it cannot be
 * captured. MOESAIC_INVALID_ARGUMENT: a value that is not finite, too. */
moesaic_status moesaic_dense_prepare(const moesaic_dense_matrix* matrix, void* stream, moesaic_dense** dense);
/* After the last call has run. NULL is nothing. */
void moesaic_dense_close(moesaic_dense* dense);

/* Bytes that a call of so many tokens needs at most; they do not grow beyond some thousand tokens. */
size_t moesaic_dense_workspace_bytes(const moesaic_dense* dense, int64_t tokens);
size_t moesaic_dense_weight_bytes(const moesaic_dense* dense);
/* The kernel for so many tokens: "MXFP8, dense_decode 8"; for moesaic_free. */
char* moesaic_dense_plan(const moesaic_dense* dense, int64_t tokens);

/* Pointers of the matrix's device. Workspaces here and below: as moesaic_moe_call's. */
typedef struct moesaic_project_call {
  size_t size;
  int64_t tokens;       /* any number; 0 does nothing */
  const void* x;        /* [tokens, columns] BF16, contiguous, 16-byte aligned */
  void* out;            /* [tokens, rows], contiguous, 16-byte aligned; apart from x */
  int32_t out_type;     /* moesaic_type: default BF16, or F32, as for lm_head's logits */
  const void* residual; /* of out's shape and type; may be out itself, else apart from it. NULL: none */
  void* workspace;
  size_t workspace_bytes;
} moesaic_project_call;

void moesaic_project_call_init(moesaic_project_call* call, size_t size);

/* out = x W^T + bias + residual, launched on the stream. Allocates nothing and waits for nothing where a
 * workspace is given. MXFP8, MXFP4 and F16 weights meet activations in F16: those beyond its 65,504 are
 * infinite. */
moesaic_status moesaic_project(const moesaic_dense* dense, const moesaic_project_call* call, void* stream);

/* ---- The paged KV cache ---- */

/* Pages of page_tokens rows of head_dim values of each KV head. NHD: a token's heads lie together; HND: a
 * head's tokens do. K and V have the same strides. */
typedef struct moesaic_paged_cache {
  size_t size;
  void* k; /* 16-byte aligned, as each row is */
  void* v;
  int32_t fp8;         /* 1: E4M3 without scales; default 0: BF16 */
  int32_t page_tokens; /* 16, 32 or 64 */
  int32_t kv_heads;
  int32_t head_dim; /* default 64; 32 or 128 */
  int64_t pages;
  int64_t page_stride, token_stride, head_stride; /* values */
} moesaic_paged_cache;

void moesaic_paged_cache_init(moesaic_paged_cache* cache, size_t size);

typedef struct moesaic_qkv_call {
  size_t size;
  int64_t tokens;
  const void* x;     /* [tokens, columns] BF16, contiguous, 16-byte aligned */
  const void* norm;  /* [columns] */
  int32_t norm_type; /* moesaic_type; default BF16 */
  float eps;         /* default 1e-5 */
  const moesaic_paged_cache* cache;
  const int64_t* positions; /* [tokens] */
  const void* cos_sin; /* [table_positions, head_dim]: cosines of head_dim / 2 angles, then their sines */
  int64_t table_positions;
  int32_t cos_sin_type; /* moesaic_type; default F32 */
  int32_t heads;
  /* [tokens]: page * page_tokens + place in the page, none twice; below 0: K and V are written nowhere */
  const int64_t* slots;
  void* q; /* [tokens, heads, head_dim] BF16, 16-byte aligned; apart from all that is read */
  void* workspace;
  size_t workspace_bytes;
} moesaic_qkv_call;

void moesaic_qkv_call_init(moesaic_qkv_call* call, size_t size);

/* q, k, v = W (x / sqrt(mean(x^2) + eps) * norm) + bias, W's rows being Q's heads, then K's, then V's; RoPE
 * on q and k; k and v are written to the cache, whose rows and whose K and V may not overlap. Launched on the
 * stream. A token's q is NaN where its position is not in the table or its slot beyond the cache; the cache
 * stays as it is then. */
moesaic_status moesaic_norm_qkv_rope(const moesaic_dense* dense, const moesaic_qkv_call* call, void* stream);

typedef struct moesaic_attention_call {
  size_t size;
  int32_t device; /* CUDA's index, or MOESAIC_HOST */
  int32_t heads;  /* a multiple of kv_heads; at most 16 times as many */
  int32_t window; /* tokens that a row attends to, itself included; default 0: all */
  int64_t rows, sequences;
  const moesaic_paged_cache* cache;
  const void* q;          /* [rows, heads, head_dim] BF16, contiguous, 16-byte aligned */
  void* out;              /* the same; apart from all that is read */
  const float* sinks;     /* [heads] logits; NULL: none */
  const int32_t* starts;  /* [sequences + 1]: the first row of each sequence, ascending, and the end */
  const int32_t* lengths; /* [sequences]: tokens in the cache; the sequence's rows are the last of them */
  const int32_t* tables;  /* [sequences, table_stride]: the page at each place of a sequence */
  int64_t table_stride, table_pages; /* entries between two sequences' tables, and entries of each */
  void* workspace;
  size_t workspace_bytes;
} moesaic_attention_call;

void moesaic_attention_call_init(moesaic_attention_call* call, size_t size);

/* Bytes for a call of these sizes; no pointer but cache is looked at. 0 where the call is wrong, too. */
size_t moesaic_attention_workspace_bytes(const moesaic_attention_call* call);
/* out[row] = softmax(q k / sqrt(head_dim), and the head's sink) v over the keys that the row attends to,
 * launched on the stream. May be captured once a call of its shape has run. A row is NaN where a page that it
 * attends to is none of the cache's, or its sequence has fewer tokens than rows, more than its page table has
 * room for, or rows that the call has not. On a GPU a page that is not there, and a K or V that is not
 * finite, may make NaN other rows of the sequence that are computed together, also some that do not attend to
 * it. Rows of no sequence stay as they are. Pages to which no row attends are not read, nor are their
 * numbers. */
moesaic_status moesaic_paged_attention(const moesaic_attention_call* call, void* stream);

/* NOLINTEND(modernize-use-using,readability-identifier-naming) */

#ifdef __cplusplus
}
#endif

#endif

// moesaic_ops.h: operators on a caller's memory.
#include "api/c_common.h"
#include "backend/backend.h"
#include "backend/layer_operators.h"
#include "backend/moe_operator.h"
#include "moesaic/moesaic_ops.h"

struct moesaic_moe {
  std::unique_ptr<moesaic::MoeOperator> moe;
};
struct moesaic_dense {
  std::unique_ptr<moesaic::DenseOperator> dense;
};

namespace moesaic {
namespace {

using c_api::enter, c_api::not_null, c_api::read;

template <typename T>
T defaults();
template <>
moesaic_moe_options defaults() {
  const MoeOperatorOptions o;
  return {.size = sizeof(moesaic_moe_options),
          .device = o.device,
          .experts = 0,
          .first_expert = 0,
          .routed_experts = 0,
          .top_k = o.top_k,
          .hidden = 2880,
          .intermediate = 2880,
          .alpha = o.alpha,
          .limit = o.limit,
          .offset = o.offset,
          .interleaved = 1};
}
template <>
moesaic_moe_matrix defaults() {
  moesaic_moe_matrix matrix{};
  matrix.size = sizeof(matrix), matrix.bias_type = MOESAIC_BF16;
  return matrix;
}
template <>
moesaic_moe_call defaults() {
  moesaic_moe_call call{};
  call.size = sizeof(call), call.type = MOESAIC_BF16, call.logits_type = MOESAIC_F32;
  return call;
}

template <>
moesaic_dense_matrix defaults() {
  moesaic_dense_matrix matrix{};
  matrix.size = sizeof(matrix), matrix.type = matrix.bias_type = MOESAIC_BF16;
  return matrix;
}
template <>
moesaic_project_call defaults() {
  moesaic_project_call call{};
  call.size = sizeof(call), call.out_type = MOESAIC_BF16;
  return call;
}
template <>
moesaic_paged_cache defaults() {
  moesaic_paged_cache cache{};
  cache.size = sizeof(cache), cache.head_dim = 64;
  return cache;
}
template <>
moesaic_qkv_call defaults() {
  moesaic_qkv_call call{};
  call.size = sizeof(call), call.norm_type = MOESAIC_BF16, call.eps = QkvCall().eps;
  call.cos_sin_type = MOESAIC_F32;
  return call;
}
template <>
moesaic_attention_call defaults() {
  moesaic_attention_call call{};
  call.size = sizeof(call);
  return call;
}

template <typename T>
void init(T* given, size_t size) {
  enter([&]() -> Status {
    RETURN_IF_ERROR(not_null(given, "the struct"));
    return c_api::write(defaults<T>(), given, size);
  });
}

// The caller's struct, with defaults for what an older one lacks.
template <typename T>
Result<T> values_of(const T* given, const char* name) {
  RETURN_IF_ERROR(not_null(given, name));
  T values = defaults<T>();
  RETURN_IF_ERROR(read(given, values));
  return values;
}

// get() of an operator; 0 where it is NULL.
template <typename Get>
size_t bytes_of(const void* handle, const char* name, Get&& get) {
  size_t bytes = 0;
  enter([&]() -> Status {
    RETURN_IF_ERROR(not_null(handle, name));
    bytes = get();
    return {};
  });
  return bytes;
}
// The same of a text, for moesaic_free; NULL where the operator is.
template <typename Get>
char* text_of(const void* handle, const char* name, Get&& get) {
  char* text = nullptr;
  size_t length = 0;
  enter([&]() -> Status {
    RETURN_IF_ERROR(not_null(handle, name));
    const std::string made = get();
    return c_api::hand_out(made.data(), made.size(), &text, &length);
  });
  return text;
}

Result<ElementType> type_of(int32_t type, const char* name) {
  if (type < MOESAIC_F32 || type > MOESAIC_BF16) return invalid("{}: type {}", name, type);
  constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16};
  return kTypes[type];
}

Result<MoeOperatorMatrix> matrix_of(const moesaic_moe_matrix* given, int64_t rows, int64_t columns,
                                    const char* name) {
  ASSIGN_OR_RETURN(const moesaic_moe_matrix m, values_of(given, name));
  ASSIGN_OR_RETURN(const ElementType bias_type, type_of(m.bias_type, "bias_type"));
  const auto or_dense = [](int64_t stride, int64_t dense) { return stride != 0 ? stride : dense; };
  const int64_t block_row = or_dense(m.block_row_stride, columns / 2),
                scale_row = or_dense(m.scale_row_stride, columns / 32);
  return MoeOperatorMatrix{.blocks = m.blocks,
                           .scales = m.scales,
                           .bias = m.bias,
                           .bias_type = bias_type,
                           .block_expert_stride = or_dense(m.block_expert_stride, rows * block_row),
                           .block_row_stride = block_row,
                           .scale_expert_stride = or_dense(m.scale_expert_stride, rows * scale_row),
                           .scale_row_stride = scale_row,
                           .bias_expert_stride = or_dense(m.bias_expert_stride, rows)};
}

Result<DenseMatrix> matrix_of(const moesaic_dense_matrix& m) {
  ASSIGN_OR_RETURN(const ElementType type, type_of(m.type, "type"));
  ASSIGN_OR_RETURN(const ElementType bias_type, type_of(m.bias_type, "bias_type"));
  return DenseMatrix{.weight = m.weight,
                     .type = type,
                     .rows = m.rows,
                     .cols = m.columns,
                     .row_stride = m.row_stride != 0 ? m.row_stride : m.columns,
                     .bias = m.bias,
                     .bias_type = bias_type};
}

Result<PagedCache> cache_of(const moesaic_paged_cache* given) {
  ASSIGN_OR_RETURN(const moesaic_paged_cache c, values_of(given, "cache"));
  RETURN_IF_ERROR(c_api::check_flag(c.fp8, "fp8"));
  return PagedCache{.k = c.k,
                    .v = c.v,
                    .fp8 = c.fp8 != 0,
                    .pages = c.pages,
                    .page_tokens = c.page_tokens,
                    .kv_heads = c.kv_heads,
                    .head_dim = c.head_dim,
                    .page_stride = c.page_stride,
                    .token_stride = c.token_stride,
                    .head_stride = c.head_stride};
}

Result<PagedAttentionCall> call_of(const moesaic_attention_call* given, void* stream) {
  ASSIGN_OR_RETURN(const moesaic_attention_call c, values_of(given, "call"));
  ASSIGN_OR_RETURN(const PagedCache cache, cache_of(c.cache));
  return PagedAttentionCall{.device = c.device,
                            .rows = c.rows,
                            .sequences = c.sequences,
                            .heads = c.heads,
                            .cache = cache,
                            .q = c.q,
                            .out = c.out,
                            .sinks = c.sinks,
                            .window = c.window,
                            .starts = c.starts,
                            .lengths = c.lengths,
                            .tables = c.tables,
                            .table_stride = c.table_stride,
                            .table_pages = c.table_pages,
                            .scratch = {c.workspace, c.workspace_bytes},
                            .stream = stream};
}

Result<QkvCall> call_of(const moesaic_qkv_call* given, void* stream) {
  ASSIGN_OR_RETURN(const moesaic_qkv_call c, values_of(given, "call"));
  ASSIGN_OR_RETURN(const PagedCache cache, cache_of(c.cache));
  ASSIGN_OR_RETURN(const ElementType norm_type, type_of(c.norm_type, "norm_type"));
  ASSIGN_OR_RETURN(const ElementType cos_sin_type, type_of(c.cos_sin_type, "cos_sin_type"));
  return QkvCall{.tokens = c.tokens,
                 .x = c.x,
                 .norm = c.norm,
                 .norm_type = norm_type,
                 .eps = c.eps,
                 .heads = c.heads,
                 .cache = cache,
                 .positions = c.positions,
                 .cos_sin = c.cos_sin,
                 .cos_sin_type = cos_sin_type,
                 .table_positions = c.table_positions,
                 .slots = c.slots,
                 .q = c.q,
                 .scratch = {c.workspace, c.workspace_bytes},
                 .stream = stream};
}

}  // namespace
}  // namespace moesaic

using moesaic::MoeOperatorCall, moesaic::MoeOperatorOptions, moesaic::Status, moesaic::invalid,
    moesaic::StatusCode, moesaic::MoeOperatorMatrix, moesaic::ElementType;
namespace c_api = moesaic::c_api;

extern "C" {

void moesaic_moe_options_init(moesaic_moe_options* options, size_t size) { moesaic::init(options, size); }
void moesaic_moe_matrix_init(moesaic_moe_matrix* matrix, size_t size) { moesaic::init(matrix, size); }
void moesaic_moe_call_init(moesaic_moe_call* call, size_t size) { moesaic::init(call, size); }

moesaic_status moesaic_moe_prepare(const moesaic_moe_options* options, const moesaic_moe_matrix* w13,
                                   const moesaic_moe_matrix* w2, void* stream, moesaic_moe** moe) {
  return c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(options, "options"));
    RETURN_IF_ERROR(c_api::not_null(moe, "moe"));
    auto o = moesaic::defaults<moesaic_moe_options>();
    RETURN_IF_ERROR(c_api::read(options, o));
    ASSIGN_OR_RETURN(const MoeOperatorMatrix gate_up,
                     moesaic::matrix_of(w13, int64_t{2} * o.intermediate, o.hidden, "w13"));
    ASSIGN_OR_RETURN(const MoeOperatorMatrix down, moesaic::matrix_of(w2, o.hidden, o.intermediate, "w2"));
    const MoeOperatorOptions wanted{.device = o.device,
                                    .experts = o.experts,
                                    .first_expert = o.first_expert,
                                    .routed_experts = o.routed_experts,
                                    .top_k = o.top_k,
                                    .hidden = o.hidden,
                                    .intermediate = o.intermediate,
                                    .alpha = o.alpha,
                                    .limit = o.limit,
                                    .offset = o.offset,
                                    .interleaved = o.interleaved != 0};
    ASSIGN_OR_RETURN(auto made, moesaic::prepare_moe(wanted, gate_up, down, stream));
    *moe = new moesaic_moe{std::move(made)};
    return {};
  });
}

void moesaic_moe_close(moesaic_moe* moe) { delete moe; }

size_t moesaic_moe_workspace_bytes(const moesaic_moe* moe, int64_t tokens) {
  return moesaic::bytes_of(moe, "moe", [&] { return moe->moe->workspace_bytes(tokens); });
}

size_t moesaic_moe_weight_bytes(const moesaic_moe* moe) {
  return moesaic::bytes_of(moe, "moe", [&] { return moe->moe->bytes(); });
}

char* moesaic_moe_plan(const moesaic_moe* moe, int64_t tokens) {
  return moesaic::text_of(moe, "moe", [&] { return moe->moe->plan(tokens); });
}

moesaic_status moesaic_moe_run(const moesaic_moe* moe, const moesaic_moe_call* call, void* stream) {
  return c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(moe, "moe"));
    ASSIGN_OR_RETURN(const moesaic_moe_call c, moesaic::values_of(call, "call"));
    ASSIGN_OR_RETURN(const ElementType type, moesaic::type_of(c.type, "type"));
    ASSIGN_OR_RETURN(const ElementType logits_type, moesaic::type_of(c.logits_type, "logits_type"));
    return moe->moe->run({.tokens = c.tokens,
                          .type = type,
                          .x = c.x,
                          .out = c.out,
                          .ids = c.ids,
                          .ids64 = c.ids_are_64 != 0,
                          .weights = c.weights,
                          .logits = c.logits,
                          .logits_type = logits_type,
                          .workspace = c.workspace,
                          .workspace_bytes = c.workspace_bytes,
                          .stream = stream});
  });
}

void moesaic_dense_matrix_init(moesaic_dense_matrix* matrix, size_t size) { moesaic::init(matrix, size); }
void moesaic_project_call_init(moesaic_project_call* call, size_t size) { moesaic::init(call, size); }
void moesaic_paged_cache_init(moesaic_paged_cache* cache, size_t size) { moesaic::init(cache, size); }
void moesaic_qkv_call_init(moesaic_qkv_call* call, size_t size) { moesaic::init(call, size); }
void moesaic_attention_call_init(moesaic_attention_call* call, size_t size) { moesaic::init(call, size); }

moesaic_status moesaic_dense_prepare(const moesaic_dense_matrix* matrix, void* stream,
                                     moesaic_dense** dense) {
  return c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(matrix, "matrix"));
    RETURN_IF_ERROR(c_api::not_null(dense, "dense"));
    auto m = moesaic::defaults<moesaic_dense_matrix>();
    RETURN_IF_ERROR(c_api::read(matrix, m));
    ASSIGN_OR_RETURN(const moesaic::DenseMatrix given, moesaic::matrix_of(m));
    moesaic::DenseOptions options{.device = m.device};
    if (m.format != nullptr) {
      ASSIGN_OR_RETURN(options.format, moesaic::dense_format(m.format));
    }
    ASSIGN_OR_RETURN(auto made, moesaic::prepare_dense(options, given, stream));
    *dense = new moesaic_dense{std::move(made)};
    return {};
  });
}

void moesaic_dense_close(moesaic_dense* dense) { delete dense; }

size_t moesaic_dense_workspace_bytes(const moesaic_dense* dense, int64_t tokens) {
  return moesaic::bytes_of(dense, "dense", [&] { return dense->dense->workspace_bytes(tokens); });
}

size_t moesaic_dense_weight_bytes(const moesaic_dense* dense) {
  return moesaic::bytes_of(dense, "dense", [&] { return dense->dense->bytes(); });
}

char* moesaic_dense_plan(const moesaic_dense* dense, int64_t tokens) {
  return moesaic::text_of(dense, "dense", [&] { return dense->dense->plan(tokens); });
}

moesaic_status moesaic_project(const moesaic_dense* dense, const moesaic_project_call* call, void* stream) {
  return c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(dense, "dense"));
    ASSIGN_OR_RETURN(const moesaic_project_call c, moesaic::values_of(call, "call"));
    ASSIGN_OR_RETURN(const ElementType type, moesaic::type_of(c.out_type, "out_type"));
    return dense->dense->run(moesaic::DenseCall{.tokens = c.tokens,
                                                .x = c.x,
                                                .out = c.out,
                                                .out_type = type,
                                                .residual = c.residual,
                                                .scratch = {c.workspace, c.workspace_bytes},
                                                .stream = stream});
  });
}

moesaic_status moesaic_norm_qkv_rope(const moesaic_dense* dense, const moesaic_qkv_call* call, void* stream) {
  return c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(dense, "dense"));
    ASSIGN_OR_RETURN(const moesaic::QkvCall given, moesaic::call_of(call, stream));
    return dense->dense->run(given);
  });
}

size_t moesaic_attention_workspace_bytes(const moesaic_attention_call* call) {
  size_t bytes = 0;
  c_api::enter([&]() -> Status {
    ASSIGN_OR_RETURN(const moesaic::PagedAttentionCall given, moesaic::call_of(call, nullptr));
    ASSIGN_OR_RETURN(bytes, moesaic::attention_workspace_bytes(given));
    return {};
  });
  return bytes;
}

moesaic_status moesaic_paged_attention(const moesaic_attention_call* call, void* stream) {
  return c_api::enter([&]() -> Status {
    ASSIGN_OR_RETURN(const moesaic::PagedAttentionCall given, moesaic::call_of(call, stream));
    return moesaic::paged_attention(given);
  });
}

}  // extern "C"

// moesaic_ops.h: the experts alone.
#include "api/c_common.h"
#include "backend/moe_operator.h"
#include "moesaic/moesaic_ops.h"

struct moesaic_moe {
  std::unique_ptr<moesaic::MoeOperator> moe;
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

template <typename T>
void init(T* given, size_t size) {
  enter([&]() -> Status {
    RETURN_IF_ERROR(not_null(given, "the struct"));
    return c_api::write(defaults<T>(), given, size);
  });
}

Result<ElementType> type_of(int32_t type, const char* name) {
  if (type < MOESAIC_F32 || type > MOESAIC_BF16) return invalid("{}: type {}", name, type);
  constexpr ElementType kTypes[] = {ElementType::kF32, ElementType::kF16, ElementType::kBF16};
  return kTypes[type];
}

Result<MoeOperatorMatrix> matrix_of(const moesaic_moe_matrix* given, int64_t rows, int64_t columns,
                                    const char* name) {
  RETURN_IF_ERROR(not_null(given, name));
  moesaic_moe_matrix m = defaults<moesaic_moe_matrix>();
  RETURN_IF_ERROR(read(given, m));
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
  size_t bytes = 0;
  c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(moe, "moe"));
    bytes = moe->moe->workspace_bytes(tokens);
    return {};
  });
  return bytes;
}

size_t moesaic_moe_weight_bytes(const moesaic_moe* moe) {
  size_t bytes = 0;
  c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(moe, "moe"));
    bytes = moe->moe->bytes();
    return {};
  });
  return bytes;
}

char* moesaic_moe_plan(const moesaic_moe* moe, int64_t tokens) {
  char* text = nullptr;
  size_t length = 0;
  c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(moe, "moe"));
    const std::string plan = moe->moe->plan(tokens);
    return c_api::hand_out(plan.data(), plan.size(), &text, &length);
  });
  return text;
}

moesaic_status moesaic_moe_run(const moesaic_moe* moe, const moesaic_moe_call* call, void* stream) {
  return c_api::enter([&]() -> Status {
    RETURN_IF_ERROR(c_api::not_null(moe, "moe"));
    RETURN_IF_ERROR(c_api::not_null(call, "call"));
    auto c = moesaic::defaults<moesaic_moe_call>();
    RETURN_IF_ERROR(c_api::read(call, c));
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

}  // extern "C"

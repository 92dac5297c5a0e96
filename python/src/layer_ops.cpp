// moesaic.ops: the operators of a layer beside its experts (backend/layer_operators.h).
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "backend/backend.h"
#include "backend/layer_operators.h"
#include "convert.h"
#include "crash_note.h"
#include "gil.h"
#include "ops.h"

namespace moesaic::python {
namespace {

// k, v, FP8; pages, their tokens, KV heads, head_dim; strides of pages, tokens and heads.
using CacheArgs = std::tuple<uintptr_t, uintptr_t, bool, int64_t, int, int, int, int64_t, int64_t, int64_t>;
PagedCache cache_of(const CacheArgs& args) {
  const auto& [k, v, fp8, pages, page_tokens, kv_heads, head_dim, page, token, head] = args;
  return {.k = pointer(k),
          .v = pointer(v),
          .fp8 = fp8,
          .pages = pages,
          .page_tokens = page_tokens,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .page_stride = page,
          .token_stride = token,
          .head_stride = head};
}

// The host computes while it is called, and other threads need not wait for that. A GPU's launches are short:
// they are not worth a wait for the lock.
class UnlockedOnHost {
 public:
  explicit UnlockedOnHost(int device) {
    if (device == kHost) release_.emplace();
  }

 private:
  std::optional<Unlocked> release_;
};

std::unique_ptr<DenseOperator> prepare(uintptr_t weight, const std::string& type, int64_t rows,
                                       int64_t columns, int64_t row_stride, uintptr_t bias,
                                       const std::string& bias_type, const std::string& format, int device,
                                       uintptr_t stream) {
  const DenseOptions options{.device = device, .format = checked(dense_format(format))};
  const DenseMatrix matrix{.weight = pointer(weight),
                           .type = type_of(type),
                           .rows = rows,
                           .cols = columns,
                           .row_stride = row_stride,
                           .bias = pointer(bias),
                           .bias_type = type_of(bias_type)};
  const OwnCode own;
  const Unlocked release;
  return checked(prepare_dense(options, matrix, pointer(stream)));
}

void run(const DenseOperator& dense, int64_t tokens, uintptr_t x, uintptr_t out, const std::string& out_type,
         uintptr_t residual, uintptr_t workspace, size_t workspace_bytes, uintptr_t stream) {
  const DenseCall call{.tokens = tokens,
                       .x = pointer(x),
                       .out = pointer(out),
                       .out_type = type_of(out_type),
                       .residual = pointer(residual),
                       .scratch = {pointer(workspace), workspace_bytes},
                       .stream = pointer(stream)};
  const OwnCode own;
  const UnlockedOnHost release(dense.device());
  check(dense.run(call));
}

void norm_qkv_rope(const DenseOperator& dense, int64_t tokens, uintptr_t x, uintptr_t norm,
                   const std::string& norm_type, float eps, int heads, const CacheArgs& cache,
                   uintptr_t positions, uintptr_t cos_sin, const std::string& cos_sin_type,
                   int64_t table_positions, uintptr_t slots, uintptr_t q, uintptr_t workspace,
                   size_t workspace_bytes, uintptr_t stream) {
  const QkvCall call{.tokens = tokens,
                     .x = pointer(x),
                     .norm = pointer(norm),
                     .norm_type = type_of(norm_type),
                     .eps = eps,
                     .heads = heads,
                     .cache = cache_of(cache),
                     .positions = static_cast<const int64_t*>(pointer(positions)),
                     .cos_sin = pointer(cos_sin),
                     .cos_sin_type = type_of(cos_sin_type),
                     .table_positions = table_positions,
                     .slots = static_cast<const int64_t*>(pointer(slots)),
                     .q = pointer(q),
                     .scratch = {pointer(workspace), workspace_bytes},
                     .stream = pointer(stream)};
  const OwnCode own;
  const UnlockedOnHost release(dense.device());
  check(dense.run(call));
}

PagedAttentionCall attention_of(int device, int64_t rows, int64_t sequences, int heads,
                                const CacheArgs& cache, int window, int64_t table_stride,
                                int64_t table_pages) {
  return {.device = device,
          .rows = rows,
          .sequences = sequences,
          .heads = heads,
          .cache = cache_of(cache),
          .window = window,
          .table_stride = table_stride,
          .table_pages = table_pages};
}

size_t attention_workspace(int device, int64_t rows, int64_t sequences, int heads, const CacheArgs& cache,
                           int window, int64_t table_stride, int64_t table_pages) {
  return checked(attention_workspace_bytes(
      attention_of(device, rows, sequences, heads, cache, window, table_stride, table_pages)));
}

void attend(int device, int64_t rows, int64_t sequences, int heads, const CacheArgs& cache, int window,
            int64_t table_stride, int64_t table_pages, uintptr_t q, uintptr_t out, uintptr_t sinks,
            uintptr_t starts, uintptr_t lengths, uintptr_t tables, uintptr_t workspace,
            size_t workspace_bytes, uintptr_t stream) {
  PagedAttentionCall call =
      attention_of(device, rows, sequences, heads, cache, window, table_stride, table_pages);
  call.q = pointer(q), call.out = pointer(out), call.sinks = static_cast<const float*>(pointer(sinks));
  call.starts = static_cast<const int32_t*>(pointer(starts));
  call.lengths = static_cast<const int32_t*>(pointer(lengths));
  call.tables = static_cast<const int32_t*>(pointer(tables));
  call.scratch = {pointer(workspace), workspace_bytes}, call.stream = pointer(stream);
  const OwnCode own;
  const UnlockedOnHost release(device);
  check(paged_attention(call));
}

}  // namespace

void add_layer_ops(nb::module_& m) {
  nb::class_<DenseOperator>(m, "DenseOperator", "A dense matrix in the kernels' order.")
      .def_prop_ro("rows", &DenseOperator::rows)
      .def_prop_ro("columns", &DenseOperator::cols)
      .def_prop_ro("bytes", &DenseOperator::bytes)
      .def("workspace_bytes", &DenseOperator::workspace_bytes, nb::arg("tokens"))
      .def("plan", &DenseOperator::plan, nb::arg("tokens"))
      .def("run", &run, nb::arg("tokens"), nb::arg("x"), nb::arg("out"), nb::arg("out_type"),
           nb::arg("residual"), nb::arg("workspace"), nb::arg("workspace_bytes"), nb::arg("stream"))
      .def("norm_qkv_rope", &norm_qkv_rope, nb::arg("tokens"), nb::arg("x"), nb::arg("norm"),
           nb::arg("norm_type"), nb::arg("eps"), nb::arg("heads"), nb::arg("cache"), nb::arg("positions"),
           nb::arg("cos_sin"), nb::arg("cos_sin_type"), nb::arg("table_positions"), nb::arg("slots"),
           nb::arg("q"), nb::arg("workspace"), nb::arg("workspace_bytes"), nb::arg("stream"));
  m.def("prepare_dense", &prepare, nb::arg("weight"), nb::arg("type"), nb::arg("rows"), nb::arg("columns"),
        nb::arg("row_stride"), nb::arg("bias"), nb::arg("bias_type"), nb::arg("format"), nb::arg("device"),
        nb::arg("stream"));
  m.def("paged_attention_workspace", &attention_workspace, nb::arg("device"), nb::arg("rows"),
        nb::arg("sequences"), nb::arg("heads"), nb::arg("cache"), nb::arg("window"), nb::arg("table_stride"),
        nb::arg("table_pages"));
  m.def("paged_attention", &attend, nb::arg("device"), nb::arg("rows"), nb::arg("sequences"),
        nb::arg("heads"), nb::arg("cache"), nb::arg("window"), nb::arg("table_stride"),
        nb::arg("table_pages"), nb::arg("q"), nb::arg("out"), nb::arg("sinks"), nb::arg("starts"),
        nb::arg("lengths"), nb::arg("tables"), nb::arg("workspace"), nb::arg("workspace_bytes"),
        nb::arg("stream"));
}

}  // namespace moesaic::python

#include "ops.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda_device.h"
#include "backend/moe_operator.h"
#include "backend/step_operator.h"
#include "base/file_cache.h"
#include "checkpoint/named_tensors.h"
#include "convert.h"
#include "crash_note.h"
#include "gil.h"

namespace moesaic::python {
namespace {

// blocks, scales, bias, its type; strides of experts and rows of blocks, of scales, and of the bias's
// experts.
using MatrixArgs = std::tuple<uintptr_t, uintptr_t, uintptr_t, std::string, std::vector<int64_t>>;
MoeOperatorMatrix matrix_of(const MatrixArgs& args) {
  const auto& [blocks, scales, bias, type, strides] = args;
  if (strides.size() != 5) throw Failure(StatusCode::kInvalidArgument, "moe: five strides are needed");
  return {.blocks = pointer(blocks),
          .scales = pointer(scales),
          .bias = pointer(bias),
          .bias_type = type_of(type),
          .block_expert_stride = strides[0],
          .block_row_stride = strides[1],
          .scale_expert_stride = strides[2],
          .scale_row_stride = strides[3],
          .bias_expert_stride = strides[4]};
}

std::unique_ptr<MoeOperator> prepare(const MatrixArgs& w13, const MatrixArgs& w2, int device, int experts,
                                     int first_expert, int routed_experts, int top_k, int hidden,
                                     int intermediate, float alpha, float limit, float offset,
                                     bool interleaved, uintptr_t stream) {
  const MoeOperatorOptions options{.device = device,
                                   .experts = experts,
                                   .first_expert = first_expert,
                                   .routed_experts = routed_experts,
                                   .top_k = top_k,
                                   .hidden = hidden,
                                   .intermediate = intermediate,
                                   .alpha = alpha,
                                   .limit = limit,
                                   .offset = offset,
                                   .interleaved = interleaved};
  const MoeOperatorMatrix gate_up = matrix_of(w13), down = matrix_of(w2);
  const OwnCode own;
  const Unlocked release;
  return checked(prepare_moe(options, gate_up, down, pointer(stream)));
}

// Why the kernels cannot run on a GPU; empty: they can.
std::string unfit_gpu(int device) {
  const OwnCode own;
  const Unlocked release;
  return check_cuda_device("moe", device).message();
}

void run(const MoeOperator& moe, int64_t tokens, const std::string& type, uintptr_t x, uintptr_t out,
         uintptr_t ids, bool ids64, uintptr_t weights, uintptr_t logits, const std::string& logits_type,
         uintptr_t workspace, size_t workspace_bytes, uintptr_t stream) {
  const OwnCode own;
  check(moe.run({.tokens = tokens,
                 .type = type_of(type),
                 .x = pointer(x),
                 .out = pointer(out),
                 .ids = pointer(ids),
                 .ids64 = ids64,
                 .weights = static_cast<const float*>(pointer(weights)),
                 .logits = pointer(logits),
                 .logits_type = type_of(logits_type),
                 .workspace = pointer(workspace),
                 .workspace_bytes = workspace_bytes,
                 .stream = pointer(stream)}));
}

// name, type as safetensors has it, shape, address.
using TensorArgs = std::tuple<std::string, std::string, std::vector<int64_t>, uintptr_t>;

// release(layer): the layer's tensors, with -1 the rest, are not read any more.
std::unique_ptr<StepOperator> prepare_step_operator(const std::string& config,
                                                    const std::vector<TensorArgs>& tensors, int device,
                                                    int max_rows, int max_sequences, int max_context,
                                                    bool fp8_cache, const std::string& dense, bool graphs,
                                                    const nb::object& release) {
  std::vector<NamedTensor> named;
  for (const auto& [name, dtype, shape, address] : tensors)
    named.push_back({name, dtype, shape, pointer(address)});
  NamedModel model = checked(model_of_tensors(config, named));
  std::optional<nb::python_error> raised;
  if (!release.is_none()) {
    model.weights.release = [&](int layer) {
      const Locked acquire;
      try {
        if (!raised) release(layer);
      } catch (nb::python_error& error) {
        raised.emplace(std::move(error));
      }
    };
  }
  const StepOperatorOptions options{.device = device,
                                    .max_rows = max_rows,
                                    .max_sequences = max_sequences,
                                    .max_context = max_context,
                                    .fp8_cache = fp8_cache,
                                    .dense = checked(dense_format(dense)),
                                    .graphs = graphs,
                                    .tuning_folder = cache_folder()};
  auto made = [&] {
    const OwnCode own;
    const Unlocked unlock;
    return prepare_step(options, model.config, model.weights);
  }();
  if (raised) throw nb::python_error(std::move(*raised));
  return checked(std::move(made));
}

// Pages, stride and slots.
using TableArgs = std::tuple<uintptr_t, int64_t, uintptr_t>;
StepPageTables tables_of(const TableArgs& args) {
  const auto& [pages, stride, slots] = args;
  return {static_cast<const int32_t*>(pointer(pages)), stride, static_cast<const int64_t*>(pointer(slots))};
}

void run_step(StepOperator& step, int rows, int sequences, uintptr_t host_starts, uintptr_t starts,
              uintptr_t tokens, uintptr_t positions, const TableArgs& full, const TableArgs& sliding,
              int longest, uintptr_t out, uintptr_t stream) {
  const OwnCode own;
  check(step.run({.rows = rows,
                  .sequences = sequences,
                  .host_starts = static_cast<const int32_t*>(pointer(host_starts)),
                  .starts = static_cast<const int32_t*>(pointer(starts)),
                  .tokens = static_cast<const int32_t*>(pointer(tokens)),
                  .positions = static_cast<const int64_t*>(pointer(positions)),
                  .full = tables_of(full),
                  .sliding = tables_of(sliding),
                  .longest = longest,
                  .out = pointer(out),
                  .stream = pointer(stream)}));
}

// A tensor of any library, by DLPack.
struct Tensor {
  nb::ndarray<nb::ro> array;
};
std::string type_name(const nb::dlpack::dtype& type) {
  using nb::dlpack::dtype_code;
  const std::string bits = std::to_string(type.bits);
  switch (static_cast<dtype_code>(type.code)) {
    case dtype_code::Int:
      return "int" + bits;
    case dtype_code::UInt:
      return "uint" + bits;
    case dtype_code::Float:
      return "float" + bits;
    case dtype_code::Bfloat:
      return "bfloat" + bits;
    default:
      return "type " + std::to_string(type.code) + " of " + bits + " bits";
  }
}
template <typename Of>
nb::tuple tuple_of(const Tensor& t, Of&& of) {
  nb::list values;
  for (size_t i = 0; i < t.array.ndim(); ++i) values.append(of(i));
  return nb::tuple(values);
}

}  // namespace

ElementType type_of(const std::string& name) {
  if (name == "float32") return ElementType::kF32;
  if (name == "float16") return ElementType::kF16;
  if (name == "bfloat16") return ElementType::kBF16;
  throw Failure(StatusCode::kInvalidArgument, "type " + name + " is not float32, float16 or bfloat16");
}

void add_ops(nb::module_& m) {
  nb::class_<Tensor>(m, "DlpackTensor", "A tensor that was taken by DLPack, kept while this lives.")
      .def(
          "__init__",
          [](Tensor* self, nb::handle capsule) { new (self) Tensor{nb::cast<nb::ndarray<nb::ro>>(capsule)}; },
          nb::arg("capsule"))
      .def_prop_ro("address", [](const Tensor& t) { return reinterpret_cast<uintptr_t>(t.array.data()); })
      .def_prop_ro(
          "shape", [](const Tensor& t) { return tuple_of(t, [&](size_t i) { return t.array.shape(i); }); },
          nb::sig("def shape(self) -> tuple[int, ...]"))
      .def_prop_ro(
          "strides", [](const Tensor& t) { return tuple_of(t, [&](size_t i) { return t.array.stride(i); }); },
          nb::sig("def strides(self) -> tuple[int, ...]"))
      .def_prop_ro("dtype", [](const Tensor& t) { return type_name(t.array.dtype()); })
      .def_prop_ro("on_cuda",
                   [](const Tensor& t) { return t.array.device_type() == nb::device::cuda::value; })
      .def_prop_ro("device", [](const Tensor& t) { return t.array.device_id(); });

  nb::class_<MoeOperator>(m, "MoeOperator", "Experts of one layer on a GPU. Addresses are the device's.")
      .def("workspace_bytes", &MoeOperator::workspace_bytes, nb::arg("tokens"))
      .def("plan", &MoeOperator::plan, nb::arg("tokens"))
      .def_prop_ro("bytes", &MoeOperator::bytes)
      .def("run", &run, nb::arg("tokens"), nb::arg("type"), nb::arg("x"), nb::arg("out"), nb::arg("ids"),
           nb::arg("ids64"), nb::arg("weights"), nb::arg("logits"), nb::arg("logits_type"),
           nb::arg("workspace"), nb::arg("workspace_bytes"), nb::arg("stream"));
  nb::class_<StepOperator>(m, "StepOperator", "A whole model on a GPU. Addresses are the device's.")
      .def_prop_ro("bytes", &StepOperator::bytes)
      .def_prop_ro("page_bytes", &StepOperator::page_bytes)
      .def(
          "set_cache",
          [](StepOperator& step, int layer, uintptr_t base, int pages, int64_t stride) {
            check(step.set_cache(layer, pointer(base), pages, stride));
          },
          nb::arg("layer"), nb::arg("base"), nb::arg("pages"), nb::arg("stride"))
      .def("run", &run_step, nb::arg("rows"), nb::arg("sequences"), nb::arg("host_starts"), nb::arg("starts"),
           nb::arg("tokens"), nb::arg("positions"), nb::arg("full"), nb::arg("sliding"), nb::arg("longest"),
           nb::arg("out"), nb::arg("stream"))
      .def(
          "logits",
          [](StepOperator& step, uintptr_t hidden, int rows, uintptr_t out, uintptr_t stream) {
            const OwnCode own;
            check(step.logits(pointer(hidden), rows, static_cast<float*>(pointer(out)), pointer(stream)));
          },
          nb::arg("hidden"), nb::arg("rows"), nb::arg("out"), nb::arg("stream"));
  m.def("prepare_step", &prepare_step_operator, nb::arg("config"), nb::arg("tensors"), nb::arg("device"),
        nb::arg("max_rows"), nb::arg("max_sequences"), nb::arg("max_context"), nb::arg("fp8_cache"),
        nb::arg("dense"), nb::arg("graphs"), nb::arg("release").none());

  m.def("prepare_moe", &prepare, nb::arg("w13"), nb::arg("w2"), nb::arg("device"), nb::arg("experts"),
        nb::arg("first_expert"), nb::arg("routed_experts"), nb::arg("top_k"), nb::arg("hidden"),
        nb::arg("intermediate"), nb::arg("alpha"), nb::arg("limit"), nb::arg("offset"),
        nb::arg("interleaved"), nb::arg("stream"));
  m.def("unfit_gpu", &unfit_gpu, nb::arg("device"));
  m.def(
      "check_dense_format", [](const std::string& name) { check(dense_format(name).status()); },
      nb::arg("name"));
  m.def("note_crashes", &note_crashes, nb::arg("path"), nb::arg("text"), nb::arg("line"));
  m.def("cache_folder", &cache_folder);
  add_layer_ops(m);
}

}  // namespace moesaic::python

#include "checkpoint/eagle3.h"
#include "checkpoint/eagle3_gguf.h"
#include "checkpoint/fuzz_input.h"

using namespace moesaic;

// The sizes of the seeds, so that mutated heads still fit.
static const ModelConfig kTarget{.layers = 8, .hidden = 32, .vocab = 64, .max_context = 64};
static const Eagle3Config kHead{.name = "fuzz",
                                .hidden = 32,
                                .intermediate = 32,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 16,
                                .vocab = 64,
                                .draft_vocab = 16,
                                .taps = {2, 4, 5}};

static void touch(const MatrixView& m, int64_t rows, int64_t cols) {
  if (m.data == nullptr) return;
  MOESAIC_CHECK(m.rows == rows && m.cols == cols);
  moesaic::touch(m);
}

static int use(std::shared_ptr<const TensorMap> map, const Eagle3Config& c, const Eagle3Norms& norms) {
  const auto weights = eagle3_weights(std::move(map), c, norms);
  if (!weights.ok()) return 0;
  touch(weights->fc, c.hidden, c.features()), touch(weights->q, c.q_size(), 2 * c.hidden);
  touch(weights->head, c.draft_vocab, c.hidden), touch(weights->input_norm, 1, c.features());
  for (const int32_t id : weights->target_ids) MOESAIC_CHECK(id >= 0 && id < c.vocab);
  (void)validate(weights.value(), c);
  return 0;
}

static int use_gguf(const uint8_t* data, size_t size) {
  auto gguf = read_gguf(fuzz_file(data, size));
  if (!gguf.ok()) return 0;
  const auto head = eagle3_from_gguf(std::move(gguf).value(), "fuzz", kTarget);
  if (!head.ok()) return 0;
  MOESAIC_CHECK(validate(head->config, kTarget).ok());
  return use(head->tensors, head->config, head->norms);
}

// A GGUF file, or config.json, a zero byte, model.safetensors.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > 4 && std::equal(data, data + 4, "GGUF")) return use_gguf(data, size);
  const uint8_t* const end = std::find(data, data + size, uint8_t{0});
  const auto used = static_cast<size_t>(end - data);
  const auto json = parse_json({reinterpret_cast<const char*>(data), used}, "fuzz");
  Eagle3Norms norms;
  const auto config =
      json.ok() ? eagle3_config(json.value(), "fuzz", kTarget, norms) : Result<Eagle3Config>(json.status());
  const Eagle3Config& c = config.ok() ? config.value() : kHead;
  MOESAIC_CHECK(validate(c, kTarget).ok());
  const auto file = used < size ? fuzz_file(end + 1, size - used - 1) : nullptr;
  auto map = std::make_shared<TensorMap>();
  if (file == nullptr || !read_safetensors(file, *map).ok()) return 0;
  return use(map, c, norms);
}

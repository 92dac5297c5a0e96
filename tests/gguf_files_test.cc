// Every GGUF type and layout that publishers use: loaded, and compared with the model that the file was made
// of, or refused with one line. The tables of docs/user/model-files.md are made here: MOESAIC_WRITE_TABLE=1
// writes them.
#include "gguf_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/expert_formats.h"
#include "checkpoint/ggml_blocks.h"
#include "checkpoint/gguf_tokenizer.h"
#include "checkpoint/writer.h"
#include "model/random_model.h"
#include "model/verify.h"
#include "model_golden.h"

namespace moesaic {
namespace {

namespace fs = std::filesystem;

ModelConfig config_of_files() {
  ModelConfig c = load_golden("tiny").config;
  // Multiples of 64 but not of 128, and the attention output's of 256: as gpt-oss has 2,880 and 4,096.
  c.hidden = 320, c.intermediate = 320, c.heads = 8, c.kv_heads = 2, c.head_dim = 64, c.vocab = 96;
  return c;
}
const std::vector<int32_t> kTokens = {5, 17, 90, 3, 44, 61, 2, 8, 71, 33, 12, 95, 0, 27, 64, 50};

// A row of the table.
struct FileCase {
  std::string file;  // who publishes such files, of what kind
  GgufLayout layout = GgufLayout::kGgml;
  GgufTypes types;
  int parts = 1;
  std::string refused = {};  // instead of a publisher: what the refused file has or lacks
};
std::vector<FileCase> cases() {
  const auto dense = [](const char* type) { return GgufTypes{.dense = type}; };
  const auto experts = [](const char* type) { return GgufTypes{"Q8_0", type, type, type}; };
  const std::string paired = "MXFP4 (type 4)";
  std::vector<FileCase> all = {
      {"ggml-org; bartowski and LM Studio `MXFP4`; unsloth `Q8_0`", GgufLayout::kGgml, dense("Q8_0")},
      {"unsloth `F16`", GgufLayout::kGgml, dense("F16")},
      {"`BF16`", GgufLayout::kGgml, dense("BF16")},
      {"`F32`", GgufLayout::kGgml, dense("F32")},
      {"`F16`, with `--fuse-gate-up-exps`", GgufLayout::kGgmlFused, dense("F16")},
      {"in two parts", GgufLayout::kGgml, dense("Q8_0"), 2},
      {"Ollama, first (from Hugging Face folders)",
       GgufLayout::kOllamaFirst,
       {"BF16", paired, paired, paired}},
      {"Ollama, first (from `original`)", GgufLayout::kOllamaFused, {"BF16", paired, paired, paired}},
      {"Ollama, present", GgufLayout::kOllama, dense("BF16")},
      {"marcelone `Q4_1`", GgufLayout::kGgml, {"Q8_0", "Q4_1", "MXFP4", "MXFP4"}},
      {"marcelone `Q8_0`", GgufLayout::kGgml, {"Q8_0", "Q8_0", "MXFP4", "MXFP4"}},
  };
  for (const char* type : {"F16", "BF16", "F32", "Q8_0", "NVFP4"})
    all.push_back({"other experts", GgufLayout::kGgml, experts(type)});
  const auto refused = [&](const char* what, GgufTypes types) {
    all.push_back({.types = std::move(types), .refused = what});
  };
  refused("a type that nobody knows", dense("(unknown)"));
  refused("dense matrices in NVFP4", dense("NVFP4"));
  refused("NVFP4 with scales beside it", {.extra = "blk.0.ffn_up_exps.scale"});
  refused("experts of two kinds", {"Q8_0", "BF16", "MXFP4", "MXFP4"});
  refused("no `output.weight`", {.without = "output.weight"});
  return all;
}

class GgufFiles : public FolderTest {
 protected:
  std::string write(const FileCase& c) const {
    std::string first;
    for (int part = 0; part < c.parts; ++part) {
      const std::string path =
          put(c.parts == 1 ? "m.gguf" : fmt::format("m-{:05}-of-{:05}.gguf", part + 1, c.parts),
              gguf_file(config_, weights_, c.layout, c.types, c.parts, part));
      if (part == 0) first = path;
    }
    return first;
  }
  std::vector<float> logits(const char* device, const ModelConfig& config,
                            const ModelWeights& weights) const {
    return run_sequence(*load_backend(device, config, weights), config, kTokens, 512, true);
  }

  const ModelConfig config_ = config_of_files();
  const ModelWeights weights_ = make_random_model(config_, {.seed = 3, .dense = Format::kF32});
};

// rms(a - b) / rms(b) of all elements.
struct Error {
  double difference = 0, square = 0;
  void add(const MatrixView& a, const MatrixView& b) {
    std::vector<float> x(static_cast<size_t>(a.cols)), y(x.size());
    for (int64_t r = 0; r < a.rows; ++r) {
      read_row(a, r, x), read_row(b, r, y);
      for (size_t i = 0; i < x.size(); ++i)
        difference += (double{x[i]} - y[i]) * (double{x[i]} - y[i]), square += double{y[i]} * y[i];
    }
  }
  void add(const ExpertsView& a, const ExpertsView& b) {
    for (int64_t e = 0; e < a.count; ++e) add(a.at(e), b.at(e));
  }
  double value() const { return std::sqrt(difference / square); }
};

struct Measured {
  std::string dense, experts;  // formats in memory
  double dense_error = 0, experts_error = 0, kl = 0;
};
Measured measure(const Checkpoint& got, const ModelWeights& want, std::span<const float> logits,
                 std::span<const float> reference, size_t vocab) {
  Error dense, experts;
  std::shared_ptr<const void> keep;
  Measured m{.dense = std::string(format_name(got.weights.head.format)),
             .experts = std::string(format_name(got.weights.layers[0].gate.first.format))};
  if (const std::string down(format_name(got.weights.layers[0].down.first.format)); down != m.experts)
    m.experts += ", " + down;
  dense.add(got.weights.embed, want.embed), dense.add(got.weights.head, want.head);
  for (int i = 0; i < got.config.layers; ++i) {
    const auto layer = layer_of(got.weights, i);
    EXPECT_TRUE(layer.ok());
    const LayerWeights &a = layer->weights, &b = want.layers[static_cast<size_t>(i)];
    dense.add(a.q, b.q), dense.add(a.k, b.k), dense.add(a.v, b.v), dense.add(a.o, b.o);
    experts.add(a.gate, b.gate), experts.add(a.up, b.up), experts.add(a.down, b.down);
  }
  m.dense_error = dense.value(), m.experts_error = experts.value();
  std::vector<double> kl;
  for (size_t row = 0; row < kTokens.size(); ++row)
    kl.push_back(kl_divergence(reference.subspan(row * vocab, vocab), logits.subspan(row * vocab, vocab)));
  std::ranges::sort(kl);
  m.kl = kl[kl.size() / 2];
  return m;
}

std::string shown(double error) { return error == 0 ? "exact" : fmt::format("{:.1g}", error); }

std::string row_of(const FileCase& c, const Measured& m) {
  const std::string experts =
      c.types.gate == c.types.up ? c.types.gate : fmt::format("gate {}, else {}", c.types.gate, c.types.up);
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} |\n", c.file, c.types.dense, experts, m.dense,
                     m.experts, shown(m.dense_error), shown(m.experts_error));
}

std::string page_path() { return std::string(MOESAIC_SOURCE_DIR) + "/docs/user/model-files.md"; }
std::string read_page() {
  std::stringstream text;
  text << std::ifstream(page_path()).rdbuf();
  return text.str();
}

// The text between the marks of a table; with MOESAIC_WRITE_TABLE set it is written first.
std::string table_of_page(const std::string& name, const std::string& made) {
  const std::string begin = "<!-- table: " + name + " -->\n", end = "<!-- end -->";
  std::string page = read_page();
  const size_t at = page.find(begin) + begin.size(), to = page.find(end, at);
  if (std::getenv("MOESAIC_WRITE_TABLE") != nullptr)
    std::ofstream(page_path()) << page.replace(at, to - at, made);
  page = read_page();
  return page.substr(at, page.find(end, at) - at);
}

TEST_F(GgufFiles, TableOfThePageIsWhatIsLoaded) {
  const auto reference = logits("reference", config_, weights_);
  std::string loaded =
      "| file | dense in the file | experts in the file | dense in memory | experts in memory | error of "
      "dense | "
      "error of experts |\n|---|---|---|---|---|---|---|\n";
  std::string refused = "| what the file has | message |\n|---|---|\n";
  for (const FileCase& c : cases()) {
    const std::string path = write(c);
    const auto checkpoint = open_checkpoint(path);
    if (!c.refused.empty()) {
      ASSERT_FALSE(checkpoint.ok()) << c.refused;
      std::string line = checkpoint.status().message();
      EXPECT_EQ(line.find('\n'), std::string::npos);
      if (const size_t at = line.find(path); at != std::string::npos) line.replace(at, path.size(), "m.gguf");
      refused += fmt::format("| {} | `{}` |\n", c.refused, line);
      continue;
    }
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const auto got = logits("reference", checkpoint->config, checkpoint->weights);
    const Measured m =
        measure(checkpoint.value(), weights_, got, reference, static_cast<size_t>(config_.vocab));
    fmt::print("{:<60} {:<6} {:<14} KL {:.1e}\n", c.file, c.types.dense, c.types.gate, m.kl);
    EXPECT_LT(m.dense_error, 0.12) << c.types.dense;
    EXPECT_LT(m.experts_error, 0.2) << c.types.gate;
    loaded += row_of(c, m);
  }
  EXPECT_EQ(table_of_page("loaded", loaded), loaded) << "MOESAIC_WRITE_TABLE=1 gguf_files_test writes it";
  EXPECT_EQ(table_of_page("refused", refused), refused) << "MOESAIC_WRITE_TABLE=1 gguf_files_test writes it";
}

// The types that llama.cpp's quantiser gives each tensor of gpt-oss, by file type.
std::map<std::string, std::map<std::string, std::vector<std::string>>> quantiser_files() {
  return nlohmann::json::parse(
      std::ifstream(std::string(MOESAIC_SOURCE_DIR) + "/tests/golden/gguf/quantiser.json"));
}
constexpr const char* kDense[] = {"token_embd", "output", "attn_q", "attn_k", "attn_v", "attn_output"};

// A row says which files have these types.
std::string quantiser_row(const std::map<std::string, std::vector<std::string>>& types) {
  const auto of = [&](const std::string& tensor) {
    return fmt::to_string(fmt::join(types.at(tensor), ", "));
  };
  EXPECT_EQ(of("attn_q"), of("attn_k"));
  std::set<std::string> experts;
  for (const char* part : {"gate", "up", "down"}) {
    const auto& some = types.at(fmt::format("ffn_{}_exps, requantised", part));
    experts.insert(some.begin(), some.end());
  }
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", of("token_embd"), of("output"), of("attn_q"),
                     of("attn_v"), of("attn_output"), fmt::to_string(fmt::join(experts, ", ")));
}

TEST_F(GgufFiles, FilesOfLlamaCppsQuantiserAreOpened) {
  ModelConfig config = config_;
  config.layers = 1, config.experts = 2, config.experts_per_token = 1, config.sliding = {true};
  const ModelWeights weights = make_random_model(config, {.seed = 3, .dense = Format::kF32});
  const auto open = [&](const GgufTypes& types) {
    const std::string path = (folder_ / "q.gguf").string();
    std::ofstream(path, std::ios::binary) << gguf_file(config, weights, GgufLayout::kGgml, types);
    return open_checkpoint(path);
  };
  std::map<std::string, std::string> files;  // by the rest of the row
  for (const auto& [file, types] : quantiser_files()) {
    if (types.empty()) continue;  // refused by the quantiser itself
    auto& names = files[quantiser_row(types)];
    names += (names.empty() ? "" : ", ") + file;
    if (names != file) continue;
    const auto of_several = [](const auto& entry) { return entry.second.size() > 1; };
    for (const bool last : {false, true}) {  // a tensor may have two types, in different layers
      if (last && std::ranges::none_of(types, of_several)) continue;
      const auto one = [last, &of = types](const std::string& tensor) {
        return last ? of.at(tensor).back() : of.at(tensor).front();
      };
      GgufTypes in_file;
      for (const char* tensor : kDense) in_file.others[tensor] = one(tensor);
      const auto kept = open(in_file);
      ASSERT_TRUE(kept.ok()) << file << ": " << kept.status().message();
      EXPECT_TRUE(all_mxfp4(kept->weights)) << file;
      const LayerWeights& w = kept->weights.layers[0];
      for (const MatrixView* m : {&kept->weights.embed, &kept->weights.head, &w.q, &w.k, &w.v, &w.o}) {
        EXPECT_EQ(m->format, Format::kQ8_0) << file;
        for (int64_t r = 0; r < m->rows; ++r) ASSERT_TRUE(row_is_finite(*m, r)) << file;
      }
      in_file.gate = one("ffn_gate_exps, requantised"), in_file.up = one("ffn_up_exps, requantised");
      in_file.down = one("ffn_down_exps, requantised");
      const auto changed = open(in_file);
      ASSERT_TRUE(changed.ok()) << file << ": " << changed.status().message();
      EXPECT_TRUE(layer_of(changed->weights, 0).ok()) << file;
    }
  }
  std::map<std::string, std::string> rows;
  for (const auto& [types, names] : files) rows[names] = types;
  std::string table =
      "| file type | embedding | head | q, k | v | attention output | experts, if they are requantised |\n"
      "|---|---|---|---|---|---|---|\n";
  for (const auto& [names, types] : rows) table += fmt::format("| {} {}", names, types);
  EXPECT_EQ(table_of_page("quantiser", table), table) << "MOESAIC_WRITE_TABLE=1 gguf_files_test writes it";
}

double error_of(Format format, const std::byte* data, std::span<const float> want) {
  const auto cols = std::ssize(want);
  Error error;
  error.add(dense_view(format, 1, cols, data),
            dense_view(Format::kF32, 1, cols, reinterpret_cast<const std::byte*>(want.data())));
  return error.value();
}

// By ggml's own quantiser, on normal numbers.
TEST_F(GgufFiles, TypesOfLlamaCppsQuantiserLoseWhatThePageSays) {
  const QuantisedGoldens& goldens = quantised_goldens();
  ASSERT_EQ(goldens.types.size(), ggml_blocks().size() + 1);  // and Q8_0
  ThreadPool pool(1);
  std::string table =
      "| type | dense in memory | error | experts in memory | error |\n|---|---|---|---|---|\n";
  for (const auto& [name, blocks] : goldens.types) {
    const GgmlBlocks* const type = find_ggml_blocks(name);
    const RawTensor tensor{.dtype = name,
                           .shape = {1, 1, std::ssize(goldens.numbers)},
                           .data = std::as_bytes(std::span(blocks))};
    const auto dense = convert_blocks(tensor, Format::kQ8_0, pool);
    ASSERT_TRUE(dense.ok()) << name;
    const double lost = error_of(Format::kQ8_0, dense->as<>(), goldens.numbers);
    EXPECT_LT(lost, 0.8) << name;
    std::string row = fmt::format("| {} | Q8_0 | {:.2g} |", name, lost);
    if (type != nullptr && config_of_files().hidden % type->block != 0) {
      row += " | |\n";
    } else {
      const Format held = *expert_format(name);
      const auto experts = convert_blocks(tensor, held, pool);
      ASSERT_TRUE(experts.ok()) << name;
      row += fmt::format(" {} | {:.2g} |\n", format_name(held),
                         error_of(held, experts->as<>(), goldens.numbers));
    }
    table += row;
  }
  EXPECT_EQ(table_of_page("types", table), table) << "MOESAIC_WRITE_TABLE=1 gguf_files_test writes it";
}

// Each matrix in a type of its own, as the quantiser's --tensor-type makes them.
TEST_F(GgufFiles, DenseMatricesOfEveryKeptTypeAreConverted) {
  const GgufTypes types{.dense = "MXFP4",
                        .others = {{"output", "Q8_0"}, {"attn_k", "F16"}, {"attn_v", "F32"}}};
  const auto source = open_checkpoint(write({"", GgufLayout::kGgml, types}));
  ASSERT_TRUE(source.ok()) << source.status().message();
  const std::string gguf = (folder_ / "kept.gguf").string();
  const Status written = write_gguf(source.value(), gguf, {});
  ASSERT_TRUE(written.ok()) << written.message();
  const auto kept = open_checkpoint(gguf);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  const LayerWeights &a = kept->weights.layers[1], &b = source->weights.layers[1];
  for (const auto& [x, y] : {std::pair(&kept->weights.embed, &source->weights.embed), std::pair(&a.q, &b.q),
                             std::pair(&kept->weights.head, &source->weights.head), std::pair(&a.k, &b.k),
                             std::pair(&a.v, &b.v), std::pair(&a.o, &b.o)}) {
    EXPECT_EQ(x->format, y->format);
    Error error;
    error.add(*x, *y);
    EXPECT_EQ(error.difference, 0);
  }
}

// Files hold the bits of the Hugging Face form, whatever their names, the order of their nibbles and that of
// gate and up.
TEST_F(GgufFiles, EveryLayoutGivesTheLogitsOfHuggingFace) {
  const ModelWeights bf16 = make_random_model(config_, {.seed = 3, .dense = Format::kBF16});
  const std::string paired = "MXFP4 (type 4)";
  for (const char* device : {"reference", "cpu"}) {
    const auto want = logits(device, config_, bf16);
    const std::pair<GgufLayout, std::string> files[] = {{GgufLayout::kGgmlFused, "MXFP4"},
                                                        {GgufLayout::kGgmlFused, paired},
                                                        {GgufLayout::kOllama, "MXFP4"},
                                                        {GgufLayout::kOllamaFirst, paired},
                                                        {GgufLayout::kOllamaFused, paired}};
    for (const auto& [layout, type] : files) {
      const auto checkpoint = open_checkpoint(write({"", layout, {"BF16", type, type, type}}));
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
      EXPECT_EQ(checkpoint->config.rope.factor, config_.rope.factor);
      EXPECT_EQ(logits(device, checkpoint->config, checkpoint->weights), want) << device;
      EXPECT_EQ(checkpoint->conversions.size(), type == paired ? 1U : 0U);
    }
  }
}

// Type 4 is put in order bit for bit, so convert writes it in either form.
TEST_F(GgufFiles, OllamasFirstFilesAreConverted) {
  const std::string paired = "MXFP4 (type 4)";
  const ModelWeights bf16 = make_random_model(config_, {.seed = 3, .dense = Format::kBF16});
  const auto want = logits("reference", config_, bf16);
  const auto source =
      open_checkpoint(write({"", GgufLayout::kOllamaFused, {"BF16", paired, paired, paired}}));
  ASSERT_TRUE(source.ok()) << source.status().message();
  const std::string gguf = (folder_ / "converted.gguf").string(), folder = (folder_ / "converted").string();
  for (const Status& status :
       {write_gguf(source.value(), gguf, {}), write_safetensors(source.value(), folder, {})})
    ASSERT_TRUE(status.ok()) << status.message();
  for (const std::string& name : {gguf, folder}) {
    const auto converted = open_checkpoint(name);
    ASSERT_TRUE(converted.ok()) << converted.status().message();
    EXPECT_TRUE(converted->conversions.empty());
    EXPECT_EQ(logits("reference", converted->config, converted->weights), want) << name;
  }
}

// The bundled model as an Ollama blob: the same logits, tokens and end of an answer.
TEST_F(GgufFiles, TinyAsAnOllamaBlob) {
  const auto tiny = open_checkpoint(std::string(MOESAIC_SOURCE_DIR) + "/models/tiny");
  ASSERT_TRUE(tiny.ok()) << tiny.status().message();
  const auto tokenizer = gguf_tokenizer(tiny->tokenizer, tiny->config.vocab);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  const std::string paired = "MXFP4 (type 4)", path = (folder_ / "sha256-0123").string();
  std::ofstream(path, std::ios::binary)
      << gguf_file(tiny->config, tiny->weights, GgufLayout::kOllamaFused, {"BF16", paired, paired, paired}, 1,
                   0, &tokenizer.value());
  const auto blob = open_checkpoint(path);
  ASSERT_TRUE(blob.ok()) << blob.status().message();
  EXPECT_EQ(blob->tokenizer.tokens, tokenizer->tokens);
  EXPECT_EQ(blob->tokenizer.pre, "gpt-4o");
  EXPECT_EQ(blob->config.rope.factor, tiny->config.rope.factor);
  EXPECT_EQ(blob->config.window, tiny->config.window);
  if (const char* keep = std::getenv("MOESAIC_KEEP_BLOB"); keep != nullptr) fs::copy_file(path, keep);
  EXPECT_LT(distance(logits("reference", blob->config, blob->weights),
                     logits("reference", tiny->config, tiny->weights))
                .max,
            1e-6);
}

TEST_F(GgufFiles, ConvertedExpertsLoadOnEveryDevice) {
  for (const char* type : {"Q4_1", "Q5_0", "NVFP4", "IQ4_NL"}) {
    const auto checkpoint = open_checkpoint(write({"", GgufLayout::kGgml, {"Q8_0", type, type, type}}));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    ASSERT_EQ(checkpoint->conversions.size(), 1U);
    EXPECT_NE(checkpoint->conversions[0].find(fmt::format("experts: {} becomes ", type)), std::string::npos);
    const auto want = logits("reference", checkpoint->config, checkpoint->weights);
    const auto vocab = static_cast<size_t>(config_.vocab);
    for (const char* device : devices()) {
      const auto got = logits(device, checkpoint->config, checkpoint->weights);
      std::vector<double> kl;
      for (size_t row = 0; row < kTokens.size(); ++row)
        kl.push_back(kl_divergence(std::span(want).subspan(row * vocab, vocab),
                                   std::span(got).subspan(row * vocab, vocab)));
      std::ranges::sort(kl);
      EXPECT_LT(kl[kl.size() / 2], 1e-3) << type << " on " << device;
    }
  }
}

// convert says what it rounds without having been asked to.
TEST_F(GgufFiles, RoundingsOfConvertAreTold) {
  const auto told = [&](const char* dense, const char* experts, const WriteOptions& options, bool gguf) {
    const auto source = open_checkpoint(write({"", GgufLayout::kGgml, {dense, experts, experts, experts}}));
    EXPECT_TRUE(source.ok()) << source.status().message();
    return fmt::to_string(fmt::join(roundings(source.value(), options, gguf), "; "));
  };
  const WriteOptions keep, mxfp4{.experts = ExpertsOut::kMxfp4}, bf16{.dense = Format::kBF16};
  EXPECT_EQ(told("BF16", "MXFP4", keep, true), "");
  EXPECT_EQ(told("BF16", "MXFP4", keep, false), "");
  EXPECT_EQ(told("F16", "MXFP4", keep, false), "");
  EXPECT_EQ(told("Q8_0", "MXFP4", keep, true), "");
  EXPECT_EQ(told("Q8_0", "MXFP4", keep, false), "dense matrices in Q8_0 are rounded to BF16");
  EXPECT_EQ(told("Q4_0", "MXFP4", keep, true), "");  // exact in Q8_0
  EXPECT_EQ(told("Q4_1", "MXFP4", keep, true).find("Q4_1 becomes Q8_0 (rounded)"), 0U);
  EXPECT_EQ(told("BF16", "F16", keep, false), "experts in F16 are rounded to BF16");
  EXPECT_EQ(told("BF16", "F16", mxfp4, false), "");
  EXPECT_EQ(told("Q8_0", "MXFP4", bf16, false), "norms, biases or routers in F32 are rounded to BF16");
}

// NVFP4 as ModelOpt makes it has a scale for each expert in a tensor beside it: without it all would be
// wrong.
TEST_F(GgufFiles, TensorsThatNobodyReadsAreRefused) {
  const std::pair<const char*, const char*> kCases[] = {
      {"blk.0.ffn_norm_2.weight", "'blk.0.ffn_norm_2.weight' is not one of this model"},
      {"rope_freqs.weight", "'rope_freqs.weight' is not one of this model"},
      {"blk.1.ffn_up_exps.scale", "'blk.1.ffn_up_exps.scale' scales another one"},
      {"blk.99.attn_q.weight", "'blk.99.attn_q.weight' is not one of this model"}};
  for (const auto& [name, says] : kCases) {
    const auto checkpoint = open_checkpoint(write({"", GgufLayout::kGgml, {.extra = name}}));
    ASSERT_FALSE(checkpoint.ok()) << name;
    EXPECT_NE(checkpoint.status().message().find(says), std::string::npos) << checkpoint.status().message();
  }
}

// A router's adapter stays when the experts of its layer are converted.
TEST_F(GgufFiles, AdaptersAndConvertedExpertsGoTogether) {
  const auto checkpoint = open_checkpoint(write({"", GgufLayout::kGgml, {"Q8_0", "Q4_1", "Q4_1", "Q4_1"}}));
  ASSERT_TRUE(checkpoint.ok());
  ModelWeights w = checkpoint->weights;
  std::vector<float> router(static_cast<size_t>(config_.experts * config_.hidden));
  w.layers[1].router = dense_view(Format::kF32, config_.experts, config_.hidden,
                                  reinterpret_cast<const std::byte*>(router.data()));
  const auto layer = layer_of(w, 1);
  ASSERT_TRUE(layer.ok());
  EXPECT_EQ(layer->weights.router.data, w.layers[1].router.data);
  EXPECT_NE(layer->weights.gate.first.data, w.layers[1].gate.first.data);
}

}  // namespace
}  // namespace moesaic

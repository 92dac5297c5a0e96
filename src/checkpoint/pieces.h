// The writers of both forms share this: tensors as pieces whose size is known before their bytes are made.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/output_file.h"
#include "checkpoint/writer.h"
#include "core/tensor_name.h"

namespace moesaic {

using Bytes = std::vector<std::byte>;

struct Piece {
  std::string name;
  Format format = Format::kF32;
  std::string dtype;           // as safetensors names it
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes = 0;
  std::function<Status(OutputFile&)> write;
  int layer = kNoLayer;
};

// Calls encode(row, out) for each row and writes what it appends, a few megabytes at a time.
Status write_rows(OutputFile& file, int64_t rows, const std::function<Status(int64_t, Bytes&)>& encode);

// An error that names the tensor where what is about to be written is no number: the source holds a NaN or an
// infinity, or a value that the format cannot.
Status check_made(const MatrixView& row, const std::string& tensor);

// Rows in a format, checked: `sections` of equal shape row by row in turn (gate and up, interleaved), expert
// after expert. Where the format keeps scales apart a piece has one half.
enum class Half { kData, kScales };
Piece rows_piece(std::string name, std::vector<ExpertsView> sections, Format format,
                 std::vector<int64_t> shape, Half half = Half::kData);
// Pieces of a matrix: X, and X_scale of a format that keeps scales apart.
void add_matrix(std::vector<Piece>& pieces, const std::string& name, const MatrixView& m,
                std::vector<int64_t> shape, Format format);

// An error for a model whose experts are rounded as they are loaded: what would be written is not what the
// file has.
Status check_source(const Checkpoint& source);

// A writer's collector gathers the pieces: of all weights, or of one layer.
template <typename Collector>
std::vector<Piece> pieces_of(Collector collector, const ModelWeights& weights) {
  collector.top(weights);
  for (size_t i = 0; i < weights.layers.size(); ++i) collector.layer(static_cast<int>(i), weights.layers[i]);
  return collector.take();
}
template <typename Collector>
std::vector<Piece> pieces_of(Collector collector, int layer, const LayerWeights& weights) {
  collector.layer(layer, weights);
  return collector.take();
}

// A layer's pieces, in their order.
using LayerPieces = std::function<std::vector<Piece>(int layer, const LayerWeights&)>;

// Writes the pieces one after the other and lets the source's pages go behind each layer. Where experts are
// converted as they are read, a layer's pieces are made anew when it is its turn.
Status write_pieces(OutputFile& file, const std::vector<Piece>& pieces, size_t alignment,
                    const Checkpoint& source, const WriteOptions& options, const LayerPieces& layer_pieces);

}  // namespace moesaic

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
  std::string name, dtype;     // dtype as safetensors names it, Q8_0 and MXFP4 as GGUF does
  std::vector<int64_t> shape;  // outermost first
  int64_t bytes = 0;
  std::function<Status(OutputFile&)> write;
  int layer = kNoLayer;
};

void append(Bytes& out, const void* data, size_t n);

// Calls encode(row, out) for each row and writes what it appends, a few megabytes at a time.
Status write_rows(OutputFile& file, int64_t rows, const std::function<Status(int64_t, Bytes&)>& encode);

// An error that names the tensor where what is about to be written is no number: the source holds a NaN or an
// infinity, or a value that the format cannot.
Status check_made(const MatrixView& row, const std::string& tensor);

// Row r in a target format: F32, F16, BF16 or Q8_0, checked. values: scratch of m.cols floats.
Status encode_row(const MatrixView& m, int64_t r, Format format, const std::string& tensor,
                  std::vector<float>& values, Bytes& out);

// Row r of one expert as MXFP4 in the canonical order, quantised if it is not MXFP4 yet, and checked.
Status mxfp4_row(const MatrixView& m, int64_t r, const std::string& tensor, std::vector<float>& values,
                 std::vector<uint8_t>& codes, std::vector<uint8_t>& scales);

// An error for a model whose experts are rounded as they are loaded: what would be written is not what the
// file has.
Status check_source(const Checkpoint& source);

const char* dtype_name(Format format);
Piece matrix_piece(std::string name, const MatrixView& m, std::vector<int64_t> shape, Format format);

// A layer's pieces, in their order.
using LayerPieces = std::function<std::vector<Piece>(int layer, const LayerWeights&)>;

// Writes the pieces one after the other and lets the source's pages go behind each layer. Where experts are
// converted as they are read, a layer's pieces are made anew when it is its turn.
Status write_pieces(OutputFile& file, const std::vector<Piece>& pieces, size_t alignment,
                    const Checkpoint& source, const WriteOptions& options, const LayerPieces& layer_pieces);

}  // namespace moesaic

#include "checkpoint/pieces.h"

#include "base/error.h"

namespace moesaic {

Status check_made(const MatrixView& row, const std::string& tensor) {
  if (row_is_finite(row, 0)) return {};
  return invalid("tensor '{}': a NaN, an infinity, or a value beyond {}; nothing is written", tensor,
                 format_name(row.format));
}

Status write_rows(OutputFile& file, int64_t rows, const std::function<Status(int64_t, Bytes&)>& encode) {
  Bytes batch;
  for (int64_t r = 0; r < rows; ++r) {
    RETURN_IF_ERROR(encode(r, batch));
    if (batch.size() < (4 << 20) && r + 1 < rows) continue;
    RETURN_IF_ERROR(file.write(batch));
    batch.clear();
  }
  return {};
}

Status check_source(const Checkpoint& source) {
  if (!source.weights.convert_experts || source.weights.converts_exactly) return {};
  return error(StatusCode::kUnsupported,
               "convert does not write what is converted at load ({}); use the original weights",
               source.conversions.empty() ? "experts" : source.conversions.front());
}

Piece rows_piece(std::string name, std::vector<ExpertsView> sections, Format format,
                 std::vector<int64_t> shape, Half half) {
  const auto parts = std::ssize(sections);
  const int64_t cols = sections[0].first.cols, rows = sections[0].first.rows * parts,
                all = sections[0].count * rows;
  const bool scales = half == Half::kScales;
  const int64_t width = scales ? row_scale_bytes(format, cols) : row_bytes(format, cols);
  const auto write = [=, sections = std::move(sections)](OutputFile& file) {
    std::vector<float> values(static_cast<size_t>(cols));
    Bytes data(static_cast<size_t>(row_bytes(format, cols))),
        apart(static_cast<size_t>(row_scale_bytes(format, cols)));
    return write_rows(file, all, [&](int64_t r, Bytes& out) -> Status {
      const int64_t row = r % rows;
      const MatrixView m = sections[static_cast<size_t>(row % parts)].at(r / rows);
      convert_row(m, row / parts, format, values, data.data(), apart.data());
      RETURN_IF_ERROR(check_made(dense_view(format, 1, cols, data.data(), apart.data()), name));
      const Bytes& made = scales ? apart : data;
      out.insert(out.end(), made.begin(), made.end());
      return {};
    });
  };
  const std::string_view type = scales ? "" : info_of(format).safetensors;
  return {.name = name,
          .format = format,
          .dtype = type.empty() ? "U8" : std::string(type),
          .shape = std::move(shape),
          .bytes = all * width,
          .write = write};
}

void add_matrix(std::vector<Piece>& pieces, const std::string& name, const MatrixView& m,
                std::vector<int64_t> shape, Format format) {
  const std::vector<ExpertsView> one = {{.first = m, .count = 1}};
  pieces.push_back(rows_piece(name, one, format, std::move(shape)));
  if (const int64_t scales = row_scale_bytes(format, m.cols); scales > 0)
    pieces.push_back(rows_piece(name + "_scale", one, format, {m.rows, scales}, Half::kScales));
}

Status write_pieces(OutputFile& file, const std::vector<Piece>& pieces, size_t alignment,
                    const Checkpoint& source, const WriteOptions& options, const LayerPieces& layer_pieces) {
  const auto layer_at = [&](size_t i) { return i < pieces.size() ? pieces[i].layer : kNoLayer - 1; };
  ReadableLayer converted;
  std::vector<Piece> made;  // those of `converted`, the first of them at `first`
  size_t first = 0;
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i == 0 || layer_at(i) != layer_at(i - 1)) {
      first = i, made.clear(), converted = {};
      if (source.weights.convert_experts && layer_at(i) != kNoLayer) {
        ASSIGN_OR_RETURN(converted, layer_of(source.weights, layer_at(i)));
        made = layer_pieces(layer_at(i), converted.weights);
      }
    }
    const Piece& piece = made.empty() ? pieces[i] : made[i - first];
    const size_t before = file.position();
    RETURN_IF_ERROR(piece.write(file));
    MOESAIC_CHECK(file.position() - before == static_cast<size_t>(pieces[i].bytes));
    RETURN_IF_ERROR(file.pad(alignment));
    if (layer_at(i + 1) != layer_at(i) && source.weights.release) source.weights.release(layer_at(i));
    if (options.progress) options.progress(static_cast<int>(i + 1), static_cast<int>(pieces.size()));
  }
  if (source.weights.intact) RETURN_IF_ERROR(source.weights.intact());
  return {};
}

}  // namespace moesaic

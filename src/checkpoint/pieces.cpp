#include "checkpoint/pieces.h"

#include "base/error.h"
#include "core/q8_0.h"
#include "mx/block.h"

namespace moesaic {

void append(Bytes& out, const void* data, size_t n) {
  const auto* p = static_cast<const std::byte*>(data);
  out.insert(out.end(), p, p + n);
}

namespace {

void append_row(const MatrixView& m, int64_t r, Format format, std::vector<float>& values, Bytes& out) {
  if (m.format == Format::kQ8_0 && format == Format::kQ8_0)
    return append(out, m.data + r * m.row_stride, row_bytes(format, m.cols));
  read_row(m, r, values);
  if (format == Format::kF32) return append(out, values.data(), values.size() * 4);
  for (size_t b = 0; format == Format::kQ8_0 && b < values.size(); b += 32) {
    int8_t q[mx::kBlock];
    const uint16_t scale = quantize_q8_0(values.data() + b, q);
    append(out, &scale, 2);
    append(out, q, sizeof q);
  }
  for (const float v : values) {
    if (format == Format::kQ8_0) break;
    const uint16_t half = format == Format::kF16 ? mx::encode_f16(v) : mx::encode_bf16(v);
    append(out, &half, 2);
  }
}

}  // namespace

Status check_made(const MatrixView& row, const std::string& tensor) {
  if (row_is_finite(row, 0)) return {};
  return invalid("tensor '{}': a NaN, an infinity, or a value beyond {}; nothing is written", tensor,
                 format_name(row.format));
}

Status encode_row(const MatrixView& m, int64_t r, Format format, const std::string& tensor,
                  std::vector<float>& values, Bytes& out) {
  const size_t begin = out.size();
  append_row(m, r, format, values, out);
  return check_made(dense_view(format, 1, m.cols, out.data() + begin), tensor);
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

const char* dtype_name(Format format) {
  return format == Format::kF32    ? "F32"
         : format == Format::kF16  ? "F16"
         : format == Format::kQ8_0 ? "Q8_0"
                                   : "BF16";
}

Piece matrix_piece(std::string name, const MatrixView& m, std::vector<int64_t> shape, Format format) {
  const auto write = [m, format, name](OutputFile& file) {
    std::vector<float> values(m.cols);
    return write_rows(file, m.rows,
                      [&](int64_t r, Bytes& out) { return encode_row(m, r, format, name, values, out); });
  };
  return {std::move(name), dtype_name(format), std::move(shape), m.rows * row_bytes(format, m.cols), write};
}

Status mxfp4_row(const MatrixView& m, int64_t r, const std::string& tensor, std::vector<float>& values,
                 std::vector<uint8_t>& codes, std::vector<uint8_t>& scales) {
  if (is_mxfp4(m.format)) {
    read_mxfp4_row(m, r, codes, scales);
  } else {
    read_row(m, r, values);
    for (size_t b = 0; b < scales.size(); ++b)
      scales[b] = mx::quantize_mxfp4(values.data() + b * 32, codes.data() + b * 16);
  }
  return check_made(dense_view(Format::kMxfp4, 1, m.cols, reinterpret_cast<const std::byte*>(codes.data()),
                               reinterpret_cast<const std::byte*>(scales.data())),
                    tensor);
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

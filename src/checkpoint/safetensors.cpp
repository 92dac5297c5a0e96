// safetensors: u64 header length, a JSON object name -> {dtype, shape, data_offsets}, then the data.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/tensor_map.h"

namespace moesaic {
namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit

int64_t dtype_bytes(const std::string& dtype) {
  if (dtype == "F32" || dtype == "I32") return 4;
  if (dtype == "F16" || dtype == "BF16") return 2;
  if (dtype == "I64" || dtype == "F64") return 8;
  constexpr std::string_view kBytes[] = {"U8", "I8", "BOOL", "F8_E4M3", "F8_E8M0"};
  return std::ranges::find(kBytes, dtype) != std::end(kBytes) ? 1 : 0;
}

Result<std::vector<int64_t>> read_integers(const Json& json, const char* key, size_t limit,
                                           const std::string& where) {
  const Json& list = member(json, key);
  if (!list.is_array() || list.size() > limit) return invalid("{}: '{}' is not a short list", where, key);
  std::vector<int64_t> values;
  for (const Json& v : list) {
    if (!v.is_number_integer() || v.get<int64_t>() < 0)
      return invalid("{}: '{}' holds something that is not a size", where, key);
    values.push_back(v.get<int64_t>());
  }
  return values;
}

struct Extent {
  int64_t begin, end;
  std::string name;
};

bool is_copy(const RawTensor& a, const RawTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.data, b.data);
}

Status read_entry(const std::string& name, const Json& entry, std::span<const std::byte> data,
                  const MappedFile& file, TensorMap& out, std::vector<Extent>& extents) {
  const std::string where = fmt::format("{}: tensor '{}'", file.path(), name.substr(0, 120));
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string())
    return invalid("{}: it has no dtype", where);
  RawTensor tensor{.dtype = entry["dtype"].get<std::string>(), .file = &file};
  ASSIGN_OR_RETURN(tensor.shape, read_integers(entry, "shape", 8, where));
  ASSIGN_OR_RETURN(const std::vector<int64_t> offsets, read_integers(entry, "data_offsets", 2, where));
  const int64_t size = dtype_bytes(tensor.dtype);
  if (size == 0)
    return error(
        StatusCode::kUnsupported,
        "{}: dtype '{}' is not supported; use weights in BF16, F16, F32 or MXFP4 (U8), or a GGUF file", where,
        tensor.dtype.substr(0, 20));
  const auto count = element_count(tensor.shape);
  if (!count) return invalid("{}: impossible shape", where);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > std::ssize(data))
    return invalid("{}: its data lies outside the file (truncated download?)", where);
  if (offsets[1] - offsets[0] != *count * size)
    return invalid("{}: {} bytes do not fit its shape and dtype", where, offsets[1] - offsets[0]);
  tensor.data = data.subspan(offsets[0], offsets[1] - offsets[0]);
  extents.push_back({offsets[0], offsets[1], name});
  const auto [there, added] = out.tensors.emplace(name, tensor);
  if (!added && !is_copy(there->second, tensor))
    return invalid("{}: it stands in two files, and not the same", where);
  return {};
}

Status check_overlaps(std::vector<Extent>& extents, const std::string& path) {
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin < extents[i - 1].end)
      return invalid("{}: tensors '{}' and '{}' overlap", path, extents[i - 1].name.substr(0, 80),
                     extents[i].name.substr(0, 80));
  }
  return {};
}

}  // namespace

std::optional<int64_t> element_count(std::span<const int64_t> shape) {
  int64_t count = 1;
  for (const int64_t d : shape) {
    if (d <= 0 || d > (int64_t{1} << 48) / count) return std::nullopt;
    count *= d;
  }
  return count;
}

std::optional<Format> float_format(const RawTensor& tensor) {
  const auto format = stored_format(tensor.dtype);
  return format && !is_mx(*format) ? format : std::nullopt;
}

std::string shape_text(std::span<const int64_t> shape) {
  return fmt::format("[{}]", fmt::to_string(fmt::join(shape, ", ")));
}

const RawTensor* TensorMap::find(const std::string& name) const {
  const auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

Status TensorMap::append(TensorMap other) {
  for (auto& [name, tensor] : other.tensors) {
    const std::string& path = tensor.file->path();
    if (!tensors.emplace(name, std::move(tensor)).second)
      return invalid("{}: tensor '{}' stands in an earlier file, too", path, name.substr(0, 120));
  }
  std::ranges::move(other.files, std::back_inserter(files));
  return {};
}

std::vector<TensorInfo> TensorMap::list() const {
  std::vector<TensorInfo> infos;
  for (const auto& [name, t] : tensors) infos.push_back({name, t.dtype, t.shape, std::ssize(t.data)});
  return infos;
}

Status read_safetensors(std::shared_ptr<const MappedFile> file, TensorMap& out) {
  const std::span<const std::byte> bytes = file->bytes();
  uint64_t header = 0;
  if (bytes.size() < sizeof header) return invalid("{}: too short for a safetensors file", file->path());
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header > kMaxHeader || header > bytes.size() - sizeof header)
    return invalid("{}: the header of {} bytes does not fit the file (truncated or not safetensors)",
                   file->path(), header);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof header, header);
  ASSIGN_OR_RETURN(const Json json, parse_json(text, file->path() + " (header)"));
  if (!json.is_object()) return invalid("{}: the header is not a JSON object", file->path());
  std::vector<Extent> extents;
  for (const auto& [name, entry] : json.items()) {
    if (name != "__metadata__")
      RETURN_IF_ERROR(read_entry(name, entry, bytes.subspan(sizeof header + header), *file, out, extents));
  }
  RETURN_IF_ERROR(check_overlaps(extents, file->path()));
  out.files.push_back(std::move(file));
  return {};
}

Result<std::shared_ptr<TensorMap>> read_safetensors(const std::filesystem::path& folder,
                                                    const std::set<std::string>& names) {
  auto tensors = std::make_shared<TensorMap>();
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(auto file, MappedFile::open((folder / name).string()));
    RETURN_IF_ERROR(read_safetensors(std::move(file), *tensors));
  }
  return tensors;
}

}  // namespace moesaic

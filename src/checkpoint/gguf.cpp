#include "checkpoint/gguf.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "checkpoint/expert_formats.h"
#include "checkpoint/ggml_blocks.h"

namespace moesaic {
namespace {

constexpr uint32_t kMagic = 0x46554747u;  // "GGUF"

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64
};

struct TensorType {
  uint32_t id;
  std::string_view name;
  int64_t block, bytes;  // elements and bytes of a block
};
// Numbers, which no weight has.
constexpr TensorType kIntegers[] = {{26, "I32", 1, 4}, {27, "I64", 1, 8}};
// By their numbers, as ggml has them in 2026; empty: numbers that it has given up.
constexpr const char* kTypeNames[] = {
    "F32",   "F16",    "Q4_0",  "Q4_1", "",     "",        "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
    "IQ2_S", "IQ4_XS", "I8",    "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16",  "",       "",
    "",      "TQ1_0",  "TQ2_0", "",     "",     "",        "MXFP4",  "NVFP4",   "Q1_0",  "Q2_0"};

std::optional<TensorType> tensor_type(uint32_t id) {
  for (const TensorType& t : kIntegers) {
    if (t.id == id) return t;
  }
  for (const FormatInfo& f : formats()) {
    if (f.gguf == static_cast<int64_t>(id)) return TensorType{id, f.name, f.block, f.bytes};
  }
  for (const GgmlBlocks& t : ggml_blocks()) {
    if (t.id == id) return TensorType{t.id, t.name, t.block, t.bytes};
  }
  for (const ExpertType& t : expert_types()) {
    if (t.id == id) return TensorType{t.id, t.name, t.block, t.bytes};
  }
  return std::nullopt;
}

// Bytes that a file's lists may take in memory; those of gpt-oss take 40 MB. A sparse file of any size takes
// no disk.
constexpr uint64_t kMostBuilt = uint64_t{1} << 28;

// Reads forward and remembers whether it ever ran past the end, or built too much; after that every read is
// zero.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  bool ok() const { return ok_; }
  // Why it is not ok.
  const char* fault() const { return built_ > kMostBuilt ? "there is more than 256 MB" : "the file ends"; }
  size_t position() const { return position_; }
  size_t left() const { return bytes_.size() - position_; }

  template <typename T>
  T read() {
    T value{};
    if (left() < sizeof value) {
      fail();
    } else {
      std::memcpy(&value, bytes_.data() + position_, sizeof value);
      position_ += sizeof value;
    }
    return value;
  }
  std::string read_string() {
    const auto length = read<uint64_t>();
    if (length > left()) fail();
    if (!ok_ || !build(length, 1)) return {};
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
    position_ += length;
    return text;
  }
  // Steps over as many values of so many bytes.
  void skip(uint64_t count, uint64_t bytes) {
    if (count > left() / bytes) return fail();
    position_ += count * bytes;
  }
  // Counts what is about to be built. False: it is too much.
  bool build(uint64_t count, uint64_t bytes) {
    built_ = count > kMostBuilt / bytes ? kMostBuilt + 1 : built_ + count * bytes;
    if (built_ > kMostBuilt) fail();
    return ok_;
  }

  void fail() {
    ok_ = false;
    position_ = bytes_.size();
  }

 private:
  std::span<const std::byte> bytes_;
  size_t position_ = 0;
  uint64_t built_ = 0;  // bytes
  bool ok_ = true;
};

Result<GgufValue> read_scalar(Cursor& in, uint32_t type, const std::string& where) {
  switch (type) {
    case kU8:
      return GgufValue(int64_t{in.read<uint8_t>()});
    case kI8:
      return GgufValue(int64_t{in.read<int8_t>()});
    case kU16:
      return GgufValue(int64_t{in.read<uint16_t>()});
    case kI16:
      return GgufValue(int64_t{in.read<int16_t>()});
    case kU32:
      return GgufValue(int64_t{in.read<uint32_t>()});
    case kI32:
      return GgufValue(int64_t{in.read<int32_t>()});
    case kU64:
    case kI64:
      return GgufValue(in.read<int64_t>());
    case kF32:
      return GgufValue(double{in.read<float>()});
    case kF64:
      return GgufValue(in.read<double>());
    case kBool:
      return GgufValue(in.read<uint8_t>() != 0);
    case kString:
      return GgufValue(in.read_string());
    default:
      return invalid("{}: unknown value type {}", where, type);
  }
}

// An array of one scalar type.
template <typename T>
Result<GgufValue> read_elements(Cursor& in, uint32_t type, uint64_t count, const std::string& where) {
  std::vector<T> values;
  if (in.build(count, sizeof(T))) values.reserve(count);
  for (uint64_t i = 0; i < count && in.ok(); ++i) {
    ASSIGN_OR_RETURN(GgufValue value, read_scalar(in, type, where));
    if (const bool* flag = std::get_if<bool>(&value)) value = GgufValue(int64_t{*flag});
    values.push_back(std::get<T>(std::move(value)));
  }
  return GgufValue(std::move(values));
}

Result<GgufValue> read_value(Cursor& in, const std::string& where) {
  const auto type = in.read<uint32_t>();
  if (type != kArray) return read_scalar(in, type, where);
  const auto element = in.read<uint32_t>();
  const auto count = in.read<uint64_t>();
  if (element == kArray) return invalid("{}: nested arrays are not supported", where);
  if (count > in.left()) return invalid("{}: an array of {} elements does not fit the file", where, count);
  if (element == kString) return read_elements<std::string>(in, element, count, where);
  if (element == kF32 || element == kF64) return read_elements<double>(in, element, count, where);
  return read_elements<int64_t>(in, element, count, where);
}

// Steps over a value of a type that read_value() knows.
void skip_value(Cursor& in) {
  constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 4, 4,
                                1, 0, 0, 8, 8, 8};  // bytes of each ValueType; 0: it varies
  constexpr uint64_t kMostTexts = 1 << 22;          // in a sparse file there may be any number
  auto type = in.read<uint32_t>();
  uint64_t count = 1;
  if (type == kArray) type = in.read<uint32_t>(), count = in.read<uint64_t>();
  if (type < std::size(kBytes) && kBytes[type] > 0) return in.skip(count, kBytes[type]);
  if (type != kString || count > kMostTexts) return in.fail();
  for (uint64_t i = 0; i < count && in.ok(); ++i) in.skip(in.read<uint64_t>(), 1);
}

struct TensorHeader {
  std::string name;
  RawTensor tensor;
  uint64_t offset = 0;
  int64_t bytes = 0;
};

Result<TensorHeader> read_tensor_header(Cursor& in, const std::string& path) {
  TensorHeader header{.name = in.read_string()};
  const std::string where = fmt::format("{}: tensor '{}'", path, header.name.substr(0, 120));
  const auto dims = in.read<uint32_t>();
  if (dims == 0 || dims > 4) return invalid("{}: {} dimensions", where, dims);
  for (uint32_t d = 0; d < dims; ++d) header.tensor.shape.push_back(in.read<int64_t>());
  const auto type = in.read<uint32_t>();
  header.offset = in.read<uint64_t>();
  constexpr size_t kShape = 64;  // bytes of its own
  if (!in.build(1, 2 * sizeof(TensorHeader) + kShape))
    return invalid("{}: {} inside the tensor list", path, in.fault());
  const std::optional<TensorType> known = tensor_type(type);
  if (!known) {
    const char* name = type < std::size(kTypeNames) ? kTypeNames[type] : "(unknown)";
    return error(StatusCode::kUnsupported,
                 "{}: type {} {} is not supported, which llama.cpp's quantiser does not write; use a file in "
                 "MXFP4, Q8_0, "
                 "BF16 or F16",
                 where, type, name);
  }
  const auto count = element_count(header.tensor.shape);
  if (!count) return invalid("{}: impossible shape", where);
  if (header.tensor.shape[0] % known->block != 0)
    return invalid("{}: rows of {} elements are no multiple of {}'s {}", where, header.tensor.shape[0],
                   known->name, known->block);
  header.bytes = *count / known->block * known->bytes;
  std::reverse(header.tensor.shape.begin(), header.tensor.shape.end());
  header.tensor.dtype = known->name;
  return header;
}

Status place_tensors(std::vector<TensorHeader>& headers, std::span<const std::byte> data,
                     const MappedFile& file, uint64_t alignment, TensorMap& out) {
  std::sort(headers.begin(), headers.end(), [](const auto& a, const auto& b) { return a.offset < b.offset; });
  uint64_t end = 0;
  for (TensorHeader& h : headers) {
    const std::string where = fmt::format("{}: tensor '{}'", file.path(), h.name.substr(0, 120));
    if (h.offset % alignment != 0)
      return invalid("{}: its offset {} is not aligned to {}", where, h.offset, alignment);
    if (h.offset < end) return invalid("{}: it overlaps another tensor", where);
    if (h.offset > data.size() || static_cast<uint64_t>(h.bytes) > data.size() - h.offset)
      return invalid("{}: its data lies outside the file (truncated download?)", where);
    end = h.offset + h.bytes;
    h.tensor.data = data.subspan(h.offset, h.bytes);
    h.tensor.file = &file;
    if (!out.tensors.emplace(h.name, std::move(h.tensor)).second)
      return invalid("{}: it stands twice", where);
  }
  return {};
}

Status read_metadata(Cursor& in, uint64_t count, const std::string& path,
                     std::map<std::string, GgufValue>& out) {
  for (uint64_t i = 0; i < count; ++i) {
    const std::string key = in.read_string();
    if (!in.build(1, sizeof(GgufValue) + sizeof(std::string)))
      return invalid("{}: {} inside the metadata", path, in.fault());
    ASSIGN_OR_RETURN(GgufValue value,
                     read_value(in, fmt::format("{}: metadata '{}'", path, key.substr(0, 120))));
    if (!in.ok()) return invalid("{}: {} inside metadata '{}'", path, in.fault(), key.substr(0, 120));
    if (!out.emplace(key, std::move(value)).second)
      return invalid("{}: metadata '{}' stands twice", path, key.substr(0, 120));
  }
  return {};
}

}  // namespace

Result<GgufFile> read_gguf(std::shared_ptr<const MappedFile> file) {
  const std::string& path = file->path();
  Cursor in(file->bytes());
  if (in.read<uint32_t>() != kMagic) return invalid("{}: not a GGUF file", path);
  const auto version = in.read<uint32_t>();
  if (version == 0x03000000)
    return error(StatusCode::kUnsupported, "{}: a big-endian GGUF file; use a little-endian one", path);
  if (version != 3)
    return error(StatusCode::kUnsupported, "{}: GGUF version {}; only version 3 is supported", path, version);
  const auto tensors = in.read<uint64_t>(), entries = in.read<uint64_t>();
  if (!in.ok() || tensors > in.left() || entries > in.left())
    return invalid("{}: {} tensors and {} metadata entries do not fit the file", path, tensors, entries);
  GgufFile gguf;
  RETURN_IF_ERROR(read_metadata(in, entries, path, gguf.metadata));
  std::vector<TensorHeader> headers;
  for (uint64_t i = 0; i < tensors; ++i) {
    ASSIGN_OR_RETURN(TensorHeader header, read_tensor_header(in, path));
    headers.push_back(std::move(header));
  }
  uint64_t alignment = 32;
  if (const auto it = gguf.metadata.find("general.alignment"); it != gguf.metadata.end()) {
    const int64_t* value = std::get_if<int64_t>(&it->second);
    if (value == nullptr || *value < 1 || *value > (1 << 20) || (*value & (*value - 1)) != 0)
      return invalid("{}: general.alignment is not a power of two", path);
    alignment = *value;
  }
  const size_t start = (in.position() + alignment - 1) / alignment * alignment;
  if (start > file->bytes().size()) return invalid("{}: the file ends before its data", path);
  RETURN_IF_ERROR(place_tensors(headers, file->bytes().subspan(start), *file, alignment, gguf.tensors));
  gguf.tensors.files.push_back(std::move(file));
  return gguf;
}

bool GgufFile::written_by_ollama() const {
  const auto* text = get<std::string>("general.architecture");
  return text != nullptr && *text == "gptoss";
}

std::string gguf_architecture(const MappedFile& file) {
  constexpr uint64_t kFirst = 32;
  Cursor in(file.bytes());
  if (in.read<uint32_t>() != kMagic || in.read<uint32_t>() != 3) return {};
  in.read<uint64_t>();
  const auto entries = in.read<uint64_t>();
  for (uint64_t i = 0; i < std::min(entries, kFirst) && in.ok(); ++i) {
    if (in.read_string() != "general.architecture") {
      skip_value(in);
      continue;
    }
    const Result<GgufValue> value = read_value(in, file.path());
    const auto* text = value.ok() ? std::get_if<std::string>(&value.value()) : nullptr;
    return text != nullptr && in.ok() ? *text : "";
  }
  return {};
}

}  // namespace moesaic

// The head of a GGUF v3 file: metadata entries, then the list of tensors. The data follows at the next
// multiple of the alignment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace moesaic {

class GgufHeader {
 public:
  void u32(const std::string& key, uint32_t value) { entry(key, 4), raw(&value, 4); }
  void f32(const std::string& key, double value) {
    const auto v = static_cast<float>(value);
    entry(key, 6), raw(&v, 4);
  }
  void boolean(const std::string& key, bool value) {
    const uint8_t v = value;
    entry(key, 7), raw(&v, 1);
  }
  void text(const std::string& key, const std::string& value) { entry(key, 8), string(value); }
  void texts(const std::string& key, const std::vector<std::string>& values) {
    list(key, 8, values.size());
    for (const std::string& v : values) string(v);
  }
  void integers(const std::string& key, const std::vector<int32_t>& values) {
    list(key, 5, values.size()), raw(values.data(), values.size() * 4);
  }
  // shape: outermost first; offset: from the start of the data.
  void tensor(const std::string& name, const std::vector<int64_t>& shape, uint32_t type, uint64_t offset) {
    string(name);
    const auto dims = static_cast<uint32_t>(shape.size());
    raw(&dims, 4);
    for (size_t d = dims; d > 0; --d) raw(&shape[d - 1], 8);
    raw(&type, 4), raw(&offset, 8);
  }
  std::string finish(uint64_t tensors) const {
    const uint32_t magic = 0x46554747u, version = 3;
    std::string head(reinterpret_cast<const char*>(&magic), 4);
    head.append(reinterpret_cast<const char*>(&version), 4)
        .append(reinterpret_cast<const char*>(&tensors), 8);
    return head.append(reinterpret_cast<const char*>(&entries_), 8) + body_;
  }

 private:
  void raw(const void* data, size_t n) { body_.append(static_cast<const char*>(data), n); }
  void string(const std::string& s) {
    const uint64_t n = s.size();
    raw(&n, 8), body_ += s;
  }
  void entry(const std::string& key, uint32_t type) { string(key), raw(&type, 4), ++entries_; }
  void list(const std::string& key, uint32_t type, uint64_t count) {
    entry(key, 9), raw(&type, 4), raw(&count, 8);
  }
  std::string body_;
  uint64_t entries_ = 0;
};

}  // namespace moesaic

// JSON on standard output. Names of files need not be UTF-8, and JSON has to be: what is not becomes U+FFFD.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace moesaic::app {

// On one line, or with an indent of so many spaces.
inline std::string json_text(const nlohmann::ordered_json& json, int indent = -1) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}
inline void print_json(const nlohmann::ordered_json& json, int indent = -1) {
  fmt::print("{}\n", json_text(json, indent));
}

// An array whose elements are printed as they come, so that a failure leaves those before it, as valid JSON.
// Nothing is printed where `on` is false, and nothing of an array without elements.
class JsonArray {
 public:
  explicit JsonArray(bool on) : on_(on) {}
  ~JsonArray() {
    if (on_ && !empty_) std::fputs("\n]\n", stdout);
  }
  JsonArray(const JsonArray&) = delete;
  JsonArray& operator=(const JsonArray&) = delete;

  bool empty() const { return empty_; }
  void add(const nlohmann::ordered_json& element) {
    const bool first = std::exchange(empty_, false);
    if (!on_) return;
    std::string text = (first ? "[\n" : ",\n") + json_text(element, kIndent);
    for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1))
      text.insert(at + 1, kIndent, ' ');
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  }

 private:
  static constexpr int kIndent = 2;
  bool on_, empty_ = true;
};

}  // namespace moesaic::app

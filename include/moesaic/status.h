// Errors as values. A Status is success or one line for a person: what went wrong, where, and what to do.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace moesaic {

enum class StatusCode {
  kOk,
  kInvalidArgument,
  kUsage,  // options that ask for what cannot be
  kNotFound,
  kOutOfMemory,
  kUnsupported,
  kIo,
  kCancelled,
  kInternal
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value or the Status that explains its absence. Asked for a value that is absent, it throws
// std::bad_optional_access.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return value_.value(); }
  const T& value() const& { return value_.value(); }
  T&& value() && { return std::move(value_).value(); }
  T* operator->() { return &value_.value(); }
  const T* operator->() const { return &value_.value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace moesaic

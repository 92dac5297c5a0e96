// Between C++ and Python: errors as exceptions, options, and what describes a model.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <string>
#include <utility>

#include "moesaic/engine.h"
#include "openai/api_error.h"

namespace moesaic::python {

namespace nb = nanobind;

// Becomes the exception of moesaic.errors that belongs to the code.
struct Failure : std::exception {
  Failure(StatusCode c, std::string m) : code(c), message(std::move(m)) {}
  explicit Failure(const Status& status) : Failure(status.code(), status.message()) {}
  explicit Failure(const openai::ApiError& error);
  const char* what() const noexcept override { return message.c_str(); }

  StatusCode code;
  std::string message;
};

// Registers the translation, when the module is loaded. It keeps moesaic.errors' types for ever: the end of
// the interpreter, when nothing can be imported, may raise them, too.
void translate_failures();

inline void check(const Status& status) {
  if (!status.ok()) throw Failure(status);
}
template <typename T>
T checked(Result<T> result) {
  check(result.status());
  return std::move(result).value();
}

// Keyword arguments by the names of OpenOptions' members; another name is an error.
OpenOptions options_of(const nb::kwargs& options);

nb::dict describe(const DeviceInfo& device);
nb::dict describe(const ModelInfo& info);
nb::dict describe(const EngineStats& stats);

}  // namespace moesaic::python

// Errors: a formatted Status for untrusted input, early return of one, and a check that aborts for broken
// invariants.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "moesaic/status.h"

namespace moesaic {

template <typename... Args>
Status error(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Status invalid(fmt::format_string<Args...> format, Args&&... args) {
  return Status(StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
}

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace moesaic

// Aborts with its location: for invariants of our own, never for input.
#define MOESAIC_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::moesaic::check_failed(#condition, __FILE__, __LINE__))

#define MOESAIC_CONCAT_(a, b) a##b
#define MOESAIC_CONCAT(a, b) MOESAIC_CONCAT_(a, b)

// RETURN_IF_ERROR(status_expression);
#define RETURN_IF_ERROR(expression)                                              \
  do {                                                                           \
    if (::moesaic::Status status_ = (expression); !status_.ok()) return status_; \
  } while (false)

// ASSIGN_OR_RETURN(const auto x, result_expression);
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_(MOESAIC_CONCAT(result_, __LINE__), declaration, expression)
// NOLINTBEGIN(bugprone-macro-parentheses): a name and a declaration
#define ASSIGN_OR_RETURN_(result, declaration, expression) \
  auto result = (expression);                              \
  if (!result.ok()) return result.status();                \
  declaration = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)

// Parts that the files of the C interface share.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/error.h"
#include "base/own_process.h"
#include "moesaic/engine.h"
#include "moesaic/moesaic.h"

struct moesaic_model {
  moesaic::Model model;
  moesaic::ModelInfo info;  // owns the strings that moesaic_model_info gives
  moesaic::OwnProcess process = {};
  std::mutex mutex;  // guards what follows
  uint64_t last_id = 0;
  std::unordered_map<uint64_t, std::stop_source> cancels = {};  // for requests that have not ended
};

namespace moesaic::c_api {

// One line of UTF-8: names in a message may hold anything.
std::string line_of(std::string_view message);
// Keeps the last error of this thread.
void remember(std::string_view error) noexcept;
moesaic_status code_of(StatusCode code);

// Runs a body that returns a Status; remembers its error. Nothing gets out of it, not even what a caller's
// callback throws.
template <typename Body>
moesaic_status enter(Body&& body) noexcept {
  try {
    const Status status = body();
    if (!status.ok()) remember(status.message());
    return code_of(status.code());
  } catch (const std::bad_alloc&) {
    remember("out of memory");
    return MOESAIC_OUT_OF_MEMORY;
  } catch (const std::exception& e) {
    remember(e.what());
    return MOESAIC_INTERNAL;
  } catch (...) {
    remember("an exception of unknown type");
    return MOESAIC_INTERNAL;
  }
}

inline Status not_null(const void* pointer, const char* name) {
  return pointer != nullptr ? Status() : invalid("{} is NULL", name);
}
// Checks an array's pointer: NULL is right where the array is empty.
inline Status not_null(const void* pointer, size_t count, const char* name) {
  return count == 0 ? Status() : not_null(pointer, name);
}

// A model's functions may be called: it is there, and this process opened it.
inline Status usable(const moesaic_model* m) {
  RETURN_IF_ERROR(not_null(m, "model"));
  return m->process.check();
}

// Strings of an array; a null array has none that is not NULL.
inline Status check_strings(const char* const* strings, size_t count, const char* name) {
  for (size_t i = 0; i < count; ++i) {
    if (strings == nullptr || strings[i] == nullptr)
      return invalid("{}: string {} of {} is NULL", name, i, count);
  }
  return {};
}

inline Status check_flag(int32_t value, const char* name) {
  return value == 0 || value == 1 ? Status() : invalid("{} is {}; it is 0 or 1", name, value);
}

// The caller's struct, which may be of an older version and shorter, over today's defaults. No version ends
// within a field, and none of the fields is wider than the struct's alignment.
template <typename T>
Status read(const T* given, T& values) {
  if (given->size < sizeof(size_t) || given->size > sizeof(T) || given->size % alignof(T) != 0)
    return invalid("a struct of {} bytes where this version has {}: call its init function", given->size,
                   sizeof(T));
  std::memcpy(&values, given, given->size);
  return {};
}

template <typename T>
Status write(const T& values, T* given, size_t size) {
  if (size < sizeof(size_t))
    return invalid("a struct of {} bytes: give its sizeof, {} in this version", size, sizeof(T));
  std::memcpy(given, &values, std::min(size, sizeof(T)));
  given->size = std::min(size, sizeof(T));
  return {};
}

// A copy with a zero behind it, for moesaic_free.
template <typename T>
Status hand_out(const T* data, size_t count, T** out, size_t* out_count) {
  T* const copy = static_cast<T*>(std::malloc((count + 1) * sizeof(T)));
  if (copy == nullptr) return error(StatusCode::kOutOfMemory, "out of memory");
  std::copy_n(data, count, copy);
  copy[count] = 0;
  *out = copy;
  *out_count = count;
  return {};
}

inline Status hand_out(const Result<std::vector<int32_t>>& tokens, int32_t** out, size_t* count) {
  RETURN_IF_ERROR(tokens.status());
  return hand_out(tokens.value().data(), tokens.value().size(), out, count);
}

}  // namespace moesaic::c_api

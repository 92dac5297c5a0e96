// Functions of libraries that are opened only when they are wanted, so that a program runs without them.
#pragma once

#include <dlfcn.h>

namespace moesaic {

// function = the library's function of that name; false and null if it has none. library: of dlopen().
template <typename Function>
bool find_symbol(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace moesaic

// moesaic.ops: operators on a caller's tensors. Addresses are numbers: the Python side has looked at the
// tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "backend/moe_operator.h"

namespace moesaic::python {

inline void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }
// Returns the type that torch names so.
ElementType type_of(const std::string& name);

void add_ops(nanobind::module_& m);        // the experts, and a whole model's steps
void add_layer_ops(nanobind::module_& m);  // the rest of a layer; add_ops() calls it

}  // namespace moesaic::python

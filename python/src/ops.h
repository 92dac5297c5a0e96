// moesaic.ops: the mixture of experts alone (backend/moe_operator.h).
#pragma once

#include <nanobind/nanobind.h>

namespace moesaic::python {

void add_ops(nanobind::module_& m);

}  // namespace moesaic::python

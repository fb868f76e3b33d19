// Adds the kernels on rows over the vocabulary to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace draftproof {

void bind_vocabulary(nanobind::module_& m);

}  // namespace draftproof

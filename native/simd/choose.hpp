// The kernels for this processor.
#pragma once

#include <string_view>
#include <vector>

#include "simd/kernels.hpp"

namespace osf::simd {

const Kernels& kernels();                        // the best that it has, unless others were chosen
std::vector<const Kernels*> all_kernels();       // those that it has, the plain ones first
void choose_kernels(std::string_view name);      // for tests: for all later calls of this process; empty: the best

}  // namespace osf::simd

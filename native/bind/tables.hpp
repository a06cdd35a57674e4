// How Python gives ids, settings and reads of tables: buffers come as addresses, whose types and sizes Python has checked.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bind/space.hpp"
#include "tables/update.hpp"

namespace osf::bind {

using GivenIds = std::tuple<u64, u64, u64>;      // address, bytes of one, how many
using GivenSettings = std::tuple<double, double, double, double>;  // lr, eps, beta1, beta2
using GivenInit = std::tuple<u32, double, double, u64>;

template <class T>
T* at_address(u64 address) { return reinterpret_cast<T*>(address); }

inline Ids ids_of(const GivenIds& given) { return {at_address<const void>(std::get<0>(given)), std::get<1>(given) == 8, std::get<2>(given)}; }

inline Settings settings_of(const GivenSettings& given) {
    auto [lr, eps, beta1, beta2] = given;
    return {float(lr), float(eps), float(beta1), float(beta2), 1, 1};
}

inline TableInit init_of(const GivenInit& init) { return {Initial(std::get<0>(init)), 0, std::get<1>(init), std::get<2>(init), std::get<3>(init)}; }

}  // namespace osf::bind

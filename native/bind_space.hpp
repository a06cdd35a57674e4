// The Python object that owns a pin: numpy and torch views keep it as their base.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "space.hpp"

namespace osf {

struct Pin {
    std::shared_ptr<Space> space;
    Held held;

    Pin(std::shared_ptr<Space> of, Held what) : space(std::move(of)), held(what) {}
    Pin(Pin&& other) noexcept : space(std::move(other.space)), held(other.held) { other.held = {}; }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin() {
        if (held) space->release(held);
    }
    const Record& record() const { return space->record(held); }
    char* bytes() const { return space->bytes(held); }
};

// What local and remote spaces show in the same way
nanobind::tuple shape_tuple(std::span<const u64> shape);
nanobind::object view_of(nanobind::handle owner, u16 dtype, std::span<const u64> shape);  // numpy's; None: of no number, or to be checked
// The same at an offset of what `owner` shows as its buffer; `shape` is a tuple.
nanobind::object view_at(nanobind::handle owner, u16 dtype, nanobind::handle shape, u64 offset);
nanobind::list entry_list(const std::vector<Entry>& entries);
nanobind::dict audit_dict(const Audit& audit);
nanobind::dict stats_dict(const Stats& stats);
void refuse_pickle(nanobind::handle);

}  // namespace osf

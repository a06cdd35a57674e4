// The Python object that owns a pin: numpy and torch views keep it as their base.
#pragma once

#include <nanobind/nanobind.h>

#include <span>

#include "space/space.hpp"

namespace osf::bind {

struct Pin {
    std::shared_ptr<Space> space;
    Held held;
    std::shared_ptr<void> resident;  // in a process without faults, from its first view on: all of it is in memory

    Pin(std::shared_ptr<Space> of, Held what) : space(std::move(of)), held(what) {}
    Pin(Pin&& other) noexcept : space(std::move(other.space)), held(other.held), resident(std::move(other.resident)) { other.held = {}; }
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    ~Pin() {
        resident.reset();
        if (held) space->release(held);
    }
    const Record& record() const { return space->record(held); }
    char* bytes() const { return space->bytes(held); }
};

// For who shows bytes of it: in a process without faults, keeps them in memory as long as what is returned (nothing: no need).
std::shared_ptr<void> keep_resident(const std::shared_ptr<Space>& space, char* at, u64 bytes);
void set_error(const Error& error);  // as Python's

// What local and remote spaces show in the same way
nanobind::tuple shape_tuple(std::span<const u64> shape);
nanobind::object view_of(nanobind::handle owner, u16 dtype, std::span<const u64> shape);  // numpy's; None: of no number, or to be checked
// The same at an offset of what `owner` shows as its buffer; `shape` is a tuple.
nanobind::object view_at(nanobind::handle owner, u16 dtype, nanobind::handle shape, u64 offset);
nanobind::list entry_list(const std::vector<Entry>& entries);
nanobind::dict audit_dict(const Audit& audit);
nanobind::dict stats_dict(const Stats& stats);
void refuse_pickle(nanobind::handle);

}  // namespace osf::bind

// The Python object that owns a pin: numpy and torch views keep it as their base.
#pragma once

#include <nanobind/nanobind.h>

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

}  // namespace osf

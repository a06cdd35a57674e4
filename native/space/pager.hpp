// What a space asks of those above it, without knowing them.
#pragma once

#include <functional>

#include "base/base.hpp"

namespace osf::space {

// Brings the bytes of a space that has more of them than memory. One for each process and space.
class Pager {
public:
    virtual ~Pager() = default;
    virtual void stop() = 0;                                        // before the space goes: whoever still has this object uses it no more
    // A range that was just taken from the heap: zero but for its first `keep` bytes, which the caller overwrites.
    virtual void clear(char* at, u64 bytes, u64 keep) = 0;
    virtual void discard(char* at, u64 bytes) = 0;                  // whatever it holds is not needed any more
    virtual void provide(char* at, u64 bytes) = 0;                  // in memory, for what never leaves it
    // Calls `work` for parts of a range while they are in memory.
    virtual void within(char* at, u64 bytes, const std::function<void(char* part, u64 size)>& work) = 0;
};

// Answers this process's faults on the bytes of other hosts, as long as the mapping lives.
class Companion {
public:
    virtual ~Companion() = default;
    virtual void space_gone() = 0;                                  // its mapping is about to go
};

// Where in an array of a kind the bytes begin that may leave memory; 0: none may, or it is not known yet.
using MovableFrom = u64 (*)(const char* array, u64 nbytes);
void set_movable_from(u8 kind, MovableFrom from);                   // said once, by the room that the kind belongs to
u64 movable_from(u8 kind, const char* array, u64 nbytes);

}  // namespace osf::space

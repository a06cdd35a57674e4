// A lock in shared memory whose owner may die.
//
// The word holds the owner's member id (slot and generation), not a thread id: glibc's robust mutexes compare thread
// ids, and two containers on one host have equal ones, so a waiter's death in one can unlock a mutex held in the
// other. Whether an owner lives is asked of its record lock (base/members.hpp), only after a wait of a few milliseconds.
#pragma once

#include "base/base.hpp"

namespace osf {

// Those who may own a lock: base/members.hpp.
class Owners {
public:
    virtual u32 executor() const = 0;                // this process, as an owner; 0: it is none
    virtual bool alive(u32 id) const = 0;

protected:
    ~Owners() = default;
};

struct Lock {
    u32 word;   // 0, or owner id | WAITERS
    u32 pad;
};

constexpr u32 WAITERS = 1u << 31;

enum class Grant { clean, owner_died, timed_out };

// Takes the lock for this process's member, or for member `self`. timeout_ns < 0 waits for ever. owner_died: taken, and
// what it guards may be half changed.
Grant lock_take(Lock& lock, const Owners& owners, long timeout_ns = -1);
Grant lock_take_as(u32 self, Lock& lock, const Owners& owners, long timeout_ns = -1);
void lock_drop(Lock& lock);

// Waits while `word` is `expected`; false when the time is over. Spurious returns are possible.
bool futex_wait(const u32& word, u32 expected, long timeout_ns);
int futex_wake(const u32& word, int count);
u64 now_ns();

}  // namespace osf

#include "base/lock.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace osf {

u64 now_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return u64(time.tv_sec) * 1'000'000'000u + u64(time.tv_nsec);
}

bool futex_wait(const u32& word, u32 expected, long timeout_ns) {
    timespec time{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    long result = syscall(SYS_futex, &word, FUTEX_WAIT, expected, timeout_ns < 0 ? nullptr : &time, nullptr, 0);
    return result == 0 || errno != ETIMEDOUT;
}

int futex_wake(const u32& word, int count) {
    return int(syscall(SYS_futex, &word, FUTEX_WAKE, count, nullptr, nullptr, 0));
}

Grant lock_take(Lock& lock, const Owners& owners, long timeout_ns) {
    return lock_take_as(owners.executor(), lock, owners, timeout_ns);
}

Grant lock_take_as(u32 self, Lock& lock, const Owners& owners, long timeout_ns) {
    if (!self) throw Error(Code::closed, "this process is no member of the space: it cannot hold locks there");
    if (cas(lock.word, 0u, self)) return Grant::clean;
    for (int spin = 0; spin < 200; spin++) {
        if (load(lock.word, std::memory_order_relaxed) == 0 && cas(lock.word, 0u, self)) return Grant::clean;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    const u64 start = now_ns();
    long patience = 1'000'000;  // then ask whether the owner lives; doubled up to 32 ms
    for (;;) {
        u32 word = load(lock.word);
        if (word == 0) {
            // WAITERS stays set: others may sleep, and one needless wake-up is cheaper than a lost one.
            if (cas(lock.word, 0u, self | WAITERS)) return Grant::clean;
            continue;
        }
        if (!(word & WAITERS)) {
            if (!cas(lock.word, word, word | WAITERS)) continue;
            word |= WAITERS;
        }
        long wait = patience;
        if (timeout_ns >= 0) {
            long left = timeout_ns - long(now_ns() - start);
            if (left <= 0) return Grant::timed_out;
            wait = std::min(wait, left);
        }
        if (futex_wait(lock.word, word, wait)) continue;
        patience = std::min(2 * patience, 32'000'000l);
        if (!owners.alive(word & ~WAITERS) && cas(lock.word, word, self | WAITERS)) return Grant::owner_died;
    }
}

void lock_drop(Lock& lock) {
    if (swap(lock.word, 0u) & WAITERS) futex_wake(lock.word, 1);
}

}  // namespace osf

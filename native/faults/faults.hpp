// userfaultfd: touches of bytes that are not here, as messages. The traps that corrupt silently are in docs/hazards.md;
// the one rule for all: every range is registered for MISSING, WP and MINOR at once.
#pragma once

#include "base/base.hpp"

namespace osf::faults {

enum class Faults { none, user, full };  // user: touches inside system calls fail with EFAULT instead of waiting

#ifdef OSF_STEPS
enum class Rule { all, protect, punch, order, minor, fork };
extern std::atomic<Rule> broken_rule;    // tests: the rule that is not followed
inline bool follows(Rule rule) { return broken_rule.load(std::memory_order_relaxed) != rule; }
#else
enum class Rule { protect, punch, order, minor, fork };
inline constexpr bool follows(Rule) { return true; }
#endif

int open_faults(Faults& how);            // the best this process may have; -1 and none if nothing
struct Touch { u64 address; bool write, mapped; };      // mapped: it may read there, and wants to write
bool read_fault(int fd, Touch& touch);   // false: no more now

// 0 or the error; ESRCH: the process is gone. Interrupted and partial calls are gone on with.
int register_faults(int fd, u64 start, u64 bytes);
int protect_pages(int fd, u64 start, u64 bytes, bool on);        // off wakes who waits
int copy_pages(int fd, u64 start, const char* from, u64 bytes, bool wake);  // into a hole, not writable
int map_pages(int fd, u64 start, u64 bytes, bool writable);      // bytes that are in the file; wakes who waits
int wake_faults(int fd, u64 start, u64 bytes);
int poison_pages(int fd, u64 start, u64 bytes);                  // touches end in SIGBUS

}  // namespace osf::faults

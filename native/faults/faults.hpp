// userfaultfd: touches of bytes that are not here, as messages. The traps that corrupt silently are in docs/hazards.md;
// the one rule for all: every range is registered for MISSING, WP and MINOR at once; without MINOR only where the kernel cannot map a page
// that is not writable (Abilities::minor), and then pages are marked before they are there.
#pragma once

#include "faults/abilities.hpp"

namespace osf::faults {

#ifdef OSF_STEPS
enum class Rule { all, protect, punch, order, minor, fork };
extern std::atomic<Rule> broken_rule;    // tests: the rule that is not followed
inline bool follows(Rule rule) { return broken_rule.load(std::memory_order_relaxed) != rule; }
#else
enum class Rule { protect, punch, order, minor, fork };
inline constexpr bool follows(Rule) { return true; }
#endif

int open_faults(Faults& how);            // the best this process may have; -1 and none if nothing
struct Touch { u64 address; bool write, mapped, minor; };      // mapped: it may read there, and wants to write; minor: the bytes are in the file
bool read_fault(int fd, Touch& touch);   // false: no more now

// 0 or the error; ESRCH: the process is gone. Interrupted and partial calls are gone on with.
int register_faults(int fd, u64 start, u64 bytes);
int protect_pages(int fd, u64 start, u64 bytes, bool on);        // off wakes who waits
int copy_pages(int fd, u64 start, const char* from, u64 bytes, bool wake);  // into a hole, not writable
int map_pages(int fd, u64 start, u64 bytes, bool writable);      // bytes that are in the file; wakes who waits. Without MINOR: leaves that to the kernel
int wake_faults(int fd, u64 start, u64 bytes);
int poison_pages(int fd, u64 start, u64 bytes);                  // touches end in SIGBUS; with Abilities::poison
void lose_pages(int fd, u64 start, u64 bytes);                   // the same where there is none, of this process itself

// Where there is no MINOR, for a range that must ask whatever is in the file: what is not in the page tables does from now on, until the
// range is mapped anew. It can be shown only writable.
int bar_pages(int fd, u64 start, u64 bytes);
int map_barred(int fd, u64 start, u64 bytes);

}  // namespace osf::faults

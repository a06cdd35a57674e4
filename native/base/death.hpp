// A keeper that is ended by a mistake of its own says so in its log: nobody else would know why it is gone.
#pragma once

#include <string>

namespace osf {

// From now on: one line for SIGSEGV, SIGBUS, SIGABRT, SIGFPE and SIGILL with the address, and where the thread was; likewise for an exception that nobody
// catches. The process then ends by the same signal. Signals that somebody else handles (a sanitizer) are left to them.
void report_death(const std::string& who);

}  // namespace osf

// What a process that hands its faults to a keeper needs, whichever kind of keeper: a connection, starting the next keeper, and a
// place among those that fork and SIGBUS must be told of.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/base.hpp"
#include "faults/notes.hpp"

namespace osf::faults {

// A connection to a keeper that is nobody's yet. A child that is forked meanwhile closes its copy; else the keeper would take the
// parent for alive as long as the child is.
class Dialled {
public:
    explicit Dialled(const std::string& path);
    ~Dialled();
    Dialled(const Dialled&) = delete;
    Dialled& operator=(const Dialled&) = delete;
    int fd() const { return fd_; }
    int keep();                              // the caller's from now on, who closes it, in forked children too

private:
    Dialled() = default;
    int fd_ = -1;
};

int listen_at(const std::string& path);      // not listening yet; private
void start_keeper(std::vector<std::string>& command, pid_t& starting);  // unless the one that was started last is still starting

std::string log_beside(const std::string& socket);                      // where the keeper of that socket writes
void say_unattached(const std::string& why);                            // to standard error, of a forked process whose arrays are out of its reach

class FaultOwner {
public:
    virtual ~FaultOwner() = default;
    virtual void fork_prepare() = 0;
    virtual void fork_parent() = 0;
    virtual void fork_child() = 0;
    virtual bool explain(u64 address, char* text, size_t room) const = 0;  // why a touch there ended; for the SIGBUS handler
};
void own_faults(FaultOwner* owner, Dialled& connection);                // keeps the connection, which the owner has by now
void disown_faults(FaultOwner* owner);

}  // namespace osf::faults

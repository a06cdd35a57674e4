// What a process that hands its faults to a keeper needs, whichever kind of keeper: notes on a Unix socket, starting the next
// keeper, and a place among those that fork and SIGBUS must be told of.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/base.hpp"

namespace osf::faults {

// Notes between a process and its host's keeper, one packet each on a Unix socket; text follows.
enum NoteKind : u32 {
    note_open = 1, note_attach, note_prefetch, note_status, note_close, note_meet, note_answer, note_leave,
    note_ask, note_cancel, note_reorder, note_unpin, note_arm, note_armed, note_child,           // of a space with a flash tier
};
struct Note {
    u32 kind = 0, flags = 0;     // flags: prefetch for writing; an answer: 1 good; ask: what (Want)
    // open, attach, close: id is the space's (Space::id). open: bytes of a unit; attach: address the place, or the slot, bytes the member; ask: pid is
    // the priority; child: the connection of a process that is being forked comes along. leave: another keeper, which was started to stay, takes the place.
    u64 id = 0, address = 0, bytes = 0, pid = 0;
};
constexpr size_t NOTE_MAX = 64 * KIB;
void send_note(int socket, const Note& note, std::string_view text, int fd = -1);
constexpr int NO_FILE_LEFT = -2;             // as a descriptor: one came along, and this process may have no more
bool receive_note(int socket, Note& note, std::string& text, int* fd = nullptr);   // false: the other side is gone

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

// Notes between a process and its keeper: one packet each on a Unix socket, which is a number for the kind, what that kind has to say,
// and for some kinds text. Both sides are of one installation. Still a keeper believes nothing: a packet of an unknown kind, or of a
// size that its kind cannot have, ends the connection it came on.
//
// `number` is the asker's, who finds the answer by it. `space` is Space::id.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "base/base.hpp"

namespace osf::faults {

// To the keeper of a host.
struct OpenNote {                            // text: the directory
    static constexpr u64 kind = 1;
    static constexpr bool text = true;
    u64 space = 0, unit = 0;                 // unit: bytes of one, if the space is new
};
struct AttachNote {                          // text: the directory, a newline, and a Met for each host that was met; the userfaultfd comes along
    static constexpr u64 kind = 2;
    static constexpr bool text = true;
    u64 space = 0, pid = 0, place = 0;       // place: Segments::take_place
    u64 minor = 0;                           // Abilities::minor
};
struct PrefetchNote {
    static constexpr u64 kind = 3;
    static constexpr bool text = false;
    u64 number = 0, address = 0, bytes = 0, write = 0;
};
struct StatusNote {
    static constexpr u64 kind = 4;
    static constexpr bool text = false;
    u64 number = 0;
};
struct CloseNote {                           // text: the directory
    static constexpr u64 kind = 5;
    static constexpr bool text = true;
    u64 space = 0;                           // 0: whichever is there
};
struct MeetNote {                            // a first view of bytes of that life of the host
    static constexpr u64 kind = 6;
    static constexpr bool text = false;
    u64 number = 0, host = 0, incarnation = 0;
};
struct LeaveNote {                           // another keeper, which was started to stay, takes the place
    static constexpr u64 kind = 8;
    static constexpr bool text = false;
    u64 pid = 0;
};

// To the keeper of a space with a flash tier, and from it.
struct TierAttachNote {                      // the userfaultfd comes along
    static constexpr u64 kind = 9;
    static constexpr bool text = false;
    u64 space = 0, pid = 0;
    u32 slot = 0, member = 0;                // of the space's members
    u32 read_only = 0, again = 0;            // again: an earlier keeper had this process
    u64 pins = 0;                            // how many will be told
    u64 minor = 0;                           // Abilities::minor
};
struct AskNote {                             // text: many ranges of units, instead of the bytes from address on
    static constexpr u64 kind = 10;
    static constexpr bool text = true;
    u64 number = 0, address = 0, bytes = 0;
    std::int32_t priority = 0;
    u32 want = 0;
};
struct CancelNote {
    static constexpr u64 kind = 11;
    static constexpr bool text = false;
    u64 number = 0;
};
struct ReorderNote {
    static constexpr u64 kind = 12;
    static constexpr bool text = false;
    u64 number = 0;
    std::int64_t priority = 0;
};
struct UnpinNote {
    static constexpr u64 kind = 13;
    static constexpr bool text = false;
    u64 number = 0;
};
struct ArmNote {                             // text: units that this process takes out of its page tables
    static constexpr u64 kind = 14;
    static constexpr bool text = true;
    u64 ticket = 0;                          // 0: nobody waits for it
};
struct ArmedNote {
    static constexpr u64 kind = 15;
    static constexpr bool text = false;
    u64 ticket = 0;
};

// Of both kinds of keeper.
struct AnswerNote {                          // text: the answer, or why there is none
    static constexpr u64 kind = 7;
    static constexpr bool text = true;
    u64 number = 0, good = 0;                // number 0: of a note that has none
};
struct LostNote {                            // to a process, whose kernel cannot do it for the keeper: touches there end it from now on
    static constexpr u64 kind = 17;
    static constexpr bool text = false;
    u64 address = 0, bytes = 0;
};
struct ChildNote {                           // the connection of a process that is being forked comes along
    static constexpr u64 kind = 16;
    static constexpr bool text = false;
};

using Note = std::variant<AnswerNote, OpenNote, AttachNote, PrefetchNote, StatusNote, CloseNote, MeetNote, LeaveNote, TierAttachNote, AskNote, CancelNote,
                          ReorderNote, UnpinNote, ArmNote, ArmedNote, LostNote, ChildNote>;
u64 number_of(const Note& note);             // 0: it has none
bool is_good(const Note& note);              // an answer, and a good one

// For std::visit: one function for each kind.
template <class... Each> struct Overloaded : Each... { using Each::operator()...; };

constexpr size_t NOTE_MAX = 64 * KIB;        // of the text
void send_note(int socket, const Note& note, std::string_view text = {}, int fd = -1);
constexpr int NO_FILE_LEFT = -2;             // as a descriptor: one came along, and this process may have no more
// False: the other side is gone, or what it sent is no note. Then no descriptor came.
bool receive_note(int socket, Note& note, std::string& text, int* fd = nullptr);

}  // namespace osf::faults

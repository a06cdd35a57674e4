// Waiting for one another: barrier and channel, laid out in an array's bytes. (A lock is base/lock.hpp's Lock, a counter is
// one word.) Each is guarded by a Lock and changed so that after every single store it is whole: a killed holder
// leaves nothing to repair. Sleepers wake by themselves every TICK to see whether somebody died.
#pragma once

#include "space/space.hpp"

namespace osf::space {

enum Kind : u8 { kind_array, kind_lock, kind_barrier, kind_channel, kind_counter, kind_pool, kind_table, kind_sharded };
constexpr bool has_arrays(u8 kind) { return kind == kind_channel || kind == kind_table || kind == kind_sharded; }  // of hidden names, which go before it does

struct Barrier {
    Lock lock;
    u32 generation, arrived;  // together one word: a round ends, and the next begins empty, by one store
    u32 parties, broken;
    u32 failed;               // 1 + the latest round that ended without everybody
    u32 last;                 // what was last done for a process on another host, if its note may not say yet whether it was: see Noted
    u32 ids[];                // members that wait
};

// What is done for a process on another host, noted in memory that outlives who does it: done once, though whoever does it is killed.
//
// A barrier or channel changes by one store to its count. Before that, under its lock, the note says what the count will be then, and
// the object says in `last` whose note it is. Whoever takes the lock next and finds `last` completes that note by the count, before
// anything else changes: a note that says "begun" and is not `last` any more is of something that was not done.
struct Message;
struct Noted {
    Told& told;
    u32 number;                                   // of the note: Members::told_of
    ToldWhat what;
    bool again = false;                           // who was killed may have begun it
    std::function<void(const Message&)> keep = {};  // of a receive: writes the answer down, before the message is taken
};
void barrier_settle(Barrier& barrier, const Members& members, const std::function<bool()>& interrupted);
// Waits for the round in which it has arrived, as the note says.
u32 barrier_go_on(Barrier& barrier, const Members& members, const Noted& note, long timeout_ns, const std::function<bool()>& interrupted);

// The order of arrival, counted down to 0 for the last. Throws broken_barrier if a waiter died, the time ran out, the
// barrier is broken already, or `interrupted` (asked every tick) wants to give up.
u32 barrier_wait(Barrier& barrier, const Members& members, long timeout_ns, const std::function<bool()>& interrupted = {}, const Noted* note = nullptr);
void barrier_reset(Barrier& barrier, const Members& members, const std::function<bool()>& interrupted = {}, const Noted* note = nullptr);
inline u64 barrier_bytes(u32 parties) { return sizeof(Barrier) + 4ull * parties; }

struct Channel {
    Lock lock;
    u32 items, room;        // change with every send, every receive: futex words
    u32 capacity, slot_bytes;
    u32 deleted;            // set before its name goes: nothing is sent that nobody could receive
    u32 last;               // as a barrier's
    u64 head, tail;         // received and sent so far; the slot of n is n % capacity
    char slots[];
};

struct Slot {
    u32 length, kind;       // kind: 0 bytes, 1 name of an array, 2 an unnamed array
    u64 record;
    char bytes[];
};

struct Message {
    u32 kind = 0;
    std::string bytes;
    Held array;
};

inline u64 channel_bytes(u32 capacity, u32 slot_bytes) { return sizeof(Channel) + u64(capacity) * slot_bytes; }
// False when the time is over. The array, if any, stays alive in the channel whoever lets go of it.
bool channel_send(Space& space, const Held& channel, std::string_view bytes, const Held* array, long timeout_ns, const Noted* note = nullptr);
bool channel_receive(Space& space, const Held& channel, Message& message, long timeout_ns, const Noted* note = nullptr);
bool channel_settle(Space& space, const Held& channel, long timeout_ns);  // false: its lock was not to be had in time
u64 channel_length(Space& space, const Held& channel);
void channel_discard(Space& space, const Held& channel, const std::function<bool()>& interrupted = {});  // frees unnamed arrays that are under way

}  // namespace osf::space

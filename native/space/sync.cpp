#include "space/sync.hpp"

#include <algorithm>
#include <climits>
#include <cstddef>
#include <utility>

namespace osf::space {

constexpr long TICK = 50'000'000;

// Sleeps a tick at most, or until the deadline; false when that is over.
static bool nap(const u32& word, u32 seen, u64 start, long timeout_ns) {
    long wait = TICK;
    if (timeout_ns >= 0) {
        long left = timeout_ns - long(now_ns() - start);
        if (left <= 0) return false;
        wait = std::min(wait, left);
    }
    futex_wait(word, seen, wait);
    return true;
}

// The lock inside a barrier or channel. It is held for moments only, unless somebody wrote over it.
static void take(Lock& lock, const Members& members, const std::function<bool()>& interrupted) {
    while (lock_take(lock, members, interrupted ? TICK : -1) == Grant::timed_out)
        if (interrupted()) throw Error(Code::broken_barrier, "gave up waiting for the lock inside a barrier or channel");
}

// Ends the round `generation`: the next one begins with nobody in it. A futex waits on the low half of the word.
static void next_round(Barrier& barrier, u32 generation) {
    static_assert(offsetof(Barrier, arrived) == offsetof(Barrier, generation) + 4 && offsetof(Barrier, generation) % 8 == 0);
    using BothWords [[gnu::may_alias]] = u64;
    __atomic_store_n(reinterpret_cast<BothWords*>(&barrier.generation), u64(generation + 1), __ATOMIC_SEQ_CST);
    step();
}

static void end_badly(Barrier& barrier, bool broken) {
    u32 generation = load(barrier.generation);
    store(barrier.failed, generation + 1);
    step();
    store(barrier.broken, u32(broken));
    step();
    next_round(barrier, generation);
    lock_drop(barrier.lock);
    futex_wake(barrier.generation, INT_MAX);
}

u32 barrier_wait(Barrier& barrier, const Members& members, long timeout_ns, const std::function<bool()>& interrupted) {
    const u64 start = now_ns();
    take(barrier.lock, members, interrupted);
    if (load(barrier.broken)) {
        lock_drop(barrier.lock);
        throw Error(Code::broken_barrier, "the barrier is broken: a process died or gave up while others waited; reset() it");
    }
    u32 generation = load(barrier.generation), place = load(barrier.arrived);
    if (place >= barrier.parties) {
        lock_drop(barrier.lock);
        throw Error(Code::corrupt, "the barrier's bytes were overwritten: " + std::to_string(place) + " of " +
                                       std::to_string(barrier.parties) + " parties wait");
    }
    if (place + 1 == barrier.parties) {
        next_round(barrier, generation);
        lock_drop(barrier.lock);
        futex_wake(barrier.generation, INT_MAX);
        return 0;
    }
    store(barrier.ids[place], members.executor());  // who serves a remote process gives up for it
    step();
    store(barrier.arrived, place + 1);
    step();
    lock_drop(barrier.lock);
    for (;;) {
        bool in_time = nap(barrier.generation, generation, start, timeout_ns) && !(interrupted && interrupted());
        take(barrier.lock, members, interrupted);
        if (load(barrier.generation) != generation) {
            bool failed = int(load(barrier.failed) - (generation + 1)) >= 0 && load(barrier.failed);
            lock_drop(barrier.lock);
            if (failed) throw Error(Code::broken_barrier, "the barrier broke: a process died, gave up or reset it while others waited");
            return barrier.parties - 1 - place;
        }
        bool death = false;
        for (u32 at = 0; at < std::min(load(barrier.arrived), barrier.parties); at++) death |= !members.alive(load(barrier.ids[at]));
        if (death || !in_time) {
            end_badly(barrier, true);
            throw Error(Code::broken_barrier, death ? "the barrier broke: a process died while waiting; reset() it"
                                                    : "the barrier broke: not all " + std::to_string(barrier.parties) +
                                                          " parties came in time; reset() it");
        }
        lock_drop(barrier.lock);
    }
}

// Those who wait learn that their round broke.
void barrier_reset(Barrier& barrier, const Members& members, const std::function<bool()>& interrupted) {
    take(barrier.lock, members, interrupted);
    end_badly(barrier, false);
}

// Holds a channel's lock, through exceptions too; or not, if it is not to be had in time. A dead owner leaves nothing to repair.
struct Guard {
    Lock& lock;
    bool held;
    Guard(Lock& of, const Members& members, long timeout_ns)
        : lock(of), held(lock_take(lock, members, timeout_ns < 0 ? -1 : std::max(timeout_ns, TICK)) != Grant::timed_out) {}
    explicit Guard(Lock& taken) : lock(taken), held(true) {}
    ~Guard() { drop(); }
    void drop() { if (std::exchange(held, false)) lock_drop(lock); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
};

static Channel& channel_at(Space& space, const Held& held) { return *reinterpret_cast<Channel*>(space.bytes(held)); }
static Slot& slot_at(Channel& channel, u64 number) {
    return *reinterpret_cast<Slot*>(channel.slots + (number % channel.capacity) * channel.slot_bytes);
}

// An unnamed array under way is kept by a hidden name made of the channel and the slot: whoever is killed, the
// next use of that slot replaces what it left.
static std::string hidden_name(const Held& channel, u64 number, const Channel& of) {
    return HIDDEN + std::to_string(channel.record) + "/" + std::to_string(number % of.capacity);
}

static void refuse_deleted(const Channel& channel) {
    if (load(channel.deleted)) throw Error(Code::unknown_name, "the channel was deleted; make it anew, with space.channel()");
}

bool channel_send(Space& space, const Held& held, std::string_view bytes, const Held* array, long timeout_ns) {
    Channel& channel = channel_at(space, held);
    if (bytes.size() + sizeof(Slot) > channel.slot_bytes)
        throw Error(Code::bad_input, "a message of " + std::to_string(bytes.size()) + " bytes does not fit this channel (at most " +
                                         std::to_string(channel.slot_bytes - sizeof(Slot)) + "); put it as an array and send that");
    const u64 start = now_ns();
    for (;;) {
        Guard guard(channel.lock, space.members, timeout_ns);
        if (!guard.held) return false;
        refuse_deleted(channel);
        u64 tail = load(channel.tail);
        if (tail - load(channel.head) < channel.capacity) {
            Slot& slot = slot_at(channel, tail);
            slot.length = u32(bytes.size());
            slot.kind = 0;
            slot.record = array ? array->record : 0;
            u64 state = array ? load(space.record(*array).state) : u64(gone);
            if (state == draft) throw Error(Code::bad_input, "a draft cannot be sent; publish it first");
            if (state == live) {
                if (space.name_of(*array).starts_with(HIDDEN))
                    throw Error(Code::bad_input, "this unnamed array is under way in a channel already; give it a name to send it twice");
                slot.kind = 1;
            } else if (array) {
                std::string name = hidden_name(held, tail, channel);
                space.remove(name);
                step();
                space.name(*array, name);
                slot.kind = 2;
            }
            std::memcpy(slot.bytes, bytes.data(), bytes.size());
            step();
            store(channel.tail, tail + 1);
            store(channel.items, load(channel.items) + 1);
            step();
            guard.drop();
            futex_wake(channel.items, 1);
            return true;
        }
        u32 room = load(channel.room);
        guard.drop();
        if (!nap(channel.room, room, start, timeout_ns)) return false;
    }
}

bool channel_receive(Space& space, const Held& held, Message& message, long timeout_ns) {
    Channel& channel = channel_at(space, held);
    const u64 start = now_ns();
    for (;;) {
        Guard guard(channel.lock, space.members, timeout_ns);
        if (!guard.held) return false;
        refuse_deleted(channel);
        u64 head = load(channel.head);
        if (head == load(channel.tail)) {
            u32 items = load(channel.items);
            guard.drop();
            if (!nap(channel.items, items, start, timeout_ns)) return false;
            continue;
        }
        Slot& slot = slot_at(channel, head);
        if (slot.length > channel.slot_bytes - sizeof(Slot))
            throw Error(Code::corrupt, "the channel's bytes were overwritten: a message has " + std::to_string(slot.length) + " bytes");
        message.kind = slot.kind;
        message.bytes.assign(slot.bytes, slot.length);
        bool lost = false;
        if (slot.kind) {
            std::string name = slot.kind == 1 ? message.bytes : hidden_name(held, head, channel);
            message.array = space.find(name);
            step();
            if (slot.kind == 2) {
                if (message.array) space.remove(name);
                else lost = true;  // it went with a receiver that was killed after taking it
            } else if (message.array && message.array.record != slot.record) {
                space.release(message.array);
                message.array = {};
            }
        }
        step();
        store(channel.head, head + 1);
        store(channel.room, load(channel.room) + 1);
        step();
        guard.drop();
        futex_wake(channel.room, 1);
        if (!lost) return true;
    }
}

u64 channel_length(Space& space, const Held& held) {
    Channel& channel = channel_at(space, held);
    u64 head = load(channel.head);
    return load(channel.tail) - head;
}

void channel_discard(Space& space, const Held& held, const std::function<bool()>& interrupted) {
    Channel& channel = channel_at(space, held);
    {
        take(channel.lock, space.members, interrupted);
        Guard guard(channel.lock);
        store(channel.deleted, 1u);
        step();
        for (u64 number = 0; number < channel.capacity; number++) space.remove(hidden_name(held, number, channel));
        store(channel.head, load(channel.tail));
        store(channel.items, load(channel.items) + 1);
        store(channel.room, load(channel.room) + 1);
    }
    futex_wake(channel.items, INT_MAX);
    futex_wake(channel.room, INT_MAX);
}

}  // namespace osf::space

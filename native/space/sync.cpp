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

// Before a change, under the lock. From here on whoever takes the lock can tell whether the change was made.
static void begin(u32& last, const Noted* note, u64 after) {
    if (!note) return;
    note->told.object = u64(&last);
    note->told.what = note->what;
    note->told.after = after;
    store(note->told.phase, u32(told_begun), std::memory_order_seq_cst);
    step();
    store(last, note->number, std::memory_order_seq_cst);
    step();
}

static void end(u32& last, const Noted* note) {
    if (!note) return;
    store(note->told.phase, u32(note->what == told_wait ? told_waits : told_done), std::memory_order_seq_cst);
    step();
    store(last, 0u);
    step();
}

// Completes the note of who was killed, if `last` says that somebody was: `count` tells whether the change was made, `then` what is
// left to be done if it was.
template <class Count, class Then>
static void settle(u32& last, const Members& members, const Count& count, const Then& then) {
    const u32 number = load(last);
    if (!number) return;
    Told* told = members.told_of(number);
    if (told && load(told->phase) == told_begun && told->object == u64(&last) && count(*told) >= told->after) {
        then(*told);
        step();
        store(told->phase, u32(told->what == told_wait ? told_waits : told_done), std::memory_order_seq_cst);
    }
    step();
    store(last, 0u);
    step();
}

// Ends the round `generation`: the next one begins with nobody in it. A futex waits on the low half of the word.
static void next_round(Barrier& barrier, u32 generation) {
    static_assert(offsetof(Barrier, arrived) == offsetof(Barrier, generation) + 4 && offsetof(Barrier, generation) % 8 == 0);
    using BothWords [[gnu::may_alias]] = u64;
    __atomic_store_n(reinterpret_cast<BothWords*>(&barrier.generation), u64(generation + 1), __ATOMIC_SEQ_CST);
    step();
}

static void end_badly(Barrier& barrier, bool broken, const Noted* note = nullptr) {
    u32 generation = load(barrier.generation);
    store(barrier.failed, generation + 1);
    step();
    store(barrier.broken, u32(broken));
    step();
    next_round(barrier, generation);
    end(barrier.last, note);
    lock_drop(barrier.lock);
    futex_wake(barrier.generation, INT_MAX);
}

static u64 count_of(const Barrier& barrier) { return u64(load(barrier.generation)) << 32 | load(barrier.arrived); }

static void settle_locked(Barrier& barrier, const Members& members) {
    settle(barrier.last, members, [&](const Told&) { return count_of(barrier); }, [](const Told&) {});
}

void barrier_settle(Barrier& barrier, const Members& members, const std::function<bool()>& interrupted) {
    take(barrier.lock, members, interrupted);
    settle_locked(barrier, members);
    lock_drop(barrier.lock);
}

static u32 await_round(Barrier& barrier, const Members& members, u32 generation, u32 order, u64 start, long timeout_ns, const std::function<bool()>& interrupted) {
    for (;;) {
        bool in_time = nap(barrier.generation, generation, start, timeout_ns) && !(interrupted && interrupted());
        take(barrier.lock, members, interrupted);
        if (load(barrier.generation) != generation) {
            bool failed = int(load(barrier.failed) - (generation + 1)) >= 0 && load(barrier.failed);
            lock_drop(barrier.lock);
            if (failed) throw Error(Code::broken_barrier, "the barrier broke: a process died, gave up or reset it while others waited");
            return order;
        }
        settle_locked(barrier, members);
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

u32 barrier_go_on(Barrier& barrier, const Members& members, const Noted& note, long timeout_ns, const std::function<bool()>& interrupted) {
    u32 order;
    std::memcpy(&order, note.told.answer, sizeof order);
    return order ? await_round(barrier, members, u32(note.told.round), order, now_ns(), timeout_ns, interrupted) : 0;
}

u32 barrier_wait(Barrier& barrier, const Members& members, long timeout_ns, const std::function<bool()>& interrupted, const Noted* note) {
    const u64 start = now_ns();
    take(barrier.lock, members, interrupted);
    settle_locked(barrier, members);
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
    const u32 order = barrier.parties - 1 - place;
    if (note) {
        note->told.round = generation;
        note->told.bytes = sizeof order;
        std::memcpy(note->told.answer, &order, sizeof order);
    }
    if (!order) {
        begin(barrier.last, note, u64(generation + 1) << 32);
        next_round(barrier, generation);
        end(barrier.last, note);
        lock_drop(barrier.lock);
        futex_wake(barrier.generation, INT_MAX);
        return 0;
    }
    begin(barrier.last, note, u64(generation) << 32 | (place + 1));
    store(barrier.ids[place], note ? members.id() : members.executor());  // without a note, who serves a remote process gives up for it
    step();
    store(barrier.arrived, place + 1);
    step();
    end(barrier.last, note);
    lock_drop(barrier.lock);
    return await_round(barrier, members, generation, order, start, timeout_ns, interrupted);
}

// Those who wait learn that their round broke.
void barrier_reset(Barrier& barrier, const Members& members, const std::function<bool()>& interrupted, const Noted* note) {
    take(barrier.lock, members, interrupted);
    settle_locked(barrier, members);
    begin(barrier.last, note, u64(load(barrier.generation) + 1) << 32);
    end_badly(barrier, false, note);
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

// A receive that was cut behind its commit leaves the hidden name of what it took.
static void settle_locked(Space& space, const Held& held, Channel& channel) {
    settle(channel.last, space.members, [&](const Told& told) { return load(told.what == told_receive ? channel.head : channel.tail); },
           [&](const Told& told) {
               if (told.what != told_receive || slot_at(channel, told.after - 1).kind != 2) return;
               space.remove(hidden_name(held, told.after - 1, channel));
               if (told.pin) space.mend(told.record);
           });
}

bool channel_settle(Space& space, const Held& held, long timeout_ns) {
    Channel& channel = channel_at(space, held);
    Guard guard(channel.lock, space.members, timeout_ns);
    if (guard.held) settle_locked(space, held, channel);
    return guard.held;
}

// Whether an array has its hidden name only because a send was killed before its commit; then it is taken from it.
static bool left_over(Space& space, const Held& held, const Channel& channel, const std::string& name) {
    for (u64 number = load(channel.head); number < load(channel.tail); number++)
        if (hidden_name(held, number, channel) == name) return false;
    return name.starts_with(HIDDEN + std::to_string(held.record) + "/") && space.remove(name);
}

static void refuse_deleted(const Channel& channel) {
    if (load(channel.deleted)) throw Error(Code::unknown_name, "the channel was deleted; make it anew, with space.channel()");
}

bool channel_send(Space& space, const Held& held, std::string_view bytes, const Held* array, long timeout_ns, const Noted* note) {
    Channel& channel = channel_at(space, held);
    if (bytes.size() + sizeof(Slot) > channel.slot_bytes)
        throw Error(Code::bad_input, "a message of " + std::to_string(bytes.size()) + " bytes does not fit this channel (at most " +
                                         std::to_string(channel.slot_bytes - sizeof(Slot)) + "); put it as an array and send that");
    const u64 start = now_ns();
    for (;;) {
        Guard guard(channel.lock, space.members, timeout_ns);
        if (!guard.held) return false;
        settle_locked(space, held, channel);
        refuse_deleted(channel);
        u64 tail = load(channel.tail);
        if (tail - load(channel.head) < channel.capacity) {
            Slot& slot = slot_at(channel, tail);
            slot.length = u32(bytes.size());
            slot.kind = 0;
            slot.record = array ? array->record : 0;
            if (array && note && note->again) space.mend(array->record);
            u64 state = array ? load(space.record(*array).state) : u64(gone);
            if (state == draft) throw Error(Code::bad_input, "a draft cannot be sent; publish it first");
            const std::string has = state == live ? space.name_of(*array) : "";
            if (state == live && !(has.starts_with(HIDDEN) && left_over(space, held, channel, has))) {
                if (has.starts_with(HIDDEN))
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
            begin(channel.last, note, tail + 1);
            store(channel.tail, tail + 1);
            store(channel.items, load(channel.items) + 1);
            step();
            end(channel.last, note);
            guard.drop();
            futex_wake(channel.items, 1);
            return true;
        }
        u32 room = load(channel.room);
        guard.drop();
        if (!nap(channel.room, room, start, timeout_ns)) return false;
    }
}

bool channel_receive(Space& space, const Held& held, Message& message, long timeout_ns, const Noted* note) {
    Channel& channel = channel_at(space, held);
    const u64 start = now_ns();
    for (;;) {
        Guard guard(channel.lock, space.members, timeout_ns);
        if (!guard.held) return false;
        settle_locked(space, held, channel);
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
        const std::string name = slot.kind == 2 ? hidden_name(held, head, channel) : slot.kind ? message.bytes : "";
        if (slot.kind) {
            message.array = space.find(name);
            step();
            lost = slot.kind == 2 && !message.array;
            if (slot.kind == 1 && message.array && message.array.record != slot.record) {
                space.release(message.array);
                message.array = {};
            }
        }
        if (note && !lost) {
            try {
                note->keep(message);
            } catch (...) {
                if (message.array) space.release(message.array);
                throw;
            }
        }
        step();
        if (!lost) begin(channel.last, note, head + 1);
        const bool hidden = slot.kind == 2 && !lost;
        store(channel.head, head + 1);
        store(channel.room, load(channel.room) + 1);
        step();
        if (hidden) space.remove(name);  // after the commit: who is killed between leaves it to the next use of that slot
        if (!lost) end(channel.last, note);
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
        settle_locked(space, held, channel);
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

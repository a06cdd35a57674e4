// Calls on the words of an array: atomics, locks, barriers, channels. Anybody may have overwritten those words: nothing that they say
// is believed before it was compared with the array's size, and nobody is waited for without looking whether the caller is still there.
#include "rpc/session.hpp"

namespace osf::rpc {

void Session::need_write() const {
    space_.check_usable();
    if (space_.read_only()) throw Error(Code::not_permitted, std::string("the space '") + space_.header().name + "' is open read-only (mode=\"r\")");
}

template <class T>
static T& word_at(const Proxy::Use& pin, u64 offset) {
    const u64 nbytes = pin.record().nbytes;
    if (offset > nbytes || nbytes - offset < sizeof(T) || (u64(pin.bytes()) + offset) % sizeof(T))
        throw Error(Code::bad_address, "an atomic needs an aligned word of " + std::to_string(sizeof(T)) + " bytes inside the array; offset " +
                                           std::to_string(offset) + " of " + std::to_string(nbytes) + " bytes is none");
    return *reinterpret_cast<T*>(pin.bytes() + offset);
}

template <class T>
static T& whole(const Proxy::Use& pin, Kind kind, u64 bytes = 0) {
    static constexpr const char* KINDS[] = {"array", "lock", "barrier", "channel", "counter"};
    const Record& record = pin.record();
    if (record.kind != kind || record.nbytes < std::max<u64>(bytes, sizeof(T)))
        throw Error(Code::bad_input, "an array of kind " + std::to_string(record.kind) + " and " + std::to_string(record.nbytes) + " bytes is no " + KINDS[kind]);
    return *reinterpret_cast<T*>(pin.bytes());
}

static Lock& lock_at(const Proxy::Use& pin) { return whole<Lock>(pin, kind_lock); }

static Barrier& barrier_at(const Proxy::Use& pin) {
    return whole<Barrier>(pin, kind_barrier, barrier_bytes(load(whole<Barrier>(pin, kind_barrier).parties)));
}

static void check_channel(const Proxy::Use& pin, u32 capacity, u32 slot_bytes) {
    if (!capacity || slot_bytes <= sizeof(Slot) || slot_bytes % alignof(Slot)) throw Error(Code::bad_input, "the array is no channel");
    whole<Channel>(pin, kind_channel, channel_bytes(capacity, slot_bytes));
}

static Channel& channel_at(const Proxy::Use& pin) {
    Channel& channel = whole<Channel>(pin, kind_channel);
    check_channel(pin, load(channel.capacity), load(channel.slot_bytes));
    return channel;
}

template <class T>
static std::pair<bool, u64> apply(T& word, Verb verb, u64 a, u64 b) {
    std::atomic_ref<T> atomic(word);
    switch (verb) {
        case Verb::load: return {true, atomic.load()};
        case Verb::store: atomic.store(T(a)); return {true, 0};
        case Verb::add: return {true, atomic.fetch_add(T(a))};
        case Verb::exchange: return {true, atomic.exchange(T(a))};
        case Verb::cas: {
            T expected = T(a);
            bool done = atomic.compare_exchange_strong(expected, T(b));
            return {done, expected};
        }
    }
    throw Error(Code::bad_input, "there is no atomic operation " + std::to_string(int(verb)));
}

void Session::atomic(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    u64 offset = in.get<u64>(), a = in.get<u64>(), b = in.get<u64>();
    Verb verb = Verb(in.get<u8>());
    u8 width = in.get<u8>();
    in.end();
    if (verb == Verb::load) space_.check_usable();
    else need_write();
    if (width != 4 && width != 8) throw Error(Code::bad_input, "an atomic has 4 or 8 bytes, not " + std::to_string(width));
    auto act = [&](Verb what, u64 x, u64 y) {
        return width == 4 ? apply(word_at<u32>(pin, offset), what, x, y) : apply(word_at<u64>(pin, offset), what, x, y);
    };
    if (told_) act(Verb::add, 0, 0);  // what has to be fetched is fetched before it begins: nobody is killed just there
    commit();
    auto [done, value] = act(verb, a, b);
    reply(Out().add(u8(done)).add(value));
}

void Session::wait_word(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    u32& word = word_at<u32>(pin, in.get<u64>());
    u32 expected = in.get<u32>();
    long timeout = in.get<long>();
    in.end();
    bool changed = wait_in_slices(timeout, [&](long slice) {
        if (load(word) != expected) return true;
        futex_wait(word, expected, slice);
        return load(word) != expected;
    });
    reply(Out().add(u8(changed)));
}

void Session::wake_word(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    u32& word = word_at<u32>(pin, in.get<u64>());
    int count = in.get<int>();
    in.end();
    reply(Out().add(futex_wake(word, count)));
}

static bool owns(const Space& space, const Lock& lock) { return (load(lock.word) & ~WAITERS) == space.members.id(); }

void Session::lock_take(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    long timeout = in.get<long>();
    in.end();
    need_write();
    Lock& lock = lock_at(pin);
    if (doubtful_ && !owns(space_, lock)) doubtful_ = false;
    commit();
    Grant grant = Grant::timed_out;
    wait_in_slices(timeout, [&](long slice) {
        grant = lock_take_as(space_.members.id(), lock, space_.members, slice);
        return grant != Grant::timed_out;
    });
    reply(Out().add(u8(grant)), [&] { if (grant != Grant::timed_out) osf::lock_drop(lock); });
}

void Session::lock_drop(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    in.end();
    need_write();
    Lock& lock = lock_at(pin);
    const bool owned = owns(space_, lock), before = doubtful_ && !owned;  // it is begun by an owner only
    doubtful_ = false;
    if (owned) {
        commit();
        osf::lock_drop(lock);
    }
    reply(Out().add(u8(owned || before)));
}

void Session::lock_owned(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    in.end();
    reply(Out().add(u8(owns(space_, lock_at(pin)))));
}

void Session::barrier_init(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    u32 parties = in.get<u32>();
    in.end();
    need_write();
    store(whole<Barrier>(pin, kind_barrier, barrier_bytes(parties)).parties, parties);
    reply();
}

void Session::barrier_facts(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    in.end();
    const Barrier& barrier = barrier_at(pin);
    reply(Out().add(load(barrier.parties)).add(load(barrier.broken)));
}

void Session::barrier_wait(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    long timeout = in.get<long>();
    in.end();
    need_write();
    Barrier& barrier = barrier_at(pin);
    auto interrupted = [this] { return caller_gave_up(); };
    const auto noted = note(told_wait);
    u32 place;
    if (settled([&] { space::barrier_settle(barrier, space_.members, interrupted); }))
        place = space::barrier_go_on(barrier, space_.members, *noted, timeout, interrupted);
    else
        place = space::barrier_wait(barrier, space_.members, timeout, interrupted, noted ? &*noted : nullptr);
    reply(Out().add(place));
}

void Session::barrier_reset(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    in.end();
    need_write();
    Barrier& barrier = barrier_at(pin);
    auto interrupted = [this] { return caller_gave_up(); };
    if (settled([&] { space::barrier_settle(barrier, space_.members, interrupted); })) return;
    const auto noted = note(told_reset);
    space::barrier_reset(barrier, space_.members, interrupted, noted ? &*noted : nullptr);
    reply();
}

void Session::channel_init(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    u32 capacity = in.get<u32>(), slot_bytes = in.get<u32>();
    in.end();
    need_write();
    check_channel(pin, capacity, slot_bytes);
    Channel& channel = *reinterpret_cast<Channel*>(pin.bytes());
    store(channel.capacity, capacity);
    store(channel.slot_bytes, slot_bytes);
    reply();
}

void Session::channel_facts(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    in.end();
    const Channel& channel = channel_at(pin);
    reply(Out().add(load(channel.capacity)).add(load(channel.slot_bytes)).add(channel_length(space_, pin.held())).add(load(channel.deleted)));
}

void Session::settle_channel(const Held& channel) {
    while (!space::channel_settle(space_, channel, 100'000'000)) caller_gave_up();
}

void Session::channel_send(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    long timeout = in.get<long>();
    bool with_array = in.get<u8>();
    u64 number = in.get<u64>();
    std::string_view message = in.text();
    in.end();
    need_write();
    channel_at(pin);
    std::optional<Proxy::Use> array;
    if (with_array) array.emplace(*proxy_, number);
    if (settled([&] { settle_channel(pin.held()); })) return;
    const auto noted = note(told_send);
    if (noted) space_.members.keep_answer(lane(), Out().add(u8(1)).span());
    bool sent = wait_in_slices(timeout, [&](long slice) {
        return space::channel_send(space_, pin.held(), message, array ? &array->held() : nullptr, slice, noted ? &*noted : nullptr);
    });
    reply(Out().add(u8(sent)));
}

void Session::channel_receive(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    long timeout = in.get<long>();
    u64 number = in.get<u64>();
    in.end();
    need_write();
    channel_at(pin);
    const u32 before = told_ ? told_->pin : 0;
    if (settled([&] { settle_channel(pin.held()); })) return;
    if (before) {  // found by a keeper that was killed before it took the message
        told_->pin = 0;
        proxy_->release(number);
    }
    Message message;
    Out out;
    auto put = [&](bool got) {
        out.clear();
        out.add(u8(got)).add(message.kind).text(message.bytes).add(u8(bool(message.array)));
        if (message.array) describe(out, space_, message.array);
    };
    auto noted = note(told_receive);
    if (noted) noted->keep = [&](const Message&) {
        put(true);
        space_.members.keep_answer(lane(), out.span());
        if (!message.array) return;
        space_.hand_out(message.array);
        told_->number = number;
        told_->record = message.array.record;
        step();
        told_->pin = message.array.pin + 1;
        step();
    };
    bool got = wait_in_slices(timeout, [&](long slice) { return space::channel_receive(space_, pin.held(), message, slice, noted ? &*noted : nullptr); });
    put(got);
    if (message.array) proxy_->keep(number, message.array);
    reply(out, [&] { if (message.array) proxy_->release(number); });
}

void Session::channel_discard(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    in.end();
    need_write();
    channel_at(pin);
    space::channel_discard(space_, pin.held(), [this] { return given_up(); });
    reply();
}

}  // namespace osf::rpc

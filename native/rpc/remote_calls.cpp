// The calls, each put into words and its answer read back.
#include "rpc/remote.hpp"

namespace osf::rpc {

Remote::Ask Remote::ask(Call call, bool again) const {
    Ask result;
    result.call = call;
    result.again = again;
    return result;
}

Remote::Ask Remote::about(Call call, RemoteArray& array, bool again) {
    Ask result = ask(call, again);
    result.out.add(number_of(array));
    result.arrays[0] = &array;
    result.address = array.address;
    result.bytes = array.nbytes;
    return result;
}

Remote::Ask Remote::once(Call call, RemoteArray& array) {
    Ask result = about(call, array);
    result.once = true;
    return result;
}

void Remote::add_timeout(Ask& ask, long timeout_ns) {
    ask.timeout_at = ask.out.size();
    ask.timeout_ns = timeout_ns;
    ask.out.add(timeout_ns);
}

// A child holds what its parent held by the same number, at a place of its own. What says which changes when it is first asked for,
// and `fork` last: other threads of the child may look at it.
u64 Remote::number_of(RemoteArray& array) {
    std::atomic_ref<u64> fork(array.fork);
    if (fork.load(std::memory_order_acquire) == forks()) return array.number;
    Line& own = line();
    std::lock_guard guard(own.mutex);
    auto held = own.pins.find(array.number);
    if (held == own.pins.end() || held->second.record != array.record) {
        const std::string why = left_behind_.empty() ? "the host " + peer_.label() + " was lost before this process was forked" : left_behind_;
        throw HostLost(peer_.label(), why + "; find the array again", array.address, array.nbytes);
    }
    array.incarnation = held->second.incarnation;
    array.member = held->second.member;
    array.pin = held->second.pin;
    fork.store(forks(), std::memory_order_release);
    return array.number;
}

RemoteArray Remote::keep(const Answer& answer, In& in) {
    RemoteArray array;
    array.number = answer.number;
    array.incarnation = answer.welcome.incarnation;
    array.member = answer.welcome.member;
    array.fork = forks();
    array.pin = in.get<u32>();
    array.record = in.get<u64>();
    array.address = in.get<u64>();
    array.nbytes = in.get<u64>();
    array.dtype = in.get<u16>();
    array.kind = in.get<u8>();
    array.shape.resize(in.get<u8>());
    for (u64& size : array.shape) size = in.get<u64>();
    array.descr = in.text();
    Line& own = line();
    step();
    {
        std::lock_guard guard(own.mutex);
        if (own.claims != answer.claims && !answer.kept) {
            own.releases.push_back(array.number);  // should the home have it after all
            throw Missed(peer_.label(), "the keeper of host " + peer_.label() + " was replaced just as it gave this array out; find it again", array.address, array.nbytes);
        }
        own.pins[array.number] = {array.incarnation, array.record, array.member, array.pin};
    }
    step();
    own.transfers->watch();
    return array;
}

static void add_spec(Out& out, const Spec& spec) {
    if (spec.shape.size() > 64) throw Error(Code::bad_input, "an array has at most 64 dimensions");
    out.add(spec.nbytes).add(spec.dtype).add(spec.kind).add(u8(spec.shape.size()));
    for (u64 size : spec.shape) out.add(size);
    out.text(spec.descr).text(spec.name);
}

// For calls that are harmless if done twice.
template <class Work>
static auto until_kept(const Work& work) {
    for (;;) {
        try {
            return work();
        } catch (const Missed&) {}
    }
}

RemoteArray Remote::make(const Spec& spec, bool zero) { return until_kept([&] { return make_once(spec, zero); }); }
std::optional<RemoteArray> Remote::find(std::string_view name) { return until_kept([&] { return find_once(name); }); }
RemoteArray Remote::at(u64 address) { return until_kept([&] { return at_once(address); }); }

RemoteArray Remote::make_once(const Spec& spec, bool zero) {
    Ask what = ask(Call::make, true);  // of two, the one whose answer did not come is let go of
    what.out.add(what.new_pin = new_number());
    add_spec(what.out, spec);
    what.out.add(u8(zero));
    Answer answer = call(std::move(what));
    In in(answer.payload);
    return keep(answer, in);
}

RemoteArray Remote::put(const Spec& spec, std::span<const char> bytes, bool replace) {
    Ask what = ask(Call::put);
    what.out.add(what.new_pin = new_number());
    add_spec(what.out, spec);
    what.out.add(u8(replace));
    what.parts = bytes;
    Answer answer = call(std::move(what));
    In in(answer.payload);
    return keep(answer, in);
}

std::optional<RemoteArray> Remote::find_once(std::string_view name) {
    Ask what = ask(Call::find, true);
    what.out.add(what.new_pin = new_number()).text(name);
    Answer answer = call(std::move(what));
    In in(answer.payload);
    if (!in.get<u8>()) return std::nullopt;
    return keep(answer, in);
}

RemoteArray Remote::at_once(u64 address) {
    Ask what = ask(Call::at, true);
    what.out.add(what.new_pin = new_number()).add(address);
    what.address = address;
    what.bytes = 1;
    Answer answer = call(std::move(what));
    In in(answer.payload);
    return keep(answer, in);
}

std::pair<u64, std::string> Remote::look(RemoteArray& array) {
    Answer answer = call(about(Call::look, array, true));
    In in(answer.payload);
    u64 state = in.get<u64>();
    return {state, std::string(in.text())};
}

void Remote::publish(RemoteArray& array, bool replace) {
    Ask what = once(Call::publish, array);
    what.out.add(u8(replace));
    call(std::move(what));
}

void Remote::name(RemoteArray& array, std::string_view name, RemoteArray* meanwhile) {
    Ask what = once(Call::name, array);
    what.out.text(name).add(meanwhile ? number_of(*meanwhile) : u64(0));
    what.arrays[1] = meanwhile;
    call(std::move(what));
}

bool Remote::contains(std::string_view name) {
    Ask what = ask(Call::contains, true);
    what.out.text(name);
    return In(call(std::move(what)).payload).get<u8>();
}

bool Remote::remove(std::string_view name, RemoteArray* only) {
    Ask what = ask(Call::remove);
    what.once = true;
    what.out.text(name).add(u8(only != nullptr)).add(only ? number_of(*only) : u64(0));
    what.arrays[0] = only;
    return In(call(std::move(what)).payload).get<u8>();
}

void Remote::rename(std::string_view from, std::string_view to, RemoteArray* meanwhile) {
    Ask what = ask(Call::rename);
    what.once = true;
    what.out.text(from).text(to).add(meanwhile ? number_of(*meanwhile) : u64(0));
    what.arrays[0] = meanwhile;
    call(std::move(what));
}

std::vector<Entry> Remote::list(std::string_view prefix) {
    std::vector<Entry> entries;
    Ask what = ask(Call::list, true);
    what.out.text(prefix);
    what.anew = [&] { entries.clear(); };
    what.page = [&](In in) {
        while (in.more()) {
            Entry& entry = entries.emplace_back();
            entry.name = in.text();
            entry.nbytes = in.get<u64>();
            entry.address = in.get<u64>();
            entry.dtype = in.get<u16>();
            entry.kind = in.get<u8>();
            entry.shape.resize(in.get<u8>());
            for (u64& size : entry.shape) size = in.get<u64>();
            entry.descr = in.text();
        }
    };
    call(std::move(what));
    return entries;
}

void Remote::grow(u64 bytes) {
    Ask what = ask(Call::grow);
    what.out.add(bytes);
    call(std::move(what));
}

void Remote::collect() { call(ask(Call::collect, true)); }

Audit Remote::audit() { return In(call(ask(Call::audit, true)).payload).get<Audit>(); }

Stats Remote::stats() {
    Answer answer = call(ask(Call::stats, true));
    In in(answer.payload);
    Stats stats;
    stats.name = in.text();
    stats.backing = in.text();
    for (u64* field : {&stats.base, &stats.reserve, &stats.created_ns, &stats.page_size, &stats.data_address, &stats.bytes, &stats.free,
                       &stats.largest_free, &stats.limit, &stats.metadata_bytes, &stats.arrays})
        *field = in.get<u64>();
    stats.mode = in.get<u32>();
    stats.removed = in.get<u8>();
    stats.read_only = in.get<u8>();
    stats.members.resize(in.get<u32>());
    for (MemberStats& member : stats.members) {
        member.slot = in.get<u32>();
        member.pid = in.get<u64>();
        member.pins = in.get<u64>();
        member.remote = in.get<u8>();
        member.read_only = in.get<u8>();
        member.alive = in.get<u8>();
    }
    return stats;
}

std::string Remote::owners(u64 address, u64 bytes) {
    Ask what = ask(Call::owners, true);
    what.out.add(address).add(bytes);
    what.address = address;
    what.bytes = bytes;
    Answer answer = call(std::move(what));
    return std::string(In(answer.payload).text());
}

std::pair<bool, u64> Remote::atomic(RemoteArray& array, u64 offset, Verb verb, u8 width, u64 a, u64 b) {
    Ask what = verb == Verb::load ? about(Call::atomic, array, true) : once(Call::atomic, array);
    what.out.add(offset).add(a).add(b).add(verb).add(width);
    Answer answer = call(std::move(what));
    In in(answer.payload);
    bool done = in.get<u8>();
    return {done, in.get<u64>()};
}

bool Remote::wait_word(RemoteArray& array, u64 offset, u32 expected, long timeout_ns, const Interrupted& interrupted) {
    Ask what = about(Call::wait_word, array, true);
    what.out.add(offset).add(expected);
    add_timeout(what, timeout_ns);
    what.interrupted = interrupted;
    return In(call(std::move(what)).payload).get<u8>();
}

int Remote::wake_word(RemoteArray& array, u64 offset, int count) {
    Ask what = about(Call::wake_word, array, true);
    what.out.add(offset).add(count);
    return In(call(std::move(what)).payload).get<int>();
}

Grant Remote::lock_take(RemoteArray& array, long timeout_ns, const Interrupted& interrupted) {
    Ask what = once(Call::lock_take, array);
    add_timeout(what, timeout_ns);
    what.interrupted = interrupted;
    return Grant(In(call(std::move(what)).payload).get<u8>());
}

bool Remote::lock_drop(RemoteArray& array) { return In(call(once(Call::lock_drop, array)).payload).get<u8>(); }

bool Remote::lock_owned(RemoteArray& array) { return In(call(about(Call::lock_owned, array, true)).payload).get<u8>(); }

void Remote::barrier_init(RemoteArray& array, u32 parties) {
    Ask what = about(Call::barrier_init, array, true);
    what.out.add(parties);
    call(std::move(what));
}

std::pair<u32, bool> Remote::barrier_facts(RemoteArray& array) {
    Answer answer = call(about(Call::barrier_facts, array, true));
    In in(answer.payload);
    u32 parties = in.get<u32>();
    return {parties, in.get<u32>() != 0};
}

u32 Remote::barrier_wait(RemoteArray& array, long timeout_ns, const Interrupted& interrupted) {
    Ask what = once(Call::barrier_wait, array);
    add_timeout(what, timeout_ns);
    what.interrupted = interrupted;
    return In(call(std::move(what)).payload).get<u32>();
}

void Remote::barrier_reset(RemoteArray& array) { call(once(Call::barrier_reset, array)); }

void Remote::channel_init(RemoteArray& array, u32 capacity, u32 slot_bytes) {
    Ask what = about(Call::channel_init, array, true);
    what.out.add(capacity).add(slot_bytes);
    call(std::move(what));
}

ChannelFacts Remote::channel_facts(RemoteArray& array) {
    Answer answer = call(about(Call::channel_facts, array, true));
    In in(answer.payload);
    ChannelFacts facts;
    facts.capacity = in.get<u32>();
    facts.slot_bytes = in.get<u32>();
    facts.length = in.get<u64>();
    facts.deleted = in.get<u32>();
    return facts;
}

bool Remote::channel_send(RemoteArray& array, std::string_view message, RemoteArray* other, long timeout_ns, const Interrupted& interrupted) {
    Ask what = once(Call::channel_send, array);
    add_timeout(what, timeout_ns);
    what.out.add(u8(other != nullptr)).add(other ? number_of(*other) : u64(0)).text(message);
    what.arrays[1] = other;
    what.interrupted = interrupted;
    return In(call(std::move(what)).payload).get<u8>();
}

bool Remote::channel_receive(RemoteArray& array, RemoteMessage& message, long timeout_ns, const Interrupted& interrupted) {
    Ask what = once(Call::channel_receive, array);
    add_timeout(what, timeout_ns);
    what.out.add(what.new_pin = new_number());
    what.interrupted = interrupted;
    bool got = false;
    what.taken = [&](const Answer& answer) {
        In in(answer.payload);
        if (!in.get<u8>()) return;
        message.kind = in.get<u32>();
        message.bytes = in.text();
        if (in.get<u8>()) message.array = keep(answer, in);
        got = true;
    };
    call(std::move(what));
    return got;
}

void Remote::channel_discard(RemoteArray& array) { call(about(Call::channel_discard, array, true)); }

std::shared_ptr<Transfer> Remote::get(std::vector<Range> ranges, std::vector<char*> places) {
    check_usable();
    if (ranges.size() > RANGES_MAX) throw Error(Code::bad_input, "one transfer has at most " + std::to_string(RANGES_MAX) + " ranges");
    auto transfer = std::make_shared<Transfer>(false, std::move(ranges), std::move(places));
    line().transfers->submit(transfer);
    return transfer;
}

std::shared_ptr<Transfer> Remote::write(std::vector<Range> ranges, std::vector<char*> places) {
    check_usable();
    if (ranges.size() > RANGES_MAX) throw Error(Code::bad_input, "one transfer has at most " + std::to_string(RANGES_MAX) + " ranges");
    auto transfer = std::make_shared<Transfer>(true, std::move(ranges), std::move(places));
    line().transfers->submit(transfer);
    return transfer;
}

bool Remote::wait(Transfer& transfer, long timeout_ns, const Interrupted& interrupted) {
    if (!transfer.done()) {
        check_usable();
        if (transfer.fork != forks()) throw Error(Code::closed, "the transfer was begun by the process that this one was forked from");
        if (!line().transfers->wait(transfer, timeout_ns, interrupted)) return false;
    }
    transfer.check();
    return true;
}

std::vector<std::optional<RemoteArray>> Remote::find_all(std::span<Remote* const> remotes, std::string_view name, const Failed& failed) {
    std::vector<std::optional<RemoteArray>> found(remotes.size());
    std::vector<Ask> asks(remotes.size());
    std::vector<std::unique_ptr<Connection>> connections(remotes.size());
    std::vector<bool> again(remotes.size());
    bool patient = true;
    auto tried = [&](size_t which, auto&& work) {
        Remote& remote = *remotes[which];
        try {
            work(remote);
        } catch (const Error& error) {
            const u64 heard = connections[which] ? connections[which]->heard : 0;
            if (heard && (now_ns() - heard > u64(SILENCE_MS) * 1'000'000 || dynamic_cast<const Silent*>(&error))) remote.reach_.failed(heard);
            again[which] = error.code == Code::host_lost && patient && !remote.reach_.lost();  // it is asked alone, after the others
            if (connections[which]) remote.drop(remote.line(), std::move(connections[which]), asks[which].new_pin);
            if (!again[which]) failed(which, error);
        }
    };
    for (size_t which = 0; which < remotes.size(); which++) {
        tried(which, [&](Remote& remote) {
            Ask& what = asks[which] = remote.ask(Call::find, true);
            what.out.add(what.new_pin = remote.new_number()).text(name);
            remote.check_usable();
            try {
                connections[which] = remote.take(remote.line(), false, false);
            } catch (const HostLost& error) {
                remote.lost(error.what(), what);
            }
            step();
            remote.begin(remote.line(), *connections[which], what);
            step();
        });
    }
    for (size_t which = 0; which < remotes.size(); which++) {
        if (!connections[which]) continue;
        tried(which, [&](Remote& remote) {
            Answer answer = remote.finish(*connections[which], asks[which]);
            step();
            remote.give_back(remote.line(), std::move(connections[which]));
            if (!answer.good) throw_error(In(answer.payload));
            answer.number = asks[which].new_pin;
            In in(answer.payload);
            if (in.get<u8>()) found[which] = remote.keep(answer, in);
        });
    }
    patient = false;
    for (size_t which = 0; which < remotes.size(); which++)
        if (again[which]) tried(which, [&](Remote& remote) { found[which] = remote.find(name); });
    return found;
}

}  // namespace osf::rpc

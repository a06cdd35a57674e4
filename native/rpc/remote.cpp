// Connections to another host: opened, kept, given up; one call and its answer. The calls themselves are in rpc/remote_calls.cpp.
#include "rpc/remote.hpp"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <bit>

namespace osf::rpc {

constexpr useconds_t RETRY_US = 20'000;
constexpr size_t IDLE_MOST = 8;
constexpr u64 MS = 1'000'000;
constexpr u64 LONG_MS = 100;                   // a call that was under way for so long was not what its keeper was killed by
constexpr int BREAKS = 8;

void throw_error(In in) {
    u32 code = in.get<u32>();
    u64 address = in.get<u64>(), bytes = in.get<u64>();
    std::string host(in.text()), message(in.text());
    if (Code(code) == Code::host_lost) throw HostLost(host, message, address, bytes);
    throw Error(code <= u32(Code::os) ? Code(code) : Code::os, message);
}

Connection::Connection(const Peer& peer, const Uuid& uuid, int budget_ms) : peer_(peer) {
    const u64 start = now_ns();
    wire = Wire::connect(peer.host, peer.port, peer.key, budget_ms);
    wire->lost_after(3000);
    Hello hello = peer.hello;
    std::copy(uuid.begin(), uuid.end(), hello.head.process);
    if (peer.term) hello.head.term = peer.term();
    wire->send(frame_hello, 0, hello.encode());
    const FrameHead* head = wire->wait(std::max<long>(0, (budget_ms + 500) * long(MS) - long(now_ns() - start)));
    if (!head) throw HostLost(peer.label(), "it does not answer the hello");
    const u16 type = head->type;
    std::string payload = wire->open();
    In in(payload);
    if (type == frame_refused) {
        u32 code = in.get<u32>();
        if (Code(code) == Code::host_lost) throw HostLost(peer.label(), "the host " + peer.label() + " refused: " + payload.substr(sizeof code));
        throw Error(code <= u32(Code::os) ? Code(code) : Code::refused, "the host " + peer.label() + " refused: " + payload.substr(sizeof code));
    }
    if (type != frame_welcome) throw Error(Code::refused, "the host " + peer.label() + " answered the hello with a frame of type " + std::to_string(type));
    welcome = in.get<WelcomeHead>();
}

void Connection::tell_epoch() {
    const u64 now = peer_.epoch ? peer_.epoch() : 0;
    if (now == epoch) return;
    wire->queue(frame_epoch, now);
    epoch = now;
}

Connection::~Connection() {
    if (!shared) ::shutdown(wire->fd(), SHUT_RDWR);
}

Remote::Remote(Peer peer) : peer_(std::move(peer)) {
    handle_forks();
    know(true);
}

Remote::~Remote() {
    know(false);
    close();
    Line* own = line_.load();
    if (own && own->fork == forks()) delete own;
}

void Remote::lost(const std::string& why, const Ask& ask) const {
    throw HostLost(peer_.label(), "the host " + peer_.label() + " is lost: " + why, ask.address, ask.bytes);
}

void Remote::check_usable() const {
    if (closed_) throw Error(Code::closed, "the space '" + peer_.hello.space + "' was closed by this process");
}

std::unique_ptr<Remote::Line> Remote::new_line() {
    auto fresh = std::make_unique<Line>();
    fresh->fork = forks();
    if (::getrandom(fresh->uuid.data(), fresh->uuid.size(), 0) != ssize_t(fresh->uuid.size())) fail_os("getrandom", errno);
    auto holding = [raw = fresh.get()] {
        std::lock_guard guard(raw->mutex);
        return !raw->pins.empty();
    };
    fresh->transfers = std::make_unique<Transfers>([this, raw = fresh.get()] { return dial(*raw); }, holding, reach_, peer_.label());
    return fresh;
}

Remote::Line& Remote::line() {
    Line* present = line_.load();
    while (!present || present->fork != forks()) {
        auto fresh = new_line();
        if (line_.compare_exchange_strong(present, fresh.get())) present = fresh.release();
    }
    return *present;
}

// False: some pins that this process has views by were dropped there, because it did not come back in time, or the host was restarted. What
// it holds and never looked at (a lock, say) is no danger: a call about it is refused.
bool Remote::holds_only(Line& line, const WelcomeHead& welcome) {
    std::lock_guard guard(line.mutex);
    return std::all_of(line.pins.begin(), line.pins.end(), [&](const auto& one) {
        return !one.second.viewed || (one.second.incarnation == welcome.incarnation && one.second.member == welcome.member);
    });
}

void Remote::show(const RemoteArray& array) {
    Line& own = line();
    std::lock_guard guard(own.mutex);
    auto held = own.pins.find(array.number);
    if (held != own.pins.end() && held->second.record == array.record) held->second.viewed = true;
}

bool Remote::views_are_gone() { return !holds_only(line(), welcome()); }

std::unique_ptr<Connection> Remote::dial(Line& line) {
    check_usable();
    const u64 start = now_ns();
    try {
        auto connection = std::make_unique<Connection>(peer_, line.uuid, reach_.budget_ms());
        step();
        if (connection->welcome.flags & welcome_tell_pins) claim(line, *connection);
        if (!holds_only(line, connection->welcome)) forbid(true);
        reach_.good(now_ns() - start);
        return connection;
    } catch (const HostLost&) {
        reach_.failed(start);
        throw;
    }
}

void Remote::claim(Line& line, Connection& connection) {
    Ask claim = ask(Call::claim);
    std::vector<Claim> claims;
    {
        std::lock_guard guard(line.mutex);
        line.claims++;
        for (const auto& [number, kept] : line.pins)
            if (kept.incarnation == connection.welcome.incarnation && kept.member == connection.welcome.member)
                claims.push_back({number, kept.record, kept.pin});
    }
    claim.out.add(u64(claims.size()));
    claim.parts = {reinterpret_cast<const char*>(claims.data()), claims.size() * sizeof(Claim)};
    step();
    begin(line, connection, claim);
    step();
    Answer answer = finish(connection, claim);
    if (!answer.good) throw_error(In(answer.payload));
}

std::unique_ptr<Connection> Remote::take(Line& line, bool fresh, bool patient) {
    while (!fresh) {
        std::unique_ptr<Connection> connection;
        {
            std::lock_guard guard(line.mutex);
            if (line.idle.empty()) break;
            connection = std::move(line.idle.back());
            line.idle.pop_back();
        }
        // It has nothing to say to us, unless that it is at its end. Those of a host that fell silent are as silent.
        pollfd state{connection->wire->fd(), POLLIN | POLLRDHUP, 0};
        if (!reach_.lost() && ::poll(&state, 1, 0) == 0) return connection;
        drop(line, std::move(connection));
    }
    for (;;) {
        try {
            return dial(line);
        } catch (const HostLost&) {
            if (!patient || reach_.lost()) throw;
        }
        ::usleep(RETRY_US);
    }
}

void Remote::give_back(Line& line, std::unique_ptr<Connection> connection) {
    std::lock_guard guard(line.mutex);
    if (!closed_ && line.idle.size() < IDLE_MOST) line.idle.push_back(std::move(connection));
}

void Remote::drop(Line& line, std::unique_ptr<Connection> connection, u64 new_pin) {
    std::lock_guard guard(line.mutex);
    if (connection) line.releases.insert(line.releases.end(), connection->released.begin(), connection->released.end());
    if (new_pin) line.releases.push_back(new_pin);  // if the home has made it
}

void Remote::begin(Line& line, Connection& connection, const Ask& ask) {
    Wire& wire = *connection.wire;
    std::vector<u64> releases;
    {
        std::lock_guard guard(line.mutex);
        releases.swap(line.releases);
        connection.claims = line.claims;
    }
    connection.released.insert(connection.released.end(), releases.begin(), releases.end());
    for (size_t at = 0; at < releases.size(); at += RANGES_MAX) {
        std::span<const u64> some = std::span(releases).subspan(at, std::min<size_t>(RANGES_MAX, releases.size() - at));
        wire.queue(u16(frame_call + u16(Call::release)), 0, {reinterpret_cast<const char*>(some.data()), some.size_bytes()});
    }
    send(connection, ask);
}

void Remote::send(Connection& connection, const Ask& ask) {
    Wire& wire = *connection.wire;
    connection.tell_epoch();
    const u64 id = connection.asked = ask.id ? ask.id : connection.next_id++;
    wire.queue(u16(frame_call + u16(ask.call)), id, ask.out.span());
    u64& heard = connection.heard = now_ns();
    for (u64 done = 0;;) {
        size_t before = wire.queued();
        if (wire.flush() && done == ask.parts.size()) return;
        if (wire.queued() < before || wire.fill()) heard = now_ns();
        if (done < ask.parts.size() && wire.queued() < BULK) {
            const u64 bytes = std::min<u64>(BULK, ask.parts.size() - done);
            wire.queue(frame_part, id, ask.parts.subspan(done, bytes));
            done += bytes;
            continue;
        }
        if (now_ns() - heard > SILENCE_MS * MS) throw HostLost(peer_.label(), "it takes no bytes");
        pollfd ready{wire.fd(), POLLOUT, 0};
        ::poll(&ready, 1, 100);
    }
}

Remote::Answer Remote::finish(Connection& connection, const Ask& ask) {
    Wire& wire = *connection.wire;
    const u64 id = connection.asked;
    u64& heard = connection.heard;
    u64 asked = now_ns();
    bool& cancelled = ask.cancelled;
    for (;;) {
        const FrameHead* head = wire.wait(100 * MS);
        const u64 now = now_ns();
        if (ask.interrupted && !cancelled && now - asked >= 90 * MS) {
            asked = now;
            if (ask.interrupted()) {
                cancelled = true;
                wire.send(frame_cancel, id);
            }
        }
        if (!head) {
            if (now - heard > SILENCE_MS * MS) throw HostLost(peer_.label(), "it was silent for " + std::to_string(SILENCE_MS) + " ms");
            continue;
        }
        heard = now;
        const u16 type = head->type;
        if (type == frame_alive) {
            wire.open();
            continue;
        }
        if (head->id != id) throw Error(Code::refused, "the host " + peer_.label() + " answered another call");
        std::string payload = wire.open();
        if (type == frame_part && ask.page) {
            ask.page(In(payload));
            continue;
        }
        if (type != frame_reply && type != frame_error)
            throw Error(Code::refused, "the host " + peer_.label() + " answered with a frame of type " + std::to_string(type));
        connection.released.clear();
        return {type == frame_reply, std::move(payload), connection.welcome, connection.claims};
    }
}

// With as many calls under way as there are lanes, more are made without: they are not made again.
Remote::Answer Remote::call(Ask ask) {
    Line& own = line();
    if (!ask.once) return call_in_lane(own, ask);
    struct Lane {
        Line& line;
        u64 bit = 0;
        Lane(Line& of, Ask& ask) : line(of) {
            std::lock_guard guard(line.mutex);
            bit = line.lanes & -line.lanes;
            line.lanes ^= bit;
            if (bit) ask.id = u64(std::countr_zero(bit) + 1) << 56 | line.next_once++;
        }
        ~Lane() {
            std::lock_guard guard(line.mutex);
            line.lanes |= bit;
        }
    } lane(own, ask);
    try {
        Answer answer = call_in_lane(own, ask);
        answer.kept = ask.id != 0;
        if (ask.taken) ask.taken(answer);
        return answer;
    } catch (const HostLost&) {
        if (ask.id && ask.new_pin) drop(own, nullptr, ask.new_pin);
        throw;
    }
}

Remote::Answer Remote::call_in_lane(Line& own, Ask& ask) {
    const u64 start = now_ns();
    std::optional<WelcomeHead> first;              // who was asked
    int breaks = 0;                                // one soon after the other
    for (;;) {
        std::unique_ptr<Connection> connection;
        try {
            check_usable();
            connection = take(own, breaks != 0);
        } catch (const HostLost& error) {
            lost(error.what(), ask);
        }
        for (const RemoteArray* array : ask.arrays) {
            if (!array || (array->incarnation == connection->welcome.incarnation && array->member == connection->welcome.member)) continue;
            bool other = array->incarnation != connection->welcome.incarnation;
            give_back(own, std::move(connection));
            lost(other ? "it was restarted and does not have this array any more" : "it was cut off for so long that it let go of what this process held", ask);
        }
        if (first && !ask.again && (first->incarnation != connection->welcome.incarnation || first->member != connection->welcome.member)) {
            give_back(own, std::move(connection));
            lost("the connection broke, and nobody knows whether the call was done", ask);
        }
        first = connection->welcome;
        const u64 sent = now_ns();
        Answer answer;
        try {
            step();
            begin(own, *connection, ask);
            step();
            answer = finish(*connection, ask);
            step();
        } catch (const Error& error) {
            const u64 now = now_ns(), heard = connection->heard;
            const bool silent = now - heard > SILENCE_MS * MS;
            breaks = now - sent > LONG_MS * MS ? 1 : breaks + 1;
            const bool last = !(ask.again || ask.id) || ask.cancelled || silent || breaks > BREAKS || error.code != Code::host_lost;
            drop(own, std::move(connection), ask.id ? 0 : ask.new_pin);  // what it does once it keeps for us
            if (error.code != Code::host_lost) throw;
            if (silent || dynamic_cast<const Silent*>(&error)) reach_.failed(heard);  // what is left of the patience is for dialling
            if (last) lost(error.what(), ask);
            if (ask.anew) ask.anew();
            if (ask.new_pin && !ask.id) ask.out.set(0, ask.new_pin = new_number());
            if (ask.timeout_ns >= 0) ask.out.set(ask.timeout_at, u64(std::max(0l, ask.timeout_ns - long(now - start))));
            continue;
        }
        give_back(own, std::move(connection));
        answer.number = ask.new_pin;
        if (answer.good) return answer;
        try {
            throw_error(In(answer.payload));
        } catch (const HostLost& error) {
            if (!error.host.empty()) throw;
            lost(error.what(), ask);
        }
    }
}

WelcomeHead Remote::welcome() {
    Line& own = line();
    try {
        auto connection = take(own, false);
        WelcomeHead result = connection->welcome;
        give_back(own, std::move(connection));
        return result;
    } catch (const HostLost& error) {
        lost(error.what(), ask(Call::find));
    }
}

void Remote::close() {
    if (closed_.exchange(true)) return;
    Line* own = line_.load();
    if (!own || own->fork != forks()) return;
    own->transfers->stop();
    std::lock_guard guard(own->mutex);
    if (!own->idle.empty()) {
        try {
            own->idle[0]->wire->queue(frame_bye, 0);
            own->idle[0]->wire->flush();
        } catch (const Error&) {}
    }
    own->idle.clear();
}

// Does not wait for anything: it is called wherever Python lets go of an array.
void Remote::release(const RemoteArray& array) noexcept {
    Line* present = line_.load();
    if (!present || present->fork != forks() || closed_) return;
    try {
        Line& own = *present;
        std::unique_ptr<Connection> connection;
        {
            std::lock_guard guard(own.mutex);
            auto held = own.pins.find(array.number);
            if (held == own.pins.end() || held->second.record != array.record) return;  // its parent's, and not inherited
            own.pins.erase(held);
            if (own.idle.empty()) {
                own.releases.push_back(array.number);
                return;
            }
            connection = std::move(own.idle.back());
            own.idle.pop_back();
        }
        connection->released.push_back(array.number);
        try {
            connection->wire->queue(u16(frame_call + u16(Call::release)), 0, {reinterpret_cast<const char*>(&array.number), sizeof array.number});
            connection->wire->flush();
        } catch (const Error&) {
            drop(own, std::move(connection));
            return;
        }
        give_back(own, std::move(connection));
    } catch (...) {}  // no memory: the home drops it with this process
}

}  // namespace osf::rpc

#include <poll.h>
#include <unistd.h>

#include "rpc/session.hpp"

namespace osf::rpc {

static std::array<std::atomic<Answer>, size_t(Call::count)> registered{};

void answer_with(Call which, Answer answer) { registered[size_t(which)] = answer; }

static Answer answer_of(Call which) {
    const Answer answer = registered[size_t(which)];
    if (!answer) throw Error(Code::bad_input, "this host does not answer calls of number " + std::to_string(size_t(which)));
    return answer;
}

Session::Session(Proxies& proxies, std::shared_ptr<Proxy> proxy, Line& line)
    : proxies_(proxies), proxy_(std::move(proxy)), space_(*proxy_->space), line_(line), wire_(line.wire) {}

void Session::run() {
    while (!bye_) {
        if (!wire_.peek() && !wire_.fill()) push(true);  // nothing more to do: out with the answers
        const FrameHead* head = wire_.wait(-1);
        id_ = head->id;
        if (head->type == frame_bye) {
            wire_.open();
            bye_ = true;
        } else if (head->type == frame_cancel) {
            wire_.open();  // of a call that is answered already
        } else if (head->type == frame_epoch) {
            wire_.open();
            catch_up(id_);
        } else if (head->type >= frame_call && head->type < frame_call + u16(Call::count)) {
            call(Call(head->type - frame_call));
        } else {
            throw Error(Code::bad_input, "a frame of type " + std::to_string(head->type) + " is no call");
        }
    }
}

void Session::call(Call which) {
    static constexpr Method ANSWERS[] = {
        &Session::make, &Session::put, &Session::find, &Session::at, &Session::look, &Session::publish, &Session::name,
        &Session::release, &Session::claim, &Session::contains, &Session::remove, &Session::rename, &Session::list,
        &Session::grow, &Session::collect, &Session::audit, &Session::stats, &Session::atomic, &Session::wait_word,
        &Session::wake_word, &Session::lock_take, &Session::lock_drop, &Session::lock_owned, &Session::barrier_init,
        &Session::barrier_facts, &Session::barrier_wait, &Session::barrier_reset, &Session::channel_init,
        &Session::channel_facts, &Session::channel_send, &Session::channel_receive, &Session::channel_discard,
        &Session::get, &Session::write, &Session::owners, &Session::inherit};
    static_assert(std::size(ANSWERS) == size_t(Call::kv_seek));
    std::string payload = wire_.open();
    In in(payload);
    cancelled_ = answered_ = doubtful_ = again_ = false;
    told_ = nullptr;
    line_.busy_since = now_ns();
    const u64 lane = lane_of(id_);
    if (lane > LANES) throw Error(Code::bad_input, "there is no lane " + std::to_string(lane));
    std::unique_lock<std::mutex> turn;
    if (lane) turn = std::unique_lock(proxy_->lanes[lane - 1]);
    check_term();
    try {
        if (!lane || resume()) {
            if (which < Call::kv_seek) (this->*ANSWERS[size_t(which)])(in);
            else answer_of(which)(*this, in);
        }
    } catch (const Error& thrown) {
        if (told_ && !doubtful_ && load(told_->phase) == told_begun) store(told_->phase, u32(told_nothing));  // it had no effect
        // An error of the connection, or one after the answer has begun, cannot be told.
        if (gone_ || answered_ || which == Call::release) throw;
        error(thrown);
    } catch (const std::bad_alloc&) {
        if (answered_) throw;
        error(Error(Code::no_room, "the host has no memory to answer with"));
    }
    line_.busy_since = 0;
    push(false);
}

bool Session::resume() {
    Told& told = space_.members.told(space_.members.slot(), lane());
    const bool ours = !std::memcmp(told.uuid, proxy_->uuid.data(), sizeof told.uuid), same = ours && told.id == id_;
    const u32 phase = same ? load(told.phase) : u32(told_nothing);
    if (phase == told_done) {
        repeat();
        return false;
    }
    if (ours && told.id > id_) {
        gone_ = true;
        throw Error(Code::refused, "a call that was given up, on a connection that is over");
    }
    told_ = &told;
    again_ = same;
    doubtful_ = phase == told_begun || phase == told_waits;
    if (doubtful_) return true;
    store(told.phase, u32(told_nothing), std::memory_order_seq_cst);
    std::atomic_signal_fence(std::memory_order_seq_cst);  // in this order, should the keeper be killed here
    space_.members.forget_answer(lane());
    std::memcpy(told.uuid, proxy_->uuid.data(), sizeof told.uuid);
    told.id = id_;
    if (!same) told.bytes = told.pin = 0;
    return true;
}

void Session::repeat() {
    const std::string answer = space_.members.kept_answer(lane());
    std::lock_guard guard(line_.sending);
    answered_ = true;
    line_.busy_since = 0;
    wire_.queue(frame_reply, id_, answer);
}

std::optional<space::Noted> Session::note(ToldWhat what) {
    if (!told_) return std::nullopt;
    return space::Noted{*told_, 1 + space_.members.slot() * u32(LANES) + lane(), what, again_};
}

bool Session::settled(const std::function<void()>& settle) {
    if (!doubtful_) return false;
    if (load(told_->phase) == told_begun) settle();
    doubtful_ = false;
    if (load(told_->phase) == told_done) repeat();
    return load(told_->phase) != told_begun;
}

void Session::commit() {
    if (!told_) return;
    if (doubtful_) throw Error(Code::host_lost, "its keeper was killed in the middle of this call, and nobody knows whether it was done");
    store(told_->phase, u32(told_begun), std::memory_order_seq_cst);
}

// A caller that goes by a newer list may know that a host was given up from which this one still takes calls. Afterwards none of those is
// worked on any more.
void Session::catch_up(u64 epoch) {
    const Served& served = proxies_.served();
    if (!served.roster || !served.roster->agreed()) return;
    served.roster->ask_for(epoch);
    const u64 start = line_.busy_since = now_ns();
    while (served.epoch() < epoch || !proxies_.fenced()) {
        check_term();
        if (now_ns() - start > HEAR_NS) throw Error(Code::host_lost, "this host has not heard of the caller's list of hosts");
        ::usleep(500);
    }
    line_.busy_since = 0;
}

void Session::check_term() {
    if (proxies_.served().admits(line_.host, line_.term)) return;
    gone_ = true;
    throw Error(Code::host_lost, "the caller's host was given up");
}

void Session::push(bool all) {
    std::lock_guard guard(line_.sending);
    if (!all && wire_.queued() < MUCH) return;
    while (!wire_.flush()) {
        pollfd ready{wire_.fd(), POLLOUT, 0};
        ::poll(&ready, 1, -1);
    }
}

void Session::send_parts(std::span<const char> bytes) {
    answered_ = true;
    for (size_t at = 0; at < bytes.size(); at += BULK) {
        std::lock_guard guard(line_.sending);
        wire_.send(frame_part, id_, bytes.subspan(at, std::min<size_t>(BULK, bytes.size() - at)));
    }
}

void Session::reply(const Out& out) {
    if (told_ && load(told_->phase) != told_done) {
        space_.members.keep_answer(lane(), out.span());
        store(told_->phase, u32(told_done));
    }
    std::lock_guard guard(line_.sending);
    answered_ = true;
    line_.busy_since = 0;
    wire_.queue(frame_reply, id_, out.span());
}

void Session::reply(const Out& out, const std::function<void()>& undo) {
    try {
        reply(out);
        push(true);
    } catch (const Error&) {
        if (!told_) undo();  // otherwise the caller comes back for it, or dies
        throw;
    }
}

void Session::error(const Error& error) {
    Out out;
    const auto* lost = dynamic_cast<const HostLost*>(&error);
    out.add(u32(error.code)).add(lost ? lost->address : u64(0)).add(lost ? lost->bytes : u64(0)).text(lost ? lost->host : "").text(error.what());
    std::lock_guard guard(line_.sending);
    line_.busy_since = 0;
    wire_.queue(frame_error, id_, out.span());
}

bool Session::given_up() {
    if (cancelled_ || gone_) return true;
    try {
        if (!wire_.peek()) wire_.fill();
        if (const FrameHead* head = wire_.peek(); head && head->type == frame_cancel) {
            cancelled_ = head->id == id_;
            wire_.open();
        }
        pollfd state{wire_.fd(), POLLRDHUP, 0};
        if (::poll(&state, 1, 0) > 0 && state.revents) gone_ = true;
    } catch (const Error&) {
        gone_ = true;
    }
    return cancelled_ || gone_;
}

bool Session::caller_gave_up() {
    if (!given_up()) return false;
    if (gone_ && told_) throw Error(Code::host_lost, "the caller is gone");
    return true;
}

bool Session::wait_in_slices(long timeout_ns, const std::function<bool(long)>& once) {
    const u64 start = now_ns();
    for (;;) {
        long slice = 100'000'000;
        bool last = false;
        if (timeout_ns >= 0) {
            long left = timeout_ns - long(now_ns() - start);
            last = left <= slice;
            slice = std::max(0l, std::min(slice, left));
        }
        if (once(slice)) return true;
        if (last) return false;
        space_.check_usable();
        if (!given_up()) continue;
        if (gone_) throw Error(Code::host_lost, "the caller is gone");
        return false;
    }
}

void serve_process(Proxies& proxies, std::unique_ptr<Wire>& wire, const Hello& hello) {
    Line line(*wire, hello);
    Uuid uuid;
    std::copy_n(hello.head.process, uuid.size(), uuid.begin());
    wire->lost_after(3000);
    auto proxy = proxies.enter(uuid, hello.head.flags & hello_read_only, line);
    bool bye = false;
    try {
        WelcomeHead welcome;
        welcome.incarnation = proxies.served().incarnation;
        welcome.flags = proxy->inherited() ? u64(welcome_tell_pins) : 0;
        welcome.data_bytes = proxy->space->data.limit() * PAGE;
        welcome.unit = proxies.served().unit;
        welcome.member = proxy->space->members.id();
        wire->send(frame_welcome, 0, {reinterpret_cast<const char*>(&welcome), sizeof welcome});
        Session session(proxies, proxy, line);
        try {
            session.run();
        } catch (const std::exception&) {}  // the connection ended, or its other side does not keep to the protocol
        bye = session.bye();
    } catch (const Error&) {}
    proxy.reset();  // before the last one leaves: its end is for `leave` to make
    proxies.leave(uuid, line, bye);
}

}  // namespace osf::rpc

// One connection of a process on another host, served by one thread.
#pragma once

#include "rpc/serve.hpp"
#include "space/sync.hpp"

namespace osf::rpc {

constexpr size_t MUCH = 64 * KIB;                // of replies: sent before more are made

void describe(Out& out, const Space& space, const Held& held);  // an array

class Session {
public:
    Session(Proxies& proxies, std::shared_ptr<Proxy> proxy, Line& line);
    void run();                                  // until bye; throws when the connection ends otherwise
    bool bye() const { return bye_; }

    // For those who answer a call
    const std::shared_ptr<Space>& space() const { return proxy_->space; }
    void receive(char* to, u64 bytes);           // parts; to nowhere if null
    template <class T>
    std::vector<T> receive_all(u64 count, u64 most) {
        if (count > most) {
            gone_ = true;                        // parts follow that nobody takes
            throw Error(Code::bad_input, "a list has at most " + std::to_string(most) + " entries here, got " + std::to_string(count));
        }
        std::vector<T> all(count);
        receive(reinterpret_cast<char*>(all.data()), count * sizeof(T));
        return all;
    }
    void reply(const Out& out = {});
    void send_parts(std::span<const char> bytes);  // before the reply; from here on an error cannot be told

private:
    using Method = void (Session::*)(In&);

    // rpc/session.cpp
    void call(Call which);
    void catch_up(u64 epoch);
    void check_term();                           // throws if the others have given up the caller's host
    void push(bool all);                         // sends what is queued; not all: only when it is much
    void reply(const Out& out, const std::function<void()>& undo);  // of what nobody would know of if the answer cannot be sent
    void error(const Error& error);
    bool resume();                               // a call with a lane: false if it was answered already
    void repeat();                               // the answer that is kept
    std::optional<space::Noted> note(ToldWhat what);  // none: the call has no lane
    bool settled(const std::function<void()>& settle);  // a call on a barrier or channel was done by a keeper that was killed
    u32 lane() const { return u32(lane_of(id_) - 1); }
    bool caller_gave_up();                       // as given_up; throws if the caller may come back for the answer
    void commit();                               // from here on it must not be done again; throws if that is in doubt
    bool given_up();                             // asked while a call waits: a cancel came, or the connection is gone
    bool wait_in_slices(long timeout_ns, const std::function<bool(long slice_ns)>& once);  // false: the time is over, or cancelled

    // Arrays
    void make(In& in);
    void put(In& in);
    void find(In& in);
    void at(In& in);
    void look(In& in);
    void publish(In& in);
    void name(In& in);
    void release(In& in);
    void claim(In& in);
    void contains(In& in);
    void remove(In& in);
    void rename(In& in);
    std::unique_ptr<Proxy::Use> use_if_any(u64 number);
    void list(In& in);
    void grow(In& in);
    void collect(In& in);
    void audit(In& in);
    void stats(In& in);
    void owners(In& in);
    void inherit(In& in);
    void give(u64 number, const Held& held, Out out = {});
    Spec spec(In& in) const;
    bool has(std::string_view name);

    // Bytes
    void get(In& in);
    void write(In& in);
    void refuse_failed(u64 number);
    Written& written() const { return space_.members.notes(space_.members.slot()).written; }
    template <class Store>
    void write_part(u64 bytes, u64 epoch, const Store& store);
    std::vector<Range> ranges(In& in);
    void check(const std::vector<Range>& ranges) const;

    // Atomics, locks, barriers, channels
    void atomic(In& in);
    void wait_word(In& in);
    void wake_word(In& in);
    void lock_take(In& in);
    void lock_drop(In& in);
    void lock_owned(In& in);
    void barrier_init(In& in);
    void barrier_facts(In& in);
    void barrier_wait(In& in);
    void barrier_reset(In& in);
    void channel_init(In& in);
    void channel_facts(In& in);
    void settle_channel(const Held& channel);
    void channel_send(In& in);
    void channel_receive(In& in);
    void channel_discard(In& in);
    void need_write() const;

    Proxies& proxies_;
    std::shared_ptr<Proxy> proxy_;
    Space& space_;
    Line& line_;
    Wire& wire_;
    u64 id_ = 0;                                 // of the call that is worked on
    Told* told_ = nullptr;                       // of a call with a lane
    bool doubtful_ = false;                      // it may have been done by a keeper that was killed
    bool again_ = false;                         // it was not, but begun perhaps
    bool bye_ = false, cancelled_ = false, gone_ = false, answered_ = false;
};

}  // namespace osf::rpc

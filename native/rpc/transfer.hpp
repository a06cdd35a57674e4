// Bytes of another host by address, many transfers in flight on one connection.
//
// Who waits for a transfer drives the connection, unless somebody does already; a thread of its own does when nobody waits. So a lone
// get costs no switch of threads, and none is forgotten. Requests are sent when they are given, at once if the line is quiet and else
// with their followers; bytes are sealed from where they are and opened to where they shall be.
//
// The connection is also the sign that this process lives: while it holds arrays there, the thread makes the connection anew as soon
// as it breaks. Else a process that computes for a while would not notice that the other host's keeper was replaced, and the new one
// would take it for dead.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rpc/calls.hpp"

namespace osf::rpc {

struct Connection;
class Reach;

class Transfer {
public:
    Transfer(bool writes, std::vector<Range> of, std::vector<char*> at);
    bool done() const { return done_.load(std::memory_order_acquire); }
    void check() const { if (done() && error_) std::rethrow_exception(error_); }
    const bool write;
    const std::vector<Range> ranges;
    const std::vector<char*> places;               // one for each range
    const u64 fork;                                // of the process that began it

private:
    friend class Transfers;
    struct Cursor {                                // the next part
        size_t range = 0;
        u64 at = 0;
    };
    bool next(Cursor& cursor, char*& place, u64& bytes) const;
    Cursor sent_, received_;
    bool begun_ = false;                           // its call is sent
    u64 number_ = 0;                               // of a write, the same whenever it is sent
    u64 incarnation_ = 0;                          // of the home that was sent it first, and this process's place there
    u32 member_ = 0;
    int broke_ = 0;                                // how often the connection did
    u64 id_ = 0;
    std::exception_ptr error_;
    std::atomic<bool> done_{false};
};

class Transfers {
public:
    // `dial` makes a connection or throws; `holding` says whether this process has something there to lose; `label` names the
    // host in errors; `reach` says whether it is worth trying again.
    Transfers(std::function<std::unique_ptr<Connection>()> dial, std::function<bool()> holding, Reach& reach, std::string label);
    ~Transfers();
    void watch();                                  // from now on, keep a connection while holding
    void stop();                                   // what is under way fails
    void submit(std::shared_ptr<Transfer> transfer);
    // False: the time is over, or it was interrupted.
    bool wait(Transfer& transfer, long timeout_ns, const std::function<bool()>& interrupted);

private:
    void drive(const std::function<bool()>& enough);
    void step();
    void use(std::unique_ptr<Connection> fresh);   // with both locks
    bool begin(const std::shared_ptr<Transfer>& transfer);  // with the mutex; false: it cannot be sent again
    void pump();                                   // seals and sends what there is room for
    bool receive();                                // opens what is there
    void nap(bool sending);
    void finish(std::shared_ptr<Transfer> transfer, std::exception_ptr error);
    void start_again(const std::exception& why);
    void fail_all(const std::string& why);
    std::exception_ptr lost(const Transfer& transfer, const std::string& why) const;
    void background();
    void rest(std::unique_lock<std::mutex>& lock);
    bool idle() const { return to_send_.empty() && in_flight_.empty(); }

    const std::function<std::unique_ptr<Connection>()> dial_;
    const std::function<bool()> holding_;
    Reach& reach_;
    const std::string label_;
    std::mutex sending_;                           // of the connection's sending side and of pump; taken before mutex_
    std::mutex mutex_;                             // of all below
    std::condition_variable change_;
    std::deque<std::shared_ptr<Transfer>> to_send_, in_flight_;
    u64 unsent_ = 0;                               // given since the last pump
    u32 waiters_ = 0;
    bool driving_ = false, cold_ = true;
    std::atomic<bool> stop_ = false, watching_ = false;
    u64 last_submit_ = 0;
    u64 lost_since_ = 0;                           // how long it has not been possible to connect
    std::thread thread_;
    std::unique_ptr<Connection> connection_;       // replaced by the driver, under both locks
    u64 epoch_ = 0, writes_ = 0;                   // how many connections there were, and numbers of writes
    int poke_ = -1, wake_ = -1;                    // eventfds: the driver has more to send; the thread has work
    std::atomic<u64> heard_ = 0;
    bool lucky_ = true;
};

}  // namespace osf::rpc

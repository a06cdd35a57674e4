// The home's side of calls from processes on other hosts.
//
// Every such process has a proxy: a membership of its own in the space (Space::proxy), and the pins it holds by the numbers that it
// gave them. It lives as long as one connection of the process does, and GRACE_MS longer, at the end of which its pins are dropped
// and its locks are found dead. One thread serves one connection: calls in order, one after the other. A ticker thread tells the
// callers of long calls that we are still there, and ends proxies.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "rpc/calls.hpp"
#include "net/hello.hpp"
#include "net/roster.hpp"
#include "space/space.hpp"
#include "net/wire.hpp"

namespace osf::rpc {

struct Served {
    std::shared_ptr<Space> space;
    u64 incarnation = 0;
    u32 unit = 0;
    std::function<std::string(u64 address, u64 bytes)> owners;  // who has these bytes now; passed on as it is
    std::shared_ptr<Roster> roster = {};     // none: whoever has the key is served
    std::function<u64()> epoch = {};         // of the list that connections of this host go by, with a roster that hosts agree on
    bool admits(u32 host, u64 term) const { return !roster || roster->admits(host, term); }
};

class Proxy {
public:
    Proxy(const std::shared_ptr<Space>& home, const Uuid& uuid, bool read_only);

    // A pin for the time of a call: released meanwhile, it is kept until the call ends.
    class Use {
    public:
        Use(Proxy& proxy, u64 number);           // throws bad_input: there is no such pin
        ~Use();
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;
        const Held& held() const { return held_; }
        const Record& record() const { return proxy_.space->record(held_); }
        char* bytes() const { return proxy_.space->bytes(held_); }

    private:
        Proxy& proxy_;
        u64 number_;
        Held held_;
    };

    void keep(u64 number, const Held& held);     // hands it out; throws bad_input and releases it if the number is in use
    void release(u64 number) noexcept;
    void claim(const std::vector<std::pair<u64, Held>>& wanted);
    bool inherited() const { return inherited_; }
    // Holds what another process holds, by the same numbers; the pins' indices. Throws bad_input if that one does not hold all of it.
    std::vector<u32> inherit(Proxy& from, const std::vector<u64>& numbers);

    const std::shared_ptr<Space> space;
    const Uuid uuid;
    std::array<std::mutex, LANES> lanes;         // one call at a time in each, also if it came by a connection that broke since
    std::mutex writing;                          // of one part of a put by address

private:
    struct Entry {
        Held held;
        u32 users = 0;
        bool released = false;
    };
    std::mutex mutex_;
    std::unordered_map<u64, Entry> pins_;
    std::atomic<bool> inherited_;
    std::unordered_set<u64> early_;              // numbers released before they were known: of calls that are still worked on
    std::map<u32, u64> left_;                    // pins that a killed keeper left, by index: record. Not those of arrays that the caller still has to hear of
};

// A connection as the ticker sees it.
struct Line {
    Wire& wire;
    std::mutex sending;
    std::atomic<u64> busy_since = 0;             // 0: no call is worked on
    const u32 host;                              // of the process
    const u64 term;                              // under which it calls
    Line(Wire& of, const Hello& hello) : wire(of), host(hello.head.host), term(hello.head.term) {}
};

// All processes of other hosts in one space. Its connections must have ended before it does; what then still has its time of
// grace is left to the next keeper.
class Proxies {
public:
    explicit Proxies(Served served);
    ~Proxies();
    Proxies(const Proxies&) = delete;
    Proxies& operator=(const Proxies&) = delete;

    const Served& served() const { return served_; }
    void shut();                                 // cuts all connections, and there are no new ones; their threads end soon
    u32 count();                                 // processes with a proxy now
    void cut();                                  // connections under terms that are over: who joins again in time goes on
    bool fenced();                               // there are no such connections any more

    std::shared_ptr<Proxy> enter(const Uuid& uuid, bool read_only, Line& line);
    void leave(const Uuid& uuid, Line& line, bool bye);
    std::shared_ptr<Proxy> of(const Uuid& uuid); // throws bad_input

private:
    struct Place {
        std::shared_ptr<Proxy> proxy;
        u32 connections = 0;
        u64 until = 0;                           // when it ends, without connections
        bool read_only = false, leaving = false;
    };
    void tick();
    void end(std::unique_lock<std::mutex>& lock, std::map<Uuid, Place>::iterator place);

    Served served_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<Uuid, Place> places_;
    std::set<Line*> lines_;
    u64 clear_at_;                               // processes that a killed keeper served, and that did not come back by then
    bool stop_ = false, shut_ = false;
    std::thread ticker_;
};

// Calls that a room above this one answers: said once, before anybody is served. One that nobody answers is an error.
class Session;
using Answer = void (*)(Session& session, In& in);
void answer_with(Call which, Answer answer);

// Answers the hello, then serves until the connection ends. Throws what the hello is refused for.
void serve_process(Proxies& proxies, std::unique_ptr<Wire>& wire, const Hello& hello);

}  // namespace osf::rpc

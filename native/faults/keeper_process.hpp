// The process of a keeper, whichever kind: its place, its log, signals, the processes that come and what they say, and its end.
//
// All of it is one thread's, which never waits for a process: what it reads from is there, and what it writes to takes it or is left.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "faults/keeper_loop.hpp"
#include "faults/keeper_place.hpp"
#include "faults/local_door.hpp"
#include "faults/notes.hpp"

namespace osf::faults {

class KeeperProcess {
public:
    struct Options {
        std::string directory, stem;           // of lock and socket
        std::string who;                       // in the log
        std::string label;                     // begins what a process that cannot be taken in is told
        double linger_s;                       // ends when nobody needs it for so long; < 0: never
    };
    virtual ~KeeperProcess();                  // the lock is given up last: the next one may come
    KeeperProcess(const KeeperProcess&) = delete;
    KeeperProcess& operator=(const KeeperProcess&) = delete;

    void run();                                // returns when it has ended

protected:
    explicit KeeperProcess(Options options);

    void say(const std::string& text) { log_.say(text); }
    void take_signals();                       // SIGTERM and SIGINT are told in the loop from now on
    void bind() { local_ = place_.bind(); }
    void open_door();                          // last: who finds it finds all

    void hear(int socket);                     // one note
    bool knows(int socket) const { return guests_.count(socket); }
    bool has_guests() const { return !guests_.empty(); }
    static bool try_send(int socket, const Note& note, std::string_view text);   // false: it is gone, or does not read

    // What differs
    virtual void listen_to(int socket) { hear(socket); }           // something came
    // A descriptor that is kept is taken out of fd; else it is closed.
    virtual void heard(int socket, const Note& note, const std::string& text, int& fd) = 0;
    virtual void parted(int socket) = 0;                           // before it is closed
    virtual int sleep_ms() = 0;                                    // at most
    virtual void woke() {}                                         // before what came is handled
    virtual void turn(u64 now, bool came) = 0;                     // afterwards
    virtual bool needed() { return has_guests(); }
    virtual bool over(u64) { return stopping_; }                   // it may end now

    const double linger_s_;
    KeeperPlace place_;
    Loop loop_;
    bool stopping_ = false;

private:
    void accept_processes();
    void take_in(int socket);
    void part(int socket);

    Log log_;
    LocalDoor door_;
    int local_ = -1, signals_ = -1;
    Loop::Watch door_watch_, signal_watch_;
    std::map<int, Loop::Watch> guests_;        // processes, by their sockets
    u64 needed_ns_;
};

}  // namespace osf::faults

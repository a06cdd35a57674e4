// Where other hosts knock: accepts connections, proves the key, hears the hello, and passes the connection on.
#pragma once

#include <functional>
#include <list>
#include <thread>

#include "net/hello.hpp"
#include "net/wire.hpp"

namespace osf::net {

// What a caller must take the cluster to be. Throws refused, saying what differs.
struct Cluster {
    u64 base = 0, reserve = 0, hosts_hash = 0;
    u32 hosts = 0;
    void check(const Hello& hello) const;
};

class Listener {
public:
    // Called in a thread of its own for every connection, which it may serve there until it ends, or pass on. An Error that it
    // throws before it has taken the connection is told to the caller (frame_refused: u32 code, text).
    using Serve = std::function<void(std::unique_ptr<Wire>&, const Hello&)>;

    using Say = std::function<void(const std::string&)>;  // what people should know

    Listener(const std::string& host, u16 port, const Key& key, Serve serve, Say say = {});
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    u16 port() const { return port_; }
    void stop();                                 // no more connections, the present ones are cut; waits for their threads

private:
    struct Guest {
        std::thread thread;
        int fd = -1;                             // a duplicate, to cut it by
        bool done = false;
    };
    void run();
    void welcome(int fd, Guest& guest);
    const FrameHead* hear(Wire& wire);
    void reap(bool all);

    const Key key_;
    const Serve serve_;
    const Say say_;
    HelloMemory memory_;
    HelloMemory unheard_{0};                     // who proved the key, and said nothing yet: as few as are at the door
    int fd_ = -1, stop_fd_ = -1;
    u16 port_ = 0;
    std::mutex mutex_;
    std::list<Guest> guests_;
    std::thread thread_;
};

}  // namespace osf::net

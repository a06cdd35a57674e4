// A listening socket and the handshakes at its door. Each dialer has a thread of its own until it has proven itself, so that one
// who says nothing keeps nobody else waiting; HelloMemory bounds how many there are.
#pragma once

#include <deque>

#include "net/wire.hpp"

namespace osf::net {

class Door {
public:
    Door(const std::string& host, u16 port, const Key& key);
    ~Door();
    Door(const Door&) = delete;
    Door& operator=(const Door&) = delete;

    u16 port() const { return port_; }
    std::unique_ptr<Wire> accept(long timeout_ns);  // the next proven dialer; nullptr: time is over; < 0: for ever. For one thread

private:
    struct Porch {  // outlives the listener while threads are at it
        Key key;
        HelloMemory memory;
        std::mutex mutex;
        std::deque<std::unique_ptr<Wire>> proven;
        int bell;  // an eventfd that counts them
        explicit Porch(const Key& with);
        ~Porch();
    };
    void let_in();

    std::shared_ptr<Porch> porch_;
    int fd_;
    u16 port_;
};

}  // namespace osf::net

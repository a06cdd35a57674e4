// A listening socket and the handshakes at its door. Each dialer has a thread of its own until it has proven itself, so that one
// who says nothing keeps nobody else waiting; HelloMemory bounds how many there are.
#pragma once

#include <deque>

#include "wire.hpp"

namespace osf {

class Listener {
public:
    Listener(const std::string& host, u16 port, const Key& key);
    ~Listener();
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

    u16 port() const { return port_; }
    std::unique_ptr<Wire> accept(long timeout_ns);  // the next proven dialer; nullptr: time is over; < 0: for ever. For one thread

private:
    struct Door {  // outlives the listener while threads are at it
        Key key;
        HelloMemory memory;
        std::mutex mutex;
        std::deque<std::unique_ptr<Wire>> proven;
        int bell;  // an eventfd that counts them
        explicit Door(const Key& with);
        ~Door();
    };
    void let_in();

    std::shared_ptr<Door> door_;
    int fd_;
    u16 port_;
};

}  // namespace osf

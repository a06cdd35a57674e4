// The door of a host: accepts connections, proves the key, reads the hello, and passes both on, each in a thread of its own.
#pragma once

#include <condition_variable>
#include <functional>
#include <set>
#include <thread>

#include "hello.hpp"
#include "wire.hpp"

namespace osf {

class Listener {
public:
    using Greet = std::function<void(std::unique_ptr<Wire> wire, const Hello& hello)>;  // serves or hands over; may throw to refuse
    Listener(int fd, const Key& key, Greet greet);   // owns fd
    ~Listener();                                     // ends all that are being served
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;

private:
    void accept_all();
    void meet(int fd);

    int fd_;
    Key key_;
    Greet greet_;
    HelloMemory memory_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::set<int> open_;                             // sockets of threads that live
    bool stop_ = false;
    std::thread thread_;
};

std::string refusal(const Error& error);             // the payload of a REFUSED frame: u32 code, text
[[noreturn]] void throw_refusal(std::string_view payload, const std::string& host);

}  // namespace osf

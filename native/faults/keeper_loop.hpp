// What a keeper waits for: descriptors, and for each what is done when something came.
//
// A Watch belongs to whoever has the descriptor, and ends with it. epoll is given a number that is never used again, not the descriptor:
// of what came in one go, an event of a descriptor that was closed since is nobody's, though the next file has its number.
#pragma once

#include <functional>
#include <memory>
#include <sys/epoll.h>
#include <unordered_map>
#include <utility>

#include "base/base.hpp"

namespace osf::faults {

class Loop {
public:
    class Watch {
    public:
        Watch() = default;
        Watch(Watch&& other) noexcept : loop_(std::exchange(other.loop_, nullptr)), number_(other.number_) {}
        Watch& operator=(Watch&& other) noexcept;
        ~Watch() { end(); }
        void end();                            // before the descriptor is closed
        void output(bool want);                // also told when there is room to write
        explicit operator bool() const { return loop_; }

    private:
        friend Loop;
        Watch(Loop* loop, u64 number) : loop_(loop), number_(number) {}
        Loop* loop_ = nullptr;
        u64 number_ = 0;
    };

    Loop();
    ~Loop();                                   // after every Watch
    Loop(const Loop&) = delete;
    Loop& operator=(const Loop&) = delete;

    [[nodiscard]] Watch watch(int fd, std::function<void()> ready);
    bool wait(int timeout_ms);                 // true: something came
    void handle();                             // all that came

private:
    struct Entry { int fd; std::shared_ptr<std::function<void()>> ready; };
    void control(int what, u64 number, bool output);

    int epoll_;
    u64 next_ = 1;
    std::unordered_map<u64, Entry> entries_;
    epoll_event came_[64];
    int count_ = 0;
};

}  // namespace osf::faults

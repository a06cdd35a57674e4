#include "faults/keeper_loop.hpp"

#include <cerrno>
#include <unistd.h>
#include <utility>

namespace osf::faults {

Loop::Loop() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    if (epoll_ < 0) fail_os("epoll", errno);
}

Loop::~Loop() { close(epoll_); }

void Loop::control(int what, u64 number, bool output) {
    epoll_event event{};
    event.events = EPOLLIN | (output ? u32(EPOLLOUT) : 0u);
    event.data.u64 = number;
    if (epoll_ctl(epoll_, what, entries_.at(number).fd, &event) < 0 && what != EPOLL_CTL_DEL) fail_os("epoll", errno);
}

Loop::Watch Loop::watch(int fd, std::function<void()> ready) {
    const u64 number = next_++;
    entries_[number] = {fd, std::make_shared<std::function<void()>>(std::move(ready))};
    try {
        control(EPOLL_CTL_ADD, number, false);
    } catch (...) {
        entries_.erase(number);
        throw;
    }
    return {this, number};
}

Loop::Watch& Loop::Watch::operator=(Watch&& other) noexcept {
    if (this == &other) return *this;
    end();
    loop_ = std::exchange(other.loop_, nullptr);
    number_ = other.number_;
    return *this;
}

void Loop::Watch::end() {
    if (!loop_) return;
    loop_->control(EPOLL_CTL_DEL, number_, false);
    loop_->entries_.erase(number_);
    loop_ = nullptr;
}

void Loop::Watch::output(bool want) { loop_->control(EPOLL_CTL_MOD, number_, want); }

bool Loop::wait(int timeout_ms) {
    count_ = epoll_wait(epoll_, came_, int(std::size(came_)), timeout_ms);
    return count_ > 0;
}

void Loop::handle() {
    for (int at = 0; at < count_; at++) {
        auto found = entries_.find(came_[at].data.u64);
        if (found == entries_.end()) continue;  // what came before it ended this one
        auto ready = found->second.ready;        // it may end its own Watch
        (*ready)();
    }
    count_ = 0;
}

}  // namespace osf::faults

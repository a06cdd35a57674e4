#include "listener.hpp"

#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace osf {

std::string refusal(const Error& error) {
    u32 code = u32(error.code);
    return std::string(reinterpret_cast<const char*>(&code), sizeof code) + error.what();
}

void throw_refusal(std::string_view payload, const std::string& host) {
    u32 code = u32(Code::refused);
    if (payload.size() >= sizeof code) std::memcpy(&code, payload.data(), sizeof code);
    std::string text(payload.substr(std::min(payload.size(), sizeof code)));
    throw Error(code < u32(Code::os) ? Code(code) : Code::refused, "host " + host + " refused: " + text);
}

Listener::Listener(int fd, const Key& key, Greet greet) : fd_(fd), key_(key), greet_(std::move(greet)) {
    thread_ = std::thread([this] { accept_all(); });
}

Listener::~Listener() {
    {
        std::lock_guard guard(mutex_);
        stop_ = true;
        for (int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    thread_.join();
    std::unique_lock lock(mutex_);
    for (int fd : open_) shutdown(fd, SHUT_RDWR);
    changed_.wait(lock, [&] { return open_.empty(); });
    close(fd_);
}

void Listener::accept_all() {
    for (;;) {
        pollfd wait{fd_, POLLIN, 0};
        poll(&wait, 1, 100);
        std::lock_guard guard(mutex_);
        if (stop_) return;
        for (int fd; (fd = accept4(fd_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
            // A duplicate of its own, so that a number in open_ stays ours until the thread has ended.
            int mark = dup(fd);
            if (mark < 0) {
                close(fd);
                break;
            }
            open_.insert(mark);
            std::thread([this, fd, mark] {
                meet(fd);
                std::lock_guard done(mutex_);
                open_.erase(mark);
                close(mark);
                changed_.notify_all();
            }).detach();
        }
    }
}

void Listener::meet(int fd) {
    std::unique_ptr<Wire> wire;
    try {
        wire = Wire::accept(fd, key_, memory_, 2000);
        if (!wire) return;
        const FrameHead* head = wire->wait(2'000'000'000);
        if (!head || head->type != frame_hello || head->bytes > 4096) return;
        Hello hello = Hello::decode(wire->open());
        if (hello.head.protocol != PROTOCOL)
            throw Error(Code::wrong_version, "it speaks protocol " + std::to_string(hello.head.protocol) + ", this is " + std::to_string(PROTOCOL));
        greet_(std::move(wire), hello);
    } catch (const Error& error) {
        if (!wire) return;
        try {
            wire->send(frame_refused, 0, refusal(error));
        } catch (const Error&) {}  // it does not want to know
    } catch (const std::exception&) {}  // no memory for one more: as if it had not come
}

}  // namespace osf

#include "faults/keeper_process.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "base/lock.hpp"

namespace osf::faults {

constexpr u64 ASK_NS = 20'000'000;             // between two looks whether anybody needs it

KeeperProcess::KeeperProcess(Options options)
    : linger_s_(options.linger_s), place_(options.directory, options.stem), log_(std::move(options.who)),
      door_(std::move(options.label), [this](const std::string& text) { say(text); }), needed_ns_(now_ns()) {}

KeeperProcess::~KeeperProcess() {
    for (auto& [socket, watch] : guests_) {
        watch.end();
        close(socket);
    }
    door_watch_.end();
    signal_watch_.end();
    for (int fd : {local_, signals_})
        if (fd >= 0) close(fd);
}

void KeeperProcess::take_signals() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signals_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    signal_watch_ = loop_.watch(signals_, [this] { stopping_ = true; });
}

void KeeperProcess::open_door() {
    if (listen(local_, 64) < 0) fail_os("listening for processes", errno);
    door_watch_ = loop_.watch(local_, [this] { accept_processes(); });
}

void KeeperProcess::accept_processes() {
    for (int fd; (fd = door_.next(local_)) >= 0;) take_in(fd);
}

void KeeperProcess::take_in(int socket) {
    int big = 1 << 20;
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
    try {
        guests_[socket] = loop_.watch(socket, [this, socket] { listen_to(socket); });
    } catch (const Error&) {                   // of a child, but nothing that can be waited for
        guests_.erase(socket);
        close(socket);
    }
    needed_ns_ = now_ns();                     // it may have left before anybody looks
}

void KeeperProcess::part(int socket) {
    guests_.erase(socket);
    parted(socket);
    close(socket);
}

void KeeperProcess::hear(int socket) {
    Note note;
    std::string text;
    int fd = -1;
    if (!receive_note(socket, note, text, &fd)) return part(socket);
    if (std::holds_alternative<ChildNote>(note) && fd >= 0) {  // it comes from a process that was let in, and needs no path
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        return take_in(fd);
    }
    heard(socket, note, text, fd);
    if (fd >= 0) close(fd);
}

bool KeeperProcess::try_send(int socket, const Note& note, std::string_view text) {
    try {
        send_note(socket, note, text.substr(0, NOTE_MAX));
        return true;
    } catch (const Error&) { return false; }
}

void KeeperProcess::run() {
    u64 asked = 0;
    for (;;) {
        const bool came = loop_.wait(sleep_ms());
        woke();
        loop_.handle();
        const u64 now = now_ns();
        turn(now, came);
        if (now - asked > ASK_NS) {
            asked = now;
            if (needed()) needed_ns_ = now;
            else if (linger_s_ >= 0 && double(now - std::min(now, needed_ns_)) > linger_s_ * 1e9) stopping_ = true;
        }
        if (over(now)) return;
    }
}

}  // namespace osf::faults

#include "faults/local_door.hpp"

#include <cerrno>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "faults/notes.hpp"

namespace osf::faults {

std::string limit_of_files() {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    return "it is at the limit of " + std::to_string(limit.rlim_cur) + " open files (ulimit -n); raise it";
}

LocalDoor::LocalDoor(std::string label, std::function<void(const std::string&)> say)
    : label_(std::move(label)), say_(std::move(say)), reserve_(eventfd(0, EFD_CLOEXEC)) {}

LocalDoor::~LocalDoor() {
    if (reserve_ >= 0) close(reserve_);
}

int LocalDoor::next(int listening) {
    for (;;) {
        const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            send_away(listening);
            return -1;
        }
        if (fd < 0) return -1;
        ucred who{};
        socklen_t size = sizeof who;
        if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) < 0 || (who.uid != geteuid() && who.uid != 0)) {
            close(fd);
            continue;
        }
        int big = 1 << 20;
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &big, sizeof big);
        return fd;
    }
}

void LocalDoor::send_away(int listening) {
    const std::string why = "the keeper cannot take in another process: " + limit_of_files();
    say_(why);
    if (reserve_ >= 0) close(reserve_);
    if (const int fd = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); fd >= 0) {
        try {
            send_note(fd, AnswerNote{}, label_ + why);
            pollfd asks{fd, POLLIN, 0};
            poll(&asks, 1, 50);  // one that is cut off before it has asked does not read the answer
        } catch (const Error&) {}  // it is gone
        close(fd);
    } else {
        usleep(10'000);  // the machine's limit, not ours: until somebody leaves
    }
    reserve_ = eventfd(0, EFD_CLOEXEC);
}

}  // namespace osf::faults

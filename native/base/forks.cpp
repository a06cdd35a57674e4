#include "base/forks.hpp"

#include <unistd.h>

#include <mutex>
#include <set>

namespace osf {

static struct Own {
    std::mutex mutex;
    std::set<int> fds;
}& own = *new Own;  // never destroyed: connections may outlive static objects

int open_own_socket(int family, int type, int protocol) {
    std::lock_guard guard(own.mutex);
    const int fd = ::socket(family, type, protocol);
    if (fd >= 0) own.fds.insert(fd);
    return fd;
}

void close_in_children(int fd, bool add) {
    std::lock_guard guard(own.mutex);
    if (add) own.fds.insert(fd);
    else own.fds.erase(fd);
}

void close_own(int fd) {
    std::lock_guard guard(own.mutex);
    own.fds.erase(fd);
    ::close(fd);
}

void lock_own_fds() { own.mutex.lock(); }
void unlock_own_fds() { own.mutex.unlock(); }

void close_inherited_fds() {
    for (int open : own.fds) ::close(open);
    own.fds.clear();
}

}  // namespace osf

#include "faults/keeper_place.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "faults/keeper_client.hpp"

namespace osf::faults {

KeeperPlace::KeeperPlace(const std::string& directory, const std::string& stem)
    : stem_(stem), folder_(directory), inside_("/proc/self/fd/" + std::to_string(folder_.fd())), lock_(folder_.open(stem + ".lock", O_RDWR | O_CREAT)) {}

KeeperPlace::~KeeperPlace() {
    struct stat there {};
    if (socket_.st_ino && ::lstat(path(".sock").c_str(), &there) == 0 && there.st_ino == socket_.st_ino && there.st_dev == socket_.st_dev)
        ::unlink(path(".sock").c_str());
    ::close(lock_);
}

bool KeeperPlace::take() {
    if (flock(lock_, LOCK_EX | LOCK_NB) < 0) return false;
    const std::string pid = std::to_string(getpid()) + "\n";
    if (ftruncate(lock_, 0) < 0 || pwrite(lock_, pid.data(), pid.size(), 0) < 0) fail_os("writing " + stem_ + ".lock", errno);
    return true;
}

int KeeperPlace::bind() {
    const int fd = listen_at(path(".sock"));
    ::lstat(path(".sock").c_str(), &socket_);
    return fd;
}

}  // namespace osf::faults

#include "keeper_place.hpp"

#include <cerrno>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "fault_owner.hpp"

namespace osf {

KeeperPlace::KeeperPlace(const std::string& directory, const std::string& stem) : stem_(stem) {
    directory_ = ::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory_ < 0) fail_os("opening " + directory, errno);
    inside_ = "/proc/self/fd/" + std::to_string(directory_);
    lock_ = ::open(path(".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (lock_ >= 0) return;
    const int error = errno;
    ::close(directory_);
    fail_os("opening " + directory + "/" + stem + ".lock", error);
}

KeeperPlace::~KeeperPlace() {
    struct stat there {};
    if (socket_.st_ino && ::lstat(path(".sock").c_str(), &there) == 0 && there.st_ino == socket_.st_ino && there.st_dev == socket_.st_dev)
        ::unlink(path(".sock").c_str());
    ::close(lock_);
    ::close(directory_);
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

}  // namespace osf

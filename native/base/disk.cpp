#include "base/disk.hpp"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "base/trusted.hpp"

namespace osf {

namespace {

class RealFile : public File {
public:
    explicit RealFile(int fd) : fd_(fd) {}
    ~RealFile() override { ::close(fd_); }
    RealFile(const RealFile&) = delete;
    RealFile& operator=(const RealFile&) = delete;

    ssize_t read(void* to, u64 bytes, u64 at) override {
        return whole(bytes, [&](u64 done) { return ::pread(fd_, static_cast<char*>(to) + done, bytes - done, off_t(at + done)); });
    }
    ssize_t write(const void* from, u64 bytes, u64 at) override {
        return whole(bytes, [&](u64 done) { return ::pwrite(fd_, static_cast<const char*>(from) + done, bytes - done, off_t(at + done)); });
    }
    int descriptor() const override { return fd_; }
    int sync() override { return ::fdatasync(fd_) < 0 ? -errno : 0; }
    ssize_t size() override {
        struct stat status {};
        return ::fstat(fd_, &status) < 0 ? -errno : status.st_size;
    }
    int allocate(u64 bytes) override {
        int made;  // not posix_fallocate: where the file system cannot, that writes every block
        do made = ::fallocate(fd_, 0, 0, off_t(bytes));
        while (made < 0 && errno == EINTR);
        if (made < 0 && errno == EOPNOTSUPP) made = ::ftruncate(fd_, off_t(bytes));
        return made < 0 ? -errno : 0;
    }

private:
    template <class Call>
    static ssize_t whole(u64 bytes, Call call) {
        for (u64 done = 0; done < bytes;) {
            ssize_t got = call(done);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) return -errno;
            if (got == 0) return ssize_t(done);
            done += u64(got);
        }
        return ssize_t(bytes);
    }
    int fd_;
};

class RealDisk : public Disk {
public:
    std::unique_ptr<File> open(const std::string& path, Mode mode, bool direct, int& error) override {
        const int flags = O_RDWR | O_CLOEXEC | (mode == fresh ? O_CREAT | O_EXCL : 0);
        int fd = open_own(path, flags | (direct ? O_DIRECT : 0));
        if (fd == -EINVAL && direct) fd = open_own(path, flags & ~O_EXCL);  // a file system without it
        error = std::min(fd, 0);
        return fd < 0 ? nullptr : std::make_unique<RealFile>(fd);
    }
    int rename(const std::string& from, const std::string& to) override { return ::rename(from.c_str(), to.c_str()) < 0 ? -errno : 0; }
    int rename_new(const std::string& from, const std::string& to) override {
        if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
        if (errno != EINVAL) return -errno;
        if (::link(from.c_str(), to.c_str()) < 0) return -errno;  // a file system without it
        return remove(from);
    }
    int remove(const std::string& path) override { return ::unlink(path.c_str()) < 0 ? -errno : 0; }
    int sync_directory(const std::string& of_path) override { return sync_folder_of(of_path); }
    bool exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }
};

}  // namespace

Disk& real_disk() {
    static RealDisk disk;
    return disk;
}

std::unique_ptr<File> file_of(int fd) { return std::make_unique<RealFile>(fd); }

}  // namespace osf

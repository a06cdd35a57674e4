#include "base/trusted.hpp"

#include <cerrno>
#include <climits>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace osf {

namespace {

constexpr const char* REMEDY = "; remove it if you did not put it there, or use another path";
constexpr mode_t OTHERS_WRITE = S_IWGRP | S_IWOTH, GROUP_ENTERS = S_IRGRP | S_IXGRP;

[[noreturn]] void refuse(const std::string& path, const std::string& why) { throw Error(Code::not_permitted, path + " " + why + REMEDY); }

std::string octal(mode_t mode) {
    char text[16];
    std::snprintf(text, sizeof text, "%o", unsigned(mode & 07777));
    return text;
}

const char* kind_of(mode_t mode) {
    if (S_ISLNK(mode)) return "a symbolic link";
    if (S_ISDIR(mode)) return "a directory";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return S_ISREG(mode) ? nullptr : "a device";
}

bool in_group(gid_t group) {
    if (group == getegid()) return true;
    std::vector<gid_t> all(size_t(std::max(0, getgroups(0, nullptr))));
    const int count = getgroups(int(all.size()), all.data());
    return count > 0 && std::find(all.begin(), all.begin() + count, group) != all.begin() + count;
}

// Whose a file must be, and which group may write it.
struct Owner {
    uid_t uid;
    bool shared = false;
    gid_t gid = 0;
    bool device = false;    // or a DAX device, of root
    bool one_name = true;
};

// No other device is opened: what that does to it, whoever named it would decide.
bool is_dax(const struct stat& is) {
    if (!S_ISCHR(is.st_mode)) return false;
    char link[PATH_MAX];
    const ssize_t length = readlink(("/sys/dev/char/" + std::to_string(major(is.st_rdev)) + ":" + std::to_string(minor(is.st_rdev)) + "/subsystem").c_str(), link, sizeof link);
    return length > 0 && std::string_view(link, size_t(length)).ends_with("/dax");
}

void check(int fd, const std::string& path, const Owner& owner) {
    struct stat is {};
    if (fstat(fd, &is) < 0) fail_os("fstat of " + path, errno);
    const bool device = owner.device && is_dax(is);
    if (const char* kind = kind_of(is.st_mode); kind && !device) refuse(path, std::string("is ") + kind + ", expected a regular file");
    // Root's files are good for what is this user's own. What somebody else shares must be theirs: they may have named any file.
    const bool good = is.st_uid == owner.uid || (is.st_uid == 0 && (device || owner.uid == geteuid()));
    if (!good) refuse(path, "belongs to user " + std::to_string(is.st_uid) + ", expected " + std::to_string(owner.uid));
    if (device) return;  // only root makes those
    if (is.st_nlink == 0) fail_os("opening " + path, ENOENT);  // taken away since it was opened
    if (owner.one_name && is.st_nlink > 1) refuse(path, "has " + std::to_string(is.st_nlink) + " names, expected one");
    const bool group = owner.shared && is.st_gid == owner.gid;
    if (is.st_mode & (group ? mode_t(S_IWOTH) : OTHERS_WRITE)) refuse(path, "can be written by others (mode " + octal(is.st_mode) + ")");
}

// A process whose standard streams are closed would get their numbers, and what it prints would go into the file.
int past_streams(int fd) {
    if (fd < 0 || fd > STDERR_FILENO) return fd;
    const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    ::close(fd);
    errno = error;
    return moved;
}

// Minus the error if the system says no; Error if there is something that is not to be trusted.
int open_checked(int folder, const std::string& name, const std::string& path, int flags, u32 mode, const Owner& owner) {
    struct stat there {};  // a device may do something when it is opened, so it is known before; it cannot be made by who is not root
    if (fstatat(folder, name.c_str(), &there, AT_SYMLINK_NOFOLLOW) == 0 && (S_ISCHR(there.st_mode) || S_ISBLK(there.st_mode)) && !(owner.device && is_dax(there)))
        refuse(path, "is a device, expected a regular file");
    // Not blocking: a pipe would hang us before we see that it is one. Truncated by nobody before it is known whose it is.
    const int fd = past_streams(::openat(folder, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode));
    if (fd < 0) {
        const int error = errno;
        struct stat is {};
        if (error != EEXIST && fstatat(folder, name.c_str(), &is, AT_SYMLINK_NOFOLLOW) == 0 && kind_of(is.st_mode) && !(owner.device && is_dax(is)))
            refuse(path, std::string("is ") + kind_of(is.st_mode) + ", expected a regular file");
        return -error;
    }
    try {
        check(fd, path, owner);
        if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) < 0) fail_os("opening " + path, errno);
    } catch (...) {
        ::close(fd);
        throw;
    }
    return fd;
}

int need(int fd, const std::string& path) {
    if (fd < 0) fail_os("opening " + path, -fd);
    return fd;
}

std::string folder_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Folder::Folder(std::string path) : path_(std::move(path)) {
    // A directory that this process has open is named by the kernel's own link to it, which leads nowhere else.
    fd_ = ::open(path_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC | (path_.starts_with("/proc/self/fd/") ? 0 : O_NOFOLLOW));
    struct stat is {};
    if (fd_ < 0) {
        const int error = errno;
        if (error == ENOTDIR && lstat(path_.c_str(), &is) == 0) refuse(path_, S_ISLNK(is.st_mode) ? "is a symbolic link, expected a directory" : "is not a directory, expected a directory");
        fail_os("opening " + path_, error);
    }
    try {
        if (fstat(fd_, &is) < 0) fail_os("fstat of " + path_, errno);
        uid_ = is.st_uid, gid_ = is.st_gid;
        shared_ = (is.st_mode & GROUP_ENTERS) == GROUP_ENTERS;
        const bool own = uid_ == geteuid() || uid_ == 0;
        if (!own && (!shared_ || (is.st_mode & S_IRWXO) || !in_group(gid_)))
            refuse(path_, "belongs to user " + std::to_string(uid_) + ", and is not shared with a group of user " + std::to_string(geteuid()) + " (mode " + octal(is.st_mode) + ")");
        if (is.st_mode & OTHERS_WRITE) refuse(path_, "can be changed by others (mode " + octal(is.st_mode) + ")");
    } catch (...) {
        ::close(fd_);
        throw;
    }
}

Folder::~Folder() { ::close(fd_); }

int Folder::open(const std::string& name, int flags, u32 mode) const {
    const std::string path = path_ + "/" + name;
    return need(open_checked(fd_, name, path, flags, mode, {uid_, shared_, gid_}), path);
}

int Folder::open_named(const std::string& name, int flags) const {
    const std::string path = path_ + "/" + name;
    return need(open_checked(fd_, name, path, flags, 0, {uid_, shared_, gid_, false, false}), path);
}

int Folder::open_data(int flags) const {
    const int named = open_checked(fd_, "backing", path_ + "/backing", O_RDONLY, 0, {uid_});
    if (named == -ENOENT) return open("data", flags);
    need(named, path_ + "/backing");
    char text[PATH_MAX];
    const ssize_t got = pread(named, text, sizeof text, 0);
    ::close(named);
    if (got <= 0 || got == ssize_t(sizeof text) || text[0] != '/') throw Error(Code::corrupt, path_ + "/backing does not name a file; remove the space");
    // The name was resolved when it was written down. A link on the way to it is new, and could lead to any file of ours.
    const std::string path(text, size_t(got)), above = folder_of(path);
    const int parent = ::open(above.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0) fail_os("opening " + above, errno);
    char is[PATH_MAX];
    const ssize_t length = readlink(("/proc/self/fd/" + std::to_string(parent)).c_str(), is, sizeof is);
    int fd;
    try {
        if (length < 0) fail_os("looking where " + above + " is", errno);
        if (std::string_view(is, size_t(length)) != above) refuse(above, "leads to " + std::string(is, size_t(length)) + " now");
        fd = need(open_checked(parent, path.substr(path.rfind('/') + 1), path, flags, 0, {uid_, shared_, gid_, true}), path);
    } catch (...) {
        ::close(parent);
        throw;
    }
    ::close(parent);
    return fd;
}

int open_in(const std::string& directory, const std::string& name, int flags, u32 mode) { return Folder(directory).open(name, flags, mode); }

int open_data(const std::string& directory, int flags) { return Folder(directory).open_data(flags); }

int open_own(const std::string& path, int flags, u32 mode) { return open_checked(AT_FDCWD, path, path, flags, mode, {geteuid()}); }

int open_nameless(const std::string& directory) { return past_streams(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)); }
int open_device(const std::string& path) { return need(open_checked(AT_FDCWD, path, path, O_RDWR, 0, {0, false, 0, true}), path); }

u64 device_number(int fd, const char* file) {
    struct stat is {};
    if (fstat(fd, &is) < 0) fail_os("fstat", errno);
    const std::string path = "/sys/dev/char/" + std::to_string(major(is.st_rdev)) + ":" + std::to_string(minor(is.st_rdev)) + "/" + file;
    unsigned long long value = 0;
    FILE* found = std::fopen(path.c_str(), "re");
    const bool read = found && std::fscanf(found, "%llu", &value) == 1;
    if (found) std::fclose(found);
    if (!read) throw Error(Code::not_permitted, path + " does not say a number: this kernel does not tell the size of the device");
    return value;
}

void write_backing(const std::string& directory, const std::string& path) {
    const int fd = open_in(directory, "backing", O_WRONLY | O_CREAT | O_EXCL);
    const bool done = pwrite(fd, path.data(), path.size(), 0) == ssize_t(path.size());
    const int error = errno;
    ::close(fd);
    if (!done) fail_os("writing " + directory + "/backing", error);
}

int sync_folder_of(const std::string& path) {
    const int fd = ::open(folder_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);  // only to sync it
    if (fd < 0) return -errno;
    const int error = ::fsync(fd) < 0 ? errno : 0;
    ::close(fd);
    return -error;
}

}  // namespace osf

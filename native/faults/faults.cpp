#include "faults/faults.hpp"

#include <cerrno>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

// Newer than the headers of gcc 12's Debian; the numbers are the kernel's interface.
#ifndef UFFDIO_CONTINUE_MODE_WP
#define UFFDIO_CONTINUE_MODE_WP (u64(1) << 1)
#endif
#ifndef UFFD_FEATURE_WP_UNPOPULATED
#define UFFD_FEATURE_WP_UNPOPULATED (1 << 13)
#endif
#ifndef UFFD_FEATURE_POISON
#define UFFD_FEATURE_POISON (1 << 14)
#endif
#ifndef USERFAULTFD_IOC_NEW
#define USERFAULTFD_IOC_NEW _IO(0xAA, 0x00)
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

namespace osf::faults {

struct Poison { u64 start, length, mode; std::int64_t updated; };
constexpr unsigned long POISON = _IOWR(0xAA, 0x08, Poison);
constexpr u64 FEATURES = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MINOR_SHMEM |
                         UFFD_FEATURE_WP_HUGETLBFS_SHMEM | UFFD_FEATURE_WP_UNPOPULATED | UFFD_FEATURE_POISON;

#ifdef OSF_STEPS
std::atomic<Rule> broken_rule{Rule::all};
#endif

int open_faults(Faults& how) {
    how = Faults::full;
    int fd = int(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK));
    if (fd < 0) {
        int device = ::open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
        if (device >= 0) {
            fd = ioctl(device, USERFAULTFD_IOC_NEW, O_CLOEXEC | O_NONBLOCK);
            close(device);
        }
    }
    if (fd < 0) {
        how = Faults::user;
        fd = int(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));
    }
    if (fd < 0 && (errno == EMFILE || errno == ENFILE)) fail_os("no descriptor is left for a userfaultfd (ulimit -n)", errno);
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = FEATURES;
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0) return fd;
    if (fd >= 0) close(fd);  // a kernel before 6.6
    how = Faults::none;
    return -1;
}

bool read_fault(int fd, Touch& touch) {
    uffd_msg message;
    for (;;) {
        ssize_t got = read(fd, &message, sizeof message);
        if (got < 0 && errno == EINTR) continue;
        if (got != sizeof message) return false;
        if (message.event != UFFD_EVENT_PAGEFAULT) continue;
        u64 flags = message.arg.pagefault.flags;
        touch = {message.arg.pagefault.address, (flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0, (flags & UFFD_PAGEFAULT_FLAG_WP) != 0};
        return true;
    }
}

int register_faults(int fd, u64 start, u64 bytes) {
    uffdio_register range{};
    range.range = {start, bytes};
    range.mode = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP;
    if (follows(Rule::minor)) range.mode |= UFFDIO_REGISTER_MODE_MINOR;
    return ioctl(fd, UFFDIO_REGISTER, &range) ? errno : 0;
}

int protect_pages(int fd, u64 start, u64 bytes, bool on) {
    uffdio_writeprotect range{};
    range.range = {start, bytes};
    range.mode = on ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
    while (ioctl(fd, UFFDIO_WRITEPROTECT, &range))
        if (errno != EAGAIN && errno != EINTR) return errno;
    return 0;
}

int copy_pages(int fd, u64 start, const char* from, u64 bytes, bool wake) {
    for (u64 done = 0; done < bytes;) {
        uffdio_copy range{};
        range.dst = start + done;
        range.src = u64(from) + done;
        range.len = bytes - done;
        range.mode = UFFDIO_COPY_MODE_WP | (wake ? 0 : UFFDIO_COPY_MODE_DONTWAKE);
        if (ioctl(fd, UFFDIO_COPY, &range) == 0) break;
        if (range.copy > 0) done += u64(range.copy);
        else if (errno != EAGAIN && errno != EINTR) return errno;
    }
    return 0;
}

int map_pages(int fd, u64 start, u64 bytes, bool writable) {
    bool skipped = false;
    u64 at = start;
    while (at < start + bytes) {
        uffdio_continue range{};
        range.range = {at, start + bytes - at};
        range.mode = writable ? 0 : UFFDIO_CONTINUE_MODE_WP;
        if (ioctl(fd, UFFDIO_CONTINUE, &range) == 0) break;
        int error = errno;
        if (range.mapped > 0) at += u64(range.mapped);
        else if (error == EEXIST) at += PAGE, skipped = true;  // mapped already
        else if (error != EAGAIN && error != EINTR) return error;
    }
    return skipped ? wake_faults(fd, start, bytes) : 0;
}

int wake_faults(int fd, u64 start, u64 bytes) {
    uffdio_range range{start, bytes};
    return ioctl(fd, UFFDIO_WAKE, &range) ? errno : 0;
}

int poison_pages(int fd, u64 start, u64 bytes) {
    protect_pages(fd, start, bytes, false);  // the mark of a protected page that was punched would be in the way
    bool skipped = false;
    u64 at = start;
    while (at < start + bytes) {
        Poison range{at, start + bytes - at, 0, 0};
        if (ioctl(fd, POISON, &range) == 0) break;
        int error = errno;
        if (range.updated > 0) at += u64(range.updated);
        else if (error == EEXIST) at += PAGE, skipped = true;
        else if (error != EAGAIN && error != EINTR) return error;
    }
    return skipped ? wake_faults(fd, start, bytes) : 0;
}

}  // namespace osf::faults

#include "faults/faults.hpp"

#include <cerrno>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults/kernel.hpp"

namespace osf::faults {

#ifdef OSF_STEPS
std::atomic<Rule> broken_rule{Rule::all};
#endif

int open_faults(Faults& how) {
    how = abilities().how;
    if (how == Faults::none) return -1;
    const int fd = open_userfaultfd(how);
    uffdio_api api{};
    api.api = UFFD_API;
    api.features = abilities().features;
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0) return fd;
    if (fd >= 0) close(fd);
    how = Faults::none;                  // it was permitted before
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
        touch = {message.arg.pagefault.address, (flags & (UFFD_PAGEFAULT_FLAG_WRITE | UFFD_PAGEFAULT_FLAG_WP)) != 0, (flags & UFFD_PAGEFAULT_FLAG_WP) != 0,
                 (flags & UFFD_PAGEFAULT_FLAG_MINOR) != 0};
        return true;
    }
}

static int register_as(int fd, u64 start, u64 bytes, u64 mode) {
    uffdio_register range{};
    range.range = {start, bytes};
    range.mode = mode;
    return ioctl(fd, UFFDIO_REGISTER, &range) ? errno : 0;
}

constexpr u64 WATCHED = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP;

int register_faults(int fd, u64 start, u64 bytes) {
    return register_as(fd, start, bytes, WATCHED | (abilities().minor && follows(Rule::minor) ? UFFDIO_REGISTER_MODE_MINOR : 0));
}

int bar_pages(int fd, u64 start, u64 bytes) { return register_as(fd, start, bytes, WATCHED | UFFDIO_REGISTER_MODE_MINOR); }

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

static int continue_pages(int fd, u64 start, u64 bytes, u64 mode) {
    bool skipped = false;
    u64 at = start;
    while (at < start + bytes) {
        uffdio_continue range{};
        range.range = {at, start + bytes - at};
        range.mode = mode;
        if (ioctl(fd, UFFDIO_CONTINUE, &range) == 0) break;
        int error = errno;
        if (range.mapped > 0) at += u64(range.mapped);
        else if (error == EEXIST) at += PAGE, skipped = true;  // mapped already
        else if (error != EAGAIN && error != EINTR) return error;
    }
    return skipped ? wake_faults(fd, start, bytes) : 0;
}

int map_pages(int fd, u64 start, u64 bytes, bool writable) {
    if (abilities().minor) return continue_pages(fd, start, bytes, writable ? 0 : UFFDIO_CONTINUE_MODE_WP);
    return writable ? protect_pages(fd, start, bytes, false) : wake_faults(fd, start, bytes);
}

int map_barred(int fd, u64 start, u64 bytes) { return continue_pages(fd, start, bytes, 0); }

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

namespace {

// One file for all that is lost, so that neighbours are one mapping. It stays open for as long as the process lives.
struct Nothing {
    int fd = memfd_create("openshelf-lost", MFD_CLOEXEC);
    struct stat is {};
    Nothing() {
        if (fd >= 0 && fstat(fd, &is) < 0) fd = -1;
    }
    // A program that closes all descriptors may have given the number to another file, whose bytes must not show.
    bool there() const {
        struct stat now {};
        return fd >= 0 && fstat(fd, &now) == 0 && now.st_dev == is.st_dev && now.st_ino == is.st_ino;
    }
};

}  // namespace

void lose_pages(int fd, u64 start, u64 bytes) {
    static const Nothing kept;
    const bool there = kept.there();
    const int nothing = there ? kept.fd : memfd_create("openshelf-lost", MFD_CLOEXEC);
    void* at = reinterpret_cast<void*>(start);
    // At the offset of its address: neighbours are one mapping.
    if (nothing < 0 || mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, nothing, off_t(start)) == MAP_FAILED)
        mmap(at, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (nothing >= 0 && !there) close(nothing);
    if (fd >= 0) wake_faults(fd, start, bytes);
}

}  // namespace osf::faults

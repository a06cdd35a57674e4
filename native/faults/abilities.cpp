#include "faults/abilities.hpp"

#include <cerrno>
#include <cstdlib>
#include <fcntl.h>
#include <string_view>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/trusted.hpp"
#include "faults/faults.hpp"
#include "faults/kernel.hpp"

namespace osf::faults {

int open_userfaultfd(Faults& how) {
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
    if (fd < 0) how = Faults::none;
    return fd;
}

namespace {

struct Needed { u64 feature; const char* text; };
constexpr Needed NEEDED[] = {{UFFD_FEATURE_MISSING_SHMEM, "faults on shared memory (Linux 4.11)"},
                             {UFFD_FEATURE_PAGEFAULT_FLAG_WP, "write protection (Linux 5.7)"},
                             {UFFD_FEATURE_MINOR_SHMEM, "minor faults on shared memory (Linux 5.14)"},
                             {UFFD_FEATURE_WP_HUGETLBFS_SHMEM, "write protection of shared memory (Linux 5.19)"}};

// A file of two pages, watched. Touches are made by system calls, which fail where a plain touch would wait.
class Trial {
public:
    Trial(u64 features, u64 mode) {
        Faults how;
        faults_ = open_userfaultfd(how);
        uffdio_api api{};
        api.api = UFFD_API;
        api.features = features | UFFD_FEATURE_SIGBUS;
        watched_ = memfd_create("openshelf-trial", MFD_CLOEXEC);
        other_ = memfd_create("openshelf-trial", MFD_CLOEXEC);
        void* at = MAP_FAILED;
        if (faults_ >= 0 && ioctl(faults_, UFFDIO_API, &api) == 0 && watched_ >= 0 && other_ >= 0 && ftruncate(watched_, 2 * PAGE) == 0 && fill(other_, 0))
            at = mmap(nullptr, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, watched_, 0);
        if (at == MAP_FAILED) return;
        map_ = static_cast<char*>(at);
        uffdio_register range{};
        range.range = {u64(map_), 2 * PAGE};
        range.mode = mode;
        good_ = ioctl(faults_, UFFDIO_REGISTER, &range) == 0;
    }
    ~Trial() {
        if (map_) munmap(map_, 2 * PAGE);
        for (int fd : {faults_, watched_, other_})
            if (fd >= 0) close(fd);
    }
    Trial(const Trial&) = delete;
    Trial& operator=(const Trial&) = delete;

    bool good() const { return good_; }
    bool fill(u64 page) { return fill(watched_, page); }
    bool punch(u64 page) { return fallocate(watched_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(page * PAGE), PAGE) == 0; }
    bool protect(u64 page, bool on) { return protect_pages(faults_, u64(map_) + page * PAGE, PAGE, on) == 0; }
    bool access(int protection) { return mprotect(map_, 2 * PAGE, protection) == 0; }
    bool drop() { return madvise(map_, 2 * PAGE, MADV_DONTNEED) == 0; }
    bool map_protected(u64 page) {
        uffdio_continue range{};
        range.range = {u64(map_) + page * PAGE, PAGE};
        range.mode = UFFDIO_CONTINUE_MODE_WP;
        return ioctl(faults_, UFFDIO_CONTINUE, &range) == 0;
    }
    bool reads(u64 page) { return pwrite(other_, map_ + page * PAGE, 1, 0) == 1; }
    bool writes(u64 page) { return pread(other_, map_ + page * PAGE, 1, 0) == 1; }

private:
    static bool fill(int fd, u64 page) { return pwrite(fd, "x", 1, off_t(page * PAGE)) == 1; }
    int faults_ = -1, watched_ = -1, other_ = -1;
    char* map_ = nullptr;
    bool good_ = false;
};

constexpr u64 MARKED = UFFDIO_REGISTER_MODE_MISSING | UFFDIO_REGISTER_MODE_WP, ASKED = MARKED | UFFDIO_REGISTER_MODE_MINOR;

bool maps_protected(u64 features) {
    Trial trial(features, ASKED);
    return trial.good() && trial.fill(0) && !trial.reads(0) && trial.map_protected(0) && trial.reads(0) && !trial.writes(0);
}

// What the way without MINOR rests on: a mark that is there before the page is, and stays whatever becomes of the page table.
bool keeps_marks(u64 features) {
    Trial trial(features, MARKED);
    if (!trial.good() || !trial.protect(0, true) || !trial.fill(0) || !trial.reads(0) || trial.writes(0)) return false;
    if (!trial.access(PROT_NONE) || !trial.access(PROT_READ | PROT_WRITE) || trial.writes(0)) return false;
    if (!trial.drop() || !trial.reads(0) || trial.writes(0)) return false;
    if (!trial.punch(0) || trial.reads(0) || trial.writes(0)) return false;
    return trial.protect(0, true) && trial.fill(0) && !trial.writes(0) && trial.protect(0, false) && trial.writes(0);
}

Abilities find() {
    Abilities found;
    const char* variable = std::getenv("OPENSHELF_FAULTS");
    const std::string_view as = variable ? variable : "";
    const int fd = open_userfaultfd(found.how);
    if (fd < 0) {
        found.why = errno == ENOSYS ? "the kernel has no userfaultfd" : std::string("userfaultfd is not permitted here: ") + std::strerror(errno);
        return found;
    }
    uffdio_api api{};
    api.api = UFFD_API;
    const bool answered = ioctl(fd, UFFDIO_API, &api) == 0;
    close(fd);
    for (const Needed& needed : NEEDED) {
        if (found.why.empty() && !(answered && api.features & needed.feature)) found.why = std::string("the kernel's userfaultfd lacks ") + needed.text;
        found.features |= needed.feature;
    }
    if (found.why.empty()) {
        found.minor = as != "6.1" && maps_protected(found.features);
        if (!found.minor && !keeps_marks(found.features)) found.why = "the kernel's userfaultfd does not keep write protection of shared memory (Linux 6.2)";
    }
    if (!found.why.empty()) return Abilities{Faults::none, false, false, 0, found.why};
    found.poison = as != "6.1" && as != "6.4" && (api.features & UFFD_FEATURE_POISON);
    if (found.poison) found.features |= UFFD_FEATURE_POISON;
    return found;
}

bool has_huge_pages(const std::string& directory) {
    const int fd = open_nameless(directory);
    struct stat status {};
    const bool huge = fd >= 0 && ftruncate(fd, 4 * MIB) == 0 && pwrite(fd, "x", 1, 0) == 1 && fstat(fd, &status) == 0 && u64(status.st_blocks) * 512 > PAGE;
    if (fd >= 0) close(fd);
    return huge;
}

}  // namespace

const Abilities& abilities() {
    static const Abilities& found = *new Abilities(find());  // read until the process has ended
    return found;
}

void check_pages(const std::string& directory) {
    if (abilities().how != Faults::none && !abilities().minor && has_huge_pages(directory))
        throw Error(Code::not_permitted, "the file system of " + directory + " gives files huge pages (huge=always or within_size), and this kernel's "
                                         "userfaultfd lacks CONTINUE_MODE_WP (Linux 6.4): zeros beside what is in memory would be seen. Mount it with huge=never");
}

}  // namespace osf::faults

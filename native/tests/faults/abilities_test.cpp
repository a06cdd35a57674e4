// What a kernel's userfaultfd gives, as this one has it and as if it were older: what the keepers rely on, tried by real touches.
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>

#include "faults/faults.hpp"
#include "tests/check.hpp"

using namespace osf;
using namespace osf::faults;
using namespace osf::test;

constexpr u64 PAGES = 16;

struct Watched {
    Watched() {
        Faults how;
        faults = open_faults(how);
        file = memfd_create("test", MFD_CLOEXEC);
        CHECK(faults >= 0 && file >= 0 && ftruncate(file, PAGES * PAGE) == 0);
        void* map = mmap(nullptr, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        CHECK(map != MAP_FAILED);
        at = static_cast<char*>(map);
        CHECK(register_faults(faults, u64(at), PAGES * PAGE) == 0);
    }
    ~Watched() {
        munmap(at, PAGES * PAGE);
        close(file);
        close(faults);
    }
    void put(u64 page, char value) const { CHECK(pwrite(file, &value, 1, off_t(page * PAGE)) == 1); }
    void punch(u64 page) const { CHECK(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(page * PAGE), PAGE) == 0); }
    u64 address(u64 page) const { return u64(at) + page * PAGE; }
    // A touch by another thread, until it has been answered.
    template <class Answer> char touch(u64 page, bool write, Answer answer) const {
        std::atomic<int> seen{-1};
        std::thread toucher([&] {
            volatile char* byte = at + page * PAGE;
            if (write) *byte = 'w';
            seen = *byte;
        });
        for (Touch came{}; seen < 0; std::this_thread::yield())
            if (read_fault(faults, came)) answer(came);
        toucher.join();
        return char(seen.load());
    }
    char* at = nullptr;
    int faults = -1, file = -1;
};

// Bytes come into the file, are read, written, and leave: every first write is told, whatever became of the page meanwhile.
static void no_write_is_unseen() {
    Watched watched;
    for (u64 page = 0; page < PAGES; page++) {
        int missed = 0, written = 0;
        auto answer = [&](const Touch& touch) {
            const u64 start = touch.address & ~(PAGE - 1);
            if (touch.mapped) {
                written++;
                CHECK(protect_pages(watched.faults, start, PAGE, false) == 0);
                return;
            }
            missed++;
            if (!abilities().minor) CHECK(protect_pages(watched.faults, start, PAGE, true) == 0);
            watched.put(page, 'a');
            CHECK(map_pages(watched.faults, start, PAGE, false) == 0);
        };
        CHECK(watched.touch(page, false, answer) == 'a' && missed == 1 && written == 0);
        CHECK(watched.touch(page, true, answer) == 'w' && written == 1);
        CHECK(protect_pages(watched.faults, watched.address(page), PAGE, true) == 0);
        watched.punch(page);
        CHECK(watched.touch(page, false, answer) == 'a' && missed == 2);
        CHECK(watched.touch(page, true, answer) == 'w' && written == 2);
    }
}

// What another process of the host has brought into the file.
static void bytes_in_the_file_are_read_and_their_first_write_is_told() {
    Watched watched;
    for (u64 page = 0; page < PAGES; page++) {
        CHECK(protect_pages(watched.faults, watched.address(page), PAGE, true) == 0);
        watched.put(page, 'b');
        int asked = 0, written = 0;
        auto answer = [&](const Touch& touch) {
            const u64 start = touch.address & ~(PAGE - 1);
            touch.mapped ? written++ : asked++;
            if (touch.mapped) CHECK(protect_pages(watched.faults, start, PAGE, false) == 0);
            else CHECK(map_pages(watched.faults, start, PAGE, false) == 0);
        };
        CHECK(watched.touch(page, false, answer) == 'b' && (asked == 1) == abilities().minor && !written);
        CHECK(watched.touch(page, true, answer) == 'w' && written == 1);
    }
}

// A range that is barred asks for what is in the file, too, and can be shown writable.
static void barred_range_asks_for_all() {
    Watched watched;
    watched.put(3, 'c');
    auto none = [](const Touch&) { CHECK(false); };
    if (!abilities().minor) CHECK(watched.touch(3, false, none) == 'c');
    CHECK(bar_pages(watched.faults, u64(watched.at), PAGES * PAGE) == 0);
    CHECK(madvise(watched.at, PAGES * PAGE, MADV_DONTNEED) == 0);
    int asked = 0;
    CHECK(watched.touch(3, false, [&](const Touch& touch) {
        CHECK(touch.minor && !touch.mapped);
        asked++;
        CHECK(map_barred(watched.faults, touch.address & ~(PAGE - 1), PAGE) == 0);
    }) == 'c' && asked == 1);
    CHECK(watched.touch(3, true, none) == 'w');
}

// In a process of its own: a touch of what is lost ends in SIGBUS, and who waits already is woken for it.
static void lost_pages_end_the_process_that_touches_them() {
    const pid_t child = fork();
    if (!child) {
        Watched watched;
        watched.touch(2, false, [&](const Touch&) {
            if (abilities().poison) CHECK(poison_pages(watched.faults, watched.address(0), 8 * PAGE) == 0);
            else lose_pages(watched.faults, watched.address(0), 8 * PAGE);
        });
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

// A program may close all descriptors and open others: what is lost never shows the bytes of another file.
static void lost_pages_show_no_other_file() {
    const pid_t child = fork();
    if (!child) {
        char* at = static_cast<char*>(mmap(nullptr, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
        lose_pages(-1, u64(at), PAGE);
        const int other = memfd_create("other", MFD_CLOEXEC);
        CHECK(at != MAP_FAILED && other >= 0 && ftruncate(other, off_t(1) << 47) == 0);
        int taken = 0;
        for (int fd = 3; fd < other; fd++) {
            char is[64] = {};
            if (readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), is, sizeof is - 1) > 0 && std::string(is).find("openshelf-lost") != std::string::npos)
                taken += dup2(other, fd) == fd;
        }
        CHECK(taken == 1);
        lose_pages(-1, u64(at) + PAGE, PAGE);
        _exit(*static_cast<volatile char*>(at + PAGE));
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

int main() {
    int failed = 0;
    for (const char* as : {"on", "6.4", "6.1"}) {
        const pid_t child = fork();  // they are found once in a process
        if (!child) {
            setenv("OPENSHELF_FAULTS", as, 1);
            const Abilities& can = abilities();
            if (can.how == Faults::none || UNDER_TSAN || UNDER_ASAN) {
                std::printf("as %s: skipped, %s\n", as, can.why.empty() ? "under a sanitizer" : can.why.c_str());
                _exit(can.how == Faults::none && can.why.empty());
            }
            std::printf("as %s: minor %d, poison %d\n", as, can.minor, can.poison);
            std::fflush(stdout);
            if (std::string(as) == "6.1") CHECK(!can.minor && !can.poison);
            if (std::string(as) == "6.4") CHECK(!can.poison);
            no_write_is_unseen();
            bytes_in_the_file_are_read_and_their_first_write_is_told();
            barred_range_asks_for_all();
            lost_pages_end_the_process_that_touches_them();
            lost_pages_show_no_other_file();
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        failed |= status;
    }
    return failed != 0;
}

// What the native tests share: CHECK, a space in memory that goes when its test ends, arrays whose bytes tell their
// name and version, and children that die on purpose.
#pragma once

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "space/space.hpp"
#include "space/sync.hpp"

#define CHECK(condition)                                                                              \
    do {                                                                                              \
        if (!(condition)) osf::test::failed(__FILE__, __LINE__, #condition);                          \
    } while (0)

namespace osf::test {

inline std::string context;  // what is being tried; told when a check fails

[[noreturn]] inline void failed(const char* file, int line, const std::string& what) {
    std::fprintf(stderr, "%s:%d: failed: %s [%s]\n", file, line, what.c_str(), context.c_str());
    std::fflush(stderr);
    std::_Exit(1);
}

#if defined(__SANITIZE_THREAD__)
constexpr u64 BASE = 0x7e9000000000;  // of the few ranges that its shadow memory leaves to programs
constexpr bool UNDER_TSAN = true;
#else
constexpr u64 BASE = 0x200000000000;
constexpr bool UNDER_TSAN = false;
#endif

#if defined(__SANITIZE_ADDRESS__)
constexpr bool UNDER_ASAN = true;
#else
constexpr bool UNDER_ASAN = false;
#endif

// A directory with a fresh space, not opened. The process that made it removes it.
class Place {
public:
    explicit Place(u64 bytes = 64 * MIB, u64 base = BASE) : owner_(getpid()) {
        const char* tmp = std::getenv("TMPDIR");
        std::string at = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : tmp ? tmp : "/tmp";
        std::string pattern = at + "/osf-test-XXXXXX";
        CHECK(mkdtemp(pattern.data()) != nullptr);
        directory = pattern;
        CreateOptions options;
        options.directory = directory;
        options.name = "test";
        options.boot_id = "boot";
        options.bytes = bytes;
        options.base = base;
        options.reserve = Layout::smallest_reserve();
        Space::create(options);
    }
    ~Place() {
        if (getpid() != owner_) return;
        for (const char* file : {"/control", "/members", "/data"}) ::unlink((directory + file).c_str());
        ::rmdir(directory.c_str());
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    std::shared_ptr<Space> open(bool read_only = false) const { return Space::open(directory, read_only, "boot"); }

    std::string directory;

private:
    pid_t owner_;
};

// An array's content: its version, then words that depend on label, version and position.
inline u64 content_word(u64 label, u64 version, u64 at) {
    return at == 0 ? version : at == 1 ? label : (label ^ version * 0x9e3779b97f4a7c15ull) + at * 0x2545f4914f6cdd1dull;
}
inline void fill(char* bytes, u64 nbytes, u64 label, u64 version) {
    for (u64 at = 0; at < nbytes / 8; at++) {
        u64 word = content_word(label, version, at);
        std::memcpy(bytes + 8 * at, &word, 8);
    }
}
// The version of a whole array with this label (0: any), or -1.
inline long version_of(const char* bytes, u64 nbytes, u64 label = 0) {
    u64 word = 0, version = 0, inside = 0;
    std::memcpy(&version, bytes, 8);
    std::memcpy(&inside, bytes + 8, 8);
    if (label && inside != label) return -1;
    for (u64 at = 2; at < nbytes / 8; at++) {
        std::memcpy(&word, bytes + 8 * at, 8);
        if (word != content_word(inside, version, at)) return -1;
    }
    return long(version);
}

constexpr u64 SMALL = 200, LARGE = 300 * KIB;

// A draft (or, without a name, an anonymous array) with its content, and its pin handed out.
inline Held make(Space& space, const std::string& name, u64 nbytes, u64 version, const std::string& label = "") {
    Spec spec;
    spec.nbytes = nbytes;
    spec.shape = {nbytes};
    spec.name = name;
    Held held = space.make(spec, false);
    fill(space.bytes(held), nbytes, hash_name(label.empty() ? name : label), version);
    space.hand_out(held);
    return held;
}
inline void put(Space& space, const std::string& name, u64 nbytes, u64 version, const std::string& label = "") {
    Held held = make(space, name, nbytes, version, label);
    space.publish(held, true);
    space.release(held);
}
// 0: there is no such array. Fails if its bytes are not whole.
inline long look_up(Space& space, const std::string& name, const std::string& label = "") {
    Held held = space.find(name);
    if (!held) return 0;
    long version = version_of(space.bytes(held), space.record(held).nbytes, label.empty() ? 0 : hash_name(label));
    CHECK(version > 0);
    space.release(held);
    return version;
}

inline std::string describe(const Audit& audit) {
    return std::to_string(audit.arrays) + " arrays, leaked " + std::to_string(audit.leaked_blocks) + " (" +
           std::to_string(audit.leaked_bytes) + " bytes), missing " + std::to_string(audit.missing_blocks) + ", damaged " +
           std::to_string(audit.damaged);
}
inline bool sound(const Audit& audit) { return !audit.leaked_blocks && !audit.missing_blocks && !audit.damaged; }
inline void check_sound(Space& space, const char* when = "audit") {
    Audit audit;
    try {
        audit = space.audit();
    } catch (const Error& error) {
        failed(__FILE__, __LINE__, std::string(when) + ": " + error.what());
    }
    if (!sound(audit)) failed(__FILE__, __LINE__, std::string(when) + ": " + describe(audit));
}

// A name with this prefix whose hash lies in the stripe.
inline std::string name_in(u64 stripe, const std::string& prefix) {
    for (int number = 0;; number++) {
        std::string name = prefix + std::to_string(number);
        if (Index::stripe_of(hash_name(name)) == stripe) return name;
    }
}

// Runs `body` in a forked child and gives its wait status. Exceptions and returned values end it: status 0 is a return.
inline pid_t start(const std::function<void()>& body) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that fails leaves nobody behind
    try {
        body();
    } catch (const std::exception& error) {
        failed(__FILE__, __LINE__, std::string("exception in a child: ") + error.what());
    }
    std::_Exit(0);
}
inline int finish(pid_t child) {
    int status = 0;
    while (waitpid(child, &status, 0) < 0) CHECK(errno == EINTR);
    return status;
}
inline bool killed(int status) { return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL; }
inline bool returned(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }
inline int run(const std::function<void()>& body) { return finish(start(body)); }

}  // namespace osf::test

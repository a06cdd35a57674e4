// A space whose keeper is killed and followed by the next one, for calls by a process elsewhere.
#pragma once

#include <sys/mman.h>

#include <thread>

#include "net/listener.hpp"
#include "rpc/remote.hpp"
#include "rpc/serve.hpp"
#include "tests/check.hpp"

namespace osf::test {

// What the processes of one round tell each other.
struct Shared {
    std::atomic<int> port, arm, kill_at, go, there, follow, first;
};

inline Key key() {
    Key key;
    std::fill_n(key.bytes, 32, u8(5));
    return key;
}

// Serves until it is killed; from when it is armed on it counts steps, and dies at one of them.
[[noreturn]] inline void keeper(const Place& place, Shared& shared) {
    auto space = place.open();
    Proxies proxies{Served{space, 1, 65536, {}}};
    Listener listener{"127.0.0.1", u16(shared.port.load()), key(), [&](std::unique_ptr<Wire>& wire, const Hello& hello) { serve_process(proxies, wire, hello); }};
    shared.port = listener.port();
    for (;;) {
        if (shared.arm == 1) {
            step_limit = shared.kill_at;
            shared.arm = 2;
        }
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

inline Peer peer_of(const Header& header, const Shared& shared) {
    Peer peer;
    peer.host = "127.0.0.1";
    peer.port = u16(shared.port.load());
    peer.key = key();
    peer.hello.space = "test";
    peer.hello.head.hosts = 2;
    peer.hello.head.host = 1;
    peer.hello.head.base = header.base;
    peer.hello.head.reserve = header.reserve;
    return peer;
}

inline void await(const std::function<bool()>& condition) {
    const u64 start = now_ns();
    while (!condition()) {
        if (now_ns() - start > 60'000'000'000) failed(__FILE__, __LINE__, "it did not come to be");
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
}

inline Held new_array(Space& space, u64 nbytes, u8 kind) {
    Spec spec;
    spec.nbytes = nbytes;
    spec.shape = {nbytes};
    spec.kind = kind;
    spec.name = "it";
    Held held = space.make(spec, true);
    space.hand_out(held);
    return held;
}

// Two keepers, one after the other, and what else is begun before anybody has a thread.
class Keepers {
public:
    Keepers(const Place& place, Shared& shared) : shared_(shared), first_(start([&] { keeper(place, shared); })), second_(start([&] {
        await([&] { return shared.follow == 1; });
        keeper(place, shared);
    })) {
        shared.first = first_;
        await([&] { return shared.port != 0; });
    }
    // The second begins when the first was killed. True: it was.
    bool watch(const std::function<bool()>& over) {
        bool died = false;
        await([&] {
            int status = 0;
            if (!died && ::waitpid(first_, &status, WNOHANG) == first_) {
                CHECK(killed(status));
                died = true;
                shared_.follow = 1;
            }
            return over();
        });
        for (pid_t process : {first_, second_}) {
            if (process == first_ && died) continue;
            ::kill(process, SIGKILL);
            finish(process);
        }
        return died;
    }

private:
    Shared& shared_;
    const pid_t first_, second_;
};

inline bool ended(pid_t process) {
    siginfo_t found{};
    ::waitid(P_PID, id_t(process), &found, WEXITED | WNOHANG | WNOWAIT);
    return found.si_pid != 0;
}

inline Shared& share() {
    void* at = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return *static_cast<Shared*>(at);
}

}  // namespace osf::test

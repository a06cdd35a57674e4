// Hosts for the native tests: each is a directory with its part of one space, a keeper process, and processes that attach to it.
// All on loopback; what makes them hosts is that they share nothing but their wires.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <thread>

#include "coherence/host_client.hpp"
#include "tests/check.hpp"
#include "coherence/host_keeper.hpp"

namespace osf::test {

inline u16 free_port() {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    socklen_t size = sizeof address;
    getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
    close(fd);
    return ntohs(address.sin_port);
}

inline int exit_code(pid_t child) {
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

struct Shared {               // what the test's processes tell one another outside of the space
    std::atomic<u64> words[64];
};

class Rack {
public:
    explicit Rack(u32 hosts, u32 unit = 64 * KIB, u64 bytes = 16 * MIB) : unit_(unit), owner_(getpid()), keepers_(hosts, -1) {
        std::string pattern = "/dev/shm/osf-hosts-XXXXXX";
        CHECK(mkdtemp(pattern.data()) != nullptr);
        top_ = pattern;
        for (u32 host = 0; host < hosts; host++) names.push_back("127.0.0.1:" + std::to_string(free_port()));
        reserve_ = Layout::smallest_reserve();
        for (u32 host = 0; host < hosts; host++) {
            CHECK(mkdir(root(host).c_str(), 0700) == 0);
            make_part(host, bytes);
        }
        shared = static_cast<Shared*>(mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
        for (u32 host = 0; host < hosts; host++) start_keeper(host);
        for (u32 host = 0; host < hosts; host++) CHECK(exit_code(on(host, [](const Member&) { return 0; })) == 0);  // each keeper has its part open
    }
    ~Rack() {
        if (getpid() != owner_) return;
        for (u32 host = 0; host < names.size(); host++) kill_keeper(host);
        std::string command = "rm -rf " + top_;
        CHECK(system(command.c_str()) == 0);
        munmap(shared, sizeof(Shared));
    }

    std::string root(u32 host) const { return top_ + "/" + std::to_string(host); }
    std::string directory(u32 host) const { return root(host) + "/test@" + names[host]; }

    void make_part(u32 host, u64 bytes) {
        CHECK(mkdir(directory(host).c_str(), 0700) == 0);
        CreateOptions options;
        options.directory = directory(host);
        options.name = "test";
        options.boot_id = "boot";
        options.bytes = bytes;
        options.base = BASE + host * reserve_;
        options.reserve = reserve_;
        Space::create(options);
    }
    void start_keeper(u32 host) {
        keepers_[host] = fork();
        if (keepers_[host]) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!std::getenv("OPENSHELF_TEST_LOG")) {
            int null = open("/dev/null", O_WRONLY);
            dup2(null, STDERR_FILENO);
        }
        KeeperOptions options;
        options.root = root(host);
        options.roster = std::make_shared<Roster>(names);
        options.self = host;
        options.key = {};
        options.boot_id = "boot";
        try {
            keeper_run(options);
        } catch (const Error& error) { std::fprintf(stderr, "keeper %u: %s\n", host, error.what()); }
        _exit(0);
    }
    void kill_keeper(u32 host) {
        if (keepers_[host] <= 0) return;
        kill(keepers_[host], SIGKILL);
        waitpid(keepers_[host], nullptr, 0);
        keepers_[host] = -1;
    }

    struct Member {
        std::shared_ptr<Space> space;
        std::shared_ptr<Attachment> attachment;
    };
    // This process becomes one of the host's.
    Member join(u32 host) const {
        Attachment::Options options;
        options.socket = root(host) + "/keeper@" + names[host] + ".sock";
        options.hosts = names;
        options.self = host;
        options.unit = unit_;
        Member member;
        member.space = Space::open(directory(host), false, "boot");
        for (int tries = 0; !member.attachment; tries++) {
            try {
                member.attachment = attach(member.space, options);
            } catch (const Error& error) {
                if (tries > 400) throw;
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
            }
        }
        return member;
    }
    // The first bytes of the host's segment. Nothing is allocated by name: the tests use the addresses as they are.
    u64* words(u32 host, u64 unit = 0) const { return reinterpret_cast<u64*>(BASE + host * reserve_ + Layout(reserve_).data_at + unit * unit_); }

    // A process of the host; the function's result is its exit code.
    pid_t on(u32 host, const std::function<int(const Member&)>& work) const {
        pid_t child = fork();
        if (child) return child;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(broken_rule.load() == Rule::all ? 60 : 5);
        int result = 99;
        try {
            Member member = join(host);
            result = work(member);
        } catch (const std::exception& error) { std::fprintf(stderr, "process of host %u: %s\n", host, error.what()); }
        _exit(result);
    }
    void meet(u32 word, u64 parties) const {  // outside of the space, so that it orders nothing there
        shared->words[word]++;
        while (shared->words[word] < parties) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }

    std::vector<std::string> names;
    Shared* shared = nullptr;

private:
    u32 unit_;
    pid_t owner_;
    std::string top_;
    u64 reserve_ = 0;
    std::vector<pid_t> keepers_;
};

inline u64 peek(const u64* word) { return std::atomic_ref<u64>(*const_cast<u64*>(word)).load(); }
inline void poke(u64* word, u64 value) { std::atomic_ref<u64>(*word).store(value); }
inline u64 add(u64* word, u64 value) { return std::atomic_ref<u64>(*word).fetch_add(value); }
}  // namespace osf::test

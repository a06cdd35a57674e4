// Fork: what a process holds on other hosts its child holds too, from before fork() returns.
//
// In the parent, before the fork, each host where it holds something is called as the child will call it: by a connection of the child's
// own, under a uuid of its own, on which the home copies the parent's pins. The child inherits the open socket and the
// parent closes its copy. So the kernel vouches for the child: the home sees one connection that lasts as long as the
// child does, whoever is killed, stopped or slow in between, and nobody waits for anybody.
//
// A home that cannot be reached at that moment is lost to the child: touching its bytes ends the child, as it would if the host were
// gone, because nobody keeps them for it.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <set>

#include "base/forks.hpp"
#include "rpc/remote.hpp"

namespace osf::rpc {

constexpr u64 FORK_MS = 2500;                  // after so long fork() goes on without the hosts that did not answer

// What fork handlers look at. Never destroyed: connections may outlive static objects.
static struct Inherited {
    std::mutex remotes_mutex;                  // held over a fork: one at a time
    std::set<Remote*> remotes;
    std::atomic<u64> forks{1};
}& inherited = *new Inherited;

u64 forks() { return inherited.forks.load(std::memory_order_relaxed); }

void Remote::handle_forks() {
    auto prepare = [] {
        inherited.remotes_mutex.lock();
        const u64 give_up_at = now_ns() + FORK_MS * 1'000'000;
        for (Remote* remote : inherited.remotes) remote->fork_prepare(give_up_at);
        lock_own_fds();
    };
    auto parent = [] {
        unlock_own_fds();
        for (Remote* remote : inherited.remotes) remote->fork_parent();
        inherited.remotes_mutex.unlock();
    };
    auto child = [] {
        close_inherited_fds();
        inherited.forks++;
        unlock_own_fds();
        for (Remote* remote : inherited.remotes) remote->fork_child();
        inherited.remotes_mutex.unlock();
    };
    keep_crypto_over_forks();  // first: so it is shut last, after we have made connections for the child
    static int once = pthread_atfork(prepare, parent, child);
    (void)once;
}

void Remote::know(bool here) {
    std::lock_guard guard(inherited.remotes_mutex);
    if (here) inherited.remotes.insert(this);
    else inherited.remotes.erase(this);
}

// The connection by which the child is known to the home.
void Remote::announce(Heir& heir, int budget_ms) {
    if (::getrandom(heir.uuid.data(), heir.uuid.size(), 0) != ssize_t(heir.uuid.size())) fail_os("getrandom", errno);
    const u64 start = now_ns();
    heir.connection = std::make_unique<Connection>(peer_, heir.uuid, std::min(reach_.budget_ms(), budget_ms));
    reach_.good(now_ns() - start);
    heir.connection->shared = true;
    close_in_children(heir.connection->wire->fd(), false);
}

// With the line locked, so that what the child's memory says is what it gets.
void Remote::bequeath(Line& line, const WelcomeHead& here, Heir& heir) {
    const WelcomeHead& there = heir.connection->welcome;
    if (there.incarnation != here.incarnation) throw HostLost(peer_.label(), "it was restarted");
    std::vector<u64> numbers;
    for (const auto& [number, kept] : line.pins)
        if (kept.incarnation == here.incarnation && kept.member == here.member) numbers.push_back(number);
    std::vector<u32> indices;
    Ask what = ask(Call::inherit);
    what.out.add(line.uuid).add(u64(numbers.size()));
    what.parts = {reinterpret_cast<const char*>(numbers.data()), 8 * numbers.size()};
    what.page = [&](In in) { while (in.more()) indices.push_back(in.get<u32>()); };
    send(*heir.connection, what);
    Answer answer = finish(*heir.connection, what);
    if (!answer.good) throw_error(In(answer.payload));
    if (indices.size() != numbers.size()) throw Error(Code::refused, "the host " + peer_.label() + " did not copy all pins");
    for (size_t at = 0; at < numbers.size(); at++) {
        const Line::Kept& kept = line.pins.at(numbers[at]);
        heir.pins[numbers[at]] = {there.incarnation, kept.record, there.member, indices[at], kept.viewed};
    }
}

void Remote::fork_prepare(u64 give_up_at) {
    Line* own = line_.load();
    if (!own || own->fork != forks() || closed_) return;
    auto heir = std::make_unique<Heir>();
    for (;;) {
        own->mutex.lock();
        forking_ = own;
        if (own->pins.empty()) return;
        own->mutex.unlock();
        const u64 start = now_ns();
        try {
            const WelcomeHead here = welcome();    // the home may have to learn first what this process holds
            if (start > give_up_at) throw HostLost(peer_.label(), "other hosts took all the time there was");
            announce(*heir, 1 + int((give_up_at - start) / 1'000'000));
            own->mutex.lock();
            try {
                bequeath(*own, here, *heir);
                break;
            } catch (...) {
                own->mutex.unlock();
                throw;
            }
        } catch (const std::exception& error) {
            heir->connection.reset();
            const auto* known = dynamic_cast<const Error*>(&error);
            if (known && known->code == Code::host_lost) reach_.failed(start);
            const bool passing = known && (known->code == Code::host_lost || known->code == Code::bad_input);  // the latter: a new keeper
            if (!passing || reach_.lost() || now_ns() > give_up_at) {
                heir->why = error.what();
                own->mutex.lock();
                break;
            }
            ::usleep(5'000);
        }
    }
    heir_ = std::move(heir);
}

void Remote::fork_parent() {
    heir_.reset();
    if (forking_) forking_->mutex.unlock();
    forking_ = nullptr;
}

// The parent's line is left as it is: its locks may be held by threads that are not here.
void Remote::fork_child() {
    forking_ = nullptr;
    if (stale || !left_behind_.empty()) {          // the child's segments were mapped anew
        mapped = true;
        forbid(stale);
    }
    if (!heir_) return;
    Heir& heir = *heir_;
    try {
        if (!heir.connection) forbid();
        auto fresh = new_line();
        if (heir.connection) {
            fresh->uuid = heir.uuid;
            fresh->pins = std::move(heir.pins);
            heir.connection->shared = false;
            close_in_children(heir.connection->wire->fd(), true);
            fresh->idle.push_back(std::move(heir.connection));
        } else {
            left_behind_ = "the host " + peer_.label() + " did not answer when this process was forked: " + heir.why;
        }
        Line& own = *fresh;
        line_ = fresh.release();
        if (!own.pins.empty()) own.transfers->watch();
        heir_.reset();
    } catch (const std::exception&) {}  // no memory, descriptors or threads: as long as heir_ has the connection, the pins stay
}

// A mapping without a byte behind it: a touch is SIGBUS, which says what happened (coherence/host_client.cpp).
void Remote::forbid(bool because_stale) {
    if (!mapped.exchange(false)) return;
    stale = because_stale;
    const HelloHead& head = peer_.hello.head;
    void* at = reinterpret_cast<void*>(head.base + peer_.number * head.reserve);
    int nothing = ::memfd_create("openshelf-lost", MFD_CLOEXEC);
    if (nothing < 0 || ::mmap(at, head.reserve, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, nothing, 0) == MAP_FAILED)
        ::mmap(at, head.reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
    if (nothing >= 0) ::close(nothing);
}

}  // namespace osf::rpc

#include "stream/device.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>

#include "base/lock.hpp"

namespace osf::stream {

namespace {

constexpr u64 CHUNK = MIB;          // below what glibc copies past the caches: what was just loaded is about to be used
constexpr u64 HUGE_PAGE = 2 * MIB;
constexpr u64 TICK_NS = 100'000'000;

std::atomic<u64> forks_seen{0};

void need_own(u64 fork) {
    if (fork != fork_number())
        throw Error(Code::closed, "the device belongs to the process that this one was forked from; make one here");
}

}  // namespace

u64 fork_number() {
    static const int once = pthread_atfork(nullptr, nullptr, [] { forks_seen.fetch_add(1, std::memory_order_relaxed); });
    (void)once;
    return forks_seen.load(std::memory_order_relaxed);
}

DeviceArena::DeviceArena(u64 bytes) : bytes_(bytes), fork_(fork_number()) {
    const u64 whole = align_up(bytes, PAGE) + HUGE_PAGE;  // so that the data can begin where a huge page does
    mapping_ = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping_ == MAP_FAILED) throw Error(Code::no_room, "the system has no " + std::to_string(bytes) + " bytes for a device's arena");
    data_ = reinterpret_cast<char*>(align_up(reinterpret_cast<u64>(mapping_), HUGE_PAGE));
    ::madvise(data_, align_up(bytes, PAGE), MADV_HUGEPAGE);  // a wish: not every kernel has them
    ::madvise(mapping_, whole, MADV_DONTFORK);
    int error = ::madvise(data_, align_up(bytes, PAGE), MADV_POPULATE_WRITE) < 0 ? errno : 0;
    if (error == EINVAL) std::memset(data_, 0, bytes);      // a kernel before 5.14
    else if (error) {
        ::munmap(mapping_, whole);
        throw Error(Code::no_room, "the system gave no memory for a device's arena of " + std::to_string(bytes) + " bytes: " + std::strerror(error));
    }
}

DeviceArena::~DeviceArena() {
    if (fork_ == fork_number()) ::munmap(mapping_, align_up(bytes_, PAGE) + HUGE_PAGE);  // in a child others may be mapped there
}

Ticket::Ticket(std::shared_ptr<Bell> bell) : bell_(std::move(bell)), fork_(fork_number()) {}

bool Ticket::wait(long timeout_ns, const std::function<bool()>& interrupted) {
    if (done()) return true;
    need_own(fork_);
    const u64 start = now_ns();
    std::unique_lock lock(bell_->mutex);
    while (!done()) {
        u64 slice = TICK_NS;
        if (timeout_ns >= 0) {
            const u64 gone = now_ns() - start;
            if (gone >= u64(timeout_ns)) return false;
            slice = std::min(slice, u64(timeout_ns) - gone);
        }
        bell_->rung.wait_for(lock, std::chrono::nanoseconds(slice), [&] { return done(); });
        if (done() || !interrupted) continue;
        lock.unlock();                              // it takes the interpreter's lock, whose holder may want this one
        if (interrupted()) return false;
        lock.lock();
    }
    return true;
}

CopyQueue::CopyQueue() : state_(new State), fork_(fork_number()) {
    // Signals are for the program's own threads.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        state_->thread = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        delete state_;
        fail_os("starting a thread for copies", error.code().value());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CopyQueue::~CopyQueue() {
    if (fork_ != fork_number()) return;
    close();
    delete state_;
}

std::shared_ptr<Ticket> CopyQueue::add(Work work) {
    need_own(fork_);
    work.ticket = std::shared_ptr<Ticket>(new Ticket(state_->bell));
    auto ticket = work.ticket;
    {
        std::lock_guard guard(state_->mutex);
        if (state_->closing) throw Error(Code::closed, "the device was closed; make another");
        state_->works.push_back(std::move(work));
    }
    state_->more.notify_one();
    return ticket;
}

std::shared_ptr<Ticket> CopyQueue::copy(void* to, const void* from, u64 bytes) {
    const auto target = reinterpret_cast<u64>(to), source = reinterpret_cast<u64>(from);
    if (bytes && target < source + bytes && source < target + bytes)
        throw Error(Code::bad_input, "a copy of " + std::to_string(bytes) + " bytes between ranges that overlap; copy through a third one");
    return add({to, from, bytes, nullptr, nullptr});
}

std::shared_ptr<Ticket> CopyQueue::mark() { return add({nullptr, nullptr, 0, nullptr, nullptr}); }

void CopyQueue::after(std::shared_ptr<Ticket> other) {
    if (!other->done()) add({nullptr, nullptr, 0, std::move(other), nullptr});
}

void CopyQueue::close() {
    if (fork_ != fork_number()) return;
    std::thread thread;
    {
        std::lock_guard guard(state_->mutex);
        state_->closing = true;
        thread = std::move(state_->thread);
    }
    state_->more.notify_one();
    if (thread.joinable()) thread.join();
}

void CopyQueue::run() {
    pthread_setname_np(pthread_self(), "osf-copies");
    State& state = *state_;
    for (;;) {
        Work work;
        {
            std::unique_lock lock(state.mutex);
            state.more.wait(lock, [&] { return state.closing || !state.works.empty(); });
            if (state.works.empty()) return;
            work = std::move(state.works.front());
            state.works.pop_front();
        }
        if (work.first) work.first->wait(-1);
        for (u64 at = 0; at < work.bytes; at += CHUNK)
            std::memcpy(static_cast<char*>(work.to) + at, static_cast<const char*>(work.from) + at, std::min(CHUNK, work.bytes - at));
        {
            std::lock_guard guard(state.bell->mutex);
            work.ticket->done_.store(true, std::memory_order_release);
        }
        state.bell->rung.notify_all();
    }
}

}  // namespace osf::stream

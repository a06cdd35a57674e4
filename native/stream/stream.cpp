#include "stream/stream.hpp"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "base/checksum.hpp"
#include "stream/device.hpp"
#include "base/lock.hpp"

namespace osf::stream {

static_assert(Streamer::CHUNK % PIECE == 0, "a chunk has whole pieces");

namespace {

constexpr u64 SPIN_NS = 50'000;      // a switch of threads takes about as long as the end of a chunk is away
constexpr u64 TICK_NS = 100'000'000;

void need_own(u64 fork) {
    if (fork != fork_number())
        throw Error(Code::closed, "this queue of transfers belongs to the process that this one was forked from; load the plan here");
}

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

std::string range_text(u64 bytes, u64 at) { return std::to_string(bytes) + " bytes at " + std::to_string(at); }

}  // namespace

// What the workers share. Tickets hold it too: they may be waited for when the streamer is gone. In a child it is left behind as it is.
struct StreamState {
    using Ticket = std::shared_ptr<StreamTicket>;
    struct Lane {
        std::deque<Ticket> requests;               // the first may have been taken in part
        std::condition_variable more;
        std::vector<std::thread> workers;
        LaneCounts counts;
        u64 under_way = 0, busy_since = 0;
    };
    struct Chunk { Ticket ticket; u64 at = 0, bytes = 0; };

    mutable std::mutex mutex;
    std::condition_variable rung;                  // a ticket is done
    u32 sleepers = 0;
    std::array<Lane, 4> lanes;
    bool closing = false;

    void work(Lane& lane);
    bool next(Lane& lane, Chunk& chunk);
    static ssize_t move(const Chunk& chunk);
    void ended(Lane& lane, const Chunk& chunk, ssize_t moved, u64 sum);
    void finish(Lane& lane, StreamTicket& ticket);
    static StreamTicket::Failure failure(const Chunk& chunk, ssize_t moved);
};

bool StreamTicket::wait(long timeout_ns, const std::function<bool()>& interrupted) {
    if (!done()) {
        need_own(fork_);
        const u64 start = now_ns(), spin = timeout_ns < 0 ? SPIN_NS : std::min(SPIN_NS, u64(timeout_ns));
        while (!done() && now_ns() - start < spin)
            for (int pause = 0; pause < 32 && !done(); pause++) relax();
        if (!done() && !sleep(timeout_ns < 0 ? -1 : timeout_ns - long(spin), interrupted)) return false;
    }
    if (error_) throw Error(error_->code, error_->what);
    return true;
}

bool StreamTicket::sleep(long timeout_ns, const std::function<bool()>& interrupted) {
    const u64 start = now_ns();
    std::unique_lock lock(state_->mutex);
    while (!done()) {
        u64 slice = TICK_NS;
        if (timeout_ns >= 0) {
            const u64 gone = now_ns() - start;
            if (gone >= u64(timeout_ns)) return false;
            slice = std::min(slice, u64(timeout_ns) - gone);
        }
        state_->sleepers++;
        state_->rung.wait_for(lock, std::chrono::nanoseconds(slice), [&] { return done(); });
        state_->sleepers--;
        if (done() || !interrupted) continue;
        lock.unlock();                             // it takes the interpreter's lock, whose holder may want this one
        if (interrupted()) return false;
        lock.lock();
    }
    return true;
}

Streamer::Streamer(char* arena, u64 bytes, u32 depth) : state_(new StreamState), arena_(arena), bytes_(bytes), fork_(fork_number()) {
    if (reinterpret_cast<u64>(arena) % SECTOR)
        throw Error(Code::bad_input, "an arena for transfers begins at a multiple of " + std::to_string(SECTOR) + ", got an address that does not");
    if (!depth || depth > 64) throw Error(Code::bad_input, "the depth of a queue of transfers is 1 to 64, got " + std::to_string(depth));
    sigset_t all, before;                          // signals are for the program's own threads
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        for (u32 lane = 0; lane < 4; lane++) {
            // Two copy about as fast as memory allows; more would take the cores from those who compute.
            const u32 workers = lane < StreamTicket::dram_read ? depth : std::min(depth, 2u);
            for (u32 at = 0; at < workers; at++)
                state_->lanes[lane].workers.emplace_back([state = state_.get(), lane] { state->work(state->lanes[lane]); });
        }
    } catch (const std::system_error& error) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        close();
        fail_os("starting a thread for transfers", error.code().value());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Streamer::~Streamer() {
    // In a child the threads cannot be joined, and destroying them would end it: their state is never destroyed there.
    if (fork_ != fork_number()) new std::shared_ptr<StreamState>(state_);
    else close();
}

void Streamer::close() {
    if (fork_ != fork_number()) return;
    std::vector<std::thread> workers;
    {
        std::lock_guard guard(state_->mutex);
        state_->closing = true;
        for (auto& lane : state_->lanes) {
            std::move(lane.workers.begin(), lane.workers.end(), std::back_inserter(workers));
            lane.workers.clear();
            lane.more.notify_all();
        }
    }
    for (auto& worker : workers) worker.join();
}

Streamer::Ticket Streamer::read(Home from, u64 offset, u64 bytes, std::string name, Check check, std::vector<Ticket> after) {
    return add(false, std::move(from), offset, bytes, std::move(name), check, std::move(after));
}
Streamer::Ticket Streamer::write(Home to, u64 offset, u64 bytes, std::string name, Check check, std::vector<Ticket> after) {
    return add(true, std::move(to), offset, bytes, std::move(name), check, std::move(after));
}

Streamer::Ticket Streamer::add(bool write, Home home, u64 offset, u64 bytes, std::string name, Check check, std::vector<Ticket> after) {
    need_own(fork_);
    const u64 whole = home.file ? align_up(bytes, SECTOR) : bytes;
    if (offset % SECTOR || (home.file && home.at % SECTOR))
        throw Error(Code::bad_input, "'" + name + "': offsets in an arena and places in a file are multiples of " + std::to_string(SECTOR) + ", got " +
                                         std::to_string(offset) + " and " + std::to_string(home.at));
    if (!bytes || bytes > bytes_ || whole > bytes_ || offset > bytes_ - whole)
        throw Error(Code::bad_address, "'" + name + "': " + range_text(whole, offset) + " are not in the arena of " + std::to_string(bytes_) + " bytes");
    if (!home.file && check.verify != Verify::nothing)
        throw Error(Code::bad_input, "'" + name + "': checksums are of what is in a file; this is in memory");
    auto ticket = std::make_shared<StreamTicket>();
    ticket->state_ = state_;
    ticket->fork_ = fork_;
    ticket->lane_ = StreamTicket::Lane((home.file ? 0 : 2) + write);
    ticket->home_ = std::move(home);
    ticket->name_ = std::move(name);
    ticket->memory_ = arena_ + offset;
    ticket->bytes_ = whole;
    ticket->check_ = check;
    for (auto& other : after) {
        if (other->state_ != state_) throw Error(Code::bad_input, "'" + ticket->name_ + "': after= takes tickets of the same queue");
        if (!other->done() || other->error_) ticket->after_.push_back(std::move(other));
    }
    auto& lane = state_->lanes[ticket->lane_];
    {
        std::lock_guard guard(state_->mutex);
        if (state_->closing) throw Error(Code::closed, "this queue of transfers was closed; load the plan again");
        lane.requests.push_back(ticket);
    }
    whole > CHUNK ? lane.more.notify_all() : lane.more.notify_one();
    return ticket;
}

LaneCounts Streamer::counts(size_t lane) const {
    need_own(fork_);
    std::lock_guard guard(state_->mutex);
    const auto& of = state_->lanes.at(lane);
    LaneCounts counts = of.counts;
    if (of.under_way) counts.busy_ns += now_ns() - of.busy_since;
    return counts;
}

void StreamState::work(Lane& lane) {
    pthread_setname_np(pthread_self(), "osf-stream");
    Chunk chunk;
    while (next(lane, chunk)) {
        const ssize_t moved = move(chunk);
        const StreamTicket& ticket = *chunk.ticket;
        u64 sum = 0;
        if (moved == ssize_t(chunk.bytes) && ticket.check_.verify != Verify::nothing)
            sum = check_pieces(ticket.memory_ + chunk.at, chunk.bytes, ticket.check_.first + chunk.at / PIECE);
        ended(lane, chunk, moved, sum);
        chunk.ticket.reset();
    }
}

// The next chunk of the lane, once there is one that may begin. False: there never will be.
bool StreamState::next(Lane& lane, Chunk& chunk) {
    std::unique_lock lock(mutex);
    for (;;) {
        if (lane.requests.empty()) {
            if (closing) return false;
            lane.more.wait(lock);
            continue;
        }
        Ticket& first = lane.requests.front();
        auto waits = std::find_if(first->after_.begin(), first->after_.end(), [](const Ticket& other) { return !other->done(); });
        if (waits != first->after_.end()) {
            lane.more.wait(lock);
            continue;
        }
        for (const Ticket& other : first->after_)
            if (other->error_ && !first->error_)
                first->error_ = {other->error_->code, "'" + first->name_ + "' was not moved, because what had to be moved before it was not: " + other->error_->what};
        first->after_.clear();
        if (first->error_) {
            Ticket failed = std::move(first);      // of a failed one the rest is not begun
            lane.requests.pop_front();
            failed->taken_ = failed->bytes_;
            if (!failed->under_way_) finish(lane, *failed);
            continue;
        }
        chunk = {first, first->taken_, std::min(Streamer::CHUNK, first->bytes_ - first->taken_)};
        first->taken_ += chunk.bytes;
        first->under_way_++;
        if (first->taken_ == first->bytes_) lane.requests.pop_front();
        if (!lane.under_way++) lane.busy_since = now_ns();
        lane.counts.most = std::max(lane.counts.most, lane.under_way);
        return true;
    }
}

ssize_t StreamState::move(const Chunk& chunk) {
    const StreamTicket& ticket = *chunk.ticket;
    const u64 at = ticket.home_.at + chunk.at;
    char* memory = ticket.memory_ + chunk.at;
    switch (ticket.lane_) {
        case StreamTicket::flash_read: return ticket.home_.file->file->read(memory, chunk.bytes, at);
        case StreamTicket::flash_write: return ticket.home_.file->file->write(memory, chunk.bytes, at);
        case StreamTicket::dram_read: std::memcpy(memory, reinterpret_cast<const void*>(at), chunk.bytes); break;
        case StreamTicket::dram_write: std::memcpy(reinterpret_cast<void*>(at), memory, chunk.bytes); break;
    }
    return ssize_t(chunk.bytes);
}

void StreamState::ended(Lane& lane, const Chunk& chunk, ssize_t moved, u64 sum) {
    std::lock_guard guard(mutex);
    StreamTicket& ticket = *chunk.ticket;
    if (!--lane.under_way) lane.counts.busy_ns += now_ns() - lane.busy_since;
    ticket.under_way_--;
    ticket.sum_ += sum;
    if (moved == ssize_t(chunk.bytes)) lane.counts.bytes += chunk.bytes;
    else if (!ticket.error_) ticket.error_ = failure(chunk, moved);
    if (!ticket.under_way_ && ticket.taken_ == ticket.bytes_) finish(lane, ticket);
}

void StreamState::finish(Lane& lane, StreamTicket& ticket) {
    lane.counts.requests++;
    if (!ticket.error_ && ticket.check_.verify == Verify::compare && ticket.sum_ != ticket.check_.expected)
        ticket.error_ = {Code::corrupt, "'" + ticket.name_ + "', " + range_text(ticket.bytes_, ticket.home_.at) + " of " + ticket.home_.file->path +
                                            ", is not what was written there: its checksum differs. Remove the file, so that it is made anew"};
    ticket.home_.file.reset();
    ticket.done_.store(true, std::memory_order_release);
    if (sleepers) rung.notify_all();
    for (Lane& other : lanes)
        if (!other.requests.empty()) other.more.notify_all();  // the first there may have waited for this one
}

StreamTicket::Failure StreamState::failure(const Chunk& chunk, ssize_t moved) {
    const StreamTicket& ticket = *chunk.ticket;
    const std::string what = std::string(ticket.lane_ == StreamTicket::flash_read ? "reading" : "writing") + " '" + ticket.name_ + "', " +
                             range_text(chunk.bytes, ticket.home_.at + chunk.at) + " of " + ticket.home_.file->path;
    if (moved >= 0) return {Code::flash, what + ", ended after " + std::to_string(moved) + ": the file was truncated, or the disk is failing"};
    return {moved == -ENOSPC ? Code::no_room : Code::flash, what + ", failed: " + std::strerror(int(-moved)) + " (errno " + std::to_string(-moved) + ")"};
}

}  // namespace osf::stream

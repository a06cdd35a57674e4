#include "rpc/transfer.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/forks.hpp"
#include "rpc/remote.hpp"

namespace osf::rpc {

constexpr size_t AHEAD = 512 * KIB;                // sealed and not yet sent
constexpr u64 TOGETHER = 8;                        // requests that are worth a send of their own
constexpr u64 MS = 1'000'000;
constexpr u64 SPIN_NS = 50'000;
constexpr useconds_t RETRY_US = 20'000;
constexpr int BREAKS = 8;                          // of the connection, until a transfer that saw them all is given up

Transfer::Transfer(bool writes, std::vector<Range> of, std::vector<char*> at)
    : write(writes), ranges(std::move(of)), places(std::move(at)), fork(forks()) {}

bool Transfer::next(Cursor& cursor, char*& place, u64& bytes) const {
    while (cursor.range < ranges.size() && cursor.at == ranges[cursor.range].bytes) cursor = {cursor.range + 1, 0};
    if (cursor.range == ranges.size()) return false;
    place = places[cursor.range] + cursor.at;
    const u64 left = ranges[cursor.range].bytes - cursor.at;
    bytes = write ? part_bytes(left, cursor.range + 1 == ranges.size()) : std::min<u64>(BULK, left);
    return true;
}

Transfers::Transfers(std::function<std::unique_ptr<Connection>()> dial, std::function<bool()> holding, Reach& reach, std::string label)
    : dial_(std::move(dial)), holding_(std::move(holding)), reach_(reach), label_(std::move(label)) {
    for (int* fd : {&poke_, &wake_}) {
        *fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (*fd < 0) fail_os("eventfd", errno);
        close_in_children(*fd, true);
    }
}

Transfers::~Transfers() {
    stop();
    for (int fd : {poke_, wake_}) {
        close_own(fd);
    }
}

void Transfers::stop() {
    if (!stop_.exchange(true))
        for (int fd : {poke_, wake_}) ::eventfd_write(fd, 1);
    std::thread thread;
    {
        // Not before whoever drives is done: it may be opening a frame into memory that is somebody else's afterwards.
        std::unique_lock lock(mutex_);
        change_.wait(lock, [&] { return !driving_; });
        thread = std::move(thread_);
    }
    if (thread.joinable()) thread.join();
    fail_all("this process closed the space");
}

void Transfers::watch() {
    if (watching_.load(std::memory_order_relaxed) || watching_.exchange(true)) return;
    std::lock_guard guard(mutex_);
    if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { background(); });
}

void Transfers::submit(std::shared_ptr<Transfer> transfer) {
    Transfer::Cursor start;
    char* place;
    u64 bytes;
    if (!transfer->next(start, place, bytes)) {    // nothing to move
        transfer->done_ = true;
        return;
    }
    bool quiet, wake;
    {
        std::lock_guard guard(mutex_);
        if (stop_) throw Error(Code::closed, "the space was closed by this process");
        if (!thread_.joinable()) thread_ = std::thread([this] { background(); });
        quiet = idle();
        to_send_.push_back(std::move(transfer));
        unsent_++;
        quiet |= unsent_ >= TOGETHER;
        last_submit_ = now_ns();
        wake = std::exchange(cold_, false);
    }
    if (wake) ::eventfd_write(wake_, 1);
    if (!quiet) return;
    std::unique_lock sending(sending_, std::try_to_lock);
    if (!sending || !connection_ || reach_.lost()) return;  // who drives will send it
    try {
        pump();
        if (connection_->wire->queued()) ::eventfd_write(poke_, 1);
    } catch (const Error&) {}                      // who drives will see
}

// The home knows by its numbers what of a write it has done; not if it let go of this process meanwhile.
bool Transfers::begin(const std::shared_ptr<Transfer>& transfer) {
    Transfer& front = *transfer;
    const WelcomeHead& there = connection_->welcome;
    if (front.write && front.number_ && (front.incarnation_ != there.incarnation || front.member_ != there.member)) {
        front.error_ = lost(front, "it let go of this process while the connection was broken, and nobody knows whether the put was done");
        front.done_.store(true, std::memory_order_release);
        change_.notify_all();
        return false;
    }
    front.incarnation_ = there.incarnation;
    front.member_ = there.member;
    if (front.write && !front.number_) front.number_ = ++writes_;
    front.begun_ = true;
    front.id_ = connection_->next_id++;
    in_flight_.push_back(transfer);
    if (in_flight_.size() == 1) heard_ = now_ns();
    connection_->tell_epoch();
    const u64 head[] = {epoch_, front.number_};
    const std::span<const char> ranges(reinterpret_cast<const char*>(front.ranges.data()), front.ranges.size() * sizeof(Range));
    const std::span<const char> numbers(reinterpret_cast<const char*>(head), front.write ? sizeof head : 0);
    connection_->wire->queue(u16(frame_call + u16(front.write ? Call::write : Call::get)), front.id_, numbers, ranges);
    return true;
}

void Transfers::use(std::unique_ptr<Connection> fresh) {
    connection_ = std::move(fresh);
    epoch_++;
}

// With sending_ held.
void Transfers::pump() {
    Wire& wire = *connection_->wire;
    for (;;) {
        if (wire.queued() >= AHEAD && !wire.flush()) return;
        std::shared_ptr<Transfer> front;
        {
            std::lock_guard guard(mutex_);
            unsent_ = 0;
            if (to_send_.empty()) break;
            front = to_send_.front();
            if (!front->begun_ && !begin(front)) {
                to_send_.pop_front();
                continue;
            }
            // It stays in flight until it is answered, and that is after its last part.
            char* place;
            u64 bytes;
            if (!front->write || !front->next(front->sent_, place, bytes)) {
                to_send_.pop_front();
                continue;
            }
        }
        char* place;
        u64 bytes;
        front->next(front->sent_, place, bytes);
        wire.queue(frame_part, front->id_, {place, bytes});
        front->sent_.at += bytes;
    }
    wire.flush();
}

bool Transfers::receive() {
    Wire& wire = *connection_->wire;
    bool any = false;
    while (wire.peek() || (wire.fill() && (any = true))) {
        const FrameHead* head = wire.peek();
        if (!head) continue;
        any = true;
        heard_ = now_ns();
        if (head->type == frame_alive) {
            wire.open();
            continue;
        }
        std::shared_ptr<Transfer> front;
        {
            std::lock_guard guard(mutex_);
            if (!in_flight_.empty()) front = in_flight_.front();
        }
        if (!front || head->id != front->id_) throw Error(Code::refused, "an answer to something else");
        char* place = nullptr;
        u64 bytes = 0;
        if (head->type == frame_error) {
            std::string payload = wire.open();
            try {
                throw_error(In(payload));
            } catch (const Error&) {
                finish(front, std::current_exception());
            }
        } else if (front->write && head->type == frame_reply) {
            wire.open();
            finish(front, nullptr);
        } else if (!front->write && head->type == frame_part && front->next(front->received_, place, bytes) && head->bytes == bytes) {
            wire.open({place, bytes});
            front->received_.at += bytes;
            if (!front->next(front->received_, place, bytes)) finish(front, nullptr);
        } else {
            throw Error(Code::refused, "an answer of type " + std::to_string(head->type) + " and " + std::to_string(head->bytes) + " bytes was not expected");
        }
    }
    return any;
}

// It is the first in flight.
void Transfers::finish(std::shared_ptr<Transfer> transfer, std::exception_ptr error) {
    std::lock_guard guard(mutex_);
    in_flight_.pop_front();
    if (!to_send_.empty() && to_send_.front() == transfer) to_send_.pop_front();
    transfer->error_ = std::move(error);
    transfer->done_.store(true, std::memory_order_release);
    if (waiters_) change_.notify_all();
}

void Transfers::nap(bool sending) {
    Wire& wire = *connection_->wire;
    const u64 start = now_ns();
    while (lucky_ && now_ns() - start < SPIN_NS) {
        if (wire.fill()) return;
        sched_yield();                             // whom we wait for may be waiting for this very processor
    }
    pollfd ready[] = {{wire.fd(), short(POLLIN | (sending ? POLLOUT : 0)), 0}, {poke_, POLLIN, 0}};
    ::poll(ready, 2, 100);
    eventfd_t count;
    if (ready[1].revents) ::eventfd_read(poke_, &count);
    lucky_ = now_ns() - start < 3 * SPIN_NS;
}

void Transfers::step() {
    if (connection_ && reach_.lost()) {            // found so by others: what begins now does not wait for the same silence
        std::scoped_lock both(sending_, mutex_);
        if (in_flight_.empty()) connection_.reset();
    }
    if (!connection_) {
        auto fresh = dial_();
        std::scoped_lock both(sending_, mutex_);
        use(std::move(fresh));
        heard_ = now_ns();
    }
    bool sending;
    {
        std::lock_guard guard(sending_);
        pump();
        sending = connection_->wire->queued() > 0;
    }
    if (receive()) return;
    nap(sending);
    if (now_ns() - heard_ < SILENCE_MS * MS) return;
    std::unique_lock lock(mutex_);
    if (in_flight_.empty()) return;
    lock.unlock();
    throw HostLost(label_, "it was silent for " + std::to_string(SILENCE_MS) + " ms");
}

// The only one: driving_ is set. Sorts out what goes wrong, so that it never throws.
void Transfers::drive(const std::function<bool()>& enough) {
    while (!enough()) {
        try {
            step();
        } catch (const std::exception& why) {
            // A connection that broke is made again; a host that was silent, or cannot be reached for long, is lost.
            const bool connected = connection_ != nullptr, silent = connected && now_ns() - heard_ >= SILENCE_MS * MS;
            {
                std::scoped_lock both(sending_, mutex_);
                if (silent || (connected && !in_flight_.empty() && dynamic_cast<const Silent*>(&why))) reach_.failed(heard_);
                connection_.reset();
            }
            const auto* known = dynamic_cast<const Error*>(&why);
            if (connected && !silent) start_again(why);
            else if (silent || reach_.lost() || !known || known->code != Code::host_lost) fail_all(why.what());
            else ::usleep(RETRY_US);
        }
    }
}

std::exception_ptr Transfers::lost(const Transfer& transfer, const std::string& why) const {
    const Range& range = transfer.ranges[0];
    char text[80];
    std::snprintf(text, sizeof text, "; wanted were %llu bytes at %#llx", (unsigned long long)range.bytes, (unsigned long long)range.address);
    return std::make_exception_ptr(HostLost(label_, "the host " + label_ + " is lost: " + why + text, range.address, range.bytes));
}

// What was under way is sent again, in its order; what broke the connection too often is given up.
void Transfers::start_again(const std::exception& why) {
    std::lock_guard guard(mutex_);
    if (!to_send_.empty() && to_send_.front()->begun_) to_send_.pop_front();  // it is in flight as well
    for (auto at = in_flight_.rbegin(); at != in_flight_.rend(); ++at) {
        Transfer& transfer = **at;
        if (++transfer.broke_ > BREAKS) {
            transfer.error_ = lost(transfer, why.what());
            transfer.done_.store(true, std::memory_order_release);
            continue;
        }
        transfer.sent_ = transfer.received_ = {};
        transfer.begun_ = false;
        to_send_.push_front(*at);
    }
    in_flight_.clear();
    change_.notify_all();
}

void Transfers::fail_all(const std::string& why) {
    std::lock_guard guard(mutex_);
    for (auto* queue : {&in_flight_, &to_send_}) {
        for (auto& transfer : *queue) {
            if (transfer->done()) continue;
            transfer->error_ = lost(*transfer, why);
            transfer->done_.store(true, std::memory_order_release);
        }
        queue->clear();
    }
    change_.notify_all();
}

bool Transfers::wait(Transfer& transfer, long timeout_ns, const std::function<bool()>& interrupted) {
    const u64 start = now_ns();
    u64 asked = start;
    auto enough = [&] {
        if (transfer.done() || stop_) return true;
        const u64 now = now_ns();
        if (timeout_ns >= 0 && now - start >= u64(timeout_ns)) return true;
        if (now - asked < 100 * MS) return false;
        asked = now;
        return interrupted && interrupted();
    };
    std::unique_lock lock(mutex_);
    waiters_++;
    bool over = false;
    while (!transfer.done() && !over && !stop_) {
        if (!driving_) {
            driving_ = true;
            lock.unlock();
            drive(enough);
            lock.lock();
            driving_ = false;
            over = !transfer.done();
            change_.notify_all();                  // another one that waits may drive
        } else {
            u64 left = timeout_ns < 0 ? 100 * MS : std::min(100 * MS, u64(timeout_ns) - std::min(u64(timeout_ns), now_ns() - start));
            change_.wait_for(lock, std::chrono::nanoseconds(left));
            lock.unlock();
            over = enough();
            lock.lock();
        }
    }
    waiters_--;
    if (!transfer.done() && stop_) throw Error(Code::closed, "the space was closed by this process");
    return transfer.done();
}

// While there is traffic it looks once a millisecond whether transfers are left to themselves; else it rests.
void Transfers::background() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
        if (idle() && !driving_ && now_ns() - last_submit_ > 100 * MS) {
            rest(lock);
            continue;
        }
        change_.wait_for(lock, std::chrono::milliseconds(1));
        if (stop_ || driving_ || idle()) continue;
        driving_ = true;
        lock.unlock();
        drive([&] {
            std::lock_guard guard(mutex_);
            return stop_ || idle();
        });
        lock.lock();
        driving_ = false;
        change_.notify_all();
    }
}

// Sleeps until there is work, or until the connection ends; then it is made anew, if that matters. Dialing may take long, so it is
// not done as the driver: a transfer that comes meanwhile has its own chance.
void Transfers::rest(std::unique_lock<std::mutex>& lock) {
    cold_ = true;
    const int fd = connection_ ? connection_->wire->fd() : -1;
    lock.unlock();
    const bool missing = fd < 0 && watching_ && holding_();
    if (missing) {
        if (!lost_since_) lost_since_ = now_ns();
        try {
            auto fresh = dial_();
            std::scoped_lock both(sending_, mutex_);
            if (!connection_ && !driving_) use(std::move(fresh));
            lost_since_ = 0;
        } catch (const std::exception&) {}  // later, then
    }
    // Without a connection it looks now and then whether one is wanted by now, and can be had.
    const int patience = fd >= 0 ? -1 : !missing ? 1000 : !lost_since_ ? 0 : now_ns() - lost_since_ < 10'000 * MS ? 250 : 1000;
    pollfd ready[] = {{wake_, POLLIN, 0}, {fd, POLLIN | POLLRDHUP, 0}};
    ::poll(ready, 2, patience);
    eventfd_t count;
    if (ready[0].revents) ::eventfd_read(wake_, &count);
    lock.lock();
    cold_ = false;
    if (!ready[1].revents || stop_ || driving_ || !idle()) return;
    driving_ = true;  // nothing is expected: it is the end of the connection, or a sign of life
    lock.unlock();
    try {
        receive();
    } catch (const std::exception& why) {
        {
            std::scoped_lock both(sending_, mutex_);
            connection_.reset();
        }
        start_again(why);  // something may have been sent on it meanwhile
    }
    lock.lock();
    driving_ = false;
    change_.notify_all();
}

}  // namespace osf::rpc

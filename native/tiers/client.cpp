#include "tiers/client.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include "base/trusted.hpp"

namespace osf::tiers {

constexpr u64 PART = 16 * MIB;                // of a copy that is made in parts

[[noreturn]] static void throw_answer(const std::string& text) {
    static const std::map<std::string, Code> codes{{"bad_address", Code::bad_address}, {"no_room", Code::no_room}, {"not_permitted", Code::not_permitted},
                                                   {"corrupt", Code::corrupt}, {"flash", Code::flash}, {"cancelled", Code::cancelled}, {"bad_input", Code::bad_input},
                                                   {"closed", Code::closed}};
    const size_t colon = text.find(':');
    auto found = codes.find(text.substr(0, colon));
    if (found == codes.end()) throw Error(Code::flash, text);
    if (found->second == Code::cancelled) throw Error(Code::cancelled, "it was cancelled");
    throw Error(found->second, text.substr(colon + 1));
}

std::shared_ptr<TierClient> attach_tiers(const std::shared_ptr<Space>& space, const TierClient::Options& options) {
    static std::mutex mutex;
    std::lock_guard guard(mutex);
    if (!space->pager) space->pager = std::make_shared<TierClient>(*space, options);
    return std::static_pointer_cast<TierClient>(space->pager);
}

TierClient::TierClient(Space& space, Options options)
    : space_(space), options_(std::move(options)), words_(space.directory(), false), directory_(space.directory()), name_(space.header().name), id_(space.id()),
      data_at_(u64(space.base()) + space.layout.data_at), bytes_(words_.head().units * UNIT), read_only_(space.read_only()) {
    data_ = open_data(directory_, O_RDWR);  // also to read only: the kernel wants it so for faults
    try {
        Dialled keeper(options_.socket);
        map_data();
        hand_over(keeper.fd(), false);
        socket_ = keeper.fd();
        watcher_ = std::thread([this] { watch(); });
        own_faults(this, keeper);
    } catch (...) {
        for (int fd : {faults_, data_})
            if (fd >= 0) close(fd);
        throw;
    }
}

void TierClient::stop() {
    disown_faults(this);
    {
        std::lock_guard guard(mutex_);
        stop_ = true;
        changed_.notify_all();
        if (socket_ >= 0) shutdown(socket_, SHUT_RDWR);
    }
    if (watcher_.joinable()) watcher_.join();
}

TierClient::~TierClient() {
    stop();
    for (int fd : {socket_, faults_, data_})
        if (fd >= 0) close(fd);
}

void TierClient::map_data() {
    faults_ = options_.faults ? open_faults(how_) : -1;
    if (faults_ < 0) how_ = Faults::none;
    char* at = reinterpret_cast<char*>(data_at_);
    if (mmap(at, bytes_, PROT_READ | (read_only_ ? 0 : PROT_WRITE), MAP_SHARED | MAP_FIXED | MAP_NORESERVE, data_, 0) == MAP_FAILED)
        fail_os("mapping the data of the space", errno);
    if (how_ == Faults::none) return;
    madvise(at, bytes_, MADV_NOHUGEPAGE);
    if (madvise(at, bytes_, MADV_DONTFORK) < 0) fail_os("madvise", errno);
    if (int error = register_faults(faults_, data_at_, bytes_)) fail_os("registering faults", error);
}

bool TierClient::await_note(int socket, Note& note, std::string& text) {
    pollfd news{socket, POLLIN, 0};
    return poll(&news, 1, 5'000) > 0 && receive_note(socket, note, text);
}

void TierClient::hand_over(int socket, bool again, size_t pins) {
    Note note;
    std::string text;
    send_note(socket, TierAttachNote{id_, u64(getpid()), space_.members.slot(), space_.members.id(), read_only_, again, pins}, {}, faults_);
    for (;;) {
        if (!await_note(socket, note, text)) throw Error(Code::host_lost, "the keeper ended, or did not answer, while this process attached; " + log_beside(options_.socket) + " may say why");
        const ArmNote* arm = std::get_if<ArmNote>(&note);
        if (!arm) break;
        unmap(text);                          // attached means: spoken to, perhaps before the answer
        if (arm->ticket) send_note(socket, ArmedNote{arm->ticket});
    }
    if (!is_good(note)) throw_answer(text);
}

void TierClient::watch() {
    int socket = socket_;
    do {
        Note note;
        std::string text;
        while (receive_note(socket, note, text)) heard(socket, note, text);
    } while (find_keeper(socket));
}

// All in one call where the kernel can: then other cores are interrupted once, and not for each.
static void unmap_all(const std::vector<iovec>& ranges) {
    constexpr size_t MOST = 512;
    for (size_t at = 0; at < ranges.size(); at += MOST) {
        const size_t count = std::min(MOST, ranges.size() - at);
        size_t bytes = 0;
        for (size_t one = at; one < at + count; one++) bytes += ranges[one].iov_len;
        const int self = count > 1 ? int(syscall(SYS_pidfd_open, getpid(), 0)) : -1;
        const bool done = self >= 0 && size_t(syscall(SYS_process_madvise, self, &ranges[at], count, MADV_DONTNEED, 0)) == bytes;
        if (self >= 0) close(self);
        for (size_t one = at; one < at + count && !done; one++) madvise(ranges[one].iov_base, ranges[one].iov_len, MADV_DONTNEED);
    }
}

void TierClient::unmap(const std::string& units) {
    std::vector<iovec> ranges;
    for (size_t at = 0; at + 4 <= units.size(); at += 4) {
        u32 unit;
        std::memcpy(&unit, units.data() + at, 4);
        u32 end = unit + 1;  // neighbours are listed one after the other
        for (u32 more; at + 8 <= units.size() && (std::memcpy(&more, units.data() + at + 4, 4), more == end); at += 4) end++;
        ranges.push_back({reinterpret_cast<char*>(data_at_ + unit * UNIT), (end - unit) * UNIT});
    }
    unmap_all(ranges);
}

void TierClient::heard(int socket, const Note& note, std::string& text) {
    if (const ArmNote* arm = std::get_if<ArmNote>(&note)) {
        unmap(text);
        if (!arm->ticket) return;
        std::lock_guard guard(mutex_);
        try {
            send_note(socket, ArmedNote{arm->ticket});
        } catch (const Error&) {}  // its end is read next
        return;
    }
    std::lock_guard guard(mutex_);
    const AnswerNote* answer = std::get_if<AnswerNote>(&note);
    auto found = answer ? pending_.find(answer->number) : pending_.end();
    if (found == pending_.end()) return;
    found->second.done = true;
    found->second.good = answer->good;
    found->second.text = std::move(text);
    if (!found->second.good) pins_.erase(answer->number);
    changed_.notify_all();
}

// The keeper is gone. Touches wait in the kernel until the next one has this process's userfaultfd.
bool TierClient::find_keeper(int& socket) {
    u64 started = 0;
    pid_t starting = 0;
    for (;;) {
        std::map<u64, AskNote> pins;
        {
            std::lock_guard guard(mutex_);
            if (stop_) return false;
            pins = pins_;
        }
        bool gone = false;
        try {
            Dialled next(options_.socket);
            hand_over(next.fd(), true, pins.size());
            std::vector<u64> asked;
            {
                std::lock_guard guard(mutex_);
                close(socket_);
                socket_ = socket = next.keep();
                if (stop_) return false;
                for (auto& [id, pending] : pending_)
                    if (!pending.done && !pins.count(id)) asked.push_back(id);
            }
            tell_again(socket, pins, asked);
            break;
        } catch (const Error& error) { gone = error.code == Code::closed; }  // another space is there now
        if (gone || space_.removed()) {  // there will be no other: what is on flash is gone
            std::unique_lock lock(mutex_);
            unattached_ = "the space '" + name_ + "' was removed, and its keeper ended";  // first: who touches its pages tells it
            lock.unlock();
            if (faults_ >= 0) poison_pages(faults_, data_at_, bytes_);
            lock.lock();
            for (auto& [id, pending] : pending_)
                if (!pending.done) pending.done = true, pending.text = "closed:" + unattached_;
            changed_.notify_all();
            changed_.wait(lock, [&] { return stop_; });
            return false;
        }
        if (now_ns() - started > 300'000'000) {
            start_keeper(options_.keeper, starting);
            started = now_ns();
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
    if (starting > 0) waitpid(starting, nullptr, 0);
    return true;
}

// What the earlier keeper knew. Answers are read meanwhile: a keeper parts with who does not.
void TierClient::tell_again(int socket, const std::map<u64, AskNote>& pins, const std::vector<u64>& asked) {
    auto listen = [&] {
        Note note;
        std::string text;
        pollfd news{socket, POLLIN, 0};
        while (poll(&news, 1, 0) > 0 && receive_note(socket, note, text)) heard(socket, note, text);
    };
    try {
        for (auto& [id, pin] : pins) {
            std::unique_lock lock(mutex_);
            send_note(socket, pin);
            if (!pins_.count(id)) send_note(socket, UnpinNote{id});  // released meanwhile
            lock.unlock();
            listen();
        }
        for (u64 id : asked) {
            std::unique_lock lock(mutex_);
            if (auto found = pending_.find(id); found != pending_.end()) send_note(socket, found->second.note, found->second.ranges);
            lock.unlock();
            listen();
        }
    } catch (const Error&) {}  // that one is gone too: its end is read next
}

void TierClient::check_attached() const {
    if (!unattached_.empty()) throw Error(Code::closed, unattached_);
}

u64 TierClient::ask(Want want, const void* at, u64 bytes, int priority) {
    std::lock_guard guard(mutex_);
    check_attached();
    const AskNote note{next_++, u64(at), bytes, priority, u32(want)};
    pending_[note.number].note = note;
    if (want == Want::pin) pins_[note.number] = note;
    try {
        send_note(socket_, note);
    } catch (const Error&) {}  // no keeper just now: the watcher sends it to the next one
    return note.number;
}

std::vector<u64> TierClient::ask_many(const u64* addresses, const u64* sizes, size_t count, int priority) {
    std::vector<UnitRange> ranges;
    for (size_t at = 0; at < count; at++) {
        const u64 start = addresses[at] - data_at_, end = start + sizes[at];
        if (addresses[at] < data_at_ || end > bytes_ || end < start) throw Error(Code::bad_address, "range " + std::to_string(at) + " is outside the data of the space");
        if (sizes[at]) ranges.push_back({u32(start / UNIT), u32(div_up(end, UNIT))});
    }
    std::vector<u64> ids;
    const size_t most = NOTE_MAX / sizeof(UnitRange);
    std::lock_guard guard(mutex_);
    check_attached();
    for (size_t at = 0; at < ranges.size(); at += most) {
        const u64 number = next_++;
        Pending pending{AskNote{number, 0, 0, priority, u32(Want::prefetch)}};
        pending.ranges.assign(reinterpret_cast<const char*>(&ranges[at]), std::min(most, ranges.size() - at) * sizeof(UnitRange));
        ids.push_back(number);
        const Pending& kept = pending_[number] = std::move(pending);
        try {
            send_note(socket_, kept.note, kept.ranges);
        } catch (const Error&) {}  // as in ask
    }
    return ids;
}

void TierClient::hint(const void* at, u64 bytes) {
    std::lock_guard guard(mutex_);
    try {
        send_note(socket_, AskNote{next_++, u64(at), bytes, 0, u32(Want::prefetch)});
    } catch (const Error&) {}  // no keeper just now
}

bool TierClient::wait(u64 id, long timeout_ns) {
    std::unique_lock lock(mutex_);
    auto found = pending_.find(id);
    if (found == pending_.end()) throw Error(Code::bad_input, "nothing of this number is under way");
    auto ready = [&] { return found->second.done; };
    if (timeout_ns < 0) changed_.wait(lock, ready);
    else changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns), ready);
    if (!found->second.done) return false;
    Pending result = std::move(found->second);
    pending_.erase(found);
    if (!result.good) throw_answer(result.text);
    return true;
}

bool TierClient::done(u64 id) {
    std::lock_guard guard(mutex_);
    auto found = pending_.find(id);
    return found == pending_.end() || found->second.done;
}

void TierClient::cancel(u64 id) {
    std::lock_guard guard(mutex_);
    try {
        send_note(socket_, CancelNote{id});
    } catch (const Error&) {}  // then it is done by the next keeper, or not: nobody may rely on it
}

void TierClient::reorder(u64 id, int priority) {
    std::lock_guard guard(mutex_);
    if (auto found = pending_.find(id); found != pending_.end()) std::get<AskNote>(found->second.note).priority = priority;
    try {
        send_note(socket_, ReorderNote{id, priority});
    } catch (const Error&) {}
}

void TierClient::unpin(u64 id) {
    std::lock_guard guard(mutex_);
    if (!pins_.erase(id)) return;
    try {
        send_note(socket_, UnpinNote{id});
    } catch (const Error&) {}  // the next keeper will not hear of it
}

void TierClient::clear(char* at, u64 bytes, u64 keep) {
    if (bytes >= UNIT) request(Want::discard, at, bytes);
    char *inner = reinterpret_cast<char*>(data_at_ + div_up(u64(at) - data_at_, UNIT) * UNIT), *end = at + bytes;
    char* outer = reinterpret_cast<char*>(data_at_ + (u64(end) - data_at_) / UNIT * UNIT);
    auto zero = [&](char* from, char* to) {
        from = std::max(from, at + keep);
        if (from < to) within(from, u64(to - from), [](char* part, u64 size) { std::memset(part, 0, size); });
    };
    if (inner >= outer) return zero(at, end);
    zero(at, inner);
    zero(outer, end);
}

void TierClient::provide(char* at, u64 bytes) {
    u64 id = ask(Want::pin, at, bytes, 1 << 20);
    wait(id, -1);
    unpin(id);
}

void TierClient::within(char* at, u64 bytes, const std::function<void(char*, u64)>& work) {
    if (!plain()) return work(at, bytes);
    const u64 part = std::clamp(words_.head().capacity * UNIT / 8, UNIT, PART);
    for (u64 done = 0; done < bytes; done += part) {
        const u64 size = std::min(part, bytes - done);
        u64 id = ask(Want::pin, at + done, size, 1 << 20);
        wait(id, -1);
        work(at + done, size);
        unpin(id);
    }
}

TierClient::Counts TierClient::tiers(const void* at, u64 bytes) const {
    Counts counts;
    if (!bytes) return counts;
    for (u64 unit = unit_at(at); unit <= unit_at(static_cast<const char*>(at) + bytes - 1); unit++) {
        const Tier tier = words_.tier(unit);
        (in_memory(tier) ? counts.dram : tier == Tier::empty ? counts.empty : counts.flash)++;
    }
    return counts;
}

bool TierClient::explain(u64 address, char* text, size_t room) const {
    if (address < data_at_ || address >= data_at_ + bytes_) return false;
    std::snprintf(text, room, "openshelf: the bytes at %#llx of space '%s' cannot be brought back: %s. A touch cannot be an exception: this process ends. "
                  "Where that matters, use array.prefetch().wait() first.\n", (unsigned long long)address, name_.c_str(), unattached_.empty() ? words_.head().trouble : unattached_.c_str());
    return true;
}

// The child's connection is made before it is: over this process's own, not by a path, where another space may be by now.
void TierClient::fork_prepare() {
    mutex_.lock();
    int ends[2];
    if (!unattached_.empty() || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) < 0) return;
    for_child_ = ends[0];
    try {
        send_note(socket_, ChildNote{}, {}, ends[1]);
    } catch (const Error&) {}  // no keeper just now: the child finds the next one
    close(ends[1]);
}

void TierClient::fork_parent() {
    if (for_child_ >= 0) close(std::exchange(for_child_, -1));
    mutex_.unlock();
}

void TierClient::attach_child(int socket) {
    socket_ = socket;
    hand_over(socket_, false, pins_.size());
    for (auto& [id, pin] : pins_) {  // the parent may let go of its own at once: these hold before fork returns
        Note note;
        std::string text;
        send_note(socket_, pin);
        do if (!await_note(socket_, note, text)) throw Error(Code::host_lost, "the keeper ended, or did not answer, while the pins of the parent were told");
        while (!std::holds_alternative<AnswerNote>(note) || number_of(note) != id);
        if (!is_good(note)) throw_answer(text);
    }
}

void TierClient::fork_child() {
    new (&watcher_) std::thread;  // the parent's thread is not here
    new (&changed_) std::condition_variable;
    pending_.clear();
    close(socket_);
    if (faults_ >= 0) close(faults_);
    faults_ = socket_ = -1;
    try {
        check_attached();
        map_data();
        for (u64 start = now_ns();;) {
            try {
                attach_child(for_child_ >= 0 ? std::exchange(for_child_, -1) : Dialled(options_.socket).keep());
                break;
            } catch (const Error& error) {  // the parent finds the next keeper
                if (socket_ >= 0) close(socket_);
                socket_ = -1;
                if (error.code == Code::closed || now_ns() - start > 3'000'000'000) throw;
                if (space_.removed()) throw Error(Code::closed, "it was removed, and its keeper ended");
                std::this_thread::sleep_for(std::chrono::milliseconds(3));
            }
        }
        watcher_ = std::thread([this] { watch(); });
    } catch (const Error& error) {
        // Without faults nothing is on flash that this process has a view of, and no keeper is left to take it there.
        const bool keeps = plain() && space_.removed();
        if (!keeps) forbid();
        if (unattached_.empty()) unattached_ = "this forked process could not attach to the space '" + name_ + "': " + error.what();
        if (!keeps) say_unattached(unattached_);
    }
    mutex_.unlock();
}

// A mapping without a byte behind it: a touch is SIGBUS, and explain() says why.
void TierClient::forbid() {
    char* at = reinterpret_cast<char*>(data_at_);
    const int nothing = memfd_create("openshelf-lost", MFD_CLOEXEC);
    if (nothing < 0 || mmap(at, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, nothing, 0) == MAP_FAILED)
        mmap(at, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    if (nothing >= 0) close(nothing);
}

}  // namespace osf::tiers

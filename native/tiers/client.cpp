#include "tiers/client.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utility>

#include "base/trusted.hpp"

namespace osf::tiers {

constexpr u64 PART = 16 * MIB;                // of a copy that is made in parts

void TierClient::refused(const std::string& text) {
    static const std::map<std::string, Code> codes{{"bad_address", Code::bad_address}, {"no_room", Code::no_room}, {"not_permitted", Code::not_permitted},
                                                   {"corrupt", Code::corrupt}, {"flash", Code::flash}, {"cancelled", Code::cancelled},
                                                   {"bad_input", Code::bad_input}, {"closed", Code::closed}};
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
    : KeeperClient({options.socket, options.keeper, space.header().name, Code::closed, 5'000'000'000, -1}), space_(space), options_(std::move(options)),
      words_(space.directory(), false), directory_(space.directory()), name_(space.header().name), id_(space.id()),
      data_at_(u64(space.base()) + space.layout.data_at), bytes_(words_.head().units * UNIT), read_only_(space.read_only()) {
    data_ = open_data(directory_, O_RDWR);  // also to read only: the kernel wants it so for faults
    try {
        Dialled keeper(options_.socket);
        map_data();
        hand_over(keeper.fd(), false, 0);
        begin(keeper);
    } catch (...) {
        close(data_);
        throw;
    }
}

TierClient::~TierClient() {
    end();
    close(data_);
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

void TierClient::hand_over(int socket, bool again, size_t pins) {
    introduce(socket, TierAttachNote{id_, u64(getpid()), space_.members.slot(), space_.members.id(), read_only_, again, pins, abilities().minor}, {});
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

// Attached means: spoken to, perhaps before the answer.
void TierClient::heard(int socket, const Note& note, const std::string& text) {
    const ArmNote* arm = std::get_if<ArmNote>(&note);
    if (!arm) return;
    unmap(text);
    if (!arm->ticket) return;
    try {
        send_note(socket, ArmedNote{arm->ticket});
    } catch (const Error&) {}  // its end is read next
}

void TierClient::answered(const AnswerNote& answer) {
    if (!answer.good) pins_.erase(answer.number);
}

// What the next keeper is told

void TierClient::greet(int socket) {
    std::unique_lock lock(mutex_);
    announced_ = pins_;
    lock.unlock();
    hand_over(socket, true, announced_.size());
}

std::vector<u64> TierClient::to_tell() {
    std::vector<u64> numbers;
    for (auto& [number, pin] : announced_) numbers.push_back(number);
    for (u64 number : KeeperClient::to_tell())
        if (!announced_.count(number)) numbers.push_back(number);
    return numbers;
}

void TierClient::tell_again(u64 number) {
    auto found = announced_.find(number);
    if (found == announced_.end()) return KeeperClient::tell_again(number);
    send_note(socket_, found->second);
    if (!pins_.count(number)) send_note(socket_, UnpinNote{number});  // released meanwhile
}

void TierClient::check_hope(const Error& error) {
    if (error.code == Code::closed) throw error;                      // another space is there now
    if (space_.removed()) throw Error(Code::closed, "it was removed, and its keeper ended");
}

// What is on flash is gone.
void TierClient::give_up() {
    std::unique_lock lock(mutex_);
    unattached_ = "the space '" + name_ + "' was removed, and its keeper ended";  // first: who touches its pages tells it
    lock.unlock();
    if (faults_ >= 0 && abilities().poison) poison_pages(faults_, data_at_, bytes_);
    else if (faults_ >= 0) lose_pages(faults_, data_at_, bytes_);
    lock.lock();
    for (auto& [id, pending] : pending_)
        if (!pending.done) pending.done = true, pending.answer = "closed:" + unattached_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return stop_; });
}

// Requests

u64 TierClient::ask(Want want, const void* at, u64 bytes, int priority) {
    std::lock_guard guard(mutex_);
    AskNote note{0, u64(at), bytes, priority, u32(want)};
    note.number = post(note);
    if (want == Want::pin) pins_[note.number] = note;
    return note.number;
}

std::vector<u64> TierClient::ask_many(const u64* addresses, const u64* sizes, size_t count, int priority) {
    std::vector<UnitRange> ranges;
    for (size_t at = 0; at < count; at++) {
        const u64 start = addresses[at] - data_at_, end = start + sizes[at];
        if (addresses[at] < data_at_ || end > bytes_ || end < start)
            throw Error(Code::bad_address, "range " + std::to_string(at) + " is outside the data of the space");
        if (sizes[at]) ranges.push_back({u32(start / UNIT), u32(div_up(end, UNIT))});
    }
    std::vector<u64> ids;
    const size_t most = NOTE_MAX / sizeof(UnitRange);
    std::lock_guard guard(mutex_);
    check_attached();
    for (size_t at = 0; at < ranges.size(); at += most) {
        std::string text(reinterpret_cast<const char*>(&ranges[at]), std::min(most, ranges.size() - at) * sizeof(UnitRange));
        ids.push_back(post(AskNote{0, 0, 0, priority, u32(Want::prefetch)}, std::move(text)));
    }
    return ids;
}

void TierClient::hint(const void* at, u64 bytes) {
    std::lock_guard guard(mutex_);
    tell(AskNote{next_++, u64(at), bytes, 0, u32(Want::prefetch)});
}

bool TierClient::wait(u64 id, long timeout_ns) {
    const std::optional<Pending> result = answer(id, timeout_ns);
    if (result && !result->good) refused(result->answer);
    return bool(result);
}

void TierClient::cancel(u64 id) {
    std::lock_guard guard(mutex_);
    tell(CancelNote{id});                     // no keeper: then it is done by the next one, or not. Nobody may rely on it
}

void TierClient::reorder(u64 id, int priority) {
    std::lock_guard guard(mutex_);
    if (auto found = pending_.find(id); found != pending_.end()) std::get<AskNote>(found->second.note).priority = priority;
    tell(ReorderNote{id, priority});
}

void TierClient::unpin(u64 id) {
    std::lock_guard guard(mutex_);
    if (pins_.erase(id)) tell(UnpinNote{id});  // no keeper: the next one will not hear of it
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
                  "Where that matters, use array.prefetch().wait() first.\n", (unsigned long long)address, name_.c_str(),
                  unattached_.empty() ? words_.head().trouble : unattached_.c_str());
    return true;
}

void TierClient::map_again() {
    check_attached();
    map_data();
}

void TierClient::attach_child() {
    hand_over(socket_, false, pins_.size());
    for (auto& [id, pin] : pins_) {  // the parent may let go of its own at once: these hold before fork returns
        send_note(socket_, pin);
        await_answer(socket_, id, "the pins of the parent were told");
    }
}

// A mapping without a byte behind it: a touch is SIGBUS, and explain() says why.
bool TierClient::forbid() {
    // Without faults nothing is on flash that this process has a view of, and no keeper is left to take it there.
    if (plain() && space_.removed()) return false;
    lose_pages(-1, data_at_, bytes_);
    return true;
}

}  // namespace osf::tiers

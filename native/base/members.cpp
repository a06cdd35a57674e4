#include "base/members.hpp"

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>
#include <utility>

namespace osf {

constexpr off_t GUARD = 1 << 20, JOIN = 1 << 21;
constexpr int HEIR_MS = 1'000;
constexpr u64 FIRST_PINS = 16 * KIB;
constexpr u32 GENERATIONS = (1u << 20) - 1;

static u32 make_id(u32 generation, u32 slot) { return (generation & GENERATIONS) << 11 | (slot + 1); }

static bool record_lock(int fd, int command, short type, off_t byte) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    int result;
    do result = fcntl(fd, command, &lock);
    while (result < 0 && errno == EINTR);
    if (command == F_GETLK) return result == 0 && lock.l_type != F_UNLCK;
    if (result < 0 && errno != EACCES && errno != EAGAIN) fail_os("record lock on the members file", errno);
    return result == 0;
}

std::mutex& join_gate() {
    static std::mutex gate;
    return gate;
}

JoinLock::JoinLock(int members_fd) : JoinLock(members_fd, std::unique_lock(join_gate())) {}

JoinLock::JoinLock(int members_fd, std::unique_lock<std::mutex> gate) : process_(std::move(gate)), fd_(members_fd) {
    record_lock(fd_, F_SETLKW, F_WRLCK, JOIN);
}
JoinLock::~JoinLock() {
    if (fd_ >= 0) record_lock(fd_, F_SETLK, F_UNLCK, JOIN);
}

bool Members::slot_locked(u32 slot) const {
    // Its own first: once a child's slot is no longer among them, the child has its own lock.
    if (own_->members.has(slot)) return true;
    if (load(at(slot).state) == 1 && is_remote(slot)) return true;
    return record_lock(fd_, F_GETLK, F_WRLCK, slot) || record_lock(fd_, F_GETLK, F_WRLCK, GUARD + slot);
}

bool Members::alive(u32 id) const {
    u32 slot = (id & 2047) - 1;
    if (slot >= MEMBERS) return false;
    const Member& member = at(slot);
    return load(member.state) == 1 && make_id(load(member.generation), slot) == id && slot_locked(slot);
}

u32 Members::live_others(bool remote) const {
    u32 count = 0;
    for (u32 slot = 0; slot < slots_high(); slot++) {
        if ((id_ && slot == slot_) || load(at(slot).state) != 1 || (!remote && is_remote(slot))) continue;
        if (slot_locked(slot)) count++;
    }
    return count;
}

std::vector<u32> Members::unclaimed() const {
    std::vector<u32> slots;
    for (u32 slot = 0; slot < slots_high(); slot++)
        if (load(at(slot).state) == 1 && is_remote(slot) && !own_->members.has(slot)) slots.push_back(slot);
    return slots;
}

void Members::allocate_pins(u32 slot, u64 bytes) const {
    if (int error = allocate_file(fd_, PINS_AT + slot * PINS_BYTES, bytes))
        fail_os("no memory for the pin table of a member", error);
}

// Their memory goes. Where it cannot, who has the slot next writes over it.
void Members::forget_notes(u32 slot) const {
    const std::pair<u64, u64> parts[] = {{NOTES_AT + slot * sizeof(Notes), sizeof(Notes)}, {ANSWERS_AT + slot * LANES * ANSWER_BYTES, LANES * ANSWER_BYTES}};
    for (auto [at, bytes] : parts) fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(at), off_t(bytes));
}

Told* Members::told_of(u32 number) const {
    const u32 slot = (number - 1) / u32(LANES);
    if (!number || slot >= MEMBERS || load(at(slot).state) != 1 || !is_remote(slot)) return nullptr;
    return &told(slot, (number - 1) % u32(LANES));
}

void Members::keep_answer(u32 lane, std::span<const char> bytes) const {
    Told& told = this->told(slot_, lane);
    if (bytes.size() > ANSWER_BYTES) throw Error(Code::bad_input, "an answer of " + std::to_string(bytes.size()) + " bytes cannot be kept");
    if (bytes.size() <= sizeof told.answer) {
        std::memcpy(told.answer, bytes.data(), bytes.size());
    } else {
        const ssize_t put = pwrite(fd_, bytes.data(), bytes.size(), off_t(answer_at(lane)));
        if (put != ssize_t(bytes.size())) fail_os("no memory to keep an answer in", put < 0 ? errno : ENOSPC);
    }
    told.bytes = u32(bytes.size());
}

std::string Members::kept_answer(u32 lane) const {
    const Told& told = this->told(slot_, lane);
    if (told.bytes <= sizeof told.answer) return {told.answer, told.bytes};
    std::string bytes(std::min<u64>(told.bytes, ANSWER_BYTES), '\0');
    const ssize_t got = pread(fd_, bytes.data(), bytes.size(), off_t(answer_at(lane)));
    if (got != ssize_t(bytes.size())) fail_os("reading an answer that was kept", got < 0 ? errno : EIO);
    return bytes;
}

// A page of it may stay for the next one.
void Members::forget_answer(u32 lane) const {
    if (told(slot_, lane).bytes > PAGE) fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(answer_at(lane)), ANSWER_BYTES);
}

void Members::claim(u32 slot, bool read_only, u64 pins_bytes, const Uuid* remote) {
    Member& member = at(slot);
    allocate_pins(slot, pins_bytes);
    if (remote) {
        if (int error = allocate_file(fd_, NOTES_AT + slot * sizeof(Notes), sizeof(Notes))) fail_os("no memory for what is noted of a member", error);
        std::memset(static_cast<void*>(&notes(slot)), 0, sizeof(Notes));
    }
    member.pins_bytes = pins_bytes;
    member.read_only = read_only;
    member.pid = remote ? 0 : u64(getpid());
    std::memset(member.uuid, 0, sizeof member.uuid);
    if (remote) std::memcpy(member.uuid, remote->data(), sizeof member.uuid);
    store(member.remote, remote ? remote_mark(slot) : 0);
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    member.started_ns = u64(time.tv_sec) * 1'000'000'000u + u64(time.tv_nsec);
    store(member.high, 0u);
    u32 generation = (load(member.generation) + 1) & GENERATIONS;
    store(member.generation, generation);
    if (slots_high() <= slot) store(head().slots_high, slot + 1, std::memory_order_seq_cst);
    store(member.state, 1u, std::memory_order_seq_cst);
}

// A slot that nobody has, with its record lock. Dead members keep theirs until a writer reaps them. With every slot dead,
// one is taken over: its locks are of an older generation and its pins are this process's to drop.
u64 Members::lock_free_slot(u32& slot, bool read_only) {
    for (slot = 0; slot < MEMBERS; slot++) {
        if (load(at(slot).state) != 0 || slot_locked(slot)) continue;
        if (!record_lock(fd_, F_SETLK, F_WRLCK, slot)) continue;
        own_->members.add(slot);
        return FIRST_PINS;
    }
    for (slot = 0; slot < MEMBERS && !read_only; slot++) {
        if (!seize(slot)) continue;
        u64 bytes = at(slot).pins_bytes;
        std::fill_n(pins(slot), load(at(slot).high), 0);
        add_orphan();
        own_->members.add(slot);
        own_->seized.remove(slot);
        step();
        return std::clamp(bytes, FIRST_PINS, PINS_BYTES);
    }
    throw Error(Code::too_many_members, "all " + std::to_string(MEMBERS) + " member slots are taken; close the space in " +
                                            "some process" + (read_only ? ", or open it once for writing to clear dead ones" : ""));
}

void Members::enter(u32 slot) {
    own_->members.add(slot);
    slot_ = slot;
    id_ = make_id(load(at(slot).generation), slot);
    free_pins_.clear();
    spare_ = NONE;
}

void Members::join_new(bool read_only, const Uuid* remote) {
    u32 slot = 0;
    u64 bytes = lock_free_slot(slot, read_only);
    try {
        claim(slot, read_only, bytes, remote);
    } catch (...) {
        record_lock(fd_, F_SETLK, F_UNLCK, slot);
        own_->members.remove(slot);
        throw;
    }
    step();
    enter(slot);
    if (remote) record_lock(fd_, F_SETLK, F_UNLCK, slot);  // it would end with this process, the member shall not
}

bool Members::join_remote(const Uuid& uuid, bool read_only) {
    for (u32 slot = 0; slot < slots_high(); slot++) {
        Member& member = at(slot);
        if (load(member.state) != 1 || !is_remote(slot) || std::memcmp(member.uuid, uuid.data(), uuid.size())) continue;
        if (own_->members.has(slot)) throw Error(Code::bad_input, "this process stands for that remote process already");
        member.read_only = read_only;
        enter(slot);
        // Pins with a flag are of operations that a killed keeper did not end: what they kept is for the next sweep.
        for (u32 index = 0; index < pins_high(slot); index++) {
            if (load(pin(index)) & FLAGS) store(pin(index), 0);
            if (load(pin(index)) == 0) free_pins_.push_back(index);
        }
        add_orphan();
        return true;
    }
    join_new(read_only, &uuid);
    return false;
}

void Members::drop_pins() {
    Member& member = at(slot_);
    u64 held = 0;
    for (u32 index = 0; index < load(member.high); index++) held |= swap(pin(index), 0);
    step();
    if (held) add_orphan();  // after the pins are gone: who sweeps next finds what they kept
}

void Members::leave() {
    drop_pins();
    Member& member = at(slot_);
    const bool remote = is_remote(slot_);
    store(member.high, 0u);
    store(member.state, 0u, std::memory_order_seq_cst);
    step();
    if (remote) forget_notes(slot_);  // under the join lock still: nobody has the slot yet
    id_ = 0;
    record_lock(fd_, F_SETLK, F_UNLCK, slot_);
    own_->members.remove(slot_);
}

void Members::abandon() {
    if (!id_) return;
    id_ = 0;
    own_->members.remove(slot_);
}

void Members::forget() {
    u32 high = std::min<u32>(slots_high(), MEMBERS);
    for (u32 slot = 0; slot < MEMBERS; slot++) {
        Member& member = at(slot);
        if (slot < high || member.state || member.high) {
            // What a damaged table says of its own size is not believed: a hole reads as zeros.
            if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(PINS_AT + slot * PINS_BYTES), PINS_BYTES) < 0)
                fail_os("clearing the pins of dead members", errno);
        }
        u32 generation = member.generation;
        member = Member{};
        member.generation = generation & GENERATIONS;
    }
    head() = MembersHead{};
}

bool Members::seize(u32 slot) {
    // The state first: a child's slot is known as such before its state says used.
    auto dead = [&] { return load(at(slot).state) == 1 && !slot_locked(slot); };
    if (!dead() || !own_->seized.add(slot)) return false;
    if (record_lock(fd_, F_SETLK, F_WRLCK, slot)) {
        if (dead()) return true;
        // Somebody else reaped it, and another thread may have made it its own: then the lock is that one's.
        if (!own_->members.has(slot)) record_lock(fd_, F_SETLK, F_UNLCK, slot);
    }
    own_->seized.remove(slot);
    return false;
}

void Members::clear(u32 slot) {
    Member& member = at(slot);
    u32 high = u32(std::min<u64>(load(member.high), PINS_BYTES / 8));
    for (u32 index = 0; index < high; index++) store(pins(slot)[index], 0);
    store(member.high, 0u);
    const bool remote = is_remote(slot);
    store(member.state, 0u, std::memory_order_seq_cst);
    if (remote) forget_notes(slot);
    record_lock(fd_, F_SETLK, F_UNLCK, slot);
    own_->seized.remove(slot);
}

u32 Members::take_pin() {
    if (u32 index = spare_.exchange(NONE); index != NONE) return index;
    std::lock_guard guard(mutex_);
    if (!free_pins_.empty()) {
        u32 index = free_pins_.back();
        free_pins_.pop_back();
        return index;
    }
    Member& member = at(slot_);
    u32 index = load(member.high);
    if ((index + 1) * 8 > member.pins_bytes) {
        u64 bytes = std::min(2 * member.pins_bytes, PINS_BYTES);
        if ((index + 1) * 8 > bytes)
            throw Error(Code::no_room, "this process holds " + std::to_string(index) + " views of the space, the most it may");
        allocate_pins(slot_, bytes);
        member.pins_bytes = bytes;
    }
    store(member.high, index + 1, std::memory_order_seq_cst);
    return index;
}

void Members::give_pin(u32 index) {
    u32 other = spare_.exchange(index);
    if (other == NONE) return;
    std::lock_guard guard(mutex_);
    free_pins_.push_back(other);
}

bool Members::nearly_full() const {
    constexpr u32 FEW = 16;
    if (slots_high() + FEW < MEMBERS) return false;
    u32 taken = 0;
    for (u32 slot = 0; slot < slots_high(); slot++) taken += load(at(slot).state) != 0;
    return taken + FEW >= MEMBERS;
}

u64 Members::fork_prepare() {
    settle_heirs();
    mutex_.lock();
    heir_ = MEMBERS;
    heir_id_ = 0;
    if (pipe2(heir_pipe_, O_CLOEXEC) < 0) return 0;  // the child will find itself without membership
    const u64 start = now_ns();
    record_lock(fd_, F_SETLKW, F_WRLCK, JOIN);
    const u64 waited = now_ns() - start;
    reserve_heir();
    record_lock(fd_, F_SETLK, F_UNLCK, JOIN);
    return waited;
}

void Members::reserve_heir() {
    for (u32 slot = 0; slot < MEMBERS; slot++) {
        if (load(at(slot).state) != 0 || slot_locked(slot)) continue;
        if (!record_lock(fd_, F_SETLK, F_WRLCK, GUARD + slot)) continue;
        const Member& own = at(slot_);
        heir_ = slot;
        own_->members.add(slot);
        try {
            claim(slot, own.read_only, own.pins_bytes);
        } catch (const Error&) {
            heir_ = MEMBERS;
            own_->members.remove(slot);
            record_lock(fd_, F_SETLK, F_UNLCK, GUARD + slot);
            return;
        }
        u32 high = load(own.high);
        store(at(slot).high, high, std::memory_order_seq_cst);
        for (u32 index = 0; index < high; index++) {
            u64 word = load(pin(index));
            store(pins(slot)[index], word & (TRANSIENT | RELEASING) ? 0 : word, std::memory_order_seq_cst);
        }
        heir_id_ = make_id(load(at(slot).generation), slot);
        return;
    }
}

void Members::fork_parent() {
    const int pipe = heir_pipe_[0];
    if (pipe >= 0) close(heir_pipe_[1]);
    heir_pipe_[0] = heir_pipe_[1] = -1;
    const u32 heir = std::exchange(heir_, MEMBERS);
    if (heir == MEMBERS) {
        if (pipe >= 0) close(pipe);
        return mutex_.unlock();
    }
    // Usually in microseconds. A child that is stopped takes longer: it is vouched for until it has run, however long that is.
    if (!heir_is_there(pipe, HEIR_MS)) late_.push_back({heir, pipe});
    else release_heir({heir, pipe});
    mutex_.unlock();
}

// End of file: the child has its own lock, or is dead.
bool Members::heir_is_there(int pipe, int timeout_ms) {
    pollfd wait{pipe, POLLIN, 0};
    int came;
    do came = poll(&wait, 1, timeout_ms);
    while (came < 0 && errno == EINTR);
    return came != 0;
}

void Members::release_heir(const Late& heir) {
    close(heir.pipe);
    record_lock(fd_, F_SETLK, F_UNLCK, GUARD + heir.slot);
    own_->members.remove(heir.slot);
}

void Members::settle_heirs() {
    std::lock_guard guard(mutex_);
    std::erase_if(late_, [&](const Late& heir) {
        const bool there = heir_is_there(heir.pipe, 0);
        if (there) release_heir(heir);
        return there;
    });
}

void Members::fork_child() {
    // If the parent was killed meanwhile nobody vouched for this process, and its slot may have been reaped.
    id_ = 0;
    own_->members.clear();
    own_->seized.clear();
    for (const Late& other : late_) close(other.pipe);  // the parent's to vouch for
    late_.clear();
    bool locked = heir_id_ && record_lock(fd_, F_SETLK, F_WRLCK, heir_);
    if (locked && load(at(heir_).state) == 1 && make_id(load(at(heir_).generation), heir_) == heir_id_) {
        enter(heir_);
        at(slot_).pid = u64(getpid());
        for (u32 index = 0; index < load(at(slot_).high); index++)
            if (load(pin(index)) == 0) free_pins_.push_back(index);
    } else if (locked) {
        record_lock(fd_, F_SETLK, F_UNLCK, heir_);
    }
    heir_ = MEMBERS;
    if (heir_pipe_[0] >= 0) {
        close(heir_pipe_[0]);
        close(heir_pipe_[1]);
        heir_pipe_[0] = heir_pipe_[1] = -1;
    }
    mutex_.unlock();
}

}  // namespace osf

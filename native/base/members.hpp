// Who has the space open, and what each of them holds.
//
// A member is alive while it holds a POSIX record lock on byte `slot` of the members file: the kernel drops it however
// the process ends, and it means the same in every PID namespace, where a pid does not. Any close of the file by
// the process would drop it too, so the file is opened exactly once per process and space (space/map.cpp sees to that).
// fork does not inherit record locks: the parent reserves a slot for its child beforehand and vouches for it with
// byte GUARD + slot until the child has its own lock.
//
// A keeper is a member several times: once for itself, and once for every process on another host that it serves. Such
// a slot is marked remote and bears that process's uuid; it needs no record lock and counts as alive until a keeper
// clears it. So a killed keeper loses neither pins nor locks of living processes elsewhere: the next one adopts the slots
// by uuid. What the keeper does for such a member it does under its own id, though (executor): the locks inside the space
// that a killed keeper held must be found dead.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/layout.hpp"

namespace osf {

// A set of slots, changed by several threads.
class SlotSet {
public:
    bool has(u32 slot) const { return words_[slot / 64].load() >> (slot % 64) & 1; }
    bool add(u32 slot) { return !(words_[slot / 64].fetch_or(bit(slot)) & bit(slot)); }  // false: was there already
    void remove(u32 slot) { words_[slot / 64].fetch_and(~bit(slot)); }
    void clear() { for (auto& word : words_) word = 0; }

private:
    static u64 bit(u32 slot) { return 1ull << (slot % 64); }
    std::array<std::atomic<u64>, MEMBERS / 64> words_{};
};

// What the record locks do not show: a process never meets its own. One for all members of a space in a process.
struct OwnSlots {
    SlotSet members;                     // its own, those of the remote processes it serves, a child's that is being forked
    SlotSet seized;                      // being reaped
};

using Uuid = std::array<u8, 16>;

class Members final : public Owners {
public:
    void attach(int fd, char* map) { fd_ = fd; map_ = map; own_ = std::make_shared<OwnSlots>(); }
    void attach(const Members& executor) { fd_ = executor.fd_; map_ = executor.map_; own_ = executor.own_; executor_ = &executor; }

    u32 id() const { return id_; }
    u32 executor() const override { return executor_ && id_ ? executor_->id_ : id_; }  // who holds the locks inside the space
    u32 slot() const { return slot_; }
    bool joined() const { return id_ != 0; }
    MembersHead& head() const { return *reinterpret_cast<MembersHead*>(map_); }
    Member& at(u32 slot) const { return reinterpret_cast<Member*>(map_ + MEMBER_AT)[slot]; }
    // Of a slot that stands for a process on another host; others have no memory for it.
    Notes& notes(u32 slot) const { return reinterpret_cast<Notes*>(map_ + NOTES_AT)[slot]; }
    Told& told(u32 slot, u32 lane) const { return notes(slot).told[lane]; }
    Told* told_of(u32 number) const;     // by 1 + slot * LANES + lane; null: nobody has it
    void keep_answer(u32 lane, std::span<const char> bytes) const;  // throws if there is no memory for it
    std::string kept_answer(u32 lane) const;
    void forget_answer(u32 lane) const;  // gives its memory back
    u64* pins(u32 slot) const { return reinterpret_cast<u64*>(map_ + PINS_AT + slot * PINS_BYTES); }
    // Bounded, because a damaged file may say anything.
    u32 slots_high() const { return std::min<u32>(load(head().slots_high), MEMBERS); }
    u32 pins_high(u32 slot) const { return std::min<u32>(load(at(slot).high), PINS_BYTES / 8); }
    bool holds(const u64* root) const { return root >= pins(0) && root < pins(MEMBERS); }
    void add_orphan() const { std::atomic_ref<u64>(head().orphans).fetch_add(1); }

    bool alive(u32 id) const override;
    bool slot_locked(u32 slot) const;    // somebody stands for it: its process, this one, or it is remote
    bool is_remote(u32 slot) const { u64 mark = load(at(slot).remote); return mark && mark == remote_mark(slot); }
    u32 live_others(bool remote = true) const;

    // The caller holds the join lock for these.
    void join(bool read_only) { join_new(read_only, nullptr); }
    bool join_remote(const Uuid& uuid, bool read_only);  // true: adopted, with the pins it has
    std::vector<u32> unclaimed() const;  // remote slots that this process does not serve

    void drop_pins();                    // all of this member's
    void leave();
    void abandon();                      // leaves the slot as it is: remote, or lost by a fork
    void forget();                       // first opener: nobody is alive, so no slot and no pin counts
    bool seize(u32 slot);                // locks a dead member's slot, for reaping
    void clear(u32 slot);                // drops its pins, frees and unlocks it

    u64& pin(u32 index) const { return pins(slot_)[index]; }
    u32 take_pin();                      // an unused entry of this member's table
    void give_pin(u32 index);            // the entry is zero already

    // fork: called in the parent before, then in either process after
    bool nearly_full() const;            // few slots are free; those of dead processes may be among the others
    u64 fork_prepare();                  // how long it waited for another process that joins or leaves
    void fork_parent();
    void fork_child();
    void settle_heirs();                 // what fork_parent did not wait for

private:
    u64 lock_free_slot(u32& slot, bool read_only);       // and the bytes of its pin table
    u64 remote_mark(u32 slot) const { return hash_bytes(at(slot).uuid, sizeof at(slot).uuid, slot) | 1; }
    void claim(u32 slot, bool read_only, u64 pins_bytes, const Uuid* remote = nullptr);
    void join_new(bool read_only, const Uuid* remote);
    void enter(u32 slot);
    void allocate_pins(u32 slot, u64 bytes) const;
    void forget_notes(u32 slot) const;
    u64 answer_at(u32 lane) const { return ANSWERS_AT + (slot_ * LANES + lane) * ANSWER_BYTES; }
    void reserve_heir();
    struct Late { u32 slot; int pipe; };
    static bool heir_is_there(int pipe, int timeout_ms);
    void release_heir(const Late& heir);

    int fd_ = -1;
    char* map_ = nullptr;
    std::shared_ptr<OwnSlots> own_;
    const Members* executor_ = nullptr;  // of a remote process: the keeper's own membership
    u32 id_ = 0, slot_ = 0;
    std::mutex mutex_;                   // of free_pins_ and high
    std::vector<u32> free_pins_;
    static constexpr u32 NONE = ~0u;
    std::atomic<u32> spare_{NONE};       // one more, without the mutex: a look-up takes it and gives it back
    u32 heir_ = MEMBERS;                 // slot reserved for a child that is being forked
    u32 heir_id_ = 0;
    int heir_pipe_[2] = {-1, -1};
    std::vector<Late> late_;             // children that had no lock of their own when fork returned here
};

// The process's part of the join lock (record locks do not exclude threads). Held over fork, always taken first.
std::mutex& join_gate();

// Serialises joining, leaving, growing and sealing over all processes; the kernel drops it when its holder dies.
class JoinLock {
public:
    explicit JoinLock(int members_fd);
    JoinLock(int members_fd, std::unique_lock<std::mutex> gate);  // of join_gate(), held already
    ~JoinLock();
    JoinLock(const JoinLock&) = delete;
    JoinLock& operator=(const JoinLock&) = delete;
    void file_closed() { fd_ = -1; }     // which has dropped the record lock

private:
    std::unique_lock<std::mutex> process_;
    int fd_;
};

}  // namespace osf

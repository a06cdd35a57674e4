// A pool of KV blocks in a Space, as one process sees it.
//
// One copy of a block for all processes; found by key without a lock; evicted only when nobody needs it. Because a block never goes
// before those that continue it, one pin on the last block of a match keeps all of it: a pin is a word in the member's own pin table
// (base/members.hpp), with the entry's offset instead of a record's, so that death, fork and closing are dealt with already.
//
//   reader   writes its pin, then looks at the entry's state and key again
//   evictor  sets the state to leaving, then looks at all pins; a pinned one becomes live again
//
// Everything that changes the pool happens under one lock, for microseconds: bytes are copied outside of it. A process that dies with
// the lock leaves entries that are whole after every store; the next one makes everything else again from them (kv/pool_repair.cpp).
#pragma once

#include <limits>
#include <span>
#include <vector>

#include "kv/hash.hpp"
#include "kv/residency.hpp"
#include "space/space.hpp"

namespace osf::kv {

struct KvStats {
    u64 block_bytes, stride;
    u32 slots, block_tokens, live, free, filling;
    u64 queries, queried_blocks, hit_blocks, stored_blocks, evicted_blocks, declined_blocks, expired_blocks, fetched_blocks;
};

struct KvTenantStats {
    std::string name;
    u32 quota, used;
};

struct KvAudit {            // what a walk found; all but the first three should be zero
    u32 live = 0, free = 0, filling = 0;
    u32 leaked = 0;         // being filled by a dead process, or in no list
    u32 orphans = 0;        // live blocks whose parent is not live, or not the one that their position says
    u32 unfindable = 0;     // live, but a look-up by its key does not lead there
    u32 miscounted = 0;     // children, tenants' use, free stack, leaves
};

struct KvUse {              // of a put, for the policy
    u32 habit = 0, last = NO_SLOT;  // last: position of the prompt's last block
};

struct KvPast {             // of a block that is put, as its ghost remembers it
    u32 hits, habit;
};

struct KvShade {            // what is in a ghost
    u32 used, hits, habit;
    explicit KvShade(u64 what) : used(u32(what)), hits(what >> 32 & 0xffff), habit(u32(what >> 48)) {}
};

class KvEviction;
class KvPin;

class KvPool {
public:
    static std::shared_ptr<KvPool> make(const std::shared_ptr<Space>& space, std::string name, const KvShape& shape);  // published when it is whole
    static std::shared_ptr<KvPool> open(const std::shared_ptr<Space>& space, std::string_view name);                   // null: there is none
    static void format(Space& space, const Held& held, const KvShape& shape);  // a draft of kind_pool
    KvPool(std::shared_ptr<Space> space, Held held);                            // takes the pin over
    ~KvPool();
    KvPool(const KvPool&) = delete;
    KvPool& operator=(const KvPool&) = delete;

    u32 tenant(std::string_view name, const u32* quota);     // its number; sets the quota if one is given
    std::vector<KvTenantStats> tenants();

    // Look-ups. What is found stays as long as the pin.
    u32 find(const KvKey& key) const;                        // a live slot, or NO_SLOT; it may leave at any time
    u64 longest(std::span<const KvKey> keys, u64 present) const;  // how many of the chain are here, at least `present`
    void count_match(std::span<const u32> slots, u64 queried);  // statistics, and the use of its blocks

    void count_fetched(u64 blocks) { std::atomic_ref<u64>(head_->fetched_blocks).fetch_add(blocks, std::memory_order_relaxed); }
    void count_declined(u64 blocks) { std::atomic_ref<u64>(head_->declined_blocks).fetch_add(blocks, std::memory_order_relaxed); }

    // Writing
    // Slots to fill, fewer if there is no room, or only that of blocks that are worth more than `worth`; how many.
    u32 allocate(u32 want, u32 tenant, std::vector<u32>& out, float worth = ANYTHING);
    u32 take_some(u32 want, u32 tenant, std::vector<u32>& out, float worth);
    static constexpr float ANYTHING = std::numeric_limits<float>::infinity();
    u64 group() const;                                       // blocks that are filled, or asked for, at a time
    void touch(u32 slot);                                    // before it is filled: maps its pages; not with a flash tier
    void give_back(std::span<const u32> slots, u32 owner) noexcept;
    // The filled slots as blocks after `parent` (NO_SLOT: first ones), which is held by `pin`; both move on to the last of them. Blocks that came
    // meanwhile stay, and ours go; `whole`: if the first one came, all of ours. How many were new.
    u32 publish(std::span<const u32> slots, std::span<const KvKey> keys, u32& parent, u32 position, u64 expires_ns, KvPin& pin,
                const KvUse& use, bool whole = false);
    KvUse use_of(std::span<const KvKey> missing, u32 parent, u32 position) const;  // a put of them after `parent`
    float value_of(const KvKey& key, const KvUse& use, u32 position) const;        // one of these, just put
    void pass_over(std::span<const KvKey> keys, const KvUse& use);                 // they were used, but are not here
    void renew(u32 slot, u64 expires_ns);                    // it and all before it

    // Eviction
    u32 evict(u32 slot, const KvKey& key, u32 keep);         // it and those before it that nobody else needs, but the first `keep`
    u32 clear(const std::string_view* tenant);               // null: of all
    bool stick(u32 slot, bool on);
    void tend(u64 every_ns);                                 // what dead processes left and what has expired, if not done so lately

    // With a flash tier
    bool plain() const;                                      // this process has no faults: what it uses of the blocks it must hold
    void prefetch(std::span<const u32> slots) const;         // asked for, not waited for
    void bring(std::span<const u32> slots) const;            // waited for: an error, where a touch could only end the process
    void forget(std::span<const u32> slots) const noexcept;  // bytes on flash that are about to be written over, as far as nothing else is there
    void provide(std::span<const u32> slots) const;          // pages for them at once, where touches would ask for them one by one
    KvPlaces places() const;
    bool durable() const;
    void flush() const;

    KvStats stats() const;
    KvAudit audit();
    void check_usable() const;
    void need_write() const;
    void seed(u64 value) { random_ = value; }                // of the samples that this process draws: a simulation can be run again

    KvEntry& entry(u32 slot) const { return entries_[slot]; }
    u32* tokens(u32 slot) const { return tokens_ + u64(slot) * head_->block_tokens; }
    char* block(u32 slot) const { return data_ + slot * head_->stride; }
    char* data() const { return data_; }
    KvHead& head() const { return *head_; }
    bool has_key(u32 slot, const KvKey& key) const;

    const std::shared_ptr<Space> space;

private:
    friend class KvEviction;
    friend class KvPin;
    class Guard {           // the lock; whoever finds that its owner died repairs first
    public:
        explicit Guard(KvPool& pool);
        ~Guard() { lock_drop(pool_.head_->lock); }
        Guard(const Guard&) = delete;
        Guard& operator=(const Guard&) = delete;
    private:
        KvPool& pool_;
    };

    void hold_metadata(char* base, u64 bytes);
    u32 find_tenant(u64 id) const;                           // NO_SLOT: there is none
    u64 offset_of(u32 slot) const { return entries_offset_ + u64(slot) * sizeof(KvEntry); }
    bool valid(u32 slot) const { return slot < head_->slots; }
    u32& bucket(const KvEntry& entry) const { return heads_[load(entry.key[0], std::memory_order_relaxed) & mask_]; }

    // With the lock
    void link(u32 slot);
    void unlink(u32 slot);
    bool linked(u32 slot) const;
    void push_free(u32 slot);
    void drop_filled(u32 slot);                              // one that was being filled
    u32 take_free(u32 want, u32 tenant, std::vector<u32>& out);
    void recover();
    void reclaim();                                          // slots that dead members were filling
    u32 expire();
    u32 evict_lowest(u32 want, float worth);                 // none that is worth more
    u32 evict_of(u32 tenant, u32 want);
    u32 drop_unused(u32 tenant, u32 most);
    void make_room(u32 want, u32 later, u32 tenant, float worth);
    bool leaf(const KvEntry& entry) const { return entry.state == kv_live && !entry.children && !(entry.flags & kv_sticky); }
    void list(u32 slot);                                     // among the leaves if it is one, else not
    void unlist(u32 slot);

    // Hints
    KvGhost* ghosts_of(u64 tag) const;                       // the set that may have it
    KvGhost* ghost_of(const KvKey& key) const;               // or null; also without the lock
    void remember(const KvEntry& entry);
    void remember(u64 tag, u64 used, const KvPast& past);
    KvPast past_of(const KvKey& key, u32 habit, u32* age) const;  // `age`: in steps, where there is a ghost
    KvPast recall(const KvKey& key, u32 habit);              // the same, and it counts as a use; the ghost goes
    void learn();                                            // if it is time
    void learn_now(u64 clock);
    u64 random();

    Held held_;
    KvHold metadata_;                                        // without faults
    KvHead* head_ = nullptr;
    KvTenant* tenants_ = nullptr;
    u32* heads_ = nullptr;
    KvEntry* entries_ = nullptr;
    u32* tokens_ = nullptr;
    u32 *leaves_ = nullptr, *free_ = nullptr;
    KvTables* tables_ = nullptr;
    KvGhost* ghosts_ = nullptr;
    char* data_ = nullptr;
    u64 mask_ = 0, entries_offset_ = 0, random_ = now_ns();
    std::vector<std::atomic<bool>> touched_;                 // by this process
};

// A pin on a block, and so on all before it; nothing at first.
class KvPin {
public:
    explicit KvPin(KvPool& pool) : pool_(&pool), index_(pool.space->members.take_pin()) {}
    KvPin(KvPin&& other) noexcept : pool_(other.pool_), index_(other.index_) { other.pool_ = nullptr; }
    KvPin(const KvPin&) = delete;
    KvPin& operator=(const KvPin&) = delete;
    ~KvPin();
    bool hold(u32 slot, const KvKey& key);       // if it still is that block; else holds nothing
    void move(u32 slot) { swap(word(), pool_->offset_of(slot)); }  // to one before what it holds, or, with the lock, to any
    void clear() { store(word(), 0); }
    void swap_with(KvPin& other) { std::swap(index_, other.index_); }

private:
    u64& word() const { return pool_->space->members.pin(index_); }
    KvPool* pool_;
    u32 index_;
};

// One process of the host at a time fetches the blocks from a key on.
class KvTurn {
public:
    KvTurn(std::shared_ptr<KvPool> pool, const KvKey& key) : pool_(std::move(pool)), lock_(&pool_->head().turns[key.words[0] % KV_FETCHERS]) {}
    ~KvTurn() { drop(); }
    KvTurn(const KvTurn&) = delete;
    KvTurn& operator=(const KvTurn&) = delete;
    bool take(long timeout_ns) {
        if (lock_take(*lock_, pool_->space->members, timeout_ns) == Grant::timed_out) return false;
        owner_ = pool_->space->members.executor();
        return true;
    }
    void drop() {
        if (owner_ && owner_ == pool_->space->members.executor()) lock_drop(*lock_);  // not in a forked child
        owner_ = 0;
    }

private:
    std::shared_ptr<KvPool> pool_;
    Lock* lock_;
    u32 owner_ = 0;
};

// A count that is changed with the lock and may be read without.
inline void change(u32& count, int by) { store(count, count + u32(by), std::memory_order_relaxed); }

u64 wall_ns();              // since 1970

}  // namespace osf::kv

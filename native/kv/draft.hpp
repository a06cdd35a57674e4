// Blocks on their way into a pool: slots are reserved, filled from the caller's memory, and published in order. Slots that were reserved
// and not published go back with the object, or after the process.
#pragma once

#include "kv/hit.hpp"

namespace osf::kv {

struct KvStored {
    u64 blocks = 0, present = 0, stored = 0, declined = 0;  // declined: there was no room; blocks = the sum of the others
};

class KvDraft {
public:
    // What is there already is renewed to expire like the rest, unless it is to be kept AS_IS.
    static constexpr u64 AS_IS = ~0ull;
    KvDraft(std::shared_ptr<KvPool> pool, const KvKey& root, std::span<const u32> tokens, u32 tenant, u64 expires_ns);
    // Of a plain value: its blocks are bytes, not tokens.
    KvDraft(std::shared_ptr<KvPool> pool, const KvKey& root, std::span<const u8> name, u64 nbytes, u32 tenant, u64 expires_ns);
    ~KvDraft();
    KvDraft(const KvDraft&) = delete;
    KvDraft& operator=(const KvDraft&) = delete;

    u64 blocks() const { return keys_.size(); }
    u64 next() const { return next_; }           // the first block that is not in the pool; from here on it is to be filled
    u64 reserved() const { return slots_.size(); }
    std::span<const u32> slots() const { return slots_; }  // reserved
    const KvKey& key(u64 block) const { return keys_[block]; }
    const u32* tokens(u64 block) const { return tokens_.data() + block * block_tokens(); }
    bool is_value() const { return nonce_ != 0; }
    void expire_at(u64 expires_ns) { expires_ns_ = expires_ns; }
    void catch_up();                             // over blocks that others put; nothing is reserved
    u64 reserve(u64 most);                       // slots for the next blocks, on top of what is reserved; how many are reserved now
    void write(u64 first, const KvPieces& from); // the reserved blocks; the caller's memory begins with block `first`
    void write_value(const char* from);
    KvStored publish();                          // what is reserved; then more may be reserved
    void abandon() noexcept;

    const std::shared_ptr<KvPool> pool;

private:
    bool make_way(const KvKey& root, std::span<const u8> name);
    u64 unexpired(u64 present, u32& slot, KvPin& held) const;
    void make_room(std::span<const u32> fresh);
    void take_slots(u64 most);
    const KvUse& use();
    void need_owner() const;                     // a forked child must not go on with its parent's slots
    u64 block_tokens() const { return pool->head().block_tokens; }

    std::vector<KvKey> keys_;
    std::vector<u32> tokens_, slots_;
    u64 next_ = 0, nbytes_ = 0, nonce_ = 0, expires_ns_ = 0;  // nonce: of a plain value, else 0
    u64 welcome_ = 0;                            // blocks that may still crowd out any others
    KvStored result_;
    KvUse use_;
    bool passed_over_ = false;                   // the rest: others are worth more
    u32 tenant_ = 0, last_ = NO_SLOT, owner_ = 0;
    KvPin pin_;                                  // on the block before `next`
    KvHold hold_;                                // on the reserved ones, without faults
};

// All of it, in groups, so that a part is there for others while the rest is copied.
KvStored kv_put(KvDraft& draft, u64 first, const KvPieces& from);

// Of a plain value: whole or not at all.
KvStored kv_put_value(KvDraft& draft, const char* from);

}  // namespace osf::kv

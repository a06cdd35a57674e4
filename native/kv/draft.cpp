#include "kv/draft.hpp"

#include <algorithm>

#include "kv/policy.hpp"

namespace osf::kv {

KvDraft::KvDraft(std::shared_ptr<KvPool> in, const KvKey& root, std::span<const u32> tokens, u32 tenant, u64 expires_ns)
    : pool(std::move(in)), tokens_(tokens.begin(), tokens.end()), expires_ns_(expires_ns), tenant_(tenant), owner_(pool->space->members.executor()), pin_(*pool) {
    pool->need_write();
    const u64 size = block_tokens();
    KvChain chain(root, u32(size));
    keys_.reserve(tokens.size() / size);
    while ((keys_.size() + 1) * size <= tokens.size()) keys_.push_back(chain.next(tokens.data() + keys_.size() * size));
    welcome_ = expires_ns == AS_IS ? keys_.size() : kv_welcome(pool->head());  // what is fetched from another host is wanted now
    catch_up();
}

KvDraft::KvDraft(std::shared_ptr<KvPool> in, const KvKey& root, std::span<const u8> name, u64 nbytes, u32 tenant, u64 expires_ns)
    : pool(std::move(in)), nbytes_(nbytes), expires_ns_(expires_ns), tenant_(tenant), owner_(pool->space->members.executor()), pin_(*pool) {
    pool->need_write();
    const u64 blocks = result_.blocks = std::max<u64>(1, nbytes / pool->head().block_bytes + (nbytes % pool->head().block_bytes != 0));
    if (!KvHit(pool, kv_name_key(root, name)).slots.empty()) {
        result_.present = blocks;
    } else if (blocks > pool->head().slots || !make_way(root, name)) {  // too large ever to be whole: nothing is evicted for it
        result_.declined = blocks;
    } else {
        nonce_ = std::atomic_ref<u64>(pool->head().values).fetch_add(1) + 1;
        welcome_ = blocks;                       // all or nothing
        keys_.push_back(kv_name_key(root, name));
        while (keys_.size() < blocks) keys_.push_back(kv_next_key(keys_.back(), nonce_));
    }
}

// What is left of an older value of this name, whose end was evicted or that has expired, goes. False: somebody holds it.
bool KvDraft::make_way(const KvKey& root, std::span<const u8> name) {
    std::vector<KvKey> keys{kv_name_key(root, name)};
    u32 first = pool->find(keys[0]);
    if (first == NO_SLOT) return true;
    u64 nbytes = 0, nonce = 0;
    {
        KvPin pin(*pool);
        if (!pin.hold(first, keys[0])) return true;
        nbytes = pool->entry(first).nbytes;
        nonce = pool->entry(first).nonce;
    }
    while (keys.size() < div_up(nbytes, pool->head().block_bytes)) keys.push_back(kv_next_key(keys.back(), nonce));
    u64 present = pool->longest(keys, 0);
    u32 last = present ? pool->find(keys[present - 1]) : NO_SLOT;
    if (last != NO_SLOT) pool->evict(last, keys[present - 1], 0);
    return pool->find(keys[0]) == NO_SLOT;
}

KvDraft::~KvDraft() { abandon(); }

void KvDraft::need_owner() const {
    if (pool->space->members.executor() != owner_) throw Error(Code::bad_input, "this draft is of the process that made it; a forked one makes its own");
}

void KvDraft::catch_up() {
    u64 present = pool->longest(keys_, next_);
    if (present == next_) return;
    KvPin further(*pool);
    for (; present > next_; present = pool->longest(std::span(keys_).first(present - 1), next_)) {
        u32 slot = pool->find(keys_[present - 1]);
        if (slot == NO_SLOT || !further.hold(slot, keys_[present - 1])) continue;
        if (expires_ns_ != AS_IS) pool->renew(slot, expires_ns_);
        else if (!(present = unexpired(present, slot, further))) return;
        pin_.swap_with(further);
        last_ = slot;
        result_.present += present - next_;
        next_ = present;
        return;
    }
}

// Of the blocks up to `present`, the last of which is in `slot` and held, those before the first whose time is over: it is put anew.
// 0: none that is new. Slot and pin move to the last of them.
u64 KvDraft::unexpired(u64 present, u32& slot, KvPin& held) const {
    const u64 now = wall_ns();
    u64 good = present;
    u32 last = slot;
    for (u64 at = present, from = slot; at-- > next_; from = pool->entry(u32(from)).parent - 1) {
        const u64 expires = load(pool->entry(u32(from)).expires_ns);
        if (!expires || expires > now) continue;
        good = at;
        last = pool->entry(u32(from)).parent - 1;
    }
    if (good == next_) return 0;
    if (good < present) held.move(slot = last);
    return good;
}

u64 KvDraft::reserve(u64 most) {
    need_owner();
    const u64 left = keys_.size() - next_ - slots_.size(), from = slots_.size();
    take_slots(std::min(most, left));
    if (pool->space->pager) make_room(std::span(slots_).subspan(from));
    for (u64 at = from; at < slots_.size(); at++) {
        pool->touch(slots_[at]);
        if (!nonce_) {
            std::memcpy(pool->tokens(slots_[at]), tokens_.data() + (next_ + at) * block_tokens(), 4 * block_tokens());
        } else if (next_ + at == 0) {
            pool->entry(slots_[at]).nbytes = nbytes_;
            pool->entry(slots_[at]).nonce = nonce_;
        }
    }
    return slots_.size();
}

// The first ones crowd out whatever there is; of the rest, a few at a time, each only what is worth less than itself.
void KvDraft::take_slots(u64 most) {
    constexpr u64 FEW = 16;
    const u64 first = std::min(most, welcome_), taken = pool->allocate(u32(first), tenant_, slots_);
    welcome_ -= taken;
    if (taken < first) return;
    for (u64 left = most - first; left && !passed_over_;) {
        const u64 at = next_ + slots_.size(), some = std::min(left, FEW);
        const u64 got = pool->allocate(u32(some), tenant_, slots_, pool->value_of(keys_[at], use(), u32(at)));
        left -= got;
        if (got == some) continue;
        pool->pass_over(std::span(keys_).subspan(at + got), use());
        passed_over_ = true;
    }
}

const KvUse& KvDraft::use() {
    if (use_.last == NO_SLOT) use_ = pool->use_of(std::span(keys_).subspan(next_), last_, u32(next_));
    return use_;
}

// In a space with a flash tier: nothing is read that is to be written over; without faults, what cannot be held in memory is not reserved.
void KvDraft::make_room(std::span<const u32> fresh) {
    pool->forget(fresh);
    if (!pool->plain()) return pool->provide(fresh.first(std::min<u64>(fresh.size(), pool->group())));
    const u64 held = hold_.take(*pool, fresh);
    pool->give_back(fresh.subspan(held), owner_);
    slots_.resize(slots_.size() - fresh.size() + held);
}

void KvDraft::write(u64 first, const KvPieces& from) {
    need_owner();
    const u64 pieces = from.addresses.size();
    if (first > next_ || (from.first + pieces) * from.bytes > pool->head().block_bytes ||
        (!from.table.empty() && from.table.size() < next_ + slots_.size() - first))
        throw Error(Code::bad_input, "block " + std::to_string(next_) + " is to be filled, but what is given begins with block " + std::to_string(first));
    const bool past = slots_.size() * pieces * from.bytes >= KV_PAST_CACHES;
    for (u64 at = 0; at < slots_.size(); at++) {
        char* to = pool->block(slots_[at]) + from.first * from.bytes;
        for (u64 piece = 0; piece < pieces; piece++)
            kv_copy(to + piece * from.bytes, from.at(piece, next_ + at - first), from.bytes, past);
    }
    if (past) kv_copied();
}

void KvDraft::write_value(const char* from) {
    const u64 size = pool->head().block_bytes;
    const bool past = nbytes_ >= KV_PAST_CACHES;
    for (u64 at = 0; at < slots_.size(); at++) {
        u64 offset = (next_ + at) * size;
        if (offset < nbytes_) kv_copy(pool->block(slots_[at]), from + offset, std::min(size, nbytes_ - offset), past);
    }
    if (past) kv_copied();
}

KvStored KvDraft::publish() {
    need_owner();
    if (!slots_.empty()) {
        auto keys = std::span(keys_).subspan(next_, slots_.size());
        u32 fresh = pool->publish(slots_, keys, last_, u32(next_), expires_ns_, pin_, use(), nonce_ != 0);
        result_.stored += fresh;
        result_.present += slots_.size() - fresh;
        next_ += slots_.size();
        slots_.clear();
        hold_.drop();
    }
    if (keys_.empty()) return result_;
    result_.blocks = keys_.size();
    result_.declined = keys_.size() - next_;
    return result_;
}

void KvDraft::abandon() noexcept {
    pool->give_back(slots_, owner_);
    slots_.clear();
    hold_.drop();
}

KvStored kv_put_value(KvDraft& draft, const char* from) {
    if (draft.reserve(draft.blocks()) < draft.blocks()) draft.abandon();
    draft.write_value(from);
    KvStored stored = draft.publish();
    draft.pool->count_declined(stored.declined);
    return stored;
}

KvStored kv_put(KvDraft& draft, u64 first, const KvPieces& from) {
    const u64 group = draft.pool->group();
    if (first > draft.next())
        throw Error(Code::bad_input, "the pool has " + std::to_string(draft.next()) + " blocks of this prompt, but what is put begins with block " +
                                         std::to_string(first) + ": put from there on, or from the start");
    while (draft.next() < draft.blocks()) {
        draft.catch_up();
        if (draft.next() == draft.blocks() || !draft.reserve(group)) break;
        draft.write(first, from);
        draft.publish();
    }
    KvStored stored = draft.publish();
    draft.pool->count_declined(stored.declined);
    return stored;
}

}  // namespace osf::kv

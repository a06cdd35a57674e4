// The pool's memory, its lock, and look-ups.
#include "kv/pool.hpp"

#include <algorithm>
#include <bit>
#include <ctime>
#include <sys/random.h>

#include "kv/policy.hpp"
#include "space/sync.hpp"
#include "tiers/client.hpp"

namespace osf::kv {

u64 wall_ns() {
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    return u64(time.tv_sec) * 1'000'000'000u + u64(time.tv_nsec);
}

static u64 head_check(const KvHead& head) { return hash_bytes(&head, offsetof(KvHead, check), KV_VERSION); }

KvHead kv_head(const KvShape& shape) {
    KvHead head{};
    std::memcpy(head.magic, KV_MAGIC, sizeof KV_MAGIC);
    head.version = KV_VERSION;
    head.entry_bytes = sizeof(KvEntry);
    head.block_bytes = shape.block_bytes;
    // Whole pages where it costs little: what is read from and written to disk later must begin at one.
    head.stride = align_up(shape.block_bytes, shape.block_bytes >= 64 * KIB ? PAGE : 64);
    head.slots = shape.slots;
    head.block_tokens = shape.block_tokens;
    head.buckets = std::bit_ceil(std::max(2u, 2 * shape.slots));
    head.tenants = KV_TENANTS;
    u64 at = PAGE;
    auto part = [&](u64& where, u64 bytes) {
        where = at;
        at = align_up(at + bytes, 64);
    };
    const u64 slots = shape.slots;
    part(head.tenants_at, sizeof(KvTenant) * KV_TENANTS);
    part(head.heads_at, 4ull * head.buckets);
    part(head.entries_at, sizeof(KvEntry) * slots);
    part(head.tokens_at, 4ull * shape.block_tokens * slots);
    part(head.leaves_at, 4 * slots);
    part(head.free_at, 4 * slots);
    part(head.tables_at, sizeof(KvTables));
    part(head.ghosts_at, sizeof(KvGhost) * KV_GHOSTS * slots);
    head.data_at = align_up(at, shape.block_bytes >= UNIT ? UNIT : PAGE);
    head.bytes = head.data_at + head.stride * slots;
    return head;
}

u64 kv_blocks_at(const char* pool, u64 nbytes) {
    const KvHead& head = *reinterpret_cast<const KvHead*>(pool);
    const bool good = nbytes >= PAGE && !std::memcmp(head.magic, KV_MAGIC, sizeof KV_MAGIC) && head.check == head_check(head) && head.data_at >= PAGE &&
                      head.data_at % PAGE == 0 && head.data_at <= head.bytes && head.bytes <= nbytes;
    return good ? head.data_at : 0;
}

void KvPool::format(Space& space, const Held& held, const KvShape& shape) {
    KvHead head = kv_head(shape);
    if (!shape.slots || shape.slots >= 1u << 30 || space.record(held).nbytes < head.bytes)
        throw Error(Code::bad_input, "a pool of " + std::to_string(shape.slots) + " blocks does not fit the array that was made for it");
    char* base = space.bytes(held);
    KvHold hold;                                 // until the head says what must stay in memory
    if (space.pager) hold.take(*tiers_of(space), base, head.data_at);
    std::memset(base, 0, head.data_at);  // the array may be of recycled memory; blocks are overwritten before they are read
    u32* free = reinterpret_cast<u32*>(base + head.free_at);
    for (u32 at = 0; at < shape.slots; at++) free[at] = shape.slots - 1 - at;  // taken from the end: lowest first, so prompts lie in order
    auto& tables = *reinterpret_cast<KvTables*>(base + head.tables_at);
    for (auto& values : tables.values)           // least recently used, until something is learned
        for (u32 age = 0; age < KV_AGES; age++) values[age] = float(1 / (1 + kv_age_from(age, head)));
    if (::getrandom(&head.id, sizeof head.id, 0) != sizeof head.id) fail_os("getrandom", errno);
    head.check = head_check(head);
    head.values = head.id;                       // nonces of another pool's values are others
    head.free_count = shape.slots;
    head.clock = 1;
    std::memcpy(base, &head, sizeof head);
}

std::shared_ptr<KvPool> KvPool::make(const std::shared_ptr<Space>& space, std::string name, const KvShape& shape) {
    const u64 bytes = kv_head(shape).bytes;
    Held held = space->make({bytes, 3, kind_pool, {bytes}, {}, std::move(name)}, false);
    try {
        format(*space, held, shape);
        space->publish(held, false);
    } catch (...) {
        space->release(held);
        throw;
    }
    space->hand_out(held);
    return std::make_shared<KvPool>(space, held);
}

std::shared_ptr<KvPool> KvPool::open(const std::shared_ptr<Space>& space, std::string_view name) {
    Held held = space->find(name);
    return held ? std::make_shared<KvPool>(space, held) : nullptr;
}

KvPool::KvPool(std::shared_ptr<Space> in, Held held) : space(std::move(in)), held_(held) {
    auto refuse = [&](Code code, const std::string& why) {
        std::string name = space->name_of(held_);
        space->release(held_);
        throw Error(code, "'" + name + "' cannot be used as a KV pool: " + why);
    };
    const u64 nbytes = space->record(held).nbytes;
    char* base = space->bytes(held);
    auto hold = [&](u64 bytes) {
        try {
            hold_metadata(base, bytes);
        } catch (const Error&) {
            space->release(held_);
            throw;
        }
    };
    hold(std::min(nbytes, PAGE));
    head_ = reinterpret_cast<KvHead*>(base);
    if (space->record(held).kind != kind_pool || nbytes < PAGE || std::memcmp(head_->magic, KV_MAGIC, sizeof KV_MAGIC))
        refuse(Code::name_taken, "it is something else; give the pool another name=");
    if (head_->version != KV_VERSION || head_->entry_bytes != sizeof(KvEntry))
        refuse(Code::wrong_version, "it is of version " + std::to_string(head_->version) + ", this Openshelf makes version " +
                                        std::to_string(KV_VERSION) + "; delete it, or give the pool another name=");
    if (head_->check != head_check(*head_) || head_->bytes > nbytes || !head_->slots || !std::has_single_bit(head_->buckets))
        refuse(Code::corrupt, "its head is damaged; delete it");
    hold(head_->data_at);
    tenants_ = reinterpret_cast<KvTenant*>(base + head_->tenants_at);
    heads_ = reinterpret_cast<u32*>(base + head_->heads_at);
    entries_ = reinterpret_cast<KvEntry*>(base + head_->entries_at);
    tokens_ = reinterpret_cast<u32*>(base + head_->tokens_at);
    leaves_ = reinterpret_cast<u32*>(base + head_->leaves_at);
    free_ = reinterpret_cast<u32*>(base + head_->free_at);
    tables_ = reinterpret_cast<KvTables*>(base + head_->tables_at);
    ghosts_ = reinterpret_cast<KvGhost*>(base + head_->ghosts_at);
    data_ = base + head_->data_at;
    mask_ = head_->buckets - 1;
    touched_ = std::vector<std::atomic<bool>>(head_->slots);
    entries_offset_ = u64(reinterpret_cast<char*>(entries_) - space->base());
    kv_load_hash();
}

KvPool::~KvPool() { space->release(held_); }

void KvPool::check_usable() const {
    space->check_usable();
    if (load(space->record(held_).state, std::memory_order_relaxed) != live)
        throw Error(Code::closed, "this KV pool was deleted from the space '" + std::string(space->header().name) + "'; make it again");
}

void KvPool::need_write() const {
    check_usable();
    if (space->read_only())
        throw Error(Code::not_permitted, "the space '" + std::string(space->header().name) + "' is open read-only (mode=\"r\"): its KV pool can be matched and read, not changed");
}

KvPool::Guard::Guard(KvPool& pool) : pool_(pool) {
    if (lock_take(pool.head_->lock, pool.space->members) == Grant::owner_died && recovery) pool.recover();
}

bool KvPool::has_key(u32 slot, const KvKey& key) const {
    const KvEntry& entry = entries_[slot];
    for (int at = 0; at < 4; at++)
        if (load(entry.key[at], std::memory_order_acquire) != key.words[at]) return false;
    return true;
}

// Without a lock. An entry that the walk stands on may be freed and used for another block, even for several one after the other: if it
// is of another life after it was read than before, or of another bucket, the walk begins again. Entries of this bucket lead on to what
// followed them, removed or not.
u32 KvPool::find(const KvKey& key) const {
    const u64 bits = key.words[0] & mask_;
    auto of_bucket = [&](const KvEntry& entry) { return (load(entry.key[0], std::memory_order_acquire) & mask_) == bits; };
    for (int attempt = 0; attempt < 1000; attempt++) {
        bool strayed = false;
        u32 at = load(heads_[bits], std::memory_order_acquire);
        for (u32 hops = 0; at && !strayed; hops++) {
            if (!valid(at - 1) || hops > 1000) break;        // damaged, or turning in circles with those who change it
            const KvEntry& entry = entries_[at - 1];
            const u32 life = load(entry.life, std::memory_order_acquire);
            if (has_key(at - 1, key) && load(entry.state, std::memory_order_acquire) == kv_live) return at - 1;
            at = load(entry.next, std::memory_order_acquire);
            strayed = !of_bucket(entry) || (life & 1) || load(entry.life, std::memory_order_acquire) != life;
        }
        if (!at && !strayed) return NO_SLOT;
    }
    return NO_SLOT;
}

bool KvPin::hold(u32 slot, const KvKey& key) {
    swap(word(), pool_->offset_of(slot));  // seen by every evictor that does not see us look at the state
    step();
    if (load(pool_->entry(slot).state) == kv_live && pool_->has_key(slot, key)) return true;
    clear();
    return false;
}

KvPin::~KvPin() {
    if (!pool_ || !pool_->space->members.joined()) return;
    clear();
    pool_->space->members.give_pin(index_);
}

// A block is here only if all before it are: so look in the middle.
u64 KvPool::longest(std::span<const KvKey> keys, u64 present) const {
    u64 low = present, high = keys.size();
    while (low < high) {
        u64 middle = (low + high + 1) / 2;
        if (find(keys[middle - 1]) != NO_SLOT) low = middle;
        else high = middle - 1;
    }
    return low;
}

void KvPool::count_match(std::span<const u32> slots, u64 queried) {
    if (space->read_only()) return;
    auto add = [](u64& word, u64 count) { std::atomic_ref<u64>(word).fetch_add(count, std::memory_order_relaxed); };
    add(head_->queries, 1);
    add(head_->queried_blocks, queried);
    if (slots.empty()) return;
    add(head_->hit_blocks, slots.size());
    const u64 clock = std::atomic_ref<u64>(head_->clock).fetch_add(slots.size(), std::memory_order_relaxed) + slots.size();
    for (u32 slot : slots) kv_match(entries_[slot], clock, *head_, *tables_);
    kv_match_end(entries_[slots.back()], slots.size() == 1, queried - slots.size());
}

u32 KvPool::find_tenant(u64 id) const {
    for (u32 at = 0; at < head_->tenants && load(tenants_[at].id); at++)
        if (load(tenants_[at].id) == id) return at;
    return NO_SLOT;
}

u32 KvPool::tenant(std::string_view name, const u32* quota) {
    const u64 id = hash_name(name) | 1;
    u32 at = find_tenant(id);
    if (at != NO_SLOT && !quota) return at;
    if (space->read_only()) return 0;  // it will put nothing
    need_write();
    Guard guard(*this);
    at = find_tenant(id);
    const bool fresh = at == NO_SLOT;
    if (fresh)
        for (at = 0; at < head_->tenants && load(tenants_[at].id);) at++;
    if (at == head_->tenants)
        throw Error(Code::no_room, "the pool has " + std::to_string(KV_TENANTS) + " tenants, the most it may; use another pool (name=)");
    KvTenant& tenant = tenants_[at];
    if (quota || fresh) store(tenant.quota, quota ? *quota : 0);
    if (fresh) {
        std::memset(tenant.name, 0, sizeof tenant.name);
        std::memcpy(tenant.name, name.data(), std::min<u64>(name.size(), sizeof tenant.name - 1));
        step();
        store(tenant.id, id);
    }
    return at;
}

std::vector<KvTenantStats> KvPool::tenants() {
    std::vector<KvTenantStats> result;
    for (u32 at = 0; at < head_->tenants && load(tenants_[at].id); at++)
        result.push_back({tenants_[at].name, load(tenants_[at].quota), load(tenants_[at].used)});
    return result;
}

KvStats KvPool::stats() const {
    const KvHead& h = *head_;
    return {h.block_bytes, h.stride, h.slots, h.block_tokens, load(h.live), load(h.free_count), load(h.filling), load(h.queries),
            load(h.queried_blocks), load(h.hit_blocks), load(h.stored_blocks), load(h.evicted_blocks), load(h.declined_blocks), load(h.expired_blocks), load(h.fetched_blocks)};
}

}  // namespace osf::kv

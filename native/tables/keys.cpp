#include "tables/keys.hpp"

#include <algorithm>
#include <bit>

#include "space/sync.hpp"
#include "simd/choose.hpp"
#include "tables/initial.hpp"
#include "tables/versions.hpp"

namespace osf::tables {

static std::string keys_name(u64 id) { return hidden_head(id) + "/keys"; }
constexpr u32 KEYS_VERSION = 2;
constexpr u64 COUNTED = 128;                     // one of so many reads is counted, so that reading stays reading
static u64 keys_check(const KeysHead& head) { return hash_bytes(&head, offsetof(KeysHead, check), 1); }

void Keys::make(const std::shared_ptr<Table>& table, u32 admit_after, u64 half_life) {
    const u64 rows = table->stats().rows - 1;    // the last one is for keys without a row
    KeysHead head{};
    std::memcpy(head.magic, KEYS_MAGIC, sizeof KEYS_MAGIC);
    head.id = table->head().id;
    head.rows = rows;
    head.buckets = rows / KEYS_A_BUCKET;
    head.sketch = std::bit_ceil(std::max<u64>(1024, 2 * rows));
    head.admit_after = admit_after;
    head.version = KEYS_VERSION;
    head.half_life = half_life;
    head.check = keys_check(head);
    const u64 bytes = PAGE + KEY_LOCKS * sizeof(Lock) + head.buckets * (sizeof(KeyBucket) + KEYS_A_BUCKET * sizeof(KeyUse)) + SKETCH_LINES * head.sketch;
    Space& space = *table->space;
    Held held = space.make({bytes, 3, kind_array, {bytes}, {}, keys_name(head.id)}, true);
    try {
        space.use_huge_pages(held);
        char* base = space.bytes(held);
        std::memcpy(base, &head, sizeof head);
        auto* buckets = reinterpret_cast<KeyBucket*>(base + PAGE + KEY_LOCKS * sizeof(Lock));
        for (u64 at = 0; at < head.buckets; at++) std::fill_n(buckets[at].keys, KEYS_A_BUCKET, NO_KEY);
        space.publish(held, false);
    } catch (...) {
        space.release(held);
        throw;
    }
    space.release(held);
}

std::shared_ptr<Keys> Keys::open(const std::shared_ptr<Table>& table) {
    Held held = table->space->find(keys_name(table->head().id));
    if (!held) return nullptr;
    table->space->hand_out(held);
    return std::make_shared<Keys>(table, held);
}

Keys::Keys(std::shared_ptr<Table> of, Held held) : table(std::move(of)), held_(held) {
    char* base = table->space->bytes(held);
    head_ = reinterpret_cast<KeysHead*>(base);
    if (std::memcmp(head_->magic, KEYS_MAGIC, sizeof KEYS_MAGIC) || head_->version != KEYS_VERSION || head_->check != keys_check(*head_)) {
        table->space->release(held_);
        throw Error(Code::corrupt, "the keys of the table '" + table->name() + "' are damaged, or of another version of Openshelf; delete the table");
    }
    locks_ = reinterpret_cast<Lock*>(base + PAGE);
    buckets_ = reinterpret_cast<KeyBucket*>(base + PAGE + KEY_LOCKS * sizeof(Lock));
    uses_ = reinterpret_cast<KeyUse*>(buckets_ + head_->buckets);
    sketch_ = reinterpret_cast<u8*>(uses_ + head_->rows);
    index_ = {reinterpret_cast<const char*>(buckets_), head_->buckets, std::int64_t(head_->rows)};
}

Keys::~Keys() { table->space->release(held_); }

[[noreturn]] static void no_key(const Ids& keys) {
    u64 at = 0;
    while (at + 1 < keys.count && std::int64_t(keys[at]) != NO_KEY) at++;
    throw Error(Code::bad_input, "the key -2^63, at position " + std::to_string(at) + ", is none: it marks places without a key");
}

// Without branches, which no processor could predict: a key is anywhere in its bucket.
static std::int64_t place_in(const KeyBucket& bucket, std::int64_t key) {
    std::int64_t found = -1;
    for (u64 at = 0; at < KEYS_A_BUCKET; at++) found = load(bucket.keys[at], std::memory_order_acquire) == key ? std::int64_t(at) : found;
    return found;
}

std::int64_t Keys::find(std::int64_t key, u64 hash) const {
    for (const KeyBucket* bucket : {&first(hash), &second(hash)})
        if (const std::int64_t at = place_in(*bucket, key); at >= 0) return (bucket - buckets_) * std::int64_t(KEYS_A_BUCKET) + at;
    return -1;
}

void Keys::use(u64 row, u32 stamp) {
    KeyUse& use = uses_[row];                    // lost counts do no harm
    const u32 worth_now = worth(use, stamp);
    store(use.count, std::min<u32>(worth_now + 1, WANTED), std::memory_order_relaxed);
    store(use.stamp, stamp, std::memory_order_relaxed);
}

// A count is worth half after each half-life.
u32 Keys::worth(const KeyUse& use, u32 stamp) const {
    const u32 age = stamp - std::min(stamp, load(use.stamp, std::memory_order_relaxed));
    return age > 31 ? 0 : load(use.count, std::memory_order_relaxed) >> age;
}

void Keys::check(const Ids& keys) {
    if (keys.wide && kernels().has(static_cast<const std::int64_t*>(keys.at), keys.count, NO_KEY)) no_key(keys);
}

void Keys::ask_for(const Ids& keys, u64 from, u64 to) const {
    for (u64 at = from; at < to; at++) __builtin_prefetch(&first(KeyIndex::hash(std::int64_t(keys[at]))), 0, 2);
}

u64 Keys::find_some(const std::int64_t* keys, u64 count, u64 further, std::int64_t* rows) {
    const u64 none = kernels().find_keys(index_, keys, count, further, rows);
    std::atomic_thread_fence(std::memory_order_acquire);  // a key that is there has its own row
    for (u64 at = 0; at < count; at += COUNTED) __builtin_prefetch(&uses_[std::min(u64(rows[at]), no_row() - 1)], 1);
    return none;
}

void Keys::used(const std::int64_t* rows, u64 count) {
    if (table->space->read_only()) return;
    const u32 stamp = now();
    for (u64 at = 0; at < count; at += COUNTED)
        if (u64(rows[at]) != no_row()) use(u64(rows[at]), stamp);
}

void Keys::came(u64 count) {
    if (!table->space->read_only()) std::atomic_ref<u64>(head_->clock).fetch_add(count, std::memory_order_relaxed);
}

u64 Keys::rows_of(const Ids& keys, std::int64_t* rows) {
    table->check_usable();
    check(keys);
    const std::vector<std::int64_t> wanted = keys.copy();
    ask_for(keys, 0, std::min(KEYS_AHEAD, keys.count));
    const u64 none = find_some(wanted.data(), wanted.size(), 0, rows);
    used(rows, keys.count);
    came(keys.count);
    return none;
}

bool Keys::still(const Ids& keys, const std::int64_t* rows, u64 before) const {
    std::atomic_thread_fence(std::memory_order_acquire);
    if (changes() == before) return true;
    for (u64 at = 0; at < keys.count; at++) {
        const u64 row = u64(rows[at]);
        if (row != no_row() && load(buckets_[row / KEYS_A_BUCKET].keys[row % KEYS_A_BUCKET], std::memory_order_relaxed) != std::int64_t(keys[at])) return false;
    }
    return true;
}

u32 Keys::seen(u64 hash, bool count) {
    u32 least = 255;
    for (u64 line = 0; line < SKETCH_LINES; line++) {
        u8& counter = sketch_[line * head_->sketch + ((hash >> (20 * line)) & (head_->sketch - 1))];
        const u32 value = load(counter, std::memory_order_relaxed);
        if (count && value < 255) store(counter, u8(value + 1), std::memory_order_relaxed);
        least = std::min(least, value + (count && value < 255));
    }
    return least;
}

// Counts of keys without a row are halved once in a half-life, by whoever gets there first.
void Keys::age() {
    const u64 before = load(head_->clock, std::memory_order_relaxed) / head_->half_life;
    if (std::atomic_ref<u64>(head_->aged).exchange(before, std::memory_order_relaxed) == before) return;
    for (u64 at = 0; at < SKETCH_LINES * head_->sketch; at++) store(sketch_[at], u8(load(sketch_[at], std::memory_order_relaxed) / 2), std::memory_order_relaxed);
}

void Keys::give_row(std::int64_t key, u64 hash, u32 count, u64 there) {
    Lock& lock = locks_[hash % KEY_LOCKS];       // what a dead owner left is whole: see above
    lock_take(lock, table->space->members);
    struct Drop {
        Lock& lock;
        ~Drop() { lock_drop(lock); }
    } drop{lock};
    if (find(key, hash) < 0 && !place(key, hash, count, there)) std::atomic_ref<u64>(head_->refused).fetch_add(1, std::memory_order_relaxed);
}

void Keys::admit(const Ids& keys, std::int64_t* rows, bool all) {
    const u32 stamp = now();
    if (rows_of(keys, rows)) age();
    for (u64 at = 0; at < keys.count; at++) {
        if (u64(rows[at]) != no_row()) {
            use(u64(rows[at]), stamp);
            continue;
        }
        const std::int64_t key = std::int64_t(keys[at]);
        const u64 hash = KeyIndex::hash(key);
        const u32 count = all ? WANTED : seen(hash, true);
        if (count >= head_->admit_after) give_row(key, hash, count);
        if (const std::int64_t row = find(key, hash); row >= 0) rows[at] = row;
    }
    // A key that came later may have taken the place of one before it.
    for (u64 at = 0; at < keys.count; at++)
        if (const u64 row = u64(rows[at]); row != no_row() && load(buckets_[row / KEYS_A_BUCKET].keys[row % KEYS_A_BUCKET]) != std::int64_t(keys[at])) rows[at] = std::int64_t(no_row());
}

Guard Keys::only_own(const Ids& keys, const std::int64_t* rows) const {
    Guard guard;
    guard.may = [this, keys, rows](u64 position) {
        const u64 row = u64(rows[position]);
        return row != no_row() && load(buckets_[row / KEYS_A_BUCKET].keys[row % KEYS_A_BUCKET], std::memory_order_relaxed) == std::int64_t(keys[position]);
    };
    return guard;
}

void Keys::update(const Update& of_keys, u32 threads) {
    table->need_write();
    check_finite(of_keys, table->head().dim, table->name());
    std::vector<std::int64_t> rows(of_keys.ids.count);
    admit(of_keys.ids, rows.data(), false);
    Update update = of_keys;
    update.ids = {rows.data(), true, rows.size()};
    update_rows(update, threads, only_own(of_keys.ids, rows.data()));
}

u64 Keys::write(const Ids& keys, const char* given, bool raw, const char* states) {
    table->need_write();
    std::vector<std::int64_t> rows(keys.count);
    admit(keys, rows.data(), true);
    u64 written = 0;
    Guard guard = only_own(keys, rows.data());
    guard.done = [&](u64) { written++; };
    write_rows(table, {rows.data(), true, rows.size()}, given, raw, states, guard);
    return written;
}

void Keys::settle(const Ids& keys, const std::int64_t* places) {
    table->need_write();
    table->check_usable();
    for (u64 at = 0; at < keys.count; at++) {
        const std::int64_t key = std::int64_t(keys[at]);
        if (key == NO_KEY) no_key(keys);
        give_row(key, KeyIndex::hash(key), WANTED, u64(places[at]));
    }
}

// With the key's lock. This place, if it is empty and may be the key's; else an empty one, or that of the least wanted key, if this one
// is wanted more.
bool Keys::place(std::int64_t key, u64 hash, u32 count, u64 there) {
    const TableHead& head = table->head();
    std::vector<char> row(head.row_bytes), state(head.state_bytes);
    fill_rows(head.init, head.row_type, head.dim, row.data(), u64(key), 1);
    for (int attempt = 0; attempt < 8; attempt++) {
        const u32 stamp = now();
        u64 at = 0, least = ~0ull;
        for (const KeyBucket* bucket : {&first(hash), &second(hash)})
            for (u64 one = 0; one < KEYS_A_BUCKET; one++) {
                const u64 score = load(bucket->keys[one], std::memory_order_relaxed) == NO_KEY ? 0 : 1 + worth(uses_[u64(bucket - buckets_) * KEYS_A_BUCKET + one], stamp);
                const u64 number = u64(bucket - buckets_) * KEYS_A_BUCKET + one;
                if (score >= least && (score || number != there)) continue;
                least = score;
                at = number;
            }
        if (least > count) return false;
        KeyBucket& bucket = buckets_[at / KEYS_A_BUCKET];
        std::int64_t& held = bucket.keys[at % KEYS_A_BUCKET];
        const std::int64_t before = load(held);
        bool done = false;
        Guard guard;
        guard.may = [&](u64) {
            if (load(held) != before) return false;
            // A reader that still found the key sees that something has changed, if it reads any byte of what comes now.
            store(held, NO_KEY, std::memory_order_seq_cst);
            std::atomic_ref<u64>(head_->changes).fetch_add(1);
            return true;
        };
        guard.done = [&](u64) {
            uses_[at] = {stamp, count};
            store(held, key, std::memory_order_release);
            done = true;
        };
        const std::int64_t id = std::int64_t(at);
        write_rows(table, {&id, true, 1}, row.data(), true, head.state_bytes ? state.data() : nullptr, guard);
        if (!done) continue;                     // another process was first
        std::atomic_ref<u64>(head_->admitted).fetch_add(1, std::memory_order_relaxed);
        if (before != NO_KEY) std::atomic_ref<u64>(head_->evicted).fetch_add(1, std::memory_order_relaxed);
        return true;
    }
    return false;
}

void Keys::list(std::vector<std::int64_t>& keys, std::vector<std::int64_t>& rows) const {
    for (u64 at = 0; at < head_->buckets * KEYS_A_BUCKET; at++) {
        const std::int64_t key = load(buckets_[at / KEYS_A_BUCKET].keys[at % KEYS_A_BUCKET]);
        if (key == NO_KEY) continue;
        keys.push_back(key);
        rows.push_back(std::int64_t(at));
    }
}

KeysStats Keys::stats() const {
    u64 used = 0;
    for (u64 at = 0; at < head_->buckets * KEYS_A_BUCKET; at++) used += load(buckets_[at / KEYS_A_BUCKET].keys[at % KEYS_A_BUCKET], std::memory_order_relaxed) != NO_KEY;
    return {head_->rows, used, load(head_->admitted), load(head_->evicted), load(head_->refused), load(head_->clock), changes(), head_->admit_after};
}

}  // namespace osf::tables

#include "space/index.hpp"

#include <algorithm>
#include <bit>

namespace osf::space {

constexpr u64 EMPTY = 0, TOMBSTONE = 1;
constexpr u64 FIRST_WORDS = PAGE / 8;

void Index::attach(char* base, Roots& roots, Heap& meta, Members& members) {
    base_ = base;
    roots_ = &roots;
    meta_ = &meta;
    members_ = &members;
}

void Index::create() {
    for (Stripe& stripe : roots_->stripes) grow(stripe);
}

u64 record_bytes(const Record& record) { return sizeof(Record) + 8u * record.ndim + record.descr_len + record.name_len; }
char* record_inline(Record& record) { return reinterpret_cast<char*>(&record + 1); }

u64 name_head(std::string_view name) { return NAME_MAGIC << 48 | (hash_name(name) & 0xffffffff) << 16 | name.size(); }

std::string name_of(const Record& record, const Heap& meta) {
    if (u64 renamed = load(record.renamed)) {
        u64 ref = load(record.names[(renamed - 1) & 1]);
        if (!meta.contains(ref)) return {};
        const Name& name = *reinterpret_cast<const Name*>(meta.pointer(ref));
        u64 length = std::min<u64>(load(name.magic_len) & 0xffff, NAME_MAX_BYTES);
        std::string text(align_up(length, 8), '\0');
        for (u64 at = 0; at < text.size(); at += 8) {
            u64 word = load(name.words[at / 8], std::memory_order_relaxed);
            std::memcpy(text.data() + at, &word, 8);
        }
        text.resize(length);
        return text;
    }
    const char* at = reinterpret_cast<const char*>(&record + 1) + 8u * record.ndim + record.descr_len;
    return {at, record.name_len};
}

bool Index::named(u64 offset, std::string_view name) const {
    const Record& rec = record(offset);
    if (load(rec.renamed)) return name_of(rec, *meta_) == name;
    return rec.name_len == name.size() &&
           std::memcmp(reinterpret_cast<const char*>(&rec + 1) + 8u * rec.ndim + rec.descr_len, name.data(), name.size()) == 0;
}

void Index::lock(u64 index) {
    Stripe& stripe = this->stripe(index);
    if (lock_take(stripe.lock, *members_) == Grant::owner_died && recovery) recover(stripe);
}

void Index::settle() {
    for (u64 index = 0; index < STRIPES; index++) {
        u32 word = load(stripe(index).lock.word) & ~WAITERS;
        if (!word || members_->alive(word)) continue;
        lock(index);
        unlock(index);
    }
}

// What a dead owner can leave: a table half built or half freed, wrong counts, and, killed in a rename, a word whose
// record has another name now or not yet.
void Index::recover(Stripe& stripe) {
    u64 current = load(stripe.table) & TABLE;
    for (u64* root : {&stripe.next, &stripe.old}) {
        u64 ref = load(*root);
        if (!ref) continue;
        if (meta_->offset(ref) == current) store(*root, 0);
        else meta_->free(*root);
    }
    u64 moving = load(stripe.moving), other = load(stripe.moving_to);
    // The record's name now lies here or in the other stripe; a word at the other of the two names must go before the
    // record can. If it is here, the walk below finds it.
    bool known = moving && meta_->slot_taken(moving) && !meta_->holds_names(meta_->chunk_index(moving));
    if (known) {
        u64 hash = hash_name(name_of(record(moving), *meta_));
        if (word_of(hash, moving) == word_of(other, moving) && stripe_of(hash) == stripe_of(other)) keep_one(hash, moving);
        else if (hash != other) bury(other, moving);
    }
    step();
    u64 index = u64(&stripe - roots_->stripes);
    u64* table = words(load(stripe.table));
    for (u64 at = 0; at < count(load(stripe.table)); at++) {
        u64 word = load(table[at]);
        if (word <= TOMBSTONE) continue;
        u64 hash = hash_name(name_of(record(word & OFFSET), *meta_));
        if (stripe_of(hash) != index || hash >> 48 != word >> 48) store(table[at], TOMBSTONE);
    }
    if (moving) {
        store(stripe.moving, 0);
        step();
        cas(this->stripe(stripe_of(other)).moving, moving, 0);  // both of its words are settled
    }
    recount(stripe);
}

// Both names of a rename have one word, in one stripe: the word that the present name leads to is the one to keep.
void Index::keep_one(u64 hash, u64 record) {
    u64 table = load(stripe(stripe_of(hash)).table), mask = count(table) - 1, kept = ~0ull;
    for (u64 position = hash / STRIPES, tries = 0; tries <= mask; position++, tries++) {
        u64& word = words(table)[position & mask];
        if (load(word) != word_of(hash, record)) continue;
        if (kept == ~0ull) kept = position & mask;
        else store(word, TOMBSTONE);
    }
}

// Without the lock of that stripe: its owner is dead, or it was recovered already and the word is gone.
void Index::bury(u64 hash, u64 record) {
    u64 table = load(stripe(stripe_of(hash)).table), mask = count(table) - 1;
    for (u64 position = hash / STRIPES, tries = 0; tries <= mask; position++, tries++) {
        u64& word = words(table)[position & mask];
        u64 seen = load(word);
        if (seen == EMPTY) return;
        if (seen == word_of(hash, record)) cas(word, seen, TOMBSTONE);
    }
}

// The name is changed by one store, `record.renamed = commit`, between the new word's coming and the old word's going.
void Index::move(u64 from_hash, u64 to_hash, Record& rec, u64 commit) {
    u64 offset = u64(reinterpret_cast<char*>(&rec) - base_);
    Stripe &source = stripe(stripe_of(from_hash)), &target = stripe(stripe_of(to_hash));
    auto remember = [&](u64 moving) {
        store(source.moving_to, to_hash);
        store(source.moving, moving);
        store(target.moving_to, from_hash);
        store(target.moving, moving);
        step();
    };
    remember(offset);
    u64 inserted = 0;
    try {
        inserted = insert(to_hash, offset);
    } catch (...) {
        remember(0);
        throw;
    }
    swap(rec.renamed, commit);
    step();
    u64 table = load(source.table), mask = count(table) - 1;
    for (u64 position = from_hash / STRIPES, tries = 0; tries <= mask; position++, tries++) {
        if (load(words(table)[position & mask]) != word_of(from_hash, offset)) continue;
        if (&source == &target && (position & mask) == inserted) continue;  // names of one tag have equal words
        erase(from_hash, position & mask);
        break;
    }
    remember(0);
}

void Index::recount(Stripe& stripe) {
    u64 table = load(stripe.table), live = 0, used = 0;
    for (u64 at = 0; at < count(table); at++) {
        u64 word = load(words(table)[at], std::memory_order_relaxed);
        used += word != EMPTY;
        live += word > TOMBSTONE;
    }
    store(stripe.live, live);
    store(stripe.used, used);
}

void Index::grow(Stripe& stripe) {
    u64 old = load(stripe.table), live = load(stripe.live);
    u64 size = old ? count(old) : 0;
    u64 wanted = std::max(FIRST_WORDS, live * 8 > size * 3 ? 2 * size : size);
    meta_->take_pages(wanted * 8 / PAGE, stripe.next);
    step();
    u64 offset = meta_->offset(load(stripe.next));
    u64 table = ((old >> 48) + 1) << 48 | offset | u64(std::countr_zero(wanted));
    u64* fresh = words(table);
    for (u64 at = 0; at < wanted; at++) store(fresh[at], EMPTY, std::memory_order_relaxed);
    for (u64 at = 0; at < size; at++) {
        u64 word = load(words(old)[at], std::memory_order_relaxed);
        if (word <= TOMBSTONE) continue;
        u64 position = hash_name(name_of(record(word & OFFSET), *meta_)) / STRIPES;
        while (load(fresh[position & (wanted - 1)], std::memory_order_relaxed)) position++;
        store(fresh[position & (wanted - 1)], word, std::memory_order_relaxed);
    }
    step();
    if (old) store(stripe.old, extent_ref(((old & TABLE) - meta_->chunk_offset(0)) / PAGE, size * 8 / PAGE));
    step();
    store(stripe.table, table, std::memory_order_seq_cst);
    step();
    store(stripe.next, 0);
    store(stripe.used, live);
    step();
    if (old) meta_->free(stripe.old);
}

Found Index::find(u64 hash, std::string_view name) const {
    u64 table = load(stripe(stripe_of(hash)).table), mask = count(table) - 1;
    const u64* at = words(table);
    for (u64 position = hash / STRIPES;; position++) {
        u64 word = load(at[position & mask]);
        if (word == EMPTY) return {};
        if (word != TOMBSTONE && word >> 48 == hash >> 48 && named(word & OFFSET, name))
            return {word & OFFSET, position & mask};
    }
}

bool Index::points(u64 hash, u64 record) const {
    u64 table = load(stripe(stripe_of(hash)).table), mask = count(table) - 1;
    for (u64 position = hash / STRIPES;; position++) {
        u64 word = load(words(table)[position & mask]);
        if (word == EMPTY) return false;
        if (word == word_of(hash, record)) return true;
    }
}

u64 Index::insert(u64 hash, u64 record) {
    Stripe& stripe = this->stripe(stripe_of(hash));
    if ((load(stripe.used) + 1) * 8 > count(load(stripe.table)) * 5) grow(stripe);
    u64 table = load(stripe.table), mask = count(table) - 1;
    for (u64 position = hash / STRIPES;; position++) {
        u64& word = words(table)[position & mask];
        u64 was = load(word);
        if (was > TOMBSTONE) continue;
        store(word, word_of(hash, record), std::memory_order_seq_cst);
        step();
        store(stripe.live, load(stripe.live) + 1);
        if (was == EMPTY) store(stripe.used, load(stripe.used) + 1);
        step();
        return position & mask;
    }
}

void Index::replace(u64 hash, u64 position, u64 record) {
    u64 table = load(stripe(stripe_of(hash)).table);
    store(words(table)[position], word_of(hash, record), std::memory_order_seq_cst);
    step();
}

void Index::erase(u64 hash, u64 position) {
    Stripe& stripe = this->stripe(stripe_of(hash));
    u64 table = load(stripe.table), mask = count(table) - 1;
    u64* at = words(table);
    // Before an empty word no tombstone is needed: nothing was ever pushed beyond it.
    bool last = load(at[(position + 1) & mask]) == EMPTY;
    store(at[position], last ? EMPTY : TOMBSTONE, std::memory_order_seq_cst);
    step();
    store(stripe.live, load(stripe.live) - 1);
    if (last) store(stripe.used, load(stripe.used) - 1);
    step();
}

u64 Index::find_and_pin(u64 hash, std::string_view name, u64& pin) const {
    const Stripe& stripe = this->stripe(stripe_of(hash));
    for (;;) {
        u64 table = load(stripe.table), mask = count(table) - 1;
        const u64* at = words(table);
        bool again = false;
        // A table that was replaced may have become anything, even words without an empty one.
        for (u64 position = hash / STRIPES, tries = 0; tries <= mask; position++, tries++) {
            u64 word = load(at[position & mask], std::memory_order_acquire);
            if (word == EMPTY) break;
            if (word == TOMBSTONE || word >> 48 != hash >> 48) continue;
            u64 offset = word & OFFSET;
            __builtin_prefetch(base_ + offset);  // header and name, while the pin is on its way
            __builtin_prefetch(base_ + offset + 64);
            swap(pin, offset | RELEASING);  // until it is known to be the one, it may be dropped without a look back
            if (load(at[position & mask]) != word || load(stripe.table) != table) {
                again = true;
                break;
            }
            u64 renamed = load(record(offset).renamed);
            bool same = named(offset, name);
            if (load(record(offset).renamed) != renamed) {
                again = true;
                break;
            }
            if (same) {
                store(pin, offset);
                return offset;
            }
        }
        if (!again && load(stripe.table) == table) break;
    }
    store(pin, 0);
    return 0;
}

void Index::each(u64 index, u64& pin, const std::function<void(u64)>& show) const {
    const Stripe& stripe = this->stripe(index);
    u64 table;
    do {
        table = load(stripe.table);
        for (u64 at = 0; at < count(table) && load(stripe.table) == table; at++) {
            u64 word = load(words(table)[at], std::memory_order_acquire);
            if (word <= TOMBSTONE) continue;
            swap(pin, (word & OFFSET) | RELEASING);
            if (load(words(table)[at]) == word && load(stripe.table) == table) show(word & OFFSET);
        }
    } while (load(stripe.table) != table);
    store(pin, 0);
}

u64 Index::live() const {
    u64 sum = 0;
    for (const Stripe& stripe : roots_->stripes) sum += load(stripe.live);
    return sum;
}

}  // namespace osf::space

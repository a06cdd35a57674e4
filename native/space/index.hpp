// Names to records: 64 stripes of open-addressed tables of 8-byte words (tag16 | offset48).
//
// A word is published by one release store, so a reader needs no lock. It pins what the word points to, then looks
// at the word and the stripe's table again: unchanged means that the record was findable after the pin was visible, so
// nobody frees it. Tables are rebuilt aside and swapped; the generation in the table word tells a reader that it looked
// in an old one. Words never move inside a table.
#pragma once

#include <functional>

#include "space/heap.hpp"

namespace osf::space {

struct Found {
    u64 record = 0;   // offset; 0: not there
    u64 position = 0; // of its word
};

class Index {
public:
    void attach(char* base, Roots& roots, Heap& meta, Members& members);
    void create();                                   // empty tables

    static u64 stripe_of(u64 hash) { return hash % STRIPES; }
    Stripe& stripe(u64 index) const { return roots_->stripes[index]; }

    void lock(u64 stripe);
    void unlock(u64 stripe) { lock_drop(this->stripe(stripe).lock); }
    void settle();                                   // finishes what dead owners of stripes left

    // With the stripe locked
    Found find(u64 hash, std::string_view name) const;
    bool points(u64 hash, u64 record) const;         // does a word of this name's stripe point to it?
    u64 insert(u64 hash, u64 record);                // the name is not there; its position; may throw no_room
    void replace(u64 hash, u64 position, u64 record);
    void erase(u64 hash, u64 position);
    void move(u64 from_hash, u64 to_hash, Record& record, u64 commit);  // both stripes locked; `to` is not there

    // Without a lock: leaves the record pinned in `pin` (without flags), or `pin` zero.
    u64 find_and_pin(u64 hash, std::string_view name, u64& pin) const;
    // Every record, each pinned in `pin` while it is shown; the same one may be shown twice if its stripe is rebuilt.
    void each(u64 stripe, u64& pin, const std::function<void(u64 record)>& show) const;

    u64 live() const;
    u64* words(u64 table) const { return reinterpret_cast<u64*>(base_ + (table & TABLE)); }
    static u64 count(u64 table) { return 1ull << (table & 63); }
    bool named(u64 record, std::string_view name) const;

private:
    Record& record(u64 offset) const { return *reinterpret_cast<Record*>(base_ + offset); }
    void grow(Stripe& stripe);
    void recover(Stripe& stripe);
    void bury(u64 hash, u64 record);
    void keep_one(u64 hash, u64 record);
    void recount(Stripe& stripe);
    static u64 word_of(u64 hash, u64 record) { return hash >> 48 << 48 | record; }

    char* base_ = nullptr;
    Roots* roots_ = nullptr;
    Heap* meta_ = nullptr;
    Members* members_ = nullptr;
};

// A record's name now. Racing with rename it may be neither old nor new: look at `renamed` and the word again.
std::string name_of(const Record& record, const Heap& meta);
u64 record_bytes(const Record& record);
char* record_inline(Record& record);
u64 name_head(std::string_view name);                // Name::magic_len of this text
constexpr u64 NAME_MAGIC = 0x4e41u;

}  // namespace osf::space

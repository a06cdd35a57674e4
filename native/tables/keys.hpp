// Dynamic ids: 64-bit keys that have rows of a table while they are wanted.
//
// A key's row is the place where the key is: the index has a place for each row, in buckets of eight, and a key may be in one of two
// buckets. So there is no list of free rows, nothing is ever moved, and a table that is full stays as it is: a new key takes the
// place of the least wanted one of its sixteen. (The idea of one score for each place of a bucket is HierarchicalKV's.)
//
//   "\3ID/keys"   0      KeysHead   one page, then KEY_LOCKS locks
//                 then   KeyBucket  a line for each eight rows
//                 then   KeyUse     of each row, how often its key was wanted
//                 then   u8         the sketch: how often keys came that have no row
//
// A place is changed with the stripe of its row held (tables/format.hpp). Its key goes first, then row and state change under an undo record,
// and the new key comes last. So a key that is there has its own row and its own state, whoever is killed. A lock chosen by the
// key keeps two processes from giving it two places.
#pragma once

#include "tables/update.hpp"

namespace osf::tables {

constexpr std::int64_t NO_KEY = std::int64_t(1ull << 63);
constexpr u64 KEY_LOCKS = 1024, SKETCH_LINES = 2;
constexpr u32 WANTED = 1 << 20;                  // the most that a count of uses says
constexpr char KEYS_MAGIC[8] = {'O', 'S', 'F', 'K', 'E', 'Y', '1', 0};

struct KeysHead {
    char magic[8];
    u64 id;                                      // of the table
    u64 rows, buckets, sketch;                   // sketch: counters of a line
    u32 admit_after, version;
    u64 half_life;                               // look-ups after which a count is worth half
    u64 check;                                   // of everything above
    alignas(64) u64 clock;                       // keys that came, found or not
    u64 admitted, evicted, refused;              // refused: keys that came often enough, and less often than those that have the places
    u64 changes;                                 // grows before a place gets another key
    u64 aged;                                    // half-lives after which the sketch was last halved
};
static_assert(sizeof(KeysHead) <= PAGE && offsetof(KeysHead, check) == 56 && offsetof(KeysHead, clock) == 64);

struct alignas(64) KeyBucket { std::int64_t keys[KEYS_A_BUCKET]; };
struct KeyUse { u32 stamp; u32 count; };         // stamp: clock / half_life when it last came
static_assert(sizeof(KeyBucket) == KEY_BUCKET_BYTES && sizeof(KeyUse) == 8);

struct KeysStats {
    u64 rows, used, admitted, evicted, refused, clock, changes;
    u32 admit_after;
};

class Keys {
public:
    static void make(const std::shared_ptr<Table>& table, u32 admit_after, u64 half_life);  // of a table that nobody else has
    static std::shared_ptr<Keys> open(const std::shared_ptr<Table>& table);  // null: its ids are rows
    Keys(std::shared_ptr<Table> table, Held held);
    ~Keys();
    Keys(const Keys&) = delete;
    Keys& operator=(const Keys&) = delete;

    // The row of each key; of one that has none the last row of the table, which is zero. How many had none.
    u64 rows_of(const Ids& keys, std::int64_t* rows);
    bool still(const Ids& keys, const std::int64_t* rows, u64 changes) const;  // since changes() told so much, each key has the row that it had
    // For look-ups, which take some keys at a time: all are checked first, and some are asked for while others are read.
    static void check(const Ids& keys);
    void ask_for(const Ids& keys, u64 from, u64 to) const;
    u64 find_some(const std::int64_t* keys, u64 count, u64 further, std::int64_t* rows);  // as kernels do
    void used(const std::int64_t* rows, u64 count);  // what find_some found was read; it has asked for what is counted
    void came(u64 count);                        // keys, for the clock
    u64 changes() const { return load(head_->changes, std::memory_order_acquire); }
    // Keys that have no row are counted, and get one when they have come often enough. Gradients of those that have none are left out.
    void update(const Update& of_keys, u32 threads);
    // Every key gets a row, unless all that it may have are those of keys that are wanted as much. How many of these rows were written.
    u64 write(const Ids& keys, const char* rows, bool raw, const char* states);
    // Gives keys the rows that they had in a table of as many rows: any other order could leave some without.
    void settle(const Ids& keys, const std::int64_t* rows);
    void list(std::vector<std::int64_t>& keys, std::vector<std::int64_t>& rows) const;
    KeysStats stats() const;
    u64 no_row() const { return head_->rows; }

    const std::shared_ptr<Table> table;

private:
    std::int64_t find(std::int64_t key, u64 hash) const;  // its row, -1
    void admit(const Ids& keys, std::int64_t* rows, bool all);  // as rows_of, and gives rows to those that may have one
    void give_row(std::int64_t key, u64 hash, u32 count, u64 there = ~0ull);
    bool place(std::int64_t key, u64 hash, u32 count, u64 there);
    Guard only_own(const Ids& keys, const std::int64_t* rows) const;
    u32 worth(const KeyUse& use, u32 now) const;
    u32 seen(u64 hash, bool count);
    u32 now() const { return u32(load(head_->clock, std::memory_order_relaxed) / head_->half_life); }
    void use(u64 row, u32 stamp);
    KeyBucket& first(u64 hash) const { return buckets_[index_.first(hash)]; }
    KeyBucket& second(u64 hash) const { return buckets_[index_.second(hash)]; }
    void age();

    Held held_;
    KeysHead* head_ = nullptr;
    Lock* locks_ = nullptr;
    KeyBucket* buckets_ = nullptr;
    KeyUse* uses_ = nullptr;
    KeyIndex index_{};
    u8* sketch_ = nullptr;
};

}  // namespace osf::tables

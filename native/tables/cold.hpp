// Rows of a table that are on flash, read from there by themselves.
//
// A flash tier moves units of 64 KiB, of which a look-up of scattered rows wants some hundred bytes. So a look-up reads the sectors of a
// row straight from the row's slot, many rows at a time, and leaves the unit where it is. The unit's word says where the bytes are; if the
// word is the same after the read, the bytes are the row's: a unit that changes gets another generation and another slot. Rows whose word
// changed, and rows in two units, are read by a touch, as all memory is. The checksum is of a whole unit, and is not looked at here.
//
// Rows that are read often stay in this process's memory (HotRows), with the word that they were read under. A row is good while its
// unit's word is still that one.
#pragma once

#include <memory>
#include <vector>

#include "tables/table.hpp"
#include "tiers/client.hpp"
#include "tiers/flash.hpp"
#include "tiers/reads.hpp"

namespace osf::tables {

// Sets of eight rows, each set with a lock that nobody waits for. A row that is not there takes one use away from the least used of its
// set, and its place when that has none left.
class HotRows {
public:
    HotRows(u64 bytes, u64 row_bytes);
    bool find(const char* row, u64 word, char* to);
    void keep(const char* row, u64 word, const char* from);

private:
    static constexpr u32 WAYS = 8;
    static constexpr std::uint8_t MOST = 15;     // uses that are counted
    struct Set {
        std::atomic<bool> busy{false};
        std::uint8_t uses[WAYS] = {};
        u64 rows[WAYS] = {}, words[WAYS] = {};   // addresses of rows; 0: none
    };
    u64 number_of(const char* row) const { return (u64(row) * 0x9e3779b97f4a7c15ull >> 32) % count_; }
    char* place(u64 set, u32 way) { return bytes_.get() + (set * WAYS + way) * row_bytes_; }

    const u64 row_bytes_, count_;
    std::unique_ptr<Set[]> sets_;
    std::unique_ptr<char[]> bytes_;
};

// What all threads share of a table.
struct Cold {
    explicit Cold(TierClient& tiers);
    TierClient& tiers;
    Flash flash;
    std::shared_ptr<HotRows> hot;                // null: no row stays
    std::atomic<u64> reads{0}, hits{0};          // rows from flash, and from hot ones, in this process
};

// What a call needs to read from flash. It is kept when the call is over, for the next one of any table.
struct ColdRoom {
    Reads reads;
    std::vector<char> copies;
};
std::unique_ptr<ColdRoom> take_cold_room();
void keep_cold_room(std::unique_ptr<ColdRoom> room);

// One thread's, for one call.
class ColdRows {
public:
    ColdRows(std::shared_ptr<Cold> cold, u64 row_bytes) : cold_(std::move(cold)), row_bytes_(row_bytes) {}
    ~ColdRows() { keep_cold_room(std::move(room_)); }
    ColdRows(const ColdRows&) = delete;
    ColdRows& operator=(const ColdRows&) = delete;

    u64 most() const;                            // ids at a time: many, as the disk idles at the end of each time
    void fetch(const char** rows, u64 count);    // addresses of rows on flash become those of copies, until the next call

private:
    struct Wanted {
        const char* row;
        u64 word;
        u32 index;
    };
    void order();
    void came(const char** rows, u64 number, const char* bytes);

    std::shared_ptr<Cold> cold_;
    const u64 row_bytes_;
    std::vector<Wanted> wanted_;
    std::vector<Reads::One> orders_;
    std::vector<u32> first_;                     // of the wanted rows, of each order
    std::unique_ptr<ColdRoom> room_;
};

}  // namespace osf::tables

// The bytes of a journal's file; docs/formats/tiers.md draws them too. All integers little-endian, everything at multiples of SECTOR.
//
//     0        FileHead, zeros up to SECTOR
//     SECTOR   checkpoint: a transaction with all pages of the image
//     ...      transactions, each one generation later than the one before
//     ...      zeros, or what a power cut left of a transaction that never was
//
// A transaction is a Head, an Entry for each page it writes, the numbers of the pages it drops (8 bytes each), zeros up to SECTOR,
// then the pages in the order of their entries.
//
// The head has a checksum of its own, so that it can be recognised when what follows it is damaged. Every checksum depends on the
// file's random id and on the place in the file: bytes of another file, or of another place, are never valid.
#pragma once

#include <cstdlib>
#include <memory>
#include <vector>

#include "base/disk.hpp"

namespace osf::tiers::journal {

constexpr char FILE_MAGIC[8] = {'O', 'S', 'F', 'J', 'R', 'N', 'L', '\0'};
constexpr char MAGIC[8] = {'O', 'S', 'F', 'J', 'T', 'X', 'N', '\0'};
constexpr u32 VERSION = 1;
static_assert(PAGE == SECTOR);  // a page is read and written as one sector

struct FileHead {
    char magic[8];
    u32 version;
    u32 sector;
    u64 number;
    u64 id;
    u64 checksum;  // of the whole sector, with zero here
};
static_assert(sizeof(FileHead) == 40);

struct Head {
    char magic[8];
    u64 id;               // of the file
    u64 place;            // of this head in the file
    u64 generation;
    u64 written;          // entries
    u64 dropped;          // numbers after them
    u64 list_checksum;    // of all after the head up to the first page
    u64 checksum;         // of the head, with zero here
};
static_assert(sizeof(Head) == 64);

struct Entry {
    u64 number;
    u64 checksum;  // of the page
};

constexpr u64 head_bytes(u64 written, u64 dropped) { return align_up(sizeof(Head) + written * sizeof(Entry) + dropped * 8, SECTOR); }
constexpr u64 transaction_bytes(u64 written, u64 dropped) { return head_bytes(written, dropped) + written * PAGE; }

inline u64 checksum_of(const char* bytes, u64 count, u64 id, u64 place) { return hash_bytes(bytes, count, id + place); }
inline u64 checksum_of(Head head) {
    head.checksum = 0;
    return hash_bytes(&head, sizeof head, head.id + head.place);
}

// Memory that a direct file takes.
struct Free {
    void operator()(char* bytes) const { std::free(bytes); }
};
using Buffer = std::unique_ptr<char, Free>;
inline Buffer make_buffer(u64 bytes) {
    Buffer buffer(static_cast<char*>(std::aligned_alloc(SECTOR, align_up(bytes, SECTOR))));
    if (!buffer) throw std::bad_alloc();
    return buffer;
}
constexpr u64 PIECE = MIB;  // the most that is read or written at once

struct Content {
    std::vector<std::pair<u64, const char*>> pages;
    std::vector<u64> dropped;
    u64 bytes() const { return transaction_bytes(pages.size(), dropped.size()); }
};
// Both throw if the disk fails. Neither syncs.
void write_file_head(File& file, const std::string& name, u64 number, u64 id);
void write_transaction(File& file, const std::string& name, u64 id, u64 place, u64 generation, const Content& content);

}  // namespace osf::tiers::journal

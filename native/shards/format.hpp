// A table over several hosts. Each host that has rows of it has a shard: an ordinary table of this host, and an index that says which
// rows those are. Rows are in blocks of a power of two; a block is on one host. Nobody else writes down where a block is: a client asks
// all hosts, and a host that is asked for rows that it does not have says so.
//
//   "\4ID"        the shard's rows: a table (tables/format.hpp). Block number n of it has its rows n << block_shift and following
//   "\4ID/index"  0       ShardHead    one page
//                 PAGE    u32          place of each block of the whole table: state << 30 | number of the block in the shard's table
//                 then    u32          reads of each block, one of 16 counted
//
// A block that moves is leaving at one host (it is read there, and not written) and arriving at another (nobody sees it). Then it is
// taken from the first, which is the moment of the move, and goes live at the second.
#pragma once

#include "tables/update.hpp"

namespace osf::shards {

constexpr u32 SHARD_VERSION = 1;
constexpr char SHARD_MAGIC[8] = {'O', 'S', 'F', 'S', 'H', 'D', '1', 0};
constexpr char SHARD_HIDDEN = '\x04';
constexpr u64 SHARD_BLOCKS = 65'536;             // of a whole table, at most
constexpr u64 NOT_HERE = ~0ull;                  // in the place of a row's tag
constexpr u64 IDS_MAX = 1 << 22;                 // of one call

enum class Place : u32 { none, live, leaving, arriving };
constexpr u32 place_word(Place place, u64 local) { return u32(place) << 30 | u32(local); }
constexpr Place place_of(u32 word) { return Place(word >> 30); }
constexpr u64 local_of(u32 word) { return word & ((1u << 30) - 1); }

struct ShardSpec {
    u64 id;
    TableShape shape;                            // rows: of the whole table
    u64 blocks;                                  // that there may ever be
    u64 here;                                    // how many block numbers follow
    u32 block_shift, pad;
};
static_assert(std::is_trivially_copyable_v<ShardSpec>);

struct ShardHead {
    char magic[8];
    u32 version, block_shift;
    u64 id, blocks;
    TableInit init;
    u64 check;                                   // of everything above
    alignas(64) Lock lock;                       // to change places
    u32 maker, pad;                              // member that made it
    u64 rows;                                    // of the whole table
    u64 moves;                                   // how often a block came or went
};
static_assert(sizeof(ShardHead) <= PAGE && offsetof(ShardHead, check) == 64 && offsetof(ShardHead, lock) == 128 && offsetof(ShardHead, rows) == 144);

struct ShardSeen {                               // what a host tells of its shard
    ShardSpec spec;                              // here: blocks that are live or leaving
    u64 moves, steps, updated_rows, interrupted, read_rows, bytes;
    u32 stripes, maker_lives;
};

enum class BlockVerb : u8 {
    add,                                         // a new block, with the rows that the table begins with
    arrive, live,                                // of a move: at its end
    freeze, thaw, drop,                          // and at its beginning; drop also takes an arriving block away
    rows,                                        // the whole table has so many now
    steps,                                       // the optimizer's time, restored
};

enum class ChangeKind : u8 { update, write, fill };  // fill: of a block that arrives

struct ChangeAsked {
    u64 count;
    Settings settings;
    ChangeKind kind;
    Tick tick;
    u8 states, pad[5];
};

struct BagsAsked {
    u64 ids, bags;
    u64 weights;                                 // 0 or 1
};

}  // namespace osf::shards

// A table's bytes. Its head is one array of a Space (kind_table), laid out here, under the name that users give it. The rows and the
// optimizer's states are arrays of their own with hidden names, in parts: a table that grows gets another part, and old rows stay where
// they are.
//
//   head: everything is an offset from the array's first byte
//     0         TableHead   one page
//     parts     TablePart   64 bytes each, TABLE_PARTS of them
//     undo      TableUndo   undo_stride bytes each, TABLE_WRITERS of them: 320 bytes, then an old row, then its old state
//     stripes   u64         a power of two of them; row r has stripe r % stripes
//
//   part n: "\3ID/n/rows"   rows * row_bytes bytes, ID being the table's id in 16 hexadecimal digits
//           "\3ID/n/state"  rows * state_bytes bytes; not there if the optimizer has no state
//   a head that is being made: "\3ID"
//
// A stripe is a lock and a version in one word: owner << 32 | changes. The owner is a member id (base/members.hpp), 0: nobody. Who changes
// a row takes its stripe, saves row and state in an undo record, arms the record, changes both, disarms it, and gives the stripe back with one
// change more. Whoever holds a stripe and finds an armed record of one of its rows knows that its writer died: only the holder of the
// stripe arms one. It copies row and state back. So a row and its state are always a pair that some step made, whoever is killed.
// A reader that wants whole rows looks at the stripe before and after, or, for many rows at once, at what writers say that they change
// (tables/watch.hpp).
#pragma once

#include <cstddef>
#include <string>

#include "base/layout.hpp"
#include "simd/kernels.hpp"

namespace osf::tables {

constexpr u32 TABLE_VERSION = 1;
constexpr char TABLE_MAGIC[8] = {'O', 'S', 'F', 'T', 'B', 'L', '1', 0};
constexpr u32 TABLE_PARTS = 256;
constexpr u32 TABLE_WRITERS = 64;                // threads that update at a time, of all processes
constexpr u32 TABLE_RECENT = 32;                 // changed rows that a writer names
constexpr u64 TABLE_STRIPES = 8'192;             // at most: 64 KiB, which stay in a processor's caches while rows pass through them
constexpr u64 TABLE_DIM_MOST = 1 << 20;
constexpr char TABLE_HIDDEN = '\x03';            // first byte of names that users do not see

enum class Initial : u32 { zeros, uniform, normal };

struct TableInit {                               // what rows are at first
    Initial kind = Initial::zeros;
    u32 pad = 0;
    double first = 0, second = 0;                // from and to; mean and deviation
    u64 seed = 0;
};

struct TableHead {
    char magic[8];
    u32 version;
    RowType row_type;
    u64 id;                                      // random: a table that is made anew under the same name has another
    u64 dim, row_bytes, state_bytes;
    Optimizer optimizer;
    u32 stripes;
    Settings settings;                           // of the optimizer, where an update gives no others
    TableInit init;
    u64 parts_at, undo_at, undo_stride, stripes_at, bytes;
    u64 check;                                   // of everything above
    alignas(64) Lock lock;                       // to grow or delete it
    u32 parts, deleted;
    u32 maker, pad;                              // member that made it; counts while its name is hidden
    u64 rows;                                    // those that can be read
    alignas(64) u64 steps;                       // updates so far: Adam's time
    u64 updated_rows, interrupted;               // interrupted: updates whose process died; perhaps not all their rows were changed
    alignas(64) u64 read_rows;
    alignas(64) u64 writers;                     // bit n: undo record n may be in use; a dead writer's bit stays
    u64 joined;                                  // how often a writer took a record
};
static_assert(sizeof(TableHead) <= PAGE && offsetof(TableHead, settings) == 56 && offsetof(TableHead, init) == 80 &&
              offsetof(TableHead, check) == 152 && offsetof(TableHead, lock) == 192 && offsetof(TableHead, rows) == 216 &&
              offsetof(TableHead, steps) == 256 && offsetof(TableHead, read_rows) == 320 && offsetof(TableHead, writers) == 384);

struct TablePart {
    u64 first, rows;                             // rows: room for so many, used or not
    u64 rows_address, state_address;             // in every process
    u64 unused[4];                               // room for a host and a tier
};
static_assert(sizeof(TablePart) == 64);

struct TableUndo {
    u32 owner;                                   // member that writes with it, 0: nobody
    u32 pad;
    u64 armed;                                   // row + 1 whose old bytes it holds, 0: none
    u64 changes;                                 // rows that were changed with it so far, and that in hand
    u64 unused[5];
    u64 recent[TABLE_RECENT];                    // change n was of row recent[n % TABLE_RECENT]
};
static_assert(sizeof(TableUndo) == 64 + 8 * TABLE_RECENT);

struct TableShape {
    RowType row_type;
    Optimizer optimizer;
    u64 rows, dim;
    Settings settings;
    TableInit init;
};

// The head of a table of this shape, without id and check.
TableHead table_head(const TableShape& shape);
u64 table_check(const TableHead& head);
std::string hidden_head(u64 id);
std::string hidden_part(u64 id, u32 part, bool state);

}  // namespace osf::tables

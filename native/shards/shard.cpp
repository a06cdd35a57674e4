#include "shards/shard.hpp"

#include <algorithm>
#include <cstdio>

#include "tables/initial.hpp"
#include "tables/update.hpp"
#include "tables/versions.hpp"

namespace osf::shards {

std::string shard_name(u64 id) {
    char text[18];
    std::snprintf(text, sizeof text, "%c%016llx", SHARD_HIDDEN, static_cast<unsigned long long>(id));
    return text;
}

static u64 shard_check(const ShardHead& head) { return hash_bytes(&head, offsetof(ShardHead, check), SHARD_VERSION); }

void Shard::make(const std::shared_ptr<Space>& space, const ShardSpec& spec, std::span<const u32> blocks) {
    const u64 size = 1ull << spec.block_shift;
    if (spec.block_shift > 40 || spec.blocks > SHARD_BLOCKS) throw Error(Code::bad_input, "a table over hosts has at most 65536 blocks");
    for (u32 block : blocks)
        if (block >= spec.blocks) throw Error(Code::bad_input, "a table of " + std::to_string(spec.blocks) + " blocks has no block " + std::to_string(block));
    TableShape shape = spec.shape;
    shape.rows = std::max<u64>(1, blocks.size()) * size;
    shape.init = {};
    auto table = Table::make(space, shape);
    const std::string name = shard_name(spec.id);
    const u64 bytes = PAGE + 8 * spec.blocks;
    try {
        Held held = space->make({bytes, 3, kind_array, {bytes}, {}, name + "/index"}, true);
        try {
            ShardHead head{};
            std::memcpy(head.magic, SHARD_MAGIC, sizeof SHARD_MAGIC);
            head.version = SHARD_VERSION;
            head.block_shift = spec.block_shift;
            head.id = spec.id;
            head.blocks = spec.blocks;
            head.init = spec.shape.init;
            head.check = shard_check(head);
            head.rows = spec.shape.rows;
            head.maker = space->members.executor();
            std::memcpy(space->bytes(held), &head, sizeof head);
            auto* places = reinterpret_cast<u32*>(space->bytes(held) + PAGE);
            auto rows = table->snapshot();
            for (u64 at = 0; at < blocks.size(); at++) {
                places[blocks[at]] = place_word(Place::live, at);
                fill_rows(head.init, shape.row_type, shape.dim, rows->parts[0].rows + at * size * table->head().row_bytes, blocks[at] * size, size);
            }
            space->publish(held, false);
        } catch (...) {
            space->release(held);
            throw;
        }
        space->release(held);
        table->publish(name);
    } catch (...) {
        space->remove(name + "/index");
        Held head = space->find(table->name());
        if (head) {
            Table::discard(space, head);
            space->release(head);
        }
        throw;
    }
}

std::shared_ptr<Shard> Shard::open(const std::shared_ptr<Space>& space, u64 id) {
    const std::string name = shard_name(id);
    auto table = Table::open(space, name);
    if (!table) return nullptr;
    Held index = space->find(name + "/index");
    if (!index) return nullptr;                  // it is being deleted
    space->hand_out(index);
    return std::make_shared<Shard>(std::move(table), index);
}

void Shard::discard(const std::shared_ptr<Space>& space, u64 id) {
    const std::string name = shard_name(id);
    if (Held head = space->find(name); head) {
        Table::discard(space, head);
        space->release(head);
    }
    space->remove(name + "/index");
}

Shard::Shard(std::shared_ptr<Table> rows_of, Held index) : table(std::move(rows_of)), index_(index) {
    Space& space = *table->space;
    char* base = space.bytes(index);
    head_ = reinterpret_cast<ShardHead*>(base);
    const u64 nbytes = space.record(index).nbytes;
    if (nbytes < PAGE || std::memcmp(head_->magic, SHARD_MAGIC, sizeof SHARD_MAGIC) || head_->version != SHARD_VERSION || head_->check != shard_check(*head_) ||
        nbytes < PAGE + 8 * head_->blocks) {
        space.release(index_);
        throw Error(Code::corrupt, "the index of a shard is damaged, or of another version of Openshelf; delete its table");
    }
    places_ = reinterpret_cast<u32*>(base + PAGE);
    reads_ = places_ + head_->blocks;
}

Shard::~Shard() { table->space->release(index_); }

ShardSeen Shard::see() const {
    const TableStats stats = table->stats();
    ShardSeen seen{};
    u64 here = 0;
    for (u64 block = 0; block < head_->blocks; block++) here += place_of(place(block)) == Place::live || place_of(place(block)) == Place::leaving;
    seen.spec = {head_->id, {stats.row_type, stats.optimizer, rows(), stats.dim, stats.settings, head_->init}, head_->blocks, here, head_->block_shift, 0};
    seen.moves = moves();
    seen.steps = stats.steps;
    seen.updated_rows = stats.updated_rows;
    seen.interrupted = stats.interrupted;
    seen.read_rows = stats.read_rows;
    seen.bytes = stats.bytes;
    seen.stripes = table->head().stripes;
    seen.maker_lives = table->space->members.alive(head_->maker);
    return seen;
}

u64 Shard::row_at(u64 id) const {
    const u32 word = place(id >> head_->block_shift);
    if (place_of(word) != Place::live && place_of(word) != Place::leaving) return NOT_HERE;
    return local_of(word) << head_->block_shift | (id & ((1ull << head_->block_shift) - 1));
}

void Shard::add_block(u32 block, Place as) {
    if (block >= head_->blocks) throw Error(Code::no_room, "a table over hosts that began with its size cannot have more than " + std::to_string(head_->blocks) + " blocks; copy it into a new one");
    if (place_of(place(block)) != Place::none) throw Error(Code::bad_input, "block " + std::to_string(block) + " is here already");
    const u64 size = 1ull << head_->block_shift;
    u64 there = table->stats().rows / size;
    std::vector<bool> used(there);
    for (u64 at = 0; at < head_->blocks; at++)
        if (const u32 word = place(at); place_of(word) != Place::none && local_of(word) < there) used[local_of(word)] = true;
    u64 local = u64(std::find(used.begin(), used.end(), false) - used.begin());
    if (local == there) table->grow(size);
    if (as == Place::live) fill_block(block, local);
    store(places_[block], place_word(as, local), std::memory_order_seq_cst);
}

// As the table's rows begin; it may have been another block's.
void Shard::fill_block(u32 block, u64 local) {
    const u64 size = 1ull << head_->block_shift;
    const TableHead& head = table->head();
    auto rows = table->snapshot();
    for (u64 row = local * size; row < (local + 1) * size; row++) {
        const Snapshot::Part& part = rows->part_of(row);
        char* at = part.rows + (row - part.first) * head.row_bytes;
        std::memset(at, 0, head.row_bytes);
        if (head.state_bytes) std::memset(part.state + (row - part.first) * head.state_bytes, 0, head.state_bytes);
        fill_rows(head_->init, head.row_type, head.dim, at, block * size + row - local * size, 1);
    }
}

// Who took a stripe before the place changed has it no more; who takes it now sees the new place.
void Shard::flush(u64 local) {
    const u64 size = 1ull << head_->block_shift, first = local << head_->block_shift;
    for (u64 row = first; row < first + std::min<u64>(size, table->head().stripes); row++) store(table->stripe(row), take_stripe(*table, row));
}

void Shard::block(BlockVerb verb, u32 block, u64 number) {
    table->need_write();
    lock_take(head_->lock, table->space->members);
    struct Drop {
        Lock& lock;
        ~Drop() { lock_drop(lock); }
    } drop{head_->lock};
    const u32 word = place(block);
    auto expect = [&](std::initializer_list<Place> places) {
        if (std::find(places.begin(), places.end(), place_of(word)) == places.end())
            throw Error(Code::bad_input, "block " + std::to_string(block) + " of a table is not here in the state that a move expects (" + std::to_string(u32(place_of(word))) +
                                             "); another process moves it, or has ended the move");
    };
    auto become = [&](Place as) { store(places_[block], place_word(as, as == Place::none ? 0 : local_of(word)), std::memory_order_seq_cst); };
    switch (verb) {
        case BlockVerb::add: add_block(block, Place::live); break;
        case BlockVerb::arrive: add_block(block, Place::arriving); return;
        case BlockVerb::live: expect({Place::arriving}); become(Place::live); break;
        case BlockVerb::freeze:
            expect({Place::live, Place::leaving});
            become(Place::leaving);
            flush(local_of(word));
            return;
        case BlockVerb::thaw: expect({Place::leaving}); become(Place::live); return;
        case BlockVerb::drop: expect({Place::leaving, Place::arriving}); become(Place::none); break;
        case BlockVerb::rows: store(head_->rows, std::max(rows(), number)); return;
        case BlockVerb::steps: store(table->head().steps, number); return;
    }
    std::atomic_ref<u64>(head_->moves).fetch_add(1);
}

}  // namespace osf::shards

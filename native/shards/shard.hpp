// One host's part of a table over several hosts, as a process of that host has it, and the keeper that answers other hosts.
#pragma once

#include <span>

#include "shards/format.hpp"
#include "tables/table.hpp"

namespace osf::shards {

class Shard {
public:
    static void make(const std::shared_ptr<Space>& space, const ShardSpec& spec, std::span<const u32> blocks);
    static std::shared_ptr<Shard> open(const std::shared_ptr<Space>& space, u64 id);  // null: there is none
    static void discard(const std::shared_ptr<Space>& space, u64 id);
    Shard(std::shared_ptr<Table> rows, Held index);  // takes the pin over
    ~Shard();
    Shard(const Shard&) = delete;
    Shard& operator=(const Shard&) = delete;

    ShardSeen see() const;
    u32 place(u64 block) const { return block < head_->blocks ? load(places_[block], std::memory_order_acquire) : 0; }
    u64 moves() const { return load(head_->moves, std::memory_order_acquire); }
    u64 rows() const { return load(head_->rows, std::memory_order_acquire); }
    u64 row_at(u64 id) const;                    // its row in the shard's table, NOT_HERE: it may not be read here
    void count_reads(u64 id) { std::atomic_ref<u32>(reads_[id >> head_->block_shift]).fetch_add(16, std::memory_order_relaxed); }
    u32 reads(u64 block) const { return load(reads_[block], std::memory_order_relaxed); }

    // Whole rows, one after the other, each followed by its state, if asked for, and a tag: stripe << 32 | changes, or NOT_HERE.
    u64 row_stride(bool states) const;
    void copy_rows(std::span<const u64> ids, bool states, char* out);
    // Sums of bags; false if a row is not here. ends: where each bag ends.
    bool bags(std::span<const u64> ids, std::span<const u32> ends, const float* weights, float* out);
    // Positions of ids that are not here, and were not changed. `given`: gradients, or rows as they are stored.
    std::vector<u32> change(const ChangeAsked& asked, std::span<const u64> ids, const char* given, const char* states, u32 threads);
    void block(BlockVerb verb, u32 block, u64 number);

    const std::shared_ptr<Table> table;

private:
    void add_block(u32 block, Place place);
    void fill_block(u32 block, u64 local);
    void flush(u64 local);                       // waits until who writes into this block has seen its place

    Held index_;
    ShardHead* head_ = nullptr;
    u32* places_ = nullptr;
    u32* reads_ = nullptr;
};

std::string shard_name(u64 id);

}  // namespace osf::shards

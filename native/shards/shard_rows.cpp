// Rows of a shard: read whole, summed, changed.
#include <algorithm>

#include "shards/shard.hpp"
#include "simd/choose.hpp"
#include "tables/update.hpp"
#include "tables/versions.hpp"

namespace osf::shards {

u64 Shard::row_stride(bool states) const { return table->head().row_bytes + (states ? table->head().state_bytes : 0) + sizeof(u64); }

void Shard::copy_rows(std::span<const u64> ids, bool states, char* out) {
    const TableHead& head = table->head();
    const u64 stride = row_stride(states), state_bytes = states ? head.state_bytes : 0;
    auto rows = table->snapshot();
    constexpr u64 SOME = 64;
    u64 local[SOME];
    for (u64 from = 0; from < ids.size(); from += SOME) {
        const u64 count = std::min<u64>(SOME, ids.size() - from);
        for (u64 at = 0; at < count; at++) {
            local[at] = row_at(ids[from + at]);
            if (local[at] == NOT_HERE) continue;
            if (local[at] >= rows->rows) rows = table->snapshot();
            const Snapshot::Part& part = rows->part_of(local[at]);
            const char* row = part.rows + (local[at] - part.first) * head.row_bytes;
            for (u64 line = 0; line < head.row_bytes; line += 64) __builtin_prefetch(row + line);
        }
        count_reads(ids[from]);
        for (u64 at = 0; at < count; at++, out += stride) {
            u64 tag = NOT_HERE;
            while (local[at] != NOT_HERE) {
                const Snapshot::Part& part = rows->part_of(local[at]);
                const u64 number = local[at] - part.first;
                const char* row = part.rows + number * head.row_bytes;
                const Whole whole = whole_row(*table, local[at], row);
                std::memcpy(out, whole.row, head.row_bytes);
                if (state_bytes)
                    std::memcpy(out + head.row_bytes, whole.row == row ? part.state + number * head.state_bytes : whole.row + align_up(head.row_bytes, 8), state_bytes);
                std::atomic_thread_fence(std::memory_order_acquire);
                const bool same = load(table->stripe(local[at]), std::memory_order_relaxed) == whole.word;
                if (row_at(ids[from + at]) != local[at]) break;
                if (!same) continue;
                tag = (local[at] & (head.stripes - 1)) << 32 | u32(whole.word);
                break;
            }
            std::memcpy(out + head.row_bytes + state_bytes, &tag, sizeof tag);
        }
    }
    std::atomic_ref<u64>(table->head().read_rows).fetch_add(ids.size(), std::memory_order_relaxed);
}

bool Shard::bags(std::span<const u64> ids, std::span<const u32> ends, const float* weights, float* out) {
    std::vector<std::int64_t> local(ids.size()), offsets(ends.size());
    for (u64 at = 0; at < ids.size(); at++) {
        const u64 row = row_at(ids[at]);
        if (row == NOT_HERE) return false;
        if (at % 16 == 0) count_reads(ids[at]);
        local[at] = std::int64_t(row);
    }
    for (u64 bag = 1; bag < ends.size(); bag++) offsets[bag] = ends[bag - 1];
    ReadRequest request;
    request.table = table;
    request.ids = {local.data(), true, local.size()};
    request.offsets = {offsets.data(), true, offsets.size()};
    request.bags = ends.size();
    request.weights = weights;
    request.out = reinterpret_cast<char*>(out);
    request.out_stride = 4 * table->head().dim;
    request.consistent = true;
    request.title = "of another host";
    read_rows({&request, 1}, 1);
    for (u64 at = 0; at < ids.size(); at++)
        if (row_at(ids[at]) != u64(local[at])) return false;
    return true;
}

std::vector<u32> Shard::change(const ChangeAsked& asked, std::span<const u64> ids, const char* given, const char* states, u32 threads) {
    table->need_write();
    const TableHead& head = table->head();
    const u64 width = asked.kind == ChangeKind::update ? 4 * head.dim : head.row_bytes;
    const Place wanted = asked.kind == ChangeKind::fill ? Place::arriving : Place::live;
    const u64 inside = (1ull << head_->block_shift) - 1;
    std::vector<u32> refused, here;
    std::vector<std::int64_t> local;
    for (u64 at = 0; at < ids.size(); at++) {
        const u32 word = place(ids[at] >> head_->block_shift);
        if (place_of(word) != wanted) {
            refused.push_back(u32(at));
            continue;
        }
        here.push_back(u32(at));
        local.push_back(std::int64_t(local_of(word) << head_->block_shift | (ids[at] & inside)));
    }
    std::vector<char> rest, rest_states;         // without those that are not here
    if (!refused.empty()) {
        for (u32 at : here) rest.insert(rest.end(), given + at * width, given + (at + 1) * width);
        if (states)
            for (u32 at : here) rest_states.insert(rest_states.end(), states + at * head.state_bytes, states + (at + 1) * head.state_bytes);
        given = rest.data();
        if (states) states = rest_states.data();
    }
    std::mutex mutex;
    Guard guard;
    guard.may = [&](u64 position) {
        const u64 id = ids[here[position]];
        const u32 word = place(id >> head_->block_shift);
        if (place_of(word) == wanted && (local_of(word) << head_->block_shift | (id & inside)) == u64(local[position])) return true;
        std::lock_guard lock(mutex);
        refused.push_back(here[position]);
        return false;
    };
    const Ids numbers{local.data(), true, local.size()};
    if (asked.kind != ChangeKind::update) {
        write_rows(table, numbers, given, true, states, guard);
        return refused;
    }
    Update update;
    update.table = table;
    update.ids = numbers;
    update.gradients = reinterpret_cast<const float*>(given);
    update.stride = head.dim;
    update.gradient_count = local.size();
    update.settings = asked.settings;
    update.any_number = true;                    // who asks has looked
    update_rows(update, threads, guard, asked.tick);
    return refused;
}

}  // namespace osf::shards

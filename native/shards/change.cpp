#include <algorithm>

#include "shards/kept.hpp"
#include "tables/workers.hpp"

namespace osf::shards {

constexpr u64 ROWS_A_CALL = 65'536;

Change::Change(std::shared_ptr<Sharded> table, ChangeKind kind, Settings settings, std::vector<u64> rows, std::vector<char> given, std::vector<char> states)
    : table_(std::move(table)), rows_(std::move(rows)), given_(std::move(given)), states_(std::move(states)) {
    const auto map = table_->map();
    const auto& shape = map->seen.spec.shape;
    if (kind == ChangeKind::update && (shape.row_type == RowType::int8 || shape.row_type == RowType::int4))
        throw Error(Code::bad_input, "the table '" + table_->title + "' has rows of integers, which no optimizer changes: train one of float32, float16 or bfloat16, and write() rows of it here");
    asked_.kind = kind;
    asked_.settings = settings;
    asked_.states = !states_.empty();
    width_ = kind == ChangeKind::update ? 4 * shape.dim : row_bytes(shape.row_type, shape.dim);
    state_width_ = states_.empty() ? 0 : state_bytes(shape.optimizer, shape.dim);
    left_.resize(rows_.size());
    for (u32 at = 0; at < left_.size(); at++) left_[at] = at;
}

// Each host gets its rows in calls of some thousands. An optimizer's step is counted on every host with rows, once, so that all have one time.
bool Change::apply(u32 threads) {
    const auto map = table_->map();
    std::vector<std::vector<u32>> wanted(map->places.size());
    std::vector<u32> rest;
    for (u32 at : left_) {
        const u8 host = map->host[rows_[at] >> map->shift()];
        if (host == NOWHERE) {
            if (!map->silent.empty()) throw HostLost(map->silent[0], table_->where(rows_[at] >> map->shift(), *map) + "; the other rows of this batch may have changed");
            rest.push_back(at);
        } else {
            wanted[host].push_back(at);
        }
    }
    std::vector<u64> asked;
    for (u64 number = 0; number < wanted.size(); number++)
        if (!wanted[number].empty() || (first_ && asked_.kind == ChangeKind::update && !map->places[number].empty())) asked.push_back(number);
    std::mutex mutex;
    auto send = [&](u64 number, std::span<const u32> some, Tick tick) {
        std::vector<u64> ids;
        std::vector<char> given(some.size() * width_), states(some.size() * state_width_);
        for (u64 at = 0; at < some.size(); at++) {
            ids.push_back(rows_[some[at]]);
            std::memcpy(given.data() + at * width_, given_.data() + some[at] * width_, width_);
            if (state_width_) std::memcpy(states.data() + at * state_width_, states_.data() + some[at] * state_width_, state_width_);
        }
        ChangeAsked call = asked_;
        call.count = ids.size();
        call.tick = tick;
        call.states = state_width_ != 0;
        std::vector<u32> refused;
        if (const auto& remote = table_->hosts_[number]) {
            refused = shard_change(*remote, table_->id, call, ids, given, states);
        } else if (auto shard = table_->own()) {
            refused = shard->change(call, ids, given.data(), state_width_ ? states.data() : nullptr, threads);
        } else {
            refused.resize(ids.size());
            for (u32 at = 0; at < refused.size(); at++) refused[at] = at;
        }
        std::lock_guard guard(mutex);
        for (u32 at : refused)
            if (at < some.size()) rest.push_back(some[at]);
    };
    struct Forget {                              // copies of rows that may have changed, also if a host was lost meanwhile
        std::shared_ptr<Sharded::Kept> copies;
        std::vector<u64> rows;
        ~Forget() {
            if (copies) copies->forget(rows);
        }
    } forget{table_->kept(), {}};
    if (forget.copies)
        for (u32 at : left_) forget.rows.push_back(rows_[at]);
    run_pieces(asked.size(), u32(asked.size()), [&](u64 which) {
        const std::span<const u32> all = wanted[asked[which]];
        u64 from = 0;
        do {
            const auto some = all.subspan(from, std::min<u64>(ROWS_A_CALL, all.size() - from));
            send(asked[which], some, first_ && from == 0 ? Tick::always : Tick::never);
            from += some.size();
        } while (from < all.size());
    });
    first_ = false;
    std::sort(rest.begin(), rest.end());
    left_ = std::move(rest);
    return left_.empty();
}

void Sharded::copy_block(u32 block, u32 to) {
    const auto now = map();
    const auto& shape = now->seen.spec.shape;
    const u64 row = row_bytes(shape.row_type, shape.dim), state = state_bytes(shape.optimizer, shape.dim), size = 1ull << now->shift();
    const u64 some = std::min<u64>(size, ROWS_A_CALL);
    for (u64 first = block * size; first < (block + 1) * size; first += some) {
        std::vector<u64> ids(some), tags(some);
        for (u64 at = 0; at < some; at++) ids[at] = first + at;
        std::vector<char> both(some * (row + state)), rows(some * row), states(some * state);
        fetch(*now, ids, std::vector<u8>(some, now->host[block]), true, row + state, both.data(), tags.data());
        for (u64 at = 0; at < some; at++) {
            if (tags[at] == NOT_HERE) throw Error(Code::bad_input, "block " + std::to_string(block) + " of the table '" + title + "' is not where it was: another process moves it");
            std::memcpy(rows.data() + at * row, both.data() + at * (row + state), row);
            std::memcpy(states.data() + at * state, both.data() + at * (row + state) + row, state);
        }
        ChangeAsked asked{};
        asked.count = some;
        asked.kind = ChangeKind::fill;
        asked.states = state != 0;
        std::vector<u32> refused;
        if (hosts_[to]) refused = shard_change(*hosts_[to], id, asked, ids, rows, states);
        else if (auto shard = own()) refused = shard->change(asked, ids, rows.data(), state ? states.data() : nullptr, 1);
        else throw Error(Code::bad_input, "this host has no shard of the table '" + title + "' for a block to arrive in");
        if (!refused.empty()) throw Error(Code::bad_input, "block " + std::to_string(block) + " of the table '" + title + "' does not arrive there any more: another process moves it");
    }
}

}  // namespace osf::shards

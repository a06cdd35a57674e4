#include "shards/sharded.hpp"

#include <algorithm>

#include "shards/kept.hpp"
#include "tables/workers.hpp"

namespace osf::shards {

Sharded::Sharded(std::shared_ptr<Space> in, u64 which, std::vector<std::shared_ptr<Remote>> hosts, std::string name, bool owner_sums)
    : space(std::move(in)), id(which), title(std::move(name)), hosts_(std::move(hosts)), owner_sums_(owner_sums), fork_(forks()) {
    refresh();
}

Sharded::~Sharded() {
    if (kept_) kept_->end();
}

std::shared_ptr<const Map> Sharded::map() {
    std::lock_guard guard(mutex_);
    return map_;
}

std::shared_ptr<Shard> Sharded::own() {
    std::lock_guard guard(mutex_);
    if (own_) own_->table->check_usable();
    return own_;
}

void Sharded::refresh() {
    auto next = std::make_shared<Map>();
    auto own = Shard::open(space, id);
    std::vector<std::optional<ShardLook>> looks(hosts_.size());
    std::vector<std::string> silent(hosts_.size());
    run_pieces(hosts_.size(), u32(hosts_.size()), [&](u64 number) {
        try {
            if (hosts_[number]) {
                looks[number] = shard_look(*hosts_[number], id);
            } else if (own) {
                looks[number].emplace();
                looks[number]->seen = own->see();
                for (u64 block = 0; block < looks[number]->seen.spec.blocks; block++) {
                    looks[number]->places.push_back(own->place(block));
                    looks[number]->reads.push_back(own->reads(block));
                }
            }
        } catch (const Error& error) {
            if (error.code != Code::host_lost && error.code != Code::unknown_name) throw;
            silent[number] = hosts_[number]->peer().label();
        }
    });
    next->places.resize(hosts_.size());
    next->shards.resize(hosts_.size());
    bool found = false;
    for (u64 number = 0; number < hosts_.size(); number++) {
        if (!silent[number].empty()) next->silent.push_back(silent[number]);
        if (!looks[number]) continue;
        const ShardLook& look = *looks[number];
        if (!found || look.seen.spec.shape.rows > next->rows()) next->seen = look.seen;
        found = true;
        next->places[number] = look.places;
        next->shards[number] = look.seen;
    }
    if (!found) {
        std::string where;
        for (const std::string& host : next->silent) where += (where.empty() ? "" : ", ") + host;
        throw Error(next->silent.empty() ? Code::closed : Code::host_lost,
                    "no host that answers has rows of the table '" + title + "'" + (where.empty() ? ": it was deleted" : "; these do not answer: " + where));
    }
    next->host.assign(next->seen.spec.blocks, NOWHERE);
    next->reads.assign(next->seen.spec.blocks, 0);
    for (Place state : {Place::leaving, Place::live})  // live last: a block that has arrived is where it is live
        for (u64 number = 0; number < hosts_.size(); number++)
            for (u64 block = 0; block < next->places[number].size() && block < next->host.size(); block++)
                if (place_of(next->places[number][block]) == state) {
                    next->host[block] = u8(number);
                    next->reads[block] = looks[number]->reads[block];
                }
    std::lock_guard guard(mutex_);
    if (!own_ || !own) own_ = own;
    map_ = next;
}

std::string Sharded::where(u64 block, const Map& map) const {
    std::string silent;
    for (const std::string& host : map.silent) silent += (silent.empty() ? "" : ", ") + host;
    return "rows " + std::to_string(block << map.shift()) + " to " + std::to_string(((block + 1) << map.shift()) - 1) + " of the table '" + title + "' are on no host that answers" +
           (silent.empty() ? "" : "; these do not answer: " + silent);
}

void Sharded::check(const Ids& ids) {
    if (!ids.count) return;
    auto fits = [&](u64 rows) { return ids.largest() < (ids.wide ? rows : std::min<u64>(rows, 1ull << 31)); };
    auto now = map();
    if (fits(now->rows())) return;
    refresh();                                   // it may have grown
    now = map();
    if (fits(now->rows())) return;
    u64 at = 0;
    while (ids[at] < now->rows()) at++;
    throw Error(Code::out_of_range, "id " + std::to_string(std::int64_t(ids[at])) + ", at position " + std::to_string(at) + " of " + std::to_string(ids.count) +
                                        ", is out of range for the table '" + title + "' (" + std::to_string(now->rows()) + " rows)");
}

void Sharded::fetch(const Map& map, std::span<const u64> ids, std::span<const u8> hosts, bool states, u64 stride, char* out, u64* tags) {
    std::vector<std::vector<u64>> wanted(hosts_.size());
    std::vector<std::vector<u32>> places(hosts_.size());
    for (u64 at = 0; at < ids.size(); at++) {
        const u8 host = hosts[at];
        if (host == NOWHERE) {
            if (!map.silent.empty()) throw HostLost(map.silent[0], where(ids[at] >> map.shift(), map));
            tags[at] = NOT_HERE;
            continue;
        }
        wanted[host].push_back(ids[at]);
        places[host].push_back(u32(at));
    }
    std::vector<u64> asked;
    for (u64 number = 0; number < hosts_.size(); number++)
        if (!wanted[number].empty()) asked.push_back(number);
    const auto& shape = map.seen.spec.shape;
    const u64 bytes = row_bytes(shape.row_type, shape.dim) + (states ? state_bytes(shape.optimizer, shape.dim) : 0);
    run_pieces(asked.size(), u32(asked.size()), [&](u64 which) {
        const u64 number = asked[which];
        auto take = [&](u64 at, const char* row) {
            std::memcpy(out + u64(places[number][at]) * stride, row, bytes);
            std::memcpy(&tags[places[number][at]], row + bytes, sizeof(u64));
        };
        if (hosts_[number]) return shard_rows(*hosts_[number], id, wanted[number], states, bytes + sizeof(u64), take);
        auto shard = own();
        std::vector<char> rows(wanted[number].size() * (bytes + sizeof(u64)), 0);
        if (shard) shard->copy_rows(wanted[number], states, rows.data());
        for (u64 at = 0; at < wanted[number].size(); at++) {
            take(at, rows.data() + at * (bytes + sizeof(u64)));
            if (!shard) tags[places[number][at]] = NOT_HERE;
        }
    });
}

bool Sharded::states(std::span<const u64> ids, char* out) {
    const auto now = map();
    const auto& shape = now->seen.spec.shape;
    const u64 row = row_bytes(shape.row_type, shape.dim), state = state_bytes(shape.optimizer, shape.dim);
    std::vector<char> rows(ids.size() * (row + state));
    std::vector<u64> tags(ids.size());
    std::vector<u8> hosts(ids.size());
    for (u64 at = 0; at < ids.size(); at++) hosts[at] = now->host[ids[at] >> now->shift()];
    fetch(*now, ids, hosts, true, row + state, rows.data(), tags.data());
    for (u64 at = 0; at < ids.size(); at++) {
        if (tags[at] == NOT_HERE) return false;
        std::memcpy(out + at * state, rows.data() + at * (row + state) + row, state);
    }
    return true;
}

std::shared_ptr<Sharded::Kept> Sharded::kept() {
    std::lock_guard guard(mutex_);
    if (kept_ && fork_ != forks()) kept_ = nullptr;  // its threads are the parent's: this process has no copies until it asks for some
    return kept_;
}

void Sharded::keep_copies(u64 rows, double fresh_s) {
    const auto now = map();
    auto next = rows ? std::make_shared<Kept>(*this, rows, row_bytes(now->seen.spec.shape.row_type, now->seen.spec.shape.dim), fresh_s) : nullptr;
    auto before = kept();
    {
        std::lock_guard guard(mutex_);
        kept_ = next;
        fork_ = forks();
    }
    if (next) next->begin();
    if (before) before->end();
}

void Sharded::prefetch(const Ids& ids) {
    check(ids);
    auto copies = kept();
    if (!copies) return;
    std::vector<u64> wanted(ids.count);
    for (u64 at = 0; at < ids.count; at++) wanted[at] = ids[at];
    copies->ask_early(std::move(wanted));
}

ShardedCounts Sharded::counts() {
    ShardedCounts result{own_ids_, copied_, fetched_, waited_, at_owner_, 0, 0, 0, 0};
    if (auto copies = kept()) {
        std::shared_lock lock(copies->copies.mutex);
        result.hot = copies->copies.hot();
        result.staged = copies->copies.staged();
        result.refreshed = copies->refreshed;
        result.prefetch_failed = copies->failed;
    }
    return result;
}

}  // namespace osf::shards

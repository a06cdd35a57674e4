#include "shards/kept.hpp"

#include <algorithm>
#include <chrono>

namespace osf::shards {

constexpr u64 QUEUED = 4;                        // batches that may be asked for early: then the oldest is forgotten

Sharded::Kept::Kept(Sharded& table, u64 rows, u64 row_bytes, double fresh_s)
    : copies(rows, row_bytes), table_(table), row_bytes_(row_bytes), fresh_ns_(u64(fresh_s * 1e9)), fork_(forks()), checked_(table.hosts_.size(), now_ns()), moves_(table.hosts_.size()) {}

void Sharded::Kept::begin() {
    refresher_ = std::thread([this] { refresh_for_ever(); });
    fetcher_ = std::thread([this] { fetch_for_ever(); });
}

void Sharded::Kept::end() {
    if (fork_ != forks()) {                      // the parent's threads: not there, and not to be waited for
        new std::thread(std::move(refresher_));
        new std::thread(std::move(fetcher_));
        return;
    }
    {
        std::lock_guard guard(mutex_);
        over_ = true;
    }
    changed_.notify_all();
    refresher_.join();
    fetcher_.join();
}

bool Sharded::Kept::nap(std::unique_lock<std::mutex>& lock, u64 ns) {
    return !changed_.wait_for(lock, std::chrono::nanoseconds(ns), [&] { return over_; });
}

void Sharded::Kept::forget(std::span<const u64> ids) {
    std::unique_lock lock(copies.mutex);
    written++;
    for (u64 one : ids) copies.drop(one);
}

// A quarter of the time that a copy may be old goes by between two looks. The rest is for the looks themselves.
void Sharded::Kept::refresh_for_ever() {
    std::unique_lock lock(mutex_);
    while (nap(lock, fresh_ns_ / 4)) {
        lock.unlock();
        for (u64 number = 0; number < table_.hosts_.size(); number++) {
            if (!table_.hosts_[number]) continue;
            try {
                refresh_host(number);
            } catch (const Error&) {             // who looks a row up there is told; copies that nobody can check go
                if (now_ns() - checked_[number] > fresh_ns_ / 2) drop_host(number);
            }
        }
        lock.lock();
    }
}

void Sharded::Kept::drop_host(u64 number) {
    std::unique_lock lock(copies.mutex);
    written++;
    for (u32 slot = 0; slot < copies.slots(); slot++)
        if (copies.slot(slot).taken && copies.slot(slot).host == number) copies.drop_slot(slot);
}

// A version that differs says that a row of the stripe has changed. Rows that were used lately are fetched again, others go.
void Sharded::Kept::refresh_host(u64 number) {
    {
        std::shared_lock lock(copies.mutex);
        bool any = false;
        for (u32 slot = 0; slot < copies.slots() && !any; slot++) any = copies.slot(slot).taken && copies.slot(slot).host == number;
        if (!any) {
            checked_[number] = now_ns();
            return;
        }
    }
    const u64 begun = now_ns();
    ShardSeen seen;
    const std::vector<u64> words = shard_versions(*table_.hosts_[number], table_.id, seen);
    if (seen.moves != moves_[number]) {          // blocks have gone: what was theirs is another host's now
        if (moves_[number]) drop_host(number);
        moves_[number] = seen.moves;
        table_.refresh();
    }
    std::vector<u64> ids;
    std::vector<u32> slots;
    const u64 written_then = written;
    {
        std::unique_lock lock(copies.mutex);
        for (u32 at = 0; at < copies.slots(); at++) {
            Copies::Slot& slot = copies.slot(at);
            if (!slot.taken || slot.host != number) continue;
            const u64 stripe = slot.tag >> 32;
            if (stripe < words.size() && u32(words[stripe]) == u32(slot.tag)) continue;
            if (slot.used || slot.staged) {
                ids.push_back(slot.id);
                slots.push_back(at);
                slot.used = false;
            } else {
                copies.drop_slot(at);
            }
        }
    }
    if (!ids.empty()) {
        std::vector<char> rows(ids.size() * row_bytes_);
        std::vector<u64> tags(ids.size());
        const std::vector<u8> hosts(ids.size(), u8(number));
        table_.fetch(*table_.map(), ids, hosts, false, row_bytes_, rows.data(), tags.data());
        std::unique_lock lock(copies.mutex);
        for (u64 at = 0; at < ids.size(); at++) {
            Copies::Slot& slot = copies.slot(slots[at]);
            if (!slot.taken || slot.id != ids[at]) continue;
            if (tags[at] == NOT_HERE || written != written_then) copies.drop_slot(slots[at]);
            else copies.replace(slots[at], tags[at], rows.data() + at * row_bytes_);
        }
        refreshed += ids.size();
    }
    checked_[number] = begun;
}

void Sharded::Kept::ask_early(std::vector<u64> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    const auto map = table_.map();
    const u32 batch = ++copies.batch;
    {
        std::shared_lock lock(copies.mutex);
        auto elsewhere = [&](u64 one) {
            const u8 host = map->host[one >> map->shift()];
            return host != NOWHERE && table_.hosts_[host];
        };
        std::erase_if(ids, [&](u64 one) { return !elsewhere(one) || copies.promise(one, batch); });
    }
    if (ids.empty()) return;
    std::lock_guard guard(mutex_);
    for (u64 one : ids) coming_[one]++;
    queue_.push_back(std::move(ids));
    if (queue_.size() > QUEUED) {
        for (u64 one : queue_.front())
            if (--coming_[one] == 0) coming_.erase(one);
        queue_.pop_front();
    }
    changed_.notify_all();
}

void Sharded::Kept::fetch_for_ever() {
    std::unique_lock lock(mutex_);
    for (;;) {
        changed_.wait(lock, [&] { return over_ || !queue_.empty(); });
        if (over_) return;
        const std::vector<u64> ids = std::move(queue_.front());
        queue_.pop_front();
        lock.unlock();
        try {
            fetch_early(ids);
        } catch (const Error&) {                 // the look-up itself asks again, and tells
            failed++;
        }
        lock.lock();
        for (u64 one : ids)
            if (--coming_[one] == 0) coming_.erase(one);
        changed_.notify_all();
    }
}

void Sharded::Kept::fetch_early(const std::vector<u64>& ids) {
    const auto map = table_.map();
    const u64 written_then = written;
    std::vector<char> rows(ids.size() * row_bytes_);
    std::vector<u64> tags(ids.size());
    std::vector<u8> hosts(ids.size());
    for (u64 at = 0; at < ids.size(); at++) hosts[at] = map->host[ids[at] >> map->shift()];
    table_.fetch(*map, ids, hosts, false, row_bytes_, rows.data(), tags.data());
    std::unique_lock lock(copies.mutex);
    if (written != written_then) return;
    copies.make_room(3 * ids.size());
    for (u64 at = 0; at < ids.size(); at++)
        if (tags[at] != NOT_HERE) copies.stage(ids[at], hosts[at], tags[at], rows.data() + at * row_bytes_);
}

bool Sharded::Kept::wait_for(std::span<const u64> ids) {
    std::unique_lock lock(mutex_);
    bool waited = false;
    for (u64 one : ids) {
        if (!coming_.contains(one)) continue;
        waited = true;
        changed_.wait(lock, [&] { return over_ || !coming_.contains(one); });
    }
    return waited;
}

}  // namespace osf::shards

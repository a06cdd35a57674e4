#include "shards/reading.hpp"

#include <algorithm>
#include <bit>

#include "simd/choose.hpp"
#include "tables/workers.hpp"

namespace osf::shards {

Reading::Reading(Sharded& table, const ReadRequest& request, u32 threads)
    : table_(table), request_(request), threads_(threads), map_(table.map()), own_(table.own()), kept_(table.kept()), shape_(map_->seen.spec.shape),
      row_bytes_(row_bytes(shape_.row_type, shape_.dim)), rows_{shape_.dim, row_bytes_, u32(std::clamp<u64>(8 * KIB / row_bytes_, 2, 16))}, count_(request.ids.count),
      at_(count_ + rows_.ahead), from_(count_), sums_(map_->places.size()) {}

u32 Reading::miss(u64 id, u8 host) {
    if (2 * (missing_.size() + 1) > index_.size()) {
        index_.assign(std::max<u64>(1024, 2 * index_.size()), 0);
        for (u32 at = 0; at < missing_.size(); at++) {
            u64 place = (missing_[at].id * 0x9e3779b97f4a7c15ull >> 32) & (index_.size() - 1);
            while (index_[place]) place = (place + 1) & (index_.size() - 1);
            index_[place] = at + 1;
        }
    }
    u64 place = (id * 0x9e3779b97f4a7c15ull >> 32) & (index_.size() - 1);
    for (; index_[place]; place = (place + 1) & (index_.size() - 1)) {
        Missing& one = missing_[index_[place] - 1];
        if (one.id != id) continue;
        one.times++;
        return index_[place] - 1;
    }
    missing_.push_back({id, 1, host});
    index_[place] = u32(missing_.size());
    return u32(missing_.size() - 1);
}

bool Reading::resolve() {
    std::shared_ptr<const Snapshot> here;
    if (own_) here = own_->table->snapshot();
    const u32 shift = map_->shift();
    missing_.clear();
    index_.clear();
    staged_.clear();
    copied_ids_ = own_ids_ = 0;
    for (u64 at = 0; at < count_; at++) {
        const u64 id = request_.ids[at];
        const u8 host = map_->host[id >> shift];
        if (host != NOWHERE && !table_.hosts_[host] && !request_.consistent) {
            const u64 local = own_ ? own_->row_at(id) : NOT_HERE;
            if (local == NOT_HERE) return false;
            if (local >= here->rows) here = own_->table->snapshot();
            const Snapshot::Part& part = here->part_of(local);
            at_[at] = part.rows + (local - part.first) * row_bytes_;
            from_[at] = HERE;
            if (at % 16 == 0) own_->count_reads(id);
            own_ids_++;
            continue;
        }
        if (kept_) {
            if (const u32 slot = kept_->copies.find(id); slot != Copies::NONE) {
                at_[at] = kept_->copies.row(slot);
                from_[at] = COPIED;
                copied_ids_++;
                if (kept_->copies.slot(slot).staged) staged_.push_back(id);
                continue;
            }
        }
        from_[at] = miss(id, host);
    }
    return true;
}

bool Reading::fetch() {
    fetched_.resize(missing_.size() * row_bytes_);
    tags_.assign(missing_.size(), NOT_HERE);
    std::vector<u64> ids;
    std::vector<u32> which;
    std::vector<u8> hosts;
    for (u32 at = 0; at < missing_.size(); at++) {
        if (missing_[at].host != NOWHERE && sums_[missing_[at].host]) continue;
        ids.push_back(missing_[at].id);
        which.push_back(at);
        hosts.push_back(missing_[at].host);
    }
    if (ids.empty()) return true;
    const u64 begun = now_ns();
    std::vector<u64> tags(ids.size());
    const bool all = ids.size() == missing_.size();
    std::vector<char> some(all ? 0 : ids.size() * row_bytes_);
    char* to = all ? fetched_.data() : some.data();
    table_.fetch(*map_, ids, hosts, false, row_bytes_, to, tags.data());
    table_.rows_cost_.measured(now_ns() - begun, ids.size() * (row_bytes_ + 16));
    for (u32 at = 0; at < ids.size(); at++) {
        if (tags[at] == NOT_HERE) return false;
        tags_[which[at]] = tags[at];
        if (!all) std::memcpy(fetched_.data() + which[at] * row_bytes_, to + at * row_bytes_, row_bytes_);
    }
    return true;
}

// For each host: bytes of its rows, each once, against bytes of sums and of all ids. Now and then the dearer way is tried, to know what it costs.
void Reading::choose_sums() {
    sums_.assign(sums_.size(), std::nullopt);
    if (!table_.owner_sums_ || request_.raw || request_.pooling == Pooling::max || missing_.empty() || request_.bags == request_.ids.count) return;
    struct Size { u64 rows = 0, ids = 0, bags = 0, last = ~0ull; };
    std::vector<Size> sizes(sums_.size());
    for (const Missing& one : missing_) {
        if (one.host == NOWHERE || !table_.hosts_[one.host]) continue;
        sizes[one.host].rows++;
    }
    for (u64 bag = 0; bag < request_.bags; bag++)
        for (u64 at = request_.begin(bag); at < request_.end(bag); at++) {
            if (from_[at] == HERE || from_[at] == COPIED || missing_[from_[at]].host == NOWHERE) continue;
            Size& size = sizes[missing_[from_[at]].host];
            size.ids++;
            size.bags += size.last != bag;
            size.last = bag;
        }
    const bool trial = table_.batches_++ % 64 == 63;
    const double rows_ns = table_.rows_cost_.ns, sums_ns = table_.sums_cost_.ns;
    for (u64 host = 0; host < sizes.size(); host++) {
        const Size& size = sizes[host];
        if (!size.rows || !table_.hosts_[host] || size.ids > IDS_MAX) continue;
        const double rows = double(size.rows * (row_bytes_ + 16)), sums = double(size.bags * (4 * shape_.dim + 4) + size.ids * (request_.weights ? 12 : 8));
        const bool cheaper = rows_ns && sums_ns ? sums * sums_ns < rows * rows_ns : sums < rows;
        const bool close = sums < 4 * rows && rows < 4 * sums;
        if (cheaper != (trial && close)) sums_[host].emplace();
    }
    for (u64 bag = 0; bag < request_.bags; bag++)
        for (u64 at = request_.begin(bag); at < request_.end(bag); at++) {
            if (from_[at] == HERE || from_[at] == COPIED || missing_[from_[at]].host == NOWHERE) continue;
            auto& sums = sums_[missing_[from_[at]].host];
            if (!sums) continue;
            if (sums->bags.empty() || sums->bags.back() != bag) {
                sums->bags.push_back(u32(bag));
                sums->ends.push_back(0);
            }
            sums->ids.push_back(request_.ids[at]);
            if (request_.weights) sums->weights.push_back(request_.weights[at]);
            sums->ends.back() = u32(sums->ids.size());
        }
}

bool Reading::fetch_sums() {
    std::vector<u64> hosts;
    for (u64 host = 0; host < sums_.size(); host++)
        if (sums_[host]) hosts.push_back(host);
    std::atomic<bool> good = true;
    run_pieces(hosts.size(), u32(hosts.size()), [&](u64 which) {
        Sums& sums = *sums_[hosts[which]];
        sums.out.resize(sums.bags.size() * shape_.dim);
        const u64 begun = now_ns();
        if (!shard_bags(*table_.hosts_[hosts[which]], table_.id, sums.ids, sums.ends, request_.weights ? sums.weights.data() : nullptr, sums.out)) good = false;
        table_.sums_cost_.measured(now_ns() - begun, sums.out.size() * 4 + 4 * sums.bags.size() + (request_.weights ? 12 : 8) * sums.ids.size());
        table_.at_owner_ += sums.ids.size();
    });
    return good;
}

// Pools what has an address; rows that others sum are left out, and added afterwards.
void Reading::pool() {
    bool summed = false;
    for (const auto& one : sums_) summed |= one.has_value();
    std::vector<u64> ends(request_.bags);
    std::vector<float> weights;
    u64 used = 0;
    for (u64 bag = 0; bag < request_.bags; bag++) {
        for (u64 at = request_.begin(bag); at < request_.end(bag); at++) {
            const bool elsewhere = from_[at] != HERE && from_[at] != COPIED;
            if (elsewhere && missing_[from_[at]].host != NOWHERE && sums_[missing_[from_[at]].host]) continue;
            at_[used++] = elsewhere ? fetched_.data() + u64(from_[at]) * row_bytes_ : at_[at];
            if (summed && request_.weights) weights.push_back(request_.weights[at]);
        }
        ends[bag] = used;
    }
    for (u64 at = used; at < used + rows_.ahead; at++) at_[at] = used ? at_[used - 1] : nullptr;
    const float* factors = summed && request_.weights ? weights.data() : request_.weights;
    const Pooling pooling = summed && request_.pooling == Pooling::mean ? Pooling::sum : request_.pooling;
    const u64 pieces = threads_ == 1 ? 1 : std::clamp<u64>(used * row_bytes_ / (256 * KIB), 1, 256), each = div_up(std::max<u64>(request_.bags, 1), pieces);
    run_pieces(div_up(request_.bags, each), threads_, [&](u64 piece) {
        const u64 first = piece * each, last = std::min(request_.bags, first + each), begin = first ? ends[first - 1] : 0;
        char* out = request_.out + first * request_.out_stride;
        if (request_.raw) {
            for (u64 bag = first; bag < last; bag++, out += request_.out_stride) std::memcpy(out, at_[bag], row_bytes_);
            return;
        }
        std::vector<u32> own(last - first);
        for (u64 bag = first; bag < last; bag++) own[bag - first] = u32(ends[bag] - begin);
        kernels().bags[u32(shape_.row_type)](rows_, {at_.data() + begin, own.data(), last - first, factors ? factors + begin : nullptr, out, request_.out_stride}, pooling);
    });
    if (summed) add_sums();
}

void Reading::add_sums() {
    for (const auto& sums : sums_) {
        if (!sums) continue;
        for (u64 one = 0; one < sums->bags.size(); one++) {
            auto* to = reinterpret_cast<float*>(request_.out + sums->bags[one] * request_.out_stride);
            const float* from = sums->out.data() + one * shape_.dim;
            for (u64 column = 0; column < shape_.dim; column++) to[column] += from[column];
        }
    }
    if (request_.pooling != Pooling::mean) return;
    for (u64 bag = 0; bag < request_.bags; bag++) {
        const u64 count = request_.end(bag) - request_.begin(bag);
        auto* to = reinterpret_cast<float*>(request_.out + bag * request_.out_stride);
        for (u64 column = 0; count && column < shape_.dim; column++) to[column] /= float(count);
    }
}

void Reading::keep() {
    bool fetched = false;
    for (const Missing& one : missing_) fetched |= one.host == NOWHERE || !sums_[one.host];
    if (!kept_ || (!fetched && staged_.empty())) return;
    std::unique_lock lock(kept_->copies.mutex);
    for (u64 id : staged_) kept_->copies.promote(id, 1);
    if (kept_->written != written_) return;      // this process changed rows meanwhile: perhaps these
    for (u32 at = 0; at < missing_.size(); at++)
        if (tags_[at] != NOT_HERE && table_.hosts_[missing_[at].host])
            kept_->copies.offer(missing_[at].id, missing_[at].host, tags_[at], fetched_.data() + at * row_bytes_, missing_[at].times);
}

Reading::End Reading::attempt(bool hold) {
    std::shared_lock<std::shared_mutex> lock;
    if (kept_) lock = std::shared_lock(kept_->copies.mutex);
    const u64 moves = own_ ? own_->moves() : 0;
    if (kept_) {
        moved_ = kept_->copies.moved;
        written_ = kept_->written;
    }
    if (!resolve()) return End::moved;
    tags_.assign(missing_.size(), NOT_HERE);
    if (!missing_.empty()) {
        if (kept_ && !hold) {
            lock.unlock();
            std::vector<u64> ids;
            for (const Missing& one : missing_) ids.push_back(one.id);
            if (kept_->wait_for(ids)) {
                for (const Missing& one : missing_) table_.waited_ += one.times;
                return End::again;
            }
        }
        choose_sums();
        if (!fetch() || !fetch_sums()) return End::moved;
        if (kept_ && !hold) {
            lock.lock();
            if (copied_ids_ && kept_->copies.moved != moved_) return End::again;
        }
    } else {
        sums_.assign(sums_.size(), std::nullopt);
    }
    pool();
    if (own_ && own_->moves() != moves) return End::again;
    const u64 elsewhere = count_ - own_ids_ - copied_ids_;
    table_.own_ids_ += own_ids_;
    table_.copied_ += copied_ids_;
    table_.fetched_ += elsewhere;
    if (lock) lock.unlock();
    keep();
    return End::done;
}

bool Reading::run() {
    for (bool hold = false;; hold = true) {
        const End end = attempt(hold);
        if (end != End::again) return end == End::done;
    }
}

bool Sharded::read(const ReadRequest& request, u32 threads) { return Reading(*this, request, threads).run(); }

}  // namespace osf::shards

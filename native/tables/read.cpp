#include "tables/read.hpp"

#include <algorithm>

#include "simd/choose.hpp"
#include "tables/cold.hpp"
#include "tables/keys.hpp"
#include "tables/versions.hpp"
#include "tables/watch.hpp"
#include "tables/workers.hpp"

namespace osf::tables {

constexpr u64 WINDOW = 256;                      // ids that become addresses at a time

u64 Ids::largest() const {
    return wide ? kernels().largest64(static_cast<const std::int64_t*>(at), count) : kernels().largest32(static_cast<const std::int32_t*>(at), count);
}

std::vector<std::int64_t> Ids::copy() const {
    std::vector<std::int64_t> found(count);
    for (u64 index = 0; index < count; index++) found[index] = std::int64_t((*this)[index]);
    return found;
}

[[noreturn]] static void no_such_row(const Ids& ids, u64 rows, const std::string& title) {
    u64 at = 0;
    while (at < ids.count && ids[at] < rows) at++;
    if (at == ids.count) throw Error(Code::bad_input, "the ids of a call to the table '" + title + "' changed while it was under way: another thread writes them; give each call ids of its own");
    throw Error(Code::out_of_range, "id " + std::to_string(std::int64_t(ids[at])) + ", at position " + std::to_string(at) + " of " + std::to_string(ids.count) +
                                        ", is out of range for the table '" + title + "' (" + std::to_string(rows) + " rows)");
}

std::shared_ptr<const Snapshot> checked(Table& table, const Ids& ids, const std::string& title) {
    auto snapshot = table.snapshot();
    // Narrow ids are compared as 32 bits: a negative one is larger than any row that a narrow id could name.
    if (ids.count) {
        const u64 most = ids.largest(), rows = ids.wide ? snapshot->rows : std::min<u64>(snapshot->rows, 1ull << 31);
        if (most >= rows) no_such_row(ids, snapshot->rows, title);
    }
    return snapshot;
}

void check_offsets(const Ids& offsets, u64 bags, u64 ids, const std::string& title) {
    u64 before = 0;
    for (u64 bag = 0; bag < bags; bag++) {
        const u64 at = offsets[bag];
        if (at < before || at > ids || (bag == 0 && at != 0))
            throw Error(Code::bad_input, "offsets of bags begin with 0, do not fall and do not go beyond the ids: offset " + std::to_string(bag) + " of the table '" + title +
                                             "' is " + std::to_string(std::int64_t(at)) + (bag ? ", after " + std::to_string(before) : "") + ", with " + std::to_string(ids) + " ids");
        before = at;
    }
    if (!bags && ids) throw Error(Code::bad_input, "there are " + std::to_string(ids) + " ids and no offsets: a bag begins at 0");
}

// What is written must not be read again: ids are looked at once to check them, and later for their rows.
static void check_apart(const ReadRequest& request) {
    if (!request.bags) return;
    const u64 row = request.raw ? request.table->head().row_bytes : 4 * request.table->head().dim;
    const auto* begin = request.out;
    const auto* end = request.out + (request.bags - 1) * request.out_stride + row;
    auto overlaps = [&](const void* at, u64 bytes) { return at && static_cast<const char*>(at) < end && begin < static_cast<const char*>(at) + bytes; };
    if (overlaps(request.ids.at, request.ids.count * (request.ids.wide ? 8 : 4)) || overlaps(request.offsets.at, request.bags * (request.offsets.wide ? 8 : 4)) ||
        overlaps(request.weights, request.ids.count * 4))
        throw Error(Code::bad_input, "out= overlaps the ids, the offsets or the weights of a look-up in the table '" + request.title + "'; give it memory of its own");
}

// Addresses of the rows [from, to) of a request's ids, and some more of the last one's, which kernels may ask for.
//
// The caller's ids are read once more here, and another thread of the caller may have changed them since they were checked. So they are
// checked again, before anything is read by these addresses.
class Window {
public:
    Window(const ReadRequest& request, const Snapshot& rows, u64 end) : request_(request), rows_(rows), end_(end), shape_(request.table->shape()) {
        // Whole rows are read where they change: a copy could be older than what writers say afterwards.
        if (auto cold = request.consistent ? nullptr : request.table->cold()) cold_.emplace(std::move(cold), shape_.bytes);
    }
    u64 most() const { return cold_ ? cold_->most() : WINDOW; }

    void move(u64 from, u64 to) {
        const u64 more = std::min(end_, to + shape_.ahead);
        at_.resize(to - from + shape_.ahead);
        if (request_.keys) find(from, more);
        const Ids ids = request_.keys ? Ids{found_.data(), true, found_.size()} : request_.ids.from(from);
        const u64 most = ids.wide ? place<std::int64_t>(ids, more - from) : place<std::int32_t>(ids, more - from);
        if (most >= rows_.rows && more > from) no_such_row(request_.ids, rows_.rows, request_.title);
        from_ = from;
        to_ = to;
        for (u64 index = more; index < to + shape_.ahead; index++) at_[index - from] = more > from ? at_[more - from - 1] : nullptr;
        if (cold_) cold_->fetch(at_.data(), to - from);
    }
    const char* const* at(u64 index) const { return at_.data() + (index - from_); }
    Ids rows(u64 index) const { return request_.keys ? Ids{found_.data(), true, found_.size()}.from(index - from_) : request_.ids.from(index); }
    const RowShape& shape() const { return shape_; }

    // Whether all keys still had their rows when these had been read. If not, the window has to be moved and read again.
    bool good() {
        if (!request_.keys) return true;
        if (request_.keys->still({keys_at(from_), true, to_ - from_}, found_.data(), changes_)) {
            request_.keys->used(found_.data(), to_ - from_);
            return true;
        }
        found_.clear();
        to_ = from_;
        return false;
    }

private:
    // The largest row. An address is not used before that is known to be one of the table.
    template <class I>
    u64 place(const Ids& ids, u64 count) {
        const I* wanted = static_cast<const I*>(ids.at);
        u64 most = 0;
        if (rows_.parts.size() == 1) {
            const char* base = rows_.parts[0].rows;
            for (u64 index = 0; index < count; index++) {
                const u64 row = u64(std::int64_t(wanted[index]));
                most = std::max(most, row);
                at_[index] = base + row * shape_.bytes;
            }
            return most;
        }
        for (u64 index = 0; index < count; index++) {
            const u64 row = u64(std::int64_t(wanted[index]));
            if (row >= rows_.rows) return row;
            const Snapshot::Part& part = rows_.part_of(row);
            at_[index] = part.rows + (row - part.first) * shape_.bytes;
        }
        return most;
    }

    // The rows of the keys [from, more), of which the first may be known from the window before.
    void find(u64 from, u64 more) {
        Keys& keys = *request_.keys;
        const u64 known = from == to_ ? found_.size() - (to_ - from_) : 0, count = more - from;
        std::copy(found_.end() - std::ptrdiff_t(known), found_.end(), found_.begin());
        found_.resize(count);
        if (!known) keys.ask_for(request_.ids, from, std::min(more, from + KEYS_AHEAD));
        const u64 now = keys.changes();
        keys.find_some(keys_at(from + known), count - known, std::min(end_, more + KEYS_AHEAD) - more, found_.data() + known);
        changes_ = known ? looked_ : now;        // before the first of them was looked for
        looked_ = now;
    }
    const std::int64_t* keys_at(u64 index) const { return static_cast<const std::int64_t*>(request_.ids.at) + index; }

    const ReadRequest& request_;
    const Snapshot& rows_;
    const u64 end_;
    const RowShape shape_;
    u64 from_ = 0, to_ = 0;
    std::vector<const char*> at_;
    std::vector<std::int64_t> found_;            // of keys their rows, from from_ on
    u64 changes_ = 0, looked_ = 0;               // of places of keys, before the window's first and last ones were found
    std::optional<ColdRows> cold_;
};

// A bag's maxima, and which id each of them came from: of equal numbers, the first.
static void win(const ReadRequest& request, const RowShape& shape, const char* const* rows, u64 bag, std::vector<float>& numbers) {
    const u64 begin = request.begin(bag), count = request.end(bag) - begin;
    auto* out = reinterpret_cast<float*>(request.out + bag * request.out_stride);
    std::int64_t* winners = request.winners + bag * shape.dim;
    if (!count) std::fill_n(out, shape.dim, 0.0f);
    std::fill_n(winners, shape.dim, count ? std::int64_t(begin) : -1);
    numbers.resize(shape.dim);
    constexpr u32 END = 1;
    for (u64 at = 0; at < count; at++) {
        float* row = at ? numbers.data() : out;
        kernels().bags[u32(request.table->head().row_type)](shape, {rows + at, &END, 1, nullptr, reinterpret_cast<char*>(row), 0}, Pooling::max);
        for (u64 column = 0; at && column < shape.dim; column++) {
            if (!(row[column] > out[column])) continue;
            out[column] = row[column];
            winners[column] = std::int64_t(begin + at);
        }
    }
}

// Bags [from, to) of a request, whose rows are at these addresses. `ends` is room for their ends.
static void pool(const ReadRequest& request, const RowShape& shape, const char* const* rows, u64 from, u64 to, std::vector<u32>& ends) {
    char* out = request.out + from * request.out_stride;
    if (request.raw) {
        for (u64 bag = 0; bag < to - from; bag++) {
            for (u64 line = 0; line < shape.bytes; line += 64) __builtin_prefetch(rows[bag + shape.ahead] + line);
            std::memcpy(out + bag * request.out_stride, rows[bag], shape.bytes);
        }
        return;
    }
    const u64 first = request.begin(from);
    if (request.winners) {
        std::vector<float> numbers;
        for (u64 bag = from; bag < to; bag++) win(request, shape, rows + (request.begin(bag) - first), bag, numbers);
        return;
    }
    ends.resize(to - from);
    for (u64 bag = from; bag < to; bag++) ends[bag - from] = u32(request.end(bag) - first);
    const float* weights = request.weights ? request.weights + first : nullptr;
    kernels().bags[u32(request.table->head().row_type)](shape, {rows, ends.data(), to - from, weights, out, request.out_stride}, request.pooling);
}

// The bag after the last of those that begin with `from` and have not more than `most` ids together, or are one.
static u64 window_end(const ReadRequest& request, u64 from, u64 to, u64 most) {
    const u64 begin = request.begin(from);
    u64 bag = from + 1;
    while (bag < to && request.end(bag) - begin <= most) bag++;
    return bag;
}

// Bags [from, to) of a window, each row as some change left it: all at once, then those again in which somebody changed a row meanwhile.
static void whole_bags(const ReadRequest& request, const Window& window, u64 from, u64 to, Watch& watch, Versions& versions, std::vector<u32>& ends) {
    const bool watched = watch.begin();
    if (watched) pool(request, window.shape(), window.at(request.begin(from)), from, to, ends);
    const bool known = watched && watch.end();
    if (known && !watch.changed()) return;
    for (u64 bag = from; bag < to; bag++) {
        const u64 end = request.end(bag);
        const u64 index = request.begin(bag);
        const Ids rows = window.rows(index);
        u64 same = 0;
        while (known && same < end - index && !watch.changed(rows[same])) same++;
        if (known && same == end - index) continue;
        versions.whole(rows, end - index, window.shape(), window.at(index), [&](const char* const* at) { pool(request, window.shape(), at, bag, bag + 1, ends); });
    }
}

static void read_bags(const ReadRequest& request, const Snapshot& rows, u64 from, u64 to) {
    Window window(request, rows, request.end(to - 1));
    const RowShape& shape = window.shape();
    std::vector<u32> ends;
    Watch watch(*request.table);
    Versions versions(*request.table);
    for (u64 bag = from, next; bag < to; bag = next) {
        next = window_end(request, bag, to, window.most());
        const u64 begin = request.begin(bag), end = request.end(next - 1);
        do {
            window.move(begin, end);
            if (bag == from)
                for (u64 index = begin; index < std::min(end, begin + shape.ahead); index++)
                    for (u64 line = 0; line < shape.bytes; line += 64) __builtin_prefetch(*window.at(index) + line);
            if (request.consistent) whole_bags(request, window, bag, next, watch, versions, ends);
            else pool(request, shape, window.at(begin), bag, next, ends);
        } while (!window.good());
    }
}

void read_rows(std::span<const ReadRequest> given, u32 threads) {
    struct Piece { u64 request, from, to; };
    std::vector<ReadRequest> requests(given.begin(), given.end());
    std::vector<std::vector<std::int64_t>> offsets(requests.size()), keys(requests.size());
    std::vector<std::shared_ptr<const Snapshot>> snapshots;
    u64 bytes = 0;
    for (u64 at = 0; at < requests.size(); at++) {
        ReadRequest& request = requests[at];
        if (request.ids.count > ~0u) throw Error(Code::bad_input, "a call has at most 4294967295 ids of a table, got " + std::to_string(request.ids.count));
        check_apart(request);
        if (request.offsets.at) {
            offsets[at] = request.offsets.copy();
            request.offsets = {offsets[at].data(), true, offsets[at].size()};
            check_offsets(request.offsets, request.bags, request.ids.count, request.title);
        }
        if (request.keys) {
            Keys::check(request.ids);
            if (!request.ids.wide) keys[at] = request.ids.copy();
            if (!request.ids.wide) request.ids = {keys[at].data(), true, keys[at].size()};
        }
        snapshots.push_back(request.keys ? request.table->snapshot() : checked(*request.table, request.ids, request.title));
        bytes += request.ids.count * request.table->head().row_bytes;
    }
    if (!threads && bytes < MIB) threads = 1;
    std::vector<Piece> pieces;
    for (u64 at = 0; at < requests.size(); at++) {
        const ReadRequest& request = requests[at];
        const u64 share = request.ids.count * request.table->head().row_bytes;
        const u64 parts = threads == 1 ? 1 : std::clamp<u64>(share / (256 * KIB), 1, 256);
        const u64 each = div_up(std::max<u64>(request.bags, 1), parts);
        for (u64 from = 0; from < request.bags; from += each) pieces.push_back({at, from, std::min(request.bags, from + each)});
        if (request.keys) request.keys->came(request.ids.count);
        if (!request.table->space->read_only())
            std::atomic_ref<u64>(request.table->head().read_rows).fetch_add(request.ids.count, std::memory_order_relaxed);
    }
    run_pieces(pieces.size(), threads, [&](u64 number) {
        const Piece& piece = pieces[number];
        read_bags(requests[piece.request], *snapshots[piece.request], piece.from, piece.to);
    });
}

void prefetch_rows(Table& table, const Ids& ids) {
    auto rows = checked(table, ids, table.name());
    const u64 bytes = table.head().row_bytes;
    for (u64 index = 0; index < ids.count; index++) {
        const u64 wanted = ids[index];           // of any number: no address is read
        const Snapshot::Part& part = rows->part_of(wanted);
        const char* row = part.rows + (wanted - part.first) * bytes;
        for (u64 line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, 2);
    }
}

}  // namespace osf::tables

#include "tables/read.hpp"

#include <algorithm>

#include "tables/choose.hpp"
#include "tables/versions.hpp"
#include "tables/workers.hpp"

namespace osf::tables {

constexpr u64 WINDOW = 256;                      // ids that become addresses at a time

u64 Ids::largest() const {
    return wide ? kernels().largest64(static_cast<const std::int64_t*>(at), count) : kernels().largest32(static_cast<const std::int32_t*>(at), count);
}

[[noreturn]] static void no_such_row(const Ids& ids, u64 rows, const std::string& title) {
    u64 at = 0;
    while (ids[at] < rows) at++;
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

static void check_offsets(const ReadRequest& request) {
    u64 before = 0;
    for (u64 bag = 0; bag < request.bags; bag++) {
        const u64 at = request.offsets[bag];
        if (at < before || at > request.ids.count || (bag == 0 && at != 0))
            throw Error(Code::bad_input, "offsets of bags begin with 0, do not fall and do not go beyond the ids: offset " + std::to_string(bag) + " of the table '" +
                                             request.title + "' is " + std::to_string(std::int64_t(at)) + (bag ? ", after " + std::to_string(before) : "") + ", with " +
                                             std::to_string(request.ids.count) + " ids");
        before = at;
    }
    if (!request.bags && request.ids.count) throw Error(Code::bad_input, "there are " + std::to_string(request.ids.count) + " ids and no offsets: a bag begins at 0");
}

// Addresses of the rows [from, to) of a request's ids, and some more of the last one's, which kernels may ask for.
class Window {
public:
    Window(const ReadRequest& request, const Snapshot& rows, u64 end) : request_(request), rows_(rows), end_(end), shape_(request.table->shape()) {}

    void move(u64 from, u64 to) {
        from_ = from;
        const u64 more = std::min(end_, to + shape_.ahead);
        at_.resize(to - from + shape_.ahead);
        if (rows_.parts.size() == 1) {
            const char* base = rows_.parts[0].rows;
            if (request_.ids.wide) of_one<std::int64_t>(base, from, more);
            else of_one<std::int32_t>(base, from, more);
        } else {
            for (u64 index = from; index < more; index++) {
                const u64 row = request_.ids[index];
                const Snapshot::Part& part = rows_.part_of(row);
                at_[index - from] = part.rows + (row - part.first) * shape_.bytes;
            }
        }
        for (u64 index = more; index < to + shape_.ahead; index++) at_[index - from] = more > from ? at_[more - from - 1] : nullptr;
    }
    const char* const* at(u64 index) const { return at_.data() + (index - from_); }
    const RowShape& shape() const { return shape_; }

private:
    template <class I>
    void of_one(const char* base, u64 from, u64 to) {
        const I* ids = static_cast<const I*>(request_.ids.at);
        for (u64 index = from; index < to; index++) at_[index - from] = base + u64(ids[index]) * shape_.bytes;
    }
    const ReadRequest& request_;
    const Snapshot& rows_;
    const u64 end_;
    const RowShape shape_;
    u64 from_ = 0;
    std::vector<const char*> at_;
};

static void pool(const ReadRequest& request, const RowShape& shape, const char* const* rows, u64 bag, BagKernel kernel) {
    const u64 begin = request.begin(bag), count = request.end(bag) - begin;
    char* out = request.out + bag * request.out_stride;
    if (request.raw) {
        for (u64 line = 0; line < shape.bytes; line += 64) __builtin_prefetch(rows[shape.ahead] + line);
        std::memcpy(out, rows[0], shape.bytes);
        return;
    }
    kernel(shape, {rows, count, request.weights ? request.weights + begin : nullptr, reinterpret_cast<float*>(out)}, request.pooling);
}

static void read_bags(const ReadRequest& request, const Snapshot& rows, u64 from, u64 to) {
    const u64 end = request.end(to - 1);
    Window window(request, rows, end);
    const BagKernel kernel = kernels().bag[u32(request.table->head().row_type)];
    std::optional<Versions> versions;
    if (request.consistent) versions.emplace(*request.table);
    u64 ready = request.begin(from);             // ids up to here have addresses
    for (u64 bag = from; bag < to; bag++) {
        const u64 begin = request.begin(bag), finish = request.end(bag);
        if (finish > ready || bag == from) {
            ready = std::min(end, std::max(finish, begin + WINDOW));
            window.move(begin, ready);
            if (bag == from)
                for (u64 index = begin; index < std::min(ready, begin + window.shape().ahead); index++)
                    for (u64 line = 0; line < window.shape().bytes; line += 64) __builtin_prefetch(*window.at(index) + line);
        }
        if (versions) versions->whole(request, bag, window.shape(), window.at(begin), [&](const char* const* at) { pool(request, window.shape(), at, bag, kernel); });
        else pool(request, window.shape(), window.at(begin), bag, kernel);
    }
}

void read_rows(std::span<const ReadRequest> requests, u32 threads) {
    struct Piece { u64 request, from, to; };
    std::vector<std::shared_ptr<const Snapshot>> snapshots;
    u64 bytes = 0;
    for (const ReadRequest& request : requests) {
        if (request.offsets.at) check_offsets(request);
        snapshots.push_back(checked(*request.table, request.ids, request.title));
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
        const Snapshot::Part& part = rows->part_of(ids[index]);
        const char* row = part.rows + (ids[index] - part.first) * bytes;
        for (u64 line = 0; line < bytes; line += 64) __builtin_prefetch(row + line, 0, 2);
    }
}

}  // namespace osf::tables

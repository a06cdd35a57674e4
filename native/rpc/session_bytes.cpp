// Bytes by address: straight from the mapped memory into sealed frames, and back. Plain access, so it may have to wait for other
// hosts as any touch does.
#include "rpc/session.hpp"

namespace osf::rpc {

std::vector<Range> Session::ranges(In& in) {
    u64 count = in.left() / sizeof(Range);
    if (!count || count > RANGES_MAX || in.left() % sizeof(Range))
        throw Error(Code::bad_input, "a list of " + std::to_string(in.left()) + " bytes is none of ranges");
    std::vector<Range> result(count);
    for (Range& range : result) range = in.get<Range>();
    return result;
}

// A block that never had an array has no memory yet: touching it could find none, and end this process.
void Session::check(const std::vector<Range>& ranges) const {
    space_.check_usable();
    const u64 start = u64(space_.base()) + space_.layout.data_at, end = start + space_.data.limit() * PAGE;
    auto committed = [&](u64 block) { return load(space_.data.commits()[block / 64]) >> (block % 64) & 1; };
    auto good = [&](const Range& range) {
        if (range.address < start || range.address > end || range.bytes > end - range.address) return false;
        for (u64 at = (range.address - start) / BLOCK; at * BLOCK < range.address - start + range.bytes; at++)
            if (!committed(at)) return false;
        return true;
    };
    for (const Range& range : ranges) {
        if (good(range)) continue;
        char text[240];
        std::snprintf(text, sizeof text, "%llu bytes at %#llx are not all in arrays of the space '%s' on this host (its data are at %#llx to %#llx)",
                      (unsigned long long)range.bytes, (unsigned long long)range.address, space_.header().name,
                      (unsigned long long)start, (unsigned long long)end);
        throw Error(Code::bad_address, text);
    }
}

// In batches of parts that are touched together, then sealed together: what has to be fetched is fetched before the line is taken, so
// that the ticker can say meanwhile that we live, and what is only far away comes from memory side by side.
void Session::get(In& in) {
    std::vector<Range> wanted = ranges(in);
    check(wanted);
    answered_ = true;
    const u64 unit = std::max<u64>(PAGE, proxies_.served().unit);
    std::vector<std::span<const char>> batch;
    u64 batch_bytes = 0;
    auto send = [&] {
        for (auto part : batch)
            for (u64 at = 0; at < part.size(); at += unit) (void)*static_cast<const volatile char*>(part.data() + at);
        {
            std::lock_guard guard(line_.sending);
            for (auto part : batch) wire_.queue(frame_part, id_, part);
        }
        push(false);
        batch.clear();
        batch_bytes = 0;
    };
    for (const Range& range : wanted) {
        for (u64 done = 0; done < range.bytes;) {
            const u64 bytes = std::min<u64>(BULK, range.bytes - done);
            if (batch_bytes + bytes > BULK) send();
            batch.emplace_back(reinterpret_cast<const char*>(range.address + done), bytes);
            batch_bytes += bytes;
            done += bytes;
            if (batch_bytes >= MUCH) send();
        }
    }
    if (!batch.empty()) send();
}

// Parts in their order; a part that is not the next one ends the connection.
void Session::receive(char* to, u64 bytes) {
    for (u64 done = 0; done < bytes;) {
        const u64 size = std::min<u64>(BULK, bytes - done);
        if (!wire_.peek() && !wire_.fill()) push(true);
        const FrameHead* head = wire_.wait(-1);
        if (head->type != frame_part || head->id != id_ || head->bytes != size) {
            gone_ = true;
            throw Error(Code::bad_input, "a part of " + std::to_string(size) + " bytes was to follow");
        }
        check_term();
        if (to) wire_.open({to + done, size});
        else wire_.open();
        done += size;
    }
}

void Session::write(In& in) {
    std::vector<Range> wanted = ranges(in);
    try {
        need_write();
        check(wanted);
    } catch (const Error&) {
        for (const Range& range : wanted) receive(nullptr, range.bytes);
        throw;
    }
    Told* told = lane_of(id_) == WRITES ? &space_.members.told(space_.members.slot(), WRITES - 1) : nullptr;
    const bool same = told && !std::memcmp(told->uuid, proxy_->uuid.data(), sizeof told->uuid);
    const bool done = same && told->id >= id_;   // by a keeper that was killed before its answer arrived
    for (const Range& range : wanted) receive(done ? nullptr : reinterpret_cast<char*>(range.address), range.bytes);
    if (told && !done) {
        if (!same) {                             // of a process that had this place before
            store(told->id, u64(0), std::memory_order_seq_cst);
            std::atomic_signal_fence(std::memory_order_seq_cst);  // in this order, should the keeper be killed here
            std::memcpy(told->uuid, proxy_->uuid.data(), sizeof told->uuid);
            std::atomic_signal_fence(std::memory_order_seq_cst);
        }
        store(told->id, id_, std::memory_order_seq_cst);
    }
    reply();
}

}  // namespace osf::rpc

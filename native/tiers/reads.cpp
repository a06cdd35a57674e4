#include "tiers/reads.hpp"

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace osf::tiers {

Reads::Reads() : maker_(getpid()) {}

// Waits for what is under way, so the memory goes after it.
Reads::~Reads() {
    if (queue_ && mine()) syscall(SYS_io_destroy, queue_);
}

// What the machine allows for all processes together may be used up now, and free again later: it is tried again each time.
bool Reads::has_queue() {
    if (!mine()) return false;
    if (!queue_ && syscall(SYS_io_setup, DEPTH, &queue_) < 0) queue_ = 0;
    return queue_;
}

bool Reads::mine() const { return getpid() == maker_; }

void Reads::make_room(u64 bytes) {
    if (bytes <= most_) return;
    memory_.reset(static_cast<char*>(std::aligned_alloc(SECTOR, (DEPTH + 1) * bytes)));
    most_ = memory_ ? bytes : 0;
    if (!memory_) throw std::bad_alloc();
}

void Reads::run(std::span<const One> reads, const Done& done) {
    u64 most = 0;
    bool queueable = reads.size() > 1;
    for (const One& one : reads) {
        most = std::max(most, one.bytes);
        queueable = queueable && one.file->descriptor() >= 0;
    }
    make_room(most);
    if (queueable && has_queue()) queued(reads, done);
    else one_by_one(reads, 0, done);
}

void Reads::one_by_one(std::span<const One> reads, u64 from, const Done& done) {
    char* to = place(DEPTH);
    for (; from < reads.size(); from++) {
        const One& one = reads[from];
        done(from, one.file->read(to, one.bytes, one.at) == ssize_t(one.bytes) ? to : nullptr);
    }
}

void Reads::queued(std::span<const One> reads, const Done& done) {
    iocb orders[DEPTH];
    iocb* next[DEPTH];
    io_event events[DEPTH];
    u32 unused[DEPTH];
    u32 free = DEPTH, under_way = 0;
    for (u32 at = 0; at < DEPTH; at++) unused[at] = at;
    bool refused = false;
    broken_ = true;
    for (u64 at = 0; at < reads.size() || under_way;) {
        u32 count = 0;
        while (!refused && at + count < reads.size() && count < free) {
            const One& one = reads[at + count];
            const u32 number = unused[free - 1 - count];
            iocb& order = orders[number] = {};
            order.aio_fildes = u32(one.file->descriptor());
            order.aio_lio_opcode = IOCB_CMD_PREAD;
            order.aio_buf = u64(place(number));
            order.aio_nbytes = one.bytes;
            order.aio_offset = std::int64_t(one.at);
            order.aio_data = (at + count) << 8 | number;
            next[count++] = &order;
        }
        if (count) {
            const long taken = syscall(SYS_io_submit, queue_, long(count), next);
            if (taken <= 0) refused = true;
            else at += u64(taken), free -= u32(taken), under_way += u32(taken);
        }
        if (under_way) {
            const long ended = syscall(SYS_io_getevents, queue_, long(std::min(under_way, 8u)), long(DEPTH), events, nullptr);
            if (ended < 0 && errno != EINTR) fail_os("waiting for reads of flash", errno);
            for (long one = 0; one < ended; one++) {
                const u64 number = events[one].data >> 8;
                const u32 from = u32(events[one].data & 255);
                done(number, events[one].res == std::int64_t(reads[number].bytes) ? place(from) : nullptr);
                unused[free++] = from;
                under_way--;
            }
        } else if (refused) {
            one_by_one(reads, at, done);
            break;
        }
    }
    broken_ = false;
}

}  // namespace osf::tiers

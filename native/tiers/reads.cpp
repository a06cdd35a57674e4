#include "tiers/reads.hpp"

#include <linux/aio_abi.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace osf::tiers {

static void read_now(Reads::One& one) { one.done = one.file->read(one.to, one.bytes, one.at) == ssize_t(one.bytes); }

Reads::~Reads() {
    if (queue_) syscall(SYS_io_destroy, queue_);
}

void Reads::run(std::span<One> reads) {
    if (reads.size() > 1 && !tried_) {
        tried_ = true;
        if (syscall(SYS_io_setup, DEPTH, &queue_) < 0) queue_ = 0;
    }
    const bool all = queue_ && std::all_of(reads.begin(), reads.end(), [](const One& one) { return one.file->descriptor() >= 0; });
    if (all && reads.size() > 1) return queued(reads);
    for (One& one : reads) read_now(one);
}

void Reads::queued(std::span<One> reads) {
    iocb orders[DEPTH];
    iocb* next[DEPTH];
    io_event events[DEPTH];
    u32 unused[DEPTH];
    u32 free = DEPTH, under_way = 0;
    for (u32 at = 0; at < DEPTH; at++) unused[at] = at;
    bool refused = false;
    for (u64 at = 0; at < reads.size() || under_way;) {
        u32 count = 0;
        while (!refused && at + count < reads.size() && count < free) {
            One& one = reads[at + count];
            const u32 place = unused[free - 1 - count];
            iocb& order = orders[place] = {};
            order.aio_fildes = u32(one.file->descriptor());
            order.aio_lio_opcode = IOCB_CMD_PREAD;
            order.aio_buf = u64(one.to);
            order.aio_nbytes = one.bytes;
            order.aio_offset = std::int64_t(one.at);
            order.aio_data = (at + count) << 8 | place;
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
                One& read = reads[events[one].data >> 8];
                read.done = events[one].res == std::int64_t(read.bytes);
                unused[free++] = u32(events[one].data & 255);
                under_way--;
            }
        } else if (refused) {
            for (; at < reads.size(); at++) read_now(reads[at]);
        }
    }
}

}  // namespace osf::tiers

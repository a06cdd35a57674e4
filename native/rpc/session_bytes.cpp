// Bytes by address: straight from the mapped memory into sealed frames, and back. Plain access, so it may have to wait for other
// hosts as any touch does.
#include "rpc/session.hpp"

#include <sys/mman.h>
#include <sys/uio.h>

namespace osf::rpc {

// Memory of this thread that can be read as a file.
class Scratch {
public:
    explicit Scratch(u64 bytes) : bytes_(align_up(bytes, PAGE)), fd_(::memfd_create("openshelf-put", MFD_CLOEXEC)) {
        if (fd_ < 0) fail_os("making a file in memory", errno);
        if (int error = allocate_file(fd_, 0, bytes_)) {
            ::close(fd_);
            fail_os("no memory for the end of a put", error);
        }
        void* at = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
        if (at == MAP_FAILED) {
            const int error = errno;
            ::close(fd_);
            fail_os("mapping a file in memory", error);
        }
        memory_ = static_cast<char*>(at);
    }
    ~Scratch() {
        ::munmap(memory_, bytes_);
        ::close(fd_);
    }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    char* memory() const { return memory_; }
    void store_with_note(char* to, u64 bytes, u64& progress, u64 value) const;

private:
    const u64 bytes_;
    const int fd_;
    char* memory_ = nullptr;
};

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

// One part of a write, if this is the connection by which they come. `store` gets where it begins in the scratch memory, and puts it in
// place with its note. Two of one process never store at once: of them, the one whose connection is over learns so.
template <class Store>
void Session::write_part(u64 bytes, u64 epoch, const Store& store) {
    if (!wire_.peek() && !wire_.fill()) push(true);
    const FrameHead* head = wire_.wait(-1);
    if (head->type != frame_part || head->id != id_ || head->bytes != bytes) {
        gone_ = true;
        throw Error(Code::bad_input, "a part of " + std::to_string(bytes) + " bytes was to follow");
    }
    std::lock_guard guard(proxy_->writing);
    if (load(written().epoch) != epoch) {
        gone_ = true;
        throw Error(Code::refused, "a write on a connection that is over");
    }
    check_term();
    store();
}

// Bytes and note come by one system call, which a kill does not cut: it is heard when the call returns. Memory that has to be fetched first
// (from another host) may be wanted by others again meanwhile; then it is tried again.
void Scratch::store_with_note(char* to, u64 bytes, u64& progress, u64 value) const {
    std::memcpy(memory_ + bytes, &value, sizeof value);
    iovec places[] = {{to, bytes}, {&progress, sizeof value}};
    for (;;) {
        step();
        const ssize_t got = ::preadv(fd_, places, 2, 0);
        if (got == ssize_t(bytes + sizeof value)) break;
        if (got < 0 && errno != EFAULT && errno != EINTR) fail_os("storing the end of a put", errno);
        for (u64 at = 0; at < bytes; at += PAGE) std::atomic_ref<char>(to[at]).fetch_or(0);
        std::atomic_ref<char>(to[bytes - 1]).fetch_or(0);
    }
    step();
}

template <class Part>
static void each_part(const std::vector<Range>& wanted, const Part& part) {
    u64 number = 0;
    for (const Range& range : wanted)
        for (u64 done = 0; done < range.bytes; number++) {
            const bool last_range = &range == &wanted.back();
            const u64 bytes = part_bytes(range.bytes - done, last_range);
            part(reinterpret_cast<char*>(range.address + done), bytes, number, last_range && done + bytes == range.bytes);
            done += bytes;
        }
}

void Session::write(In& in) {
    const u64 epoch = in.get<u64>(), number = in.get<u64>();
    if (number >> 40) throw Error(Code::bad_input, "there is no write of number " + std::to_string(number));
    std::vector<Range> wanted = ranges(in);
    Written& written = this->written();
    u64 there = 0;                                 // parts of it that are in memory already
    {
        std::lock_guard guard(proxy_->writing);
        const u64 progress = load(written.progress);
        if (epoch < load(written.epoch)) {
            gone_ = true;
            throw Error(Code::refused, "a write on a connection that is over");
        }
        store(written.epoch, epoch);
        if (number <= progress >> 24) there = number == progress >> 24 ? progress & WRITTEN_ALL : WRITTEN_ALL;
    }
    std::string aside;
    auto drop = [&](char*, u64 bytes, u64, bool) {
        aside.resize(bytes);
        write_part(bytes, epoch, [&] { wire_.open(std::span<char>(aside)); });
    };
    std::exception_ptr refused;
    try {
        need_write();
        if (there == WRITTEN_ALL) refuse_failed(number);
        else check(wanted);
    } catch (const Error&) {
        refused = std::current_exception();
    }
    if (refused || there == WRITTEN_ALL) each_part(wanted, drop);
    if (refused) {
        std::lock_guard guard(proxy_->writing);
        if (there != WRITTEN_ALL) {
            store(written.failed[number % std::size(written.failed)], number);
            store(written.progress, number << 24 | WRITTEN_ALL);
        }
        std::rethrow_exception(refused);
    }
    if (there == WRITTEN_ALL) return reply();
    each_part(wanted, [&](char* to, u64 bytes, u64 part, bool last) {
        if (part < there) return drop(to, bytes, part, last);
        static thread_local Scratch scratch(TAIL + sizeof(u64));
        write_part(bytes, epoch, [&] {
            wire_.open({last ? scratch.memory() : to, bytes});
            if (last) return scratch.store_with_note(to, bytes, written.progress, number << 24 | WRITTEN_ALL);
            step();
            store(written.progress, number << 24 | (part + 1));
            step();
        });
    });
    reply();
}

// It was refused by a keeper whose answer did not arrive.
void Session::refuse_failed(u64 number) {
    const u64 failed = load(written().failed[number % std::size(written().failed)]);
    if (failed == number) throw Error(Code::bad_address, "the put was refused before, when its bytes were not all in arrays of this host");
    if (failed > number) throw Error(Code::host_lost, "its keeper was killed, and nobody knows whether it had refused this put");
}

}  // namespace osf::rpc

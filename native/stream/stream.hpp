// Bytes between an arena and the homes of what is in it: files on flash, or memory of the host.
//
// Four lanes, one for each kind of home and direction, so that none waits behind another. In a lane, requests begin in the order in which
// they were asked for, cut into chunks; each worker takes the next chunk, of the next request if this one has no more, so that the disk
// always has as many to do as there are workers. O_DIRECT and threads, not io_uring: containers often forbid that, and at 1 MiB a system call
// costs nothing.
//
// A request that must not begin before others have ended names their tickets. Tickets only look back, so no circle of them can wait. If one
// of them failed it is not carried out and fails too: what could not be written is still in the arena.
//
// fork: as the device's queues. In a child every call raises, and what it inherited is left alone.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/disk.hpp"

namespace osf::stream {

// A file that storages live in. Closed with the last request that uses it.
//
// enable_shared_from_this, here and of tickets: else Python's references to them would be given back by the interpreter's lock, which
// a worker must never wait for.
struct StreamFile : std::enable_shared_from_this<StreamFile> {
    StreamFile(std::unique_ptr<File> it, std::string at) : file(std::move(it)), path(std::move(at)) {}
    const std::unique_ptr<File> file;
    const std::string path;                        // for people
};

struct Home {                                      // of one storage
    std::shared_ptr<StreamFile> file;              // none: memory
    u64 at = 0;                                    // place in the file, or address
};

enum class Verify { nothing, compute, compare };   // compare with what it must be, else Corrupt

struct Check {
    Verify verify = Verify::nothing;
    u64 expected = 0;
    u64 first = 0;                                 // number of the first piece: of a request for a part of a storage
};

struct StreamState;

class StreamTicket : public std::enable_shared_from_this<StreamTicket> {
public:
    bool done() const { return done_.load(std::memory_order_acquire); }
    // False: the time is over (negative: never), or it was interrupted, which is asked every 100 ms. Throws what the request failed with.
    bool wait(long timeout_ns, const std::function<bool()>& interrupted = {});
    u64 check() const { return sum_; }             // once it is done: of what was moved, if that was asked for

private:
    friend class Streamer;
    friend struct StreamState;
    enum Lane : u32 { flash_read, flash_write, dram_read, dram_write };
    bool sleep(long timeout_ns, const std::function<bool()>& interrupted);

    std::shared_ptr<StreamState> state_;
    u64 fork_ = 0;
    Lane lane_ = flash_read;
    Home home_;
    std::string name_;
    char* memory_ = nullptr;
    u64 bytes_ = 0;
    Check check_;
    std::vector<std::shared_ptr<StreamTicket>> after_;
    // changed with the state's mutex held
    u64 taken_ = 0, under_way_ = 0;                // bytes given to workers; chunks that they have
    u64 sum_ = 0;
    struct Failure { Code code; std::string what; };  // each who waits has an Error of its own
    std::optional<Failure> error_;
    std::atomic<bool> done_{false};
};

struct LaneCounts {
    u64 requests = 0, bytes = 0;                   // that were done
    u64 busy_ns = 0;                               // with at least one chunk under way
    u64 most = 0;                                  // chunks under way at one time
};

class Streamer {
public:
    using Ticket = std::shared_ptr<StreamTicket>;
    static constexpr u64 CHUNK = MIB;
    static constexpr std::array<const char*, 4> LANES = {"flash_read", "flash_write", "dram_read", "dram_write"};

    static constexpr u32 DEPTH = 6;                // four keep a disk busy, while two compare checksums

    // The arena stays the caller's, and must stay there until close() has returned. `depth`: workers of a lane to flash.
    Streamer(char* arena, u64 bytes, u32 depth = DEPTH);
    ~Streamer();                                   // as close()
    Streamer(const Streamer&) = delete;
    Streamer& operator=(const Streamer&) = delete;

    // Offsets, and places in files, are multiples of a sector; so is what is moved: up to the end of the last sector, in the arena and in
    // the file. Memory is moved to the byte. `name` is told when it fails.
    Ticket read(Home from, u64 offset, u64 bytes, std::string name = "", Check check = {}, std::vector<Ticket> after = {});
    Ticket write(Home to, u64 offset, u64 bytes, std::string name = "", Check check = {}, std::vector<Ticket> after = {});
    LaneCounts counts(size_t lane) const;
    void close();                                  // finishes what it has, and takes no more

private:
    Ticket add(bool write, Home home, u64 offset, u64 bytes, std::string name, Check check, std::vector<Ticket> after);
    const std::shared_ptr<StreamState> state_;
    char* const arena_;
    const u64 bytes_, fork_;
};

}  // namespace osf::stream

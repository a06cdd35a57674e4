// Transfers: their order, how many are under way, disks that fail, and bytes against an oracle.
#include "stream/stream.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/check.hpp"
#include "base/checksum.hpp"
#include "stream/device.hpp"
#include "tests/tiers/sim_disk.hpp"

using namespace osf;
using namespace osf::test;

static constexpr u64 PART = Streamer::CHUNK;

static std::shared_ptr<StreamFile> make_file(SimDisk& disk, const std::string& path, u64 bytes) {
    int error = 0;
    auto file = disk.open(path, Disk::fresh, true, error);
    CHECK(file && file->allocate(bytes) == 0);
    return std::make_shared<StreamFile>(std::move(file), path);
}

static void fill_words(char* at, u64 bytes, u64 seed) {
    std::mt19937_64 random(seed);
    for (u64 done = 0; done < bytes; done += 8) {
        const u64 word = random();
        std::memcpy(at + done, &word, 8);
    }
}

template <class Body>
static Error raised(Body body) {
    try {
        body();
    } catch (const Error& error) {
        return error;
    }
    failed(__FILE__, __LINE__, "nothing was raised");
}

// A file whose every call waits to be let on, and tells where it was asked for what.
class Gate : public File {
public:
    ssize_t read(void* to, u64 bytes, u64 at) override {
        pass(at);
        std::memset(to, int(at / SECTOR % 251), bytes);
        return ssize_t(bytes);
    }
    ssize_t write(const void*, u64 bytes, u64 at) override {
        pass(at);
        return ssize_t(bytes);
    }
    int sync() override { return 0; }
    ssize_t size() override { return 1 << 30; }
    int allocate(u64) override { return 0; }

    void let(u64 more) {
        std::lock_guard guard(mutex_);
        open_ += more;
        change_.notify_all();
    }
    void arrived(u64 count) {  // waits for so many
        std::unique_lock lock(mutex_);
        change_.wait(lock, [&] { return places.size() >= count; });
    }
    size_t count() {
        std::lock_guard guard(mutex_);
        return places.size();
    }
    std::vector<u64> places;

private:
    void pass(u64 at) {
        std::unique_lock lock(mutex_);
        places.push_back(at);
        change_.notify_all();
        change_.wait(lock, [&] { return open_ > 0; });
        open_--;
    }
    std::mutex mutex_;
    std::condition_variable change_;
    u64 open_ = 0;
};

static std::pair<Gate*, std::shared_ptr<StreamFile>> gate_file() {
    auto gate = std::make_unique<Gate>();
    Gate* it = gate.get();
    return {it, std::make_shared<StreamFile>(std::move(gate), "gate")};
}

static void requests_begin_in_order_and_the_disk_has_enough_to_do() {
    context = "order";
    DeviceArena arena(64 * MIB);
    auto [gate, file] = gate_file();
    Streamer streamer(arena.data(), arena.bytes(), 4);
    std::vector<Streamer::Ticket> tickets;
    u64 at = 0, chunks = 0;
    for (u64 bytes : {SECTOR, 3 * PART, PART + 1, SECTOR, 2 * PART, SECTOR + 5}) {
        tickets.push_back(streamer.read({file, at}, at, bytes));
        at += align_up(bytes, SECTOR);
        chunks += div_up(align_up(bytes, SECTOR), PART);
    }
    gate->arrived(4);                              // of several requests, though none has ended
    CHECK(gate->count() == 4);
    for (u64 passed = 1; passed <= chunks - 4; passed++) {
        gate->let(1);
        gate->arrived(4 + passed);
        CHECK(gate->count() == 4 + passed);        // never fewer than four under way, nor more
    }
    CHECK(!tickets.back()->done() && !tickets.back()->wait(1'000'000));
    gate->let(4);
    for (auto& ticket : tickets) CHECK(ticket->wait(-1));
    // Four may come in any order; but what is asked for next only when one of them has ended.
    for (size_t place = 0; place < gate->places.size(); place++)
        CHECK(std::count_if(gate->places.begin(), gate->places.end(), [&](u64 other) { return other < gate->places[place]; }) < long(place) + 4);
    const LaneCounts counts = streamer.counts(0);
    CHECK(counts.most == 4 && counts.requests == 6 && counts.bytes == at && counts.busy_ns > 0);
    CHECK(streamer.counts(1).requests == 0 && streamer.counts(2).requests == 0);
}

static void one_lane_does_not_block_another() {
    context = "lanes";
    DeviceArena arena(8 * MIB);
    auto [gate, file] = gate_file();
    Streamer streamer(arena.data(), arena.bytes());
    std::vector<char> memory(MIB, 3), back(MIB);
    auto stuck = streamer.read({file, 0}, 0, MIB);
    gate->arrived(1);
    CHECK(streamer.read({nullptr, reinterpret_cast<u64>(memory.data())}, 2 * MIB, MIB)->wait(-1));
    CHECK(streamer.write({nullptr, reinterpret_cast<u64>(back.data())}, 2 * MIB, MIB)->wait(-1));
    CHECK(back == memory);
    auto other = streamer.write({file, 4 * MIB}, 4 * MIB, MIB);
    gate->arrived(2);
    CHECK(!stuck->done() && !other->done());
    gate->let(2);
    CHECK(stuck->wait(-1) && other->wait(-1));
}

static void what_waits_for_a_ticket_begins_when_it_is_done() {
    context = "after";
    DeviceArena arena(8 * MIB);
    auto [gate, file] = gate_file();
    auto [free_gate, other] = gate_file();
    free_gate->let(100);
    Streamer streamer(arena.data(), arena.bytes());
    auto leaving = streamer.write({file, 0}, 0, 2 * MIB);
    auto coming = streamer.read({other, 0}, 0, MIB, "", {}, {leaving});
    auto behind = streamer.read({other, MIB}, 4 * MIB, SECTOR);
    gate->arrived(2);
    gate->let(1);
    CHECK(!coming->wait(2'000'000) && !behind->done() && free_gate->count() == 0);
    gate->let(1);
    CHECK(leaving->wait(-1) && coming->wait(-1) && behind->wait(-1));
    Streamer second(arena.data(), arena.bytes());
    CHECK(raised([&] { second.read({other, 0}, 0, MIB, "", {}, {leaving}); }).code == Code::bad_input);
}

static void a_failing_disk_is_told_and_holds_up_nobody() {
    context = "failing disk";
    SimDisk disk;
    DeviceArena arena(16 * MIB);
    auto file = make_file(disk, "/d/weights", 16 * MIB);
    Streamer streamer(arena.data(), arena.bytes());
    fill_words(arena.data(), 8 * MIB, 1);
    CHECK(streamer.write({file, 0}, 0, 8 * MIB)->wait(-1));
    disk.fail_after(3, EIO);
    auto bad = streamer.read({file, 0}, 8 * MIB, 8 * MIB, "layer.7");
    std::vector<Streamer::Ticket> later;
    for (u64 at = 0; at < 8; at++) later.push_back(streamer.read({file, at * MIB}, 8 * MIB + at * MIB, MIB));
    const Error error = raised([&] { bad->wait(-1); });
    CHECK(error.code == Code::flash);
    for (const char* part : {"layer.7", "/d/weights", "errno 5", "1048576 bytes at "}) CHECK(std::string(error.what()).find(part) != std::string::npos);
    CHECK(raised([&] { bad->wait(0); }).code == Code::flash);  // and again
    for (auto& ticket : later) CHECK(ticket->wait(-1));
    CHECK(!std::memcmp(arena.data(), arena.data() + 8 * MIB, 8 * MIB));

    context = "short";
    const Error cut = raised([&] { streamer.read({file, 15 * MIB}, 0, 2 * MIB, "tail")->wait(-1); });
    CHECK(cut.code == Code::flash && std::string(cut.what()).find("truncated") != std::string::npos);

    context = "full";
    disk.set_room(16 * MIB);
    auto full = streamer.write({file, 16 * MIB}, 0, 2 * MIB, "moments");
    auto waiting = streamer.read({file, 0}, 0, MIB, "next", {}, {full});
    CHECK(raised([&] { full->wait(-1); }).code == Code::no_room);
    const Error refused = raised([&] { waiting->wait(-1); });  // it would have overwritten what could not be stored
    CHECK(refused.code == Code::no_room && std::string(refused.what()).find("'next' was not moved") == 0);
    auto late = streamer.read({file, 0}, 0, MIB, "late", {}, {full});
    CHECK(raised([&] { late->wait(-1); }).code == Code::no_room);
    CHECK(streamer.read({file, 0}, 0, MIB)->wait(-1));
}

static void an_altered_byte_is_noticed_wherever_it_is() {
    context = "checksum";
    SimDisk disk;
    DeviceArena arena(8 * MIB);
    auto file = make_file(disk, "/weights", 8 * MIB);
    Streamer streamer(arena.data(), arena.bytes());
    const u64 bytes = 3 * MIB + 3 * SECTOR;
    fill_words(arena.data(), bytes, 2);
    auto whole = streamer.write({file, SECTOR}, 0, bytes, "", {Verify::compute, 0, 0});
    CHECK(whole->wait(-1) && whole->check() == check_pieces(arena.data(), bytes, 0));
    // In parts, as it is made when it is larger than the arena.
    auto first = streamer.write({file, SECTOR}, 0, 2 * MIB, "", {Verify::compute, 0, 0});
    auto second = streamer.write({file, SECTOR + 2 * MIB}, 2 * MIB, bytes - 2 * MIB, "", {Verify::compute, 0, 2});
    CHECK(first->wait(-1) && second->wait(-1) && first->check() + second->check() == whole->check());
    const Check check{Verify::compare, whole->check(), 0};
    CHECK(streamer.read({file, SECTOR}, 4 * MIB, bytes, "w", check)->wait(-1));
    const std::vector<char> good = disk.content("/weights");
    std::mt19937_64 random(3);
    for (int round = 0; round < 20; round++) {
        auto bad = good;
        bad[SECTOR + random() % bytes] ^= char(1 << random() % 8);
        disk.replace("/weights", bad);
        const Error error = raised([&] { streamer.read({file, SECTOR}, 0, bytes, "layer.1", check)->wait(-1); });
        CHECK(error.code == Code::corrupt && std::string(error.what()).find("'layer.1'") == 0);
    }
    auto swapped = good;                           // whole pieces that changed places
    std::swap_ranges(swapped.begin() + SECTOR, swapped.begin() + SECTOR + MIB, swapped.begin() + SECTOR + MIB);
    disk.replace("/weights", swapped);
    CHECK(raised([&] { streamer.read({file, SECTOR}, 0, bytes, "w", check)->wait(-1); }).code == Code::corrupt);
    disk.replace("/weights", good);
    CHECK(streamer.read({file, SECTOR}, 0, bytes, "w", check)->wait(-1));
}

// Each thread has a part of arena, file and memory of its own, and an oracle.
static void random_moves(Streamer& streamer, char* arena, const std::shared_ptr<StreamFile>& file, u64 part, u64 bytes, int rounds) {
    std::mt19937_64 random(part + 1);
    const u64 begin = part * bytes, sectors = bytes / SECTOR;
    std::vector<char> is(arena + begin, arena + begin + bytes), on_disk(bytes), in_memory(bytes), memory(bytes);
    Streamer::Ticket last;
    for (int round = 0; round < rounds; round++) {
        const u64 at = random() % sectors * SECTOR, place = random() % sectors * SECTOR;
        const u64 count = 1 + random() % (bytes - std::max(at, place)), moved = align_up(count, SECTOR);
        std::vector<Streamer::Ticket> after;
        if (last) after.push_back(last);
        switch (random() % 4) {
            case 0:
                last = streamer.write({file, begin + place}, begin + at, count, "", {}, after);
                std::copy_n(is.begin() + long(at), moved, on_disk.begin() + long(place));
                break;
            case 1:
                last = streamer.read({file, begin + place}, begin + at, count, "", {}, after);
                std::copy_n(on_disk.begin() + long(place), moved, is.begin() + long(at));
                break;
            case 2:
                last = streamer.write({nullptr, reinterpret_cast<u64>(memory.data() + place)}, begin + at, count, "", {}, after);
                std::copy_n(is.begin() + long(at), count, in_memory.begin() + long(place));
                break;
            default:
                last = streamer.read({nullptr, reinterpret_cast<u64>(memory.data() + place)}, begin + at, count, "", {}, after);
                std::copy_n(in_memory.begin() + long(place), count, is.begin() + long(at));
        }
        if (random() % 8) continue;
        CHECK(last->wait(-1));
        CHECK(!std::memcmp(is.data(), arena + begin, bytes));
    }
    CHECK(last->wait(-1) && memory == in_memory);
    CHECK(!std::memcmp(is.data(), arena + begin, bytes));
}

static void many_threads_move_bytes_as_an_oracle_says() {
    context = "oracle";
    constexpr u64 PARTS = 6, BYTES = 2 * MIB + 4 * SECTOR;
    SimDisk disk;
    DeviceArena arena(PARTS * BYTES);
    auto file = make_file(disk, "/scratch", PARTS * BYTES);
    for (u32 depth : {1u, 4u, 7u}) {
        Streamer streamer(arena.data(), arena.bytes(), depth);
        std::vector<char> zeros(BYTES);
        fill_words(arena.data(), arena.bytes(), depth);
        disk.replace("/scratch", std::vector<char>(PARTS * BYTES));
        std::vector<std::thread> threads;
        for (u64 part = 0; part < PARTS; part++)
            threads.emplace_back([&, part] { random_moves(streamer, arena.data(), file, part, BYTES, UNDER_TSAN || UNDER_ASAN ? 40 : 150); });
        for (auto& thread : threads) thread.join();
    }
}

static void what_is_not_in_the_arena_is_refused() {
    context = "arguments";
    SimDisk disk;
    DeviceArena arena(MIB);
    auto file = make_file(disk, "/f", MIB);
    Streamer streamer(arena.data(), arena.bytes());
    auto code = [&](u64 place, u64 offset, u64 bytes) { return raised([&] { streamer.read({file, place}, offset, bytes); }).code; };
    CHECK(code(1, 0, SECTOR) == Code::bad_input && code(0, 512, SECTOR) == Code::bad_input);
    CHECK(code(0, MIB, 1) == Code::bad_address && code(0, 0, MIB + 1) == Code::bad_address && code(0, 0, 0) == Code::bad_address);
    CHECK(code(0, 0, ~u64(0)) == Code::bad_address && code(0, SECTOR, ~u64(0) - SECTOR) == Code::bad_address);
    CHECK(code(0, align_up(~u64(0) - SECTOR, SECTOR), SECTOR) == Code::bad_address);
    CHECK(raised([&] { Streamer bad(arena.data() + 1, 1); }).code == Code::bad_input);
    CHECK(raised([&] { Streamer bad(arena.data(), MIB, 0); }).code == Code::bad_input);
}

static void closing_finishes_what_there_is() {
    context = "closing";
    SimDisk disk;
    DeviceArena arena(8 * MIB);
    auto file = make_file(disk, "/f", 8 * MIB);
    fill_words(arena.data(), 8 * MIB, 9);
    Streamer::Ticket last;
    {
        Streamer streamer(arena.data(), arena.bytes());
        for (u64 at = 0; at < 4; at++) last = streamer.write({file, at * 2 * MIB}, at * 2 * MIB, 2 * MIB, "", {}, last ? std::vector{last} : std::vector<Streamer::Ticket>{});
        streamer.close();
        streamer.close();
        CHECK(last->done());
        CHECK(raised([&] { streamer.read({file, 0}, 0, MIB); }).code == Code::closed);
    }
    CHECK(last->wait(-1));
    CHECK(!std::memcmp(disk.content("/f").data(), arena.data(), 8 * MIB));
}

// TSan does not follow a process of several threads over a fork.
static void a_child_is_refused_and_ends_in_peace() {
    if (UNDER_TSAN) return;
    context = "fork";
    DeviceArena arena(4 * MIB);
    auto [gate, file] = gate_file();
    auto streamer = std::make_unique<Streamer>(arena.data(), arena.bytes());
    auto ticket = streamer->read({file, 0}, 0, 2 * MIB);
    gate->arrived(2);
    CHECK(returned(run([&] {
        CHECK(raised([&] { streamer->read({file, 0}, 0, 1); }).code == Code::closed);
        CHECK(raised([&] { ticket->wait(-1); }).code == Code::closed);
        CHECK(raised([&] { streamer->counts(0); }).code == Code::closed);
        streamer->close();
        streamer.reset();
        ticket.reset();
    })));
    gate->let(2);
    CHECK(ticket->wait(-1));
}

int main() {
    requests_begin_in_order_and_the_disk_has_enough_to_do();
    one_lane_does_not_block_another();
    what_waits_for_a_ticket_begins_when_it_is_done();
    a_failing_disk_is_told_and_holds_up_nobody();
    an_altered_byte_is_noticed_wherever_it_is();
    many_threads_move_bytes_as_an_oracle_says();
    what_is_not_in_the_arena_is_refused();
    closing_finishes_what_there_is();
    a_child_is_refused_and_ends_in_peace();
    std::puts("stream: ok");
}

// An engine of tiers in a process of its own, with a disk that fails or holds its breath when it is told to, and one or two
// processes that it serves. They have no faults: what they use they pin.
#pragma once

#include <chrono>
#include <condition_variable>

#include "tests/tiers/sim_disk.hpp"
#include "tiers/durable.hpp"
#include "engine/engine.hpp"

namespace osf::test {

// Reads or writes of a unit and more wait while the gate is closed for them.
class GateDisk : public SimDisk {
public:
    using SimDisk::SimDisk;
    std::unique_ptr<File> open(const std::string& path, Mode mode, bool direct, int& error) override {
        auto file = SimDisk::open(path, mode, direct, error);
        return file ? std::make_unique<GateFile>(*this, std::move(file)) : nullptr;
    }
    void close_gate(bool reads, bool writes) { change([&] { reads_ = reads, writes_ = writes; }); }
    void open_gate() { close_gate(false, false); }
    void await_waiting(int count) {
        std::unique_lock lock(mutex_);
        CHECK(changed_.wait_for(lock, std::chrono::seconds(30), [&] { return waiting_ >= count; }));
    }

private:
    class GateFile : public File {
    public:
        GateFile(GateDisk& disk, std::unique_ptr<File> file) : disk_(disk), file_(std::move(file)) {}
        ssize_t read(void* to, u64 bytes, u64 at) override {
            if (bytes >= UNIT) disk_.pass(disk_.reads_);
            return file_->read(to, bytes, at);
        }
        ssize_t write(const void* from, u64 bytes, u64 at) override {
            if (bytes >= UNIT) disk_.pass(disk_.writes_);
            return file_->write(from, bytes, at);
        }
        int sync() override { return file_->sync(); }
        ssize_t size() override { return file_->size(); }
        int allocate(u64 bytes) override { return file_->allocate(bytes); }

    private:
        GateDisk& disk_;
        std::unique_ptr<File> file_;
    };
    template <class Body>
    void change(Body body) {
        std::lock_guard guard(mutex_);
        body();
        changed_.notify_all();
    }
    void pass(const bool& closed) {
        std::unique_lock lock(mutex_);
        waiting_++;
        changed_.notify_all();
        changed_.wait(lock, [&] { return !closed; });
        waiting_--;
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    bool reads_ = false, writes_ = false;
    int waiting_ = 0;
};

// A space with a flash tier, not opened; what is in memory only goes with the object.
class TierPlace {
public:
    // slots: of a durable space; 0: of one that is not
    TierPlace(Disk& disk, const std::vector<std::string>& files, u64 units, u64 capacity, u64 slots = 0) : TierPlace() {
        CreateOptions options;
        options.directory = directory;
        options.name = "test";
        options.boot_id = "boot";
        options.bytes = units * UNIT;
        options.base = BASE;
        options.reserve = Layout::smallest_reserve();
        options.tiers = true;
        Space::create(options);
        TierWords::create(directory, {units, capacity, slots ? slots : units, files, slots != 0, 77}, 0600);
        Flash::create(disk, files, slots ? slots : units, 77);
    }
    // As it was at its last commit
    TierPlace(Disk& disk, const std::vector<std::string>& files, u64 capacity) : TierPlace() {
        restore_space(disk, directory, "test", "boot", "", files, capacity);
    }
    ~TierPlace() {
        if (getpid() != owner_) return;
        for (const char* file : {"/control", "/members", "/data", "/tiers"}) ::unlink((directory + file).c_str());
        ::rmdir(directory.c_str());
    }
    TierPlace(const TierPlace&) = delete;
    TierPlace& operator=(const TierPlace&) = delete;
    std::shared_ptr<Space> open() const {
        auto space = Space::open(directory, false, "boot");
        space->map_data();
        return space;
    }

    std::string directory;

private:
    TierPlace() : owner_(getpid()) {
        std::string pattern = "/dev/shm/osf-test-XXXXXX";
        CHECK(mkdtemp(pattern.data()) != nullptr);
        directory = pattern;
    }
    pid_t owner_;
};

struct Answer { bool good = false; std::string text; };

// One array of whole units, numbered from 0, and the engine that may be ended and begun anew over the same words.
class Rig {
public:
    Rig(Disk& disk, TierPlace& place, u64 units, u32 threads = 4) : space(place.open()), disk_(disk), threads_(threads) {
        if (Held held = space->find("array")) {
            array_ = held;
        } else {
            Spec spec;
            spec.nbytes = (units + 1) * UNIT;
            spec.shape = {spec.nbytes};
            spec.name = "array";
            array_ = space->make(spec, false);
            space->hand_out(array_);
            space->publish(array_, false);
        }
        const u64 data_at = u64(space->base()) + space->layout.data_at;
        first = u32(div_up(u64(space->bytes(array_)) - data_at, UNIT));
        at_ = data_at + first * UNIT;
        start();
    }
    ~Rig() {
        engine.reset();
        space->release(array_);
    }
    void start() {
        engine = std::make_unique<TierEngine>(space, disk_, threads_);
        client = attach();
        CHECK(engine->settle());
    }
    void restart(const std::function<void(TierWords&)>& meanwhile = {}) {
        engine.reset();
        if (meanwhile) {
            TierWords words(space->directory(), true);
            meanwhile(words);
        }
        start();
    }
    u32 attach() {
        TierProcess process;
        process.member = space->members.slot();
        process.answer = [this](u64 id, bool good, const std::string& text) {
            std::lock_guard guard(mutex_);
            answers_[id] = {good, text};
            order.push_back(id);
            answered_.notify_all();
        };
        process.arm = [](const std::vector<u32>&, u64) {};
        return engine->attach(std::move(process));
    }

    char* bytes(u32 unit) const { return reinterpret_cast<char*>(at_ + unit * UNIT); }
    Tier tier(u32 unit) { return engine->words().tier(first + unit); }
    u64 ask(Want want, u32 unit, u32 count = 1, int priority = 0) {
        const u64 id = ++next_;
        engine->ask(client, id, want, at_ + unit * UNIT, count * UNIT, priority);
        return id;
    }
    Answer wait(u64 id) {
        std::unique_lock lock(mutex_);
        CHECK(answered_.wait_for(lock, std::chrono::seconds(20), [&] { return answers_.count(id) > 0; }));
        return answers_[id];
    }
    Answer request(Want want, u32 unit, u32 count = 1) { return wait(ask(want, unit, count)); }
    void good(Want want, u32 unit, u32 count = 1) {
        const Answer answer = request(want, unit, count);
        if (!answer.good) failed(__FILE__, __LINE__, "unit " + std::to_string(unit) + ": " + answer.text);
    }
    template <class Body>
    void pinned(u32 unit, Body body) {
        const u64 id = ask(Want::pin, unit);
        const Answer answer = wait(id);
        if (!answer.good) failed(__FILE__, __LINE__, "pin of unit " + std::to_string(unit) + ": " + answer.text);
        body(bytes(unit));
        engine->unpin(client, id);
    }
    void write(u32 unit, u64 version) {
        pinned(unit, [&](char* at) { fill(at, UNIT, unit + 1, version); });
    }
    void check(u32 unit, u64 version) {
        pinned(unit, [&](char* at) {
            const long found = version_of(at, UNIT, unit + 1);
            if (found != long(version)) failed(__FILE__, __LINE__, "unit " + std::to_string(unit) + " has version " + std::to_string(found));
        });
    }
    void check_zero(u32 unit) {
        pinned(unit, [&](char* at) { CHECK(std::all_of(at, at + UNIT, [](char byte) { return byte == 0; })); });
    }

    std::shared_ptr<Space> space;
    std::unique_ptr<TierEngine> engine;
    u32 client = 0, first = 0;
    std::vector<u64> order;                  // of the answers

private:
    Disk& disk_;
    u32 threads_;
    Held array_;
    u64 at_ = 0, next_ = 0;
    std::mutex mutex_;
    std::condition_variable answered_;
    std::map<u64, Answer> answers_;
};

}  // namespace osf::test

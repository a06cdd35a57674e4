// A disk in memory that does what disks may do. What was written and not synced is, after a power cut, there, or not, or torn: some
// sectors, perhaps with garbage in one; sizes and directory entries likewise. Any operation can be made to fail, and a sync that
// failed may have lost what it was to keep although it reads well until the power goes. Thread-safe.
//
// It checks what a direct file would refuse: buffers, lengths and places that are not multiples of SECTOR.
#pragma once

#include <cerrno>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/check.hpp"
#include "base/disk.hpp"

namespace osf::test {

struct PowerCut {};  // not a std::exception: nobody who deals with errors may catch it

class SimDisk : public Disk {
public:
    using Random = std::mt19937_64;
    static constexpr int SHORT = 0;  // an error for fail_after: a write stops early (and anything else fails with EIO)

    explicit SimDisk(u64 seed = 1) : random_(seed) {}

    // The n-th operation from now that changes or syncs anything is under way when the power goes: it and all later ones throw.
    void cut_at(long n) { with([&] { cut_left_ = n; }); }
    // What the power cut left. Files that were open are dead: using them throws PowerCut.
    void power_cut(Random& random);
    // The process dies and the power stays on: nothing is lost, but files that were open are dead.
    void kill() { with([&] { life_++, dead_ = false, cut_left_ = 0; }); }

    // The n-th operation from now (reads too) gives this error, and then, if not 0, every `again`-th.
    void fail_after(long n, int error, long again = 0) { with([&] { fail_left_ = n, error_ = error, again_ = again; }); }
    void heal() { with([&] { fail_left_ = 0; }); }
    void set_room(u64 bytes) { with([&] { room_ = bytes; }); }  // of all files together; beyond: ENOSPC

    long operations() { return with([&] { return operations_; }); }  // those that cut_at counts, so far
    std::unique_ptr<SimDisk> copy();                                 // as it is now, with nothing open
    std::set<std::string> names();
    std::vector<char> content(const std::string& path) { return with([&] { return node(path)->now; }); }
    void replace(const std::string& path, std::vector<char> bytes);  // durably, as damage does
    u64 written(const std::string& path) { return with([&] { return node(path)->written; }); }  // end of the furthest write

    std::unique_ptr<File> open(const std::string& path, Mode mode, bool direct, int& error) override;
    int rename(const std::string& from, const std::string& to) override;
    int rename_new(const std::string& from, const std::string& to) override { return exists(to) ? -EEXIST : rename(from, to); }
    int remove(const std::string& path) override;
    int sync_directory(const std::string& of_path) override;
    bool exists(const std::string& path) override;

private:
    struct Change {  // a write, or without bytes a size
        u64 at;
        std::vector<char> bytes;
    };
    struct Node {
        std::vector<char> now, durable;
        std::vector<Change> pending;
        u64 written = 0;
    };
    using NodePtr = std::shared_ptr<Node>;
    using Names = std::map<std::string, NodePtr>;
    using Entries = std::vector<std::pair<std::string, NodePtr>>;  // one directory operation: what is at these names after it
    enum Fate { fine, cut, failed };
    class SimFile;

    template <class Body>
    auto with(Body body) -> decltype(body()) {
        std::lock_guard guard(mutex_);
        return body();
    }
    NodePtr node(const std::string& path) const {
        auto found = now_.find(path);
        CHECK(found != now_.end());
        return found->second;
    }
    bool chance(u64 one_in) { return random_() % one_in == 0; }
    int error() const { return error_ == SHORT ? EIO : error_; }
    u64 used() const;
    Fate next(bool changes);
    int directory(const Entries& entries);
    static void apply(std::vector<char>& to, const Change& change);
    static void apply(Names& names, const Entries& entries);
    static void settle(Node& node, Random& random);

    std::mutex mutex_;
    Random random_;
    Names now_, durable_;
    std::vector<Entries> pending_;
    long cut_left_ = 0, fail_left_ = 0, again_ = 0, operations_ = 0;
    int error_ = 0;
    bool dead_ = false;
    u64 life_ = 0, room_ = ~u64(0);
};

// What becomes of the next operation.
inline SimDisk::Fate SimDisk::next(bool changes) {
    if (dead_) throw PowerCut{};
    if (changes) {
        operations_++;
        if (cut_left_ > 0 && --cut_left_ == 0) return dead_ = true, cut;
    }
    if (fail_left_ > 0 && --fail_left_ == 0) {
        fail_left_ = again_;
        return failed;
    }
    return fine;
}

inline u64 SimDisk::used() const {
    u64 sum = 0;
    for (const auto& [name, file] : now_) sum += file->now.size();
    return sum;
}

inline void SimDisk::apply(std::vector<char>& to, const Change& change) {
    if (to.size() < change.at + change.bytes.size()) to.resize(change.at + change.bytes.size());
    std::copy(change.bytes.begin(), change.bytes.end(), to.begin() + long(change.at));
}
inline void SimDisk::apply(Names& names, const Entries& entries) {
    for (const auto& [name, file] : entries)
        if (file) names[name] = file;
        else names.erase(name);
}

class SimDisk::SimFile : public File {
public:
    SimFile(SimDisk& disk, NodePtr node, bool direct) : disk_(disk), node_(std::move(node)), direct_(direct), life_(disk.life_) {}

    ssize_t read(void* to, u64 bytes, u64 at) override {
        check(to, bytes, at);
        return with([&]() -> ssize_t {
            if (disk_.next(false) == failed) return -disk_.error();
            const u64 size = node_->now.size(), count = at < size ? std::min(bytes, size - at) : 0;
            if (count) std::memcpy(to, node_->now.data() + at, count);
            return ssize_t(count);
        });
    }
    ssize_t write(const void* from, u64 bytes, u64 at) override {
        check(from, bytes, at);
        return with([&]() -> ssize_t {
            const Fate fate = disk_.next(true);
            const u64 size = node_->now.size();
            if (at + bytes > size && disk_.used() + at + bytes - size > disk_.room_) return -ENOSPC;
            const char* first = static_cast<const char*>(from);
            if (fate != failed) {
                change({at, {first, first + bytes}});
                if (fate == cut) throw PowerCut{};
                return ssize_t(bytes);
            }
            if (disk_.error_ == SHORT) {
                const u64 part = disk_.random_() % bytes / SECTOR * SECTOR;
                if (part) change({at, {first, first + part}});
                return ssize_t(part);
            }
            for (u64 done = 0; done < bytes; done += SECTOR)  // an error says nothing about what was written
                if (!disk_.chance(3)) change({at + done, {first + done, first + std::min(bytes, done + SECTOR)}});
            return -disk_.error();
        });
    }
    int sync() override {
        return with([&] {
            const Fate fate = disk_.next(true);
            if (fate == cut) throw PowerCut{};
            std::vector<Change> left;
            for (Change& change : node_->pending)
                if (fate == fine || disk_.chance(3)) apply(node_->durable, change);
                else if (disk_.chance(2)) left.push_back(std::move(change));  // else it is lost, and still reads well
            node_->pending.swap(left);
            return fate == failed ? -disk_.error() : 0;
        });
    }
    ssize_t size() override {
        return with([&] { return ssize_t(node_->now.size()); });
    }
    int allocate(u64 bytes) override {
        return with([&] {
            const Fate fate = disk_.next(true);
            if (fate == failed) return -disk_.error();
            const u64 size = node_->now.size();
            if (bytes > size && disk_.used() + bytes - size > disk_.room_) return -ENOSPC;
            change({bytes, {}}, false);
            if (fate == cut) throw PowerCut{};
            return 0;
        });
    }

private:
    template <class Body>
    auto with(Body body) -> decltype(body()) {
        std::lock_guard guard(disk_.mutex_);
        if (life_ != disk_.life_) throw PowerCut{};
        return body();
    }
    void check(const void* bytes, u64 count, u64 at) const {
        CHECK(count > 0);
        if (direct_) CHECK(reinterpret_cast<u64>(bytes) % SECTOR == 0 && count % SECTOR == 0 && at % SECTOR == 0);
    }
    void change(Change what, bool data = true) {
        apply(node_->now, what);
        if (data) node_->written = std::max(node_->written, what.at + what.bytes.size());
        node_->pending.push_back(std::move(what));
    }
    SimDisk& disk_;
    NodePtr node_;
    bool direct_;
    u64 life_;
};

inline std::unique_ptr<File> SimDisk::open(const std::string& path, Mode mode, bool direct, int& error) {
    return with([&]() -> std::unique_ptr<File> {
        const Fate fate = next(mode == fresh);
        auto found = now_.find(path);
        const bool there = found != now_.end();
        error = fate == failed ? -this->error() : mode == fresh && there ? -EEXIST : mode == existing && !there ? -ENOENT : 0;
        if (error) return nullptr;
        if (mode == existing) return std::make_unique<SimFile>(*this, found->second, direct);
        Entries made{{path, std::make_shared<Node>()}};
        apply(now_, made);
        pending_.push_back(made);
        if (fate == cut) throw PowerCut{};
        return std::make_unique<SimFile>(*this, made[0].second, direct);
    });
}

// A failed one has perhaps happened.
inline int SimDisk::directory(const Entries& entries) {
    const Fate fate = next(true);
    if (fate != failed || chance(2)) {
        apply(now_, entries);
        pending_.push_back(entries);
    }
    if (fate == cut) throw PowerCut{};
    return fate == failed ? -error() : 0;
}
inline int SimDisk::rename(const std::string& from, const std::string& to) {
    return with([&] { return now_.contains(from) ? directory({{from, nullptr}, {to, now_[from]}}) : -ENOENT; });
}
inline int SimDisk::remove(const std::string& path) {
    return with([&] { return now_.contains(path) ? directory({{path, nullptr}}) : -ENOENT; });
}
inline int SimDisk::sync_directory(const std::string& of_path) {
    return with([&] {
        const Fate fate = next(true);
        if (fate == cut) throw PowerCut{};
        auto directory_of = [](const std::string& path) { return path.substr(0, path.rfind('/') + 1); };
        std::vector<Entries> left;
        for (Entries& entries : pending_)
            if (directory_of(entries[0].first) != directory_of(of_path)) left.push_back(std::move(entries));
            else if (fate == fine || chance(3)) apply(durable_, entries);
            else if (chance(2)) left.push_back(std::move(entries));
        pending_.swap(left);
        return fate == failed ? -error() : 0;
    });
}
inline bool SimDisk::exists(const std::string& path) {
    return with([&] {
        if (dead_) throw PowerCut{};
        return now_.contains(path);
    });
}

// One file after the cut: each unsynced change is there, or not, or torn.
inline void SimDisk::settle(Node& node, Random& random) {
    const u64 before = node.durable.size(), mood = random() % 8;  // now and then all of them, or none
    for (const Change& change : node.pending) {
        const u64 what = mood < 2 ? mood : random() % 3;
        if (what == 0) continue;
        if (what == 1 || change.bytes.empty()) {
            apply(node.durable, change);
            continue;
        }
        for (u64 done = 0; done < change.bytes.size(); done += SECTOR) {
            const u64 sector = random() % 10, end = std::min(change.bytes.size(), done + SECTOR);
            if (sector < 4) continue;
            std::vector<char> bytes(change.bytes.begin() + long(done), change.bytes.begin() + long(end));
            if (sector == 9)
                for (u64 at = random() % bytes.size(); at < bytes.size(); at++) bytes[at] = char(random());
            apply(node.durable, {change.at + done, bytes});
        }
    }
    if (node.durable.size() > before && random() % 4 == 0)
        node.durable.resize(std::max(before, random() % (node.durable.size() + 1) / SECTOR * SECTOR));
    node.pending.clear();
    node.now = node.durable;
}

inline void SimDisk::power_cut(Random& random) {
    with([&] {
        const bool in_order = random() % 2;  // most file systems: the first so many of the directory's operations
        u64 first = random() % (pending_.size() + 1);
        for (const Entries& entries : pending_) {
            const bool happened = in_order ? first > 0 : random() % 2 == 0;
            if (happened) apply(durable_, entries);
            first -= first > 0;
        }
        pending_.clear();
        now_ = durable_;
        std::set<Node*> done;
        for (const auto& [name, file] : now_)
            if (done.insert(file.get()).second) settle(*file, random);
        life_++;
        dead_ = false;
        cut_left_ = fail_left_ = 0;
    });
}

inline std::unique_ptr<SimDisk> SimDisk::copy() {
    return with([&] {
        auto other = std::make_unique<SimDisk>(random_());
        std::map<NodePtr, NodePtr> copies;
        auto copy_of = [&](const NodePtr& from) {
            NodePtr& to = copies[from];
            if (from && !to) to = std::make_shared<Node>(*from);
            return to;
        };
        for (const auto& [name, file] : now_) other->now_[name] = copy_of(file);
        for (const auto& [name, file] : durable_) other->durable_[name] = copy_of(file);
        for (const Entries& entries : pending_) {
            other->pending_.emplace_back();
            for (const auto& [name, file] : entries) other->pending_.back().emplace_back(name, copy_of(file));
        }
        other->room_ = room_;
        return other;
    });
}
inline std::set<std::string> SimDisk::names() {
    return with([&] {
        std::set<std::string> all;
        for (const auto& [name, file] : now_) all.insert(name);
        return all;
    });
}
inline void SimDisk::replace(const std::string& path, std::vector<char> bytes) {
    with([&] {
        Node& file = *node(path);
        file.now = file.durable = std::move(bytes);
        file.pending.clear();
    });
}

}  // namespace osf::test

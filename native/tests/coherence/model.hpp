// One host of the model: durable words, bytes reduced to "present" and "fresh" (equal to the latest write), what local
// processes may do, and the keeper's Coherence, the very code of the product. A host is packed into a short string, so
// that each is stored once, and what an event does to it is computed once.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "coherence/coherence.hpp"

namespace osf::model {

using namespace coherence;

constexpr u32 HOSTS = 3, UNITS = 2, SLOTS = 2, NO_UNIT = 3, ALL_CALLS = 63;

struct Shape {
    u32 units = 1, slots = 1;
    u32 home[UNITS] = {0, 0};
    u64 number[UNITS] = {0, 1};  // of the unit at its home
    u32 unit(u32 at, u64 of) const {
        for (u32 u = 0; u < units; u++)
            if (home[u] == at && number[u] == of) return u;
        return NO_UNIT;
    }
};

// Wrong on purpose, to see that it is found.
enum class Fault {
    none, no_protect, no_punch, word_before_fill, shadow_dropped, no_tidy, slot_given_up, overtaking, no_invack, no_held, lost_before_suspension, suspension_drops,
};

struct Violation { std::string what; };
struct Killed {};

// A message: kind 4 bits, unit 2, flags 4, carries bytes 1, they are fresh 1.
constexpr u16 packed(Notice m, u32 unit, u32 flags, bool bytes, bool fresh) {
    return u16(m | unit << 4 | flags << 6 | u32(bytes) << 10 | u32(fresh) << 11);
}
constexpr Notice kind_of(u16 m) { return Notice(m & 15); }
constexpr u32 unit_in(u16 m) { return m >> 4 & 3; }
constexpr u32 flags_in(u16 m) { return m >> 6 & 15; }
constexpr u16 FRESH = 1 << 11, BYTES = 1 << 10;
constexpr bool to_home(Notice m) { return m == m_gets || m == m_getm || m == m_invack || m == m_back || m == m_held; }

constexpr size_t BODY = 2;  // bytes of a message in the model: whose they are, and whether they are fresh

enum Action : u8 { a_receive, a_want, a_evict, a_start, a_connected, a_disconnected, a_lost, a_purge, a_suspend, a_kill, a_stale, a_written, a_rebase };
enum Life : u8 { dead, keeperless, alive };

class Packer {
public:
    std::string bytes;
    void put(u64 value) { bytes.push_back(char(value)); }
};
class Unpacker {
public:
    explicit Unpacker(const std::string& bytes) : bytes_(bytes) {}
    u8 get() { return u8(bytes_[at_++]); }

private:
    const std::string& bytes_;
    size_t at_ = 0;
};

struct Place { bool present = false, fresh = false; };
struct Slot { u32 unit = NO_UNIT; bool fresh = false; };

class Probe : public Coherence {
public:
    using Coherence::Coherence;
    u8 wanted(u32 home, u64 unit) const {
        auto found = wants_[home].find(unit);
        return found == wants_[home].end() ? 0 : found->second;
    }
    bool idle() const {
        bool busy = !turns_.empty();
        for (u32 p = 0; p < hosts_; p++) busy |= peers_[p].syncing || !peers_[p].held.empty() || !wants_[p].empty() || !recalls_[p].empty();
        return !busy;
    }
    // `to` renames hosts; it leaves the homes of units where they are.
    void pack(Packer& out, const Shape& shape, const u32* to) const {
        u32 from[HOSTS];
        for (u32 p = 0; p < HOSTS; p++) from[to[p]] = p;
        for (u32 p : from) out.put(u32(peers_[p].up) | u32(peers_[p].lost) << 1 | u32(peers_[p].syncing) << 2);
        for (u32 u = 0; u < shape.units; u++) {
            u32 home = shape.home[u];
            u64 number = shape.number[u];
            out.put(wanted(home, number));
            auto recall = recalls_[home].find(number);
            out.put(recall == recalls_[home].end() ? 255 : recall->second);
            if (home != self_) continue;
            for (u32 p : from) {
                auto held = peers_[p].held.find(number);
                out.put(held == peers_[p].held.end() ? 255 : held->second);
            }
            auto turn = turns_.find(number);
            out.put(turn == turns_.end() ? 255 : turn->second.queue.size());
            if (turn == turns_.end()) continue;
            out.put(renamed(turn->second.waiting, to));
            for (const Request& r : turn->second.queue)
                out.put(u32(r.write) << 6 | u32(r.have) << 7 | (r.host < HOSTS ? to[r.host] : 63));
        }
    }
    void unpack(Unpacker& in, const Shape& shape) {
        for (Peer& peer : peers_) {
            u8 flags = in.get();
            peer.up = flags & 1, peer.lost = flags & 2, peer.syncing = flags & 4;
        }
        for (u32 u = 0; u < shape.units; u++) {
            u32 home = shape.home[u];
            u64 number = shape.number[u];
            if (u8 want = in.get()) wants_[home][number] = want;
            if (u8 recall = in.get(); recall != 255) recalls_[home][number] = recall;
            if (home != self_) continue;
            for (Peer& peer : peers_)
                if (u8 held = in.get(); held != 255) peer.held[number] = held;
            u8 size = in.get();
            if (size == 255) continue;
            Turn& turn = turns_[number];
            turn.waiting = in.get();
            for (u8 i = 0; i < size; i++) {
                u8 r = in.get();
                turn.queue.push_back({(r & 63) == 63 ? 255u : r & 63u, (r & 64) != 0, (r & 128) != 0});
            }
        }
    }
    static u32 renamed(u32 mask, const u32* to) {
        u32 out = 0;
        for (u32 p = 0; p < HOSTS; p++)
            if (mask >> p & 1) out |= 1u << to[p];
        return out;
    }
};

// A host taken apart, and the Medium of its keeper. One action runs on it, up to a number of calls.
class Actor final : public Medium {
public:
    Actor(const Shape& shape, Fault fault, u32 self);
    Actor(const Shape& shape, Fault fault, const std::string& bytes);
    std::string pack(const u32* to) const;
    void run(Action action, u32 peer, u32 argument, u32 limit);

    const Shape& shape;
    Fault fault;
    u32 self;
    Life life = alive;
    u64 words[UNITS] = {};
    Place place[UNITS], shadow[UNITS];
    u8 rights[UNITS] = {};   // of local processes: 1 read, 2 write
    Slot slots[SLOTS];
    Probe core;
    std::vector<std::pair<u32, u16>> sent;
    u32 calls = 0;

    u64 word(u32 home, u64 unit) override { return words[at(home, unit)]; }
    void set_word(u32 home, u64 unit, u64 value) override;
    void each_word(u32 home, const std::function<void(u64, u64)>& show) override;
    void tidy(u32 home) override;
    void protect(u32 home, u64 unit) override;
    void punch(u32 home, u64 unit) override;
    void fill(u32 home, u64 unit, Body body) override;
    void save(u64 unit) override;
    void restore(u64 unit) override;
    void drop_shadow(u64 unit) override;
    bool take_slot(u32 home, u64 unit, u32& slot) override;
    void free_slot(u32 slot) override;
    void admit(u32 home, u64 unit, bool write) override;
    void condemn(u32 home, u64 unit) override;
    void send(u32 host, Notice message, u64 unit, u32 flags, Source source, u32 slot) override;

private:
    u32 at(u32 home, u64 unit) const;
    void step();
    void drop(u32 unit) { place[unit] = {}, rights[unit] = 0; }
    void act(Action action, u32 peer, u32 argument);
    void die();
    static void demand(bool condition, const char* what) {
        if (!condition) throw Violation{what};
    }

    u32 limit_ = ALL_CALLS;
    u32 filling_ = NO_UNIT;  // Fault::word_before_fill: what comes after the word
    bool filling_fresh_ = false;
    u8 touched_[UNITS] = {}; // local touches that wait
};

}  // namespace osf::model

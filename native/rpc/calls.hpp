// What a process and the keeper of another host say to each other, after hello and welcome (net/hello.hpp).
//
// A caller sends a call (type frame_call + Call, an id of its choice) and gets, in the order of its calls, a reply or an error with
// the same id. Some calls bring or give bytes of any length: they travel as parts, frames with the same id, before the reply or
// after the call. Integers are little endian; a text is u32 length and its bytes; a pin is the number that its owner gave it.
//
//   call          payload                                              reply
//   make          pin, spec, u8 zero                                   array
//   put           pin, spec, u8 replace; parts: the array's bytes      array
//   find          pin, text name                                       u8 found, array
//   at            pin, address                                         array
//   look          pin                                                  u64 state, text name
//   publish       pin, u8 replace                                      -
//   name          pin, text, pin or 0, which must be held until then    -
//   release       pins                                                 no reply: it is harmless to say it twice
//   claim         (pin, u32 index, u64 record)...                      -  (of the pins that a killed keeper left: keep these)
//   contains      text                                                 u8
//   remove        text, u8 only?, pin                                  u8
//   rename        text, text, pin or 0, likewise                       -
//   list          text prefix                                          parts: entries; then the reply, empty
//   grow          u64 bytes                                            -
//   collect                                                            -
//   audit                                                              Audit
//   stats                                                              stats
//   atomic        pin, u64 offset, u64 a, u64 b, u8 verb, u8 width     u8 done, u64 value
//   wait_word     pin, u64 offset, u32 expected, i64 timeout_ns        u8
//   wake_word     pin, u64 offset, i32 count                           i32
//   lock_take     pin, i64 timeout_ns                                  u8 Grant
//   lock_drop     pin                                                  u8
//   lock_owned    pin                                                  u8
//   barrier_init  pin, u32 parties                                     -
//   barrier_facts pin                                                  u32 parties, u32 broken
//   barrier_wait  pin, i64 timeout_ns                                  u32
//   barrier_reset pin                                                  -
//   channel_init  pin, u32 capacity, u32 slot bytes                    -
//   channel_facts pin                                                  u32 capacity, u32 slot bytes, u64 length, u32 deleted
//   channel_send  pin, i64 timeout_ns, u8 array?, pin, text            u8
//   channel_receive pin, i64 timeout_ns, pin for an array              u8 got, u32 kind, text, u8 array?, array
//   channel_discard pin                                                -
//   get           (address, bytes)...                                  parts only: the bytes of each range
//   write         u64 epoch, u64 number, (address, bytes)...;          -
//                 parts: the bytes of each range
//   owners        address, u64 bytes                                   text
//   inherit       u8[16] uuid, u64 count; parts: pins of that process  parts: the u32 index of each, held from now on by the caller,
//                                                                      a child of it, by the same number; then the reply, empty
//   kv_seek       text pool, KvAsk; parts: keys of a prompt's blocks   parts: KvPlace of each that is there; then KvSeen
//   kv_clear      text pool, u8 all?, text tenant                      u32 blocks that went
//   shard_make    ShardSpec; parts: u32 numbers of blocks              -
//   shard_look    u64 table                                            parts: u32 place of each block; then u8 found, ShardSeen
//   shard_rows    u64 table, u64 count, u8 states?; parts: u64 ids     parts: rows, each with its state and tag; then the reply, empty
//   shard_bags    u64 table, BagsAsked; parts: u64 ids, u32 ends,      parts: float32 sums of bags; then u8 all rows were here
//                 float32 weights
//   shard_change  u64 table, ChangeAsked, u64 bytes; parts: u64 ids,   parts: u32 positions of ids that are not here; then u64 how many
//                 rows or gradients, states
//   shard_versions u64 table                                           parts: u64 words of stripes; then ShardSeen
//   shard_block   u64 table, u8 BlockVerb, u32 block, u64 number       -
//   shard_discard u64 table                                            -
//
// A call that must not be done twice has an id with a lane, 1 to LANES, in its highest byte: the process has at most one such call under way
// in each lane. The home writes down that it begins it and then its answer, in memory that outlives a killed keeper. If the
// connection breaks, the process sends the same call with the same id again, to whatever keeper there is, which does it, or
// repeats the answer. Of an atomic alone it may say that nobody knows whether it was done (host_lost): the keeper was killed in that moment.
// An array that such a call gives out stays with the home until the process has said by another call in that lane that it has it.
//
// Writes have numbers, and the connections by which they come have one, too (the epoch): the home notes how far it is, so that a write which is
// sent again is not done again, and hears an older connection no more as soon as it has heard a newer one.
//
// A part holds at most BULK bytes and never of two ranges, so that both sides know where each one goes before they open it. The last
// part of a write has at most TAIL bytes: they come into memory together with the note that all of them are there.
// While a call is worked on for long, its server says frame_alive now and then; a caller that hears nothing gives up.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/base.hpp"
#include "net/wire.hpp"

namespace osf::rpc {

enum CallFrame : u16 {
    frame_reply = 64,
    frame_error,         // u32 code, u64 address, u64 bytes, text host, text message
    frame_alive,
    frame_part,
    frame_cancel,        // do not wait any longer in the call of this id; it is answered as if its time were over
    frame_bye,           // the process leaves: nothing of it is kept
    frame_epoch,         // its id: the epoch (net/roster.hpp) that the caller's host goes by from here on; the home has to go by it, too
    frame_call = 96,     // + Call
};

enum class Call : u16 {
    make, put, find, at, look, publish, name, release, claim, contains, remove, rename, list, grow, collect, audit, stats,
    atomic, wait_word, wake_word, lock_take, lock_drop, lock_owned, barrier_init, barrier_facts, barrier_wait, barrier_reset,
    channel_init, channel_facts, channel_send, channel_receive, channel_discard, get, write, owners, inherit,
    kv_seek, kv_clear, shard_make, shard_look, shard_rows, shard_bags, shard_change, shard_versions, shard_block, shard_discard, count,
};

enum class Verb : u8 { load, store, add, exchange, cas };

struct Range {
    u64 address, bytes;
};
constexpr u64 RANGES_MAX = 65536;              // of one call

struct Claim { u64 number, record, pin; };     // of a process that returns to a new keeper, in parts

constexpr u64 lane_of(u64 id) { return id >> 56; }

constexpr u64 TAIL = 16 * KIB;

// The bytes of the next part of a write, of a range that has `left` more.
constexpr u64 part_bytes(u64 left, bool last_range) { return last_range && left > TAIL ? std::min<u64>(BULK, left - TAIL) : std::min<u64>(BULK, left); }

constexpr int SILENCE_MS = 2500;               // a host that says nothing for so long, while it owes an answer, is lost
constexpr int RETURN_MS = 5000;                // so long a new keeper waits for the processes that the one before it served
constexpr int PAUSED_MS = 500;                 // that a home's own time-outs come late: it was stopped
constexpr int GRACE_MS = 2000;                 // so long a process without connections keeps what it holds

// A payload being written.
class Out {
public:
    template <class T>
        requires std::is_trivially_copyable_v<T>
    Out& add(const T& value) {
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
        return *this;
    }
    Out& text(std::string_view text) {
        add(u32(text.size()));
        bytes_.append(text);
        return *this;
    }
    std::span<const char> span() const { return bytes_; }
    size_t size() const { return bytes_.size(); }
    void set(size_t at, u64 value) { std::memcpy(bytes_.data() + at, &value, sizeof value); }
    void clear() { bytes_.clear(); }

private:
    std::string bytes_;
};

// A payload being read. What is not there is an error of the sender: bad_input.
class In {
public:
    explicit In(std::string_view bytes) : left_(bytes) {}
    template <class T>
    T get() {
        T value;
        std::memcpy(&value, take(sizeof value).data(), sizeof value);
        return value;
    }
    std::string_view text() { return take(get<u32>()); }
    std::string_view rest() { return take(left_.size()); }
    bool more() const { return !left_.empty(); }
    size_t left() const { return left_.size(); }
    void end() const {
        if (more()) throw Error(Code::bad_input, "a message is " + std::to_string(left_.size()) + " bytes too long");
    }

private:
    std::string_view take(size_t bytes) {
        if (bytes > left_.size()) throw Error(Code::bad_input, "a message ends " + std::to_string(bytes - left_.size()) + " bytes too early");
        std::string_view result = left_.substr(0, bytes);
        left_.remove_prefix(bytes);
        return result;
    }
    std::string_view left_;
};

}  // namespace osf::rpc

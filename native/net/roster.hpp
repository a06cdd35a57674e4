// Who the hosts of a space are now. A fixed list never changes. A list that hosts have agreed on has places: a host gets one when it first
// joins, and keeps it; another host never gets its addresses.
//
// A member has a term: the epoch (a count of all changes) at which it last joined. A host that the others gave up has none, and one that
// joins again gets a larger one. Every connection says under which term its host calls, and every call looks whether that is still the
// host's term: what a host began before it was given up cannot change anything afterwards. In a fixed list all terms are 0.
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include "base/base.hpp"

namespace osf::net {

class Roster {
public:
    explicit Roster(std::vector<std::string> hosts, u64 realm = 0);  // realm: which agreement; 0: the list is fixed

    u32 size() const { return u32(terms_.size()); }
    bool agreed() const { return agreed_; }
    u64 realm() const { return realm_; }           // of a fixed list: its hash
    std::string host(u32 number) const;            // empty: nobody has had this place
    std::string label(u32 number) const;           // for people
    u64 term(u32 number) const { return terms_[number].load(std::memory_order_acquire); }
    u64 epoch() const { return epoch_.load(std::memory_order_acquire); }
    bool member(u32 number) const { return !agreed_ || term(number); }
    bool admits(u32 number, u64 term) const { return this->term(number) == term && (term || !agreed_); }
    void check(u32 number, u64 term) const;        // throws host_lost unless it is admitted: the caller may come again

    // Somebody knows of this epoch, so there is news to be had: whoever follows the list asks at once.
    void ask_for(u64 epoch);
    bool asked() { return asked_for_.exchange(0) > epoch(); }  // since this was last called

    // Any thread. False: this is older than what is known.
    bool change(const std::vector<std::string>& hosts, const std::vector<u64>& terms, u64 epoch);

private:
    const bool agreed_;
    const u64 realm_;
    mutable std::mutex mutex_;                     // of hosts_, and of changes
    std::vector<std::string> hosts_;
    std::vector<std::atomic<u64>> terms_;
    std::atomic<u64> epoch_{0}, asked_for_{0};
};

constexpr u64 HEAR_NS = 2'000'000'000;           // that a caller who knows a newer list is kept waiting for it

u64 hosts_hash(const std::vector<std::string>& hosts);

}  // namespace osf::net

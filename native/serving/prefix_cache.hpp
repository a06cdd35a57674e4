// An engine's own KV blocks: those that sequences hold, and those of prompts that stay until somebody needs room, the longest unused first
// (as in vLLM). A trace names blocks of many tokens; one such entry takes several of the engine's.
#pragma once

#include <list>
#include <unordered_map>

#include "base/base.hpp"

namespace osf::serving {

class PrefixCache {
public:
    PrefixCache(u64 blocks, u64 blocks_of_entry) : free_(blocks), total_(blocks), weight_(blocks_of_entry) {}

    u32 longest(const u32* ids, u32 count) const {
        u32 found = 0;
        while (found < count && entries_.contains(ids[found])) found++;
        return found;
    }
    u64 available() const { return free_ + unused_.size() * weight_; }
    u64 used() const { return total_ - available(); }

    bool take(u64 blocks) {
        if (available() < blocks) return false;
        while (free_ < blocks) {
            entries_.erase(unused_.front());
            unused_.pop_front();
            free_ += weight_;
        }
        free_ -= blocks;
        return true;
    }
    void give(u64 blocks) { free_ += blocks; }

    // How many of unused entries would be taken by using these.
    u64 idle(const u32* ids, u32 count) const {
        u64 found = 0;
        for (u32 at = 0; at < count; at++) found += !entries_.at(ids[at]).uses;
        return found * weight_;
    }
    void use(u32 id) {
        Entry& entry = entries_.at(id);
        if (!entry.uses++) unused_.erase(entry.at);
    }
    // Blocks that a sequence has filled are an entry from now on; if there is one already, they are given back.
    void keep(u32 id) {
        auto [found, fresh] = entries_.try_emplace(id);
        if (!fresh) give(weight_);
        if (!fresh && !found->second.uses) unused_.erase(found->second.at);
        found->second.uses++;
    }
    void drop(u32 id) {
        Entry& entry = entries_.at(id);
        if (--entry.uses) return;
        unused_.push_back(id);
        entry.at = std::prev(unused_.end());
    }
    u64 weight() const { return weight_; }

private:
    struct Entry {
        u32 uses = 0;
        std::list<u32>::iterator at;
    };
    std::unordered_map<u32, Entry> entries_;
    std::list<u32> unused_;  // the longest unused first
    u64 free_, total_, weight_;
};

}  // namespace osf::serving

// An engine's KV blocks: those that sequences hold, and a queue of free ones in the order in which they became free, from which the oldest are
// taken (as in vLLM). Until then they keep what they had: blocks of prompts for others with the same beginning, and blocks of a sequence that
// was thrown out for itself. A trace names blocks of many tokens; one such entry takes several of the engine's.
#pragma once

#include <list>
#include <unordered_map>

#include "base/base.hpp"

namespace osf::serving {

class PrefixCache {
public:
    PrefixCache(u64 blocks, u64 blocks_of_entry) : available_(blocks), total_(blocks), weight_(blocks_of_entry) { give(blocks, 0); }

    u32 longest(const u32* ids, u32 count) const {
        u32 found = 0;
        while (found < count && entries_.contains(ids[found])) found++;
        return found;
    }
    u64 available() const { return available_; }
    u64 used() const { return total_ - available_; }
    u64 weight() const { return weight_; }

    bool take(u64 blocks) {
        if (available_ < blocks) return false;
        available_ -= blocks;
        while (blocks) {
            Free& oldest = free_.front();
            if (oldest.kind == entry) {
                entries_.erase(oldest.id);
                oldest = {rest, 0, oldest.blocks};
            }
            const u64 some = std::min(blocks, oldest.blocks);
            blocks -= some;
            if (oldest.blocks -= some) continue;
            if (oldest.kind == own) kept_.erase(oldest.id);
            free_.pop_front();
        }
        return true;
    }
    void give(u64 blocks) {
        available_ += blocks;
        give(blocks, 0);
    }

    // The last block of a sequence goes first: what is left is a beginning.
    void retain(u32 sequence, u64 blocks) {
        if (!blocks) return;
        available_ += blocks;
        free_.push_back({own, sequence, blocks});
        kept_[sequence] = std::prev(free_.end());
    }
    u64 retained(u32 sequence) const {
        auto found = kept_.find(sequence);
        return found == kept_.end() ? 0 : found->second->blocks;
    }
    void reclaim(u32 sequence) {
        auto found = kept_.find(sequence);
        if (found == kept_.end()) return;
        available_ -= found->second->blocks;
        free_.erase(found->second);
        kept_.erase(found);
    }
    void forget(u32 sequence) {                  // it has ended: its blocks are anybody's
        if (auto found = kept_.find(sequence); found != kept_.end()) {
            *found->second = {rest, 0, found->second->blocks};
            kept_.erase(found);
        }
    }

    // Free blocks that using these entries would take.
    u64 idle(const u32* ids, u32 count) const {
        u64 found = 0;
        for (u32 at = 0; at < count; at++) found += !entries_.at(ids[at]).uses;
        return found * weight_;
    }
    void use(u32 id) {
        Entry& found = entries_.at(id);
        if (!found.uses++) cut(found);
    }
    // Blocks that a sequence has filled are an entry from now on; if there is one already, they are given back.
    void keep(u32 id) {
        auto [found, fresh] = entries_.try_emplace(id);
        if (!fresh) give(weight_);
        if (!fresh && !found->second.uses) cut(found->second);
        found->second.uses++;
    }
    void drop(u32 id) {
        Entry& found = entries_.at(id);
        if (--found.uses) return;
        available_ += weight_;
        free_.push_back({entry, id, weight_});
        found.at = std::prev(free_.end());
    }

private:
    enum Kind { rest, entry, own };
    struct Free {
        Kind kind;
        u32 id;
        u64 blocks;
    };
    struct Entry {
        u32 uses = 0;
        std::list<Free>::iterator at;
    };
    void give(u64 blocks, u32 id) {
        if (!blocks) return;
        if (!free_.empty() && free_.back().kind == rest) free_.back().blocks += blocks;
        else free_.push_back({rest, id, blocks});
    }
    void cut(const Entry& found) {
        available_ -= weight_;
        free_.erase(found.at);
    }

    std::list<Free> free_;  // the oldest first
    std::unordered_map<u32, Entry> entries_;
    std::unordered_map<u32, std::list<Free>::iterator> kept_;
    u64 available_, total_, weight_;
};

}  // namespace osf::serving

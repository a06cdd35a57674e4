#include "tier_policy.hpp"
#include <algorithm>
namespace osf {
TierPolicy::TierPolicy(u64, u64) {}
void TierPolicy::filled(u32 unit, bool) { q_.push_back(unit); }
void TierPolicy::touched(u32) {}
void TierPolicy::left(u32 unit) { auto at = std::find(q_.begin(), q_.end(), unit); if (at != q_.end()) q_.erase(at); }
TierPolicy::Choice TierPolicy::next() { if (q_.empty()) return {Choice::none, 0}; u32 u = q_.front(); q_.pop_front(); q_.push_back(u); return {Choice::demote, u}; }
void TierPolicy::kept(u32) {}
}

// Pools of other hosts. A host's processes put into their own host's pool; what they miss there is asked of the other hosts' pools of that
// name, in one call for all blocks (rpc/calls.hpp, kv_seek), and fetched into the own pool, where all processes of the host find it.
//
// No block is pinned at the other host. Blocks are read by address, and in the same transfer, after them, the entry of the last
// one: if that is the same block still, in the same life, it never left, nor did any before it, and the bytes are its own. The caller
// holds the array at KvSeen::pool, so that its memory is not another array's; and its id comes last, should it be another pool.
#pragma once

#include "kv/calls.hpp"
#include "kv/draft.hpp"

namespace osf::kv {

// The blocks as the draft's from block `first` on, in groups. How many came: fewer if there is no room, or if the home evicts them
// meanwhile. Throws HostLost; what came before is published then.
u64 kv_fetch(KvDraft& draft, Remote& remote, const KvSight& sight, u64 first, const Interrupted& interrupted);

}  // namespace osf::kv

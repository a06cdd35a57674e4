// The keeper: one per host, for all spaces of it. The agent thread (an epoll loop over faults, local processes and other keepers)
// never blocks; connecting and greeting happen in threads of their own, which hand finished connections over.
#pragma once

#include <memory>
#include <string>

#include "net/roster.hpp"
#include "net/wire.hpp"

namespace osf::coherence {

struct KeeperOptions {
    std::string root;                  // directory of this user's spaces
    std::shared_ptr<Roster> roster;    // its hosts are host:port; it may change meanwhile
    u32 self = 0;
    std::string only;                  // the space whose hosts agree on the roster; empty: all spaces of the host
    Key key;
    double linger_s = -1;              // ends when nobody needs it for so long; < 0: never
    std::string boot_id;
};

// Returns when told to end (SIGTERM, SIGINT) or not needed any longer. Another keeper of this host that was started on demand hands over to
// one that is to stay; else not_permitted.
void keeper_run(const KeeperOptions& options);

// "10.0.0.1:7400", "[::1]:7400"
std::pair<std::string, u16> split_host(const std::string& text);

}  // namespace osf::coherence

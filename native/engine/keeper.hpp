// The keeper of a space with a flash tier.
#pragma once

#include <string>

#include "base/rooms.hpp"

namespace osf::engine {

// In the keeper's process. Returns when told to end (SIGTERM, SIGINT), when the space was removed, or when nobody has had it
// open for so long. Throws not_permitted if it has another keeper.
void tier_keeper_run(const std::string& directory, const std::string& boot_id, double linger_s);

}  // namespace osf::engine

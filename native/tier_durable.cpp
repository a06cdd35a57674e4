#include "journal.hpp"
#include "tier_engine.hpp"

namespace osf {
void TierEngine::load_image() {}
bool TierEngine::advance_flush(Request& request) { request.next = request.last; request.left = 0; return true; }
}

// Node, as it must not be: tests break the rule that messages about a unit are received in order, and must notice.
#include "coherence/node.hpp"

namespace osf::coherence {

// Bytes from a home are overtaken by what was sent after them.
void Node::deliver_disordered(u32 from, Notice message, Place place, u32 flags, Body body) {
    if (message != m_datas && message != m_datam) return receive(from, message, place.second, flags, body);
    holds_[place] = now_ns() + 5 * HOLD_NS;
    keep(from, message, place, flags, body);
}

}  // namespace osf::coherence

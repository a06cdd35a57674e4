// The rooms of the native core, low to high, and what each of them sees. A room is a folder and a namespace of the same name: two
// functions of one name in two rooms are two functions, for the linker too. The namespace osf itself is the room base, which all see.
//
// A room includes only headers of the rooms that it sees (tests/native/test_rooms.py reads this file). Names of two rooms that a third one
// sees may not be the same where it uses them: that is an error of the compiler, not a choice of the linker.
#pragma once

namespace osf {

namespace space {}
namespace faults {}
namespace net { using namespace faults; }
namespace rpc { using namespace space; using namespace net; }
namespace coherence { using namespace space; using namespace faults; using namespace net; using namespace rpc; }
namespace tiers { using namespace space; using namespace faults; }
namespace engine { using namespace space; using namespace faults; using namespace tiers; }
namespace kv { using namespace space; using namespace tiers; using namespace rpc; }
namespace serving { using namespace space; using namespace tiers; using namespace kv; }
namespace simd {}
namespace tables { using namespace space; using namespace tiers; using namespace simd; }
namespace shards { using namespace space; using namespace rpc; using namespace tables; using namespace simd; }
namespace stream {}
namespace flow {}
namespace measure {}
namespace bind { using namespace space; using namespace faults; using namespace net; using namespace rpc; using namespace coherence; using namespace tiers; using namespace engine; using namespace kv; using namespace serving; using namespace simd; using namespace tables; using namespace shards; using namespace stream; using namespace flow; using namespace measure; }
namespace test { using namespace bind; }

}  // namespace osf

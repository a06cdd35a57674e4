// The coherence protocol, exhaustively: three hosts, one or two units, every order of touches, writes, evictions and
// messages, with keepers killed between any two calls of the Medium, hosts that die and are born again, and connections
// that are cut, heal, or are given up. In every world that can be reached: one writer or many readers, nobody can read
// old bytes or a hole, no write is lost but with its host, no message is refused; and left alone, every world comes to
// rest with nobody waiting, no slot taken and all words in agreement.
//
// What it takes for granted: after a keeper was killed, free slots are those that no word names; a host stops
// using what it borrowed (suspend) before it is declared lost, also when its keeper was killed meanwhile, and gives it up
// (purge) before it connects again; a host that died comes back
// after the others declared it lost; what a killed keeper or a cut connection had sent may still arrive, up to the moment
// when the receiver learns of the break.
//
// OPENSHELF_SOAK=1 goes further.
#include <cstdlib>

#include "base/lock.hpp"
#include "tests/coherence/model_search.hpp"

using namespace osf;
using namespace osf::test;
using namespace osf::model;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool SLOW = true;  // looks at the checker's own memory, not at the protocol
#else
constexpr bool SLOW = false;
#endif
constexpr size_t MOST = SLOW ? 100'000 : 40'000'000;

struct Case {
    const char* name;
    Shape shape;
    Bounds bounds;
};

static const Shape ONE{.units = 1}, TOGETHER{.units = 2, .home = {0, 0}, .number = {0, 1}}, APART{.units = 2, .home = {0, 1}, .number = {0, 0}};
static const Shape TWO_SLOTS{.units = 2, .slots = 2, .home = {0, 0}, .number = {0, 1}}, APART_TWO{.units = 2, .slots = 2, .home = {0, 1}, .number = {0, 0}};

static const Case NORMAL[] = {
    {"one unit, a fault", ONE, {.faults = 1, .suspensions = ANY, .evictions = ANY, .touches = 4}},
    {"one unit, two faults", ONE, {.faults = 2, .suspensions = 1, .evictions = ANY, .touches = 2}},
    {"two units of one home", TOGETHER, {.faults = 0, .suspensions = 0, .evictions = ANY, .touches = 5}},
    {"two units of one home, a fault", TOGETHER, {.faults = 1, .suspensions = 0, .evictions = ANY, .touches = 3}},
    {"two units of two homes, a fault", APART_TWO, {.faults = 1, .suspensions = 0, .evictions = 1, .touches = 3}},
    {"two units of two homes, a cut", APART_TWO, {.faults = 1, .suspensions = ANY, .evictions = ANY, .touches = 3, .kills = false}},
};
static const Case SOAK[] = {
    {"one unit, a fault, any number of touches", ONE, {.faults = 1, .suspensions = ANY, .evictions = ANY, .touches = ANY}},
    {"one unit, two faults, no host given up", ONE, {.faults = 2, .suspensions = 0, .evictions = ANY, .touches = 4}},
    {"one unit, two faults", ONE, {.faults = 2, .suspensions = ANY, .evictions = ANY, .touches = 2}},
    {"one unit, two faults, three touches", ONE, {.faults = 2, .suspensions = 1, .evictions = 1, .touches = 3}},
    {"two units of one home", TOGETHER, {.faults = 0, .suspensions = 0, .evictions = ANY, .touches = 8}},
    {"two units of two homes", APART, {.faults = 0, .suspensions = 0, .evictions = ANY, .touches = 7}},
    {"two units of one home, a fault", TWO_SLOTS, {.faults = 1, .suspensions = ANY, .evictions = ANY, .touches = 3}},
    {"two units of two homes, a fault", APART_TWO, {.faults = 1, .suspensions = ANY, .evictions = ANY, .touches = 3}},
    {"two units of one home, four touches, a fault", TOGETHER, {.faults = 1, .suspensions = 0, .evictions = 1, .touches = 4}},
    {"two units of one home, two slots, a fault", TWO_SLOTS, {.faults = 1, .suspensions = 1, .evictions = ANY, .touches = 3}},
};

static void tell(const char* name, const Report& report, u64 started) {
    std::printf("%-46s %9zu worlds, %10zu events, %6zu hosts, %4zu wires, depth %2zu%s, %.1f s\n", name, report.worlds, report.events, report.hosts,
                report.wires, report.depth, report.complete ? "" : " (not all)", double(now_ns() - started) / 1e9);
    std::fflush(stdout);
}

static bool holds(const Case& one, bool whole, u32& received) {
    u64 started = now_ns();
    Bounds bounds = one.bounds;
    bounds.worlds = MOST;
    Report report = Search(one.shape, bounds).run();
    tell(one.name, report, started);
    received |= report.received;
    if (report.violation.empty() && whole && !report.complete) return std::puts("FAILED: more worlds than there is room for"), false;
    if (report.violation.empty()) return true;
    std::printf("VIOLATION: %s\n", report.violation.c_str());
    for (const std::string& event : report.path) std::printf("    %s\n", event.c_str());
    return false;
}

// A checker that finds nothing proves nothing: each of these is found.
static bool finds(Fault fault, const char* name) {
    Report report = Search(ONE, {.faults = 1, .suspensions = ANY, .evictions = ANY, .touches = 4, .worlds = 1'000'000}, fault).run();
    std::printf("%-24s %7zu worlds, %zu events to: %s\n", name, report.worlds, report.path.size(), report.violation.empty() ? "NOTHING" : report.violation.c_str());
    return !report.violation.empty();
}

int main() {
    const char* soak = std::getenv("OPENSHELF_SOAK");
    bool good = true;
    u32 received = 0;
    for (const Case& one : NORMAL) good &= holds(one, !SLOW, received);
    if (soak && *soak == '1')
        for (const Case& one : SOAK) good &= holds(one, false, received);
    if (!SLOW) {  // every message but DROP, which is for words that no fault of these can leave
        u32 expected = (1u << m_drop) - 1;
        if ((received & expected) != expected) std::printf("messages never received: %x\n", expected & ~received), good = false;
        if (received & 1u << m_drop) std::printf("DROP was received\n");
    }
    good &= finds(Fault::no_protect, "no write-protection");
    good &= finds(Fault::no_punch, "no punch");
    good &= finds(Fault::word_before_fill, "word before bytes");
    good &= finds(Fault::shadow_dropped, "shadow dropped early");
    good &= finds(Fault::no_tidy, "no tidying after a kill");
    good &= finds(Fault::slot_given_up, "slot given up early");
    good &= finds(Fault::overtaking, "messages overtake");
    good &= finds(Fault::no_invack, "INVACK dropped");
    good &= finds(Fault::no_held, "HELD dropped");
    good &= finds(Fault::lost_before_suspension, "lost before suspension");
    good &= finds(Fault::suspension_drops, "suspension drops");
    std::puts(good ? "ok" : "FAILED");
    return good ? 0 : 1;
}

// Hosts, one address space: plain loads and stores by processes of several hosts, with every rule followed and then with each
// rule broken in turn, which must show.
#include "tests/coherence/rack.hpp"

using namespace osf;
using namespace osf::test;

static const char* NAMES[] = {"none", "write-protect before copy", "punch", "ordered channel", "MINOR, or marks ahead", "fork"};

// A store on one host, a load on another, and back, through every state.
static bool store_and_load() {
    Rack rack(2);
    std::vector<pid_t> both;
    for (u32 host : {0u, 1u})
        both.push_back(rack.on(host, [&](const Rack::Member&) {
            int wrong = 0;
            for (u64 round = 1; round <= 60; round++) {
                u32 step = u32(round % 30) * 2;
                u64 together = 2 * (1 + (round - 1) / 30);
                u64* word = rack.words(round % 2, round % 5) + 8;
                if (host == round / 2 % 2) poke(word, round);
                rack.meet(step, together);
                for (int again = 0; again < 3; again++) wrong += peek(word) != round;
                rack.meet(step + 1, together);
            }
            return wrong > 0;
        }));
    return !(exit_code(both[0]) | exit_code(both[1]));
}

// Contended adding from every host, two processes each: no update is lost.
static bool contended_adds(u32 hosts, int times) {
    Rack rack(hosts);
    std::vector<pid_t> children;
    for (u32 number = 0; number < 2 * hosts; number++)
        children.push_back(rack.on(number % hosts, [&, number](const Rack::Member&) {
            rack.meet(0, 2 * hosts);
            u64 state = number + 1;
            for (int time = 0; time < times; time++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                add(rack.words(u32(state >> 60) % hosts, state >> 40 & 3), 1);
            }
            return 0;
        }));
    bool good = true;
    for (pid_t child : children) good &= exit_code(child) == 0;
    good &= exit_code(rack.on(0, [&](const Rack::Member&) {
                u64 sum = 0;
                for (u32 host = 0; host < hosts; host++)
                    for (u64 unit = 0; unit < 4; unit++) sum += peek(rack.words(host, unit));
                return sum != u64(times) * 2 * hosts;
            })) == 0;
    return good;
}

// A second process of a host writes to a unit that the first one only read: the home must hear of it.
static bool second_process() {
    Rack rack(2);
    pid_t reader = rack.on(1, [&](const Rack::Member&) {
        for (u64 unit = 0; unit < 8; unit++) peek(rack.words(0, unit));
        rack.meet(0, 1);
        while (!rack.shared->words[1]) usleep(100);
        return 0;
    });
    while (!rack.shared->words[0]) usleep(100);
    int wrote = exit_code(rack.on(1, [&](const Rack::Member&) {
        for (u64 unit = 0; unit < 8; unit++) poke(rack.words(0, unit) + 1, 7);
        return 0;
    }));
    int read = exit_code(rack.on(0, [&](const Rack::Member&) {
        int wrong = 0;
        for (u64 unit = 0; unit < 8; unit++) wrong += peek(rack.words(0, unit) + 1) != 7;
        return wrong;
    }));
    rack.shared->words[1] = 1;
    return !exit_code(reader) && !wrote && !read;
}

// A forked child sees what its parent sees, before and after.
static bool forked_child() {
    Rack rack(2);
    CHECK(exit_code(rack.on(0, [&](const Rack::Member&) {
              for (u64 unit = 0; unit < 8; unit++) poke(rack.words(0, unit), 100 + unit);
              return 0;
          })) == 0);
    return exit_code(rack.on(1, [&](const Rack::Member&) {
               peek(rack.words(0, 0));
               pid_t child = fork();
               if (!child) {
                   alarm(20);
                   int wrong = 0;
                   for (u64 unit = 0; unit < 8; unit++) wrong += peek(rack.words(0, unit)) != 100 + unit;
                   poke(rack.words(0, 3), 999);
                   _exit(wrong);
               }
               int wrong = exit_code(child) != 0;
               return wrong + (peek(rack.words(0, 3)) != 999) + (peek(rack.words(0, 5)) != 105);
           })) == 0;
}

// One host writes a sequence into many units in turn, others read: no reader ever sees a unit go back or torn.
static bool sequences(u32 hosts, u64 rounds) {
    Rack rack(hosts);
    constexpr u64 UNITS = 4, WORDS_IN = 64 * KIB / 8;
    std::vector<pid_t> children;
    for (u32 host = 0; host < hosts; host++)
        children.push_back(rack.on(host, [&, host](const Rack::Member&) -> int {
            rack.meet(0, hosts);
            if (host == 1) {
                for (u64 round = 1; round <= rounds; round++)
                    for (u64 unit = 0; unit < UNITS; unit++) {  // last word first: whoever sees word 0 sees it too
                        poke(rack.words(0, unit) + WORDS_IN - 1, round);
                        poke(rack.words(0, unit), round);
                    }
                return 0;
            }
            u64 seen[UNITS] = {};
            int wrong = 0;
            for (u64 unit = 0; seen[UNITS - 1] < rounds; unit = (unit + 1) % UNITS) {
                u64 first = peek(rack.words(0, unit)), last = peek(rack.words(0, unit) + WORDS_IN - 1);
                wrong += first < seen[unit] || last < first;
                seen[unit] = std::max(seen[unit], first);
                if (unit && seen[unit] > seen[unit - 1]) wrong += peek(rack.words(0, unit - 1)) < seen[unit];
            }
            return wrong > 0;
        }));
    bool good = true;
    for (pid_t child : children) good &= exit_code(child) == 0;
    return good;
}

// A keeper that is killed loses nothing: its successor goes on where it was.
static bool killed_keepers(u32 hosts, int kills) {
    Rack rack(hosts);
    constexpr int PER_HOST = 1;
    std::vector<pid_t> children;
    for (u32 number = 0; number < PER_HOST * hosts; number++)
        children.push_back(rack.on(number % hosts, [&, number](const Rack::Member&) {
            u64 state = number + 1, done = 0;
            while (!rack.shared->words[1]) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                add(rack.words(u32(state >> 60) % hosts, state >> 40 & 3), 1);
                rack.shared->words[2 + number] = ++done;
            }
            return 0;
        }));
    std::mt19937 random(7);
    for (int time = 0; time < kills; time++) {
        usleep(20'000 + random() % 60'000);
        u32 victim = random() % hosts;
        rack.kill_keeper(victim);
        usleep(random() % 30'000);
        rack.start_keeper(victim);
    }
    auto done = [&] {
        u64 sum = 0;
        for (u32 number = 0; number < PER_HOST * hosts; number++) sum += rack.shared->words[2 + number];
        return sum;
    };
    while (done() < 100) usleep(1000);  // on a busy machine it takes longer
    rack.shared->words[1] = 1;
    bool good = true;
    for (pid_t child : children)
        if (int code = exit_code(child)) {
            std::fprintf(stderr, "a process that adds ended with %d\n", code);
            good = false;
        }
    const u64 total = done();
    good &= exit_code(rack.on(0, [&](const Rack::Member&) {
                u64 sum = 0;
                for (u32 host = 0; host < hosts; host++)
                    for (u64 unit = 0; unit < 4; unit++) sum += peek(rack.words(host, unit));
                if (sum != total) std::fprintf(stderr, "sum %llu, expected %llu\n", (unsigned long long)sum, (unsigned long long)total);
                return sum != total;
            })) == 0;
    return good;
}

// As this kernel is, and as if it were older: OPENSHELF_FAULTS.
int main(int count, char** names) {
    Faults how;
    int probe = open_faults(how);
    if (how != Faults::full || UNDER_TSAN || UNDER_ASAN) {
        std::printf("hosts_test skipped: %s\n", how != Faults::full ? "no full userfaultfd here" : "sanitizers do not survive the forks");
        return 0;
    }
    close(probe);
    bool good = true;
    auto run = [&](const char* name, bool expected, const std::function<bool()>& test) {
        if (count > 1 && std::string(names[1]) != name) return;
        u64 start = now_ns();
        bool passed = test();
        std::printf("%-40s rule broken: %-28s %s, %.1f s%s\n", name, NAMES[int(broken_rule.load())], passed ? "passed" : "failed",
                    double(now_ns() - start) / 1e9, passed == expected ? "" : "  <-- UNEXPECTED");
        std::fflush(stdout);
        good &= passed == expected;
    };
    auto broken = [&](Rule rule, const char* name, const std::function<bool()>& test) {
        broken_rule = rule;
        run(name, false, [&] {
            const u64 until = now_ns() + 60'000'000'000;  // a race shows sooner or later, on a busy machine later
            while (now_ns() < until)
                if (!test()) return false;
            return true;
        });
        broken_rule = Rule::all;
    };
    run("store and load", true, store_and_load);
    run("contended adds, 2 hosts", true, [] { return contended_adds(2, 500); });
    run("contended adds, 3 hosts", true, [] { return contended_adds(3, 300); });
    run("a second process", true, second_process);
    run("a forked child", true, forked_child);
    run("sequences", true, [] { return sequences(3, 200); });
    run("killed keepers", true, [] { return killed_keepers(2, 12); });
    broken(Rule::protect, "contended adds, broken", [] { return contended_adds(2, 500); });
    broken(Rule::punch, "sequences, broken", [] { return store_and_load(); });
    broken(Rule::order, "sequences, broken", [] { return sequences(3, 200); });
    broken(Rule::minor, "a second process, broken", second_process);
    broken(Rule::fork, "a forked child, broken", forked_child);
    return good ? 0 : 1;
}

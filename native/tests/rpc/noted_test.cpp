// What a process elsewhere was given is held for it: its home's keeper is killed at every step between the question and the note of the answer,
// and another thread of the process tells the next keeper what is held before the first goes on. Then all of it is there, and nothing else.
#include "tests/rpc/keepers.hpp"

using namespace osf;
using namespace osf::test;

static std::function<void()> at_the_step;

static void act() { at_the_step(); }

using Ask = std::function<RemoteArray(Remote&, u64 address)>;

// True: the step was reached.
static bool cut(const std::string& title, const Ask& ask, long at) {
    context = title + ", cut at step " + std::to_string(at);
    Place place(16 * MIB);
    Shared& shared = share();
    CHECK(returned(run([&] {
        auto space = place.open();
        Held held = new_array(*space, 4096, kind_array);
        space->publish(held, false);
        shared.kill_at = int(u64(space->bytes(held)) - u64(space->base()) - space->layout.data_at);
        space->release(held);
    })));
    Keepers keepers(place, shared);
    const pid_t caller = start([&] {
        const Header header = read_header(place.directory);
        const u64 address = header.base + Layout(header.reserve).data_at + u64(shared.kill_at);
        Remote remote(peer_of(header, shared));
        RemoteArray before = remote.at(address);     // so that there is something to tell
        at_the_step = [&] {
            ::kill(shared.first, SIGKILL);
            await([&] { return shared.follow == 1; });
            std::thread([&] { CHECK(!remote.contains("nothing")); }).join();  // on a connection of its own, to the next keeper
        };
        step_action = act;
        step_limit = at;
        RemoteArray array = ask(remote, address);
        const bool reached = step_limit < 0;
        step_limit = -1;
        for (RemoteArray* one : {&before, &array}) {
            CHECK(remote.atomic(*one, 8, Verb::add, 8, 1).first);
            std::vector<char> bytes(one->nbytes);
            auto transfer = remote.get({{one->address, one->nbytes}}, {bytes.data()});
            CHECK(remote.wait(*transfer, -1, {}));
        }
        remote.collect();                            // what was told on the way is done
        const Stats stats = remote.stats();
        for (const MemberStats& member : stats.members) CHECK(!member.remote || member.pins == 2);
        remote.close();
        shared.go = reached ? 3 : 2;
    });
    keepers.watch([&] { return shared.go >= 2 || ended(caller); });
    CHECK(returned(finish(caller)));
    CHECK(returned(run([&] {
        auto space = place.open();
        space->clear_unclaimed();
        check_sound(*space);
    })));
    const bool reached = shared.go == 3;
    ::munmap(&shared, sizeof(Shared));
    return reached;
}

int main() {
    const std::pair<const char*, Ask> asks[] = {
        {"found by name", [](Remote& remote, u64) { return *remote.find("it"); }},
        {"found by address", [](Remote& remote, u64 address) { return remote.at(address); }},
        {"made", [](Remote& remote, u64) {
             Spec spec;
             spec.nbytes = 4096;
             spec.shape = {4096};
             return remote.make(spec, true);
         }},
        {"found among all hosts", [](Remote& remote, u64) {
             Remote* all[] = {&remote};
             auto found = Remote::find_all(all, "it", [](size_t, const Error& error) { throw Error(error); });
             return *found.at(0);
         }},
    };
    for (const auto& [title, ask] : asks) {
        long at = 0;
        while (cut(title, ask, at)) at++;
        std::printf("%-24s %3ld steps\n", title, at);
        CHECK(at > 3);
    }
    std::puts("noted_test: passed");
}

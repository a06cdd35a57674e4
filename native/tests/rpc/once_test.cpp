// A keeper is killed at every step of a call that must not be done twice; the next one serves the caller's repeated call. The call is done
// once, and its answer comes.
#include "tests/rpc/keepers.hpp"

using namespace osf;
using namespace osf::test;

constexpr long STRIDE = UNDER_TSAN || UNDER_ASAN ? 7 : 1;

struct Operation {
    const char* title;
    std::function<void(Space&)> prepare;                      // at home, before
    std::function<void(Remote&, const std::function<void()>& arm)> act;  // elsewhere: the call is behind arm()
    std::function<void(Space&)> beside;                       // at home, meanwhile
    std::function<void(Space&)> judge;                        // at home, afterwards
};

// True: the keeper was killed in it. All processes are forked before any has a thread.
static bool kill_once(const Operation& operation, long at) {
    context = std::string(operation.title) + ", killed at step " + std::to_string(at);
    Place place(16 * MIB);
    Shared& shared = share();
    shared.kill_at = int(at);
    CHECK(returned(run([&] { operation.prepare(*place.open()); })));
    const pid_t beside = start([&] {
        auto space = place.open();
        shared.there = 1;
        await([&] { return shared.go != 0; });
        if (operation.beside) operation.beside(*space);
        await([&] { return shared.go == 2; });
    });
    await([&] { return shared.there == 1; });
    Keepers keepers(place, shared);
    const pid_t caller = start([&] {
        Remote remote(peer_of(read_header(place.directory), shared));
        operation.act(remote, [&] {
            shared.arm = 1;
            await([&] { return shared.arm == 2; });
            shared.go = 1;
        });
        remote.close();
        shared.go = 2;
    });
    const bool died = keepers.watch([&] { return shared.go == 2 || ended(caller); });
    CHECK(returned(finish(caller)) && returned(finish(beside)));
    CHECK(returned(run([&] {
        auto space = place.open();
        space->clear_unclaimed();
        operation.judge(*space);
        check_sound(*space);
    })));
    ::munmap(&shared, sizeof(Shared));
    return died;
}

static void kill_at_every_step(const Operation& operation) {
    long at = 0, kills = 0;
    for (bool died = true; died; at += STRIDE) kills += died = kill_once(operation, at);
    std::printf("%-44s %4ld kills\n", operation.title, kills);
    std::fflush(stdout);
    CHECK(kills > 0);
}

static void make_channel(Space& space, u32 slot_bytes, const std::function<void(const Held&)>& fill_it = {}) {
    Held held = new_array(space, channel_bytes(3, slot_bytes), kind_channel);
    auto& channel = *reinterpret_cast<Channel*>(space.bytes(held));
    channel.capacity = 3;
    channel.slot_bytes = slot_bytes;
    space.publish(held, true);
    if (fill_it) fill_it(held);
    space.release(held);
}

// What is still in the channel, which then still works.
static std::vector<std::string> left(Space& space) {
    Held held = space.find("it");
    std::vector<std::string> found;
    auto receive = [&] {
        Message message;
        if (!channel_receive(space, held, message, 0)) return false;
        std::string said = message.bytes;
        if (message.array) {
            said = "array " + std::to_string(version_of(space.bytes(message.array), space.record(message.array).nbytes, hash_name("sent")));
            space.release(message.array);
        }
        found.push_back(said);
        return true;
    };
    while (receive()) {}
    const size_t count = found.size();
    for (int round = 0; round < 4; round++) {
        Held array = test::make(space, "", SMALL, 9, "sent");
        CHECK(channel_send(space, held, "", &array, 0));
        space.release(array);
        CHECK(receive() && found.back() == "array 9");
    }
    found.resize(count);
    channel_discard(space, held);
    space.release(held);
    CHECK(space.remove("it"));
    return found;
}

static RemoteArray there(Remote& remote) {
    auto found = remote.find("it");
    CHECK(found);
    return *found;
}

static const std::string LONG_MESSAGE(100'000, 'l');

static void send_to(Space& space, const Held& channel, u64 version) {
    Held array = test::make(space, "", LARGE, version, "sent");
    CHECK(channel_send(space, channel, "", &array, 0));
    space.release(array);
}

static void check_array(Remote& remote, const std::optional<RemoteArray>& array, long version) {
    CHECK(array && array->nbytes == LARGE);
    std::vector<char> bytes(LARGE);
    auto transfer = remote.get({{array->address, LARGE}}, {bytes.data()});
    CHECK(remote.wait(*transfer, -1, {}) && version_of(bytes.data(), LARGE, hash_name("sent")) == version);
}

static u32 generation(Space& space) {
    Held held = space.find("it");
    auto& barrier = *reinterpret_cast<Barrier*>(space.bytes(held));
    CHECK(load(barrier.arrived) == 0 && load(barrier.broken) == 0);
    const u32 result = load(barrier.generation);
    space.release(held);
    return result;
}

static void make_barrier(Space& space, u32 parties) {
    Held held = new_array(space, barrier_bytes(parties), kind_barrier);
    reinterpret_cast<Barrier*>(space.bytes(held))->parties = parties;
    space.publish(held, true);
    space.release(held);
}

static void make_words(Space& space, u64 bytes) {
    Held held = new_array(space, bytes, kind_array);
    space.publish(held, true);
    space.release(held);
}

static u64& last_word(Space& space, u64 bytes) {
    Held held = space.find("it");
    return *reinterpret_cast<u64*>(space.bytes(held) + bytes - 8);
}

static std::vector<Operation> channel_operations() {
    auto nothing = [](Space&) {};
    return {
        {"a message is sent", [](Space& space) { make_channel(space, 64); },
         [](Remote& remote, auto& arm) {
             RemoteArray channel = there(remote);
             arm();
             CHECK(remote.channel_send(channel, "one", nullptr, 20'000'000'000, {}));
             CHECK(remote.channel_send(channel, "two", nullptr, 20'000'000'000, {}));
         }, nothing, [](Space& space) { CHECK((left(space) == std::vector<std::string>{"one", "two"})); }},
        {"an unnamed array is sent", [](Space& space) { make_channel(space, 64); },
         [](Remote& remote, auto& arm) {
             RemoteArray channel = there(remote);
             std::vector<char> bytes(LARGE);
             fill(bytes.data(), LARGE, hash_name("sent"), 3);
             Spec spec;
             spec.nbytes = LARGE;
             spec.shape = {LARGE};
             RemoteArray array = remote.put(spec, bytes, false);
             arm();
             CHECK(remote.channel_send(channel, "", &array, 20'000'000'000, {}));
         }, nothing, [](Space& space) { CHECK(left(space) == std::vector<std::string>{"array 3"}); }},
        {"a message is received",
         [](Space& space) {
             make_channel(space, 64, [&](const Held& held) {
                 for (const char* message : {"one", "two", "three"}) CHECK(channel_send(space, held, message, nullptr, 0));
             });
         },
         [](Remote& remote, auto& arm) {
             RemoteArray channel = there(remote);
             arm();
             for (const char* expected : {"one", "two"}) {
                 RemoteMessage message;
                 CHECK(remote.channel_receive(channel, message, 20'000'000'000, {}) && message.bytes == expected);
             }
         }, nothing, [](Space& space) { CHECK(left(space) == std::vector<std::string>{"three"}); }},
        {"a long message is received",
         [](Space& space) {
             make_channel(space, 200'000, [&](const Held& held) {
                 for (const std::string& message : {LONG_MESSAGE, LONG_MESSAGE + "2", LONG_MESSAGE + "3"}) CHECK(channel_send(space, held, message, nullptr, 0));
             });
         },
         [](Remote& remote, auto& arm) {
             RemoteArray channel = there(remote);
             arm();
             for (const char* expected : {"", "2"}) {
                 RemoteMessage message;
                 CHECK(remote.channel_receive(channel, message, 20'000'000'000, {}) && message.bytes == LONG_MESSAGE + expected);
             }
         }, nothing, [](Space& space) { CHECK(left(space) == std::vector<std::string>{LONG_MESSAGE + "3"}); }},
        {"an unnamed array is received",
         [](Space& space) {
             make_channel(space, 64, [&](const Held& held) {
                 for (u64 version : {1, 2}) send_to(space, held, version);
             });
         },
         [](Remote& remote, auto& arm) {
             RemoteArray channel = there(remote);
             arm();
             RemoteMessage message;
             CHECK(remote.channel_receive(channel, message, 20'000'000'000, {}));
             check_array(remote, message.array, 1);
             RemoteArray same = remote.at(message.array->address);
             remote.release(*message.array);  // its number is told no more, its pin may be another's
             CHECK(remote.channel_receive(channel, message, 20'000'000'000, {}));
             check_array(remote, message.array, 2);
             check_array(remote, same, 1);
             remote.release(same);
             remote.release(*message.array);
         }, nothing, [](Space& space) { CHECK(left(space).empty()); }},
    };
}

static std::vector<Operation> barrier_operations() {
    auto wait = [](Remote& remote, RemoteArray& barrier) { return remote.barrier_wait(barrier, 20'000'000'000, {}); };
    return {
        {"a barrier of one", [](Space& space) { make_barrier(space, 1); },
         [=](Remote& remote, auto& arm) {
             RemoteArray barrier = there(remote);
             arm();
             for (int round = 0; round < 2; round++) CHECK(wait(remote, barrier) == 0);
         }, {}, [](Space& space) { CHECK(generation(space) == 2); }},
        {"a barrier of two threads elsewhere and one here", [](Space& space) { make_barrier(space, 3); },
         [=](Remote& remote, auto& arm) {
             RemoteArray barrier = there(remote), again = barrier;
             arm();
             u32 order[2];
             std::thread other([&] { order[1] = wait(remote, again); });
             order[0] = wait(remote, barrier);
             other.join();
             CHECK(order[0] != order[1] && order[0] < 3 && order[1] < 3);
         },
         [](Space& space) {
             Held held = space.find("it");
             CHECK(barrier_wait(*reinterpret_cast<Barrier*>(space.bytes(held)), space.members, 20'000'000'000) < 3);
             space.release(held);
         }, [](Space& space) { CHECK(generation(space) == 1); }},
        {"a barrier is reset", [](Space& space) { make_barrier(space, 2); },
         [](Remote& remote, auto& arm) {
             RemoteArray barrier = there(remote);
             arm();
             remote.barrier_reset(barrier);
         }, {}, [](Space& space) { CHECK(generation(space) == 1); }},
    };
}

// Who sees the end of a put stores over it at once.
static Operation put_operation(const char* title, u64 bytes) {
    return {title, [=](Space& space) { make_words(space, bytes); },
            [=](Remote& remote, auto& arm) {
                RemoteArray array = there(remote);
                std::vector<u64> words(bytes / 8);
                arm();
                for (u64 value = 1; value <= 2; value++) {
                    std::fill(words.begin(), words.end(), value);
                    auto transfer = remote.write({{array.address, bytes}}, {reinterpret_cast<char*>(words.data())});
                    CHECK(remote.wait(*transfer, -1, {}));
                    await([&] {  // that it was seen
                        u64 word = 0;
                        auto look = remote.get({{array.address + bytes - 8, 8}}, {reinterpret_cast<char*>(&word)});
                        CHECK(remote.wait(*look, -1, {}));
                        return word == 0;
                    });
                }
            },
            [=](Space& space) {
                u64& word = last_word(space, bytes);
                for (u64 value = 1; value <= 2; value++) {
                    await([&] { return load(word) == value; });
                    store(word, 0);  // as it was before: only the note can tell
                }
            },
            [=](Space& space) { CHECK(load(last_word(space, bytes)) == 0); }};
}

int main(int count, char** argument) {
    const std::string only = count > 1 ? argument[1] : "";
    std::vector<Operation> operations = channel_operations();
    for (Operation& each : barrier_operations()) operations.push_back(each);
    operations.push_back(put_operation("a word is put", 8));
    operations.push_back(put_operation("much is put", 600'000));
    for (const Operation& operation : operations)
        if (std::string(operation.title).find(only) != std::string::npos) kill_at_every_step(operation);
    std::puts("once_test: passed");
}

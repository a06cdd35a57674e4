// The operations that kill_test interrupts: how each is prepared, what it does, and what may be found after it was
// killed anywhere in between. Versions are never 0; 0 stands for "no such array".
#pragma once

#include <algorithm>
#include <map>
#include <vector>

#include "tests/check.hpp"

namespace osf::test {

struct Operation {
    const char* title;
    std::function<void(Space&)> prepare;                   // in the process that stays alive (or dies later)
    std::function<void(std::shared_ptr<Space>&)> act;      // in the process that is killed
    std::function<void(Space&)> judge;                     // afterwards, in a survivor
};

inline void expect(Space& space, const std::string& name, std::initializer_list<long> allowed) {
    long version = look_up(space, name);
    if (std::find(allowed.begin(), allowed.end(), version) == allowed.end())
        failed(__FILE__, __LINE__, "'" + name + "' has version " + std::to_string(version));
}

inline void expect_one_of(Space& space, const std::vector<std::string>& names, long version, bool maybe_none = false) {
    int found = 0;
    for (const std::string& name : names) {
        long seen = look_up(space, name);
        CHECK(seen == 0 || seen == version);
        found += seen != 0;
    }
    CHECK(found == 1 || (maybe_none && found == 0));
}

inline void remove_all(Space& space) {
    for (const Entry& entry : space.list(""))
        if (entry.name != "keep") space.remove(entry.name);
}

inline Held make_sync(Space& space, const std::string& name, u64 nbytes, u8 kind) {
    Spec spec;
    spec.nbytes = nbytes;
    spec.kind = kind;
    spec.name = name;
    Held held = space.make(spec, true);
    space.hand_out(held);
    return held;
}

inline void put_channel(Space& space, u32 capacity) {
    Held held = make_sync(space, "channel", channel_bytes(capacity, 128), kind_channel);
    Channel& channel = *reinterpret_cast<Channel*>(space.bytes(held));
    channel.capacity = capacity;
    channel.slot_bytes = 128;
    space.publish(held, true);
    space.release(held);
}

inline void send_anonymous(Space& space, const Held& channel, u64 nbytes, u64 version) {
    Held array = make(space, "", nbytes, version, "sent");
    CHECK(channel_send(space, channel, "", &array, -1));
    space.release(array);
}

// Receives what is there; every array must be whole and of an allowed version. Then the channel must still work.
inline void judge_channel(Space& space, std::initializer_list<long> allowed) {
    Held channel = space.find("channel");
    CHECK(channel);
    Message message;
    while (channel_receive(space, channel, message, 0)) {
        if (message.kind == 2) {
            CHECK(message.array);
            long version = version_of(space.bytes(message.array), space.record(message.array).nbytes, hash_name("sent"));
            CHECK(std::find(allowed.begin(), allowed.end(), version) != allowed.end());
            space.release(message.array);
        }
        message = {};
    }
    for (int round = 0; round < 3; round++) {
        send_anonymous(space, channel, SMALL, 99);
        CHECK(channel_receive(space, channel, message, 0) && message.array);
        space.release(message.array);
        message = {};
    }
    channel_discard(space, channel);
    space.release(channel);
    space.remove("channel");
}

// Two names whose words in the index are equal: the same stripe and the same tag.
inline std::pair<std::string, std::string> names_of_one_word() {
    std::map<u64, std::string> seen;
    for (int number = 0;; number++) {
        std::string name = "w" + std::to_string(number);
        u64 hash = hash_name(name);
        if (Index::stripe_of(hash) != 5) continue;
        auto [at, fresh] = seen.try_emplace(hash >> 48, name);
        if (!fresh) return {at->second, name};
    }
}

inline Operation rename_operation(const char* title, std::string from, std::string to) {
    return {title, [=](Space& space) { put(space, from, SMALL, 1); },
            [=](std::shared_ptr<Space>& space) { space->rename(from, to); },
            [=](Space& space) {
                expect_one_of(space, {from, to}, 1);
                // What is cleaned up and made again under the new name gets the same record: a word that the rename
                // left behind must not be taken for its own.
                space.remove(from);
                space.remove(to);
                space.collect();
                for (int version = 2; version < 5; version++) {
                    put(space, to, SMALL, u64(version));
                    put(space, from, SMALL, u64(version));
                    expect(space, to, {version});
                    expect(space, from, {version});
                    space.collect();
                }
            }};
}

inline std::vector<Operation> operations(const std::string& only) {
    using Shared = std::shared_ptr<Space>&;
    auto nothing = [](Space&) {};
    std::vector<Operation> list;
    for (u64 nbytes : {SMALL, LARGE}) {
        bool small = nbytes == SMALL;
        list.push_back({small ? "put new small" : "put new large", nothing, [=](Shared space) { put(*space, "a", nbytes, 1); },
                        [](Space& space) { expect(space, "a", {0, 1}); }});
        list.push_back({small ? "replace small" : "replace large", [=](Space& space) { put(space, "a", nbytes, 1); },
                        [=](Shared space) { put(*space, "a", nbytes, 2); space->collect(); },
                        [](Space& space) { expect(space, "a", {1, 2}); }});
        list.push_back({small ? "remove small" : "remove large", [=](Space& space) { put(space, "a", nbytes, 1); },
                        [](Shared space) { space->remove("a"); space->collect(); },
                        [](Space& space) { expect(space, "a", {0, 1}); }});
        list.push_back({small ? "anonymous small" : "anonymous large", nothing,
                        [=](Shared space) { space->release(make(*space, "", nbytes, 1, "anonymous")); space->collect(); }, nothing});
        list.push_back({small ? "name an anonymous small one" : "name an anonymous large one", nothing,
                        [=](Shared space) {
                            Held held = make(*space, "", nbytes, 1, "anonymous");
                            space->name(held, "a");
                            space->release(held);
                        },
                        [](Space& space) { expect(space, "a", {0, 1}); put(space, "a", SMALL, 2); expect(space, "a", {2}); }});
        list.push_back({small ? "last pin of a removed small one" : "last pin of a removed large one",
                        [=](Space& space) { put(space, "a", nbytes, 1); },
                        [](Shared space) {
                            Held held = space->find("a");
                            space->remove("a");
                            space->collect();
                            space->release(held);
                            space->collect();
                        },
                        [](Space& space) { expect(space, "a", {0, 1}); }});
    }
    list.push_back(rename_operation("rename in a stripe", name_in(5, "s"), name_in(5, "t")));
    auto [first, second] = names_of_one_word();
    list.push_back(rename_operation("rename between names of one word", first, second));
    list.push_back(rename_operation("rename back between names of one word", second, first));
    list.push_back(rename_operation("rename to a higher stripe", name_in(3, "x"), name_in(9, "y")));
    list.push_back(rename_operation("rename to a lower stripe", name_in(9, "y"), name_in(3, "x")));
    // A survivor that removes the old name and makes the new one at once: the array is large, so its record is free at
    // once, and the new one gets it, with nobody having looked after the dead in between.
    for (auto [from, to] : {std::pair(name_in(3, "x"), name_in(9, "y")), std::pair(name_in(9, "y"), name_in(3, "x"))})
        list.push_back({"rename, then the new name is made again", [=](Space& space) { put(space, from, LARGE, 1); },
                        [=](Shared space) { space->rename(from, to); },
                        [=](Space& space) {
                            space.remove(from);
                            put(space, to, LARGE, 2);
                            expect(space, to, {2});
                            put(space, to, LARGE, 3);
                            expect(space, to, {3});
                            expect(space, from, {0});
                        }});
    list.push_back({"rename twice, then remove", [](Space& space) { put(space, "a", SMALL, 1); },
                    [](Shared space) {
                        space->rename("a", "b");
                        space->rename("b", "a much longer name, of another size class than the others before it, to be sure of that");
                        space->rename("a much longer name, of another size class than the others before it, to be sure of that", "c");
                        space->remove("c");
                        space->collect();
                    },
                    [](Space& space) {
                        expect_one_of(space, {"a", "b", "a much longer name, of another size class than the others before it, to be sure of that", "c"}, 1, true);
                        for (const Entry& entry : space.list(""))
                            if (entry.name != "keep") space.rename(entry.name, "d"), space.rename("d", "e"), space.rename("e", "f");
                    }});
    list.push_back({"publish that makes a larger table",
                    [](Space& space) {
                        for (int number = 0; number < 8; number++) put(space, name_in(7, "g" + std::to_string(number) + "-"), SMALL, 1);
                        store(space.index.stripe(7).used, 320);  // as if the other words were tombstones
                    },
                    [](Shared space) { put(*space, name_in(7, "new"), SMALL, 1); },
                    [](Space& space) {
                        for (int number = 0; number < 8; number++) expect(space, name_in(7, "g" + std::to_string(number) + "-"), {1});
                        expect(space, name_in(7, "new"), {0, 1});
                        put(space, name_in(7, "newer"), SMALL, 1);
                        expect(space, name_in(7, "newer"), {1});
                    }});
    list.push_back({"drain of a limbo of several",
                    [](Space& space) {
                        for (const char* name : {"a", "b", "c"}) put(space, name, SMALL, 1);
                        put(space, "d", LARGE, 1);
                    },
                    [](Shared space) {
                        for (const char* name : {"a", "b", "c"}) space->remove(name);
                        Held held = space->find("d");
                        space->remove("d");
                        space->release(held);
                        space->collect();
                    },
                    [](Space& space) { for (const char* name : {"a", "b", "c", "d"}) expect(space, name, {0, 1}); }});
    list.push_back({"slabs that come and go", nothing,
                    [](Shared space) {
                        std::vector<Held> held;
                        for (int number = 0; number < 10; number++) held.push_back(make(*space, "", 8000, 1, "slab"));
                        for (const Held& each : held) space->release(each);
                        space->collect();
                    },
                    nothing});
    list.push_back({"grow", nothing, [](Shared space) { space->grow(CHUNK); put(*space, "a", LARGE, 1); },
                    [](Space& space) { expect(space, "a", {0, 1}); }});
    list.push_back({"barrier",
                    [](Space& space) {
                        Held held = make_sync(space, "barrier", barrier_bytes(1), kind_barrier);
                        reinterpret_cast<Barrier*>(space.bytes(held))->parties = 1;
                        space.publish(held, true);
                        space.release(held);
                    },
                    [](Shared space) {
                        Held held = space->find("barrier");
                        Barrier& barrier = *reinterpret_cast<Barrier*>(space->bytes(held));
                        for (int round = 0; round < 3; round++) CHECK(barrier_wait(barrier, space->members, -1) == 0);
                        barrier_reset(barrier, space->members);
                    },
                    [](Space& space) {
                        Held held = space.find("barrier");
                        Barrier& barrier = *reinterpret_cast<Barrier*>(space.bytes(held));
                        for (int round = 0; round < 3; round++) CHECK(barrier_wait(barrier, space.members, -1) == 0);
                        space.release(held);
                        space.remove("barrier");
                    }});
    list.push_back({"channel send", [](Space& space) { put_channel(space, 3); },
                    [](Shared space) {
                        Held channel = space->find("channel");
                        CHECK(channel_send(*space, channel, "bytes", nullptr, -1));
                        send_anonymous(*space, channel, SMALL, 1);
                        send_anonymous(*space, channel, LARGE, 2);
                    },
                    [](Space& space) { judge_channel(space, {1, 2}); }});
    list.push_back({"channel receive",
                    [](Space& space) {
                        put_channel(space, 3);
                        Held channel = space.find("channel");
                        send_anonymous(space, channel, SMALL, 1);
                        send_anonymous(space, channel, LARGE, 2);
                        space.release(channel);
                    },
                    [](Shared space) {
                        Held channel = space->find("channel");
                        for (int round = 0; round < 2; round++) {
                            Message message;
                            CHECK(channel_receive(*space, channel, message, -1) && message.array);
                            space->release(message.array);
                        }
                        space->collect();
                    },
                    [](Space& space) { judge_channel(space, {1, 2}); }});
    list.push_back({"leave and join", [](Space& space) { put(space, "a", SMALL, 1); },
                    [](Shared space) {
                        std::string directory = space->directory();
                        Held held = space->find("a");
                        space->remove("a");
                        (void)held;  // left behind
                        space.reset();
                        space = Space::open(directory, false, "boot");
                        put(*space, "b", SMALL, 2);
                    },
                    [](Space& space) { expect(space, "a", {0, 1}); expect(space, "b", {0, 2}); }});
    std::erase_if(list, [&](const Operation& operation) { return std::string_view(operation.title).find(only) == std::string_view::npos; });
    return list;
}

}  // namespace osf::test

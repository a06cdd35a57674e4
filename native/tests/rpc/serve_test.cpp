// The home's side against callers that hold the key but make mistakes: any frame, any payload, ends at any time. Nothing of it harms the
// space or other callers. And what a caller may rely on: answers in the order of calls, and an end to waiting.
#include <poll.h>

#include <thread>

#include "tests/check.hpp"
#include "net/listener.hpp"
#include "rpc/remote.hpp"
#include "rpc/serve.hpp"

using namespace osf;
using namespace osf::test;

static Key key() {
    Key key;
    for (u8 at = 0; at < 32; at++) key.bytes[at] = u8(at * 7);
    return key;
}

struct Host {
    Place place;
    std::shared_ptr<Space> space = place.open();
    Proxies proxies{Served{space, 1, 65536, [](u64, u64) { return std::string("nobody"); }}};
    Listener listener{"127.0.0.1", 0, key(), [this](std::unique_ptr<Wire>& wire, const Hello& hello) {
                          Cluster{space->header().base, space->header().reserve, 0, 2}.check(hello);
                          serve_process(proxies, wire, hello);
                      }};
    explicit Host(u64 bytes = 64 * MIB) : place(bytes) {}
    ~Host() { listener.stop(); }

    Peer peer() const {
        Peer result;
        result.host = "127.0.0.1";
        result.port = listener.port();
        result.key = key();
        result.hello.space = "test";
        result.hello.head.hosts = 2;
        result.hello.head.host = 1;
        result.hello.head.base = space->header().base;
        result.hello.head.reserve = space->header().reserve;
        return result;
    }
};

static Uuid uuid_of(u8 number) {
    Uuid uuid{};
    uuid.fill(number);
    return uuid;
}

static Spec spec_of(u64 nbytes, const std::string& name, u8 kind = 0) {
    Spec spec;
    spec.nbytes = nbytes;
    spec.shape = {nbytes};
    spec.name = name;
    spec.kind = kind;
    return spec;
}

static u16 frame_of(Call call) { return u16(frame_call + u16(call)); }

// Calls that are given all at once are answered one after the other.
static void answers_come_in_order() {
    context = "answers come in order";
    Host host;
    Connection connection(host.peer(), uuid_of(1));
    Wire& wire = *connection.wire;
    constexpr u64 CALLS = 300;
    for (u64 id = 1; id <= CALLS; id++) {
        Out out;
        if (id % 3 == 0) wire.queue(frame_of(Call::contains), id, out.text("name" + std::to_string(id)).span());
        else if (id % 3 == 1) wire.queue(frame_of(Call::publish), id, out.add(id).add(u8(0)).span());  // an error
        else wire.queue(frame_of(Call::find), id, out.add(id).text("none").span());
    }
    while (!wire.flush()) {}
    for (u64 id = 1; id <= CALLS; id++) {
        const FrameHead* head = wire.wait(5'000'000'000);
        CHECK(head && head->id == id && head->type == (id % 3 == 1 ? frame_error : frame_reply));
        wire.open();
    }
}

// A wait for ever ends by a cancel, and its answer says so; what was asked for behind it comes then.
static void waiting_is_cancelled() {
    context = "waiting is cancelled";
    Host host;
    Remote remote(host.peer());
    RemoteArray lock = remote.make(spec_of(64, "lock", kind_lock), true);
    remote.publish(lock, false);
    CHECK(remote.lock_take(lock, -1, {}) == Grant::clean);
    Connection connection(host.peer(), uuid_of(1));
    Wire& wire = *connection.wire;
    wire.send(frame_of(Call::find), 1, Out().add(u64(5)).text("lock").span());
    CHECK(wire.wait(5'000'000'000) && wire.peek()->type == frame_reply);
    wire.open();
    wire.send(frame_of(Call::lock_take), 2, Out().add(u64(5)).add(long(-1)).span());
    CHECK(!wire.wait(100'000'000));
    wire.send(frame_cancel, 1);  // of a call that was answered: nothing happens
    CHECK(!wire.wait(100'000'000));
    wire.send(frame_cancel, 2);
    const FrameHead* head = wire.wait(2'000'000'000);
    while (head && head->type == frame_alive) {
        wire.open();
        head = wire.wait(2'000'000'000);
    }
    CHECK(head && head->id == 2 && head->type == frame_reply && Grant(In(wire.open()).get<u8>()) == Grant::timed_out);
}

// One mistake of a caller, as bytes.
static std::string mistake(std::mt19937& random, const std::vector<u64>& words) {
    Out out;
    u64 pieces = random() % 8;
    for (u64 piece = 0; piece < pieces; piece++) {
        switch (random() % 8) {
            case 0: out.add(u8(random())); break;
            case 1: out.add(u32(random())); break;
            case 2: out.add(u64(random()) << 32 | random()); break;
            case 3: out.text(std::string(random() % 40, char('a' + random() % 3))); break;
            case 4: out.add(u64(random() % 5)); break;  // a pin, perhaps
            case 5: out.add(long(random() % 2'000'000)); break;
            default: out.add(words[random() % words.size()] + (random() % 4 ? 0 : random() % 4096)); break;
        }
    }
    return {out.span().data(), out.size()};
}

static void mistakes_harm_nobody(unsigned seed, int frames) {
    context = "mistakes harm nobody, seed " + std::to_string(seed);
    Host host(16 * MIB);
    std::mt19937 random(seed);
    Remote good(host.peer());
    std::vector<char> bytes(100'000);
    fill(bytes.data(), bytes.size(), hash_name("treasure"), 1);
    RemoteArray treasure = good.put(spec_of(bytes.size(), "treasure"), bytes, false);
    RemoteArray target = good.make(spec_of(4096, "target"), true);
    good.publish(target, false);
    std::vector<RemoteArray> others;
    for (u8 kind : {kind_lock, kind_barrier, kind_channel}) {
        others.push_back(good.make(spec_of(1024, std::to_string(kind), kind), true));
        good.publish(others.back(), false);
    }
    good.barrier_init(others[1], 3);
    good.channel_init(others[2], 4, 64);
    const u64 data = host.space->header().base + host.space->layout.data_at;
    const std::vector<u64> words = {target.address, target.address + 4000, target.record, data - 64, 0, 1, ~0ull, 8, 64, 4096, 1ull << 40};
    int sent = 0, ends = 0;
    while (sent < frames) {
        Connection bad(host.peer(), uuid_of(u8(random() % 4 + 1)));
        Wire& wire = *bad.wire;
        try {
            for (u64 number = 0; number < 4; number++)
                wire.queue(frame_of(Call::find), 0, Out().add(number).text(number ? std::to_string(number) : "target").span());
            for (int some = int(random() % 200); some > 0; some--, sent++) {
                u16 type = u16(random() % 300 ? frame_call + random() % u16(Call::count) : random() % 200);
                // Not its parts: they could go where the treasure is, and that is no mistake but a write.
                if (type == frame_of(Call::write) || type == frame_of(Call::grow)) continue;
                std::string payload = mistake(random, words);
                if (type == frame_of(Call::release) && random() % 20) payload.resize(payload.size() / 8 * 8);
                wire.queue(type, random() % 3, payload);
                if (random() % 10 == 0) wire.flush();
                if (random() % 100 == 0) wire.queue(frame_part, random() % 3, payload);
                if (wire.fill()) while (wire.peek()) wire.open();
            }
            wire.flush();
            pollfd ready{wire.fd(), POLLIN, 0};
            ::poll(&ready, 1, int(random() % 5));
            while (wire.fill()) while (wire.peek()) wire.open();
        } catch (const Error&) {
            ends++;
        }
        if (sent % 50 == 0) CHECK(good.contains("treasure"));
    }
    CHECK(ends > 0);
    std::vector<char> got(bytes.size());
    auto transfer = good.get({{treasure.address, treasure.nbytes}}, {got.data()});
    CHECK(good.wait(*transfer, -1, {}) && got == bytes);
    for (int patience = 0; host.proxies.count() > 1; patience++) {
        CHECK(patience < 100);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    check_sound(*host.space);
}

// Many processes come, hold things, and go in all ways.
static void comings_and_goings() {
    context = "comings and goings";
    Host host;
    {
        std::vector<std::thread> threads;
        for (int number = 0; number < 6; number++) {
            threads.emplace_back([&, number] {
                std::mt19937 random(static_cast<unsigned>(number));
                for (int round = 0; round < (UNDER_TSAN ? 5 : 20); round++) {
                    Remote remote(host.peer());
                    std::vector<RemoteArray> held;
                    for (int count = 0; count < 20; count++) {
                        held.push_back(remote.make(spec_of(random() % 5000, ""), false));
                        if (random() % 3) continue;
                        remote.release(held.back());
                        held.pop_back();
                    }
                    if (random() % 2) remote.close();
                }
            });
        }
        for (std::thread& thread : threads) thread.join();
    }
    for (int patience = 0; host.proxies.count(); patience++) {
        CHECK(patience < 100);
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    check_sound(*host.space);
    CHECK(host.space->data.used() == 0 || host.space->audit().bytes == 0);
}

int main() {
    answers_come_in_order();
    waiting_is_cancelled();
    comings_and_goings();
    for (unsigned seed = 1; seed <= 3; seed++) mistakes_harm_nobody(seed, UNDER_TSAN || UNDER_ASAN ? 2000 : 10'000);
    std::puts("serve_test: passed");
}

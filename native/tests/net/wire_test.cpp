// The wire between peers that behave: every size, both directions, queues, timeouts, names, death.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>

#include <thread>

#include "net/door.hpp"
#include "base/lock.hpp"
#include "tests/net/wire_raw.hpp"

using namespace osf;
using namespace osf::test;

namespace {

const Key KEY = key_of(7);
HelloMemory memory;

int accept_one(int listener) {
    for (;;) {
        pollfd ready{listener, POLLIN, 0};
        ::poll(&ready, 1, -1);
        const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (fd >= 0) return fd;
    }
}

struct Pair {
    std::unique_ptr<Wire> dialer, listener;
    explicit Pair(const std::string& host = "127.0.0.1") {
        const Listening at = listen_on(host, 0);
        CHECK(at.port != 0);
        std::jthread other([&] { listener = Wire::accept(accept_one(at.fd), KEY, memory, 2000); });
        dialer = Wire::connect(host, at.port, KEY, 2000);
        other.join();
        ::close(at.fd);
        CHECK(listener);
    }
};

std::string pattern(size_t bytes, u64 seed) {
    std::string out(bytes, '\0');
    for (size_t at = 0; at < bytes; at++) out[at] = char((at * 2654435761u + seed * 40503u) >> 7);
    return out;
}

std::string hex_of(std::span<const u8> bytes) {
    std::string hex;
    for (u8 byte : bytes) {
        char two[3];
        std::snprintf(two, sizeof two, "%02x", byte);
        hex += two;
    }
    return hex;
}

void hkdf_is_that_of_the_standard() {  // RFC 5869, A.1
    const std::string secret(22, '\x0b'), salt("\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c", 13);
    u8 out[42];
    hkdf_expand(hkdf_extract(bytes_of(salt), bytes_of(secret)), "\xf0\xf1\xf2\xf3\xf4\xf5\xf6\xf7\xf8\xf9", out);
    CHECK(hex_of(out) == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865");
}

void a_frame_is_sealed_as_the_standard_says() {  // computed from the text of RFC 7253 and docs/formats/hosts.md by other code
    Stream seals(Stream::sealing, Digest{});
    std::string payload(40, '\0'), sealed(payload.size() + TAG, '\0');
    for (size_t at = 0; at < payload.size(); at++) payload[at] = char(at);
    for (u64 number = 0; number < 3; number++) {
        const FrameHead head{40, 7, 1, 0, 9 + number};
        seals.seal({reinterpret_cast<const char*>(&head), sizeof head}, payload, {}, sealed.data());
    }
    CHECK(hex_of(bytes_of(sealed)) ==
          "523cf35ed948d6e7b1b2a7188c782a326277c8b70dde8f24c9bc94989693761ac3cb7263b9ab4d698e34dab4b29fee3331324f8d3517a993");
}

// Wherever the parts meet, on either side. Each part is a block of memory of its own size, so that a sanitizer sees a byte too far.
void parts_may_meet_inside_a_block() {
    const std::string head = "sixteen bytes ..";
    Stream seals(Stream::sealing, Digest{}), opens(Stream::opening, Digest{});
    auto part = [](const std::string& of, size_t at, size_t bytes) { return std::vector<char>(of.data() + at, of.data() + at + bytes); };
    for (size_t bytes = 0; bytes <= 50; bytes++) {
        const std::string payload = pattern(bytes, bytes);
        for (size_t here = 0; here <= bytes; here++) {
            const std::vector<char> a = part(payload, 0, here), b = part(payload, here, bytes - here);
            for (size_t there = 0; there <= bytes; there++) {
                std::vector<char> sealed(bytes + TAG), first(there), second(bytes - there);
                seals.seal(head, a, b, sealed.data());
                CHECK(opens.open(head, sealed.data(), first, second));
                CHECK(std::string(first.begin(), first.end()) + std::string(second.begin(), second.end()) == payload);
            }
        }
        for (size_t bit = 0; bit < (head.size() + bytes + TAG) * 8; bit++) {
            std::vector<char> frame(head.begin(), head.end()), first(bytes / 2), second(bytes - bytes / 2);
            frame.resize(head.size() + bytes + TAG);
            seals.seal(head, payload, {}, frame.data() + head.size());
            frame[bit / 8] ^= char(1 << bit % 8);
            CHECK(!opens.open({frame.data(), head.size()}, frame.data() + head.size(), first, second));
        }
    }
}

// A get seals from memory that others store into. OCB's tag is over the clear bytes: were one read twice, the frame would not open.
void what_changes_while_it_is_sealed_still_opens() {
    if (UNDER_TSAN) return;  // a race is the point
    std::vector<u64> words(8192 / 8 + 1);
    std::atomic<bool> over = false;
    std::jthread other([&] {
        for (u64 value = 1; !over; value++)
            for (u64& word : words) std::atomic_ref(word).store(value * 0x9e3779b97f4a7c15u, std::memory_order_relaxed);
    });
    Stream seals(Stream::sealing, Digest{}), opens(Stream::opening, Digest{});
    std::vector<char> sealed(words.size() * 8 + TAG), clear(words.size() * 8);
    const char* source = reinterpret_cast<const char*>(words.data());
    u64 mixed = 0;
    for (u64 frame = 0; frame < 20'000; frame++) {
        const size_t bytes = words.size() * 8 - frame % 40, here = frame * 7 % bytes;
        seals.seal({"head", 4}, {source, here}, {source + here, bytes - here}, sealed.data());
        CHECK(opens.open({"head", 4}, sealed.data(), {clear.data(), bytes}, {}));
        mixed += std::memcmp(clear.data(), clear.data() + 4096, 8) != 0;
    }
    over = true;
    CHECK(mixed > 0);
}

void keys_change_on_the_way_and_both_ends_agree() {
    Digest secret{};
    Stream seals(Stream::sealing, secret), opens(Stream::opening, secret), still(Stream::opening, secret);
    char sealed[3 + TAG], clear[3], early[3 + TAG] = {};
    for (u64 frame = 0; frame < REKEY_FRAMES + 3; frame++) {
        seals.seal({"head", 4}, {"abc", 3}, {}, sealed);
        CHECK(opens.open({"head", 4}, sealed, {clear, 3}, {}) && std::string(clear, 3) == "abc");
        CHECK(frame == 0 || std::memcmp(early, sealed, sizeof sealed) != 0);
        if (frame == 0) std::memcpy(early, sealed, sizeof sealed);
    }
    CHECK(still.open({"head", 4}, early, {clear, 3}, {}));
    CHECK(!still.open({"head", 4}, early, {clear, 3}, {}));  // frame 0 is not frame 1
}

void every_size_arrives_in_one_part_and_in_two() {
    Pair pair;
    std::vector<size_t> sizes;
    for (size_t bytes = 0; bytes <= 70; bytes++) sizes.push_back(bytes);
    for (size_t bytes : {4095ul, 4096ul, 65'503ul, 65'504ul, 65'505ul, 65'536ul, 262'144ul, size_t(FRAME_MAX) - 1, size_t(FRAME_MAX)}) sizes.push_back(bytes);
    std::jthread sender([&] {
        for (size_t bytes : sizes) {
            const std::string payload = pattern(bytes, bytes);
            pair.dialer->send(9, bytes, payload);
            pair.dialer->send(10, bytes, std::span(payload).first(bytes / 3), std::span(payload).subspan(bytes / 3));
        }
    });
    for (size_t bytes : sizes) {
        const std::string payload = pattern(bytes, bytes);
        std::string first(bytes / 5, '\0'), second(bytes - bytes / 5, '\0');
        const FrameHead* head = pair.listener->wait(-1);
        CHECK(head && head->type == 9 && head->id == bytes && head->bytes == bytes);
        if (bytes) CHECK(code_of([&] { pair.listener->open(std::span(first)); }) == Code::bad_input);  // too little room: nothing happened
        pair.listener->open(std::span(first), std::span(second));
        CHECK(first + second == payload);
        head = pair.listener->wait(-1);
        CHECK(head && head->type == 10 && head->id == bytes);
        CHECK(pair.listener->open() == payload);
    }
    CHECK(pair.listener->wait(0) == nullptr);
    const std::string over(FRAME_MAX + 1, 'x');
    CHECK(code_of([&] { pair.dialer->queue(1, 1, over); }) == Code::bad_input);
    CHECK(code_of([&] { pair.listener->open(); }) == Code::bad_input);
}

void many_frames_are_queued_and_flow_both_ways_at_once() {
    Pair pair;
    constexpr u64 FRAMES = 1000;
    auto size = [](u64 frame) { return (frame * frame * 37) % 30'000; };
    auto run = [&](Wire& wire, u64 seed) {  // one thread, never blocking, as the keeper's agent does
        u64 sent = 0, seen = 0;
        while (seen < FRAMES || wire.queued() || sent < FRAMES) {
            for (; sent < FRAMES && wire.queued() < 8 * MIB; sent++) wire.queue(u16(sent), sent, pattern(size(sent), sent ^ seed));
            const bool out = wire.flush();
            while (const FrameHead* head = wire.peek()) {
                CHECK(head->id == seen && head->type == u16(seen));
                CHECK(wire.open() == pattern(size(seen), seen ^ seed ^ 1));
                seen++;
            }
            if (wire.fill()) continue;
            pollfd ready{wire.fd(), short(POLLIN | (out ? 0 : POLLOUT)), 0};
            if (seen < FRAMES || !out) ::poll(&ready, 1, 1000);
        }
    };
    std::jthread other([&] { run(*pair.listener, 0); });
    run(*pair.dialer, 1);
}

void one_thread_sends_while_another_receives() {
    Pair pair;
    const std::string bulk = pattern(BULK, 5);
    auto sends = [&](Wire& wire) {
        for (u64 frame = 0; frame < 100; frame++) wire.send(1, frame, bulk);
    };
    auto receives = [&](Wire& wire) {
        for (u64 frame = 0; frame < 100; frame++) {
            CHECK(wire.wait(-1)->id == frame);
            CHECK(wire.open() == bulk);
        }
    };
    std::jthread a([&] { sends(*pair.dialer); }), b([&] { receives(*pair.dialer); }), c([&] { sends(*pair.listener); });
    receives(*pair.listener);
}

void input_that_nobody_opens_stays_with_the_sender() {
    Pair pair;
    const std::string megabyte = pattern(MIB, 1);
    for (int frame = 0; frame < 64; frame++) pair.dialer->queue(1, 1, megabyte);
    for (int quiet = 0; quiet < 1000; quiet++) {
        if (pair.dialer->flush()) break;
        if (pair.listener->fill()) quiet = 0;
    }
    CHECK(pair.listener->peek() && pair.dialer->queued() > 16 * MIB);
    for (int frame = 0; frame < 64; frame++) {
        while (!pair.listener->peek()) {
            pair.dialer->flush();
            pair.listener->fill();
        }
        CHECK(pair.listener->open() == megabyte);
    }
}

void a_stream_that_drips_is_read() {
    Raw raw(KEY);
    auto wire = raw.meet(memory);
    const std::string frame = raw.frame(5, 6, "drip");
    for (size_t at = 0; at < frame.size(); at++) {
        CHECK(!wire->peek() && !wire->fill());
        raw.write(frame.substr(at, 1));
        CHECK(wire->fill());
    }
    CHECK(wire->peek() && wire->open() == "drip");
}

void waiting_ends_in_time() {
    Pair pair;
    for (long timeout : {0l, 1'000'000l, 30'000'000l}) {
        const u64 start = now_ns();
        CHECK(pair.dialer->wait(timeout) == nullptr);
        CHECK(now_ns() - start >= u64(timeout) && now_ns() - start < u64(timeout) + 500'000'000);
    }
}

void dialing_nobody_ends_in_time() {
    const Listening gone = listen_on("127.0.0.1", 0);
    ::close(gone.fd);
    CHECK(code_of([&] { Wire::connect("127.0.0.1", gone.port, KEY, 1000); }) == Code::host_lost);
    CHECK(code_of([&] { Wire::connect("no-such-host.invalid", 1, KEY, 1000); }) == Code::host_lost);
    CHECK(code_of([&] { Wire::connect("", 1, KEY, 1000); }) == Code::host_lost);

    const Listening silent = listen_on("127.0.0.1", 0);  // the system takes the connection, nobody answers
    ::listen(silent.fd, 0);
    std::vector<u64> times;
    for (int more = 0; more < 4; more++) {  // from the second or third on not even that
        const u64 start = now_ns();
        CHECK(code_of([&] { Wire::connect("127.0.0.1", silent.port, KEY, 150); }) == Code::host_lost);
        times.push_back(now_ns() - start);
    }
    for (u64 time : times) CHECK(time >= 150'000'000 && time < 1'000'000'000);
    ::close(silent.fd);
}

void hosts_have_names_and_addresses_of_both_kinds() {
    Pair("localhost");
    const int six = ::socket(AF_INET6, SOCK_STREAM, 0);
    sockaddr_in6 loop{};
    loop.sin6_family = AF_INET6;
    loop.sin6_addr = in6addr_loopback;
    if (six >= 0 && ::bind(six, reinterpret_cast<sockaddr*>(&loop), sizeof loop) == 0) {
        Pair pair("[::1]");
        CHECK(pair.listener->peer().starts_with("[::1]:") && pair.dialer->peer().starts_with("[::1]:"));
        Pair("::1");
    }
    if (six >= 0) ::close(six);
    CHECK(code_of([] { listen_on("no-such-host.invalid", 0); }) == Code::bad_input);
    const Listening taken = listen_on("127.0.0.1", 0);
    CHECK(code_of([&] { listen_on("127.0.0.1", taken.port); }) == Code::os);
    ::close(taken.fd);
}

void a_listener_takes_many_at_once_and_strangers_do_not_count() {
    Door listener("127.0.0.1", 0, KEY);
    CHECK(listener.accept(0) == nullptr && listener.accept(1'000'000) == nullptr);
    std::vector<std::jthread> dialers;
    for (u64 number = 0; number < 12; number++)
        dialers.emplace_back([&, number] {
            if (number % 3 == 0) {
                CHECK(code_of([&] { Wire::connect("127.0.0.1", listener.port(), key_of(9), 5000); }) == Code::host_lost);
                return;
            }
            auto wire = Wire::connect("127.0.0.1", listener.port(), KEY, 5000);
            wire->send(1, number);
            CHECK(wire->wait(-1)->id == number);
        });
    for (int expected = 8; expected; expected--) {
        auto wire = listener.accept(-1);
        CHECK(wire);
        const u64 number = wire->wait(-1)->id;
        wire->open();
        wire->send(2, number);
    }
    for (const u64 start = now_ns(); now_ns() - start < 200'000'000;) CHECK(listener.accept(10'000'000) == nullptr);
    dialers.clear();
}

void a_peer_that_dies_is_lost_and_what_it_said_before_counts() {
    const Listening at = listen_on("127.0.0.1", 0);
    const pid_t child = start([&] {
        auto wire = Wire::connect("127.0.0.1", at.port, KEY, 2000);
        wire->send(1, 1, std::span("whole", 5));
        wire->queue(2, 2, std::span("never whole", 11));
        wire->wait(-1);
        const std::string half(20, '\x01');
        CHECK(::send(wire->fd(), half.data(), half.size(), 0) == 20);
        ::kill(::getpid(), SIGKILL);
    });
    auto wire = Wire::accept(accept_one(at.fd), KEY, memory, 2000);
    CHECK(wire && wire->wait(-1)->id == 1 && wire->open() == "whole");
    wire->send(1, 1);
    CHECK(code_of([&] { wire->wait(-1); }) != Code(-1));
    CHECK(killed(finish(child)));
    const std::string more(FRAME_MAX, 'x');
    CHECK(code_of([&] { for (int frame = 0; frame < 64; frame++) wire->send(1, 1, more); }) != Code(-1));
    ::close(at.fd);
}

void a_library_without_the_cipher_is_said_to_lack_it() {
    CHECK(returned(run([] {
        char path[] = "/tmp/openshelf-wire-test-XXXXXX";
        const std::string restricted = "openssl_conf = top\n[top]\nalg_section = algorithms\n[algorithms]\ndefault_properties = fips=yes\n";
        const int file = ::mkstemp(path);
        CHECK(::write(file, restricted.data(), restricted.size()) == ssize_t(restricted.size()));
        ::setenv("OPENSSL_CONF", path, 1);
        std::string said;
        try {
            Stream(Stream::sealing, Digest{});
        } catch (const Error& error) {
            said = error.what();
        }
        ::unlink(path);
        CHECK(said.find("has no AES-128-OCB") != said.npos);
    })));
}

}  // namespace

int main() {
    const int files = open_files();
    a_library_without_the_cipher_is_said_to_lack_it();  // before the library is loaded here
    a_peer_that_dies_is_lost_and_what_it_said_before_counts();  // first: it forks
    hkdf_is_that_of_the_standard();
    a_frame_is_sealed_as_the_standard_says();
    parts_may_meet_inside_a_block();
    what_changes_while_it_is_sealed_still_opens();
    keys_change_on_the_way_and_both_ends_agree();
    every_size_arrives_in_one_part_and_in_two();
    many_frames_are_queued_and_flow_both_ways_at_once();
    one_thread_sends_while_another_receives();
    input_that_nobody_opens_stays_with_the_sender();
    a_stream_that_drips_is_read();
    waiting_ends_in_time();
    dialing_nobody_ends_in_time();
    hosts_have_names_and_addresses_of_both_kinds();
    a_listener_takes_many_at_once_and_strangers_do_not_count();
    for (int more = 0; more < 200 && open_files() != files; more++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    CHECK(open_files() == files);
    std::puts("wire: ok");
}

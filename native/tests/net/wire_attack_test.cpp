// The wire among people without the key, and between peers with somebody in the middle: cut at every byte, one bit flipped at
// every position, frames repeated, moved and invented, hellos repeated, and streams of chance (a million with OPENSHELF_SOAK=1).
#include <netinet/in.h>
#include <poll.h>

#include <thread>

#include "base/lock.hpp"
#include "tests/net/wire_raw.hpp"

using namespace osf;
using namespace osf::test;

namespace {

const Key KEY = key_of(7);
HelloMemory memory;
const std::vector<Got> SAID = {{11, 1, "one"}, {12, 2, ""}, {13, 3, "three, which is longer than a block"}};

std::string sealed(Raw& raw) {
    std::string out;
    for (const Got& frame : SAID) out += raw.frame(frame.type, frame.id, frame.payload);
    return out;
}

bool is_beginning(const std::vector<Got>& got) { return got.size() <= SAID.size() && std::equal(got.begin(), got.end(), SAID.begin()); }

// Nothing but the end of the stream comes back.
void check_silence(Raw& raw) {
    char byte;
    CHECK(::recv(raw.fd, &byte, 1, 0) <= 0);
}

void a_hello_that_is_cut_or_altered_gets_no_answer() {
    for (size_t bytes = 0; bytes < 72; bytes++) {
        Raw raw(KEY);
        raw.write(raw.hello("dial").substr(0, bytes));
        ::shutdown(raw.fd, SHUT_WR);
        CHECK(!Wire::accept(raw.other, KEY, memory, 1000));
        check_silence(raw);
    }
    for (size_t bit = 0; bit < 72 * 8; bit++) {
        Raw raw(KEY);
        std::string hello = raw.hello("dial");
        hello[bit / 8] ^= char(1 << bit % 8);
        raw.write(hello);
        CHECK(!Wire::accept(raw.other, KEY, memory, 1000));
        check_silence(raw);
    }
}

void another_key_and_a_repeated_hello_get_no_answer() {
    Raw stranger(key_of(8));
    stranger.write(stranger.hello("dial"));
    CHECK(!Wire::accept(stranger.other, KEY, memory, 1000));
    check_silence(stranger);

    Raw first(KEY), again(KEY), reflected(KEY);
    auto wire = first.meet(memory);
    again.write(first.mine);
    CHECK(!Wire::accept(again.other, KEY, memory, 1000));
    check_silence(again);
    reflected.write(first.theirs);  // a listener's answer is no hello
    CHECK(!Wire::accept(reflected.other, KEY, memory, 1000));
    check_silence(reflected);

    HelloMemory small(2);
    Digest a{1}, b{2}, c{3};
    CHECK(small.first_time(a) && small.first_time(b) && !small.first_time(a) && small.first_time(c));
    CHECK(!small.first_time(a) && !small.first_time(c) && small.first_time(b));  // b was the one not used for longest
}

void another_version_is_told_to_key_holders_only() {
    Raw newer(KEY), stranger(key_of(8));
    newer.write(newer.hello("dial", 99));
    CHECK(!Wire::accept(newer.other, KEY, memory, 1000));
    const std::string answer = newer.read(100);
    CHECK(answer.size() == 72 && u8(answer[4]) == WIRE_VERSION);
    stranger.write(stranger.hello("dial", 99));
    CHECK(!Wire::accept(stranger.other, KEY, memory, 1000));
    check_silence(stranger);
}

void who_says_nothing_is_sent_away_in_time_and_keeps_nobody_out() {
    HelloMemory door(100, 2);
    Raw slow(KEY), silent(KEY), third(KEY), fourth(KEY);
    const u64 start = now_ns();
    {
        std::jthread drips([&] {
            const std::string hello = slow.hello("dial");
            for (int at = 0; at < 30; at++) {  // each byte in time, all of them not
                if (::send(slow.fd, hello.data() + at, 1, MSG_NOSIGNAL) != 1) break;
                std::this_thread::sleep_for(std::chrono::milliseconds(20));
            }
        });
        std::atomic<u64> evicted = 0;
        std::jthread one([&] { CHECK(!Wire::accept(slow.other, KEY, door, 30'000)); evicted = now_ns(); });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        std::jthread two([&] { CHECK(!Wire::accept(silent.other, KEY, door, 300)); });
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        CHECK(third.meet(door));   // both places are taken: the oldest goes
        one.join();
        CHECK(evicted - start < 20'000'000'000);
        two.join();                // who is not in the way has its time
        CHECK(now_ns() - start >= 300'000'000);
    }
    check_silence(silent);
    CHECK(fourth.meet(door));
}

void a_stream_cut_at_every_byte_gives_only_whole_frames() {
    Raw measure(KEY);
    auto unused = measure.meet(memory);
    const size_t bytes = sealed(measure).size();
    for (size_t cut = 0; cut <= bytes; cut++) {
        Raw raw(KEY);
        auto wire = raw.meet(memory);
        raw.write(sealed(raw).substr(0, cut));
        raw.end();
        const auto [got, code] = drain(*wire);
        CHECK(code == Code::host_lost && is_beginning(got));
        CHECK((got.size() == SAID.size()) == (cut == bytes));
        CHECK(code_of([&] { wire->fill(); }) == Code::host_lost);
    }
}

void one_flipped_bit_at_every_position_is_refused() {
    Raw measure(KEY);
    auto unused = measure.meet(memory);
    const size_t bits = sealed(measure).size() * 8;
    for (size_t bit = 0; bit < bits; bit++) {
        Raw raw(KEY);
        auto wire = raw.meet(memory);
        std::string stream = sealed(raw);
        stream[bit / 8] ^= char(1 << bit % 8);
        raw.write(stream);
        raw.end();
        const auto [got, code] = drain(*wire);
        CHECK(is_beginning(got) && got.size() < SAID.size());
        CHECK(code == Code::refused || code == Code::host_lost);  // the latter: the length was altered, and the stream ended first
        if (code == Code::refused) {
            CHECK(code_of([&] { wire->queue(1, 1); }) == Code::refused && code_of([&] { wire->peek(); }) == Code::refused);
            CHECK(code_of([&] { wire->fill(); }) == Code::refused && code_of([&] { wire->open(); }) == Code::refused);
        }
    }
}

void frames_repeated_moved_or_left_out_are_refused() {
    for (const std::vector<int>& order : {std::vector{0, 0}, {1, 0, 2}, {0, 2}, {1}, {0, 1, 2, 2}, {0, 1, 2, 0}, {0, 2, 1}}) {
        Raw raw(KEY);
        auto wire = raw.meet(memory);
        std::vector<std::string> frames;
        for (const Got& frame : SAID) frames.push_back(raw.frame(frame.type, frame.id, frame.payload));
        size_t good = 0;
        for (int place : order) raw.write(frames[size_t(place)]);
        while (good < order.size() && order[good] == int(good)) good++;
        const auto [got, code] = drain(*wire);
        CHECK(code == Code::refused && is_beginning(got) && got.size() == good);
    }
    Raw one(KEY), two(KEY), echo(KEY);  // frames of another connection, and our own sent back
    auto a = one.meet(memory), b = two.meet(memory), c = echo.meet(memory);
    two.write(one.frame(1, 1, "elsewhere"));
    CHECK(drain(*b).second == Code::refused);
    c->send(1, 1, std::span("mine", 4));
    echo.write(echo.read(sizeof(FrameHead) + 4 + TAG));
    CHECK(drain(*c).second == Code::refused);
}

void a_length_over_the_most_is_refused_from_its_head_alone() {
    for (u32 bytes : {FRAME_MAX + 1, 0x7fffffffu, 0xffffffffu}) {
        Raw raw(KEY);
        auto wire = raw.meet(memory);
        const FrameHead head{bytes, 1, FRAME_VERSION, 0, 1};
        raw.write({reinterpret_cast<const char*>(&head), sizeof head});
        CHECK(drain(*wire).second == Code::refused);
    }
}

// Wire::connect against a listener whose answer is made by `answer` from the right one.
template <class Answer>
Code dial(Answer answer) {
    const Listening at = listen_on("127.0.0.1", 0);
    std::jthread listener([&] {
        pollfd ready{at.fd, POLLIN, 0};
        ::poll(&ready, 1, -1);
        Raw raw(KEY, ::accept4(at.fd, nullptr, nullptr, SOCK_CLOEXEC));
        raw.theirs = raw.read(72);
        const std::string bytes = answer(raw);
        ::send(raw.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    });
    const Code code = code_of([&] {
        auto wire = Wire::connect("127.0.0.1", at.port, KEY, 2000);
        const auto [got, end] = drain(*wire);
        CHECK(is_beginning(got));
        throw Error(got.size() == SAID.size() ? Code(-1) : end, "");
    });
    listener.join();
    ::close(at.fd);
    return code;
}

void a_dialer_refuses_a_false_listener() {
    auto good = [](Raw& raw) {
        std::string hello = raw.hello("answer");
        raw.derive(false);
        return hello + sealed(raw);
    };
    CHECK(dial(good) == Code(-1));
    size_t bytes = 0;
    CHECK(dial([&](Raw& raw) { return std::string(good(raw)).substr(0, (bytes = good(raw).size()) - 1); }) == Code::host_lost);
    for (size_t bit = 0; bit < bytes * 8; bit += UNDER_TSAN ? 7 : 1) {
        const Code code = dial([&](Raw& raw) {
            std::string stream = good(raw);
            stream[bit / 8] ^= char(1 << bit % 8);
            return stream;
        });
        CHECK(code == Code::refused || code == Code::host_lost);
    }
    for (size_t cut = 0; cut < bytes; cut += UNDER_TSAN ? 7 : 1) CHECK(dial([&](Raw& raw) { return good(raw).substr(0, cut); }) == Code::host_lost);
    CHECK(dial([](Raw& raw) { return raw.theirs; }) == Code::refused);  // the dialer's own hello
    CHECK(dial([](Raw& raw) { return raw.hello("answer", 9); }) == Code::wrong_version);
    CHECK(dial([](Raw& raw) { raw.key = key_of(8); return raw.hello("answer"); }) == Code::refused);
    CHECK(dial([](Raw&) { return std::string("HTTP/1.1 400 Bad Request\r\n\r\n"); }) == Code::refused);
}

// Each stream is right up to a point of chance and then altered in a way of chance; some have no right beginning at all.
void streams_of_chance_do_no_harm(u64 count) {
    std::mt19937_64 chance(20240607);
    auto below = [&](u64 limit) { return chance() % limit; };
    auto noise = [&](size_t bytes) {
        std::string out(bytes, '\0');
        for (char& byte : out) byte = char(chance());
        return out;
    };
    u64 refused = 0;
    for (u64 stream = 0; stream < count; stream++) {
        context = "stream " + std::to_string(stream);
        Raw raw(KEY);
        if (below(4) == 0) {  // at the door
            std::string hello = below(2) ? raw.hello("dial") : "OSHF" + noise(below(100));
            for (u64 flips = 1 + below(4); flips; flips--) hello[below(hello.size())] ^= char(1 + below(255));
            if (below(3) == 0) hello = noise(1 + below(200));
            raw.write(hello);
            ::shutdown(raw.fd, SHUT_WR);
            if (auto wire = Wire::accept(raw.other, KEY, memory, 1000)) CHECK(hello.substr(0, 72) == raw.mine);  // flips that undid each other
            continue;
        }
        auto wire = raw.meet(memory);
        std::vector<Got> said;
        std::string bytes;
        for (u64 frames = below(4); frames; frames--) {
            said.push_back({u16(chance()), chance(), noise(below(below(8) ? 100 : 5000))});
            bytes += raw.frame(said.back().type, said.back().id, said.back().payload);
        }
        const size_t right = bytes.size();
        switch (below(6)) {
            case 0: bytes += noise(1 + below(300)); break;
            case 1: {  // a head that looks right, and noise for its payload
                const FrameHead head{u32(below(below(2) ? 200 : 2 * FRAME_MAX)), u16(chance()), FRAME_VERSION, 0, chance()};
                bytes += std::string(reinterpret_cast<const char*>(&head), sizeof head) + noise(below(400));
                break;
            }
            case 2: if (right) bytes[below(right)] ^= char(1 + below(255)); break;
            case 3: bytes.insert(below(right + 1), noise(1 + below(40))); break;
            case 4: if (right) bytes.erase(below(right), 1 + below(40)); break;
            case 5: bytes += bytes.substr(below(right + 1)); break;
        }
        raw.write(bytes);
        raw.end();
        const auto [got, code] = drain(*wire);
        CHECK(got.size() <= said.size() && std::equal(got.begin(), got.end(), said.begin()));
        CHECK(code == Code::refused || code == Code::host_lost);
        refused += code == Code::refused;
    }
    CHECK(refused > count / 10);
    context = "";
}

}  // namespace

int main() {
    const int files = open_files();
    a_hello_that_is_cut_or_altered_gets_no_answer();
    another_key_and_a_repeated_hello_get_no_answer();
    another_version_is_told_to_key_holders_only();
    who_says_nothing_is_sent_away_in_time_and_keeps_nobody_out();
    a_stream_cut_at_every_byte_gives_only_whole_frames();
    one_flipped_bit_at_every_position_is_refused();
    frames_repeated_moved_or_left_out_are_refused();
    a_length_over_the_most_is_refused_from_its_head_alone();
    a_dialer_refuses_a_false_listener();
    const char* soak = std::getenv("OPENSHELF_SOAK");
    streams_of_chance_do_no_harm(soak && *soak == '1' ? 1'000'000 : UNDER_TSAN ? 5'000 : 50'000);  // one thread: no race to find
    CHECK(open_files() == files);
    std::puts("wire under attack: ok");
}

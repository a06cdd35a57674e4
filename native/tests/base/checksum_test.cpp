// The checksum of bytes on flash: with and without vector instructions the same, and what it must notice.
#include <algorithm>
#include <random>
#include <vector>

#include "tests/check.hpp"
#include "base/checksum.hpp"

using namespace osf;
using namespace osf::test;

struct Bytes {
    char* data;
    explicit Bytes(u64 size) : data(static_cast<char*>(std::aligned_alloc(64, size))) {}
    ~Bytes() { std::free(data); }
    Bytes(const Bytes&) = delete;
    Bytes& operator=(const Bytes&) = delete;
};

constexpr u64 MOST = 256 * 1024;

static void fill_random(char* bytes, u64 size, std::mt19937_64& random) {
    for (u64 at = 0; at < size; at += 8) {
        const u64 word = random();
        std::memcpy(bytes + at, &word, 8);
    }
}

static void plain_and_wide_are_the_same() {
    context = "plain and wide";
    std::mt19937_64 random(1);
    Bytes bytes(MOST), copy(MOST);
    for (int round = 0; round < 300; round++) {
        const u64 size = 64 * (1 + random() % (round % 2 ? 64 : MOST / 64)), seed = random();
        if (round % 10) fill_random(bytes.data, size, random);
        else std::memset(bytes.data, round % 20 ? 0xff : 0, size);
        const u64 plain = check_bytes_plain(bytes.data, size, seed);
        CHECK(check_bytes(bytes.data, size, seed) == plain);
        for (bool wide : {false, true}) {
            std::memset(copy.data, 0x5a, MOST);
            CHECK((wide ? check_bytes(bytes.data, size, seed, copy.data) : check_bytes_plain(bytes.data, size, seed, copy.data)) == plain);
            CHECK(!std::memcmp(bytes.data, copy.data, size) && (size == MOST || copy.data[size] == 0x5a));
        }
    }
}

static void changes_are_noticed() {
    context = "changes";
    std::mt19937_64 random(2);
    Bytes bytes(MOST);
    const u64 size = 64 * 1024;
    for (bool zeros : {false, true}) {
        if (zeros) std::memset(bytes.data, 0, MOST);
        else fill_random(bytes.data, MOST, random);
        const u64 good = check_bytes(bytes.data, size, 7);
        CHECK(check_bytes(bytes.data, size, 8) != good);        // another seed
        CHECK(check_bytes(bytes.data, size - 64, 7) != good);  // a part
        for (u64 bit = 0; bit < size * 8; bit += 1 + random() % 61) {
            bytes.data[bit / 8] ^= char(1 << bit % 8);
            CHECK(check_bytes(bytes.data, size, 7) != good);
            bytes.data[bit / 8] ^= char(1 << bit % 8);
        }
    }
    fill_random(bytes.data, size, random);
    const u64 good = check_bytes(bytes.data, size, 7);
    for (u64 width : {8, 64, 512, 1024, 4096})  // parts that changed places
        for (int round = 0; round < 500; round++) {
            const u64 one = random() % (size / width) * width, other = random() % (size / width) * width;
            if (one == other) continue;
            std::swap_ranges(bytes.data + one, bytes.data + one + width, bytes.data + other);
            CHECK(check_bytes(bytes.data, size, 7) != good);
            std::swap_ranges(bytes.data + one, bytes.data + one + width, bytes.data + other);
        }
    for (u64 kept = 0; kept < size; kept += 512) {  // torn: the rest is zeros
        Bytes torn(size);
        std::memcpy(torn.data, bytes.data, size);
        std::memset(torn.data + kept, 0, size - kept);
        CHECK(check_bytes(torn.data, size, 7) != good);
    }
}

static void the_format_stays() {
    context = "format";
    Bytes bytes(2048);
    for (u64 at = 0; at < 2048; at++) bytes.data[at] = char(at * 7);
    CHECK(check_bytes(bytes.data, 1984, 42) == 0xaad04aa5b26d9996ull);
}

int main() {
    plain_and_wide_are_the_same();
    changes_are_noticed();
    the_format_stays();
    std::puts("checksum: ok");
}

// What the tests of the journal share: an image as a std::map, random histories of commits, and both run side by side.
#pragma once

#include <array>

#include "tiers/journal.hpp"
#include "tests/tiers/sim_disk.hpp"

namespace osf::test {

using Random = SimDisk::Random;
using Model = std::map<u64, u8>;  // number of a page: which of the contents it has

constexpr u64 STEP = 4 * SECTOR;  // logs this short are replaced already

// A few contents; the first byte says which it is. 0 is all zeros, as most of a fresh file is.
inline const char* content(u8 which) {
    static const auto all = [] {
        std::vector<std::array<char, PAGE>> pages(24);
        Random random(99);
        for (u64 page = 1; page < pages.size(); page++) {
            for (char& byte : pages[page]) byte = char(random());
            pages[page][0] = char(page);
        }
        return pages;
    }();
    return all.at(which).data();
}

inline Model image_of(const Journal& journal) {
    Model image;
    journal.each([&](u64 number, const char* bytes) {
        CHECK(u8(bytes[0]) < 24 && std::memcmp(bytes, content(u8(bytes[0])), PAGE) == 0);
        CHECK(journal.page(number) == bytes);
        CHECK(image.emplace(number, u8(bytes[0])).second);
    });
    return image;
}

struct Commit {
    std::vector<std::pair<u64, u8>> pages;
    bool whole;

    Model after(Model image) const {
        if (whole) image.clear();
        for (auto [number, which] : pages) image[number] = which;
        return image;
    }
    void run(Journal& journal) const {
        std::vector<Journal::Page> given;
        for (auto [number, which] : pages) given.push_back({number, content(which)});
        journal.commit(given, whole);
    }
};

// Changes of up to four pages out of `spread`, often to what they are already; some commits name the whole image, less a few.
inline Commit some_commit(Random& random, const Model& image, u64 spread) {
    Commit commit{{}, random() % 4 == 0};
    if (commit.whole)
        for (auto [number, which] : image)
            if (random() % 4) commit.pages.emplace_back(number, which);
    for (u64 count = random() % 5; count > 0; count--) {
        const u64 page = random() % spread;
        commit.pages.emplace_back(page % 5 == 4 ? ~page : page, u8(random() % 24));
    }
    return commit;
}
inline std::vector<Commit> some_history(Random& random, u64 commits) {
    std::vector<Commit> history;
    Model image;
    const u64 spread = 1 + random() % 12;
    for (u64 at = 0; at < commits; at++) {
        history.push_back(some_commit(random, image, spread));
        image = history.back().after(image);
    }
    return history;
}

// A journal and what it must be, moved on together.
struct Pair {
    SimDisk& disk;
    Journal journal;
    Model last;                    // of the last commit that returned
    std::vector<Model> under_way;  // of those that were begun since and did not
    u64 generation = 0;
    bool created = false;

    explicit Pair(SimDisk& on) : disk(on), journal(on, "dir/space", STEP) {}
    void create() {
        journal.create();
        created = true;
    }
    void commit(const Commit& commit) {
        under_way.push_back(commit.after(last));
        commit.run(journal);
        last = under_way.back();
        under_way.clear();
        CHECK(journal.generation() == ++generation);
        check();
    }
    void check() const { CHECK(image_of(journal) == last && journal.generation() == generation); }
};

// What a recovery on this disk finds must be what `pair` says: the last commit or, if `doubt`, one under way.
inline void find(SimDisk& disk, Pair& found, const Pair& pair, bool doubt) {
    if (!Journal::exists(disk, "dir/space")) {
        CHECK(!pair.created);
        found.create();
        return;
    }
    found.journal.recover();
    found.created = true;
    found.generation = found.journal.generation();
    found.last = image_of(found.journal);
    const bool old = found.generation == pair.generation && found.last == pair.last;
    bool next = false;
    for (const Model& image : pair.under_way) next |= found.generation == pair.generation + 1 && found.last == image;
    CHECK(old || (doubt && next));
}

}  // namespace osf::test

// KV pools: what is found, what goes first, what stays; and threads that put, match and evict at once.
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "tests/kv/prompts.hpp"

using namespace osf;
using namespace osf::test;

static void longest_prefix_is_found() {
    context = "longest prefix";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 64);
    CHECK(look(pool, prompt("abc")) == 0);
    KvStored stored = put(pool, prompt("abcd"));
    CHECK(stored.blocks == 4 && stored.stored == 4 && !stored.present && !stored.declined);
    stored = put(pool, prompt("abxy"));
    CHECK(stored.present == 2 && stored.stored == 2);
    CHECK(look(pool, prompt("abcd")) == 4 && look(pool, prompt("abcx")) == 3 && look(pool, prompt("abxyz")) == 4);
    CHECK(look(pool, prompt("b")) == 0 && look(pool, prompt("")) == 0);
    CHECK(pool->stats().live == 6);
    check_sound(*pool);
}

static void children_go_first() {
    context = "children go first";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 8);
    put(pool, prompt("abcdefgh"));
    CHECK(put(pool, prompt("xy")).stored == 2);                  // evicts the end of the first
    CHECK(look(pool, prompt("abcdefgh")) == 6);
    check_sound(*pool);
    {
        KvHit hit(pool, ROOT, prompt("abcd"), false);
        CHECK(hit.slots.size() == 4);
        KvStored stored = put(pool, prompt("0123456789"));       // all that nobody holds
        CHECK(stored.stored == 4 && stored.declined == 6);
        check_bytes(hit, prompt("abcd"));
        CHECK(put(pool, prompt("mnopqrstuv")).stored == 4);      // those of before are free to go
        check_bytes(hit, prompt("abcd"));
    }
    CHECK(put(pool, prompt("mnopqrstuv")).declined == 2);        // longer than the pool: it has all of it
    CHECK(look(pool, prompt("mnopqrstuv")) == 8);
    check_sound(*pool);
}

static void sticky_blocks_stay() {
    context = "sticky";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 4);
    put(pool, prompt("ab"));
    u32 slot = KvHit(pool, ROOT, prompt("ab"), false).slots.back();
    pool->stick(slot, true);
    for (int round = 0; round < 5; round++) put(pool, prompt(std::string(3, char('k' + round))));
    CHECK(look(pool, prompt("ab")) == 2);
    CHECK(evict(pool, prompt("ab")) == 0);
    pool->stick(slot, false);
    CHECK(evict(pool, prompt("ab"), 1) == 1 && look(pool, prompt("ab")) == 1);
    CHECK(pool->clear(nullptr) > 0 && pool->stats().live == 0);
    check_sound(*pool);
}

static void tenants_keep_to_their_quotas() {
    context = "quotas";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 16);
    u32 four = 4;
    u32 small = pool->tenant("small", &four), large = pool->tenant("large", nullptr);
    CHECK(small == pool->tenant("small", nullptr) && large != small);
    put(pool, prompt("ABCDEFGH"), large);
    CHECK(put(pool, prompt("abc"), small).stored == 3);
    CHECK(put(pool, prompt("xyz"), small).stored == 3);
    CHECK(put(pool, prompt("123456"), small).stored == 4);
    CHECK(look(pool, prompt("ABCDEFGH")) == 8);
    CHECK(pool->tenants()[small].used == 4);
    const std::string_view name = "small", none = "none";
    CHECK(pool->clear(&none) == 0 && pool->clear(&name) == 4 && look(pool, prompt("ABCDEFGH")) == 8);
    check_sound(*pool);
}

static void expired_blocks_are_not_found() {
    context = "expiry";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 16);
    put(pool, prompt("ab"));
    put(pool, prompt("abcd"), 0, wall_ns() + 3'000'000);
    CHECK(look(pool, prompt("abcd")) == 4);
    usleep(5000);
    CHECK(look(pool, prompt("abcd")) == 2);
    put(pool, prompt("abc"), 0, wall_ns() + 1'000'000'000);      // renewed
    CHECK(look(pool, prompt("abcd")) == 3);
    pool->tend(0);
    CHECK(pool->stats().live == 3 && pool->stats().expired_blocks == 1);
    check_sound(*pool);
}

static void values_are_whole_or_not_there() {
    context = "values";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 8);
    auto store_value = [&](const std::string& key, const std::string& value) {
        KvDraft draft(pool, ROOT, name(key), value.size(), 0, 0);
        return kv_put_value(draft, value.data());
    };
    auto value_of = [&](const std::string& key) {
        KvHit hit(pool, kv_name_key(ROOT, name(key)));
        std::string value(hit.nbytes, 0);
        hit.read_value(value.data());
        return value;
    };
    std::string large(BLOCK_BYTES * 5 + 7, 'v'), other(BLOCK_BYTES * 5 + 7, 'w');
    CHECK(store_value("one", large).stored == 6 && value_of("one") == large);
    CHECK(store_value("one", other).present == 6 && value_of("one") == large);
    CHECK(store_value("two", other).stored == 6 && value_of("two") == other);  // evicts a part of the first: it is gone
    CHECK(value_of("one").empty());
    CHECK(store_value("one", "small").stored == 1 && value_of("one") == "small");
    CHECK(store_value("three", std::string(BLOCK_BYTES * 9, 'x')).declined == 9);
    check_sound(*pool);
}

static void what_is_there_equals_a_tree(unsigned seed) {
    context = "tree, seed " + std::to_string(seed);
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 4096);                          // room for all: nothing is evicted unasked
    std::mt19937 random(seed);
    std::map<std::string, int> tree;                             // path to number of children
    auto path = [&] {
        std::string text;
        for (u64 length = random() % 7; text.size() < length;) text.push_back(char('a' + random() % 3));
        return text;
    };
    auto present = [&](const std::string& text) {
        u64 length = 0;
        while (length < text.size() && tree.count(text.substr(0, length + 1))) length++;
        return length;
    };
    for (int round = 0; round < 3000; round++) {
        std::string text = path();
        u64 there = present(text);
        if (random() % 3) {
            KvStored stored = put(pool, prompt(text));
            CHECK(stored.present == there && stored.stored == text.size() - there);
            for (u64 length = there + 1; length <= text.size(); length++) {
                tree[text.substr(0, length)] = 0;
                if (length > 1) tree[text.substr(0, length - 1)]++;
            }
        } else if (random() % 2) {
            CHECK(look(pool, prompt(text)) == there);
        } else {
            u32 gone = 0, keep = random() % 3;
            for (std::string at = text.substr(0, there); at.size() > keep && !tree[at]; gone++) {
                tree.erase(at);
                at.pop_back();
                if (!at.empty()) tree[at]--;
            }
            CHECK(evict(pool, prompt(text), keep) == gone);
        }
    }
    CHECK(pool->stats().live == tree.size());
    check_sound(*pool);
}

static void threads_put_match_and_evict(u32 slots, int rounds) {
    context = "threads, " + std::to_string(slots) + " slots";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, slots);
    std::vector<std::thread> threads;
    for (unsigned number = 0; number < 4; number++)
        threads.emplace_back([&, number] {
            std::mt19937 random(number);
            for (int round = 0; round < rounds; round++) random_deed(pool, random);
        });
    for (std::thread& thread : threads) thread.join();
    check_sound(*pool);
}

// Whatever they hold, they only say what goes first, and how far a long prompt gets.
static void damaged_hints_do_no_harm() {
    context = "damaged hints";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 40);
    KvHead& head = pool->head();
    std::mt19937_64 random(7);
    for (int round = 0; round < 300; round++) {
        char* base = reinterpret_cast<char*>(&head);
        for (u64 at = head.tables_at; at + 8 <= head.data_at; at += 8) {  // tables and ghosts
            u64 word = round % 3 ? random() : ~0ull;
            std::memcpy(base + at, &word, 8);
        }
        for (u32 slot = 0; slot < head.slots; slot++) {
            pool->entry(slot).habit = pool->entry(slot).hits = u32(random());
            pool->entry(slot).used = random();
        }
        head.learn_at = random();
        std::string text(1 + random() % 20, 'a');
        for (char& letter : text) letter = char('a' + random() % 3);
        look(pool, prompt(text));
        KvStored stored = put(pool, prompt(text));
        CHECK(stored.stored + stored.present == text.size());
        CHECK(look(pool, prompt(text)) == text.size());
    }
    check_sound(*pool);
}

// Prompts that come back while others come once are kept, though more blocks than there is room for come between.
static void what_comes_back_is_kept() {
    context = "what comes back";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 200);
    u32 next = 1000;
    u64 found = 0, asked = 0;
    Prompt once(8 * TOKENS);
    for (int round = 0; round < 100; round++) {
        for (u32 regular = 0; regular < 10; regular++) {
            for (int other = 0; other < 4; other++, next += 8 * TOKENS) {
                std::iota(once.begin(), once.end(), next);
                put(pool, once);
            }
            Prompt tokens(8 * TOKENS, regular);
            u64 hit = look(pool, tokens);
            put(pool, tokens);
            if (round < 50) continue;
            found += hit;
            asked += 8;
        }
    }
    CHECK(found * 10 > asked * 8);                               // least recently used would find none
    check_sound(*pool);
}

// What is used again and again is not crowded out by a long prompt that comes once; and what was not taken the first time is known the next.
static void a_long_prompt_leaves_what_is_worth_more() {
    context = "long prompt";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 200);
    Prompt regular(8 * TOKENS), once(180 * TOKENS);
    auto ask = [&](u32 which) {
        std::iota(regular.begin(), regular.end(), which * 1000);
        const u64 hit = look(pool, regular);
        put(pool, regular);
        return hit;
    };
    for (int round = 0; round < 100; round++)
        for (u32 which = 0; which < 20; which++) ask(which);
    u64 found = 0;
    for (u32 number = 1; number <= 20; number++) {
        std::iota(once.begin(), once.end(), number * 1'000'000);
        const KvStored stored = put(pool, once);
        CHECK(stored.stored >= 8 && stored.stored + stored.declined == 180 && look(pool, once) == stored.stored);
        for (u32 which = 0; which < 20; which++) found += ask(which);
    }
    CHECK(found * 10 > 20 * 20 * 8 * 8);                         // least recently used would find next to none
    check_sound(*pool);
}

// Between finding a block and holding it, it may go, and its slot may get another.
static void a_block_that_went_is_not_held() {
    context = "hold too late";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 1);
    put(pool, prompt("a"));
    KvKey key = KvChain(ROOT, TOKENS).next(prompt("a").data());
    u32 slot = pool->find(key);
    CHECK(slot == 0);
    KvPin pin(*pool);
    CHECK(evict(pool, prompt("a")) == 1);
    CHECK(!pin.hold(slot, key));
    put(pool, prompt("b"));
    CHECK(!pin.hold(slot, key));
    CHECK(put(pool, prompt("a")).stored == 1 && pin.hold(slot, key));
    CHECK(put(pool, prompt("b")).declined == 1);
}

// Buckets change under readers' eyes; what stays is always found.
static void what_stays_is_always_found() {
    context = "found while others come and go";
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, 6);
    put(pool, prompt("keep"));
    KvHit held(pool, ROOT, prompt("keep"), true);
    std::atomic<bool> over{false};
    std::vector<std::thread> readers;
    for (int reader = 0; reader < 6; reader++) readers.emplace_back([&] {
        std::vector<KvKey> keys;
        KvChain chain(ROOT, TOKENS);
        const Prompt tokens = prompt("keep");
        for (u64 at = 0; at < 4; at++) keys.push_back(chain.next(tokens.data() + at * TOKENS));
        while (!over)
            for (const KvKey& key : keys) CHECK(pool->find(key) != NO_SLOT);
    });
    for (int round = 0; round < (UNDER_TSAN ? 600 : 200'000); round++) put(pool, prompt(std::string(1, char('A' + round % 50))));
    over = true;
    for (std::thread& reader : readers) reader.join();
    check_sound(*pool);
}

int main() {
    std::set_terminate([] { failed(__FILE__, __LINE__, "an exception was not caught"); });
    longest_prefix_is_found();
    children_go_first();
    sticky_blocks_stay();
    tenants_keep_to_their_quotas();
    expired_blocks_are_not_found();
    values_are_whole_or_not_there();
    a_block_that_went_is_not_held();
    for (int time = 0; time < 2; time++) what_stays_is_always_found();
    damaged_hints_do_no_harm();
    what_comes_back_is_kept();
    a_long_prompt_leaves_what_is_worth_more();
    for (unsigned seed = 1; seed <= 3; seed++) what_is_there_equals_a_tree(seed);
    threads_put_match_and_evict(12, UNDER_TSAN ? 1500 : 10'000);
    threads_put_match_and_evict(300, UNDER_TSAN ? 1500 : 10'000);
    return 0;
}

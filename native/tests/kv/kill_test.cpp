// KV pools and kill -9: at every step of every operation, in the recovery, of everybody, and at random at full speed.
#include <cstring>

#include "tests/kv/prompts.hpp"

using namespace osf;
using namespace osf::test;

// Everything that changes a pool, as one child's deed.
static const std::vector<std::pair<const char*, std::function<void(const std::shared_ptr<KvPool>&)>>> DEEDS = {
    {"put", [](auto& pool) { put(pool, prompt("keep12")); }},
    {"put into a full pool", [](auto& pool) { put(pool, prompt("abcdefghijklmnopqr")); }},
    {"put with expiry", [](auto& pool) { put(pool, prompt("pq"), 0, 1); pool->tend(0); }},
    {"match", [](auto& pool) { KvHit hit(pool, ROOT, prompt("keep"), true); step(); step(); }},
    {"match and release", [](auto& pool) { look(pool, prompt("keep")); look(pool, prompt("full")); }},
    {"evict", [](auto& pool) { evict(pool, prompt("fullest")); }},
    {"clear", [](auto& pool) { pool->clear(nullptr); }},
    {"tenant", [](auto& pool) { u32 two = 2; put(pool, prompt("yz12"), pool->tenant("new", &two)); }},
    {"stick", [](auto& pool) {
        u32 slot = KvHit(pool, ROOT, prompt("full"), true).slots.back();
        pool->stick(slot, true);
        pool->stick(slot, false);
    }},
    {"value", [](auto& pool) {
        std::string value(BLOCK_BYTES * 3, 'v');
        KvDraft draft(pool, ROOT, name("value"), value.size(), 0, 0);
        kv_put_value(draft, value.data());
        KvHit hit(pool, kv_name_key(ROOT, name("value")));
    }},
    {"draft", [](auto& pool) {
        KvDraft draft(pool, ROOT, prompt("keepon"), 0, 0);
        draft.reserve(2);
        step();
        draft.publish();
    }},
};

static bool dies_at(long k, const std::function<void()>& deed) {
    int status = run([&] {
        step_limit = k;
        deed();
        step_limit = -1;
    });
    if (!killed(status) && !returned(status)) failed(__FILE__, __LINE__, "the child ended with status " + std::to_string(status));
    return killed(status);
}

// A survivor holds "keep" all along; whatever the child was doing, "keep" is whole, every block that can be found is the right one, and
// nothing is leaked or held by the dead. With `twice`, the first to recover is killed too.
static long killed_at_every_step(bool twice) {
    long kills = 0;
    const long stride = UNDER_ASAN || UNDER_TSAN ? 5 : 1;
    for (auto& [title, deed] : DEEDS) {
        bool died = true;
        for (long k = 0; died; k += stride) {
            context = std::string(title) + (twice ? " and recovery" : "") + ", killed at step " + std::to_string(k);
            Place place;
            auto space = place.open();
            auto pool = make_pool(space, 14);
            put(pool, prompt("keep"));
            put(pool, prompt("fullest"));
            KvHit held(pool, ROOT, prompt("keep"), true);
            CHECK(held.slots.size() == 4);
            died = dies_at(k, [&] { deed(pool); });
            kills += died;
            if (twice && died)
                for (long j : {0, 3, 9, 20}) kills += dies_at(j, [&] { put(pool, prompt("recover")); });
            check_bytes(held, prompt("keep"));
            CHECK(look(pool, prompt("keep")) == 4);
            for (const char* path : {"fullest", "keep12", "abcdefghijklmnopqr", "pq", "yz12", "recover"}) look(pool, prompt(path));
            check_sound(*pool);
            space->collect();
            for (const MemberStats& member : space->stats().members) CHECK(member.alive);
            CHECK(put(pool, prompt("0123456789")).stored == 10);     // all but "keep" can be had: the dead hold nothing
            check_bytes(held, prompt("keep"));
            check_sound(*pool);
            check_sound(*space, "the space");
            if (twice) k += 2;                                       // forks are slow
        }
    }
    return kills;
}

// Nobody is left; who opens the space next finds the pool as it was.
static void pool_outlives_everybody() {
    context = "nobody left";
    Place place;
    CHECK(killed(run([&] {
        auto space = place.open();
        auto pool = make_pool(space, 14);
        put(pool, prompt("keep"));
        step_limit = 20;
        put(pool, prompt("abcdefgh"));
    })));
    auto space = place.open();
    Held found = space->find("kv");
    CHECK(found);
    auto pool = std::make_shared<KvPool>(space, found);
    CHECK(look(pool, prompt("keep")) == 4);
    look(pool, prompt("abcdefgh"));
    check_sound(*pool);
}

// Workers die at any moment, at full speed; a survivor holds "keep" and looks after every death.
static void workers_are_killed_at_random(u32 slots, int kills, unsigned seed) {
    context = "killed at random, " + std::to_string(slots) + " slots, seed " + std::to_string(seed);
    Place place;
    auto space = place.open();
    auto pool = make_pool(space, slots);
    put(pool, prompt("keep"));
    KvHit held(pool, ROOT, prompt("keep"), true);
    CHECK(held.slots.size() == 4);
    std::mt19937 random(seed);
    auto begin = [&] {
        unsigned number = random();
        return start([&, number] {
            std::mt19937 own(number);
            for (;;) random_deed(pool, own);
        });
    };
    std::vector<pid_t> workers;
    for (int number = 0; number < 3; number++) workers.push_back(begin());
    for (int number = 0; number < kills; number++) {
        usleep(random() % 3000);
        pid_t& victim = workers[random() % workers.size()];
        ::kill(victim, SIGKILL);
        int status = finish(victim);
        if (!killed(status)) failed(__FILE__, __LINE__, "a worker ended by itself");
        CHECK(look(pool, prompt("keep")) == 4);
        victim = begin();
    }
    for (pid_t worker : workers) {
        ::kill(worker, SIGKILL);
        finish(worker);
    }
    check_bytes(held, prompt("keep"));
    check_sound(*pool);
    CHECK(pool->stats().evicted_blocks > 100);
    pool->clear(nullptr);                        // a put alone may leave others what is worth more
    CHECK(pool->stats().live == 4);
    CHECK(put(pool, prompt(std::string(slots - 4, 'z'))).stored == slots - 4);  // the dead hold nothing
    check_sound(*pool);
    check_sound(*space, "the space");
}

int main() {
    std::set_terminate([] { failed(__FILE__, __LINE__, "an exception was not caught"); });
    if (UNDER_TSAN) return 0;  // forks of threads that it does not follow
    std::printf("killed at every step: %ld kills\n", killed_at_every_step(false));
    std::printf("and in the recovery: %ld kills\n", killed_at_every_step(true));
    pool_outlives_everybody();
    const int kills = std::getenv("OPENSHELF_SOAK") ? 20'000 : UNDER_ASAN ? 30 : 100;
    workers_are_killed_at_random(14, kills, 1);
    workers_are_killed_at_random(200, kills, 2);
    return 0;
}

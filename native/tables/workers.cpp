#include "tables/workers.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace osf::tables {

namespace {

struct Job {
    const std::function<void(u64)>* work;
    u64 pieces;
    std::atomic<u64> next{0};
    std::mutex mutex;
    std::condition_variable ended;
    u32 helpers = 0;                             // that have taken it and are not done
    std::exception_ptr error;

    void run() {
        try {
            for (u64 piece; (piece = next.fetch_add(1)) < pieces;) (*work)(piece);
        } catch (...) {
            next = pieces;
            std::lock_guard guard(mutex);
            if (!error) error = std::current_exception();
        }
    }
};

struct Crew {
    std::mutex mutex;
    std::condition_variable called;
    std::vector<Job*> waiting;                   // a job is here once for each helper that it still wants
    u32 threads = 0;

    void serve() {
        std::unique_lock guard(mutex);
        for (;;) {
            called.wait(guard, [&] { return !waiting.empty(); });
            Job& job = *waiting.back();
            waiting.pop_back();
            {
                std::lock_guard own(job.mutex);
                job.helpers++;
            }
            guard.unlock();
            job.run();
            {
                std::lock_guard own(job.mutex);
                if (--job.helpers == 0) job.ended.notify_all();
            }
            guard.lock();
        }
    }

    void call(Job& job, u32 helpers) {
        std::lock_guard guard(mutex);
        for (; threads < helpers; threads++) std::thread([this] { serve(); }).detach();
        waiting.insert(waiting.end(), helpers, &job);
        for (u32 at = 0; at < helpers; at++) called.notify_one();
    }

    void done(Job& job) {
        {
            std::lock_guard guard(mutex);
            std::erase(waiting, &job);           // nobody else begins it
        }
        std::unique_lock own(job.mutex);
        job.ended.wait(own, [&] { return job.helpers == 0; });
    }
};

}  // namespace

// A forked child has none of its parent's threads: it begins with a crew of its own, and leaves the other one alone.
static std::atomic<Crew*> crew_now{nullptr};

static Crew& crew() {
    static const int once = pthread_atfork(nullptr, nullptr, [] { crew_now = nullptr; });
    (void)once;
    Crew* found = crew_now.load();
    if (!found) {
        auto made = std::make_unique<Crew>();
        if (crew_now.compare_exchange_strong(found, made.get())) found = made.release();
    }
    return *found;
}

static u32 processors() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? u32(std::max(1, CPU_COUNT(&set))) : 1;
}

void run_pieces(u64 pieces, u32 threads, const std::function<void(u64)>& work) {
    if (pieces > 1 && !threads) threads = processors();
    const u32 used = u32(std::min<u64>(pieces, std::clamp(threads, 1u, 256u)));
    if (used <= 1) {
        for (u64 piece = 0; piece < pieces; piece++) work(piece);
        return;
    }
    Job job;
    job.work = &work;
    job.pieces = pieces;
    Crew& all = crew();
    all.call(job, used - 1);
    job.run();
    all.done(job);
    if (job.error) std::rethrow_exception(job.error);
}

}  // namespace osf::tables

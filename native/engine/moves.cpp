// What the mover's threads do: bytes between memory and flash, and memory given and taken.
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "faults/faults.hpp"
#include "engine/mover.hpp"

namespace osf::engine {

static std::string no_memory(int error) { return std::string("no_room:the file system behind the space has no memory left (") + std::strerror(error) + ")"; }

Mover::Worker::Worker() : buffer(static_cast<char*>(std::aligned_alloc(BLOCK, BLOCK))) {
    madvise(buffer, BLOCK, MADV_HUGEPAGE);  // one piece for the disk
    std::memset(buffer, 0, RUN * UNIT);
}

Mover::Worker::~Worker() { std::free(buffer); }

bool Mover::run(Worker& worker, std::unique_lock<std::mutex>& lock) {
    if (!worker.drops.empty()) {  // the first run of what was written
        u32 count = 1;
        while (count < worker.drops.size() && worker.drops[count] == worker.drops[0] + count) count++;
        const Job drop{Job::Kind::vacate, worker.drops[0], count};
        worker.drops.erase(worker.drops.begin(), worker.drops.begin() + count);
        if (!hide(drop)) forget(drop, lock);
        return !worker.drops.empty();
    }
    switch (worker.job.kind) {
        case Job::Kind::fill: fill(worker.job, worker.buffer, lock); break;
        case Job::Kind::provide: provide(worker.job, lock); break;
        case Job::Kind::write: write(worker, lock); break;
        case Job::Kind::drop:
            if (!hide(worker.job)) forget(worker.job, lock);
            break;
        case Job::Kind::vacate:
        case Job::Kind::discard: forget(worker.job, lock); break;
    }
    return !worker.drops.empty();
}

void Mover::forget(const Job& job, std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    units_.punch(job.first, job.count);
    lock.lock();
    for (u32 unit = job.first; unit < job.end(); unit++) {
        if (job.kind == Job::Kind::discard) {
            forget_slot(unit);
        } else {
            units_.set_tier(unit, Tier::flash);
            if (job.kind == Job::Kind::drop) units_.counts().dropped_bytes += UNIT;
        }
        left_memory(unit);
    }
}

void Mover::forget_slot(u32 unit) {
    const u64 word = units_.word(unit);
    if (flash_slot(word) != NO_SLOT) slots_.release(flash_slot(word));
    units_.set(unit, tier_word(Tier::empty, generation_of(word), NO_SLOT));
}

// Into memory

bool Mover::Reading::whole() const {
    return std::all_of(errors, errors + count, [](const std::string& error) { return error.empty(); });
}

// By way of a buffer that is one piece of memory, which disks like; from there into the pages that the units left behind or, where
// there are none, into the file: giving it pages is most of the work then, and costs less so than by faults.
void Mover::fill(const Job& job, char* buffer, std::unique_lock<std::mutex>& lock) {
    const bool marked = viewers_.mark(job.first, job.count);
    lock.unlock();
    const u64 start = now_ns();
    Reading reading{job.count};
    if (marked) read_checked(job, buffer, reading);
    else std::fill_n(reading.errors, job.count, no_memory(ENOMEM));
    if (!job.vacant) put_in_file(job, buffer, reading);
    // Who asked for the run sees it before anybody else can want it: the mutex is not held for that. Pinned: writable, when it is dirty.
    if (reading.whole() && job.want != Want::touch && job.want != Want::pin && !job.young) show_filled(job, lock);
    const u64 spent = now_ns() - start;
    lock.lock();
    units_.counts().read_ns += spent;
    filled(job, reading);
}

void Mover::read_checked(const Job& job, char* buffer, Reading& reading) {
    std::string* errors = reading.errors;
    auto take = [&](u32 at, u32 count) {
        try {
            flash_.read(job.slot + at, count, buffer + at * UNIT);
            return std::string();
        } catch (const FlashError& error) { return std::string("flash:") + error.what(); }
    };
    if (std::string all = take(0, job.count); !all.empty())
        for (u32 at = 0; at < job.count; at++) errors[at] = job.count == 1 ? all : take(at, 1);
    for (u32 at = 0; at < job.count; at++) {
        const TierWord& word = units_.words.at(job.first + at);
        char* to = job.vacant ? reinterpret_cast<char*>(units_.address_of(job.first + at)) : nullptr;
        if (errors[at].empty() && unit_check(buffer + at * UNIT, job.first + at, load(word.word), to) != word.check)
            errors[at] = "corrupt:slot " + std::to_string(job.slot + at) + " of the flash files fails its checksum: the block was torn or changed";
        if (!errors[at].empty()) errors[at] += "; lost with it: " + units_.names_at(job.first + at);
    }
}

// Before anybody's page tables.
void Mover::put_in_file(const Job& job, const char* buffer, Reading& reading) {
    std::string* errors = reading.errors;
    for (u32 at = 0; at < job.count;) {
        u32 end = at;
        while (end < job.count && errors[end].empty()) end++;
        if (end == at) {
            at++;
            continue;
        }
        const u64 bytes = u64(end - at) * UNIT;
        ssize_t put;
        do put = pwrite(units_.data(), buffer + at * UNIT, bytes, off_t(job.first + at) * off_t(UNIT));
        while (put < 0 && errno == EINTR);
        if (put != ssize_t(bytes)) {
            const std::string error = no_memory(put < 0 ? errno : ENOSPC);
            for (u32 one = at; one < end; one++) errors[one] = error;
        }
        at = end;
    }
}

// All of the run but a unit that stays out.
void Mover::show_filled(const Job& job, std::unique_lock<std::mutex>& lock) {
    lock.lock();
    const auto faults = viewers_.will_see(job.client, job.first, job.count, job.skip);
    lock.unlock();
    if (!faults) return;
    auto part = [&](u32 first, u32 end) {
        if (first < end) map_pages(faults->fd, units_.address_of(first), u64(end - first) * UNIT, false);
    };
    if (!job.has(job.skip)) return part(job.first, job.end());
    part(job.first, job.skip);
    part(job.skip + 1, job.end());
}

void Mover::filled(const Job& job, const Reading& reading) {
    for (u32 at = 0; at < job.count; at++) {
        const u32 unit = job.first + at;
        if (reading.errors[at].empty()) {
            units_.set_tier(unit, Tier::clean);
            units_.counts().read_bytes += UNIT;
            units_.policy.filled(unit, !job.young);
            units_.local(unit).armed = job.young;
            waiters_.rested(unit);
        } else {
            units_.punch(unit, 1);
            units_.set_tier(unit, Tier::flash);
            fails(unit, reading.errors[at], true);
        }
    }
}

void Mover::provide(const Job& job, std::unique_lock<std::mutex>& lock) {
    const bool marked = viewers_.mark(job.first, job.count);
    lock.unlock();
    const int error = marked ? allocate_file(units_.data(), u64(job.first) * UNIT, u64(job.count) * UNIT) : ENOMEM;
    lock.lock();
    for (u32 unit = job.first; unit < job.end(); unit++) {
        if (error) {
            units_.punch(unit, 1);
            units_.set_tier(unit, Tier::empty);
            fails(unit, no_memory(error), true);
            continue;
        }
        units_.set_tier(unit, Tier::dirty);
        units_.policy.filled(unit, !job.young);
        units_.local(unit).armed = job.young;
        waiters_.rested(unit);
    }
    // Under the mutex, and after they are dirty: what is written there from now on must be found dirty by whoever comes next.
    if (!error && job.want != Want::touch && !job.young && !job.has(job.skip)) viewers_.show(job.client, job.first, job.count);
}

// Onto flash

// While processes without faults may write it: each word as it is at some moment, none torn.
static void copy_changing(char* to, const char* from, u64 bytes) {
    for (u64 at = 0; at < bytes; at += 8) {
        const u64 word = load(*reinterpret_cast<const u64*>(from + at), std::memory_order_relaxed);
        std::memcpy(to + at, &word, 8);
    }
}

void Mover::write(Worker& worker, std::unique_lock<std::mutex>& lock) {
    const Job& job = worker.job;
    const u64 start = now_ns();
    Writing writing;
    writing.copied = viewers_.plain();
    // `same`: as on flash, perhaps, if nobody was seen to write any of it
    for (u32 unit = job.first; unit < job.end(); unit++) {
        writing.copied |= units_.local(unit).plain_pins > 0;
        writing.same &= units_.local(unit).unsure;
    }
    lock.unlock();
    write_out(job, worker.buffer, writing);
    const u64 spent = now_ns() - start;
    lock.lock();
    units_.counts().written_ns += spent;
    if (!writing.error.empty()) units_.failed_ns = now_ns();
    for (u32 at = 0; at < job.count; at++) written(job, at, writing, worker.drops);
}

void Mover::write_out(const Job& job, char* buffer, Writing& writing) {
    writing.from = reinterpret_cast<const char*>(units_.address_of(job.first));  // nobody can write it: it is protected
    if (writing.copied) {                                                        // but by those who need no leave
        copy_changing(buffer, writing.from, job.count * UNIT);
        writing.from = buffer;
    }
    for (u32 at = 0; at < job.count; at++) {
        const u32 unit = job.first + at;
        const TierWord& is = units_.words.at(unit);
        const char* bytes = writing.from + at * UNIT;
        if (writing.same) writing.same = flash_slot(is.word) != NO_SLOT && unit_check(bytes, unit, is.word) == is.check;
        writing.next[at].word = tier_word(Tier::clean, generation_of(is.word) + 1, job.slot + at);
        writing.next[at].check = unit_check(bytes, unit, writing.next[at].word);
    }
    if (writing.same) return;
    try {
        flash_.write(job.slot, job.count, writing.from);
    } catch (const FlashError& trouble) { writing.error = (trouble.code == Code::no_room ? "no_room:" : "flash:") + std::string(trouble.what()); }
}

// What becomes of one unit of the run.
void Mover::written(const Job& job, u32 at, const Writing& writing, std::vector<u32>& drops) {
    const u32 unit = job.first + at;
    Local& local = units_.local(unit);
    TierWord& word = units_.words.at(unit);
    const std::string& error = writing.error;
    const u32 old = flash_slot(word.word);
    const bool drop = std::exchange(local.drop, false), fresh = error.empty() && !writing.same;
    if (!fresh) {  // the slots that were taken for it are not used
        if (job.slot + at != old) slots_.release(job.slot + at);
    } else {
        store(word.check, writing.next[at].check);
        if (old != NO_SLOT && old != job.slot + at) slots_.release(old);
        units_.counts().written_bytes += UNIT;
    }
    const u64 now = fresh ? writing.next[at].word : word.word;
    if (std::exchange(local.stale, false) && local.frozen && error.empty()) {  // once more, with what was written since
        units_.set(unit, with_tier(now, Tier::writing));
        if (drop) kept(unit);
        local.stay = local.unsure = false;
        std::vector<u32> again{unit};
        return begin_runs(again);
    }
    if (local.frozen) moment_.done(unit, {with_tier(now, Tier::flash), word.check}, error);
    units_.set(unit, with_tier(now, after_write(unit, writing, drop)));
    if (units_.tier(unit) == Tier::dropping) return drops.push_back(unit);
    local.stay = false;
    if (drop) kept(unit);
    if (error.empty()) waiters_.rested(unit);
    else fails(unit, error + "; still in dram: " + units_.names_at(unit), false);
}

Tier Mover::after_write(u32 unit, const Writing& writing, bool drop) {
    Local& local = units_.local(unit);
    const bool unseen = std::exchange(local.unseen, false);
    local.unsure = false;                    // after an error: the slot may have some of it
    if (!writing.error.empty()) return Tier::dirty;
    if (local.plain_pins || unseen || (viewers_.plain() && units_.unmovable(unit))) {
        local.unsure = writing.copied || writing.same;  // otherwise it may have changed between the checksum and the disk
        return Tier::dirty;
    }
    return drop && !local.pins && !waiters_.need_memory(unit) ? Tier::dropping : Tier::clean;
}

}  // namespace osf::engine

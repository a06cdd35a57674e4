#include "engine/committer.hpp"

#include <algorithm>

#include "tiers/durable.hpp"

namespace osf::engine {

Committer::Committer(Units& units, Viewers& viewers, Slots& slots, Moment& moment, Mover& mover, Queue& queue, Flash& flash, Disk& disk)
    : units_(units), viewers_(viewers), slots_(slots), moment_(moment), mover_(mover), queue_(queue), flash_(flash),
      journal_(disk, journal_path(units.words.files()[0], units.words.head().id)) {
    if (Journal::exists(disk, journal_path(units.words.files()[0], units.words.head().id))) load_slots();
    else if (!units_.space->removed()) journal_.create();  // the maker was killed before the first commit
}

Committer::~Committer() { forget_journal(); }

void Committer::load_slots() {
    journal_.recover();
    for (u64 unit = 0; unit < units_.count; unit++) {
        const char* page = journal_.page(1 + unit / WORDS_A_PAGE);
        if (!page) continue;
        TierWord is;
        std::memcpy(&is, page + unit % WORDS_A_PAGE * sizeof is, sizeof is);
        if (flash_slot(is.word) < units_.words.head().slots) slots_.committed(flash_slot(is.word));
    }
}

// Of a removed space nothing is durable any more. Who removed it took the journal away; a commit may have made another since.
void Committer::forget_journal() {
    if (!units_.space->removed()) return;
    try {
        journal_.remove();
    } catch (const Error&) {}  // a file stays that nobody reads
}

void Committer::run() {
    std::unique_lock lock(units_.mutex);
    for (;;) {
        moment_.asked.wait(lock, [&] { return stop_ || moment_.wanted() || queue_.any_flushes(); });
        if (stop_) return;
        const std::vector<Request*> waiting = queue_.take_flushes();
        lock.unlock();
        const std::string error = commit();
        lock.lock();
        moment_.over();
        if (!error.empty()) {
            units_.failed_ns = now_ns();
            units_.trouble(error);
        }
        queue_.flushed(waiting, error);
        queue_.dispatch();
    }
}

void Committer::stop() {
    {
        std::lock_guard guard(units_.mutex);
        stop_ = true;
    }
    moment_.asked.notify_all();
    moment_.written.notify_all();
}

// With the mutex.
void Committer::freeze() {
    std::vector<u32> dirty;
    moment_.begin();
    for (u32 unit = 0; unit < units_.count; unit++)
        if (freeze_unit(unit)) dirty.push_back(unit);
    mover_.begin_runs(dirty);
    queue_.wake();
}

bool Committer::freeze_unit(u32 unit) {
    const u64 word = units_.word(unit);
    Local& local = units_.local(unit);
    switch (tier_of(word)) {
        case Tier::empty:
        case Tier::discarding: return false;
        case Tier::dirty:
            units_.set(unit, with_tier(word, Tier::writing));
            if (!viewers_.protect(unit)) {
                units_.set(unit, word);
                moment_.failed("flash:a process could not be kept from writing");
                return false;
            }
            moment_.awaits(unit);
            return true;
        case Tier::writing:
            local.stale = local.unseen || local.plain_pins;
            moment_.awaits(unit);
            return false;
        default:
            if (flash_slot(word) == NO_SLOT) return false;  // zeros on their way
            moment_.has(unit, {with_tier(word, Tier::flash), units_.words.at(unit).check});
            return false;
    }
}

void Committer::Pages::add(u64 number, const char* bytes, u64 size) {
    static const char zeros[PAGE] = {};
    if (size == PAGE && !std::memcmp(bytes, zeros, PAGE)) return;
    list.emplace_back(number, std::vector<char>(PAGE));
    std::memcpy(list.back().second.data(), bytes, size);
}

// While the stripes are locked.
void Committer::copy_control(Pages& pages) const {
    const Space& space = *units_.space;
    const char* base = space.base();
    const HeapMap& heap = space.layout.heap[0];
    for (u64 at = 0; at < heap.bits; at += PAGE) pages.add(CONTROL_PAGES + at / PAGE, base + at);
    for (u64 page = 0; page < space.meta.limit(); page++)
        if (load(space.meta.bits()[page / 64]) >> (page % 64) & 1) pages.add(CONTROL_PAGES + heap.at / PAGE + page, base + heap.at + page * PAGE);
}

void Committer::add_image(Pages& pages) const {
    const Space& space = *units_.space;
    const TiersHead& head = units_.words.head();
    const DurableHead durable{DURABLE_MAGIC, TIERS_VERSION, Layout::hash(), head.id, units_.count, head.slots, head.files,
                              u64(space.base()), space.layout.reserve, space.header().page_size, space.header().mode};
    pages.add(0, reinterpret_cast<const char*>(&durable), sizeof durable);
    for (u64 unit = 0; unit < units_.count; unit += WORDS_A_PAGE) {
        char page[PAGE] = {};
        std::memcpy(page, &moment_.image()[unit], std::min(WORDS_A_PAGE, units_.count - unit) * sizeof(TierWord));
        pages.add(1 + unit / WORDS_A_PAGE, page);
    }
}

std::string Committer::commit() {
    Pages pages;
    Space& space = *units_.space;
    for (u64 stripe = 0; stripe < STRIPES; stripe++) space.index.lock(stripe);
    {
        std::lock_guard guard(units_.mutex);
        freeze();
    }
    copy_control(pages);
    for (u64 stripe = STRIPES; stripe-- > 0;) space.index.unlock(stripe);
    {
        std::unique_lock lock(units_.mutex);
        queue_.dispatch();
        moment_.written.wait(lock, [&] { return stop_ || moment_.complete(); });
        if (stop_) return "flash:the keeper is ending";
    }
    std::string error = moment_.error();
    add_image(pages);
    if (error.empty() && !space.removed()) error = write_journal(pages);
    forget_journal();
    std::lock_guard guard(units_.mutex);
    if (error.empty()) {
        units_.counts().commits++;
        slots_.commit_done();
    } else {
        slots_.commit_failed(journal_.in_doubt());
    }
    return error;
}

std::string Committer::write_journal(const Pages& pages) {
    try {
        flash_.sync();
        std::vector<Journal::Page> list;
        for (auto& [number, bytes] : pages.list) list.push_back({number, bytes.data()});
        journal_.commit(list, true);
        return "";
    } catch (const Error& trouble) { return (trouble.code == Code::no_room ? "no_room:" : "flash:") + std::string(trouble.what()); }
}

}  // namespace osf::engine

// Durable spaces: a commit is a moment of the whole space, written down.
//
// The moment: all stripes of the index are locked, then every dirty unit is write-protected, all under the engine's mutex. A write
// that is not in it waits until the moment is over, and so does whatever would follow from that write: what is committed is a
// state in which everybody could have been killed, and is recovered like one. (Processes without faults cannot be stopped: of
// what they write meanwhile, parts may be in it.) Then the units are written to slots that no commit refers to, synced, and the
// journal is told. Slots of the last commit are given back only after that.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tiers/journal.hpp"
#include "tiers/durable.hpp"
#include "tiers/engine.hpp"
#include "base/trusted.hpp"

namespace osf::tiers {

constexpr u64 WORDS_A_PAGE = PAGE / sizeof(TierWord);

void TierEngine::load_image() {
    if (!durable_) return;
    const std::string path = journal_path(words_.files()[0], words_.head().id);
    journal_ = std::make_unique<Journal>(disk_, path);
    kept_.assign(slots_.size(), 0);
    kept_next_.assign(slots_.size(), 0);
    if (!Journal::exists(disk_, path)) {  // the maker was killed before the first commit
        if (!space_->removed()) journal_->create();
        return;
    }
    journal_->recover();
    for (u64 unit = 0; unit < units_; unit++) {
        const char* page = journal_->page(1 + unit / WORDS_A_PAGE);
        if (!page) continue;
        TierWord is;
        std::memcpy(&is, page + unit % WORDS_A_PAGE * sizeof is, sizeof is);
        if (flash_slot(is.word) < words_.head().slots) kept_[flash_slot(is.word) / 64] |= 1ull << (flash_slot(is.word) % 64);
    }
    slots_ = kept_;
}

// Of a removed space nothing is durable any more. Who removed it took the journal away; a commit may have made another since.
void TierEngine::forget_journal() {
    if (!durable_ || !space_->removed()) return;
    try {
        journal_->remove();
    } catch (const Error&) {}  // a file stays that nobody reads
}

void TierEngine::advance_flush(Request& request) {
    request.next = request.last;
    flushes_.push_back(&request);
    flush_.notify_all();
}

void TierEngine::flush_loop() {
    std::unique_lock lock(mutex_);
    for (;;) {
        flush_.wait(lock, [&] { return stop_ || flush_wanted_ || !flushes_.empty(); });
        if (stop_) return;
        std::vector<Request*> waiting = std::move(flushes_);
        flushes_.clear();
        lock.unlock();
        const std::string error = commit();
        lock.lock();
        flush_wanted_ = false;
        if (!error.empty()) {
            failed_ns_ = now_ns();
            words_.head().counts.errors++;
            std::snprintf(words_.head().trouble, sizeof words_.head().trouble, "%s", error.substr(error.find(':') + 1).c_str());
        }
        for (Request* request : waiting) {
            if (!error.empty()) request->error = error;
            one_done(*request);
        }
        dispatch();
    }
}

// Under the mutex.
void TierEngine::freeze() {
    std::vector<u32> dirty;
    image_.assign(units_, TierWord{});
    frozen_error_.clear();
    for (u32 unit = 0; unit < units_; unit++) {
        const TierWord& at = words_.at(unit);
        const u64 word = load(at.word);
        switch (tier_of(word)) {
            case Tier::empty:
            case Tier::discarding: break;
            case Tier::dirty:
                set(unit, with_tier(word, Tier::writing));
                if (!protect(unit)) {
                    set(unit, word);
                    frozen_error_ = "flash:a process could not be kept from writing";
                    break;
                }
                dirty.push_back(unit);
                [[fallthrough]];
            case Tier::writing:
                if (tier_of(word) == Tier::writing) local_[unit].stale = local_[unit].unseen || local_[unit].plain_pins;
                local_[unit].frozen = true;
                frozen_left_++;
                break;
            default:
                if (flash_slot(word) == NO_SLOT) break;  // zeros on their way
                image_[unit] = {with_tier(word, Tier::flash), at.check};
                kept_next_[flash_slot(word) / 64] |= 1ull << (flash_slot(word) % 64);
        }
    }
    begin_runs(dirty);
}

void TierEngine::frozen_done(u32 unit, const TierWord& is, const std::string& error) {
    local_[unit].frozen = false;
    if (!error.empty()) {
        frozen_error_ = error;
    } else {
        image_[unit] = is;
        kept_next_[flash_slot(is.word) / 64] |= 1ull << (flash_slot(is.word) % 64);
    }
    if (--frozen_left_ == 0) frozen_.notify_all();
}

// These are kept from now on; of those that were kept, what nothing refers to is free. Under the mutex.
void TierEngine::keep_slots(std::vector<u64> kept) {
    std::vector<u64> used = kept;
    for (u32 unit = 0; unit < units_; unit++)
        if (u32 slot = flash_slot(load(words_.at(unit).word)); slot != NO_SLOT) used[slot / 64] |= 1ull << (slot % 64);
    for (size_t at = 0; at < slots_.size(); at++) {
        const u64 gone = (kept_[at] | kept_next_[at]) & ~used[at] & slots_[at];
        slots_[at] &= ~gone;
        free_slots_ += u64(std::popcount(gone));
    }
    kept_ = std::move(kept);
    std::fill(kept_next_.begin(), kept_next_.end(), 0);
}

std::string TierEngine::commit() {
    std::vector<std::pair<u64, std::vector<char>>> pages;
    auto add_page = [&](u64 number, const char* bytes, u64 size) {
        static const char zeros[PAGE] = {};
        if (size == PAGE && !std::memcmp(bytes, zeros, PAGE)) return;
        pages.emplace_back(number, std::vector<char>(PAGE));
        std::memcpy(pages.back().second.data(), bytes, size);
    };
    for (u64 stripe = 0; stripe < STRIPES; stripe++) space_->index.lock(stripe);
    {
        std::lock_guard guard(mutex_);
        freeze();
    }
    const char* base = space_->base();
    const Layout& layout = space_->layout;
    for (u64 at = 0; at < layout.heap[0].bits; at += PAGE) add_page(CONTROL_PAGES + at / PAGE, base + at, PAGE);
    for (u64 page = 0; page < space_->meta.limit(); page++)
        if (load(space_->meta.bits()[page / 64]) >> (page % 64) & 1) add_page(CONTROL_PAGES + layout.heap[0].at / PAGE + page, base + layout.heap[0].at + page * PAGE, PAGE);
    for (u64 stripe = STRIPES; stripe-- > 0;) space_->index.unlock(stripe);
    {
        std::unique_lock lock(mutex_);
        dispatch();
        frozen_.wait(lock, [&] { return stop_ || frozen_left_ == 0; });
        if (stop_) return "flash:the keeper is ending";
    }
    std::string error = frozen_error_;
    const TiersHead& head = words_.head();
    DurableHead durable{DURABLE_MAGIC, TIERS_VERSION, Layout::hash(), head.id, units_, head.slots, head.files, u64(base), layout.reserve, space_->header().page_size, space_->header().mode};
    add_page(0, reinterpret_cast<const char*>(&durable), sizeof durable);
    for (u64 unit = 0; unit < units_; unit += WORDS_A_PAGE) {
        char page[PAGE] = {};
        std::memcpy(page, &image_[unit], std::min(WORDS_A_PAGE, units_ - unit) * sizeof(TierWord));
        add_page(1 + unit / WORDS_A_PAGE, page, PAGE);
    }
    bool done = false;
    if (error.empty() && space_->removed()) done = true;
    else if (error.empty()) {
        try {
            flash_.sync();
            std::vector<Journal::Page> list;
            for (auto& [number, bytes] : pages) list.push_back({number, bytes.data()});
            journal_->commit(list, true);
            done = true;
        } catch (const Error& trouble) { error = (trouble.code == Code::no_room ? "no_room:" : "flash:") + std::string(trouble.what()); }
    }
    forget_journal();
    std::lock_guard guard(mutex_);
    if (done) {
        words_.head().counts.commits++;
        keep_slots(kept_next_);
    } else {
        std::vector<u64> both = kept_;
        if (journal_->in_doubt())
            for (size_t at = 0; at < both.size(); at++) both[at] |= kept_next_[at];
        keep_slots(std::move(both));
    }
    return error;
}

// Again, after the machine or the space's directory went

std::string journal_path(const std::string& path, u64 id) {
    char text[20];
    std::snprintf(text, sizeof text, ".%016llx", static_cast<unsigned long long>(id));
    return path + text;
}

bool durable_at(Disk& disk, const std::string& path) {
    const u64 id = Flash::id_at(disk, path);
    return id && Journal::exists(disk, journal_path(path, id));
}

static std::string journal_at(Disk& disk, const std::string& path) {
    const u64 id = Flash::id_at(disk, path);
    if (!id) throw Error(Code::corrupt, path + " is not the first flash file of a space, or its head is damaged");
    return journal_path(path, id);
}

static DurableHead durable_head(const Journal& journal, const std::string& path) {
    DurableHead head{};
    if (const char* page = journal.page(0)) std::memcpy(&head, page, sizeof head);
    if (!journal.generation()) throw Error(Code::corrupt, "nothing was ever flushed to the durable space at " + path + ": there is nothing to restore; remove its files");
    if (head.magic != DURABLE_MAGIC) throw Error(Code::corrupt, "the journal of " + path + " does not describe a space");
    if (head.version != TIERS_VERSION || head.layout_hash != Layout::hash())
        throw Error(Code::wrong_version, "the durable space at " + path + " was written by another version of Openshelf, with another layout");
    return head;
}

Restored durable_geometry(Disk& disk, const std::string& path) {
    Journal journal(disk, journal_at(disk, path));
    journal.recover();
    DurableHead head = durable_head(journal, path);
    return {head.base, head.reserve, head.units, head.slots};
}


void restore_space(Disk& disk, const std::string& directory, const std::string& name, const std::string& boot_id, const std::string& backing,
                   const std::vector<std::string>& files, u64 capacity) {
    Journal journal(disk, journal_at(disk, files[0]));
    journal.recover();
    const DurableHead durable = durable_head(journal, files[0]);
    if (files.size() != durable.files) throw Error(Code::bad_input, "the durable space at " + files[0] + " has " + std::to_string(durable.files) + " files, got " + std::to_string(files.size()));
    if (capacity + 128 > durable.slots - durable.units)
        throw Error(Code::bad_input, "the durable space at " + files[0] + " was made with less dram: it can have at most " + std::to_string((durable.slots - durable.units - 128) * UNIT) + " bytes");
    const Layout layout(durable.reserve);
    Header header{};
    const char* first = journal.page(CONTROL_PAGES);
    if (!first) throw Error(Code::corrupt, "the journal of " + files[0] + " lacks the header of the space");
    std::memcpy(&header, first, sizeof header);
    if (boot_id.size() >= sizeof header.boot_id || name.size() >= sizeof header.name || backing.size() >= sizeof header.backing)
        throw Error(Code::bad_input, "the name or the path of the backing is too long");
    auto put = [](char* to, u64 room, const std::string& text) { std::memset(to, 0, room), std::memcpy(to, text.data(), text.size()); };
    put(header.boot_id, sizeof header.boot_id, boot_id);
    put(header.name, sizeof header.name, name);
    put(header.backing, sizeof header.backing, backing.empty() ? "data" : backing);
    header.seal = header.removed = 0;
    header.check = header_check(header);
    constexpr u32 mode = 0600;  // a space with a flash tier is one user's
    auto make = [&](const std::string& path, int fd, u64 size) {
        if (fd < 0) fail_os("making " + path, -fd);
        if (ftruncate(fd, off_t(size)) < 0) fail_os("making " + path, errno);
        return fd;
    };
    const int flags = O_RDWR | O_CREAT | O_EXCL;
    auto make_in = [&](const std::string& file, u64 size) { return make(directory + "/" + file, open_in(directory, file, flags, mode), size); };
    int control = make_in("control", layout.control_bytes), members = make_in("members", layout.members_bytes);
    if (!backing.empty()) write_backing(directory, backing);
    close(backing.empty() ? make_in("data", durable.units * UNIT) : make(backing, open_own(backing, flags, mode), durable.units * UNIT));
    auto need = [&](int error) { if (error) fail_os("no memory for the metadata of the space", error); };
    need(allocate_file(control, 0, layout.heap[0].bits));
    need(allocate_file(members, 0, PINS_AT));
    // Locks in arrays may name members of the old life: nobody here may be taken for one of those.
    const u32 life = u32(now_ns() >> 10) ^ u32(getpid()) << 9;
    std::vector<char> table(MEMBER_AT + MEMBERS * sizeof(Member));
    for (u64 slot = 0; slot < MEMBERS; slot++) reinterpret_cast<Member*>(table.data() + MEMBER_AT)[slot].generation = (life + u32(slot) * 7919) & 0xfffff;
    if (pwrite(members, table.data(), table.size(), 0) != ssize_t(table.size())) need(errno);
    close(members);
    journal.each([&](u64 number, const char* bytes) {
        if (number < CONTROL_PAGES) return;
        const u64 at = (number - CONTROL_PAGES) * PAGE;
        if (at + PAGE > layout.control_bytes) throw Error(Code::corrupt, "the journal of " + files[0] + " has a page that is outside the space");
        if (pwrite(control, bytes, PAGE, off_t(at)) != ssize_t(PAGE)) need(errno);
    });
    if (pwrite(control, &header, sizeof header, 0) != ssize_t(sizeof header)) need(errno);
    // Memory for the maps that are derived from what is there, before anybody touches them
    Roots roots;
    if (pread(control, &roots, sizeof roots, off_t(layout.roots_at)) != ssize_t(sizeof roots)) need(EIO);
    for (int h = 0; h < 2; h++) {
        const HeapMap& map = layout.heap[h];
        const u64 limit = roots.pages[h].limit;
        if (limit > map.pages) throw Error(Code::corrupt, "the journal of " + files[0] + " has a heap of an impossible size");
        need(allocate_file(control, map.bits, limit / 8 + 8));
        need(allocate_file(control, map.slabs, limit / CHUNK_PAGES / 8 + 8));
        need(allocate_file(control, map.commits, limit * PAGE / BLOCK / 8 + 8));
        if (h) need(allocate_file(control, map.owners, limit * 4));
        else need(allocate_file(control, map.at, limit * PAGE));
    }
    close(control);
    TierWords::create(directory, {durable.units, capacity, durable.slots, files, true, durable.id}, mode);
    TierWords words(directory, true);
    for (u64 unit = 0; unit < durable.units; unit++)
        if (const char* page = journal.page(1 + unit / WORDS_A_PAGE)) std::memcpy(&words.at(unit), page + unit % WORDS_A_PAGE * sizeof(TierWord), sizeof(TierWord));
}

}  // namespace osf::tiers

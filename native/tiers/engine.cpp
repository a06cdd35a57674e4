// Its beginning and end, processes, and touches. Requests are in tiers/requests.cpp, what is done for them in tiers/moves.cpp.
#include "tiers/engine.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "faults/faults.hpp"
#include "tiers/journal.hpp"
#include "base/trusted.hpp"

namespace osf::tiers {

constexpr u32 AHEAD_LEAST = 8, AHEAD_MOST = 1024, AHEAD_OLD = 64;         // units

static const char* const watch = std::getenv("OPENSHELF_WATCH");

TierEngine::TierEngine(std::shared_ptr<Space> space, Disk& disk, u32 threads)
    : space_(std::move(space)), words_(space_->directory(), true),
      flash_(disk, words_.files(), words_.head().slots, words_.head().id), disk_(disk),
      data_at_(u64(space_->base()) + space_->layout.data_at), units_(words_.head().units), capacity_(words_.head().capacity),
      durable_(words_.head().durable), watches_(!watch || std::string_view(watch) != "off"), local_(units_), policy_(units_, capacity_), slots_(div_up(words_.head().slots, 64)) {
    data_ = open_data(space_->directory(), O_RDWR);
    store(words_.head().keeper, u64(getpid()));
    load_image();
    recover();
    for (u32 at = 0; at < threads; at++) threads_.emplace_back([this] { work(); });
    if (durable_) threads_.emplace_back([this] { flush_loop(); });
}

Descriptor::~Descriptor() {
    if (fd >= 0) ::close(fd);
}

TierEngine::~TierEngine() {
    {
        std::lock_guard guard(mutex_);
        stop_ = true;
    }
    work_.notify_all();
    flush_.notify_all();
    frozen_.notify_all();
    for (auto& thread : threads_) thread.join();
    forget_journal();
    store(words_.head().keeper, 0);
    ::close(data_);
}

// What an earlier keeper left under way. Before anything is done by it: a word that no keeper wrote says nothing of where the bytes are.
void TierEngine::recover() {
    for (u32 unit = 0; unit < units_; unit++)
        if (!is_tier_word(load(words_.at(unit).word), words_.head().slots))
            throw Error(Code::corrupt, space_->directory() + "/tiers is damaged: it does not say where unit " + std::to_string(unit) + " is; remove the space");
    u64 dirty = 0;
    u32 out = 0;  // units before this one are not in memory: pages that they left behind go
    auto punch_out = [&](u32 to) {
        if (out) punch(to - out, out);
        out = 0;
    };
    for (u32 unit = 0; unit < units_; unit++) {
        TierWord& at = words_.at(unit);
        u64 word = load(at.word);
        switch (tier_of(word)) {
            case Tier::filling:
                word = with_tier(word, flash_slot(word) == NO_SLOT ? Tier::empty : Tier::flash);
                break;
            case Tier::writing: word = with_tier(word, Tier::dirty); break;
            case Tier::dropping:
                word = with_tier(word, Tier::flash);
                break;
            case Tier::discarding:
                word = tier_word(Tier::empty, generation_of(word), NO_SLOT);
                break;
            default: break;
        }
        if (in_memory(tier_of(word))) punch_out(unit);
        else out++;
        store(at.word, word);
        if (flash_slot(word) != NO_SLOT) slots_[flash_slot(word) / 64] |= 1ull << (flash_slot(word) % 64);
        if (!in_memory(tier_of(word))) continue;
        resident_++;
        dirty += tier_of(word) == Tier::dirty;
        local_[unit].mapped = ~0ull;
        policy_.filled(unit, true);
    }
    punch_out(u32(units_));
    TiersHead& head = words_.head();
    store(head.vacant, 0);
    free_slots_ = head.slots;
    for (u64& word : slots_) free_slots_ -= u64(std::popcount(word));
    store(head.resident, resident_);
    store(head.dirty, dirty);
    store(head.pinned, 0);
    store(head.evicting, 0);
}

void TierEngine::set(u32 unit, u64 word) {
    TierWord& at = words_.at(unit);
    const Tier was = tier_of(load(at.word)), is = tier_of(word);
    auto here = [](Tier tier) { return tier != Tier::empty && tier != Tier::flash; };
    resident_ += u64(here(is)) - u64(here(was));
    auto changed = [](Tier tier) { return tier == Tier::dirty || tier == Tier::writing; };
    TiersHead& head = words_.head();
    store(head.dirty, head.dirty + u64(changed(is)) - u64(changed(was)));
    store(head.resident, resident_);
    store(at.word, word);
}

// Processes

u32 TierEngine::attach(TierProcess process) {
    std::lock_guard guard(mutex_);
    u32 number = next_client_++;
    Attached& attached = clients_[number];
    attached.bit = 1ull << (number % 64);
    attached.is = std::move(process);
    if (attached.is.again)
        for (Local& local : local_) local.mapped |= attached.bit;
    // Touches that the earlier keeper had heard of, and not answered, are told nobody else: they wake, and touch again.
    if (attached.is.again && attached.is.faults) wake_faults(attached.is.faults->fd, data_at_, units_ * UNIT);
    if (!attached.is.faults && !attached.is.read_only) {  // it writes unseen into what never leaves memory, and holds no pin of it
        for (u32 unit = 0; unit < units_; unit++)
            if (words_.tier(unit) == Tier::clean && unmovable(unit)) {
                set(unit, with_tier(load(words_.at(unit).word), Tier::dirty));
                local_[unit].unsure = true;
            }
    }
    if (!attached.is.faults) plain_++;
    settled_ = false;  // asked again soon
    return number;
}

void TierEngine::detach(u32 number) {
    std::lock_guard guard(mutex_);
    auto found = clients_.find(number);
    if (found == clients_.end()) return;
    Attached& client = found->second;
    while (!client.pins.empty()) unpin_locked(client, client.pins.begin()->first);
    for (Request* request : std::set<Request*>(client.requests)) {
        request->client = NO_SLOT;
        // What it touched, others may wait for too: that comes all the same.
        if (request->id || request->want == Want::ahead) stop_request(*request, "its process ended");
    }
    if (!client.is.faults) plain_--;
    clients_.erase(found);
    for (auto at = leaving_.begin(); at != leaving_.end();)
        if (at->second.clients.erase(number), at->second.clients.empty()) hidden(at->second), at = leaving_.erase(at);
        else ++at;
    settled_ = false;
    dispatch();
}

bool TierEngine::settle() {
    std::lock_guard guard(mutex_);
    for (auto at = leaving_.begin(); at != leaving_.end();) {  // a process that is stopped does not answer: its page tables are emptied for it
        if (now_ns() - at->second.since_ns < 500'000'000) {
            ++at;
            continue;
        }
        for (u32 unit : at->second.units) {
            punch(unit, 1);
            local_[unit].stay = false;
        }
        hidden(at->second);
        at = leaving_.erase(at);
    }
    if (added_) dispatch();
    std::set<u32> attached{space_->members.slot()};
    for (auto& [number, client] : clients_)
        if (!client.is.pins_to_tell) attached.insert(client.is.member);
    bool all = true;
    for (u32 slot = 0; slot < space_->members.slots_high() && all; slot++)
        all = attached.count(slot) || load(space_->members.at(slot).state) != 1 || !space_->members.slot_locked(slot);
    if (all && (!settled_ || room() < low_water())) {  // what could not leave when it should have is tried again
        settled_ = true;
        dispatch();
    }
    settled_ = all;
    return all;
}

// Touches

void TierEngine::touch(u32 client, u64 address, bool write) {
    std::lock_guard guard(mutex_);
    if (address < data_at_ || unit_at(address) >= units_) return;
    touch_unit(client, unit_at(address), write, now_ns());
    dispatch();
}

void TierEngine::touch_unit(u32 number, u32 unit, bool write, u64 since_ns) {
    auto found = clients_.find(number);
    if (found == clients_.end()) return;
    TierCounts& counts = words_.head().counts;
    const bool first = since_ns != 0 && waiters_.find(unit) == waiters_.end();
    const Tier tier = words_.tier(unit);
    counts.faults++;
    if (in_memory(tier) && !(tier == Tier::writing && write)) {
        counts.minor_faults++;
        Local& local = local_[unit];
        if (local.armed) {
            local.armed = false;
            counts.armed_touched++;
            policy_.touched(unit);
        }
        // Neighbours that are here too are shown at once; not those that are watched.
        u32 count = 1;
        if (!write)
            while (count < RUN && unit + count < units_ && words_.tier(unit + count) == tier && !local_[unit + count].armed &&
                   !(local_[unit + count].mapped & found->second.bit)) count++;
        auto expected = [&](u32 at) { return std::ranges::any_of(found->second.streams, [&](const Stream& one) { return one.next == at; }); };
        if (write && tier == Tier::clean && unit >= 2 && words_.tier(unit - 1) == Tier::dirty && words_.tier(unit - 2) == Tier::dirty)
            while (count < RUN && unit + count < units_ && words_.tier(unit + count) == Tier::clean && !local_[unit + count].armed && !expected(unit + count)) {
                set(unit + count, with_tier(load(words_.at(unit + count).word), Tier::dirty));  // who writes in order writes that next
                local_[unit + count++].unsure = true;
            }
        show(number, unit, 1, write);
        if (count > 1) show(number, unit + 1, count - 1, false);
        read_ahead(number, unit, false);
        return;
    }
    waiters_[unit].push_back({nullptr, number, write, since_ns});
    if (tier == Tier::writing && durable_) {  // a writer waits for a unit that is to be written: that one first
        auto job = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job& one) { return unit >= one.first && unit < one.first + one.count; });
        if (job != jobs_.end() && job != jobs_.begin()) std::rotate(jobs_.begin(), job, job + 1);
    }
    if (tier == Tier::flash || tier == Tier::empty) {
        if (first) {
            add(number, 0, Want::touch, unit, unit + 1, SOONEST);
            read_ahead(number, unit, true);
        }
    }
}

// Touches in rising order are followed by reads of what comes next. A stream knows which unit it expects to see touched. While it
// is young, what was read ahead is left out of the page tables, so that every touch is seen, and one that is out of order ends
// it: among random touches of neighbours no stream grows old. Later all is shown at once but for one unit in the middle of what
// was read last: its touch says that the reader goes on.
void TierEngine::read_ahead(u32 number, u32 unit, bool missed) {
    Attached& client = clients_.at(number);
    auto& streams = client.streams;
    auto found = std::find_if(std::begin(streams), std::end(streams), [&](const Stream& one) { return one.next == unit; });
    if (found == std::end(streams)) {
        if (!missed) return;
        for (auto& [order, request] : requests_)  // has the reader come up with what is about to be read for it?
            if (request->want == Want::ahead && request->client == number && unit >= request->next && unit < request->last) return;
        found = std::min_element(std::begin(streams), std::end(streams), [](const Stream& a, const Stream& b) { return a.used < b.used; });
        *found = {unit + 1, unit + 1, unit, ++sequence_, words_.tier(unit) == Tier::empty};
        return;
    }
    Stream& stream = *found;
    stream.used = ++sequence_;
    stream.next = unit + 1;
    if (missed) stream.zeros = words_.tier(unit) == Tier::empty;
    stream.end = std::max(stream.end, unit + 1);
    const u32 seen = unit + 1 - stream.first, most = std::clamp<u32>(u32(capacity_ / (capacity_ < 8192 ? 64 : 16)), AHEAD_LEAST, AHEAD_MOST);
    if (seen < 3) return;
    const bool young = seen < AHEAD_OLD;
    const u32 window = std::clamp(seen, AHEAD_LEAST, most);
    if (young && stream.end - unit > window / 2) return;  // enough is there
    const u32 from = stream.end;
    u32 to = from;
    while (to < units_ && to < unit + 1 + window && !unused(to)) to++;
    if (from < to) {
        Request* request = add(number, 0, Want::ahead, from, to, AHEAD_PRIORITY);
        request->zeros = stream.zeros;
        request->young = young;
        stream.end = to;
        words_.head().counts.ahead_units += to - from;
        if (!young) request->skip = stream.next = from + (to - from) / 2;
    }
}

// Into the page tables of a process, as far as they are in memory: writable where they are dirty. `write`: make them so.
void TierEngine::show(u32 number, u32 first, u32 count, bool write) {
    auto found = clients_.find(number);
    if (found == clients_.end() || !found->second.is.faults) return;
    const u64 bit = found->second.bit;
    const int faults = found->second.is.faults->fd;
    for (u32 unit = first; unit < first + count;) {
        const Tier tier = words_.tier(unit);
        if (!in_memory(tier)) {
            unit++;
            continue;
        }
        if (write && tier == Tier::clean) set(unit, with_tier(load(words_.at(unit).word), Tier::dirty));
        const bool writable = words_.tier(unit) == Tier::dirty;
        bool known = local_[unit].mapped & bit;
        u32 end = unit + 1;
        if (!write)
            while (end < first + count && words_.tier(end) == tier) known |= (local_[end++].mapped & bit) != 0;
        for (u32 at = unit; at < end; at++) local_[at].mapped |= bit;
        const u64 start = address_of(unit), bytes = u64(end - unit) * UNIT;
        map_pages(faults, start, bytes, writable);
        if (writable && known) protect_pages(faults, start, bytes, false);  // where it is mapped already, and protected
        unit = end;
    }
}

void TierEngine::poison(u32 number, u32 unit) {
    auto found = clients_.find(number);
    if (found != clients_.end() && found->second.is.faults) poison_pages(found->second.is.faults->fd, address_of(unit), UNIT);
}

void TierEngine::set_vacant(u32 unit, bool is) {
    local_[unit].vacant = is;
    vacant_ += u64(is) - u64(!is);
    if (is) vacants_.insert(unit);
    else vacants_.erase(unit);
    store(words_.head().vacant, vacant_);
}

void TierEngine::wait_idle() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return requests_.empty() && leaving_.empty() && jobs_.empty() && running_ == 0; });
}

}  // namespace osf::tiers

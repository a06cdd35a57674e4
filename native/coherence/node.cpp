#include "coherence/node.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

namespace osf::coherence {

Node::Node(Loop& loop, std::string name, std::shared_ptr<Space> space, std::shared_ptr<const Roster> roster, u32 self, u32 unit)
    : loop_(loop), name_(std::move(name)), space_(std::move(space)), roster_(std::move(roster)), self_(self),
      base_(space_->header().base - self * space_->layout.reserve),
      segments_(space_->directory(), self, roster_->size(), space_->layout.heap[1].pages * PAGE, unit),
      coherence_(*this, self, roster_->size()), links_(roster_->size()), started_ns_(now_ns()) {
    for (u32 host = 0; host < roster_->size(); host++) links_[host].name = roster_->label(host);
    struct statvfs room {};
    copies_limit_ = statvfs(space_->directory().c_str(), &room) == 0 ? room.f_blocks * room.f_frsize / 4 : 4 * GIB;
    segments_.each_word(self_, [&](u64 at, u64) { registered_.insert(at * segments_.unit_bytes(self_) / GRANULE); });
    for (u32 host = 0; host < roster_->size(); host++)
        if (host != self_)
            segments_.each_word(host, [&](u64 at, u64) { note_copy(host, at); });
    auto keeper = std::make_unique<Process>();
    Faults how;
    keeper->faults = open_faults(how);
    keeper->pid = u64(getpid());
    links_[self_].faults = how != Faults::none;
    processes_.push_back(std::move(keeper));
    if (!abilities().minor) madvise(reinterpret_cast<void*>(address_of(self_, 0)), segment_bytes(), MADV_NOHUGEPAGE);
}

void Node::begin() {
    store(segments_.head().linked, u64(0));
    coherence_.start();
    settle();
    for (u64 granule : registered_) register_granule(*processes_[0], granule);
    mark_held(*processes_[0], self_);      // threads of the keeper write there for other hosts
}

Process::~Process() {
    watch.end();
    if (faults >= 0) close(faults);
}

// Local processes

void Node::watch(Process& process) {
    if (process.faults >= 0 && !process.watch) process.watch = loop_.watch(process.faults, [this, &process] { faults_of(process); });
}

void Node::attach(std::unique_ptr<Process> process) {
    for (u64 granule : registered_)
        if (int error = register_granule(*process, granule)) fail_os("registering the own segment of process " + std::to_string(process->pid), error);
    for (u32 host = 0; host < roster_->size(); host++) {
        mark_held(*process, host);
        bar_stale(*process, host);
    }
    // Touches that an earlier keeper has read and not answered are made again.
    for (u32 host = 0; host < roster_->size() && process->faults >= 0; host++) wake_faults(process->faults, address_of(host, 0), segment_bytes());
    if (settled()) watch(*process);
    processes_.push_back(std::move(process));
}

// The processes that the keeper before this one had, and that live, are all here: what waited for that begins.
void Node::settle() {
    if (settled()) return;
    for (u32 place : segments_.places())
        if (std::none_of(processes_.begin(), processes_.end(), [&](auto& process) { return process->place == place; })) {
            if (place != awaited_ && now_ns() - started_ns_ > START_NS)
                log("a process that the keeper before this one had does not come (place " + std::to_string(awaited_ = place) + ")");
            return;
        }
    started_ns_ = now_ns();
    for (u32 host = 0; host < links_.size(); host++)
        if (host != self_ && now_ns() - segments_.head().leased[host] > LEASE_NS) end_lease(host, ~u64(0));  // nobody uses anything yet
    settled_ = true;
    for (auto& process : processes_) watch(*process);
    for (auto [socket, id, address, bytes, write] : std::exchange(early_, {})) prefetch(socket, id, address, bytes, write);
}

void Node::detach(int socket) {
    auto found = std::find_if(processes_.begin() + 1, processes_.end(), [&](auto& process) { return process->socket == socket; });
    if (found == processes_.end()) return;
    for (Link& link : links_)
        if (link.pieces.early == found->get()) link.pieces.early = nullptr, link.pieces.shown = 0;
    processes_.erase(found);
    std::erase_if(prefetches_, [&](auto& one) { return one.second->socket == socket; });
    std::erase_if(early_, [&](auto& one) { return std::get<0>(one) == socket; });
}

// A process whose memory is gone needs nothing; its socket's end is told to the keeper by the kernel soon after.
void Node::check(Process& process, int error) {
    if (error && error != ESRCH && error != ENOENT && error != ENOMEM)
        log("process " + std::to_string(process.pid) + ": " + std::strerror(error));
}

void Node::faults_of(Process& process) {
    Touch touch;
    for (int count = 0; count < 64 && read_fault(process.faults, touch); count++) {
        try {
            touched(process, touch);
        } catch (const Error& error) {  // no memory for a word, say: the touch is made again, and may find some
            log(error.what());
            wake_faults(process.faults, touch.address & ~(PAGE - 1), PAGE);
        }
    }
}

bool Node::locate(u64 address, Place& place) const {
    if (address < base_ || address >= base_ + roster_->size() * reserve()) return false;
    place.first = u32((address - base_) / reserve());
    u64 inner = (address - base_) % reserve();
    if (inner < space_->layout.data_at) return false;
    u64 unit = segments_.unit_bytes(place.first);
    place.second = unit ? (inner - space_->layout.data_at) / unit : 0;
    return unit == 0 || place.second < segments_.units(place.first);
}

bool Node::meet(int socket, u32 host, u64 incarnation) {
    if (!links_[host].synced || segments_.head().seen[host] != incarnation) return false;
    for (auto& process : processes_) {
        if (process->socket != socket) continue;
        process->met[host] = life(host);
        mark_held(*process, host);  // it may have mapped them anew for that
    }
    return true;
}

// All that is in the file, in a process that is new there.
void Node::mark_held(Process& process, u32 home) {
    if (abilities().minor || process.faults < 0 || !follows(Rule::minor)) return;
    segments_.each_word(home, [&](u64 unit, u64) { check(process, protect_pages(process.faults, address_of(home, unit), segments_.unit_bytes(home), true)); });
}

// A process with views of an earlier life of the host, of which nothing is in the file any more.
void Node::bar_stale(Process& process, u32 host) {
    if (abilities().minor || process.faults < 0 || host == self_) return;
    auto found = process.met.find(host);
    if (found == process.met.end() || found->second == life(host)) return;
    if (int error = bar_pages(process.faults, address_of(host, 0), segment_bytes()); error && error != ESRCH && error != ENOENT)
        lose(process, address_of(host, 0), segment_bytes());
}

// A process that touched the bytes of a host has views of them. If that life is over, other arrays may be at their addresses:
// those views never show them.
bool Node::of_this_life(Process& process, u32 home) {
    if (home == self_) return true;
    return process.met.try_emplace(home, life(home)).first->second == life(home);
}

void Node::touched(Process& process, const Touch& touch) {
    const u64 address = touch.address;
    // What can be shown only writable is asked for to be written.
    const bool write = touch.write || (touch.minor && !abilities().minor);
    Place place;
    if (!locate(address, place)) return log("a fault at an address of no segment");
    auto [home, unit] = place;
    if (!segments_.unit_bytes(home) || (home != self_ && !links_[home].faults)) {
        // Never met: nothing is known of its units. Decided when it comes, or is given up.
        if (coherence_.is_lost(home) || !links_[home].faults) lose_stranger(process, home, address & ~(PAGE - 1));
        else process.strangers.emplace_back(home, address & ~(PAGE - 1));
        return;
    }
    if (!of_this_life(process, home)) return lose(process, address_of(home, unit), segments_.unit_bytes(home));
    Waiting& waiting = process.waiting[place];
    waiting.map |= !touch.mapped;
    waiting.barred |= touch.minor && !abilities().minor;
    touched_page_ = (address - address_of(home, unit)) / PAGE;
    if (home != self_ && !coherence_.may(home, unit, write)) links_[home].misses++;
    coherence_.want(home, unit, write);
}

void Node::resolve(Process& process, u32 home, u64 unit, const Waiting& is, bool write) {
    if (process.faults < 0) return;
    const u64 at = address_of(home, unit), bytes = segments_.unit_bytes(home);
    auto show = [&] { return is.barred ? map_barred(process.faults, at, bytes) : map_pages(process.faults, at, bytes, write); };
    const bool ahead = home == self_ && is.map && !abilities().minor;  // the kernel does not say that a page of it is missing
    if (ahead && !provide(unit)) return lose(process, at, bytes);
    int error = is.map ? show() : 0;
    if (error == EFAULT && home == self_) {  // own pages that nobody has touched yet
        if (!provide(unit)) return lose(process, at, bytes);
        error = show();
    }
    check(process, error);
    if (write) check(process, protect_pages(process.faults, at, bytes, false));
    else if (!is.map) check(process, wake_faults(process.faults, at, bytes));
}

bool Node::provide(u64 unit) {
    try {
        segments_.provide(unit);
        return true;
    } catch (const Error& failed) {
        log(failed.what());
        return false;
    }
}

// Touches there end the process. One that the kernel leaves that to hears of it and does it; until then they wait.
void Node::lose(Process& process, u64 address, u64 bytes) {
    if (abilities().poison) check(process, poison_pages(process.faults, address, bytes));
    else if (process.socket < 0) lose_pages(process.faults, address, bytes);
    else lost(process.socket, address, bytes);
}

// A page of a host whose units are not known. Where the process does it itself, all: a lost part of a unit would keep the rest from being marked.
void Node::lose_stranger(Process& process, u32 home, u64 address) {
    if (abilities().poison) lose(process, address, PAGE);
    else lose(process, address_of(home, 0), segment_bytes());
}

void Node::admit(u32 home, u64 unit, bool write) {
    bool somebody = false;
    for (auto& process : processes_) {
        auto found = process->waiting.find({home, unit});
        if (found == process->waiting.end() || (found->second.barred && !write)) continue;
        const Waiting is = found->second;
        process->waiting.erase(found);
        if (of_this_life(*process, home)) resolve(*process, home, unit, is, write);
        else lose(*process, address_of(home, unit), segments_.unit_bytes(home));
        somebody = true;
    }
    if (somebody) holds_[{home, unit}] = now_ns() + HOLD_NS;
    arrived(home, unit, write, true);
}

void Node::condemn(u32 home, u64 unit) {
    for (auto& process : processes_) {
        auto found = process->waiting.find({home, unit});
        if (found == process->waiting.end()) continue;
        process->waiting.erase(found);
        lose(*process, address_of(home, unit), segments_.unit_bytes(home));
    }
    arrived(home, unit, true, false);
}

void Node::register_own(u64 unit) {
    u64 granule = unit * segments_.unit_bytes(self_) / GRANULE;
    if (!registered_.insert(granule).second) return;
    for (auto& process : processes_) check(*process, register_granule(*process, granule));
}

int Node::register_granule(Process& process, u64 granule) {
    u64 at = granule * GRANULE, bytes = std::min(GRANULE, segment_bytes() - at);
    return process.faults < 0 ? 0 : register_faults(process.faults, address_of(self_, 0) + at, bytes);
}

void Node::protect(u32 home, u64 unit) {
    if (home == self_) register_own(unit);
    if (!follows(Rule::protect)) return;
    for (auto& process : processes_)
        if (process->faults >= 0 && (home == self_ || process->socket >= 0))
            check(*process, protect_pages(process->faults, address_of(home, unit), segments_.unit_bytes(home), true));
}

void Node::mark(u32 home, u64 unit) {
    if (!abilities().minor && follows(Rule::minor)) protect(home, unit);
}

// The one process that waits for a unit of another host, if it is one and its views are of this life.
Process* Node::only_waiter(u32 home, u64 unit) {
    Process* one = nullptr;
    for (auto& process : processes_) {
        if (!process->waiting.count({home, unit})) continue;
        if (one || !of_this_life(*process, home)) return nullptr;
        one = process.get();
    }
    return one;
}

void Node::restore(u64 unit) {
    mark(self_, unit);
    segments_.restore(unit);
}

void Node::fill(u32 home, u64 unit, Body body) {
    mark(home, unit);
    if (home == self_ && !abilities().minor) segments_.keep_returned(unit, body.data());
    // Where one process waits for a copy, the bytes go straight into its view, not yet writable: the word comes first.
    if (home != self_) {
        const u64 bytes = segments_.unit_bytes(home);
        Pieces& pieces = links_[home].pieces;
        Process* one = pieces.shown == bytes ? pieces.early : only_waiter(home, unit);
        if (one && (pieces.shown == bytes || copy_pages(one->faults, address_of(home, unit), body.data(), bytes, false) == 0)) {
            if (auto found = one->waiting.find({home, unit}); found != one->waiting.end()) found->second = {};
            note_copy(home, unit);
            return segments_.filled(home);
        }
    }
    try {
        segments_.fill(home, unit, body.data());
    } catch (const Error& full) {
        log(std::string(full.what()) + "; evicting copies");
        copies_limit_ = segments_.copied_bytes() / 2;
        make_room();
        try {
            segments_.fill(home, unit, body.data());
        } catch (const Error&) {
            segments_.punch(home, unit);  // a part of it may be seen
            throw;
        }
    }
    if (home != self_) note_copy(home, unit);
}

bool Node::take_slot(u32 home, u64 unit, u32& slot) {
    try {
        if (now_ns() <= suspend_until_ns_ && segments_.take_slot(home, unit, slot)) return true;
    } catch (const Error& full) {
        log(full.what());
    }
    discarded_++;  // when a lease ends; else it is tried again when a slot is freed
    return false;
}

void Node::note_copy(u32 home, u64 unit) {
    if (in_copies_.insert({home, unit}).second) copies_.push_back({home, unit});
}

void Node::make_room() {
    for (size_t tries = copies_.size(); tries && segments_.copied_bytes() > copies_limit_; tries--) {
        auto [home, unit] = copies_.front();
        copies_.pop_front();
        in_copies_.erase({home, unit});
        if (!coherence_.evict(home, unit)) note_copy(home, unit);
    }
}

// Prefetch: many units under way at once, and mapped for the one who asked when they come

constexpr u64 FLYING = 64;

void Node::prefetch(int socket, u64 id, u64 address, u64 bytes, bool write) {
    if (!settled()) return void(early_.emplace_back(socket, id, address, bytes, write));
    Place first, last;
    bool good = bytes && locate(address, first) && locate(address + bytes - 1, last) && first.first == last.first;
    if (!good || !segments_.unit_bytes(first.first)) return prefetched(socket, id, good && !coherence_.is_lost(first.first));
    auto one = std::make_shared<Prefetch>(Prefetch{socket, id, first.first, first.second, last.second + 1, 0, write});
    advance(one);
}

void Node::advance(const std::shared_ptr<Prefetch>& prefetch) {
    while (prefetch->good && prefetch->flying < FLYING && prefetch->next < prefetch->end) {
        u64 unit = prefetch->next++;
        prefetch->flying++;
        prefetches_.emplace(Place{prefetch->home, unit}, prefetch);
        coherence_.want(prefetch->home, unit, prefetch->write);  // may arrive, and advance, at once
    }
}

void Node::arrived(u32 home, u64 unit, bool write, bool good) {
    auto [begin, end] = prefetches_.equal_range({home, unit});
    std::vector<std::shared_ptr<Prefetch>> done;
    for (auto at = begin; at != end;) {
        if (good && at->second->write && !write) at++;
        else done.push_back(at->second), at = prefetches_.erase(at);
    }
    for (auto& prefetch : done) {
        prefetch->flying--;
        prefetch->good &= good;
        for (auto& process : processes_)
            if (good && process->socket == prefetch->socket && of_this_life(*process, home)) resolve(*process, home, unit, {true}, write);
        if (!prefetch->flying && (prefetch->next == prefetch->end || !prefetch->good)) prefetched(prefetch->socket, prefetch->id, prefetch->good);
        else advance(prefetch);
    }
}

std::string Node::owners(u64 address, u64 bytes) const {
    Place first, last;
    std::string text;
    if (!bytes || !locate(address, first) || !locate(address + bytes - 1, last) || first.first != self_ || last.first != self_) return text;
    for (u64 unit = first.second; unit <= last.second; unit++) {
        u64 word = segments_.word(self_, unit);
        text.append(reinterpret_cast<const char*>(&word), sizeof word);
    }
    return text;
}

}  // namespace osf::coherence

#include <algorithm>
#include <sys/socket.h>

#include "rpc/serve.hpp"

namespace osf::rpc {

constexpr u64 MS = 1'000'000;
constexpr u64 TICK_MS = 250;
constexpr size_t EARLY_MOST = 4096;

Proxy::Proxy(const std::shared_ptr<Space>& home, const Uuid& of, bool read_only)
    : space(Space::proxy(home, of, read_only)), uuid(of), inherited_(space->adopted()) {
    if (!inherited_) return;
    for (const Held& held : space->pinned()) left_[held.pin] = held.record;
    for (u32 lane = 0; lane < LANES; lane++) {
        const Told& told = space->members.told(space->members.slot(), lane);
        const auto found = told.pin ? left_.find(told.pin - 1) : left_.end();
        if (found == left_.end() || found->second != told.record || std::memcmp(told.uuid, uuid.data(), uuid.size())) continue;
        pins_.try_emplace(told.number, Entry{{told.pin - 1, told.record}});
        left_.erase(found);
    }
}

Proxy::Use::Use(Proxy& proxy, u64 number) : proxy_(proxy), number_(number) {
    std::lock_guard guard(proxy.mutex_);
    auto found = proxy.pins_.find(number);
    if (found == proxy.pins_.end() || found->second.released)
        throw Error(Code::host_lost, "it holds no array for this process by the number " + std::to_string(number) + " any more; find the array again");
    found->second.users++;
    held_ = found->second.held;
}

Proxy::Use::~Use() {
    {
        std::lock_guard guard(proxy_.mutex_);
        auto found = proxy_.pins_.find(number_);
        if (--found->second.users || !found->second.released) return;
        proxy_.pins_.erase(found);
    }
    proxy_.space->release(held_);
}

void Proxy::keep(u64 number, const Held& held) {
    {
        std::lock_guard guard(mutex_);
        if (!early_.erase(number) && pins_.try_emplace(number, Entry{held}).second) {
            space->hand_out(held);
            return;
        }
    }
    space->release(held);
    throw Error(Code::bad_input, "the process holds another array, or wants none, by the number " + std::to_string(number));
}

void Proxy::release(u64 number) noexcept {
    Held held;
    {
        std::lock_guard guard(mutex_);
        auto found = pins_.find(number);
        if (found == pins_.end()) {
            if (early_.size() > EARLY_MOST) early_.clear();
            early_.insert(number);
            return;
        }
        if (found->second.users) {
            found->second.released = true;
            return;
        }
        held = found->second.held;
        pins_.erase(found);
    }
    space->release(held);
}

// What the process does not know of it never got the answer to.
void Proxy::claim(const std::vector<std::pair<u64, Held>>& wanted) {
    std::vector<Held> rest;
    {
        std::lock_guard guard(mutex_);
        if (!inherited_) return;
        for (const auto& [number, held] : wanted) {
            auto known = pins_.find(number);  // received just before
            if (known != pins_.end() && known->second.held.pin == held.pin && known->second.held.record == held.record) continue;
            auto found = left_.find(held.pin);
            if (found == left_.end()) {  // received by another number once, let go of, and taken again: the note of that is old
                auto old = std::ranges::find_if(pins_, [&](const auto& one) { return one.second.held.pin == held.pin; });
                if (old != pins_.end()) {
                    found = left_.emplace(held.pin, old->second.held.record).first;
                    pins_.erase(old);
                }
            }
            if (found == left_.end() || found->second != held.record)
                throw Error(Code::bad_input, "the process claims a pin that it did not have");
            if (!pins_.try_emplace(number, Entry{held}).second) throw Error(Code::bad_input, "the process claims two pins by one number");
            left_.erase(found);
            if (early_.erase(number)) {  // let go of before it could say what it holds
                pins_.erase(number);
                rest.push_back(held);
            }
        }
        for (const auto& [pin, record] : left_) rest.push_back({pin, record});
        left_.clear();
        inherited_ = false;
    }
    for (const Held& held : rest) space->release(held);
}

// Each pin is taken as `at` takes one: a copied word would be seen too late by somebody who is just looking at all pins.
std::vector<u32> Proxy::inherit(Proxy& from, const std::vector<u64>& numbers) {
    if (&from == this) throw Error(Code::bad_input, "a process cannot inherit from itself");
    std::scoped_lock both(mutex_, from.mutex_);  // nothing is let go of meanwhile
    std::vector<u32> indices;
    for (u64 number : numbers) {
        auto found = from.pins_.find(number);
        if (found == from.pins_.end() || found->second.released)
            throw Error(Code::bad_input, "the process does not hold what its child is to inherit: number " + std::to_string(number));
        const Held held = space->at(u64(from.space->bytes(found->second.held)));
        if (held.record != found->second.held.record || !pins_.try_emplace(number, Entry{held}).second) {
            space->release(held);
            throw Error(Code::bad_input, "a child cannot inherit the number " + std::to_string(number));
        }
        space->hand_out(held);
        indices.push_back(held.pin);
    }
    return indices;
}

Proxies::Proxies(Served served)
    : served_(std::move(served)), clear_at_(now_ns() + RETURN_MS * MS), ticker_([this] { tick(); }) {}

Proxies::~Proxies() {
    {
        std::lock_guard guard(mutex_);
        stop_ = true;
    }
    changed_.notify_all();
    ticker_.join();
    for (auto& [uuid, place] : places_) place.proxy->space->abandon();
}

void Proxies::shut() {
    std::lock_guard guard(mutex_);
    shut_ = true;
    for (Line* line : lines_) ::shutdown(line->wire.fd(), SHUT_RDWR);
}

void Proxies::cut() {
    std::lock_guard guard(mutex_);
    for (Line* line : lines_)
        if (!served_.admits(line->host, line->term)) ::shutdown(line->wire.fd(), SHUT_RDWR);
}

bool Proxies::fenced() {
    std::lock_guard guard(mutex_);
    return std::all_of(lines_.begin(), lines_.end(), [&](const Line* line) { return served_.admits(line->host, line->term); });
}

u32 Proxies::count() {
    std::lock_guard guard(mutex_);
    return u32(places_.size());
}

std::shared_ptr<Proxy> Proxies::enter(const Uuid& uuid, bool read_only, Line& line) {
    std::unique_lock lock(mutex_);
    if (shut_) throw Error(Code::unknown_name, "the space is just being removed on this host");
    if (!served_.admits(line.host, line.term)) throw Error(Code::host_lost, "the caller's host was given up");  // cut() may not see this one
    auto found = places_.find(uuid);
    while (found != places_.end() && found->second.leaving) {
        changed_.wait(lock);
        found = places_.find(uuid);
    }
    if (found == places_.end()) {
        auto proxy = std::make_shared<Proxy>(served_.space, uuid, read_only);
        found = places_.emplace(uuid, Place{proxy, 0, 0, read_only, false}).first;
    }
    Place& place = found->second;
    if (place.read_only != read_only) throw Error(Code::refused, "the process has the space open " + std::string(read_only ? "for writing" : "read-only") + " already");
    if (!place.connections++) place.until = 0;
    lines_.insert(&line);
    changed_.notify_all();
    return place.proxy;
}

std::shared_ptr<Proxy> Proxies::of(const Uuid& uuid) {
    std::lock_guard guard(mutex_);
    auto found = places_.find(uuid);
    if (found == places_.end() || found->second.leaving) throw Error(Code::bad_input, "the process is not known here");
    return found->second.proxy;
}

void Proxies::leave(const Uuid& uuid, Line& line, bool bye) {
    std::unique_lock lock(mutex_);
    lines_.erase(&line);
    auto found = places_.find(uuid);
    Place& place = found->second;
    if (bye) place.until = 1;
    if (--place.connections) return;
    if (place.until == 1) return end(lock, found);
    place.until = now_ns() + GRACE_MS * MS;
    changed_.notify_all();
}

// Outside the lock: it frees what the process held. Who comes back meanwhile waits.
void Proxies::end(std::unique_lock<std::mutex>& lock, std::map<Uuid, Place>::iterator place) {
    place->second.leaving = true;
    std::shared_ptr<Proxy> proxy = std::move(place->second.proxy);
    lock.unlock();
    proxy.reset();
    lock.lock();
    places_.erase(place);
    changed_.notify_all();
}

void Proxies::tick() {
    std::unique_lock lock(mutex_);
    for (u64 planned = ~0ull; !stop_;) {
        const u64 now = now_ns();
        if (now > planned && now - planned > PAUSED_MS * MS) {  // this process was stopped: who could not be heard is not to blame
            if (clear_at_) clear_at_ += now - planned;
            for (auto& [uuid, place] : places_)
                if (place.until > 1) place.until += now - planned;
        }
        planned = ~0ull;
        for (Line* line : lines_) {
            u64 since = line->busy_since;
            if (!since || now - since < TICK_MS * MS) continue;
            // Who sends right now needs no sign of life from us.
            std::unique_lock sending(line->sending, std::try_to_lock);
            if (!sending || !line->busy_since) continue;
            try {
                if (!line->wire.queued()) line->wire.queue(frame_alive, 0);
                line->wire.flush();
            } catch (const Error&) {}  // its own thread will see
        }
        if (clear_at_ && now >= clear_at_) {
            clear_at_ = 0;
            lock.unlock();
            try {
                served_.space->clear_unclaimed();
            } catch (const Error&) {}  // the space was removed
            lock.lock();
            continue;
        }
        u64 next = clear_at_ ? clear_at_ : ~0ull;
        auto ended = places_.end();
        for (auto place = places_.begin(); place != places_.end(); ++place) {
            if (place->second.leaving) continue;
            if (place->second.connections) {
                // A process that lets go of things and then is quiet would keep them: here nobody waits for a larger batch.
                try {
                    place->second.proxy->space->tidy();
                } catch (const Error&) {}
                continue;
            }
            if (now >= place->second.until) ended = place;
            else next = std::min(next, place->second.until);
        }
        if (ended != places_.end()) {
            end(lock, ended);
            continue;
        }
        if (!lines_.empty()) next = std::min(next, now + TICK_MS * MS);
        if (next == ~0ull) changed_.wait(lock);
        else changed_.wait_for(lock, std::chrono::nanoseconds((planned = next) - now));
    }
}

}  // namespace osf::rpc

// Requests, from their coming to their answer. What is begun for them is in engine/advance.cpp.
#include "engine/queue.hpp"

#include <algorithm>

namespace osf::engine {

Queue::Queue(Units& units, Viewers& viewers, Waiters& waiters, Mover& mover, Moment& moment)
    : units_(units), viewers_(viewers), waiters_(waiters), mover_(mover), moment_(moment) {}

Request* Queue::add(u32 client, u64 id, Want want, u32 first, u32 last, int priority) {
    auto request = std::make_unique<Request>();
    request->sequence = ++sequence_;
    request->id = id;
    request->client = client;
    request->want = want;
    request->first = request->next = first;
    request->last = last;
    request->left = last - first;
    request->priority = priority;
    Request* result = request.get();
    if (auto found = asked_.find(client); found != asked_.end()) found->second.insert(result);
    requests_.emplace(std::pair(-priority, request->sequence), std::move(request));
    added_ = true;
    return result;
}

void Queue::detach(u32 client) {
    auto found = asked_.find(client);
    if (found == asked_.end()) return;
    for (Request* request : found->second) {
        request->client = NO_CLIENT;
        // What it touched, others may wait for too: that comes all the same.
        if (request->id || request->want == Want::ahead) stop(*request, "its process ended");
    }
    asked_.erase(found);
}

void Queue::ask(u32 client, u64 id, Want want, u64 address, u64 bytes, int priority) {
    Viewer& viewer = viewers_.at(client);
    auto refuse = [&](const std::string& why) { viewer.is.answer(id, false, why); };
    if (want == Want::pin && viewer.is.pins_to_tell) viewer.is.pins_to_tell--;
    if (want == Want::flush) {
        if (!units_.durable) return refuse("not_permitted:the space is not durable: there is nothing that flush() would promise; make it with durable=True");
        add(client, id, want, 0, 1, priority);
        return dispatch();
    }
    const u64 from = units_.data_at;
    if (address < from || address + bytes > from + units_.count * UNIT || address + bytes < address)
        return refuse("bad_address:the range is outside the data of the space");
    // What is forgotten must be whole units; everything else takes the units that the bytes are in.
    const bool inner = want == Want::discard;
    const u32 first = u32(inner ? div_up(address - from, UNIT) : (address - from) / UNIT);
    const u32 last = u32(inner ? (address + bytes - from) / UNIT : div_up(address + bytes - from, UNIT));
    if (first >= last || !bytes) return viewer.is.answer(id, true, "");
    ask_range(viewer, client, id, want, first, last, priority);
}

void Queue::ask_range(Viewer& viewer, u32 client, u64 id, Want want, u32 first, u32 last, int priority) {
    std::string why;
    if (want == Want::prefetch) why = too_much(last - first);
    if (want == Want::pin) why = pin(viewer, id, first, last);
    if (!why.empty()) return viewer.is.answer(id, false, why);
    if (want == Want::demote)  // what was only guessed does not come back behind it
        for (auto& [order, request] : requests_)
            if (request->want == Want::ahead && request->first < last && first < request->last) stop(*request, "");
    add(client, id, want, first, last, priority);
    dispatch();
}

std::string Queue::pin(Viewer& viewer, u64 id, u32 first, u32 last) {
    u64 fresh = 0;
    auto fits = [&] {
        fresh = 0;
        for (u32 unit = first; unit < last; unit++) fresh += units_.local(unit).pins == 0;
        return units_.pinned() + fresh <= units_.most_resident();
    };
    if (!fits() && !(viewers_.drop_dead_pins() && fits()))
        return "no_room:" + std::to_string(fresh * UNIT) + " more bytes cannot be pinned: " + std::to_string(units_.pinned() * UNIT) + " of the " +
               std::to_string(units_.capacity * UNIT) + " bytes of dram are, and some must stay free; release pins, or give the space more dram";
    viewers_.pin(viewer, id, first, last);
    return "";
}

std::string Queue::too_much(u64 units) {
    const u64 most = units_.most_resident();
    auto fits = [&] { return units <= most - std::min(most, units_.pinned()); };
    if (fits() || (viewers_.drop_dead_pins() && fits())) return "";
    return "no_room:" + std::to_string(units * UNIT) + " bytes are to be in memory at once, but of the " + std::to_string(units_.capacity * UNIT) +
           " bytes of dram " + std::to_string((units_.capacity - most + units_.pinned()) * UNIT) +
           " are pinned or kept free; ask for parts, or give the space more dram";
}

void Queue::ask_many(u32 client, u64 id, const std::vector<UnitRange>& ranges, int priority) {
    Viewer& viewer = viewers_.at(client);
    u64 units = 0;
    for (const UnitRange& range : ranges) {
        if (range.first >= range.last || range.last > units_.count) return viewer.is.answer(id, false, "bad_address:a range is outside the data of the space");
        units += range.last - range.first;
    }
    if (ranges.empty()) return viewer.is.answer(id, true, "");
    std::vector<UnitRange> sorted = ranges;  // rows of a table may be many in one unit
    std::ranges::sort(sorted, {}, &UnitRange::first);
    u64 different = 0, end = 0;
    for (const UnitRange& range : sorted) {
        different += range.last - std::min<u64>(range.last, std::max<u64>(range.first, end));
        end = std::max<u64>(end, range.last);
    }
    if (const std::string why = too_much(different); !why.empty()) return viewer.is.answer(id, false, why);
    Request& request = *add(client, id, Want::prefetch, ranges[0].first, ranges[0].last, priority);
    request.more.assign(ranges.begin() + 1, ranges.end());
    request.left = u32(units);
    dispatch();
}

void Queue::reorder(u32 client, u64 id, int priority) {
    auto found = asked_.find(client);
    if (found == asked_.end()) return;
    for (Request* request : found->second)
        if (request->id == id && !request->begun && request->want != Want::touch && request->want != Want::ahead) {
            auto node = requests_.extract({-request->priority, request->sequence});
            request->priority = priority;
            node.key().first = -priority;
            requests_.insert(std::move(node));
            break;
        }
    dispatch();
}

void Queue::cancel(u32 client, u64 id) {
    auto found = asked_.find(client);
    if (found == asked_.end()) return;
    for (Request* request : found->second)
        if (id && request->id == id) {
            if (request->want == Want::pin) {
                viewers_.unpin(viewers_.at(client), id);
                request->error = "cancelled:";  // though all of it is under way: it is not pinned
            }
            stop(*request, "cancelled:");
            break;
        }
    dispatch();
}

// What was not begun is not; what is under way comes to its end.
void Queue::stop(Request& request, const std::string& why) {
    const bool any = request.next < request.last || !request.more.empty();
    request.left -= request.last - request.next;
    for (const UnitRange& range : request.more) request.left -= range.last - range.first;
    request.more.clear();
    if (any && request.error.empty()) request.error = why;
    request.next = request.last;
}

void Queue::one_done(Request& request) {
    if (--request.left == 0 && request.begun) finish(request);
}

void Queue::finish(Request& request) {
    auto owner = begun_.extract(&request);
    auto found = asked_.find(request.client);
    if (found == asked_.end()) return;
    found->second.erase(&request);
    if (request.id == 0) return;  // nobody's but the engine's
    Viewer& viewer = viewers_.at(request.client);
    if (!request.error.empty() && request.want == Want::pin) viewers_.unpin(viewer, request.id);
    viewer.is.answer(request.id, request.error.empty(), request.error);
}

void Queue::flushed(const std::vector<Request*>& flushes, const std::string& error) {
    for (Request* request : flushes) {
        if (!error.empty()) request->error = error;
        one_done(*request);
    }
}

}  // namespace osf::engine

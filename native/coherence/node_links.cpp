// Node: the connections to other hosts' keepers, and time.
#include <algorithm>
#include <random>
#include <utility>

#include "coherence/node.hpp"

namespace osf::coherence {

void Node::adopt(u32 host, u64 term, std::unique_ptr<Wire> wire) {
    if (!roster_->admits(host, term)) return;  // not any more
    if (links_[host].wire) drop_link(host, "it connected again");
    Link& link = links_[host];
    link.wire = std::move(wire);
    link.term = term;
    link.left.clear();
    connected_ |= 1u << host;
    link.adopted_ns = now_ns();
    store(segments_.head().heard[host], link.adopted_ns);
    const UnitsHead& head = segments_.head();
    Sync sync{head.incarnation, head.given[host], head.unit[self_], links_[self_].faults};
    link.writing = true;
    link.watch = loop_.watch(link.wire->fd(), [this, host] { frames_of(host); });
    link.watch.output(true);
    // Its answer, and with it the lease, comes before anything that is asked for on this connection.
    ping(host, link.adopted_ns);
    if (!(broken_ & 1u << host)) link.wire->queue(frame_sync, 0, {reinterpret_cast<const char*>(&sync), sizeof sync});
}

void Node::ping(u32 host, u64 now) {
    Link& link = links_[host];
    link.pinged_ns = now;
    try {
        link.wire->queue(frame_ping, now);
        want_output(link, !link.wire->flush());
    } catch (const Error&) {
        broken_ |= 1u << host;
    }
}

void Node::want_output(Link& link, bool want) {
    if (link.writing != want) link.watch.output(want);
    link.writing = want;
}

void Node::drop_link(u32 host, const std::string& why) {
    Link& link = links_[host];
    broken_ &= ~(1u << host);
    if (!link.wire) return;
    log("host " + link.name + " disconnected: " + (link.left.empty() ? why : link.left));
    link.watch.end();
    link.wire.reset();
    connected_ &= ~(1u << host);
    forget_pieces(host);
    link.first.clear();
    link.synced = false;
    store(segments_.head().linked, segments_.head().linked & ~(u64(1) << host));
    for (auto at = waiting_.begin(); at != waiting_.end();) {
        std::erase_if(at->second, [&](const Held& held) { return held.from == host; });
        at = at->second.empty() ? waiting_.erase(at) : std::next(at);
    }
    coherence_.disconnected(host);
}

void Node::synced(u32 host, const Sync& sync) {
    Link& link = links_[host];
    UnitsHead& head = segments_.head();
    if (sync.unit < UNIT_MIN || sync.unit > UNIT_MAX || (sync.unit & (sync.unit - 1)) || link.synced)
        throw Error(Code::refused, "host " + link.name + " sent an impossible Sync");
    if (head.seen[host] && head.seen[host] != sync.incarnation) {
        log("host " + link.name + " was restarted: what it had is gone");
        coherence_.lost(host);
        coherence_.purge(host);
    }
    if (head.taken[host] != sync.session) coherence_.purge(host);  // it declared this host lost meanwhile
    if (head.unit[host] && head.unit[host] != sync.unit) coherence_.purge(host);
    store(head.unit[host], sync.unit);
    store(head.taken[host], sync.session);
    store(head.seen[host], sync.incarnation);
    link.synced = true;
    store(head.linked, head.linked | u64(1) << host);
    link.faults = sync.faults;
    for (auto& process : processes_) bar_stale(*process, host);
    log("host " + link.name + " is connected");
    coherence_.connected(host);
    for (auto& process : processes_) {
        for (auto [home, address] : process->strangers)
            if (home == host) wake_faults(process->faults, address, PAGE);
        std::erase_if(process->strangers, [&](auto& stranger) { return stranger.first == host; });
    }
}

void Node::control(u32 host, const FrameHead& head, const std::string& bytes) {
    Link& link = links_[host];
    if (head.type == frame_ping) {
        link.wire->queue(frame_pong, head.id);
    } else if (head.type == frame_pong) {
        store(segments_.head().leased[host], head.id);
        link.suspended = false;
        u64 took = now_ns() - head.id;
        link.round_trip_ns = link.round_trip_ns ? std::min(link.round_trip_ns + link.round_trip_ns / 16, took) : took;
    } else if (head.type == frame_leave && bytes.size() == sizeof(Leaving)) {
        link.left = bytes[0] == leaving_ended ? "its keeper ended" : bytes[0] == leaving_handed_over ? "its keeper handed over to another" : "it closed the space";
    } else if (head.type == frame_sync && bytes.size() == sizeof(Sync)) {
        Sync sync;
        std::memcpy(&sync, bytes.data(), sizeof sync);
        synced(host, sync);
    } else {
        throw Error(Code::refused, "frame of type " + std::to_string(head.type));
    }
}

void Node::take_piece(u32 host, const FrameHead& head) {
    Link& link = links_[host];
    Pieces& pieces = link.pieces;
    const Notice message = Notice(flags_of(head.id));
    const u64 unit = unit_of(head.id), at = page_of(head.id) * PAGE, bytes = head.bytes;
    const u32 home = message == m_back ? self_ : host;
    if (!link.synced || (message != m_back && message != m_datas && message != m_datam) || !bytes || bytes % PAGE || bytes > PIECE ||
        at + bytes > segments_.unit_bytes(home) || unit >= segments_.units(home) || (pieces.bytes && (pieces.unit != unit || pieces.message != message)))
        throw Error(Code::refused, "a piece of no message");
    for (u64 page = at / PAGE; page < (at + bytes) / PAGE; page++) {
        if (pieces.pages[page]) throw Error(Code::refused, "a piece that came before");
        pieces.pages.set(page);
    }
    pieces.message = message;
    pieces.unit = unit;
    pieces.bytes += bytes;
    pieces.body.resize(UNIT_MAX);
    link.wire->open(std::span(pieces.body).subspan(at, bytes));
    if (message == m_datas && follows(Rule::order)) show_early(link, home, at, bytes);
    if (pieces.early) faults_of(*pieces.early);  // it goes on: what it touches next is asked for while the rest of this unit comes
}

// A copy that this host asked for to read: the home counts it as here from the moment that it was sent, and its INV would come behind
// it. So what has come of it may be read at once, before the rest and before the word; it goes if the rest does not come.
void Node::show_early(Link& link, u32 home, u64 at, u64 bytes) {
    Pieces& pieces = link.pieces;
    if (segments_.word(home, pieces.unit) != invalid || waiting_.count({home, pieces.unit}) || !abilities().minor) return;
    if (pieces.bytes == bytes) pieces.early = only_waiter(home, pieces.unit);
    if (!pieces.early || copy_pages(pieces.early->faults, address_of(home, pieces.unit) + at, pieces.body.data() + at, bytes, true)) return;
    pieces.shown += bytes;
}

void Node::forget_pieces(u32 host) {
    Pieces& pieces = links_[host].pieces;
    if (pieces.bytes && pieces.message == m_datas && segments_.word(host, pieces.unit) == invalid) segments_.punch(host, pieces.unit);
    pieces.forget();
}

void Node::frames_of(u32 host) {
    Link& link = links_[host];
    if (!link.wire) return;
    try {
        want_output(link, !link.wire->flush());
        for (int rounds = 0; rounds < 16 && link.wire->fill(); rounds++) {
            store(segments_.head().heard[host], now_ns());
            while (const FrameHead* peeked = link.wire->peek()) {
                const FrameHead head = *peeked;
                link.bytes_in += head.bytes;
                if (head.type == frame_piece) {
                    take_piece(host, head);
                } else if (head.type >= frame_message && link.synced) {
                    link.wire->open({});
                    const Notice message = Notice(head.type - frame_message);
                    const u64 unit = unit_of(head.id);
                    if (link.pieces.bytes && (link.pieces.message != message || link.pieces.unit != unit))
                        throw Error(Code::refused, "pieces of another message");
                    if (message == m_gets) link.first[unit] = page_of(head.id);
                    deliver(host, message, unit, flags_of(head.id), {link.pieces.body.data(), link.pieces.bytes});
                    link.pieces.forget();
                } else {
                    control(host, head, link.wire->open());
                }
            }
        }
        want_output(link, !link.wire->flush());
    } catch (const Error& error) {
        drop_link(host, error.what());
    }
}

void Node::deliver(u32 from, Notice message, u64 unit, u32 flags, Body body) {
    bool at_home = message == m_gets || message == m_getm || message == m_invack || message == m_back || message == m_held;
    u32 home = at_home ? self_ : from;
    bool carries = message == m_back || message == m_datas || message == m_datam;
    if (message > m_drop || unit >= std::max<u64>(segments_.units(home), 1) || body.size() != (carries ? segments_.unit_bytes(home) : 0))
        throw Error(Code::refused, "message " + std::to_string(message) + " for unit " + std::to_string(unit) + " with " +
                                       std::to_string(body.size()) + " bytes");
    bool takes = message == m_gets || message == m_getm || message == m_inv || message == m_recall;
    if (message == m_held || message == m_held_end) return receive(from, message, unit, flags, body);  // before all else on a connection
    Place place{home, unit};
    if (!follows(Rule::order)) return deliver_disordered(from, message, place, flags, body);
    auto hold = holds_.find(place);
    if (waiting_.count(place) || (takes && hold != holds_.end() && hold->second > now_ns())) keep(from, message, place, flags, body);
    else receive(from, message, unit, flags, body);
}

void Node::keep(u32 from, Notice message, Place place, u32 flags, Body body) {
    waiting_[place].push_back({from, message, flags, std::string(body.data(), body.size())});
}

void Node::receive(u32 from, Notice message, u64 unit, u32 flags, Body body) {
    Link& link = links_[from];
    if (message == m_recall) link.recalls++;
    if (message == m_inv) link.invalidations++;
    coherence_.receive(from, message, unit, flags, body);
}

void Node::send(u32 host, Notice message, u64 unit, u32 flags, Source source, u32 slot) {
    Link& link = links_[host];
    if (!link.wire || (broken_ & 1u << host)) return;  // the end of the connection is on its way to the protocol
    std::span<const char> bytes;
    if (source != Source::none) {
        u32 home = source == Source::own || source == Source::shadow ? self_ : host;
        bytes = {segments_.bytes(source, home, unit, slot), segments_.unit_bytes(home)};
    }
    try {
        u64 page = message == m_gets ? std::exchange(touched_page_, 0) : 0;
        if (auto found = link.first.find(unit); found != link.first.end() && message == m_datas) page = found->second, link.first.erase(found);
        if (!bytes.empty()) send_bytes(*link.wire, message, unit, bytes, page * PAGE < bytes.size() ? page * PAGE : 0);
        link.wire->queue(u16(u16(frame_message) + u16(message)), frame_id(unit, page, flags));
        link.bytes_out += bytes.size();
        want_output(link, !link.wire->flush());
    } catch (const Error&) {
        broken_ |= 1u << host;
    }
}

void Node::send_bytes(Wire& wire, Notice message, u64 unit, std::span<const char> bytes, u64 first) {
    auto send = [&](u64 at, u64 end) {
        for (; at < end; at = std::min(at + PIECE, end)) {
            wire.flush();                  // the one before; the last one goes with the message
            wire.queue(frame_piece, frame_id(unit, at / PAGE, message), bytes.subspan(at, std::min(PIECE, end - at)));
        }
    };
    send(first, first + PAGE);
    send(first + PAGE, bytes.size());
    send(0, first);
}

bool Node::tick(u64 now) {
    if (!settled()) return settle(), false;
    if (const u64 passed = now - std::exchange(ticked_ns_, now); passed > PAUSE_NS) started_ns_ = now;  // what came meanwhile is not read yet
    else listened_ns_ += passed;
    for (auto at = waiting_.begin(); at != waiting_.end();) {
        Place place = at->first;
        auto hold = holds_.find(place);
        while (!at->second.empty() && (hold == holds_.end() || hold->second <= now)) {
            Held held = std::move(at->second.front());
            at->second.pop_front();
            try {
                receive(held.from, held.message, place.second, held.flags, held.bytes);
            } catch (const Error& error) {
                drop_link(held.from, error.what());
                return true;  // the queues changed: again, next time
            }
            hold = holds_.find(place);
        }
        at = at->second.empty() ? waiting_.erase(at) : std::next(at);
    }
    if (waiting_.empty() && holds_.size() > 1024) std::erase_if(holds_, [&](auto& hold) { return hold.second <= now; });
    make_room();
    for (u32 host = 0; host < links_.size(); host++) {
        if (host == self_) continue;
        Link& link = links_[host];
        if (broken_ & 1u << host) drop_link(host, "sending failed");
        if (link.wire && now - link.pinged_ns > BEAT_NS) ping(host, now);
        if (link.wire && now - std::max(link.adopted_ns, segments_.head().leased[host]) > LEASE_NS) drop_link(host, "no answer");
        if (!link.suspended && now - segments_.head().leased[host] > LEASE_NS) end_lease(host, now + SUSPEND_NS);
        const u64 heard = segments_.head().heard[host];
        if (std::exchange(link.heard_ns, heard) != heard) link.listened_ns = listened_ns_;
        // A keeper that is stopped again and again has listened for long enough some day, though never for START_NS at a time.
        const bool listened = now - started_ns_ > START_NS || listened_ns_ - link.listened_ns > LOST_NS;
        if (!coherence_.is_lost(host) && now - (heard ? heard : started_ns_) > LOST_NS && listened) give_up(host);
    }
    return !waiting_.empty();
}

void Node::end_lease(u32 host, u64 until_ns) {
    links_[host].suspended = true;
    const u64 ended = segments_.head().leased[host];
    suspend_until_ns_ = until_ns;
    discarded_ = 0;
    coherence_.suspend(host);
    if (discarded_)
        log("the lease of what was borrowed from host " + links_[host].name + " has ended: " + std::to_string(discarded_) +
            " units that were written here could not be kept");
    suspend_until_ns_ = ~u64(0);
    store(segments_.head().suspended[host], ended);
}

void Node::give_up(u32 host) {
    Link& link = links_[host];
    drop_link(host, "silence");
    if (!link.left.empty()) log("host " + link.name + " stays away since " + link.left + "; what is on it can be reached when it is back");
    else if (roster_->host(host).empty()) {}   // nobody has that place
    else if (!segments_.head().heard[host]) log("host " + link.name + " has not been there yet; it is not waited for");
    else log("host " + link.name + " is lost: it was silent for " + std::to_string(LOST_NS / MILLI) + " ms");
    store(segments_.head().given[host], segments_.head().given[host] + 1);
    coherence_.lost(host);
    for (auto& process : processes_) {
        for (auto [home, address] : process->strangers)
            if (home == host) lose_stranger(*process, host, address);
        std::erase_if(process->strangers, [&](auto& stranger) { return stranger.first == host; });
    }
}

// A host that was given up can send nothing more. It is not lost by that: if it joins again and comes back before it has been silent for
// LOST, all is as it was, because nobody was given what it holds. Its own new term a host only says from now on.
void Node::follow_roster() {
    UnitsHead& head = segments_.head();
    if (!roster_->agreed()) return;
    const u64 epoch = roster_->epoch();    // before the terms: what changes meanwhile is seen next time
    for (u32 host = 0; host < links_.size(); host++) {
        const u64 term = roster_->term(host);
        links_[host].name = roster_->label(host);
        if (host != self_ && links_[host].wire && links_[host].term != term)
            drop_link(host, term ? "it has joined anew" : "the hosts have given it up");
        store(head.term[host], term);
    }
    store(head.epoch, epoch);              // last: who sees it relies on all of that
}

void Node::say_leaving(Leaving why) {
    for (u32 host = 0; host < links_.size(); host++) {
        Link& link = links_[host];
        if (!link.wire || (broken_ & 1u << host)) continue;
        try {
            link.wire->queue(frame_leave, 0, {reinterpret_cast<const char*>(&why), sizeof why});
            link.wire->flush();
        } catch (const Error&) {
            broken_ |= 1u << host;
        }
    }
}

void Node::leave() {
    for (u32 host = 0; host < links_.size(); host++) {
        std::vector<u64> borrowed;
        if (host != self_) segments_.each_word(host, [&](u64 unit, u64) { borrowed.push_back(unit); });
        for (u64 unit : borrowed) coherence_.evict(host, unit);
    }
}

bool Node::left() {
    bool all = true;
    for (u32 host = 0; host < links_.size(); host++)
        if (host != self_ && connected(host))
            segments_.each_word(host, [&](u64, u64 word) { all &= copy_state(word) == shared && !(word & DIRTY); });
    return all;
}

std::string Node::status() {
    std::string text;
    for (u32 host = 0; host < links_.size(); host++) {
        const Link& link = links_[host];
        if (roster_->host(host).empty()) continue;
        u64 here[3] = {};
        segments_.each_word(host, [&](u64, u64 word) { here[std::min<u64>(word & 3, 2)]++; });
        const u64 numbers[] = {host == self_ || link.synced, coherence_.is_lost(host), segments_.unit_bytes(host), link.round_trip_ns, link.misses,
                               link.recalls, link.invalidations, link.bytes_in, link.bytes_out, here[1], here[2]};
        text.append(std::to_string(host)).append(" ").append(link.name);
        for (u64 number : numbers) text.append(" ").append(std::to_string(number));
        text.append("\n");
    }
    return text;
}

}  // namespace osf::coherence

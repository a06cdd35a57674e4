// Calls about arrays and about the whole space.
#include "rpc/session.hpp"

namespace osf::rpc {

Spec Session::spec(In& in) const {
    Spec result;
    result.nbytes = in.get<u64>();
    result.dtype = in.get<u16>();
    result.kind = in.get<u8>();
    result.shape.resize(in.get<u8>());
    for (u64& size : result.shape) size = in.get<u64>();
    result.descr = in.text();
    result.name = in.text();
    return result;
}

void describe(Out& out, const Space& space, const Held& held) {
    const Record& record = space.record(held);
    std::vector<u64> shape = space.shape_of(held);
    out.add(held.pin).add(held.record).add(u64(space.bytes(held))).add(record.nbytes).add(record.dtype).add(record.kind).add(u8(shape.size()));
    for (u64 size : shape) out.add(size);
    out.text(space.descr_of(held));
}

void Session::give(u64 number, const Held& held, Out out) {
    proxy_->keep(number, held);
    describe(out, space_, held);
    reply(out, [&] { proxy_->release(number); });
}

void Session::make(In& in) {
    u64 number = in.get<u64>();
    Spec what = spec(in);
    bool zero = in.get<u8>();
    in.end();
    give(number, space_.make(what, zero));
}

void Session::put(In& in) {
    u64 number = in.get<u64>();
    Spec what = spec(in);
    bool replace = in.get<u8>();
    in.end();
    Held held;
    try {
        held = space_.make(what, false);
    } catch (const Error&) {
        receive(nullptr, what.nbytes);
        throw;
    }
    try {
        receive(space_.bytes(held), what.nbytes);
        if (!what.name.empty()) space_.publish(held, replace);
    } catch (...) {
        space_.release(held);
        throw;
    }
    give(number, held);
}

void Session::find(In& in) {
    u64 number = in.get<u64>();
    std::string_view name = in.text();
    in.end();
    Held held = space_.find(name);
    if (held) give(number, held, Out().add(u8(1)));
    else reply(Out().add(u8(0)));
}

void Session::at(In& in) {
    u64 number = in.get<u64>(), address = in.get<u64>();
    in.end();
    give(number, space_.at(address));
}

void Session::look(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    in.end();
    reply(Out().add(state_number(load(pin.record().state))).text(space_.name_of(pin.held())));
}

void Session::publish(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    bool replace = in.get<u8>();
    in.end();
    if (doubtful_ && load(pin.record().state) == live) return reply();  // who else but the holder of a draft
    commit();
    space_.publish(pin.held(), replace);
    reply();
}

void Session::name(In& in) {
    Proxy::Use pin(*proxy_, in.get<u64>());
    std::string_view name = in.text();
    const auto meanwhile = use_if_any(in.get<u64>());
    in.end();
    if (doubtful_ && load(pin.record().state) == live && space_.name_of(pin.held()) == name) return reply();
    commit();
    space_.name(pin.held(), name);
    reply();
}

void Session::release(In& in) {
    while (in.more()) proxy_->release(in.get<u64>());
}

void Session::claim(In& in) {
    const u64 count = in.get<u64>();
    in.end();
    const std::vector<Claim> claims = receive_all<Claim>(count, PINS_BYTES / 8);
    std::vector<std::pair<u64, Held>> wanted;
    for (const Claim& claim : claims) wanted.push_back({claim.number, {u32(claim.pin), claim.record}});
    proxy_->claim(wanted);
    reply();
}

bool Session::has(std::string_view name) {
    Held held = space_.find(name);
    if (held) space_.release(held);
    return bool(held);
}

void Session::contains(In& in) {
    std::string_view name = in.text();
    in.end();
    reply(Out().add(u8(has(name))));
}

void Session::remove(In& in) {
    std::string_view name = in.text();
    bool only = in.get<u8>();
    u64 number = in.get<u64>();
    in.end();
    const bool there = has(name);
    if (doubtful_ && !there) return reply(Out().add(u8(1)));  // it is begun only if there is something to remove
    if (there) commit();
    bool removed;
    if (only) {
        Proxy::Use pin(*proxy_, number);
        removed = space_.remove(name, pin.held().record);
    } else {
        removed = space_.remove(name, 0, true);
    }
    reply(Out().add(u8(removed)));
}

// What a caller must still hold, or the call is too late to be made.
std::unique_ptr<Proxy::Use> Session::use_if_any(u64 number) { return number ? std::make_unique<Proxy::Use>(*proxy_, number) : nullptr; }

void Session::rename(In& in) {
    std::string_view from = in.text(), to = in.text();
    const auto meanwhile = use_if_any(in.get<u64>());
    in.end();
    if (doubtful_ && has(from) != has(to)) {
        if (has(to)) return reply();
        doubtful_ = false;
    }
    commit();
    space_.rename(from, to);
    reply();
}

void Session::list(In& in) {
    std::vector<Entry> entries = space_.list(in.text());
    in.end();
    answered_ = true;
    Out page;
    auto send = [&] {
        std::lock_guard guard(line_.sending);
        wire_.send(frame_part, id_, page.span());
        page.clear();
    };
    for (const Entry& entry : entries) {
        page.text(entry.name).add(entry.nbytes).add(entry.address).add(entry.dtype).add(entry.kind).add(u8(entry.shape.size()));
        for (u64 size : entry.shape) page.add(size);
        page.text(entry.descr);
        if (page.size() > BULK / 2) send();
    }
    if (page.size()) send();
    reply();
}

void Session::grow(In& in) {
    u64 bytes = in.get<u64>();
    in.end();
    if (bytes > space_.layout.reserve)
        throw Error(Code::no_room, "the space cannot grow by " + std::to_string(bytes) + " bytes: that is more than all its addresses");
    space_.grow(bytes);
    reply();
}

void Session::collect(In& in) {
    in.end();
    space_.check_usable();
    space_.collect();
    reply();
}

void Session::audit(In& in) {
    in.end();
    reply(Out().add(space_.audit()));
}

void Session::stats(In& in) {
    in.end();
    Stats stats = space_.stats();
    Out out;
    out.text(stats.name).text(stats.backing).add(stats.base).add(stats.reserve).add(stats.created_ns).add(stats.page_size);
    out.add(stats.data_address).add(stats.bytes).add(stats.free).add(stats.largest_free).add(stats.limit).add(stats.metadata_bytes);
    out.add(stats.arrays).add(stats.mode).add(u8(stats.removed)).add(u8(stats.read_only)).add(u32(stats.members.size()));
    for (const MemberStats& member : stats.members)
        out.add(member.slot).add(member.pid).add(member.pins).add(u8(member.remote)).add(u8(member.read_only)).add(u8(member.alive));
    reply(out);
}

void Session::owners(In& in) {
    Range range{in.get<u64>(), in.get<u64>()};
    in.end();
    check({range});
    if (!proxies_.served().owners) throw Error(Code::bad_input, "this host does not know who owns its bytes");
    reply(Out().text(proxies_.served().owners(range.address, range.bytes)));
}

void Session::inherit(In& in) {
    const Uuid parent = in.get<Uuid>();
    const u64 count = in.get<u64>();
    in.end();
    const std::vector<u64> numbers = receive_all<u64>(count, PINS_BYTES / 8);
    const std::vector<u32> indices = proxy_->inherit(*proxies_.of(parent), numbers);
    answered_ = true;
    for (size_t at = 0; at < count; at += BULK / 8) {
        const size_t some = std::min<size_t>(BULK / 8, count - at);
        std::lock_guard guard(line_.sending);
        wire_.send(frame_part, id_, {reinterpret_cast<const char*>(indices.data() + at), 4 * some});
    }
    reply();
}

}  // namespace osf::rpc

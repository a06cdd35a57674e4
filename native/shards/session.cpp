// Calls about this host's shards. A shard is opened for each call: one that is kept would keep the memory of a table that is deleted.
#include "rpc/session.hpp"
#include "shards/calls.hpp"

namespace osf::shards {

static std::shared_ptr<Shard> shard_of(Session& session, In& in) {
    const u64 id = in.get<u64>();
    auto shard = Shard::open(session.space(), id);
    if (!shard) throw Error(Code::unknown_name, "this host has no rows of the table: it was deleted, or has moved; open it again");
    return shard;
}

template <class T>
static std::span<const char> bytes_of(const std::vector<T>& of) { return {reinterpret_cast<const char*>(of.data()), of.size() * sizeof(T)}; }

static void make(Session& session, In& in) {
    const ShardSpec spec = in.get<ShardSpec>();
    in.end();
    const std::vector<u32> blocks = session.receive_all<u32>(spec.here, SHARD_BLOCKS);
    if (!Shard::open(session.space(), spec.id)) Shard::make(session.space(), spec, blocks);  // asked again: it is there
    session.reply();
}

static void look(Session& session, In& in) {
    const u64 id = in.get<u64>();
    in.end();
    auto shard = Shard::open(session.space(), id);
    ShardSeen seen{};
    if (shard) {
        seen = shard->see();
        std::vector<u32> words;
        for (u64 block = 0; block < seen.spec.blocks; block++) words.push_back(shard->place(block));
        for (u64 block = 0; block < seen.spec.blocks; block++) words.push_back(shard->reads(block));
        session.send_parts(bytes_of(words));
    }
    session.reply(Out().add(u8(shard != nullptr)).add(seen));
}

static void rows(Session& session, In& in) {
    // Ids come even if the table is gone: they are taken before anything is said.
    const u64 id = in.get<u64>(), count = in.get<u64>();
    const bool states = in.get<u8>();
    in.end();
    const std::vector<u64> ids = session.receive_all<u64>(count, IDS_MAX);
    auto shard = Shard::open(session.space(), id);
    if (!shard) throw Error(Code::unknown_name, "this host has no rows of the table: it was deleted, or has moved; open it again");
    const u64 stride = shard->row_stride(states), some = std::max<u64>(1, BULK / stride);
    std::vector<char> out(std::min(some, count) * stride);
    for (u64 from = 0; from < count; from += some) {
        const u64 now = std::min(some, count - from);
        shard->copy_rows({ids.data() + from, now}, states, out.data());
        session.send_parts({out.data(), now * stride});
    }
    session.reply();
}

static void bags(Session& session, In& in) {
    const u64 id = in.get<u64>();
    const BagsAsked asked = in.get<BagsAsked>();
    in.end();
    if (asked.ids > IDS_MAX || asked.bags > IDS_MAX) throw Error(Code::refused, "a call has too many ids");  // what follows ends the connection
    const u64 weighted = asked.weights ? asked.ids : 0;
    const std::vector<char> body = session.receive_all<char>(8 * asked.ids + 4 * asked.bags + 4 * weighted, 1ull << 30);
    const std::span ids(reinterpret_cast<const u64*>(body.data()), asked.ids);
    const std::span ends(reinterpret_cast<const u32*>(body.data() + 8 * asked.ids), asked.bags);
    const float* weights = weighted ? reinterpret_cast<const float*>(body.data() + 8 * asked.ids + 4 * asked.bags) : nullptr;
    u64 before = 0;
    for (u32 end : ends) {
        if (end < before || end > ids.size()) throw Error(Code::bad_input, "ends of bags do not fall and do not go beyond the ids");
        before = end;
    }
    auto shard = Shard::open(session.space(), id);
    if (!shard) throw Error(Code::unknown_name, "this host has no rows of the table: it was deleted, or has moved; open it again");
    std::vector<float> out(ends.size() * shard->table->head().dim);
    const bool good = shard->bags(ids, ends, weights, out.data());
    if (good) session.send_parts(bytes_of(out));
    session.reply(Out().add(u8(good)));
}

static void change(Session& session, In& in) {
    const u64 id = in.get<u64>();
    const ChangeAsked asked = in.get<ChangeAsked>();
    const u64 bytes = in.get<u64>();
    in.end();
    const std::vector<char> body = session.receive_all<char>(bytes, 1ull << 36);
    auto shard = Shard::open(session.space(), id);
    if (!shard) throw Error(Code::unknown_name, "this host has no rows of the table: it was deleted, or has moved; open it again");
    const TableHead& head = shard->table->head();
    const u64 width = asked.kind == ChangeKind::update ? 4 * head.dim : head.row_bytes;
    if (asked.kind > ChangeKind::fill || asked.tick > Tick::never || asked.count > IDS_MAX || bytes != asked.count * (8 + width + (asked.states ? head.state_bytes : 0)))
        throw Error(Code::bad_input, "rows of another size than the table's");
    const std::span ids(reinterpret_cast<const u64*>(body.data()), asked.count);
    const char* given = body.data() + 8 * asked.count;
    const std::vector<u32> refused = shard->change(asked, ids, given, asked.states ? given + asked.count * width : nullptr, 1);
    session.send_parts(bytes_of(refused));
    session.reply(Out().add(u64(refused.size())));
}

static void versions(Session& session, In& in) {
    auto shard = shard_of(session, in);
    in.end();
    const TableHead& head = shard->table->head();
    std::vector<u64> words(head.stripes);
    for (u32 at = 0; at < head.stripes; at++) words[at] = load(shard->table->stripes()[at], std::memory_order_relaxed);
    session.send_parts(bytes_of(words));
    session.reply(Out().add(shard->see()));
}

static void block(Session& session, In& in) {
    auto shard = shard_of(session, in);
    const BlockVerb verb = in.get<BlockVerb>();
    const u32 which = in.get<u32>();
    const u64 number = in.get<u64>();
    in.end();
    if (verb > BlockVerb::steps) throw Error(Code::bad_input, "nothing known to do with a block");
    shard->block(verb, which, number);
    session.reply();
}

static void discard(Session& session, In& in) {
    const u64 id = in.get<u64>();
    in.end();
    Shard::discard(session.space(), id);
    session.reply();
}

void register_shards() {
    answer_with(Call::shard_make, make);
    answer_with(Call::shard_look, look);
    answer_with(Call::shard_rows, rows);
    answer_with(Call::shard_bags, bags);
    answer_with(Call::shard_change, change);
    answer_with(Call::shard_versions, versions);
    answer_with(Call::shard_block, block);
    answer_with(Call::shard_discard, discard);
}

}  // namespace osf::shards

// Shards of another host.
#include "shards/calls.hpp"

namespace osf::shards {

template <class T>
static std::span<const char> bytes_of(std::span<const T> of) { return {reinterpret_cast<const char*>(of.data()), of.size_bytes()}; }

[[noreturn]] static void other_size(Remote& remote) {
    throw Error(Code::refused, "the host " + remote.peer().label() + " answers with other rows than it was asked for; the versions of Openshelf differ, or the table was replaced");
}

static std::vector<char> joined(std::initializer_list<std::span<const char>> pieces) {
    std::vector<char> all;
    for (auto piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
    return all;
}

// Bytes that come in parts, one after the other.
template <class T>
static void collect(Remote::Ask& asked, std::vector<T>& into) {
    asked.anew = [&] { into.clear(); };
    asked.page = [&](In in) {
        while (in.more()) into.push_back(in.get<T>());
    };
}

void shard_make(Remote& remote, const ShardSpec& spec, std::span<const u32> blocks) {
    Remote::Ask asked = remote.ask(Call::shard_make, true);
    ShardSpec with = spec;
    with.here = blocks.size();
    asked.out.add(with);
    asked.parts = bytes_of(blocks);
    remote.call(std::move(asked));
}

std::optional<ShardLook> shard_look(Remote& remote, u64 id) {
    ShardLook look;
    Remote::Ask asked = remote.ask(Call::shard_look, true);
    asked.out.add(id);
    std::vector<u32> words;
    collect(asked, words);
    const Remote::Answer answer = remote.call(std::move(asked));
    In in(answer.payload);
    if (!in.get<u8>()) return std::nullopt;
    look.seen = in.get<ShardSeen>();
    if (words.size() != 2 * look.seen.spec.blocks) other_size(remote);
    look.places.assign(words.begin(), words.begin() + std::ptrdiff_t(look.seen.spec.blocks));
    look.reads.assign(words.begin() + std::ptrdiff_t(look.seen.spec.blocks), words.end());
    return look;
}

void shard_rows(Remote& remote, u64 id, std::span<const u64> ids, bool states, u64 stride, const TakeRow& take) {
    for (u64 from = 0; from < ids.size(); from += IDS_MAX) {
        const auto some = ids.subspan(from, std::min<u64>(IDS_MAX, ids.size() - from));
        Remote::Ask asked = remote.ask(Call::shard_rows, true);
        asked.out.add(id).add(u64(some.size())).add(u8(states));
        asked.parts = bytes_of(some);
        u64 done = 0;
        asked.anew = [&] { done = 0; };
        asked.page = [&](In in) {
            const u64 count = in.left() / stride;
            if (in.left() % stride || done + count > some.size()) other_size(remote);
            const char* row = in.rest().data();
            for (u64 at = 0; at < count; at++, row += stride) take(from + done + at, row);
            done += count;
        };
        remote.call(std::move(asked));
        if (done != some.size()) other_size(remote);
    }
}

bool shard_bags(Remote& remote, u64 id, std::span<const u64> ids, std::span<const u32> ends, const float* weights, std::span<float> out) {
    Remote::Ask asked = remote.ask(Call::shard_bags, true);
    asked.out.add(id).add(BagsAsked{ids.size(), ends.size(), weights ? 1ull : 0ull});
    const std::vector<char> body = joined({bytes_of(ids), bytes_of(ends), {reinterpret_cast<const char*>(weights), weights ? 4 * ids.size() : 0}});
    asked.parts = body;
    u64 done = 0;
    auto* to = reinterpret_cast<char*>(out.data());
    asked.anew = [&] { done = 0; };
    asked.page = [&](In in) {
        const auto bytes = in.rest();
        if (done + bytes.size() > out.size_bytes()) other_size(remote);
        std::memcpy(to + done, bytes.data(), bytes.size());
        done += bytes.size();
    };
    const bool good = In(remote.call(std::move(asked)).payload).get<u8>();
    if (good && done != out.size_bytes()) other_size(remote);
    return good;
}

// Not made again if the connection breaks: nobody knows then whether it was done.
std::vector<u32> shard_change(Remote& remote, u64 id, const ChangeAsked& asked_for, std::span<const u64> ids, std::span<const char> given, std::span<const char> states) {
    Remote::Ask asked = remote.ask(Call::shard_change);
    const std::vector<char> body = joined({bytes_of(ids), given, states});
    asked.out.add(id).add(asked_for).add(u64(body.size()));
    asked.parts = body;
    std::vector<u32> refused;
    collect(asked, refused);
    if (In(remote.call(std::move(asked)).payload).get<u64>() != refused.size()) other_size(remote);
    return refused;
}

std::vector<u64> shard_versions(Remote& remote, u64 id, ShardSeen& seen) {
    Remote::Ask asked = remote.ask(Call::shard_versions, true);
    asked.out.add(id);
    std::vector<u64> words;
    collect(asked, words);
    seen = In(remote.call(std::move(asked)).payload).get<ShardSeen>();
    if (words.size() != seen.stripes) other_size(remote);
    return words;
}

void shard_block(Remote& remote, u64 id, BlockVerb verb, u32 block, u64 number) {
    Remote::Ask asked = remote.ask(Call::shard_block);
    asked.out.add(id).add(verb).add(block).add(number);
    remote.call(std::move(asked));
}

void shard_discard(Remote& remote, u64 id) {
    Remote::Ask asked = remote.ask(Call::shard_discard, true);
    asked.out.add(id);
    remote.call(std::move(asked));
}

}  // namespace osf::shards

#include "serving/virtual_pool.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "kv/draft.hpp"
#include "kv/hit.hpp"

namespace osf::serving {

static const KvKey ROOT{{1, 2, 3, 4}};

// Removed at once: the mapping stays for as long as this process wants it.
static std::shared_ptr<Space> private_space(u64 bytes) {
    std::string directory = "/dev/shm/openshelf-twin-XXXXXX";
    if (!::mkdtemp(directory.data())) fail_os("making " + directory, errno);
    CreateOptions options;
    options.directory = directory;
    options.name = "twin";
    options.boot_id = "twin";
    options.bytes = bytes + bytes / 8 + 16 * MIB;
    options.reserve = Layout::smallest_reserve();
    while (Layout(options.reserve).heap[1].pages * PAGE < 2 * options.bytes) options.reserve *= 2;
    void* room = ::mmap(nullptr, 2 * options.reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) fail_os("reserving addresses", errno);
    options.base = align_up(u64(room), options.reserve);  // whole multiples: as aligned as the space needs
    ::munmap(room, 2 * options.reserve);
    std::error_code ignored;
    std::shared_ptr<Space> space;
    try {
        Space::create(options);
        space = Space::open(directory, false, options.boot_id);
    } catch (...) {
        std::filesystem::remove_all(directory, ignored);
        throw;
    }
    std::filesystem::remove_all(directory, ignored);
    return space;
}

VirtualPool::VirtualPool(const PoolShape& shape, u64 seed) {
    const KvShape small{64, 1, shape.slots};
    auto space = private_space(kv_head(small).bytes);
    pool_ = KvPool::make(space, "pool", small);
    pool_->tenant("", nullptr);
    pool_->seed(seed);
    group_ = std::max<u64>(1, pool_->group() * pool_->head().stride / std::max<u64>(64, kv_head({shape.block_bytes, 1, 1}).stride));
    fast_ = std::min(shape.fast, shape.slots);
    newer_.assign(shape.slots + 1, shape.slots);
    older_.assign(shape.slots + 1, shape.slots);
    is_fast_.assign(shape.slots, false);
}

// To the front; the last one goes down if there are too many.
void VirtualPool::use(u32 slot) {
    const u32 ends = u32(is_fast_.size());
    auto cut = [&](u32 which) {
        older_[newer_[which]] = older_[which];
        newer_[older_[which]] = newer_[which];
    };
    if (is_fast_[slot]) cut(slot);
    else in_fast_++;
    is_fast_[slot] = true;
    older_[slot] = older_[ends];
    newer_[slot] = ends;
    newer_[older_[ends]] = slot;
    older_[ends] = slot;
    if (in_fast_ <= fast_) return;
    const u32 last = newer_[ends];
    cut(last);
    is_fast_[last] = false;
    in_fast_--;
    demoted++;
}

VirtualPool::Found VirtualPool::match(std::span<const u32> ids) {
    KvHit hit(pool_, ROOT, ids, false);
    hit.count(ids.size());
    Found result{u32(hit.slots.size()), 0};
    for (u32 slot : hit.slots) result.slow += !is_fast_[slot];
    for (u32 slot : hit.slots) use(slot);
    asked += ids.size();
    found += result.blocks;
    found_slow += result.slow;
    return result;
}

void VirtualPool::put(std::span<const u32> ids) {
    KvDraft draft(pool_, ROOT, ids, 0, 0);
    while (draft.next() < draft.blocks()) {
        draft.catch_up();
        if (draft.next() == draft.blocks() || !draft.reserve(group_)) break;
        for (u32 slot : draft.slots()) use(slot);
        draft.publish();
    }
    const KvStored done = draft.publish();
    pool_->count_declined(done.declined);
    stored += done.stored;
    declined += done.declined;
}

}  // namespace osf::serving

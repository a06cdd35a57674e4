// The page half of the heap: first fit over a bitmap, with hints that skip what is known to be full.
#include <algorithm>
#include <bit>
#include <cerrno>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/statfs.h>

#include "space/heap.hpp"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace osf::space {

std::atomic<bool> recovery{true};

void Heap::lock_pages() {
    if (lock_take(pages().lock, *members_) == Grant::owner_died && recovery) recover_pages();
}

void Heap::recover_pages() {
    PageHeap& heap = pages();
    u64 pending = load(heap.pending);
    if (pending) {
        u64& root = root_at(pending);
        u64 ref = load(root);
        if (ref & EXTENT) {
            bool taking = (pending & FREE) == 0;
            set_bits(extent_page(ref), extent_pages(ref), taking);
            if (!taking) store(root, 0);
        }
        store(heap.pending, 0);
    }
    u64 used = 0, words = div_up(load(heap.limit), 64);
    for (u64 index = 0; index < words; index++) used += u64(std::popcount(load(bits()[index], std::memory_order_relaxed)));
    store(heap.used, used);
    std::fill_n(heap.hint, 32, 0);
    heap.top = load(heap.limit);
}

void Heap::set_bits(u64 page, u64 count, bool value) {
    u64* map = bits();
    while (count) {
        u64 bit = page % 64, span = std::min<u64>(64 - bit, count);
        u64 mask = (span == 64 ? ~0ull : (1ull << span) - 1) << bit;
        u64 old = load(map[page / 64], std::memory_order_relaxed);
        store(map[page / 64], value ? old | mask : old & ~mask, std::memory_order_relaxed);
        step();
        page += span;
        count -= span;
    }
}

// First run of `count` free pages at or after `from`.
bool Heap::find_run(u64 count, u64 alignment, u64 from, u64& found) const {
    const u64 limit = load(pages().limit, std::memory_order_relaxed);
    const u64* map = bits();
    u64 page = align_up(from, alignment);
    while (page + count <= limit) {
        u64 end = page, stop = page + count;
        while (end < stop) {  // advance over free pages, a word at a time
            u64 rest = load(map[end / 64], std::memory_order_relaxed) >> (end % 64);
            u64 zeros = rest ? u64(std::countr_zero(rest)) : 64 - end % 64;
            end += zeros;
            if (rest) break;
        }
        if (end >= stop) {
            found = page;
            return true;
        }
        while (end < limit) {  // skip the taken ones
            u64 rest = ~load(map[end / 64], std::memory_order_relaxed) >> (end % 64);
            u64 ones = rest ? u64(std::countr_zero(rest)) : 64 - end % 64;
            end += ones;
            if (rest) break;
        }
        page = align_up(end, alignment);
    }
    return false;
}

// Highest aligned free chunk below the top hint: slabs live at the top, so that large arrays find long runs below.
bool Heap::find_top(u64& found) {
    PageHeap& heap = pages();
    const u64* map = bits();
    for (u64 page = std::min(heap.top, load(heap.limit)) / CHUNK_PAGES * CHUNK_PAGES; page >= CHUNK_PAGES; page -= CHUNK_PAGES) {
        u64 at = page - CHUNK_PAGES;
        if ((load(map[at / 64], std::memory_order_relaxed) >> (at % 64) & 0xffff) == 0) {
            heap.top = page;
            found = at;
            return true;
        }
    }
    heap.top = 0;
    return false;
}

void Heap::take_extent(u64 count, u64 alignment, bool from_top, u64& root) {
    lock_pages();
    PageHeap& heap = pages();
    const u64 power = std::min<u64>(31, u64(std::bit_width(count)) - 1);
    u64 page = 0;
    bool found;
    for (;;) {
        found = from_top ? find_top(page) : find_run(count, alignment, heap.hint[power], page);
        if (found || kind_ != meta || !grow_meta(count)) break;
    }
    if (!found) {
        u64 free_pages = load(heap.limit) - load(heap.used);
        lock_drop(heap.lock);
        if (kind_ == meta) throw Error(Code::no_room, "there is no memory left for metadata: the file system of the space is full, or it has too many arrays");
        throw NoRun("no run of " + std::to_string(count * PAGE) + " bytes is free; free in all: " + std::to_string(free_pages * PAGE));
    }
    if (!from_top && std::has_single_bit(count) && alignment == 1) heap.hint[power] = page + count;
    store(heap.pending, root_offset(root) | ALLOC);
    step();
    store(root, extent_ref(page, count));
    step();
    set_bits(page, count, true);
    store(heap.used, load(heap.used) + count);
    step();
    store(heap.pending, 0);
    step();
    lock_drop(heap.lock);
}

void Heap::free_extent(u64& root) {
    lock_pages();
    PageHeap& heap = pages();
    u64 ref = load(root), page = extent_page(ref), count = extent_pages(ref);
    store(heap.pending, root_offset(root) | FREE);
    step();
    set_bits(page, count, false);
    store(root, 0);
    step();
    store(heap.pending, 0);
    store(heap.used, load(heap.used) - count);
    step();
    // Whatever run became longer by these pages begins at most 2^k pages before them, or was long enough already.
    for (u64 power = 0; power < 32; power++) heap.hint[power] = std::min(heap.hint[power], page - std::min<u64>(page, 1ull << power));
    heap.top = std::max(heap.top, align_up(page + count, CHUNK_PAGES));
    lock_drop(heap.lock);
}

// The meta heap grows inside its file as it is used. Under its page lock.
bool Heap::grow_meta(u64 count) {
    PageHeap& heap = pages();
    u64 limit = load(heap.limit);
    u64 more = align_up(std::max(count + CHUNK_PAGES, std::clamp<u64>(limit / 8, 256, 1024)), CHUNK_PAGES);
    if (limit + more > map_.pages) return false;
    try {
        commit_maps(limit, limit + more);
    } catch (const Error&) {
        return false;  // the caller holds the lock and says that there is no room
    }
    if (allocate_file(control_fd_, map_.at + limit * PAGE, more * PAGE)) return false;
    store(heap.limit, limit + more);
    heap.top = limit + more;
    return true;
}

static void commit_range(int fd, u64 at, u64 from, u64 to) {
    if (int error = allocate_file(fd, at + from / PAGE * PAGE, align_up(to, PAGE) - from / PAGE * PAGE))
        fail_os("the file system of the space has no memory left for metadata", error);
}

void Heap::commit_maps(u64 from, u64 to) {
    commit_range(control_fd_, map_.bits, from / 8, to / 8 + 8);
    commit_range(control_fd_, map_.slabs, from / CHUNK_PAGES / 8, to / CHUNK_PAGES / 8 + 8);
    commit_range(control_fd_, map_.commits, from * PAGE / BLOCK / 8, to * PAGE / BLOCK / 8 + 8);
    if (kind_ == data) commit_range(control_fd_, map_.owners, from * 4, to * 4);
}

void Heap::adopt_memory(u64 pages) {
    for (u64 block = 0; block < div_up(pages * PAGE, BLOCK); block++) commits()[block / 64] |= 1ull << (block % 64);
}

void Heap::set_limit(u64 limit) {
    lock_pages();
    PageHeap& heap = pages();
    store(heap.limit, limit);
    heap.top = limit;
    lock_drop(heap.lock);
}

u64 Heap::largest_run() const {
    u64 best = 0, run = 0, limit = load(pages().limit);
    for (u64 page = 0; page < limit; page++) {
        if (page % 64 == 0) {
            u64 map = load(bits()[page / 64], std::memory_order_relaxed);
            if ((map == 0 || map == ~0ull) && page + 64 <= limit) {
                run = map ? 0 : run + 64;
                best = std::max(best, run);
                page += 63;
                continue;
            }
        }
        run = load(bits()[page / 64], std::memory_order_relaxed) >> (page % 64) & 1 ? 0 : run + 1;
        best = std::max(best, run);
    }
    return best;
}

static const char* remedy(int data_fd) {
    struct statfs file_system {};
    if (fstatfs(data_fd, &file_system) == 0 && file_system.f_type == HUGETLBFS_MAGIC) return "let the machine have more huge pages (vm.nr_hugepages)";
    return "in a container raise --shm-size, use --ipc=host, or an emptyDir with medium: Memory";
}

// Memory is given to 2 MiB blocks, once, by whoever first takes a page of them, before the page is touched.
bool Heap::commit(u64 ref) {
    u64 first = extent_page(ref) * PAGE / BLOCK, last = ((extent_page(ref) + extent_pages(ref)) * PAGE - 1) / BLOCK;
    u64 end_of_data = load(pages().limit) * PAGE;
    bool fresh = true;
    for (u64 block = first; block <= last;) {
        if (load(commits()[block / 64]) >> (block % 64) & 1) {
            fresh = false;
            block++;
            continue;
        }
        u64 end = block + 1;
        while (end <= last && end - block < 64 && !(load(commits()[end / 64]) >> (end % 64) & 1)) end++;
        u64 bytes = std::min(end * BLOCK, end_of_data) - block * BLOCK;
        char* at = base_ + map_.at + block * BLOCK;
        if (madvise(at, bytes, MADV_POPULATE_WRITE) < 0) {
            int error = errno;
            // An older kernel does not know the advice, and it may not wait for faults; fallocate gives no huge pages but is as safe.
            if (error == EINVAL || error == EFAULT) error = allocate_file(data_fd_, block * BLOCK, bytes);
            if (error)
                throw Error(Code::no_room, "the file system behind the space has no memory left for " + std::to_string(bytes) + " bytes (" +
                                               std::strerror(error) + "); " + remedy(data_fd_));
        }
        for (; block < end; block++)
            std::atomic_ref<u64>(commits()[block / 64]).fetch_or(1ull << (block % 64));
    }
    return fresh;
}

// A wish: kernels before 6.1 do not know the advice, and memory may have no whole pieces left.
void Heap::join_pages(u64 ref) {
    const u64 first = align_up(offset(ref), BLOCK), end = (offset(ref) + capacity(ref)) / BLOCK * BLOCK;
    if (first < end) madvise(base_ + first, end - first, MADV_COLLAPSE);
}

void Heap::take(u64 bytes, u64& root, bool* zeroed) {
    if (zeroed) *zeroed = false;
    if (bytes > SLAB_MAX) {
        take_extent(div_up(bytes, PAGE), 1, false, root);
        step();
        if (kind_ == data && !prepare_chunk) {
            try {
                bool fresh = commit(load(root));
                if (zeroed) *zeroed = fresh;
            } catch (...) {
                free_extent(root);
                throw;
            }
        }
        return;
    }
    take_slab(bytes, root, 0, kind_ == meta ? ARENAS / 2 : ARENAS);
}

void Heap::take_name(u64 bytes, u64& root) { take_slab(bytes, root, ARENAS / 2, ARENAS / 2); }

void Heap::free(u64& root) {
    if (load(root) & EXTENT) free_extent(root);
    else free_slot(root);
}

}  // namespace osf::space

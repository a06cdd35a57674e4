#include "coherence/segments.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <random>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "faults/faults.hpp"
#include "base/trusted.hpp"

namespace osf::coherence {

static int open_sized(const Folder& folder, const std::string& name, u64 bytes) {
    int fd = folder.open(name, O_RDWR | O_CREAT);
    struct stat status {};
    if (fstat(fd, &status) == 0 && u64(status.st_size) < bytes && ftruncate(fd, off_t(bytes)) < 0) {
        int error = errno;
        close(fd);
        fail_os("making " + name, error);
    }
    return fd;
}

static void write_all(int fd, const char* from, u64 bytes, u64 at) {
    while (bytes) {
        ssize_t put = pwrite(fd, from, bytes, off_t(at));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail_os("writing a segment", errno);
        from += put, at += u64(put), bytes -= u64(put);
    }
}

static void punch_file(int fd, u64 at, u64 bytes) {
    if (!follows(Rule::punch)) return;
    if (!follows(Rule::protect)) usleep(1000);   // tests: a process that may still write does
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off_t(at), off_t(bytes)) < 0) fail_os("invalidating a unit", errno);
}

Segments::Segments(const std::string& directory, u32 self, u32 hosts, u64 segment_bytes, u32 unit)
    : self_(self), hosts_(hosts), segment_bytes_(segment_bytes), caches_(hosts, -1), copies_(hosts, nullptr),
      committed_(units_bytes(hosts) / PAGE) {
    const Folder folder(directory);
    units_ = open_sized(folder, "units", units_bytes(hosts));
    data_ = folder.open_data(O_RDWR);
    shadow_ = open_sized(folder, "shadow", segment_bytes);
    escrow_ = open_sized(folder, "escrow", SLOTS * UNIT_MAX);
    for (u32 host = 0; host < hosts; host++)
        if (host != self) caches_[host] = open_sized(folder, cache_name(host), segment_bytes);
    for (u32 host = 0; host < hosts; host++) copies_[host] = map(file(host), segment_bytes);
    shadow_bytes_ = map(shadow_, segment_bytes);
    escrow_bytes_ = map(escrow_, SLOTS * UNIT_MAX);
    if (int error = allocate_file(units_, 0, PAGE)) fail_os("no memory for the state of units", error);
    map_ = static_cast<char*>(mmap(nullptr, units_bytes(hosts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, units_, 0));
    if (map_ == MAP_FAILED) fail_os("mapping the state of units", errno);
    UnitsHead& head = this->head();
    if (head.magic != UNITS_MAGIC) {
        std::random_device random;
        head.incarnation = (u64(random()) << 32 | random()) | 1;
        head.self = self;
        head.hosts = hosts;
        head.unit[self] = unit;
        store(head.magic, UNITS_MAGIC);
    }
    if (head.self != self || head.hosts != hosts)
        throw Error(Code::corrupt, directory + "/units belongs to host " + std::to_string(head.self) + " of " + std::to_string(head.hosts) +
                                       ", this is host " + std::to_string(self) + " of " + std::to_string(hosts) + "; remove the space on this host");
    clear_damage();
    std::vector<bool> used(SLOTS);
    for (u32 host = 0; host < hosts; host++)
        each_word(host, [&](u64, u64 word) {
            if (host == self && (word & RETURNED)) used[returned_slot(word)] = true;
            if (host != self && copy_state(word) == escrow && escrow_slot(word) < SLOTS) used[escrow_slot(word)] = true;
        });
    for (u32 slot = SLOTS; slot--;)
        if (!used[slot]) free_slots_.push_back(slot);
}

// Words that no keeper writes: the file was damaged. Without them a keeper lives, with them none would.
void Segments::clear_damage() {
    std::vector<std::pair<u32, u64>> bad;
    for (u32 host = 0; host < hosts_; host++)
        each_word(host, [&](u64 unit, u64 word) {
            const bool own = host == self_;
            bool wrong = unit >= units(host) || (!own && copy_state(word) == escrow && escrow_slot(word) >= SLOTS);
            wrong |= own && (home_state(word) > lent || (home_state(word) == lent && owner_of(word) >= hosts_) || u64(sharers_of(word)) >> hosts_);
            if (wrong) bad.emplace_back(host, unit);
        });
    for (auto [host, unit] : bad) store(words(host)[unit], u64(0));
    if (!bad.empty()) std::fprintf(stderr, "openshelf: %zu damaged words of units were cleared\n", bad.size());
}

Segments::~Segments() {
    if (map_ && map_ != MAP_FAILED) munmap(map_, units_bytes(hosts_));
    for (const char* copy : copies_) munmap(const_cast<char*>(copy), segment_bytes_);
    munmap(const_cast<char*>(shadow_bytes_), segment_bytes_);
    munmap(const_cast<char*>(escrow_bytes_), SLOTS * UNIT_MAX);
    for (int fd : caches_)
        if (fd >= 0) close(fd);
    for (int fd : {units_, data_, shadow_, escrow_})
        if (fd >= 0) close(fd);
}

void Segments::set_word(u32 home, u64 unit, u64 value) {
    u64& word = words(home)[unit];
    u64 page = u64(reinterpret_cast<char*>(&word) - map_) / PAGE;
    if (!committed_[page]) {
        if (int error = allocate_file(units_, page * PAGE, PAGE)) fail_os("no memory for the state of units", error);
        committed_[page] = true;
    }
    const u64 before = word;
    store(word, value, std::memory_order_seq_cst);
    const bool kept = (value & RETURNED) && returned_slot(value) == returned_slot(before);
    if (home == self_ && (before & RETURNED) && !kept) free_slot(returned_slot(before));
}

void Segments::each_word(u32 home, const std::function<void(u64, u64)>& show) const {
    const u64 begin = u64(reinterpret_cast<char*>(words(home)) - map_), end = begin + WORDS * 8;
    for (off_t at = off_t(begin);;) {
        at = lseek(units_, at, SEEK_DATA);
        if (at < 0 || u64(at) >= end) return;
        off_t hole = std::min<off_t>(lseek(units_, at, SEEK_HOLE), off_t(end));
        for (u64 unit = (u64(at) - begin) / 8; unit < (u64(hole) - begin) / 8; unit++)
            if (u64 word = load(words(home)[unit])) show(unit, word);
        at = hole;
    }
}

const char* Segments::map(int fd, u64 bytes) {
    void* at = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) fail_os("mapping a segment", errno);
    if (!abilities().minor) madvise(at, bytes, MADV_NOHUGEPAGE);
    return static_cast<const char*>(at);
}

const char* Segments::bytes(Source source, u32 home, u64 unit, u32 slot) const {
    if (source == Source::slot) return escrow_bytes_ + slot * UNIT_MAX;
    return (source == Source::shadow ? shadow_bytes_ : copies_[home]) + unit * unit_bytes(home);
}

void Segments::fill(u32 home, u64 unit, const char* bytes) {
    u64 size = unit_bytes(home);
    write_all(file(home), bytes, size, unit * size);
    if (home != self_) copied_ += size;
}

void Segments::punch(u32 home, u64 unit) {
    u64 size = unit_bytes(home);
    punch_file(file(home), unit * size, size);
    if (home != self_) copied_ -= std::min(copied_, size);
}

void Segments::provide(u64 unit) {
    u64 size = unit_bytes(self_);
    struct stat status {};
    u64 end = fstat(data_, &status) == 0 ? u64(status.st_size) : 0;
    u64 bytes = unit * size >= end ? 0 : std::min(size, end - unit * size);
    if (int error = bytes ? allocate_file(data_, unit * size, bytes) : ENXIO) fail_os("no memory for a unit", error);
}

void Segments::save(u64 unit) {
    u64 size = unit_bytes(self_);
    write_all(shadow_, bytes(Source::own, self_, unit, 0), size, unit * size);
}

void Segments::restore(u64 unit) {
    const u64 size = unit_bytes(self_), is = word(self_, unit);
    write_all(data_, bytes(is & RETURNED ? Source::slot : Source::shadow, self_, unit, returned_slot(is)), size, unit * size);
}

void Segments::drop_shadow(u64 unit) {
    u64 size = unit_bytes(self_);
    dropped_.push_back(unit);
    if (dropped_.size() * size <= KEPT_SHADOWS) return;
    unit = dropped_.front();
    dropped_.pop_front();
    if (home_state(word(self_, unit)) != lent) punch_file(shadow_, unit * size, size);
}

bool Segments::take_slot(const char* bytes, u64 size, u32& slot) {
    if (free_slots_.empty()) return false;
    slot = free_slots_.back();
    write_all(escrow_, bytes, size, slot * UNIT_MAX);
    free_slots_.pop_back();
    return true;
}

bool Segments::take_slot(u32 home, u64 unit, u32& slot) { return take_slot(bytes(Source::copy, home, unit, 0), unit_bytes(home), slot); }

void Segments::keep_returned(u64 unit, const char* bytes) {
    u32 slot = 0;
    if (!take_slot(bytes, unit_bytes(self_), slot)) throw Error(Code::no_room, "no escrow slot is free for a unit that came back");
    set_word(self_, unit, returned_word(word(self_, unit), slot));
}

// A keeper was killed while it filled them in. The borrower may keep a copy: it says so, or that it has none, when it is met.
void Segments::end_returns() {
    std::vector<std::pair<u64, u64>> returned;
    each_word(self_, [&](u64 unit, u64 word) { if (word & RETURNED) returned.emplace_back(unit, word); });
    for (auto [unit, word] : returned) {
        fill(self_, unit, bytes(Source::slot, self_, unit, returned_slot(word)));
        set_word(self_, unit, home_word(home_shared, 0, 1u << owner_of(word)));
    }
}

void Segments::free_slot(u32 slot) {
    free_slots_.push_back(slot);
    if (slot >= KEPT_SLOTS) punch_file(escrow_, slot * UNIT_MAX, UNIT_MAX);
}

static struct flock range(short type, u64 at, u64 bytes) {
    struct flock lock {};
    lock.l_type = type;
    lock.l_whence = SEEK_SET;
    lock.l_start = off_t(at);
    lock.l_len = off_t(bytes);
    return lock;
}

int Segments::take_place(const std::string& directory, u32& place) {
    int fd = open_in(directory, "units", O_RDWR);
    for (place = 0; place < PLACES; place++) {
        struct flock lock = range(F_WRLCK, place, 1);
        if (fcntl(fd, F_OFD_SETLK, &lock) == 0) return fd;
    }
    close(fd);
    throw Error(Code::no_room, "more than " + std::to_string(PLACES) + " processes of this host have the space open");
}

std::vector<u32> Segments::places() const {
    std::vector<u32> taken;
    std::vector<std::pair<u64, u64>> open{{0, PLACES}};  // the kernel names any one that is in the way, not the first
    while (!open.empty()) {
        auto [begin, end] = open.back();
        open.pop_back();
        if (begin == end) continue;
        struct flock lock = range(F_WRLCK, begin, end - begin);
        if (fcntl(units_, F_OFD_GETLK, &lock) < 0) fail_os("asking which processes live", errno);
        if (lock.l_type == F_UNLCK) continue;
        taken.push_back(u32(lock.l_start));
        open.emplace_back(begin, u64(lock.l_start));
        open.emplace_back(u64(lock.l_start) + 1, end);
    }
    return taken;
}

void Segments::tidy(u32 home) {
    u64 size = unit_bytes(home);
    if (!size) return;
    auto each_unit = [&](int fd, const std::function<void(u64)>& show) {
        for (off_t at = 0;;) {
            at = lseek(fd, at, SEEK_DATA);
            if (at < 0) return;
            off_t hole = lseek(fd, at, SEEK_HOLE);
            for (u64 unit = u64(at) / size; unit * size < u64(hole); unit++) show(unit);
            at = hole;
        }
    };
    if (home != self_) {
        each_unit(caches_[home], [&](u64 unit) {
            CopyState state = copy_state(word(home, unit));
            if (state == shared || state == modified) copied_ += size;
            else punch_file(caches_[home], unit * size, size);
        });
        return;
    }
    end_returns();
    each_word(self_, [&](u64 unit, u64 word) { if (home_state(word) == lent) punch_file(data_, unit * size, size); });
    each_unit(shadow_, [&](u64 unit) { if (home_state(word(self_, unit)) != lent) drop_shadow(unit); });
}

}  // namespace osf::coherence

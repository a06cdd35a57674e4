// Files and mappings: making a space, opening it at its base address, leaving it; and what fork does to it.
#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <map>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "space/space.hpp"
#include "base/trusted.hpp"
#include "space/device.hpp"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace osf::space {

static const char MAGIC[16] = {'O', 'P', 'E', 'N', 'S', 'H', 'E', 'L', 'F', '\r', '\n', 26, 0, 0, 0, 0};

// All spaces of this process by the control file's identity: one space is mapped once, whatever path led to it, and its
// members file must not be opened a second time (closing that would drop the record lock). Guarded by the join gate.
// A space is in it from before it is mapped until after it is unmapped, so a fork finds every mapping there.
using Identity = std::pair<dev_t, ino_t>;
struct Opened {
    std::weak_ptr<Space> space;
    Space* raw;             // valid while the entry is there, even if another thread is closing the space
};
static std::map<Identity, Opened>& open_spaces() {
    static auto* spaces = new std::map<Identity, Opened>;
    return *spaces;
}
static std::vector<std::shared_ptr<Space>> forking;

// When a fork that is under way got how far. One that takes long says where: it is nothing that can be had again on demand.
static struct ForkTimes {
    u64 begun = 0, gated = 0, prepared = 0, joins = 0;
    void tell_slow(u64 forked) const {
        const u64 now = now_ns();
        if (now - begun < 1'000'000'000) return;
        auto seconds = [](u64 ns) { return double(ns) / 1e9; };
        char text[400];
        std::snprintf(text, sizeof text, "openshelf: process %d took %.1f s to fork: %.1f s until its other threads had opened or closed spaces, %.1f s until other processes had, "
                      "%.1f s for the rest of the preparation, %.1f s in the kernel, %.1f s until the child ran\n", int(getpid()), seconds(now - begun), seconds(gated - begun),
                      seconds(joins), seconds(prepared - gated - joins), seconds(forked - prepared), seconds(now - forked));
        [[maybe_unused]] ssize_t put = ::write(STDERR_FILENO, text, strlen(text));
    }
} fork_times;


struct File {
    int fd = -1;
    explicit File(int opened) : fd(opened) {}
    ~File() { if (fd >= 0) ::close(fd); }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
    int keep() { int was = fd; fd = -1; return was; }
};

static u64 size_of(int fd) {
    struct stat status {};
    if (fstat(fd, &status) < 0) fail_os("fstat", errno);
    return u64(status.st_size);
}

static Identity identity_of(int control_fd) {
    struct stat status {};
    if (fstat(control_fd, &status) < 0) fail_os("fstat", errno);
    return {status.st_dev, status.st_ino};
}

u64 header_check(const Header& header) { return hash_bytes(&header, offsetof(Header, check), VERSION); }

static Header header_of(int control_fd, const std::string& path) {
    Header header{};
    ssize_t got = pread(control_fd, &header, sizeof header, 0);
    const u64 size = size_of(control_fd);
    if (got != ssize_t(sizeof header) || std::memcmp(header.magic, MAGIC, sizeof MAGIC))
        throw Error(Code::corrupt, path + " is not the control file of a space");
    if (header.version != VERSION || header.layout_hash != Layout::hash() || header.header_bytes != sizeof(Header))
        throw Error(Code::wrong_version, path + " has layout version " + std::to_string(header.version) + ", this Openshelf reads " +
                                             std::to_string(VERSION) + " with its own layout; remove the space and make it anew");
    if (header.check != header_check(header)) throw Error(Code::corrupt, path + ": the header fails its checksum");
    if (size != Layout(header.reserve).control_bytes)
        throw Error(Code::corrupt, path + " has " + std::to_string(size) + " bytes, expected " +
                                       std::to_string(Layout(header.reserve).control_bytes) + ": it was truncated or extended");
    return header;
}

Header read_header(const std::string& directory) {
    File control(open_in(directory, "control", O_RDONLY));
    return header_of(control.fd, directory + "/control");
}

// Whoever asks and whoever is asked have the control file open: meanwhile no other file has its number.
static u64 id_of(int control_fd, const Header& header) {
    struct stat status {};
    if (fstat(control_fd, &status) < 0) fail_os("fstat", errno);
    const u64 parts[] = {u64(status.st_dev), u64(status.st_ino), header.created_ns};
    return hash_bytes(parts, sizeof parts, header.check) | 1;
}

u64 Space::id() const { return id_of(control_fd_, header()); }

u64 space_id(const std::string& directory) {
    File control(open_in(directory, "control", O_RDONLY));
    return id_of(control.fd, header_of(control.fd, directory + "/control"));
}

void mark_removed(const std::string& directory) {
    // A second name does not keep a space; what has one and is no control file is left alone, for it may be any file.
    File file(Folder(directory).open_named("control", O_RDWR));
    struct stat status {};
    char magic[sizeof MAGIC];
    if (fstat(file.fd, &status) < 0) fail_os("fstat", errno);
    if (status.st_nlink > 1 && (pread(file.fd, magic, sizeof magic, 0) != ssize_t(sizeof magic) || std::memcmp(magic, MAGIC, sizeof MAGIC)))
        throw Error(Code::not_permitted, directory + "/control has " + std::to_string(status.st_nlink) + " names and is not the control file of a space; remove it");
    const u64 yes = REMOVED;
    if (pwrite(file.fd, &yes, sizeof yes, offsetof(Header, removed)) != sizeof yes) fail_os("marking the space as removed", errno);
}

u32 live_members(const std::string& directory, bool remote) {
    std::unique_lock gate(join_gate());
    const Folder folder(directory);
    const File control(folder.open("control", O_RDONLY));
    auto found = open_spaces().find(identity_of(control.fd));
    if (found != open_spaces().end())
        if (auto space = found->second.space.lock()) return space->members.live_others(remote) + 1;
    File file(folder.open("members", O_RDWR));
    if (size_of(file.fd) < PINS_AT) throw Error(Code::corrupt, directory + "/members was truncated");
    void* map = mmap(nullptr, PINS_AT, PROT_READ, MAP_SHARED, file.fd, 0);
    if (map == MAP_FAILED) fail_os("mapping " + directory + "/members", errno);
    Members members;
    members.attach(file.fd, static_cast<char*>(map));
    u32 count = std::min<u32>(members.slots_high(), MEMBERS) ? members.live_others(remote) : 0;
    munmap(map, PINS_AT);
    return count;
}

static void register_fork_handlers();

void Space::create(const CreateOptions& options) {
    Layout layout(options.reserve);
    u64 limit = align_up(options.bytes, std::max(options.page_size, CHUNK)) / PAGE;
    if (limit > layout.heap[1].pages)
        throw Error(Code::no_room, "dram of " + std::to_string(options.bytes) + " bytes does not fit a reservation of " +
                                       std::to_string(options.reserve) + " bytes of addresses (at most " +
                                       std::to_string(layout.heap[1].pages * PAGE) + "); give a larger reserve");
    Header header{};
    std::memcpy(header.magic, MAGIC, sizeof MAGIC);
    header.version = VERSION;
    header.header_bytes = sizeof(Header);
    header.layout_hash = Layout::hash();
    header.base = options.base;
    header.reserve = options.reserve;
    timespec time{};
    clock_gettime(CLOCK_REALTIME, &time);
    header.created_ns = u64(time.tv_sec) * 1'000'000'000u + u64(time.tv_nsec);
    header.uid = getuid();
    header.mode = options.mode;
    header.page_size = options.page_size;
    header.tiers = options.tiers;
    header.made = limit * PAGE;
    std::string backing = options.backing.empty() ? "data" : options.backing;
    if (options.boot_id.size() >= sizeof header.boot_id || options.name.size() >= sizeof header.name || backing.size() >= sizeof header.backing)
        throw Error(Code::bad_input, "the name or the path of the backing is too long");
    std::strcpy(header.boot_id, options.boot_id.c_str());
    std::strcpy(header.name, options.name.c_str());
    std::strcpy(header.backing, backing.c_str());
    header.check = header_check(header);

    const std::string& dir = options.directory;
    // Only files that are made here are ever sized or, later, removed. They are private until they are shared, all at once.
    constexpr int fresh = O_RDWR | O_CREAT | O_EXCL;
    auto make = [&](const std::string& path, int fd, u64 size) {
        if (fd < 0) fail_os("making " + path, -fd);
        File file(fd);
        if (ftruncate(file.fd, off_t(size)) < 0) fail_os("making " + path, errno);
        return file.keep();
    };
    File device(-1);    // held until the space holds it
    {
        const Folder folder(dir);
        auto make_in = [&](const std::string& name, u64 size) { return make(dir + "/" + name, folder.open(name, fresh), size); };
        File control(make_in("control", layout.control_bytes));
        File members(make_in("members", layout.members_file_bytes));
        if (!options.backing.empty()) write_backing(dir, options.backing);
        if (!options.device)
            File(options.backing.empty() ? make_in("data", limit * PAGE) : make(options.backing, open_own(options.backing, fresh), limit * PAGE));
        if (int error = allocate_file(control.fd, 0, layout.heap[0].bits)) fail_os("no memory for the metadata of the space", error);
        if (int error = allocate_file(members.fd, 0, PINS_AT)) fail_os("no memory for the members of the space", error);
        if (pwrite(control.fd, &header, sizeof header, 0) != ssize_t(sizeof header)) fail_os("writing the header", errno);
        if (options.device) {
            device.fd = folder.open_data(O_RDWR);
            const size_t slash = dir.rfind('/');
            claim_device(label_place(device.fd), backing, {options.boot_id, dir.substr(0, slash), dir.substr(slash + 1), options.name, header.created_ns});
        }
    }
    register_fork_handlers();
    std::unique_lock gate(join_gate());
    const Folder folder(dir);
    std::shared_ptr<Space> space = attach(dir, folder, folder.open("control", O_RDWR), false);
    JoinLock join(space->members_fd_, std::move(gate));
    space->members.join(false);
    space->data.commit_maps(0, limit);
    if (options.device) space->data.adopt_memory(limit);
    space->data.set_limit(limit);
    space->index.create();
}

// What this process has open of this control file; nullptr if it has not. Waits for a thread that is just closing it.
static std::shared_ptr<Space> opened_already(int control_fd, std::unique_lock<std::mutex>& gate) {
    for (;;) {
        auto found = open_spaces().find(identity_of(control_fd));
        if (found == open_spaces().end()) return nullptr;
        if (auto space = found->second.space.lock()) return space;
        gate.unlock();
        std::this_thread::yield();
        gate.lock();
    }
}

// Under the join gate. All files are those of one folder that is held open: behind a path another space may be by now, with other
// addresses and another layout. Takes the control file.
std::shared_ptr<Space> Space::attach(const std::string& directory, const Folder& folder, int control_fd, bool read_only) {
    File control(control_fd);
    std::shared_ptr<Space> space(new Space(directory, header_of(control.fd, directory + "/control"), read_only));
    space->identity_ = identity_of(control.fd);
    space->control_fd_ = control.keep();
    open_spaces()[space->identity_] = {space, space.get()};
    try {
        space->map_files(folder);
    } catch (...) {
        space->unmap();  // here: the destructor would wait for the gate
        throw;
    }
    return space;
}

// Under the join gate. Closing the members file drops the record locks on it.
void Space::unmap() {
    if (companion) companion->space_gone();
    munmap(base_, layout.reserve);
    base_ = nullptr;
    for (int fd : {control_fd_, members_fd_, data_fd_})
        if (fd >= 0) ::close(fd);
    open_spaces().erase(identity_);
}

Space::Space(std::string directory, const Header& header, bool read_only)
    : layout(header.reserve), directory_(std::move(directory)), read_only_(read_only) {
    base_ = reinterpret_cast<char*>(header.base);
    void* got = mmap(base_, layout.reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (got != base_) {
        int error = errno;
        if (got != MAP_FAILED) munmap(got, layout.reserve);
        base_ = nullptr;
        char text[200];
        std::snprintf(text, sizeof text, "the addresses %#llx to %#llx are not free in this process (%s)", (unsigned long long)header.base,
                      (unsigned long long)(header.base + layout.reserve), std::strerror(got == MAP_FAILED ? error : EEXIST));
        throw Error(Code::address_occupied, text);
    }
}

void Space::map_files(const Folder& folder) {
    auto map = [&](int fd, u64 at, u64 size, bool writable, const char* what) {
        int protection = PROT_READ | (writable ? PROT_WRITE : 0);
        if (mmap(base_ + at, size, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED)
            fail_os(std::string("mapping the ") + what + " of the space at " + directory_, errno);
    };
    const int flags = read_only_ ? O_RDONLY : O_RDWR;
    map(control_fd_, 0, layout.control_bytes, !read_only_, "metadata");
    members_fd_ = folder.open("members", O_RDWR);
    if (size_of(members_fd_) != layout.members_file_bytes) throw Error(Code::corrupt, directory_ + "/members was truncated or extended");
    map(members_fd_, layout.members_at, layout.members_bytes, true, "members");
    data_fd_ = folder.open_data(flags);
    const bool fixed = is_device(data_fd_);
    if (fixed) hold_device(label_place(data_fd_), header().backing, header());
    if (!header().tiers) map_data();
    members.attach(members_fd_, base_ + layout.members_at);
    attach_parts();
    u64 limit = load(data.pages().limit);  // before the size: a space that is being grown has its file grown first
    if (limit > layout.heap[1].pages || (!fixed && size_of(data_fd_) < limit * PAGE))
        throw Error(Code::corrupt, "the data file of the space at " + directory_ + " has " + std::to_string(size_of(data_fd_)) +
                                       " bytes, expected at least " + std::to_string(limit * PAGE));
}

// A file may grow later: mapped to the end of the reservation, what it gains appears everywhere at once.
void Space::map_data() {
    const u64 whole_pages = std::max(header().page_size, BLOCK);
    u64 length = is_device(data_fd_) ? std::max(align_up(load(roots().pages[1].limit) * PAGE, whole_pages), whole_pages) : layout.heap[1].pages * PAGE;
    int protection = PROT_READ | (read_only_ ? 0 : PROT_WRITE);
    if (mmap(base_ + layout.data_at, length, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, data_fd_, 0) == MAP_FAILED)
        fail_os("mapping the data of the space at " + directory_, errno);
    madvise(base_ + layout.data_at, length, MADV_HUGEPAGE);  // taken where the backing can
}

void Space::attach_parts() {
    meta.attach(Heap::meta, base_, layout, roots(), members, control_fd_, data_fd_);
    data.attach(Heap::data, base_, layout, roots(), members, control_fd_, data_fd_);
    if (tiered())
        data.prepare_chunk = [this](u64 offset) {
            if (!pager) throw Error(Code::not_permitted, "this process is not attached to the space's keeper");
            pager->discard(base_ + offset, CHUNK);
            pager->provide(base_ + offset, CHUNK);
        };
    index.attach(base_, roots(), meta, members);
}

std::shared_ptr<Space> Space::open(const std::string& directory, bool read_only, const std::string& boot_id) {
    register_fork_handlers();
    std::shared_ptr<Space> space;
    bool shared = false;
    {
        std::unique_lock gate(join_gate());
        const Folder folder(directory);
        File control(folder.open("control", read_only ? O_RDONLY : O_RDWR));
        if ((space = opened_already(control.fd, gate))) {
            if (read_only != space->read_only_)
                throw Error(Code::not_permitted, "this process has the space at " + directory + " open " +
                                                     (read_only ? "for writing" : "read-only") + ", and page protection is per process; " +
                                                     "close that first, views included");
            return space;
        }
        space = attach(directory, folder, control.keep(), read_only);
        JoinLock join(space->members_fd_, std::move(gate));
        shared = space->enter(boot_id);
    }
    if (shared && !read_only) space->collect();
    return space;
}

// Under the join lock; true if others have the space open.
bool Space::enter(const std::string& boot_id) {
    // Processes on other hosts that a killed keeper served count: nothing of theirs is forgotten, and what the keeper left
    // half done is finished by whoever takes its locks. They outlive a boot of this machine, though.
    u32 others = members.live_others();
    if (members.live_others(false) == 0 && boot_id != header().boot_id)
        throw Error(Code::corrupt, "the space at " + directory_ + " was left by an earlier boot of this machine (" +
                                       header().boot_id + "); what it held cannot be trusted: remove it");
    if (others == 0) {
        u64 seal = load(header().seal);
        if (seal && seal != seal_value())
            throw Error(Code::corrupt, "the metadata of the space at " + directory_ + " fails its checksum: it was changed " +
                                           "while no process had it open; remove it");
        if (read_only_ && !seal) verify();
        if (!read_only_ && !seal) repair();
        if (!read_only_ || seal) members.forget();
    }
    members.join(read_only_);
    if (!read_only_) store(header().seal, 0, std::memory_order_seq_cst);
    return others > 0;
}

Space::~Space() {
    if (!base_) return;
    if (home_) {
        leave_home();
        return;
    }
    if (members.joined() && !read_only_) {
        try {
            collect();
        } catch (const Error&) {}
    }
    if (pager) pager->stop();
    pager.reset();  // its thread works on the mapping; before the gate, which a fork takes after this lock of its own
    // All under the gate: a thread that opens the space again must find neither the mapping nor the members file open.
    JoinLock join(members_fd_);
    if (members.joined()) {
        bool last = !read_only_ && members.live_others() == 0 && !load(header().removed);
        if (last) {
            // What only this process held, or nobody any more, does not survive it.
            members.drop_pins();
            limbo_.clear();
            members.add_orphan();
            try {
                collect();
            } catch (const Error&) { last = false; }  // no seal: the next to open the space repairs it
        }
        members.leave();
        if (last) store(header().seal, seal_value(), std::memory_order_seq_cst);
    }
    unmap();
    join.file_closed();
}

void Space::grow(u64 more) {
    need_write();
    JoinLock join(members_fd_);
    u64 limit = data.limit(), target = limit + align_up(more, std::max<u64>(header().page_size, CHUNK)) / PAGE;
    if (tiered()) throw Error(Code::not_permitted, "a space with a flash tier has the size of its flash: make another, with more");
    if (is_device(data_fd_)) throw Error(Code::not_permitted, "a device backing has a fixed size: the space cannot grow");
    if (target > layout.heap[1].pages)
        throw Error(Code::no_room, "the space reserved addresses for " + std::to_string(layout.heap[1].pages * PAGE) +
                                       " bytes of data; it has " + std::to_string(limit * PAGE) + " and cannot grow by " + std::to_string(more));
    data.commit_maps(limit, target);
    if (ftruncate(data_fd_, off_t(target * PAGE)) < 0) fail_os("growing the data file", errno);
    // The block at the old end may be committed up to there; the rest of it needs memory before somebody relies on it.
    u64 rest = std::min(align_up(limit * PAGE, BLOCK), target * PAGE) - limit * PAGE;
    if (int error = rest ? allocate_file(data_fd_, limit * PAGE, rest) : 0) fail_os("growing the data file", error);
    step();
    data.set_limit(target);
}

void Space::refuse() const {
    const u64 word = load(header().removed);
    if (word == REMOVED) throw Error(Code::closed, std::string("the space '") + header().name + "' was removed");
    if (word) throw Error(Code::corrupt, "the header of the space at " + directory_ + " is damaged: it says neither that the space is there nor that it was removed; remove the space");
    throw Error(Code::closed, std::string("this process lost its place in the space '") + header().name +
                                  "' when it was forked (no member slot was free); open it again in a new process");
}

void Space::need_write() const {
    check_usable();
    if (read_only_) throw Error(Code::not_permitted, std::string("the space '") + header().name + "' is open read-only (mode=\"r\")");
}

// Processes that died keep their slots until somebody collects. One that forks again and again would find none left for a child.
static void free_slots() {
    std::vector<std::shared_ptr<Space>> full;
    {
        std::lock_guard gate(join_gate());
        for (auto& [identity, opened] : open_spaces())
            if (auto space = opened.space.lock(); space && space->members.joined() && !space->read_only() && space->members.nearly_full()) full.push_back(std::move(space));
    }
    for (auto& space : full) {
        try {
            space->collect();
        } catch (const Error&) {}  // a child that gets no slot is told so
    }
}

void fork_prepare_all() {
    const u64 begun = now_ns();
    free_slots();
    join_gate().lock();
    fork_times = {begun, now_ns(), 0, 0};
    for (auto& [identity, opened] : open_spaces())
        if (auto space = opened.space.lock(); space && space->members.joined()) {
            space->limbo_mutex_.lock();
            fork_times.joins += space->members.fork_prepare();
            forking.push_back(std::move(space));
        }
    fork_times.prepared = now_ns();
}

void fork_after_all(bool child) {
    const u64 forked = now_ns();
    for (auto& space : forking) {
        if (child) {
            space->members.fork_child();
            for (auto& weak : space->proxies_)  // the parent's to serve
                if (auto proxy = weak.lock()) proxy->members.abandon();
            space->proxies_.clear();
            space->limbo_.clear();  // the parent's to free
            space->limbo_bytes_ = 0;
        } else {
            space->members.fork_parent();
        }
        space->limbo_mutex_.unlock();
    }
    if (child) {  // what a thread of the parent was just closing: here nobody will
        std::vector<Space*> abandoned;
        for (auto& [identity, opened] : open_spaces())
            if (opened.space.expired()) abandoned.push_back(opened.raw);
        for (Space* space : abandoned) space->unmap();
    }
    auto done = std::move(forking);
    forking.clear();
    if (!child) fork_times.tell_slow(forked);
    join_gate().unlock();
}

static void register_fork_handlers() {
    static int once = pthread_atfork(fork_prepare_all, [] { fork_after_all(false); }, [] { fork_after_all(true); });
    (void)once;
}

}  // namespace osf::space

#include "coherence/host_client.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

#include "base/trusted.hpp"

namespace osf::coherence {

void close_space(const std::string& path, const std::string& directory, u64 id) {
    const Dialled keeper(path);
    Note note;
    std::string text;
    bool answered = false;
    try {
        send_note(keeper.fd(), CloseNote{id}, directory);
        answered = receive_note(keeper.fd(), note, text);
    } catch (const Error&) {}
    if (answered && !is_good(note)) throw Error(Code::not_permitted, text);
}

std::shared_ptr<Attachment> attach(const std::shared_ptr<Space>& space, const Attachment::Options& options) {
    static std::mutex mutex;
    std::lock_guard guard(mutex);
    if (space->companion) return std::static_pointer_cast<Attachment>(space->companion);
    auto attachment = std::make_shared<Attachment>(*space, options);
    space->companion = attachment;
    return attachment;
}

Attachment::Attachment(Space& space, Options options)
    : KeeperClient({options.socket, options.keeper, space.header().name, Code::host_lost, 3'000 * MILLI, 200}), options_(std::move(options)),
      directory_(space.directory()), name_(space.header().name), id_(space.id()), base_(space.header().base - options_.self * space.layout.reserve),
      reserve_(space.layout.reserve), data_at_(space.layout.data_at), segment_bytes_(space.layout.heap[1].pages * PAGE), read_only_(space.read_only()),
      caches_(options_.hosts.size(), -1) {
    Dialled keeper(options_.socket);
    try {
        Note note;
        std::string text;
        send_note(keeper.fd(), OpenNote{id_, options_.unit}, directory_);
        if (!receive_note(keeper.fd(), note, text))
            throw Error(Code::host_lost, "the keeper at " + options_.socket + " ended while the space was opened; " +
                                             log_beside(options_.socket) + " may say why");
        if (!is_good(note)) throw Error(Code::bad_input, text);
        take_files();
        reserve_addresses();
        place_fd_ = Segments::take_place(directory_, place_);
        map_segments();
        if (how_ == Faults::none) close(std::exchange(place_fd_, -1));  // nothing is mapped that a keeper would have to wait for
        hand_over(keeper.fd(), {});
        begin(keeper);
    } catch (...) {
        unmap_segments(false);
        throw;
    }
}

Attachment::~Attachment() {
    end();
    unmap_segments(false);
}

void Attachment::take_files() {
    const Folder folder(directory_);
    own_fd_ = folder.open_data(O_RDWR);  // also to read only: the kernel wants it so for faults
    for (u32 host = 0; host < options_.hosts.size(); host++)
        if (host != options_.self) caches_[host] = folder.open(Segments::cache_name(host), O_RDWR);
    int units = folder.open("units", O_RDWR);
    void* words = mmap(nullptr, Segments::units_bytes(u32(options_.hosts.size())), PROT_READ, MAP_SHARED | MAP_NORESERVE, units, 0);
    close(units);
    if (words == MAP_FAILED) fail_os("mapping the state of units", errno);
    units_ = static_cast<const char*>(words);
}

void Attachment::reserve_addresses() {
    for (u32 host = 0; host < options_.hosts.size(); host++) {
        if (host == options_.self) continue;
        char* at = reinterpret_cast<char*>(base_ + host * reserve_);
        if (mmap(at, reserve_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0) != at)
            throw Error(Code::address_occupied, "the addresses of host " + options_.hosts[host] + " are not free in this process; " +
                                                    "give the space another base in the hosts file");
        reserved_ |= 1u << host;
    }
}

// The own segment and the copies, registered for faults as far as this process does it: the own segment is, part by part, by
// the keeper, when a unit is first lent. Until then it is memory like any.
void Attachment::map_segments() {
    faults_ = open_faults(how_);
    if (how_ == Faults::none) return;
    for (u32 host = 0; host < options_.hosts.size(); host++) map_segment(host);
}

void Attachment::map_segment(u32 host) {
    const bool own = host == options_.self;
    int fd = own ? own_fd_ : caches_[host];
    if (fd < 0) return;
    char* at = reinterpret_cast<char*>(base_ + host * reserve_ + data_at_);
    int protection = PROT_READ | (read_only_ ? 0 : PROT_WRITE);
    if (mmap(at, segment_bytes_, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED)
        fail_os("mapping the segment of host " + options_.hosts[host], errno);
    // Without MINOR, a huge page that khugepaged makes would fill what is lent with zeros that everybody sees.
    madvise(at, segment_bytes_, own && abilities().minor ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    if (follows(Rule::fork) && madvise(at, segment_bytes_, MADV_DONTFORK) < 0) fail_os("madvise", errno);
    if (own) return;
    if (int error = register_faults(faults_, u64(at), segment_bytes_)) fail_os("registering faults", error);
}

void Attachment::restore(u32 host) {
    std::lock_guard guard(mutex_);
    if (how_ != Faults::none) map_anew(host);
}

// Of the host's bytes nothing is marked any more: the keeper does that when it hears that they are met.
void Attachment::map_anew(u32 host) {
    map_segment(host);
    if (abilities().minor) return;
    met_.erase(host);
    std::lock_guard guard(leases_);
    ended_.erase(host);
}

// forbid: views may be left; a touch must end the process rather than read what nobody keeps coherent.
void Attachment::unmap_segments(bool forbid) {
    for (u32 host = 0; host < options_.hosts.size(); host++) {
        char* at = reinterpret_cast<char*>(base_ + host * reserve_);
        if (forbid) mmap(at + data_at_, segment_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        else if (reserved_ & 1u << host) munmap(at, reserve_);
        if (!forbid && caches_[host] >= 0) close(caches_[host]);
    }
    if (faults_ >= 0) close(faults_);
    if (place_fd_ >= 0) close(place_fd_);
    faults_ = place_fd_ = -1;
    if (forbid) return;
    if (units_) munmap(const_cast<char*>(units_), Segments::units_bytes(u32(options_.hosts.size())));
    if (own_fd_ >= 0) close(own_fd_);
}

std::string Attachment::lives() const {
    std::string text;
    for (auto [host, life] : met_) {
        Met met{host, life};
        text.append(reinterpret_cast<const char*>(&met), sizeof met);
    }
    return text;
}

void Attachment::hand_over(int socket, const std::string& lives) {
    introduce(socket, AttachNote{id_, u64(getpid()), place_, abilities().minor}, directory_ + "\n" + lives);
}

void Attachment::greet(int socket) {
    Note note;
    std::string text;
    send_note(socket, OpenNote{id_, options_.unit}, directory_);
    if (!await_note(socket, note, text) || !is_good(note)) throw Error(Code::host_lost, text);
    std::unique_lock lock(mutex_);
    const std::string met = lives();
    lock.unlock();
    hand_over(socket, met);
}

// A keeper that is there has ended its leases itself, unless it is stopped. One that is stopped before it answers must not keep this
// process from ending them.
void Attachment::idle(bool keeper) { end_leases(keeper ? LEASE_NS + SUSPEND_NS : LEASE_NS); }

// Where no keeper does it: what was borrowed for a time that is over cannot be used any more. Its bytes stay, for the next keeper.
void Attachment::end_leases(u64 after_ns) {
    if (how_ == Faults::none) return;
    std::lock_guard guard(leases_);
    for (u32 host = 0; host < options_.hosts.size(); host++) {
        const u64 leased = load(head().leased[host]), at = base_ + host * reserve_ + data_at_;
        if (host == options_.self || leased == ended_[host] || now_ns() - leased < after_ns) continue;
        ended_[host] = leased;
        if (!abilities().minor) {
            if (load(head().suspended[host]) == leased) continue;       // the keeper has done it
            if (bar_pages(faults_, at, segment_bytes_)) {               // no memory for that
                lose_pages(faults_, at, segment_bytes_);
                continue;
            }
        }
        madvise(reinterpret_cast<char*>(at), segment_bytes_, MADV_DONTNEED);
    }
}

u64 Attachment::prefetch(u64 address, u64 bytes, bool write) {
    return ask(PrefetchNote{0, address, bytes, write});
}

bool Attachment::wait(u64 id, long timeout_ns) {
    const std::optional<Pending> result = answer(id, timeout_ns);
    if (!result || result->good) return bool(result);
    const PrefetchNote& asked = std::get<PrefetchNote>(result->note);
    const std::string& lost = host(host_of(asked.address));
    char range[80];
    std::snprintf(range, sizeof range, "%#llx to %#llx", (unsigned long long)asked.address, (unsigned long long)(asked.address + asked.bytes));
    throw HostLost(lost, "host " + lost + " is lost; " + range + " could not be fetched", asked.address, asked.bytes);
}

std::string Attachment::status() {
    const std::optional<Pending> result = answer(ask(StatusNote{}), 5'000'000'000, true);
    if (!result) throw Error(Code::host_lost, "the keeper at " + options_.socket + " does not answer");
    return result->answer;
}

void Attachment::meet(u64 address, u64 incarnation, const std::function<void()>& check) {
    u32 host = host_of(address);
    {
        std::lock_guard guard(mutex_);
        auto found = met_.find(host);
        bool linked = load(head().linked) >> host & 1;  // first: if it is and the session is the old one, no other was meanwhile
        if (linked && found != met_.end() && found->second == life_of(incarnation, load(head().taken[host]))) return;
    }
    check();
    if (!abilities().minor) {
        std::lock_guard guard(mutex_);
        auto found = met_.find(host);
        // The keeper has barred the bytes of that earlier life.
        if (found != met_.end() && found->second != life_of(incarnation, load(head().taken[host]))) map_anew(host);
    }
    u64 session;
    for (u64 start = now_ns();;) {  // the keepers may not have found each other yet, or again
        session = load(head().taken[host]);
        const std::optional<Pending> result = answer(ask(MeetNote{0, host, incarnation}), 5'000'000'000, true);
        if (result && result->good && session == load(head().taken[host])) break;
        if (now_ns() - start > 3'000'000'000) throw HostLost(this->host(host), "host " + this->host(host) + " has no link to this host's keeper", address, 1);
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    std::lock_guard guard(mutex_);
    met_[host] = life_of(incarnation, session);
}

Attachment::States Attachment::states(u64 address, u64 bytes) const {
    States states;
    u32 host = host_of(address);
    u64 unit = load(head().unit[host]);
    if (!unit || !bytes) return states.invalid = bytes != 0, states;
    u64 first = (address - base_) % reserve_ - data_at_, last = first + bytes - 1;
    const u64* words = reinterpret_cast<const u64*>(units_ + PAGE) + host * WORDS;
    for (u64 at = first / unit; at <= last / unit; at++) {
        u64 word = load(words[at]);
        bool own = host == options_.self;
        bool writes = own ? home_state(word) == at_home : copy_state(word) == modified;
        bool reads = own ? home_state(word) == home_shared : copy_state(word) == shared;
        (writes ? states.modified : reads ? states.shared : states.invalid)++;
    }
    return states;
}

std::string Attachment::owners(u64 address, u64 bytes) const {
    std::string words;
    u64 unit = load(head().unit[options_.self]), first = address - base_ - options_.self * reserve_ - data_at_;
    if (!unit || !bytes || host_of(address) != options_.self) return words;
    const u64* own = reinterpret_cast<const u64*>(units_ + PAGE) + options_.self * WORDS;
    for (u64 at = first / unit; at <= (first + bytes - 1) / unit; at++) {
        u64 word = load(own[at]);
        words.append(reinterpret_cast<const char*>(&word), sizeof word);
    }
    return words;
}

void Attachment::space_gone() {
    std::lock_guard guard(mutex_);
    if (own_fd_ >= 0) close(own_fd_);
    own_fd_ = -1;
}

void Attachment::name_host(u32 number, std::string host) {
    std::lock_guard guard(mutex_);
    if (number >= options_.hosts.size() || joined_[number].load()) return;
    joined_[number] = &names_.emplace_back(std::move(host));
}

bool Attachment::explain(u64 address, char* text, size_t room) const {
    if (address < base_ || address >= base_ + options_.hosts.size() * reserve_) return false;
    u32 at = host_of(address);
    if (at == options_.self) {
        std::snprintf(text, room, "openshelf: there is no memory left behind %#llx of space '%s'\n", (unsigned long long)address, name_.c_str());
        return true;
    }
    std::snprintf(text, room, "openshelf: host %s is lost, and with it the bytes at %#llx (its segment of space '%s': %#llx to %#llx). A touch cannot be an "
                  "exception: this process ends. Where that matters, use space.get() or array.prefetch().wait() first.\n",
                  host(at).c_str(), (unsigned long long)address, name_.c_str(), (unsigned long long)(base_ + at * reserve_),
                  (unsigned long long)(base_ + (at + 1) * reserve_));
    return true;
}

void Attachment::fork_child() {
    if (!follows(Rule::fork)) return fork_parent();
    KeeperClient::fork_child();
}

void Attachment::map_again() {
    unattached_.clear();                      // of a parent that could not attach
    if (place_fd_ >= 0) close(std::exchange(place_fd_, -1));
    place_fd_ = Segments::take_place(directory_, place_);
    new (&leases_) std::mutex;                // a thread of the parent may have had it
    ended_.clear();
    map_segments();
}

}  // namespace osf::coherence

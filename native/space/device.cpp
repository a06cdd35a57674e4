#include "space/device.hpp"

#include <cerrno>
#include <chrono>
#include <fcntl.h>
#include <random>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>

#include "base/trusted.hpp"
#include "space/space.hpp"

namespace osf::space {

namespace {

// The first 4 KiB of the device's last page. A device may hold anything before its first claim, so the word itself tells a label.
struct Label {
    u64 word;               // 0: free. TAG << 32 | 16 bits of the boot's hash << 16 | 16 random bits; it is taken by compare-and-swap
    u64 check;              // of all below, with the word; wrong while the label is being written
    u64 created_ns;
    u64 folder_dev, folder_ino;   // who does not see the same folder there cannot know whether the space lives
    u64 uid;
    char boot_id[40];
    char folder[1024], making[160], name[80];
};
static_assert(sizeof(Label) <= PAGE);
constexpr u64 TAG = 0x0d5fde71;

enum class Standing { unclaimed, gone, alive, unknown };

u64 boot_bits(const std::string& boot_id) { return (hash_name(boot_id) & 0xffff) << 16; }
bool is_label(u64 word) { return word >> 32 == TAG; }
u64 check_of(const Label& label) {
    constexpr size_t from = offsetof(Label, created_ns);
    return hash_bytes(reinterpret_cast<const char*>(&label) + from, sizeof label - from, label.word);
}

class MappedLabel {
public:
    MappedLabel(const LabelPlace& place, const std::string& path, bool writable) : bytes_(place.bytes) {
        at_ = mmap(nullptr, bytes_, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, place.fd, off_t(place.at));
        if (at_ == MAP_FAILED) fail_os("mapping the label of " + path, errno);
    }
    ~MappedLabel() { munmap(at_, bytes_); }
    MappedLabel(const MappedLabel&) = delete;
    MappedLabel& operator=(const MappedLabel&) = delete;

    Label& operator*() const { return *static_cast<Label*>(at_); }
    Label copy() const {    // texts end, whatever is there
        Label label = **this;
        label.word = load((**this).word);
        label.boot_id[sizeof label.boot_id - 1] = label.folder[sizeof label.folder - 1] = label.making[sizeof label.making - 1] = label.name[sizeof label.name - 1] = 0;
        return label;
    }

private:
    void* at_;
    u64 bytes_;
};

// Of one of the two directories that the space can have. None: nobody can say.
std::optional<bool> is_there(const Label& label, const char* directory) {
    try {
        return read_header(std::string(label.folder) + "/" + directory).created_ns == label.created_ns;
    } catch (const Error& error) {
        if (error.code == Code::unknown_name) return false;
        return std::nullopt;
    }
}

Standing standing(const Label& label, const std::string& boot_id) {
    if (!is_label(label.word)) return Standing::unclaimed;
    const bool same_boot = (label.word & 0xffff0000) == boot_bits(boot_id);
    if (label.check != check_of(label)) return same_boot ? Standing::gone : Standing::unknown;  // whoever wrote it was killed, or is writing it
    struct stat folder {};
    if (label.boot_id != boot_id || ::stat(label.folder, &folder) < 0 || folder.st_dev != label.folder_dev || folder.st_ino != label.folder_ino) return Standing::unknown;
    for (const char* directory : {label.making, label.name}) {  // in this order: it is renamed
        const std::optional<bool> there = is_there(label, directory);
        if (!there) return Standing::unknown;
        if (*there) return Standing::alive;
    }
    return Standing::gone;
}

std::string owner_of(const Label& label, const std::string& path) {
    for (const char* text : {label.name, label.folder})  // who can write the device can have written these
        for (const char* at = text; *at; at++)
            if (*at < ' ' || *at == 127) return "the device " + path + " is the memory of a space with an impossible name, of user " + std::to_string(label.uid);
    return "the device " + path + " is the memory of the space '" + label.name + "' of user " + std::to_string(label.uid) + " at " + label.folder;
}

[[noreturn]] void refuse_claim(const Label& label, Standing how, const std::string& path, const std::string& boot_id) {
    std::string why;
    if (how == Standing::alive) why = owner_of(label, path) + "; remove that space first, or give another backing";
    else if (label.check != check_of(label)) why = "another host is taking the device " + path + " for a space, or was killed meanwhile; if no host uses it, free it: openshelf rm " + path;
    else if (label.boot_id != boot_id)
        why = owner_of(label, path) + ", made on another host, or before the last boot of this one; if no host uses it any more, free it: openshelf rm " + path;
    else why = owner_of(label, path) + ", which cannot be looked at from here; if that space is gone, free the device: openshelf rm " + path;
    throw Error(Code::name_taken, why);
}

// Nobody on this host maps the device, nor will until the descriptor is closed.
bool lock_alone(int fd) {
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK) return false;
        if (errno != EINTR) fail_os("locking a device", errno);
    }
    return true;
}

template <size_t N> void copy_text(char (&to)[N], const std::string& from) {
    if (from.size() >= N) throw Error(Code::bad_input, "'" + from + "' is too long for the label of a device");
    std::strcpy(to, from.c_str());
}

}  // namespace

bool is_device(int fd) {
    struct stat status {};
    return fstat(fd, &status) == 0 && S_ISCHR(status.st_mode);
}

u64 device_room(int fd) { return label_place(fd).at; }

LabelPlace label_place(int fd) {
    const u64 bytes = device_number(fd, "size"), page = device_number(fd, "align");
    if (!page || bytes < 2 * page) throw Error(Code::no_room, "a device of " + std::to_string(bytes) + " bytes has no room for a space");
    return {fd, (bytes / page - 1) * page, page};
}

void claim_device(const LabelPlace& place, const std::string& path, const DeviceClaim& claim) {
    const MappedLabel mapped(place, path, true);
    auto look = [&] {
        const Label seen = mapped.copy();
        const Standing how = standing(seen, claim.boot_id);
        if (how == Standing::alive || how == Standing::unknown) refuse_claim(seen, how, path, claim.boot_id);
        return seen.word;
    };
    look();
    if (!lock_alone(place.fd))
        throw Error(Code::name_taken, "processes of this host still map the device " + path + ": they hold views of a space that was removed; release these, or give another backing");
    const u64 seen = look();
    Label label{};
    label.word = TAG << 32 | boot_bits(claim.boot_id) | (std::random_device{}() & 0xffff);
    if (label.word == seen) label.word ^= 1;
    struct stat folder {};
    if (::stat(claim.folder.c_str(), &folder) < 0) fail_os("looking at " + claim.folder, errno);
    label.created_ns = claim.created_ns;
    label.folder_dev = folder.st_dev, label.folder_ino = folder.st_ino, label.uid = geteuid();
    copy_text(label.boot_id, claim.boot_id);
    copy_text(label.folder, claim.folder);
    copy_text(label.making, claim.making);
    copy_text(label.name, claim.name);
    label.check = check_of(label);
    if (!cas((*mapped).word, seen, label.word)) throw Error(Code::name_taken, "another host has just taken the device " + path + " for a space; give another backing");
    std::memcpy(&(*mapped).check, &label.check, sizeof label - offsetof(Label, check));
    while (flock(place.fd, LOCK_SH) < 0)
        if (errno != EINTR) fail_os("locking " + path, errno);
}

void hold_device(const LabelPlace& place, const std::string& path, const Header& header) {
    for (int left = 1000; flock(place.fd, LOCK_SH | LOCK_NB) < 0; left--) {  // somebody looks at the label just now
        if (errno != EWOULDBLOCK && errno != EINTR) fail_os("locking " + path, errno);
        if (!left) throw Error(Code::not_permitted, "another process has kept the device " + path + " locked for seconds");
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    const Label label = MappedLabel(place, path, false).copy();
    if (!is_label(label.word) || label.check != check_of(label) || label.created_ns != header.created_ns || std::strcmp(label.boot_id, header.boot_id) != 0)
        throw Error(Code::corrupt, "the device " + path + " is no longer that of the space '" + header.name + "': its label was freed or is another space's; remove the space");
}

void release_device(const std::string& directory) {
    const Header header = read_header(directory);
    const Descriptor data(open_data(directory, O_RDWR));
    if (!is_device(data.fd)) return;
    const LabelPlace place = label_place(data.fd);
    const MappedLabel mapped(place, header.backing, true);
    const Label label = mapped.copy();
    if (is_label(label.word) && label.check == check_of(label) && label.created_ns == header.created_ns && !std::strcmp(label.boot_id, header.boot_id) && lock_alone(data.fd))
        cas((*mapped).word, label.word, 0);
}

void free_device(const LabelPlace& place, const std::string& path, const std::string& boot_id) {
    const MappedLabel mapped(place, path, true);
    const Label label = mapped.copy();
    if (standing(label, boot_id) == Standing::alive) throw Error(Code::not_permitted, owner_of(label, path) + ": remove that space by its name");
    if (!lock_alone(place.fd)) throw Error(Code::not_permitted, "processes of this host still map the device " + path + "; end them first");
    if (is_label(label.word)) cas((*mapped).word, label.word, 0);
}

}  // namespace osf::space

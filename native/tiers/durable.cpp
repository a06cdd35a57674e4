// A durable space again, after the machine or the space's directory went.
#include "tiers/durable.hpp"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <unistd.h>

#include "base/trusted.hpp"
#include "space/space.hpp"
#include "tiers/flash.hpp"
#include "tiers/journal.hpp"

namespace osf::tiers {

std::string journal_path(const std::string& path, u64 id) {
    char text[20];
    std::snprintf(text, sizeof text, ".%016llx", static_cast<unsigned long long>(id));
    return path + text;
}

bool durable_at(Disk& disk, const std::string& path) {
    const u64 id = Flash::id_at(disk, path);
    return id && Journal::exists(disk, journal_path(path, id));
}

static std::string journal_at(Disk& disk, const std::string& path) {
    const u64 id = Flash::id_at(disk, path);
    if (!id) throw Error(Code::corrupt, path + " is not the first flash file of a space, or its head is damaged");
    return journal_path(path, id);
}

static DurableHead durable_head(const Journal& journal, const std::string& path) {
    DurableHead head{};
    if (const char* page = journal.page(0)) std::memcpy(&head, page, sizeof head);
    if (!journal.generation())
        throw Error(Code::corrupt, "nothing was ever flushed to the durable space at " + path + ": there is nothing to restore; remove its files");
    if (head.magic != DURABLE_MAGIC) throw Error(Code::corrupt, "the journal of " + path + " does not describe a space");
    if (head.version != TIERS_VERSION || head.layout_hash != Layout::hash())
        throw Error(Code::wrong_version, "the durable space at " + path + " was written by another version of Openshelf, with another layout");
    return head;
}

Restored durable_geometry(Disk& disk, const std::string& path) {
    Journal journal(disk, journal_at(disk, path));
    journal.recover();
    DurableHead head = durable_head(journal, path);
    return {head.base, head.reserve, head.units, head.slots};
}

static void check_fits(const DurableHead& durable, const std::vector<std::string>& files, u64 capacity) {
    const std::string at = "the durable space at " + files[0];
    if (files.size() != durable.files)
        throw Error(Code::bad_input, at + " has " + std::to_string(durable.files) + " files, got " + std::to_string(files.size()));
    const u64 spare = durable.slots - durable.units;
    if (capacity + 128 > spare)
        throw Error(Code::bad_input, at + " was made with less dram: it can have at most " + std::to_string((spare - 128) * UNIT) + " bytes");
}

static void need(int error) {
    if (error) fail_os("no memory for the metadata of the space", error);
}

static Header header_for(const Journal& journal, const std::string& path, const std::string& name, const std::string& boot_id, const std::string& backing) {
    Header header{};
    const char* first = journal.page(CONTROL_PAGES);
    if (!first) throw Error(Code::corrupt, "the journal of " + path + " lacks the header of the space");
    std::memcpy(&header, first, sizeof header);
    if (boot_id.size() >= sizeof header.boot_id || name.size() >= sizeof header.name || backing.size() >= sizeof header.backing)
        throw Error(Code::bad_input, "the name or the path of the backing is too long");
    auto put = [](char* to, u64 room, const std::string& text) { std::memset(to, 0, room), std::memcpy(to, text.data(), text.size()); };
    put(header.boot_id, sizeof header.boot_id, boot_id);
    put(header.name, sizeof header.name, name);
    put(header.backing, sizeof header.backing, backing.empty() ? "data" : backing);
    header.seal = header.removed = 0;
    header.check = header_check(header);
    return header;
}

constexpr u32 MODE = 0600;                   // a space with a flash tier is one user's
constexpr int MAKE = O_RDWR | O_CREAT | O_EXCL;

static int sized(const std::string& path, int fd, u64 size) {
    if (fd < 0) fail_os("making " + path, -fd);
    if (ftruncate(fd, off_t(size)) < 0) fail_os("making " + path, errno);
    return fd;
}

static int make_in(const std::string& directory, const std::string& file, u64 size) {
    return sized(directory + "/" + file, open_in(directory, file, MAKE, MODE), size);
}

static void write_members(int members) {
    need(allocate_file(members, 0, PINS_AT));
    // Locks in arrays may name members of the old life: nobody here may be taken for one of those.
    const u32 life = u32(now_ns() >> 10) ^ u32(getpid()) << 9;
    std::vector<char> table(MEMBER_AT + MEMBERS * sizeof(Member));
    Member* of = reinterpret_cast<Member*>(table.data() + MEMBER_AT);
    for (u64 member = 0; member < MEMBERS; member++) of[member].generation = (life + u32(member) * 7919) & 0xfffff;
    if (pwrite(members, table.data(), table.size(), 0) != ssize_t(table.size())) need(errno);
}

static void write_control(int control, const Journal& journal, const std::string& path, const Layout& layout, const Header& header) {
    journal.each([&](u64 number, const char* bytes) {
        if (number < CONTROL_PAGES) return;
        const u64 at = (number - CONTROL_PAGES) * PAGE;
        if (at + PAGE > layout.control_bytes) throw Error(Code::corrupt, "the journal of " + path + " has a page that is outside the space");
        if (pwrite(control, bytes, PAGE, off_t(at)) != ssize_t(PAGE)) need(errno);
    });
    if (pwrite(control, &header, sizeof header, 0) != ssize_t(sizeof header)) need(errno);
}

// Memory for the maps that are derived from what is there, before anybody touches them.
static void provide_maps(int control, const std::string& path, const Layout& layout) {
    Roots roots;
    if (pread(control, &roots, sizeof roots, off_t(layout.roots_at)) != ssize_t(sizeof roots)) need(EIO);
    for (int h = 0; h < 2; h++) {
        const HeapMap& map = layout.heap[h];
        const u64 limit = roots.pages[h].limit;
        if (limit > map.pages) throw Error(Code::corrupt, "the journal of " + path + " has a heap of an impossible size");
        need(allocate_file(control, map.bits, limit / 8 + 8));
        need(allocate_file(control, map.slabs, limit / CHUNK_PAGES / 8 + 8));
        need(allocate_file(control, map.commits, limit * PAGE / BLOCK / 8 + 8));
        if (h) need(allocate_file(control, map.owners, limit * 4));
        else need(allocate_file(control, map.at, limit * PAGE));
    }
}

static void write_words(const std::string& directory, const Journal& journal, const DurableHead& durable, const std::vector<std::string>& files, u64 capacity) {
    TierWords::create(directory, {durable.units, capacity, durable.slots, files, true, durable.id}, MODE);
    TierWords words(directory, true);
    for (u64 unit = 0; unit < durable.units; unit++)
        if (const char* page = journal.page(1 + unit / WORDS_A_PAGE))
            std::memcpy(&words.at(unit), page + unit % WORDS_A_PAGE * sizeof(TierWord), sizeof(TierWord));
}

void restore_space(Disk& disk, const std::string& directory, const std::string& name, const std::string& boot_id, const std::string& backing,
                   const std::vector<std::string>& files, u64 capacity) {
    Journal journal(disk, journal_at(disk, files[0]));
    journal.recover();
    const DurableHead durable = durable_head(journal, files[0]);
    check_fits(durable, files, capacity);
    const Layout layout(durable.reserve);
    const Header header = header_for(journal, files[0], name, boot_id, backing);
    const Descriptor control(make_in(directory, "control", layout.control_bytes)), members(make_in(directory, "members", layout.members_file_bytes));
    if (!backing.empty()) write_backing(directory, backing);
    const u64 bytes = durable.units * UNIT;
    const Descriptor data(backing.empty() ? make_in(directory, "data", bytes) : sized(backing, open_own(backing, MAKE, MODE), bytes));
    need(allocate_file(control.fd, 0, layout.heap[0].bits));
    write_members(members.fd);
    write_control(control.fd, journal, files[0], layout, header);
    provide_maps(control.fd, files[0], layout);
    write_words(directory, journal, durable, files, capacity);
}

}  // namespace osf::tiers

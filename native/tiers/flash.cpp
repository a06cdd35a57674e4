#include "tiers/flash.hpp"

#include <cerrno>
#include <cstdlib>

namespace osf::tiers {

constexpr u64 FLASH_MAGIC = 0x3168'7361'6c66'736full;  // "osflash1"

struct FileHead { u64 magic, id, number, files, check; };

static FileHead file_head(u64 id, u64 number, u64 files) {
    FileHead head{FLASH_MAGIC, id, number, files, 0};
    head.check = hash_bytes(&head, offsetof(FileHead, check), FLASH_MAGIC);
    return head;
}

struct Sector {
    char* bytes = static_cast<char*>(std::aligned_alloc(SECTOR, SECTOR));
    Sector() { std::memset(bytes, 0, SECTOR); }
    ~Sector() { std::free(bytes); }
    Sector(const Sector&) = delete;
    Sector& operator=(const Sector&) = delete;
};

// What a file is called until it says whose it is: a maker that is killed before leaves nothing that nobody may remove.
// One name for all makers, so that the next one takes away what was left by a power cut, after which nobody knows of it.
static std::string draft_of(const std::string& path) { return path + ".openshelf-making"; }

static Error taken(const std::string& path) { return {Code::name_taken, "the flash file " + path + " exists already; remove it, or give another path"}; }

void Flash::create(Disk& disk, const std::vector<std::string>& paths, u64 slots, u64 id) {
    std::vector<std::string> made;
    try {
        for (size_t at = 0; at < paths.size(); at++) {
            int error = 0;
            if (disk.exists(paths[at])) throw taken(paths[at]);  // before room is taken for another
            const std::string draft = draft_of(paths[at]);
            if (disk.exists(draft)) disk.remove(draft);
            auto file = disk.open(draft, Disk::fresh, true, error);
            if (!file) fail_os("making the flash file " + paths[at], -error);
            made.push_back(draft);
            const u64 bytes = bytes_of(slots, paths.size());
            if ((error = file->allocate(bytes)) < 0) fail_os("room for the flash file " + paths[at] + " of " + std::to_string(bytes) + " bytes", -error);
            Sector sector;
            FileHead head = file_head(id, at, paths.size());
            std::memcpy(sector.bytes, &head, sizeof head);
            ssize_t put = file->write(sector.bytes, SECTOR, 0);
            if (put >= 0 && put != ssize_t(SECTOR)) put = -EIO;
            if (put < 0 || (put = file->sync()) < 0) fail_os("writing the flash file " + paths[at], int(-put));
            if ((error = disk.rename_new(draft, paths[at])) == -EEXIST) throw taken(paths[at]);
            if (error < 0) fail_os("naming the flash file " + paths[at], -error);
            made.back() = paths[at];
            if ((error = disk.sync_directory(paths[at])) < 0) fail_os("naming the flash file " + paths[at], -error);
        }
    } catch (...) {
        for (auto& path : made) disk.remove(path);
        throw;
    }
}

static bool is_ours(File& file, u64 id, u64 number, u64 files) {
    Sector sector;
    FileHead wanted = file_head(id, number, files);
    return file.read(sector.bytes, SECTOR, 0) == ssize_t(SECTOR) && !std::memcmp(sector.bytes, &wanted, sizeof wanted);
}

u64 Flash::id_at(Disk& disk, const std::string& path) {
    int error = 0;
    auto file = disk.open(path, Disk::existing, true, error);
    if (!file && error != -ENOENT) fail_os("opening the flash file " + path, -error);
    Sector sector;
    FileHead head{};
    if (!file || file->read(sector.bytes, SECTOR, 0) != ssize_t(SECTOR)) return 0;
    std::memcpy(&head, sector.bytes, sizeof head);
    const FileHead wanted = file_head(head.id, 0, head.files);
    return std::memcmp(&head, &wanted, sizeof head) ? 0 : head.id;
}

// What is there and cannot be trusted is no file of the space: `why` says it.
static std::unique_ptr<File> open_existing(Disk& disk, const std::string& path, int& error, std::string& why) {
    try {
        return disk.open(path, Disk::existing, true, error);
    } catch (const Error& refused) {
        why = refused.what();
        return nullptr;
    }
}

void Flash::remove(Disk& disk, const std::vector<std::string>& paths, u64 id) {
    for (size_t at = 0; at < paths.size(); at++) {
        int error = 0;
        std::string why;
        auto file = open_existing(disk, paths[at], error, why);
        if (file && is_ours(*file, id, at, paths.size())) disk.remove(paths[at]);
        disk.remove(draft_of(paths[at]));  // of a maker that was killed
    }
}

Flash::Flash(Disk& disk, const std::vector<std::string>& paths, u64 slots, u64 id) : paths_(paths), troubles_(paths.size()) {
    const u64 expected = bytes_of(slots, paths.size());
    for (size_t at = 0; at < paths.size(); at++) {
        int error = 0;
        auto file = open_existing(disk, paths[at], error, troubles_[at]);
        if (!troubles_[at].empty()) troubles_[at] = "cannot be used (" + troubles_[at] + ")";
        else if (!file) troubles_[at] = "cannot be opened (" + std::string(std::strerror(-error)) + ")";
        else if (!is_ours(*file, id, at, paths.size())) troubles_[at] = "is not the one that this space made";
        else if (u64(std::max<ssize_t>(0, file->size())) < expected)
            troubles_[at] = "has " + std::to_string(file->size()) + " bytes, expected " + std::to_string(expected) + ": it was truncated";
        if (!troubles_[at].empty() && file && troubles_[at].find("truncated") == std::string::npos) file.reset();
        files_.push_back(std::move(file));
    }
}

File& Flash::file(size_t number) const {
    if (!files_[number])
        throw FlashError(ENOENT, "the flash file " + paths_[number] + " " + troubles_[number] + "; what was in it cannot be read until it is there again");
    return *files_[number];
}

void Flash::fail(const char* doing, size_t number, u64 at, u64 bytes, ssize_t got) const {
    std::string what = std::string(doing) + " " + std::to_string(bytes) + " bytes at " + std::to_string(at) + " of the flash file " + paths_[number];
    if (got >= 0) throw FlashError(EIO, what + " ended after " + std::to_string(got) + ": the file was truncated, or the disk is failing");
    throw FlashError(int(-got), what + " failed: " + std::strerror(int(-got)));
}

void Flash::read(u64 slot, u64 count, void* to) {
    const InFile where = in_file(slot);
    ssize_t got = file(where.file).read(to, count * UNIT, where.at);
    if (got != ssize_t(count * UNIT)) fail("reading", where.file, where.at, count * UNIT, got);
}

void Flash::write(u64 slot, u64 count, const void* from) {
    const InFile where = in_file(slot);
    ssize_t put = file(where.file).write(from, count * UNIT, where.at);
    if (put != ssize_t(count * UNIT)) fail("writing", where.file, where.at, count * UNIT, put);
}

void Flash::sync() {
    for (size_t at = 0; at < files_.size(); at++)
        if (int error = file(at).sync(); error < 0) throw FlashError(-error, "syncing the flash file " + paths_[at] + " failed: " + std::strerror(-error));
}

}  // namespace osf::tiers

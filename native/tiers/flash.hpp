// The flash files of a space as one row of slots, striped: the first 16 slots are in the first file, the next 16 in the second...
// A slot holds one unit. Every file begins with a page that says whose it is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/disk.hpp"
#include "tiers/words.hpp"

namespace osf::tiers {

struct FlashError : Error {
    int number;
    FlashError(int error, const std::string& message) : Error(error == ENOSPC ? Code::no_room : Code::flash, message), number(error) {}
};

class Flash {
public:
    // Makes the files, with room for all slots.
    static void create(Disk& disk, const std::vector<std::string>& paths, u64 slots, u64 id);
    static void remove(Disk& disk, const std::vector<std::string>& paths, u64 id);  // those that are this space's
    static u64 id_at(Disk& disk, const std::string& path);                          // of the space whose first file it is; 0: none, or no such file
    Flash(Disk& disk, const std::vector<std::string>& paths, u64 slots, u64 id);    // a file that cannot be opened: told when it is needed

    // How many slots from this one on, at most `most`, one read or write can take.
    static u64 together(u64 slot, u64 most) { return std::min(most, RUN - slot % RUN); }
    void read(u64 slot, u64 count, void* to);            // FlashError
    void write(u64 slot, u64 count, const void* from);
    void sync();
    struct Sectors { File* file; u64 at; };
    Sectors sectors(u64 slot) const {                    // where a slot is, for reads of parts of it; FlashError
        const InFile where = in_file(slot);
        return {&file(where.file), where.at};
    }

private:
    struct InFile { size_t file; u64 at; };
    InFile in_file(u64 slot) const { return {slot / RUN % files_.size(), SECTOR + (slot / RUN / files_.size() * RUN + slot % RUN) * UNIT}; }
    static u64 bytes_of(u64 slots, size_t files) { return SECTOR + div_up(div_up(slots, RUN), files) * RUN * UNIT; }
    File& file(size_t number) const;
    [[noreturn]] void fail(const char* doing, size_t file, u64 at, u64 bytes, ssize_t got) const;

    std::vector<std::string> paths_, troubles_;
    std::vector<std::unique_ptr<File>> files_;
};

}  // namespace osf::tiers

// What a durable space leaves on flash beside its slots: a journal (tiers/journal.hpp) beside its first file, whose image is
//
//   page 0            DurableHead
//   page 1 ...        a TierWord for every unit, flash or empty, 256 a page
//   page 2^32 + n     page n of the control file: header, roots and the meta heap; what can be derived is left out, and made again
//                     as after a crash of everybody
#pragma once

#include "base/disk.hpp"
#include "tiers/words.hpp"

namespace osf::tiers {

constexpr u64 DURABLE_MAGIC = 0x3165'6c62'6172'7564ull, CONTROL_PAGES = 1ull << 32, WORDS_A_PAGE = PAGE / sizeof(TierWord);

struct DurableHead {
    u64 magic, version, layout_hash, id;
    u64 units, slots, files;
    u64 base, reserve, page_size, mode;
};

struct Restored { u64 base, reserve, units, slots; };

// Where the journal is. The space's id is in its name: the keeper of a space that was removed may be at a commit still, and must not
// write over the journal of the next one at that path.
std::string journal_path(const std::string& path, u64 id);
// Whether a durable space left its journal beside its first file.
bool durable_at(Disk& disk, const std::string& path);
Restored durable_geometry(Disk& disk, const std::string& path);
// Makes the files of the space in a directory (empty, the caller's) as they were at the last commit; its data is all on flash.
void restore_space(Disk& disk, const std::string& directory, const std::string& name, const std::string& boot_id, const std::string& backing,
                   const std::vector<std::string>& files, u64 capacity);

}  // namespace osf::tiers

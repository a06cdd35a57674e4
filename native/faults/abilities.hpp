// What userfaultfd gives here: found once, by trying it on a small file in memory. Kernels differ, and containers forbid some of it.
//
// `minor` is what the keepers' two ways differ by. With it, a touch of bytes that are in the file but not in the page tables asks the
// keeper, who maps them not writable (CONTINUE_MODE_WP, Linux 6.4). Without it, such bytes are mapped by the kernel and nobody hears of it:
// so a page is marked write-protected in every process before it is in the file, and is in the file only while it may be read.
#pragma once

#include <string>

#include "base/base.hpp"

namespace osf::faults {

enum class Faults { none, user, full };  // user: touches inside system calls fail with EFAULT instead of waiting

struct Abilities {
    Faults how = Faults::none;
    bool minor = false;
    bool poison = false;                 // a page can be made one whose touch ends in SIGBUS (Linux 6.6)
    u64 features = 0;                    // to ask the kernel for
    std::string why;                     // there are none
};
const Abilities& abilities();            // OPENSHELF_FAULTS=6.1 or 6.4: as if the kernel were that old
void check_pages(const std::string& directory);  // throws where, without `minor`, files there get memory in larger pieces than a page
int open_userfaultfd(Faults& how);       // not asked for any features yet; -1: not permitted, errno says why. Throws if no descriptor is left

}  // namespace osf::faults

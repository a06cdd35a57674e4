// A DAX device as the memory of a space: how large it is, and whose it is.
//
// The directory of a space is one user's, in the memory of one host. Other users, and other hosts, may have the same device. So the
// device itself says whose it is, in a label on its last page, which no space gets.
#pragma once

#include <optional>
#include <string>

#include "base/layout.hpp"

namespace osf::space {

// The page of a device that has the label. The descriptor stays the caller's.
struct LabelPlace {
    int fd;
    u64 at, bytes;
};

struct DeviceClaim {
    std::string boot_id;
    std::string folder;                      // where the directories of spaces are
    std::string making, name;                // of the directory, while the space is made and afterwards
    u64 created_ns;                          // of the space
};

bool is_device(int fd);
u64 device_room(int fd);                     // what a space can have of it
LabelPlace label_place(int fd);

// Takes the device for a space, or throws name_taken. A space that is gone, and that nobody maps any more, has it no longer.
void claim_device(const LabelPlace& place, const std::string& path, const DeviceClaim& claim);
// Whoever maps the device holds it until the descriptor is closed, in forked children too. Throws corrupt if it is another space's now.
void hold_device(const LabelPlace& place, const std::string& path, const Header& header);
// The space of this directory is being removed. Where somebody still maps the device, the label stays: the next claim finds that it is old.
void release_device(const std::string& directory);
// Somebody says that the device is nobody's. Throws not_permitted if this host knows better.
void free_device(const LabelPlace& place, const std::string& path, const std::string& boot_id);

}  // namespace osf::space

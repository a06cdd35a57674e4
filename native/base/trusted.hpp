// Opening files by name, where somebody else may have been first (Python: _files.py). Whoever can write a directory can put a link,
// a pipe or a file of theirs where ours is expected. So a file is looked at after it was opened, never before: it must be regular,
// have one name, belong to whom it should, and be writable by nobody else. No other part of the core calls open() with such a name.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/base.hpp"

namespace osf {

// The directory of a space, or of all spaces of a user. It is this user's or root's and only its owner can change it; or it is
// shared with a group that this process is in, and everybody else is shut out. Error(not_permitted) otherwise.
class Folder {
public:
    explicit Folder(std::string path);
    ~Folder();
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    // A file in it: of the directory's owner, written by nobody else, or by exactly the group that the directory is shared with.
    int open(const std::string& name, int flags, u32 mode = 0600) const;
    // One that is there, though it may have other names: whoever may read and write a group's file can give it one.
    int open_named(const std::string& name, int flags) const;
    // What the arrays' bytes are in: the file `data`, or what the file `backing` names, which only the owner can have written. It may
    // be a device.
    int open_data(int flags) const;
    int fd() const { return fd_; }

private:
    std::string path_;
    int fd_ = -1;
    uid_t uid_ = 0;
    gid_t gid_ = 0;
    bool shared_ = false;
};

int open_in(const std::string& directory, const std::string& name, int flags, u32 mode = 0600);
int open_data(const std::string& directory, int flags);

// A file of this user's, or of root, anywhere: a descriptor, or minus the system's error.
int open_own(const std::string& path, int flags, u32 mode = 0600);
int open_nameless(const std::string& directory);  // a new file without a name, which nobody else can open; -1: errno says why
int open_device(const std::string& path);    // a DAX device, of root
u64 device_number(int fd, const char* file); // what the kernel says of an open device: its "size", its "align"

// Writes down where the bytes of the space in this directory are, for open_data.
void write_backing(const std::string& directory, const std::string& path);

int sync_folder_of(const std::string& path);  // what was made, renamed or removed in the directory of this path is durable; or minus the error

}  // namespace osf

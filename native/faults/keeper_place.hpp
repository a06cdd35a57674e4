// A keeper's lock and its socket, in a directory that may be renamed, removed and made again under its path meanwhile: it is the
// directory that is kept hold of, not the path. So a keeper neither serves nor removes what belongs to another one.
#pragma once

#include <string>
#include <sys/stat.h>

#include "base/trusted.hpp"

namespace osf::faults {

class KeeperPlace {
public:
    KeeperPlace(const std::string& directory, const std::string& stem);
    ~KeeperPlace();                            // the socket goes, if it is the one that was made here
    KeeperPlace(const KeeperPlace&) = delete;
    KeeperPlace& operator=(const KeeperPlace&) = delete;

    bool take();                               // false: another keeper has it
    int bind();                                // a socket, not listening yet; private
    const std::string& directory() const { return inside_; }   // as this process may open files in it, whatever its path is now

private:
    std::string path(const char* ending) const { return inside_ + "/" + stem_ + ending; }

    std::string stem_;
    Folder folder_;
    std::string inside_;
    int lock_;
    struct stat socket_ {};                    // what was bound; st_ino 0: nothing
};

}  // namespace osf::faults

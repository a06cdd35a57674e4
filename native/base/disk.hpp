// Files on flash as the tiers use them: reads, writes and barriers, and nothing else, so that a test can put a disk of its own
// there, which fails, or loses, tears and reorders whatever was not synced when the power went.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "base/base.hpp"

namespace osf {

constexpr u64 SECTOR = 4096;  // what a direct file's buffers, lengths and places are multiples of; written whole, or torn

// Every call: a count or 0 if it went well, else minus the error. Several threads may call at once.
class File {
public:
    virtual ~File() = default;
    virtual ssize_t read(void* to, u64 bytes, u64 at) = 0;          // fewer: the file ends there
    virtual ssize_t write(const void* from, u64 bytes, u64 at) = 0;
    virtual int sync() = 0;             // what was written before is there after a power cut
    virtual ssize_t size() = 0;
    virtual int descriptor() const { return -1; }  // for reads that the kernel queues; -1: there is none
    virtual int allocate(u64 bytes) = 0;  // makes it that long, with room on the disk for all of it where the file system can
};

class Disk {
public:
    virtual ~Disk() = default;
    enum Mode { existing, fresh };      // fresh: made, empty, must not be there yet
    // None: error is set. Error(not_permitted) if there is something that somebody else may have put there (base/trusted.hpp).
    virtual std::unique_ptr<File> open(const std::string& path, Mode mode, bool direct, int& error) = 0;
    virtual int rename(const std::string& from, const std::string& to) = 0;  // replaces; durable after sync_directory
    virtual int rename_new(const std::string& from, const std::string& to) = 0;  // -EEXIST instead of replacing
    virtual int remove(const std::string& path) = 0;
    virtual int sync_directory(const std::string& of_path) = 0;     // the directory that holds this path
    virtual bool exists(const std::string& path) = 0;
};

Disk& real_disk();
std::unique_ptr<File> file_of(int fd);  // takes the descriptor over

}  // namespace osf

// A durable image of pages for the metadata of a space with a flash tier. The image is held in memory and changed only by whole
// transactions, which are appended to a file: an append and a sync per commit, no page ever written in place, so a power cut can
// spoil nothing but the transaction under way. When the log has outgrown the image, a new file begins with a copy of the image
// (a checkpoint) and takes the place of the old one.
//
// There are two names, PATH.journal.0 and PATH.journal.1; the file of number n has the name n mod 2, and the newer of two counts.
// A disk need not list directories for that, and a rename onto a name replaces what an older file left there.
//
// Not thread-safe. One process has it open at a time; that is the caller's to see to.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/disk.hpp"

namespace osf::tiers {

class Journal {
public:
    // Nothing is read or made yet. Room on the disk is taken by `step` bytes at a time, and a log shorter than that is kept on.
    Journal(Disk& disk, std::string path, u64 step = 4 * MIB);

    static bool exists(Disk& disk, const std::string& path);
    void create();  // a new, empty one; Error(name_taken) if there is one

    // Reads what was committed last. Error(corrupt) says which file, what was expected and what came, if what was committed is not
    // there or fails its checksum; then the image stays as it was. What it reads is durable when it returns, also if a process was
    // killed in the middle of a commit and the power never went.
    void recover();

    struct Page {
        u64 number;
        const char* bytes;  // PAGE of them
    };
    // Makes the image what is given: all of it or, if the power goes, none of it. Durable when it returns. Writes only pages that
    // differ from the last commit, and a head of one sector or more in any case. Pages not named are dropped if `whole`, kept
    // otherwise; of a number that is named twice the last counts.
    // Error (no_room for ENOSPC, else os): the disk failed. The last commit still counts, and a later one may succeed.
    void commit(const std::vector<Page>& pages, bool whole);

    // After a commit that failed: it was perhaps written, and could not be taken back. Until a later commit returns, or fails and
    // this is false, a power cut may bring that one or the last that returned: what either refers to must be left as it is.
    bool in_doubt() const { return in_doubt_; }

    u64 generation() const { return generation_; }  // of the last commit, one more for each; 0: none yet
    void each(const std::function<void(u64 number, const char* bytes)>& show) const;  // as last committed or recovered, in order
    const char* page(u64 number) const;  // nullptr: not in the image. Valid until the next commit or recover
    void remove();                       // its files; it is as if never created

private:
    using Image = std::map<u64, std::unique_ptr<char[]>>;
    struct Reading;  // tiers/journal_recover.cpp

    static std::string name_of(const std::string& path, u64 number) { return path + ".journal." + char('0' + number % 2); }
    static std::string draft_of(const std::string& path) { return path + ".journal.tmp"; }

    void begin_file();
    void reserve(File& file, const std::string& name, u64 end) const;
    Reading open_named(u64 which, int& error) const;

    Disk& disk_;
    const std::string path_;
    const u64 step_;

    Image image_;
    u64 generation_ = 0;
    bool in_doubt_ = false;

    u64 number_ = 0;              // of the newest file that may be there
    std::unique_ptr<File> file_;  // none: its end is not known, and the next commit begins a new one
    u64 id_ = 0, log_at_ = 0, end_ = 0, room_ = 0;  // of file_: its random id, where the log begins and ends, its size
};

}  // namespace osf::tiers

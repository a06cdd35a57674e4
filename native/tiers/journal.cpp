#include "tiers/journal.hpp"

#include <algorithm>
#include <cerrno>
#include <sys/random.h>

#include "tiers/journal_format.hpp"

namespace osf::tiers {

using namespace journal;

Journal::Journal(Disk& disk, std::string path, u64 step) : disk_(disk), path_(std::move(path)), step_(align_up(step, SECTOR)) {}

bool Journal::exists(Disk& disk, const std::string& path) { return disk.exists(name_of(path, 0)) || disk.exists(name_of(path, 1)); }

void Journal::create() {
    if (exists(disk_, path_)) throw Error(Code::name_taken, "there is a journal " + path_ + ".journal already; open or remove it");
    image_.clear();
    file_.reset();
    generation_ = number_ = 0;
    in_doubt_ = false;
    try {
        begin_file();
    } catch (const std::exception&) {
        disk_.remove(name_of(path_, 1));  // so that it can be tried again
        number_ = 0;
        throw;
    }
}

// Room is taken before anything is written: a full disk shows while the end of the file is still known, and nothing is in doubt.
void Journal::reserve(File& file, const std::string& name, u64 end) const {
    if (int error = file.allocate(end)) fail_os("making " + name + " " + std::to_string(end) + " bytes long", -error);
}

// A new file with the image as last committed, never with a commit under way: whether the rename of a file that cannot be synced
// happened or not, what it holds is right. The commit is appended after that, when nothing depends on the old file any more.
void Journal::begin_file() {
    const u64 number = number_ + 1;
    const std::string name = name_of(path_, number), draft = draft_of(path_);
    Content content;
    content.pages.reserve(image_.size());
    for (const auto& [page, bytes] : image_) content.pages.emplace_back(page, bytes.get());
    const u64 end = SECTOR + content.bytes(), room = align_up(end, step_);
    u64 id = 0;
    if (::getrandom(&id, sizeof id, 0) != sizeof id) fail_os("getrandom", errno);

    disk_.remove(draft);  // of one who was stopped here
    int error = 0;
    std::unique_ptr<File> file = disk_.open(draft, Disk::fresh, true, error);
    if (!file) fail_os("making " + draft, -error);
    try {
        reserve(*file, draft, room);
        write_file_head(*file, draft, number, id);
        write_transaction(*file, draft, id, SECTOR, generation_, content);
        if ((error = file->sync())) fail_os("syncing " + draft, -error);
    } catch (const std::exception&) {
        disk_.remove(draft);  // the file before it is as good as it was
        throw;
    }

    // From here on the new file may be what a recovery reads: nothing may be added to the old one.
    number_ = number;
    file_.reset();
    if ((error = disk_.rename(draft, name))) fail_os("renaming " + draft + " to " + name, -error);
    if ((error = disk_.sync_directory(name))) fail_os("syncing the directory of " + name, -error);
    file_ = std::move(file);
    id_ = id;
    log_at_ = end_ = end;
    room_ = room;
    in_doubt_ = false;
    disk_.remove(name_of(path_, number + 1));  // if it stays: the newer counts, and the next file replaces it
}

void Journal::commit(const std::vector<Page>& pages, bool whole) {
    std::map<u64, const char*> named;
    for (const Page& page : pages) named[page.number] = page.bytes;
    Image fresh;  // copied before anything is written, for after that nothing may fail
    Content content;
    for (const auto& [number, bytes] : named) {
        const char* old = page(number);
        if (old && std::memcmp(old, bytes, PAGE) == 0) continue;
        auto& copy = fresh[number] = std::make_unique_for_overwrite<char[]>(PAGE);
        std::memcpy(copy.get(), bytes, PAGE);
        content.pages.emplace_back(number, copy.get());
    }
    if (whole)
        for (const auto& [number, bytes] : image_)
            if (!named.contains(number)) content.dropped.push_back(number);

    if (!file_ || end_ - log_at_ + content.bytes() > std::max(step_, 2 * PAGE * image_.size())) begin_file();
    const std::string name = name_of(path_, number_);
    const u64 end = end_ + content.bytes();
    if (end > room_) {
        const u64 room = align_up(end, step_);
        reserve(*file_, name, room);
        room_ = room;
    }
    try {
        write_transaction(*file_, name, id_, end_, generation_ + 1, content);
        if (int error = file_->sync()) fail_os("syncing " + name, -error);
    } catch (const std::exception&) {
        // What is at the end of this file is not known, and after a sync that failed a second one proves nothing: it is not used
        // again. A new one at once, without this commit, takes back what was perhaps written.
        file_.reset();
        in_doubt_ = true;
        try {
            begin_file();
        } catch (const std::exception&) {
        }  // the next commit tries again
        throw;
    }
    end_ = end;
    generation_++;
    for (u64 number : content.dropped) image_.erase(number);
    for (auto& [number, bytes] : fresh)
        if (auto old = image_.find(number); old != image_.end()) old->second.swap(bytes);
    image_.merge(fresh);
}

void Journal::each(const std::function<void(u64 number, const char* bytes)>& show) const {
    for (const auto& [number, bytes] : image_) show(number, bytes.get());
}

const char* Journal::page(u64 number) const {
    auto found = image_.find(number);
    return found == image_.end() ? nullptr : found->second.get();
}

}  // namespace osf::tiers

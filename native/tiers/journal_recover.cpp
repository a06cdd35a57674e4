// Reading a journal back. A transaction that is not whole at the end of the log is normal: the power went while it was written, and
// it never was. One that was committed and is damaged must not be mistaken for that. What tells them apart: a transaction is
// written only after the one before is synced, and nothing is written to a file after one that failed. So if the head of any later
// one is to be found further on, the damaged one was committed.
//
// What cannot be told apart: damage to the last transaction (or to all from some one on, heads included, or a file cut short) from
// a torn end. Then the state before it is what comes. Nor that the newer of two files was deleted.
#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <optional>

#include "tiers/journal.hpp"
#include "tiers/journal_format.hpp"

namespace osf::tiers {

using namespace journal;

namespace {

[[noreturn]] void corrupt(const std::string& name, const std::string& what) {
    throw Error(Code::corrupt, "the journal " + name + " is damaged: " + what);
}

std::string hex(u64 word) {
    char text[20];
    std::snprintf(text, sizeof text, "%016lx", static_cast<unsigned long>(word));
    return text;
}

// Whole sectors of a file, read ahead.
class Input {
public:
    Input(File& file, std::string name) : file_(file), name_(std::move(name)) {
        const ssize_t size = file.size();
        if (size < 0) fail_os("asking for the size of " + name_, int(-size));
        size_ = u64(size) / SECTOR * SECTOR;
        buffer_ = make_buffer(std::min(PIECE, size_ + SECTOR));
    }
    u64 size() const { return size_; }
    const std::string& name() const { return name_; }

    const char* sector(u64 at) {  // nullptr: the file ends before its end
        if (at < from_ || at + SECTOR > to_) {
            if (at + SECTOR > size_) return nullptr;
            const u64 wanted = std::min(PIECE, size_ - at);
            const ssize_t got = file_.read(buffer_.get(), wanted, at);
            // Not the same as damage: another try, or another machine, may read it.
            if (got < 0) fail_os("reading " + std::to_string(wanted) + " bytes of " + name_ + " at " + std::to_string(at), int(-got));
            from_ = at;
            to_ = at + u64(got) / SECTOR * SECTOR;
            if (to_ == at) return nullptr;
        }
        return buffer_.get() + (at - from_);
    }

private:
    File& file_;
    std::string name_;
    Buffer buffer_;
    u64 size_ = 0, from_ = 0, to_ = 0;
};

std::optional<Head> head_at(Input& input, u64 id, u64 place) {
    const char* sector = input.sector(place);
    if (!sector) return {};
    Head head;
    std::memcpy(&head, sector, sizeof head);
    if (std::memcmp(head.magic, MAGIC, sizeof MAGIC) || head.id != id || head.place != place || head.checksum != checksum_of(head))
        return {};
    return head;
}

struct Transaction {
    Head head;
    std::vector<std::pair<u64, std::unique_ptr<char[]>>> pages;
    std::vector<u64> dropped;
    u64 end;
};

// The transaction there, or why there is none.
std::optional<Transaction> transaction_at(Input& input, u64 id, u64 place, std::string& why) {
    auto no = [&](const std::string& reason) {
        why = reason;
        return std::nullopt;
    };
    auto wrong = [&](const std::string& what, u64 at, u64 expected, u64 came) {
        return no(what + " at byte " + std::to_string(at) + " has the checksum " + hex(came) + ", expected " + hex(expected));
    };
    const std::optional<Head> head = head_at(input, id, place);
    if (!head) return no("expected the head of a transaction at byte " + std::to_string(place) + ", found none that is valid");
    const u64 written = head->written, dropped = head->dropped;
    const bool absurd = written > input.size() / PAGE || dropped > input.size() / 8;  // then the sum might wrap around
    if (absurd || place + transaction_bytes(written, dropped) > input.size())
        return no("expected " + std::to_string(written) + " pages after byte " + std::to_string(place) + ", but the file ends at " +
                  std::to_string(input.size()));

    const u64 bytes = head_bytes(written, dropped);
    std::vector<char> list(bytes);
    for (u64 at = 0; at < bytes; at += SECTOR) {
        const char* sector = input.sector(place + at);
        if (!sector) return no("the file ends within the list at byte " + std::to_string(place + at));
        std::memcpy(list.data() + at, sector, SECTOR);
    }
    const u64 sum = checksum_of(list.data() + sizeof(Head), bytes - sizeof(Head), id, place);
    if (sum != head->list_checksum) return wrong("the list of pages", place, head->list_checksum, sum);

    Transaction transaction{*head, {}, std::vector<u64>(dropped), place + bytes};
    const char* from = list.data() + sizeof(Head);
    for (u64 count = 0; count < written; count++, from += sizeof(Entry), transaction.end += PAGE) {
        Entry entry;
        std::memcpy(&entry, from, sizeof entry);
        const char* page = input.sector(transaction.end);
        if (!page) return no("the file ends before page " + std::to_string(entry.number));
        const u64 came = checksum_of(page, PAGE, id, transaction.end);
        if (came != entry.checksum) return wrong("page " + std::to_string(entry.number), transaction.end, entry.checksum, came);
        auto copy = std::make_unique_for_overwrite<char[]>(PAGE);
        std::memcpy(copy.get(), page, PAGE);
        transaction.pages.emplace_back(entry.number, std::move(copy));
    }
    if (dropped) std::memcpy(transaction.dropped.data(), from, dropped * 8);
    return transaction;
}

// Nothing valid for this generation is at `place`. Fine if that is the end of the log; a later head anywhere says it is not.
void expect_the_end(Input& input, u64 id, u64 place, u64 generation, const std::string& why) {
    for (u64 at = place; at < input.size(); at += SECTOR) {
        const std::optional<Head> head = head_at(input, id, at);
        if (head && !(at == place && head->generation == generation))
            corrupt(input.name(), "generation " + std::to_string(generation) + " was committed, for generation " +
                                      std::to_string(head->generation) + " is at byte " + std::to_string(at) + "; but " + why);
    }
}

FileHead read_file_head(Input& input, u64 which) {
    const char* sector = input.sector(0);
    if (!sector) corrupt(input.name(), "expected a head of " + std::to_string(SECTOR) + " bytes, the file is shorter");
    FileHead head;
    std::memcpy(&head, sector, sizeof head);
    std::vector<char> copy(sector, sector + SECTOR);
    std::memset(copy.data() + offsetof(FileHead, checksum), 0, 8);
    const u64 came = checksum_of(copy.data(), SECTOR, 0, 0);
    if (std::memcmp(head.magic, FILE_MAGIC, sizeof FILE_MAGIC)) corrupt(input.name(), "it does not begin with OSFJRNL");
    if (came != head.checksum) corrupt(input.name(), "its head has the checksum " + hex(came) + ", expected " + hex(head.checksum));
    if (head.version != VERSION || head.sector != SECTOR)
        throw Error(Code::wrong_version, "the journal " + input.name() + " has version " + std::to_string(head.version) +
                                             " and sectors of " + std::to_string(head.sector) + " bytes; this program reads version " +
                                             std::to_string(VERSION) + " and " + std::to_string(SECTOR));
    if (head.number % 2 != which) corrupt(input.name(), "it is number " + std::to_string(head.number) + ", which has the other name");
    return head;
}

}  // namespace

struct Journal::Reading {
    std::unique_ptr<File> file;
    std::string name;
    FileHead head{};
};

Journal::Reading Journal::open_named(u64 which, int& error) const {
    Reading reading;
    reading.name = name_of(path_, which);
    reading.file = disk_.open(reading.name, Disk::existing, true, error);
    if (!reading.file) return reading;
    Input input(*reading.file, reading.name);
    reading.head = read_file_head(input, which);
    return reading;
}

void Journal::recover() {
    // A process may have been killed between a write or a rename and its sync: what is read must not vanish later.
    if (int error = disk_.sync_directory(path_)) fail_os("syncing the directory of " + path_, -error);
    Reading newest;
    for (u64 which : {u64(0), u64(1)}) {
        int error = 0;
        Reading reading = open_named(which, error);
        if (!reading.file && error != -ENOENT) fail_os("opening " + reading.name, -error);
        // A file has its name only when all of its beginning is synced. One that fails is damaged, and never a reason to fall back
        // to the other, which may be older.
        if (reading.file && (!newest.file || reading.head.number > newest.head.number)) newest = std::move(reading);
    }
    if (!newest.file) corrupt(path_ + ".journal", "expected " + name_of(path_, 0) + " or " + name_of(path_, 1) + ", there is neither");
    if (int error = newest.file->sync()) fail_os("syncing " + newest.name, -error);

    Input input(*newest.file, newest.name);
    const u64 id = newest.head.id;
    std::string why;
    std::optional<Transaction> next = transaction_at(input, id, SECTOR, why);
    if (!next) corrupt(newest.name, "its checkpoint is not whole: " + why);
    Image image;
    u64 generation = 0, place = 0;
    while (next) {
        generation = next->head.generation;
        place = next->end;
        for (u64 number : next->dropped) image.erase(number);
        for (auto& [number, bytes] : next->pages) image[number] = std::move(bytes);
        next = transaction_at(input, id, place, why);
        if (next && next->head.generation != generation + 1) {
            why = "generation " + std::to_string(next->head.generation) + " is in its place";
            next.reset();
        }
    }
    expect_the_end(input, id, place, generation + 1, why);
    image_.swap(image);
    generation_ = generation;
    number_ = newest.head.number;
    file_.reset();  // the next commit begins a new one: behind this one's end may be the rest of a commit that never was
    in_doubt_ = false;
}

void Journal::remove() {
    file_.reset();
    u64 newest = 0;
    for (u64 which : {u64(0), u64(1)}) {
        int error = 0;
        try {
            newest = std::max(newest, open_named(which, error).head.number);
        } catch (const Error&) {
        }  // damaged: it goes all the same
    }
    auto gone = [&](const std::string& name) {
        const int error = disk_.remove(name);
        if (error && error != -ENOENT) fail_os("removing " + name, -error);
    };
    auto sync = [&] {
        if (int error = disk_.sync_directory(path_)) fail_os("syncing the directory of " + path_, -error);
    };
    gone(draft_of(path_));
    gone(name_of(path_, newest + 1));
    sync();  // the newer one goes last, or else a power cut would leave an old state
    gone(name_of(path_, newest));
    sync();
    image_.clear();
    generation_ = number_ = 0;
    in_doubt_ = false;
}

}  // namespace osf::tiers

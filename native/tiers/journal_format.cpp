#include "tiers/journal_format.hpp"

#include <algorithm>
#include <cerrno>

namespace osf::tiers::journal {

namespace {

// Bytes on their way to the file, gathered into writes of PIECE.
class Output {
public:
    Output(File& file, const std::string& name, u64 at, u64 expected)
        : file_(file), name_(name), at_(at), room_(align_up(std::min(expected, PIECE), SECTOR)), buffer_(make_buffer(room_)) {}

    void put(const char* bytes, u64 count) {
        while (count) {
            const u64 part = std::min(count, room_ - filled_);
            std::memcpy(buffer_.get() + filled_, bytes, part);
            filled_ += part, bytes += part, count -= part;
            if (filled_ == room_) flush();
        }
    }
    void flush() {
        if (!filled_) return;
        const ssize_t done = file_.write(buffer_.get(), filled_, at_);
        if (done < 0) fail_os("writing " + std::to_string(filled_) + " bytes to " + name_, int(-done));
        // A write that stops early without an error is how a full disk often shows first; a second try would tell, but the end of
        // this file is not known any more anyway.
        if (u64(done) != filled_) fail_os("wrote only " + std::to_string(done) + " of " + std::to_string(filled_) + " bytes to " + name_, EIO);
        at_ += filled_;
        filled_ = 0;
    }

private:
    File& file_;
    const std::string& name_;
    u64 at_, room_, filled_ = 0;
    Buffer buffer_;
};

}  // namespace

void write_file_head(File& file, const std::string& name, u64 number, u64 id) {
    std::vector<char> sector(SECTOR);
    FileHead head{};
    std::memcpy(head.magic, FILE_MAGIC, sizeof FILE_MAGIC);
    head.version = VERSION;
    head.sector = SECTOR;
    head.number = number;
    head.id = id;
    std::memcpy(sector.data(), &head, sizeof head);
    head.checksum = checksum_of(sector.data(), SECTOR, 0, 0);
    std::memcpy(sector.data(), &head, sizeof head);
    Output output(file, name, 0, SECTOR);
    output.put(sector.data(), SECTOR);
    output.flush();
}

void write_transaction(File& file, const std::string& name, u64 id, u64 place, u64 generation, const Content& content) {
    const u64 before_pages = head_bytes(content.pages.size(), content.dropped.size());
    std::vector<char> list(before_pages);
    char* to = list.data() + sizeof(Head);
    u64 at = place + before_pages;
    for (const auto& [number, bytes] : content.pages) {
        const Entry entry{number, checksum_of(bytes, PAGE, id, at)};
        std::memcpy(to, &entry, sizeof entry);
        to += sizeof entry, at += PAGE;
    }
    if (!content.dropped.empty()) std::memcpy(to, content.dropped.data(), content.dropped.size() * 8);
    Head head{{}, id, place, generation, content.pages.size(), content.dropped.size(), 0, 0};
    std::memcpy(head.magic, MAGIC, sizeof MAGIC);
    head.list_checksum = checksum_of(list.data() + sizeof head, before_pages - sizeof head, id, place);
    head.checksum = checksum_of(head);
    std::memcpy(list.data(), &head, sizeof head);

    Output output(file, name, place, content.bytes());
    output.put(list.data(), before_pages);
    for (const auto& [number, bytes] : content.pages) output.put(bytes, PAGE);
    output.flush();
}

}  // namespace osf::tiers::journal

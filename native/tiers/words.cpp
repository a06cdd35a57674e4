#include "tiers/words.hpp"

#include <cerrno>
#include <cstddef>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.hpp"
#include "base/trusted.hpp"

namespace osf::tiers {

u64 unit_check(const char* bytes, u64 unit, u64 word, char* to) {
    return check_bytes(bytes, UNIT, unit << 28 | generation_of(word), to);
}

static u64 head_check(const TiersHead& head) {
    return hash_bytes(head.paths, sizeof head.paths, hash_bytes(&head, offsetof(TiersHead, check), TIERS_MAGIC));
}

void TierWords::create(const std::string& directory, const Options& options, u32 mode) {
    if (options.files.empty() || options.files.size() > MAX_FILES)
        throw Error(Code::bad_input, "flash is 1 to " + std::to_string(MAX_FILES) + " files, got " + std::to_string(options.files.size()));
    TiersHead head{};
    head.magic = TIERS_MAGIC;
    head.version = TIERS_VERSION;
    head.units = options.units;
    head.capacity = options.capacity;
    head.slots = options.slots;
    head.piece = RUN;
    head.files = u32(options.files.size());
    head.durable = options.durable;
    head.id = options.id;
    for (size_t at = 0; at < options.files.size(); at++) {
        if (options.files[at].size() >= FILE_PATH) throw Error(Code::bad_input, "the path of a flash file is too long: " + options.files[at]);
        std::strcpy(head.paths[at], options.files[at].c_str());
    }
    head.check = head_check(head);
    int fd = open_in(directory, "tiers", O_RDWR | O_CREAT | O_EXCL, mode);
    int error = allocate_file(fd, 0, TIERS_HEAD + options.units * sizeof(TierWord));
    if (!error && pwrite(fd, &head, sizeof head, 0) != ssize_t(sizeof head)) error = errno;
    close(fd);
    if (error) fail_os("no memory for the state of the units", error);
}

TierWords::TierWords(const std::string& directory, bool writable) {
    std::string path = directory + "/tiers";
    int fd = open_in(directory, "tiers", writable ? O_RDWR : O_RDONLY);
    struct stat status {};
    fstat(fd, &status);
    bytes_ = u64(status.st_size);
    if (bytes_ < TIERS_HEAD) {
        close(fd);
        throw Error(Code::corrupt, path + " was truncated");
    }
    void* map = mmap(nullptr, bytes_, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) fail_os("mapping " + path, errno);
    map_ = static_cast<char*>(map);
    const TiersHead& there = head();
    if (there.magic != TIERS_MAGIC || there.version != TIERS_VERSION || there.check != head_check(there) ||
        bytes_ != TIERS_HEAD + there.units * sizeof(TierWord) || there.files > MAX_FILES) {
        munmap(map_, bytes_);
        map_ = nullptr;
        throw Error(Code::corrupt, path + " is damaged: its head fails its checksum; remove the space");
    }
}

TierWords::~TierWords() {
    if (map_) munmap(map_, bytes_);
}

std::vector<std::string> TierWords::files() const {
    std::vector<std::string> paths;
    for (u32 at = 0; at < head().files; at++) paths.emplace_back(head().paths[at]);
    return paths;
}

}  // namespace osf::tiers

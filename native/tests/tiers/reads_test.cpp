// Many reads of a file at once: each gives its own bytes, whatever their order; what the file does not have is said; and a queue is good for
// one process only.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <random>
#include <vector>

#include "tests/check.hpp"
#include "tiers/reads.hpp"

using namespace osf;
using namespace osf::tiers;

constexpr u64 SECTORS = 512;

// Each sector is full of its number.
static std::unique_ptr<File> numbered(const char* path) {
    std::vector<u64> words(SECTOR / 8 * SECTORS);
    for (u64 at = 0; at < words.size(); at++) words[at] = at / (SECTOR / 8);
    const int fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
    CHECK(fd >= 0 && write(fd, words.data(), words.size() * 8) == ssize_t(words.size() * 8));
    close(fd);
    int error = 0;
    auto file = real_disk().open(path, Disk::existing, true, error);
    CHECK(file);
    return file;
}

// How many of these reads were right; those that go beyond the end come without bytes.
static u64 right(Reads& reads, std::span<const Reads::One> wanted) {
    std::vector<int> came(wanted.size());
    u64 whole = 0;
    reads.run(wanted, [&](u64 number, const char* bytes) {
        came[number]++;
        const u64 first = wanted[number].at / SECTOR, count = wanted[number].bytes / SECTOR;
        CHECK((bytes != nullptr) == (first + count <= SECTORS));
        if (!bytes) return;
        for (u64 at = 0; at < count * SECTOR / 8; at++) CHECK(reinterpret_cast<const u64*>(bytes)[at] == first + at / (SECTOR / 8));
        whole++;
    });
    for (int times : came) CHECK(times == 1);
    return whole;
}

int main() {
    char folder[] = "/var/tmp/osf-reads-XXXXXX";
    CHECK(mkdtemp(folder));
    const std::string path = std::string(folder) + "/file";
    {
        auto file = numbered(path.c_str());
        std::mt19937 chance(1);
        std::vector<Reads::One> some;
        for (int at = 0; at < 3000; at++) some.push_back({file.get(), chance() % SECTORS * SECTOR, (1 + chance() % 2) * SECTOR});
        some.push_back({file.get(), SECTORS * SECTOR, SECTOR});
        some.push_back({file.get(), (SECTORS - 1) * SECTOR, 2 * SECTOR});
        Reads reads;
        const u64 whole = right(reads, some);
        CHECK(whole >= 2900 && whole < some.size());
        for (u64 count : {0, 1, 2, 127, 128, 129}) right(reads, std::span(some).first(count));
        for (auto& one : some) one.bytes = 4 * SECTOR;  // more than before
        right(reads, some);
        CHECK(reads.usable());
        const pid_t child = fork();
        if (!child) {
            CHECK(!reads.usable());
            right(reads, some);                  // one after the other
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK(right(reads, std::span(some).first(100)) > 90);
        auto gone = [&] { reads.run(std::span(some).first(200), [](u64 number, const char*) { if (number == 7) throw 7; }); };
        try {
            gone();
            CHECK(false);
        } catch (int) {
        }
        CHECK(!reads.usable());                  // others may be under way: it is taken down
    }
    unlink(path.c_str());
    rmdir(folder);
    std::puts("reads are right");
}

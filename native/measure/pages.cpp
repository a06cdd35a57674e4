// Memory with a wanted page size, and what the kernel really gave.
#include "measure/measure.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>

namespace osf::measure {
namespace {
constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
}

Pages::Pages(std::size_t nbytes, std::size_t page_bytes) : nbytes_(nbytes) {
    if (nbytes == 0) throw std::invalid_argument("at least one byte is needed");
    const auto own_page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    if (page_bytes != 0 && page_bytes != own_page_bytes && page_bytes != huge_page_bytes)
        throw std::invalid_argument("page_bytes must be 2097152, or the system's page size (0)");
    // One huge page more than asked for, so that the data can start on a 2 MiB boundary.
    mapping_bytes_ = nbytes + huge_page_bytes;
    mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mmap of a measuring buffer");
    const auto start = reinterpret_cast<std::uintptr_t>(mapping_);
    data_ = reinterpret_cast<std::byte*>((start + huge_page_bytes - 1) & ~(huge_page_bytes - 1));
    // The result is not checked: a kernel without huge pages refuses both, and huge_bytes() tells the truth.
    madvise(mapping_, mapping_bytes_, page_bytes == huge_page_bytes ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(data_, 1, nbytes_);
}

Pages::~Pages() { munmap(mapping_, mapping_bytes_); }

std::size_t Pages::huge_bytes() const {
    // AnonHugePages of the mappings that touch ours; the kernel may have split or joined mappings.
    const auto begin = reinterpret_cast<std::uintptr_t>(data_), end = begin + nbytes_;
    std::ifstream smaps("/proc/self/smaps");
    std::string line;
    bool ours = false;
    std::size_t total = 0;
    while (std::getline(smaps, line)) {
        std::uintptr_t from = 0, to = 0;
        char dash = 0;
        std::istringstream head(line);
        if (head >> std::hex >> from >> dash >> to && dash == '-') {
            ours = from < end && to > begin;
        } else if (ours && line.rfind("AnonHugePages:", 0) == 0) {
            total += std::stoull(line.substr(14)) * 1024;
        }
    }
    return total < nbytes_ ? total : nbytes_;
}

}  // namespace osf::measure

#include "base/log.hpp"

#include <cstdio>
#include <ctime>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/lock.hpp"

namespace osf {

constexpr u64 AGAIN_NS = 10'000'000'000;  // a line that is repeated is told of after this

static std::atomic<u64> most_bytes{0};

std::string printable(std::string_view text) {
    std::string shown;
    shown.reserve(text.size());
    for (size_t at = 0; at < text.size(); at++) {
        const u8 byte = u8(text[at]);
        // Terminals take U+0080 to U+009F, in UTF-8 c2 80 to c2 9f, for controls too.
        const bool c1 = byte == 0xc2 && at + 1 < text.size() && u8(text[at + 1]) >= 0x80 && u8(text[at + 1]) < 0xa0;
        // And some turn the direction of the text: U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069.
        if (byte == 0xe2 && at + 2 < text.size()) {
            const u32 mark = 0x2000u | (u8(text[at + 1]) & 0x3fu) << 6 | (u8(text[at + 2]) & 0x3fu);
            if (mark == 0x200e || mark == 0x200f || (mark >= 0x202a && mark <= 0x202e) || (mark >= 0x2066 && mark <= 0x2069)) {
                char code[8];
                std::snprintf(code, sizeof code, "\\u%04x", mark);
                shown += code;
                at += 2;
                continue;
            }
        }
        if (byte >= 0x20 && byte != 0x7f && !c1) {
            shown += text[at];
            continue;
        }
        char hex[8];
        std::snprintf(hex, sizeof hex, "\\x%02x", unsigned(c1 ? u8(text[++at]) : byte));
        shown += hex;
    }
    return shown;
}

void bound_log(u64 most) { most_bytes = most; }

// The end of the file is kept: it says how things are. What another thread or process appends meanwhile may be lost.
static void cut_log() {
    struct stat is {};
    const u64 most = most_bytes;
    if (!most || fstat(STDERR_FILENO, &is) < 0 || !S_ISREG(is.st_mode) || u64(is.st_size) < most) return;
    std::string tail(size_t(most / 4), '\0');
    const ssize_t got = pread(STDERR_FILENO, tail.data(), tail.size(), is.st_size - off_t(tail.size()));
    tail.resize(size_t(std::max<ssize_t>(got, 0)));
    if (const size_t line = tail.find('\n'); line != std::string::npos) tail.erase(0, line + 1);
    tail.insert(0, "(earlier lines were dropped)\n");
    if (ftruncate(STDERR_FILENO, 0) == 0) {
        [[maybe_unused]] const ssize_t put = ::write(STDERR_FILENO, tail.data(), tail.size());
    }
}

Log::~Log() {
    std::lock_guard guard(mutex_);
    tell_repeats();
}

void Log::write(const std::string& text) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    tm day{};
    gmtime_r(&now.tv_sec, &day);
    cut_log();
    std::fprintf(stderr, "%02d:%02d:%02d.%03ld keeper %s: %s\n", day.tm_hour, day.tm_min, day.tm_sec, now.tv_nsec / 1'000'000, who_.c_str(), text.c_str());
}

void Log::tell_repeats() {
    if (repeats_) write("(the last line " + std::to_string(repeats_) + " times more)");
    repeats_ = 0;
}

void Log::say(const std::string& text) {
    std::lock_guard guard(mutex_);
    const u64 now = now_ns();
    const std::string shown = printable(text);
    if (shown == last_) {
        repeats_++;
        if (now - told_ns_ > AGAIN_NS) {
            tell_repeats();
            told_ns_ = now;
        }
        return;
    }
    tell_repeats();
    write(shown);
    last_ = shown;
    told_ns_ = now;
}

}  // namespace osf

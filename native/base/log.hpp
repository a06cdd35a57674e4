// What a keeper tells people: one line each on stderr, which is a file when it runs in the background. The file stays small, and a
// line that comes again and again is counted, not repeated: whoever can make a keeper complain cannot fill a disk.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "base/base.hpp"

namespace osf {

// Without what a terminal would obey: control characters and escape sequences are shown as \x1b.
std::string printable(std::string_view text);

class Log {
public:
    explicit Log(std::string who) : who_(std::move(who)) {}
    ~Log();
    void say(const std::string& text);

private:
    void write(const std::string& text);
    void tell_repeats();

    const std::string who_;
    std::mutex mutex_;
    std::string last_;
    u64 repeats_ = 0, told_ns_ = 0;
};

// Of the file that stderr is: at `most` bytes only the last quarter is kept. 0, as at first: it is not ours to cut.
void bound_log(u64 most);

}  // namespace osf

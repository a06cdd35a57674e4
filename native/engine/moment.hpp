// The moment of the space that is being committed: where the bytes of each unit are in it, and how many are on their way to flash still.
// Between the committer, who freezes units, and the mover, who writes them; and whoever needs a commit says so here.
//
// With the engine's mutex, all of it; image() and error() also without, once nothing is left.
#pragma once

#include <condition_variable>
#include <string>
#include <vector>

#include "engine/slots.hpp"
#include "engine/units.hpp"

namespace osf::engine {

class Moment {
public:
    Moment(Units& units, Slots& slots) : units_(units), slots_(slots) {}

    void begin() {
        image_.assign(units_.count, TierWord{});
        error_.clear();
    }
    void has(u32 unit, const TierWord& is) {          // its bytes are on flash, and stay there
        image_[unit] = is;
        slots_.committing(flash_slot(is.word));
    }
    void awaits(u32 unit) {                           // it is being written
        units_.local(unit).frozen = true;
        left_++;
    }
    void done(u32 unit, const TierWord& is, const std::string& error) {
        units_.local(unit).frozen = false;
        if (error.empty()) has(unit, is);
        else error_ = error;
        if (--left_ == 0) written.notify_all();
    }
    void failed(const std::string& error) { error_ = error; }
    bool complete() const { return left_ == 0; }
    const std::vector<TierWord>& image() const { return image_; }
    const std::string& error() const { return error_; }

    bool wanted() const { return wanted_; }           // a commit, for the slots that it gives back
    void want() {
        if (!wanted_) wanted_ = true, asked.notify_all();
    }
    void over() { wanted_ = false; }

    std::condition_variable asked, written;           // for a commit; all that was frozen

private:
    Units& units_;
    Slots& slots_;
    std::vector<TierWord> image_;
    std::string error_;
    u64 left_ = 0;
    bool wanted_ = false;
};

}  // namespace osf::engine

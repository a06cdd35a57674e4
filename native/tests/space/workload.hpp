// Random operations on few names, by threads or processes that know nothing of one another. Every array's bytes tell
// the name it was made under and a version; whatever is found must be whole and stay so while it is held.
#pragma once

#include <algorithm>
#include <vector>

#include "tests/check.hpp"

namespace osf::test {

constexpr int NAMES = 24;

class Worker {
public:
    Worker(std::shared_ptr<Space> space, unsigned seed, bool read_only = false) : space_(std::move(space)), random_(seed), reader_(read_only) {}

    void run(int rounds) {
        for (int round = 0; round < rounds; round++) once();
        for (const View& view : views_) let_go(view);
        views_.clear();
    }

    void once() {
        try {
            unsigned choice = random_() % 100;
            if (reader_ && choice < 50) choice += 50;
            if (choice < 22) put_one();
            else if (choice < 32) space_->remove(some_name());
            else if (choice < 42) space_->rename(some_name(), some_name());
            else if (choice < 46) anonymous();
            else if (choice < 47) space_->collect();
            else if (choice < 50) publish_once();
            else if (choice < 80) find_one();
            else if (choice < 90) at_address();
            else if (choice < 92) list_all();
            else release_one();
        } catch (const Error& error) {
            bool expected = error.code == Code::unknown_name || error.code == Code::name_taken || error.code == Code::bad_address ||
                            error.code == Code::no_room || (error.code == Code::bad_input && reader_);
            if (!expected) failed(__FILE__, __LINE__, error.what());
        }
        if (views_.size() > 20) release_one();
    }

private:
    struct View {
        Held held;
        u64 nbytes, version, label;
        char* bytes;
    };

    std::string some_name() { return "name-" + std::to_string(random_() % NAMES); }
    u64 some_size() {
        static const u64 sizes[] = {16, 64, 200, 1000, 8000, 8192, 8193, 20'000, 100'000};
        return sizes[random_() % 9];
    }

    void put_one() { put(*space_, some_name(), some_size(), random_() + 1); }

    void publish_once() {
        Held held = make(*space_, some_name(), some_size(), random_() + 1);
        try {
            space_->publish(held, false);
        } catch (const Error&) {
            space_->release(held);
            throw;
        }
        space_->release(held);
    }

    void anonymous() {
        Held held = make(*space_, "", some_size(), random_() + 1, "anonymous");
        if (random_() % 2) {
            try {
                space_->name(held, some_name());
            } catch (const Error& error) {
                CHECK(error.code == Code::name_taken || error.code == Code::no_room);
            }
        }
        keep(held);
    }

    void keep(const Held& held) {
        View view{held, space_->record(held).nbytes, 0, 0, space_->bytes(held)};
        std::memcpy(&view.version, view.bytes, 8);
        std::memcpy(&view.label, view.bytes + 8, 8);
        CHECK(view.version != 0 && version_of(view.bytes, view.nbytes, view.label) == long(view.version));
        views_.push_back(view);
    }

    void find_one() {
        if (Held held = space_->find(some_name())) keep(held);
    }

    // What one still holds can be found by any address inside it, and is the same array then.
    void at_address() {
        if (views_.empty()) return;
        const View& view = views_[random_() % views_.size()];
        Held held = space_->at(u64(view.bytes) + random_() % view.nbytes);
        CHECK(held.record == view.held.record && space_->bytes(held) == view.bytes);
        space_->release(held);
        // Anywhere: whatever is there may be a draft, so only its extent is looked at.
        u64 offset = random_() % (space_->data.limit() * PAGE);
        Held any = space_->at(u64(space_->base()) + space_->layout.data_at + offset);
        CHECK(any.record != 0);
        space_->release(any);
    }

    void list_all() {
        std::vector<Entry> entries = space_->list("name-");
        for (const Entry& entry : entries) CHECK(entry.name.starts_with("name-") && entry.address && entry.nbytes >= 16);
    }

    void let_go(const View& view) {
        CHECK(space_->bytes(view.held) == view.bytes && space_->record(view.held).nbytes == view.nbytes);
        CHECK(version_of(view.bytes, view.nbytes, view.label) == long(view.version));
        space_->release(view.held);
    }

    void release_one() {
        if (views_.empty()) return;
        std::swap(views_[random_() % views_.size()], views_.back());
        let_go(views_.back());
        views_.pop_back();
    }

    std::shared_ptr<Space> space_;
    std::mt19937 random_;
    bool reader_;
    std::vector<View> views_;
};

// Nothing is left but what has a name; and without names, nothing.
inline void check_end(Space& space) {
    check_sound(space, "audit at the end");
    for (const Entry& entry : space.list("")) {
        CHECK(look_up(space, entry.name) != 0);
        CHECK(space.remove(entry.name));
    }
    check_sound(space, "audit of nothing");
    CHECK(space.index.live() == 0 && space.list("").empty());
}

}  // namespace osf::test

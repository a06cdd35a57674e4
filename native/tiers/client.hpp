// A process's side of a space with a flash tier: its data mapped, faults on it handed to the space's keeper, and requests to that.
//
// With faults, every touch of what is not in this process's page tables is the keeper's to answer; while no keeper lives, touches
// wait. Without (plain), nothing notices a touch, and what is not in memory would read as zeros: so all that this process has
// views of it holds in memory by pins (hold), and every copy that it makes in native code goes through `within`.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "faults/keeper_client.hpp"
#include "faults/faults.hpp"
#include "space/space.hpp"
#include "tiers/words.hpp"

namespace osf::tiers {

enum class Want : u32 { touch, ahead, prefetch, pin, demote, discard, flush };
struct UnitRange { u32 first, last; };         // without the last

class TierClient : public KeeperClient, public Pager {
public:
    struct Options {
        std::string socket;                   // of the keeper
        std::vector<std::string> keeper;      // command that starts one and returns
        bool faults = true;                   // false: as if there were none
    };
    TierClient(Space& space, Options options);
    ~TierClient() override;

    bool plain() const { return how_ == Faults::none; }
    void stop() override { end(); }
    TierWords& words() { return words_; }

    u64 unit_at(const void* at) const { return (u64(at) - data_at_) / UNIT; }
    char* unit(u64 number) const { return reinterpret_cast<char*>(data_at_ + number * UNIT); }

    u64 ask(Want want, const void* at, u64 bytes, int priority);     // a number to wait for
    // To prefetch many ranges: numbers to wait for, one for each note that it takes.
    std::vector<u64> ask_many(const u64* addresses, const u64* sizes, size_t count, int priority);
    void hint(const void* at, u64 bytes);     // a prefetch that nobody waits for, nor hears of again
    bool wait(u64 id, long timeout_ns);       // false: the time is over. Throws what went wrong; afterwards the number is forgotten
    void cancel(u64 id);
    void reorder(u64 id, int priority);
    void unpin(u64 id);                       // after its wait, or before
    void request(Want want, const void* at, u64 bytes) { wait(ask(want, at, bytes, 0), -1); }

    void clear(char* at, u64 bytes, u64 keep) override;
    void discard(char* at, u64 bytes) override { request(Want::discard, at, bytes); }
    void provide(char* at, u64 bytes) override;
    void within(char* at, u64 bytes, const std::function<void(char* part, u64 size)>& work) override;
    struct Counts { u64 dram = 0, flash = 0, empty = 0; };
    Counts tiers(const void* at, u64 bytes) const;    // units

    bool explain(u64 address, char* text, size_t room) const override;

private:
    void map_data();
    void hand_over(int socket, bool again, size_t pins);
    void unmap(const std::string& units);     // of an ArmNote: the next touch will be noticed; the bytes stay

    void greet(int socket) override;
    std::vector<u64> to_tell() override;
    void tell_again(u64 number) override;
    void heard(int socket, const Note& note, const std::string& text) override;
    void answered(const AnswerNote& answer) override;
    [[noreturn]] void refused(const std::string& why) override;
    void check_hope(const Error& error) override;
    void give_up() override;
    void map_again() override;
    void attach_child() override;
    bool forbid() override;

    Space& space_;
    Options options_;
    TierWords words_;
    std::string directory_, name_;
    const u64 id_;                            // of the space
    u64 data_at_, bytes_;
    bool read_only_;
    int data_ = -1;
    std::map<u64, AskNote> pins_;             // told to every keeper
    std::map<u64, AskNote> announced_;        // of these, as many as the next keeper was told that there are; the watcher's
};

// The one of this process for the space, or null: no other pager is there yet.
inline TierClient* tiers_of(const Space& space) { return static_cast<TierClient*>(space.pager.get()); }
// The same; made at the first call.
std::shared_ptr<TierClient> attach_tiers(const std::shared_ptr<Space>& space, const TierClient::Options& options);

}  // namespace osf::tiers

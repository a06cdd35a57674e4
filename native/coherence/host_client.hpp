// A process's side of a space of several hosts: the other hosts' segments mapped at their addresses, and faults on them handed to the
// keeper. A fork does not inherit these mappings (MADV_DONTFORK); the child maps them anew and attaches as itself before fork() returns
// in it.
#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "faults/keeper_client.hpp"
#include "faults/faults.hpp"
#include "coherence/segments.hpp"
#include "space/space.hpp"

namespace osf::coherence {

struct Met { u64 host, life; };  // after the directory and a newline in an AttachNote: the hosts whose arrays the process has views of

class Attachment : public KeeperClient, public Companion {
public:
    struct Options {
        std::string socket;                   // of the keeper
        std::vector<std::string> hosts;
        u32 self = 0, unit = 64 * 1024;
        std::vector<std::string> keeper;      // command that starts one and returns; empty: none is started
    };
    Attachment(Space& space, Options options);
    ~Attachment() override;

    u64 prefetch(u64 address, u64 bytes, bool write);          // a number to wait for
    bool wait(u64 id, long timeout_ns);                        // false: the time is over. Throws HostLost
    std::string status();                                      // Node::status
    struct States { u64 invalid = 0, shared = 0, modified = 0; };
    // This process is about to have a view of bytes of that life of the host; those of an earlier one it should be done with.
    // `check` is called where that may not be so, and throws if it is not.
    void meet(u64 address, u64 incarnation, const std::function<void()>& check);
    void restore(u32 host);                                    // its segment, which was taken out of this process
    States states(u64 address, u64 bytes) const;               // units, on this host
    std::string owners(u64 address, u64 bytes) const;          // of own units, as Node::owners
    u64 heard_ns(u32 host) const { return load(head().heard[host]); }   // when the keeper last heard from it; 0: never
    u64 epoch() const { return load(head().epoch); }                    // of the list of hosts that the keeper goes by; 0: a fixed list
    u64 term() const { return load(head().term[options_.self]); }       // of this host
    u32 host_of(u64 address) const { return u32((address - base_) / reserve_); }
    const std::string& host(u32 number) const {
        const std::string* joined = joined_[number].load();
        return joined ? *joined : options_.hosts[number];
    }
    void name_host(u32 number, std::string host);              // one that joined after this was attached; its name stays
    void space_gone() override;                                         // its mapping is about to go

    void fork_child() override;
    bool explain(u64 address, char* text, size_t room) const override;

private:
    void take_files();                        // of the space, once the keeper has it open
    void reserve_addresses();
    void map_segments();
    void map_segment(u32 host);
    void map_anew(u32 host);                  // with the mutex, where nobody has a view
    void unmap_segments(bool forbid);
    std::string lives() const;                // with the mutex
    void hand_over(int socket, const std::string& lives);
    const UnitsHead& head() const { return *reinterpret_cast<const UnitsHead*>(units_); }
    void end_leases(u64 after_ns);

    void greet(int socket) override;
    void idle(bool keeper) override;
    [[noreturn]] void refused(const std::string& why) override { throw Error(Code::not_permitted, why); }
    void map_again() override;
    void attach_child() override { hand_over(socket_, lives()); }
    bool forbid() override { return unmap_segments(true), true; }

    Options options_;
    std::string directory_, name_;
    const u64 id_;                            // of the space
    u64 base_, reserve_, data_at_, segment_bytes_;
    bool read_only_;
    int own_fd_ = -1, place_fd_ = -1;
    u32 place_ = 0;
    std::vector<int> caches_;
    u32 reserved_ = 0;                        // hosts whose addresses this process holds
    const char* units_ = nullptr;
    std::deque<std::string> names_;           // those that `joined_` shows; they are never taken away
    std::array<std::atomic<const std::string*>, MAX_HOSTS> joined_{};   // read by the handler of SIGBUS
    std::map<u32, u64> met_;                  // life_of hosts
    std::mutex leases_;                       // of ended_; taken last
    std::map<u32, u64> ended_;                // leases of hosts
};

// The keeper lets go of the space; throws if others of this host have it open.
void close_space(const std::string& socket, const std::string& directory, u64 id);

// The one of this process for the space; made at the first call, kept by the Space and by whatever else shows its memory.
std::shared_ptr<Attachment> attach(const std::shared_ptr<Space>& space, const Attachment::Options& options);

}  // namespace osf::coherence

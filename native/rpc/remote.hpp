// Another host as one process of this one calls it (rpc/calls.hpp): one Remote per process and other host.
//
// A blocking call takes an idle connection or opens one. Gets and writes of bytes by address share one more, on which many are in
// flight (rpc/transfer.hpp). A host that is silent for SILENCE_MS while it owes an answer, or cannot be reached for so long (rpc/reach.hpp), is
// lost: HostLost. So is what it held for us if it comes back as another incarnation, or has given up our place in the
// meantime; new calls work then. A call whose connection broke is made again if it is harmless to do it twice, or if the home knows
// it again (rpc/calls.hpp).
//
// After fork the child has a line of its own, with a uuid of its own and its parent's pins by the same numbers (rpc/remote_fork.cpp).
#pragma once

#include <functional>
#include <optional>
#include <unordered_map>
#include <vector>

#include "rpc/calls.hpp"
#include "net/hello.hpp"
#include "rpc/reach.hpp"
#include "space/space.hpp"
#include "rpc/transfer.hpp"
#include "net/wire.hpp"

namespace osf::rpc {

struct Peer {
    std::string host;
    u16 port = 0;
    u32 number = 0;          // among the hosts
    Key key{};
    Hello hello;             // without the uuid of the process and the term
    std::function<u64()> term, epoch;  // of the own host, and of its list, now; none: that is fixed
    std::string label() const { return host + ":" + std::to_string(port); }
};

// A connection that was welcomed.
struct Connection {
    std::unique_ptr<Wire> wire;
    WelcomeHead welcome;
    u64 next_id = 1, asked = 0; // the id of the next call, and of the last
    std::vector<u64> released;  // pins, told on this connection but not yet known to have been heard
    u64 claims = 0;             // Line::claims when the last call was made
    u64 heard = 0;              // when something came last, or a call was made
    u64 epoch = 0;              // that the home was told
    bool shared = false;        // a child that is being forked has it too: it is closed here, not ended
    void tell_epoch();          // before a call, if it has changed
    Connection(const Peer& peer, const Uuid& uuid, int budget_ms = 2000);
    ~Connection();
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

private:
    const Peer& peer_;
};

// An array that was given out by a keeper which was killed before this process had noted it, while another of its threads told the next keeper
// what it holds: the home has let go of it.
struct Missed : HostLost {
    using HostLost::HostLost;
};

u64 forks();                    // how often this process was forked, and one

[[noreturn]] void throw_error(In in);               // what a frame_error says

struct RemoteArray {
    u64 number = 0;                                 // by which this process holds it
    u64 incarnation = 0, fork = 0, record = 0;
    u32 member = 0, pin = 0;                        // our place at the home, and which of its pins it is
    u64 address = 0, nbytes = 0;
    u16 dtype = 0;
    u8 kind = 0;
    std::vector<u64> shape;
    std::string descr;
};

struct RemoteMessage {
    u32 kind = 0;
    std::string bytes;
    std::optional<RemoteArray> array;
};

struct ChannelFacts {
    u32 capacity, slot_bytes;
    u64 length;
    u32 deleted;
};

using Interrupted = std::function<bool()>;          // asked every tenth of a second of waiting

class Remote {
public:
    explicit Remote(Peer peer);
    ~Remote();
    Remote(const Remote&) = delete;
    Remote& operator=(const Remote&) = delete;

    const Peer& peer() const { return peer_; }
    WelcomeHead welcome();                          // connects if need be
    void close();                                   // says goodbye: all that this process holds there is dropped
    void check_usable() const;
    bool read_only() const { return peer_.hello.head.flags & hello_read_only; }
    std::atomic<bool> mapped{false};                // its addresses may be touched in this process
    std::atomic<bool> stale{false};                 // not, because of views whose arrays were given up there
    void show(const RemoteArray& array);            // a view of it is about to be made
    bool views_are_gone();                          // arrays that this process has views of were given up there; connects if need be
    std::shared_ptr<void> keeps;                    // what maps them: a view outlives the space's handle
    // Before all else: what the keeper of the own host knows.
    void ask_keeper(std::function<u64()> heard_ns, std::function<u64()> term, std::function<u64()> epoch) {
        reach_.ask_keeper(std::move(heard_ns));
        peer_.term = std::move(term);
        peer_.epoch = std::move(epoch);
    }
    const std::string& left_behind() const { return left_behind_; }  // not empty: why this process, forked, may not touch them

    RemoteArray make(const Spec& spec, bool zero);
    RemoteArray put(const Spec& spec, std::span<const char> bytes, bool replace);
    std::optional<RemoteArray> find(std::string_view name);
    RemoteArray at(u64 address);
    void release(const RemoteArray& array) noexcept;
    std::pair<u64, std::string> look(RemoteArray& array);       // state, name
    void publish(RemoteArray& array, bool replace);
    void name(RemoteArray& array, std::string_view name, RemoteArray* meanwhile = nullptr);
    bool contains(std::string_view name);
    bool remove(std::string_view name, RemoteArray* only = nullptr);
    void rename(std::string_view from, std::string_view to, RemoteArray* meanwhile = nullptr);  // refused once that is let go of
    std::vector<Entry> list(std::string_view prefix);
    void grow(u64 bytes);
    void collect();
    Audit audit();
    Stats stats();
    std::string owners(u64 address, u64 bytes);

    std::pair<bool, u64> atomic(RemoteArray& array, u64 offset, Verb verb, u8 width, u64 a = 0, u64 b = 0);
    bool wait_word(RemoteArray& array, u64 offset, u32 expected, long timeout_ns, const Interrupted& interrupted);
    int wake_word(RemoteArray& array, u64 offset, int count);
    Grant lock_take(RemoteArray& array, long timeout_ns, const Interrupted& interrupted);
    bool lock_drop(RemoteArray& array);
    bool lock_owned(RemoteArray& array);
    void barrier_init(RemoteArray& array, u32 parties);
    std::pair<u32, bool> barrier_facts(RemoteArray& array);     // parties, broken
    u32 barrier_wait(RemoteArray& array, long timeout_ns, const Interrupted& interrupted);
    void barrier_reset(RemoteArray& array);
    void channel_init(RemoteArray& array, u32 capacity, u32 slot_bytes);
    ChannelFacts channel_facts(RemoteArray& array);
    bool channel_send(RemoteArray& array, std::string_view message, RemoteArray* other, long timeout_ns, const Interrupted& interrupted);
    bool channel_receive(RemoteArray& array, RemoteMessage& message, long timeout_ns, const Interrupted& interrupted);
    void channel_discard(RemoteArray& array);

    // The memory at `places` is used until the transfer is done.
    std::shared_ptr<Transfer> get(std::vector<Range> ranges, std::vector<char*> places);
    std::shared_ptr<Transfer> write(std::vector<Range> ranges, std::vector<char*> places);
    bool wait(Transfer& transfer, long timeout_ns, const Interrupted& interrupted);  // false: not done; throws what went wrong

    // One look-up at several hosts, all asked before the first has answered. The errors of single hosts are told through `failed`.
    using Failed = std::function<void(size_t which, const Error&)>;
    static std::vector<std::optional<RemoteArray>> find_all(std::span<Remote* const> remotes, std::string_view name, const Failed& failed);

    // A call of any kind, for those that know what it says.
    struct Answer {
        bool good = false;
        std::string payload;
        WelcomeHead welcome;
        u64 claims = 0;                                         // Line::claims when it was asked
        u64 number = 0;                                         // of the pin that was made
        bool kept = false;                                      // by the home, which will know the pin whatever becomes of its keeper
    };
    struct Ask {
        Call call;
        Out out;
        bool again = false;                                     // harmless if done twice
        bool once = false;                                      // it must not be done twice, but may be asked for so
        u64 id = 0;                                             // with its lane
        RemoteArray* arrays[2] = {nullptr, nullptr};
        u64 new_pin = 0;                                        // number of a pin that the call makes
        std::span<const char> parts;
        std::function<void(In)> page;                           // for each part of the reply
        std::function<void()> anew;                             // before it is made again
        std::function<void(const Answer&)> taken;               // what is done with the answer before the lane is free: until then the home keeps it
        mutable bool cancelled = false;
        Interrupted interrupted;                                // a call that waits: the home is told to stop waiting
        u64 address = 0, bytes = 0;                             // what it is about, for errors
        size_t timeout_at = 0;                                  // where `out` says how long to wait; 0: nowhere
        long timeout_ns = -1;
    };
    Ask ask(Call call, bool again = false) const;
    Answer call(Ask ask);

private:
    // What this process has there; another after a fork.
    struct Line {
        u64 fork = 0;
        Uuid uuid{};
        std::mutex mutex;
        std::vector<std::unique_ptr<Connection>> idle;
        u64 lanes = (1ull << LANES) - 1;                        // those that are free
        u64 next_once = 1;
        std::vector<u64> releases;                              // to be told with the next call
        struct Kept { u64 incarnation, record; u32 member, pin; bool viewed = false; };
        std::unordered_map<u64, Kept> pins;                     // by number
        u64 claims = 0;                                         // how often a keeper was told of all of them
        std::unique_ptr<Transfers> transfers;                   // last, so that it ends first: its thread uses the rest
    };
    struct Heir {                                               // a child that is being forked
        Uuid uuid{};
        std::unique_ptr<Connection> connection;                 // none: the host could not be asked, and why
        std::unordered_map<u64, Line::Kept> pins;
        std::string why;
    };
    Line& line();
    std::unique_ptr<Line> new_line();
    std::unique_ptr<Connection> dial(Line& line);
    void claim(Line& line, Connection& connection);
    std::unique_ptr<Connection> take(Line& line, bool fresh, bool patient = true);
    void give_back(Line& line, std::unique_ptr<Connection> connection);
    void drop(Line& line, std::unique_ptr<Connection> connection, u64 new_pin = 0);
    void begin(Line& line, Connection& connection, const Ask& ask);
    void send(Connection& connection, const Ask& ask);
    Answer finish(Connection& connection, const Ask& ask);
    RemoteArray make_once(const Spec& spec, bool zero);
    std::optional<RemoteArray> find_once(std::string_view name);
    RemoteArray at_once(u64 address);
    RemoteArray keep(const Answer& answer, In& in);             // throws Missed
    u64 number_of(RemoteArray& array);
    u64 new_number() { return next_number_++; }
    Ask about(Call call, RemoteArray& array, bool again = false);
    Ask once(Call call, RemoteArray& array);
    Answer call_in_lane(Line& line, Ask& ask);
    static void add_timeout(Ask& ask, long timeout_ns);
    [[noreturn]] void lost(const std::string& why, const Ask& ask) const;

    static void handle_forks();
    void know(bool here);                                       // whether fork handlers look at it
    void fork_prepare(u64 give_up_at);
    void fork_parent();
    void fork_child();
    void announce(Heir& heir, int budget_ms);
    void bequeath(Line& line, const WelcomeHead& here, Heir& heir);
    void forbid(bool because_stale = false);
    bool holds_only(Line& line, const WelcomeHead& welcome);

    Peer peer_;
    std::atomic<Line*> line_{nullptr};                          // of a forked process the parent's is left as it is: its locks may be held
    Reach reach_;
    std::atomic<u64> next_number_{1};                           // never used twice, not by children either
    std::atomic<bool> closed_{false};
    Line* forking_ = nullptr;                                   // locked while this process is forked
    std::unique_ptr<Heir> heir_;
    std::string left_behind_;
};

}  // namespace osf::rpc

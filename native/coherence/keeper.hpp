// The keeper's process of a host, for all its spaces: what host_keeper.hpp runs.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "coherence/host_keeper.hpp"
#include "coherence/node.hpp"
#include "faults/keeper_process.hpp"
#include "net/listener.hpp"
#include "rpc/serve.hpp"

namespace osf::coherence {

class Keeper final : public KeeperProcess {
public:
    explicit Keeper(const KeeperOptions& options);
    ~Keeper() override;
    void start();                            // takes the place; the spaces of this host are open afterwards

private:
    // A space of this host. Threads of the listener and connections on their way hold it; it is only taken out of spaces_, by the agent, when
    // they are done with it. Until then its node answers the touches of those threads.
    struct Opened {
        std::unique_ptr<Node> node;
        std::unique_ptr<Proxies> proxies;
        std::map<u32, std::thread> dialers;  // by host
        std::atomic<u32> dialing{0};
        std::atomic<bool> stop{false};       // it is being closed, and nobody new gets it
        u64 closing_ns = 0;
        struct Waiting { int socket; std::function<void()> then; };
        std::vector<Waiting> closers;        // what is done when it is closed
        ~Opened() { join(); }
        void join() {
            for (auto& [host, dialer] : dialers)
                if (dialer.joinable()) dialer.join();
        }
    };
    struct Handed { std::shared_ptr<Opened> opened; u32 host; u64 term; std::unique_ptr<Wire> wire; };

    // Its place, and its end
    void take_over();
    int sleep_ms() override;
    void woke() override;
    void turn(u64 now, bool came) override;
    bool tick(u64 now);
    bool needed() override;
    bool over(u64 now) override;

    // Local processes
    void heard(int socket, const Note& note, const std::string& text, int& fd) override;
    void parted(int socket) override;
    Node& attached(int socket);
    void attach_for(int socket, const AttachNote& note, const std::string& text, int& fd);
    static void answer(int socket, u64 number, bool good, std::string_view text = {});

    // Spaces
    void open_all();
    void open(const std::string& directory, u32 unit, u64 id);
    void open_for(int socket, const OpenNote& note, const std::string& directory);
    Node* node_of(const std::string& directory);
    void hear_ended(const std::string& directory);
    void close_for(int socket, const CloseNote& note, const std::string& directory);
    void begin_close(Opened& opened, int socket, std::function<void()> then);
    void end_closes(u64 now);

    // Other hosts
    void greet(std::unique_ptr<Wire>& wire, const Hello& hello);
    Hello hello_of(const Node& node) const;
    void dial(const std::weak_ptr<Opened>& whole, Opened& opened, u32 host);
    void hand_over(Handed handed);
    void adopt_handed();
    void follow_roster();                    // hosts that joined are called, those that were given up are cut off
    bool serves(const std::string& name) const { return options_.only.empty() || name == options_.only + "@" + host_; }
    void await_term(const Opened& opened, u64 term) const;
    void call_host(const std::shared_ptr<Opened>& opened, u32 host);

    const KeeperOptions options_;
    Roster& roster_;
    const std::string host_;                 // its own
    u64 epoch_ = 0;                          // of the roster, as it was last followed
    const std::string socket_;               // its path
    int event_ = -1;                         // something was handed over
    Loop::Watch event_watch_;
    std::map<int, std::string> attached_;    // directories, by the sockets of processes
    std::mutex mutex_;                       // of spaces_' structure and handed_
    std::map<std::string, std::shared_ptr<Opened>> spaces_;   // by directory
    std::vector<Handed> handed_;
    std::unique_ptr<Listener> listener_;
    bool handing_over_ = false;
    bool waiting_ = false, sleeping_ = false;
    u64 busy_ns_ = 0, ticked_ns_ = now_ns(), leaving_ns_ = 0;
};

constexpr u64 LEAVE_NS = 1'000 * MILLI;      // that is waited for what was borrowed to arrive at its homes

}  // namespace osf::coherence

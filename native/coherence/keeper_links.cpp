// Keeper: connections to the keepers of other hosts, which threads of their own make and accept.
#include <chrono>
#include <unistd.h>
#include <utility>

#include "coherence/keeper.hpp"

namespace osf::coherence {

void Keeper::hand_over(Handed handed) {
    {
        std::lock_guard guard(mutex_);
        handed_.push_back(std::move(handed));
    }
    u64 one = 1;
    [[maybe_unused]] ssize_t put = write(event_, &one, sizeof one);
}

void Keeper::adopt_handed() {
    u64 count;
    [[maybe_unused]] ssize_t got = read(event_, &count, sizeof count);
    std::vector<Handed> handed;
    {
        std::lock_guard guard(mutex_);
        handed.swap(handed_);
    }
    for (Handed& one : handed)
        if (!one.opened->stop) one.opened->node->adopt(one.host, one.term, std::move(one.wire));
}

Hello Keeper::hello_of(const Node& node) const {
    Hello hello;
    hello.head.host = u16(options_.self);
    hello.head.base = node.base();
    hello.head.reserve = node.reserve();
    hello.head.hosts = roster_.size();
    hello.head.hosts_hash = roster_.realm();
    hello.head.term = roster_.term(options_.self);
    hello.space = node.name();
    return hello;
}

// In a thread of the listener.
void Keeper::greet(std::unique_ptr<Wire>& wire, const Hello& hello) {
    std::shared_ptr<Opened> wanted;
    {
        std::lock_guard guard(mutex_);
        for (auto& [directory, opened] : spaces_)
            if (opened->node->name() == hello.space && !opened->stop) wanted = opened;
    }
    if (!wanted) throw Error(Code::unknown_name, "space '" + hello.space + "' is not open on host " + host_);
    Cluster{wanted->node->base(), wanted->node->reserve(), roster_.realm(), roster_.size()}.check(hello);
    await_term(*wanted, hello.head.term);
    roster_.check(hello.head.host, hello.head.term);
    if (hello.head.role == role_process) return serve_process(*wanted->proxies, wire, hello);
    if (hello.head.role != role_keeper || hello.head.host <= options_.self)
        throw Error(Code::bad_input, "host " + std::to_string(hello.head.host) + " has no reason to call as role " + std::to_string(hello.head.role));
    if (!wanted->node->settled()) throw Error(Code::host_lost, "host " + host_ + " is starting");
    const u64 term = roster_.term(options_.self);
    wire->send(frame_welcome, 0, {reinterpret_cast<const char*>(&term), roster_.agreed() ? sizeof term : 0});
    hand_over({std::move(wanted), hello.head.host, hello.head.term, std::move(wire)});
}

// A caller that has just joined may know that before this host does. Its look-ups must not miss what is here.
void Keeper::await_term(const Opened& opened, u64 term) const {
    roster_.ask_for(term);
    for (const u64 start = now_ns(); opened.node->epoch() < term && !opened.stop && now_ns() - start < HEAR_NS;) ::usleep(500);
}

// In a thread of its own: it waits for answers.
void Keeper::call_host(const std::shared_ptr<Opened>& opened, u32 host) {
    if (roster_.host(host).empty() || opened->dialers.count(host) || opened->stop) return;
    opened->dialing++;
    opened->dialers[host] = std::thread([this, weak = std::weak_ptr(opened), raw = opened.get(), host] {
        dial(weak, *raw, host);
        raw->dialing--;
    });
}

void Keeper::follow_roster() {
    const u64 epoch = roster_.epoch();
    if (epoch == epoch_) return;
    epoch_ = epoch;
    for (auto& [directory, opened] : spaces_) {
        opened->node->follow_roster();
        opened->proxies->cut();
        for (u32 host = 0; host < options_.self; host++) call_host(opened, host);
    }
}

void Keeper::dial(const std::weak_ptr<Opened>& whole, Opened& opened, u32 host) {
    Node& node = *opened.node;
    auto [name, port] = split_host(roster_.host(host));
    std::string said;
    u32 tries = 0;
    auto pause = [&](int steps) { for (; steps && !opened.stop; steps--) std::this_thread::sleep_for(std::chrono::milliseconds(20)); };
    while (!opened.stop) {
        if (node.connected(host) || !node.settled() || !roster_.member(host) || !roster_.member(options_.self)) {
            pause(1);
            continue;
        }
        try {
            auto wire = Wire::connect(name, port, options_.key, ++tries % 4 ? 250 : 1000);  // a lost first packet is sent again after a second
            Hello hello = hello_of(node);
            hello.head.role = role_keeper;
            std::string bytes = hello.encode();
            wire->send(frame_hello, 0, bytes);
            const FrameHead* head = wire->wait(2'000'000'000);
            if (!head) throw Error(Code::host_lost, "no answer to the hello");
            bool welcome = head->type == frame_welcome;
            std::string text = wire->open();
            u64 term = 0;
            if (welcome && roster_.agreed()) {
                std::memcpy(&term, text.data(), std::min(text.size(), sizeof term));
                roster_.ask_for(term);
                roster_.check(host, term);
            }
            if (!welcome) throw Error(Code::refused, "it refused: " + text.substr(std::min<size_t>(4, text.size())));
            if (auto held = whole.lock()) hand_over({std::move(held), host, term, std::move(wire)});
            said.clear();
            pause(25);  // until the agent has it
        } catch (const Error& error) {
            if (said != error.what()) say("host " + roster_.host(host) + ": " + (said = error.what()));
            pause(5);
        }
    }
}

}  // namespace osf::coherence

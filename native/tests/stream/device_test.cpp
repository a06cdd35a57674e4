// The copy queues of the host's device: order within one, tickets between several, and the end with work left.
#include "stream/device.hpp"

#include <chrono>
#include <thread>
#include <vector>

#include "tests/check.hpp"

using namespace osf;
using namespace osf::test;

static void copies_of_one_queue_run_in_order() {
    context = "order";
    std::vector<u64> a(300'000), b(a.size()), c(a.size());
    CopyQueue queue;
    std::vector<std::shared_ptr<Ticket>> tickets;
    for (u64 round = 1; round <= 20; round++) {
        for (u64& word : a) word = round;
        tickets.push_back(queue.copy(b.data(), a.data(), a.size() * 8));
        tickets.push_back(queue.copy(c.data(), b.data(), b.size() * 8));
        CHECK(queue.mark()->wait(-1));
        for (auto& ticket : tickets) CHECK(ticket->done());
        for (u64 word : c) CHECK(word == round);
    }
    tickets.back()->wait(-1);
    CHECK(queue.copy(b.data(), a.data(), 0)->wait(-1));
}

// A chain over several queues: each may only go on when the one before has copied.
static void a_ticket_of_one_queue_holds_up_another() {
    context = "tickets between queues";
    constexpr size_t QUEUES = 4;
    std::vector<std::vector<u64>> place(QUEUES + 1, std::vector<u64>(100'000));
    std::vector<std::unique_ptr<CopyQueue>> queues;
    for (size_t at = 0; at < QUEUES; at++) queues.push_back(std::make_unique<CopyQueue>());
    std::shared_ptr<Ticket> last;
    for (u64 round = 1; round <= 50; round++) {
        for (u64& word : place[0]) word = round;
        for (size_t at = 0; at < QUEUES; at++) {
            if (last) queues[at]->after(last);
            queues[at]->copy(place[at + 1].data(), place[at].data(), place[at].size() * 8);
            last = queues[at]->mark();
        }
        CHECK(last->wait(-1));
        for (u64 word : place[QUEUES]) CHECK(word == round);
    }
}

static void several_threads_may_give_to_one_queue() {
    context = "threads";
    CopyQueue queue;
    std::vector<u64> source(1000, 7), target(4000);
    std::vector<std::thread> threads;
    for (u64 who = 0; who < 4; who++)
        threads.emplace_back([&, who] {
            for (int round = 0; round < 200; round++) CHECK(queue.copy(target.data() + who * 1000, source.data(), 8000)->wait(-1));
        });
    for (auto& thread : threads) thread.join();
    for (u64 word : target) CHECK(word == 7);
}

static void waiting_ends_with_its_time_or_when_interrupted() {
    context = "timeouts";
    CopyQueue first, second;
    std::vector<char> big(64 * MIB, 1), target(big.size());
    for (int round = 0; round < 4; round++) first.copy(target.data(), big.data(), big.size());
    auto last = first.mark();
    second.after(last);
    auto behind = second.mark();
    CHECK(!behind->wait(0));
    if (!behind->wait(1'000'000)) CHECK(!last->done() || behind->wait(-1));
    CHECK(behind->wait(-1));
    CHECK(last->done() && behind->wait(0));
}

static void a_queue_that_closes_finishes_what_it_has() {
    context = "closing";
    std::vector<std::vector<u64>> places(40, std::vector<u64>(50'000));
    for (u64& word : places[0]) word = 9;
    std::shared_ptr<Ticket> last;
    {
        auto other = std::make_unique<CopyQueue>();
        CopyQueue queue;
        for (size_t at = 1; at < 20; at++) last = other->copy(places[at].data(), places[at - 1].data(), 400'000);
        queue.after(last);
        for (size_t at = 20; at < places.size(); at++) last = queue.copy(places[at].data(), places[at - 1].data(), 400'000);
        queue.close();
        queue.close();
        CHECK(last->done());
        bool refused = false;
        try {
            queue.mark();
        } catch (const Error& error) {
            refused = error.code == Code::closed;
        }
        CHECK(refused);
    }
    for (u64 word : places.back()) CHECK(word == 9);
    CHECK(last->wait(0));
}

static void overlapping_ranges_are_refused() {
    context = "overlap";
    CopyQueue queue;
    std::vector<char> bytes(100);
    bool refused = false;
    try {
        queue.copy(bytes.data() + 10, bytes.data(), 11);
    } catch (const Error& error) {
        refused = error.code == Code::bad_input;
    }
    CHECK(refused);
    CHECK(queue.copy(bytes.data() + 10, bytes.data(), 10)->wait(-1));
}

// TSan does not follow a process of several threads over a fork.
static void a_child_is_refused_and_ends_in_peace() {
    if (UNDER_TSAN) return;
    context = "fork";
    DeviceArena arena(MIB);
    std::vector<char> source(arena.bytes(), 5);
    auto queue = std::make_unique<CopyQueue>();
    CHECK(queue->copy(arena.data(), source.data(), source.size())->wait(-1));
    CHECK(returned(run([&] {
        bool refused = false;
        try {
            queue->copy(source.data(), arena.data(), 1);
        } catch (const Error& error) {
            refused = error.code == Code::closed;
        }
        CHECK(refused);
        queue.reset();
    })));
    CHECK(arena.data()[MIB - 1] == 5);
    CHECK(queue->copy(source.data(), arena.data(), source.size())->wait(-1));
}

int main() {
    copies_of_one_queue_run_in_order();
    a_ticket_of_one_queue_holds_up_another();
    several_threads_may_give_to_one_queue();
    waiting_ends_with_its_time_or_when_interrupted();
    a_queue_that_closes_finishes_what_it_has();
    overlapping_ranges_are_refused();
    a_child_is_refused_and_ends_in_peace();
    std::puts("device: ok");
}

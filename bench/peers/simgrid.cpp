// A ring all-reduce in SimGrid: `ranks` hosts on a star of links, each passing a message on 2 (ranks - 1) times.
#include <cstdio>
#include <cstdlib>
#include <simgrid/s4u.hpp>
#include <string>

namespace s4u = simgrid::s4u;

int main(int argc, char** argv) {
    s4u::Engine engine(&argc, argv);
    const int ranks = std::atoi(argv[1]);
    const double bytes = std::atof(argv[2]) / ranks, bandwidth = std::atof(argv[3]), latency = std::atof(argv[4]);
    auto* zone = s4u::create_star_zone("star");
    for (int rank = 0; rank < ranks; rank++) {
        const std::string name = std::to_string(rank);
        auto* host = zone->create_host("host" + name, 1e9);
        auto* link = zone->create_split_duplex_link("link" + name, bandwidth)->set_latency(latency)->seal();
        zone->add_route(host->get_netpoint(), nullptr, nullptr, nullptr, {s4u::LinkInRoute(link, s4u::LinkInRoute::Direction::UP)},
                        true);
        s4u::Actor::create("rank" + name, host, [=] {
            static char token;
            auto* to = s4u::Mailbox::by_name(std::to_string((rank + 1) % ranks));
            auto* from = s4u::Mailbox::by_name(name);
            for (int step = 0; step < 2 * (ranks - 1); step++) {
                auto sent = to->put_async(&token, std::uint64_t(bytes));
                from->get<char>();
                sent->wait();
            }
        });
    }
    zone->seal();
    engine.run();
    std::printf("%.9f\n", s4u::Engine::get_clock());
}

#include "lock.hpp"
#include "model_search.hpp"

using namespace osf;
using namespace osf::model;

int main(int argc, char** argv) {
    Shape shape;
    Bounds bounds;
    auto arg = [&](int i, u32 other) { return argc > i ? u32(atoi(argv[i])) : other; };
    shape.units = arg(1, 1);
    if (shape.units == 3) { shape.units = 2; shape.home[1] = 1; shape.number[1] = 0; }
    bounds.faults = arg(2, 1);
    bounds.purges = arg(3, 1);
    bounds.touches = arg(4, ANY);
    bounds.evictions = arg(5, ANY);
    shape.slots = arg(6, 1);
    Fault fault = Fault(arg(7, 0));
    if (argc > 8) bounds.worlds = atol(argv[8]);
    u64 start = now_ns();
    Report r = Search(shape, bounds, fault).run();
    printf("%zu worlds %zu events %zu hosts %zu wires depth %zu complete %d %.1f s\n", r.worlds, r.events, r.hosts, r.wires, r.depth, r.complete, (now_ns()-start)/1e9);
    if (!r.violation.empty()) { printf("%s\n", r.violation.c_str()); for (auto& s : r.path) printf("  %s\n", s.c_str()); return 1; }
}

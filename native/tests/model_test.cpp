#include "lock.hpp"
#include "model_search.hpp"

using namespace osf;
using namespace osf::model;

int main(int argc, char** argv) {
    Shape shape;
    Bounds bounds;
    shape.units = argc > 1 ? atoi(argv[1]) : 1;
    bounds.alike = true;
    if (shape.units == 3) { shape.units = 2; shape.home[1] = 1; shape.number[1] = 0; bounds.alike = false; }
    bounds.faults = argc > 2 ? atoi(argv[2]) : 1;
    bounds.touches = argc > 3 ? atoi(argv[3]) : 15;
    bounds.evictions = argc > 4 ? atoi(argv[4]) : 3;
    shape.slots = argc > 5 ? atoi(argv[5]) : 1;
    Fault fault = argc > 6 ? Fault(atoi(argv[6])) : Fault::none;
    u64 start = now_ns();
    Report r = Search(shape, bounds, fault).run();
    printf("%zu worlds %zu events %zu hosts %zu wires depth %zu complete %d %.1f s\n", r.worlds, r.events, r.hosts, r.wires, r.depth, r.complete, (now_ns()-start)/1e9);
    if (!r.violation.empty()) { printf("%s\n", r.violation.c_str()); for (auto& s : r.path) printf("  %s\n", s.c_str()); return 1; }
}

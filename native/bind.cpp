// The Python module: each bind_*.cpp adds one part and only converts types.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_measure(nb::module_& m);

NB_MODULE(_core, m) {
    m.doc() = "Openshelf's native core.";
    bind_measure(m);
}

// Waiting for a ticket from Python: without the interpreter's lock, and Ctrl-C is heard.
#pragma once

#include <nanobind/nanobind.h>

namespace osf::bind {

template <class Ticket>
bool wait_for(Ticket& ticket, double timeout_s) {
    namespace nb = nanobind;
    if (ticket.done()) return ticket.wait(0);
    const long timeout = timeout_s < 0 || !(timeout_s < 1e9) ? -1 : long(timeout_s * 1e9);
    auto ctrl_c = [] {
        nb::gil_scoped_acquire acquire;
        return PyErr_CheckSignals() < 0;
    };
    bool done;
    {
        nb::gil_scoped_release release;
        done = ticket.wait(timeout, ctrl_c);
    }
    if (PyErr_Occurred()) throw nb::python_error();
    return done;
}

}  // namespace osf::bind

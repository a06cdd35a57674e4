// The Python module: each bind_*.cpp adds one part and only converts types.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/base.hpp"
#include "base/log.hpp"
#include "bind/space.hpp"
#include "kv/calls.hpp"
#include "shards/calls.hpp"

namespace nb = nanobind;

namespace osf::bind {

void bind_enums(nb::module_& m);
void bind_measure(nb::module_& m);
void bind_space(nb::module_& m);
void bind_sync(nb::module_& m);
void bind_wire(nb::module_& m);
void bind_remote(nb::module_& m);
void bind_hosts(nb::module_& m);
void bind_kv(nb::module_& m);
void bind_tiers(nb::module_& m);
void bind_device(nb::module_& m);
void bind_stream(nb::module_& m);
void bind_flow(nb::module_& m);
void bind_tables(nb::module_& m);
void bind_serving(nb::module_& m);
void bind_table_keys(nb::module_& m);
void bind_shards(nb::module_& m);

static const char* error_name(osf::Code code) {
    using osf::Code;
    switch (code) {
        case Code::name_taken: return "NameTaken";
        case Code::unknown_name: return "UnknownName";
        case Code::no_room: return "NoRoom";
        case Code::bad_address: return "BadAddress";
        case Code::address_occupied: return "AddressOccupied";
        case Code::wrong_version: return "WrongVersion";
        case Code::corrupt: return "Corrupt";
        case Code::not_permitted: return "NotPermitted";
        case Code::closed: return "Closed";
        case Code::too_many_members: return "TooManyMembers";
        case Code::broken_barrier: return "BrokenBarrier";
        case Code::bad_input: return "BadInput";
        case Code::host_lost: return "HostLost";
        case Code::refused: return "Refused";
        case Code::flash: return "FlashFailed";
        case Code::cancelled: return "Cancelled";
        case Code::out_of_range: return "OutOfRange";
        case Code::os: break;
    }
    return "OpenshelfError";
}

void set_error(const Error& error) {
    nb::object type = nb::module_::import_("openshelf.errors").attr(error_name(error.code));
    PyErr_SetString(type.ptr(), printable(error.what()).c_str());
}

}  // namespace osf::bind

NB_MODULE(_core, m) {
    m.doc() = "Openshelf's native core.";
    osf::kv::register_kv();
    osf::shards::register_shards();
    nb::set_leak_warnings(false);  // arrays that live as long as the interpreter are no leak: their pins go with it
    nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
        try {
            std::rethrow_exception(thrown);
        } catch (const osf::HostLost& error) {
            nb::object type = nb::module_::import_("openshelf.errors").attr("HostLost");
            nb::object value = type(osf::printable(error.what()), error.host, nb::make_tuple(error.address, error.bytes));
            PyErr_SetObject(type.ptr(), value.ptr());
        } catch (const osf::Error& error) {
            osf::bind::set_error(error);
        }
    });
    osf::bind::bind_enums(m);
    osf::bind::bind_measure(m);
    osf::bind::bind_space(m);
    osf::bind::bind_sync(m);
    osf::bind::bind_wire(m);
    osf::bind::bind_remote(m);
    osf::bind::bind_hosts(m);
    osf::bind::bind_kv(m);
    osf::bind::bind_tiers(m);
    osf::bind::bind_device(m);
    osf::bind::bind_stream(m);
    osf::bind::bind_flow(m);
    osf::bind::bind_tables(m);
    osf::bind::bind_serving(m);
    osf::bind::bind_table_keys(m);
    osf::bind::bind_shards(m);
}

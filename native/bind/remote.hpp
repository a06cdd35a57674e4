// The Python object that owns a pin at another host.
#pragma once

#include "bind/space.hpp"
#include "rpc/remote.hpp"

namespace osf::bind {

struct RemotePin {
    std::shared_ptr<Remote> remote;
    mutable RemoteArray array;  // taken anew in a forked child

    RemotePin(std::shared_ptr<Remote> of, RemoteArray what) : remote(std::move(of)), array(std::move(what)) {}
    RemotePin(RemotePin&& other) noexcept : remote(std::move(other.remote)), array(std::move(other.array)) {}
    RemotePin(const RemotePin&) = delete;
    RemotePin& operator=(const RemotePin&) = delete;
    ~RemotePin() {
        if (remote) remote->release(array);
    }
};

void bind_remote_sync(nanobind::module_& m);

}  // namespace osf::bind

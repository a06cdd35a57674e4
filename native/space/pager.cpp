#include "space/pager.hpp"

#include <array>

namespace osf::space {

static std::array<std::atomic<MovableFrom>, 256> kinds{};

void set_movable_from(u8 kind, MovableFrom from) { kinds[kind] = from; }

u64 movable_from(u8 kind, const char* array, u64 nbytes) {
    const MovableFrom from = kinds[kind];
    return from ? from(array, nbytes) : 0;
}

}  // namespace osf::space

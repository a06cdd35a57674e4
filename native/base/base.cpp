#include "base/base.hpp"

#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

namespace osf {

void fail_os(const std::string& what, int error) {
    Code code = Code::os;
    if (error == ENOSPC || error == ENOMEM) code = Code::no_room;
    if (error == EACCES || error == EPERM || error == EROFS) code = Code::not_permitted;
    if (error == ENOENT) code = Code::unknown_name;
    throw Error(code, what + ": " + std::strerror(error));
}

Descriptor::~Descriptor() {
    if (fd >= 0) ::close(fd);
}

int allocate_file(int fd, u64 at, u64 bytes) {
    int error;
    do error = posix_fallocate(fd, off_t(at), off_t(bytes));
    while (error == EINTR);
    return error;
}

static u64 mix(u64 state, u64 word) {
    state = (state ^ word) * 0x9fb21c651e98df25ull;
    return state ^ (state >> 32);
}

u64 hash_bytes(const void* data, u64 size, u64 seed) {
    const char* at = static_cast<const char*>(data);
    u64 state = seed ^ (size * 0x9e3779b97f4a7c15ull), word = 0;
    u64 lanes[4] = {state, state ^ 1, state ^ 2, state ^ 3};
    u64 left = size;
    for (; left >= 32; left -= 32, at += 32) {  // four independent chains: the multiplier's latency would bound one
        for (int lane = 0; lane < 4; lane++) {
            std::memcpy(&word, at + 8 * lane, 8);
            lanes[lane] = mix(lanes[lane], word);
        }
    }
    if (size >= 32)
        for (u64 lane : lanes) state = mix(state, lane);
    for (; left >= 8; left -= 8, at += 8) {
        std::memcpy(&word, at, 8);
        state = mix(state, word);
    }
    if (left) {
        word = 0;
        std::memcpy(&word, at, left);
        state = mix(state, word);
    }
    state = mix(state, 0x2545f4914f6cdd1dull);
    return mix(state, state >> 29);
}

#ifdef OSF_STEPS
std::atomic<long> step_limit{-1};
void (*step_action)() = [] { ::kill(::getpid(), SIGKILL); };
void step() {
    if (step_limit.load(std::memory_order_relaxed) < 0) return;
    if (step_limit.fetch_sub(1) == 0) step_action();
}
#endif

}  // namespace osf

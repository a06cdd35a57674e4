// Ground types of the native core: words in shared memory, errors, and the kill points of the tests.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/rooms.hpp"

namespace osf {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

constexpr u64 PAGE = 4096;
constexpr u64 KIB = 1024, MIB = 1024 * KIB, GIB = 1024 * MIB;

constexpr u64 align_up(u64 value, u64 to) { return (value + to - 1) / to * to; }
constexpr u64 div_up(u64 value, u64 by) { return (value + by - 1) / by; }

enum class Code {
    name_taken, unknown_name, no_room, bad_address, address_occupied, wrong_version, corrupt,
    not_permitted, closed, too_many_members, broken_barrier, bad_input, host_lost, refused, os, flash, cancelled,
    out_of_range,
};

struct Error : std::runtime_error {
    Code code;
    Error(Code c, const std::string& message) : std::runtime_error(message), code(c) {}
};

// A host that does not answer, and the bytes that were wanted of it (none: 0, 0).
struct HostLost : Error {
    std::string host;
    u64 address, bytes;
    HostLost(std::string who, const std::string& message, u64 at = 0, u64 size = 0)
        : Error(Code::host_lost, message), host(std::move(who)), address(at), bytes(size) {}
};

struct Descriptor {                          // of a file; closed with this
    const int fd;
    explicit Descriptor(int opened) : fd(opened) {}
    ~Descriptor();
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
};

// Memory or disk for a range of a file; 0 or the error. Signals do not end it.
int allocate_file(int fd, u64 at, u64 bytes);

[[noreturn]] void fail_os(const std::string& what, int error);

// A word in shared memory. Sequential consistency is the default on purpose: the pin protocol (space/collect.cpp)
// is a Dekker pattern, and on x86 only the exchanges cost anything.
template <class T>
inline T load(const T& word, std::memory_order order = std::memory_order_seq_cst) {
    return std::atomic_ref<T>(const_cast<T&>(word)).load(order);
}
template <class T>
inline void store(T& word, std::type_identity_t<T> value, std::memory_order order = std::memory_order_release) {
    std::atomic_ref<T>(word).store(value, order);
}
template <class T>
inline T swap(T& word, std::type_identity_t<T> value) {
    return std::atomic_ref<T>(word).exchange(value);
}
template <class T>
inline bool cas(T& word, T expected, std::type_identity_t<T> desired) {
    return std::atomic_ref<T>(word).compare_exchange_strong(expected, desired);
}

// 64-bit hash of bytes. Every step is a bijection of the state for a fixed input word, so a change of one word
// always changes the result: this is also the checksum of metadata.
u64 hash_bytes(const void* data, u64 size, u64 seed);
inline u64 hash_name(std::string_view name) { return hash_bytes(name.data(), name.size(), 0x6f70656e7368656cull); }

// A kill point: in the test build, step() number `step_limit` ends the process as kill -9 would.
#ifdef OSF_STEPS
extern std::atomic<long> step_limit;
extern void (*step_action)();  // instead
void step();
#else
inline void step() {}
#endif

}  // namespace osf

// The first frame on a connection between hosts: who calls, for which space, and what it takes the cluster to be.
//
//   0  u32 protocol   4          4  u8 role     1 keeper, 2 process     5  u8 flags   1 read-only     6  u16 host   index in the list
//   8  u64 base                 16  u64 reserve (of one host)          24  u64 term (of the host: net/roster.hpp)
//  32  u8[16] process uuid      48  u64 realm (hash of the list, or which agreement)       56  u32 hosts, u32 length of the name, then the space's name
#pragma once

#include "base/base.hpp"

namespace osf::net {

constexpr u32 PROTOCOL = 4;  // 2 had puts without numbers, 3 no terms and epochs
enum Role : u8 { role_keeper = 1, role_process = 2 };
constexpr u8 hello_read_only = 1;
enum FrameType : u16 { frame_hello = 1, frame_welcome = 2, frame_refused = 3, frame_first_keeper = 16, frame_first_process = 64 };

struct HelloHead {
    u32 protocol = PROTOCOL;
    u8 role = role_process, flags = 0;
    u16 host = 0;
    u64 base = 0, reserve = 0, term = 0;
    u8 process[16] = {};
    u64 hosts_hash = 0;
    u32 hosts = 0, name_bytes = 0;
};
static_assert(sizeof(HelloHead) == 64);

struct Hello {
    HelloHead head;
    std::string space;

    std::string encode() const {
        HelloHead out = head;
        out.name_bytes = u32(space.size());
        return std::string(reinterpret_cast<const char*>(&out), sizeof out) + space;
    }
    static Hello decode(std::string_view bytes) {
        Hello hello;
        if (bytes.size() < sizeof hello.head) throw Error(Code::refused, "a hello of " + std::to_string(bytes.size()) + " bytes is too short");
        std::memcpy(&hello.head, bytes.data(), sizeof hello.head);
        if (hello.head.name_bytes != bytes.size() - sizeof hello.head || hello.head.name_bytes > 64)
            throw Error(Code::refused, "a hello whose name has " + std::to_string(hello.head.name_bytes) + " bytes");
        hello.space = bytes.substr(sizeof hello.head);
        return hello;
    }
};

// The answer to a process: payload of frame_welcome.
struct WelcomeHead {
    u64 incarnation = 0;    // of the host's shard: another one does not have what the last one had
    u64 flags = 0;          // welcome_*
    u64 data_bytes = 0;     // of arrays, now
    u32 unit = 0;           // of coherence, bytes
    u32 member = 0;         // the process's place in the shard: with another one, its pins and locks are gone
};
static_assert(sizeof(WelcomeHead) == 32);
enum WelcomeFlag : u64 { welcome_tell_pins = 1 };  // a keeper adopted the place: the first call is to say which pins are still wanted

}  // namespace osf::net

#include "faults/notes.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>
#include <utility>

namespace osf::faults {

namespace {

// What a kind says takes as many bytes in a packet as it has: none of them is padding, which would carry what was in memory before.
template <class Kind> constexpr size_t SIZE = std::is_empty_v<Kind> ? 0 : sizeof(Kind);

template <class Kind> bool decode_as(u64 kind, std::string_view rest, Note& note, size_t& size) {
    static_assert(std::is_trivially_copyable_v<Kind> && (std::is_empty_v<Kind> || std::has_unique_object_representations_v<Kind>));
    size = SIZE<Kind>;
    if (kind != Kind::kind || rest.size() < size || (!Kind::text && rest.size() > size)) return false;
    Kind& value = note.emplace<Kind>();
    if (size) std::memcpy(static_cast<void*>(&value), rest.data(), size);
    return true;
}

template <size_t... Each> bool decode(u64 kind, std::string_view rest, Note& note, size_t& size, std::index_sequence<Each...>) {
    return (decode_as<std::variant_alternative_t<Each, Note>>(kind, rest, note, size) || ...);
}

template <size_t... Each> constexpr size_t largest(std::index_sequence<Each...>) { return std::max({SIZE<std::variant_alternative_t<Each, Note>>...}); }

using Kinds = std::make_index_sequence<std::variant_size_v<Note>>;

// The descriptor that came along, or -1. More than one is nothing that anybody here sends: they are closed.
int take_descriptor(msghdr& message) {
    int first = -1;
    for (cmsghdr* head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
        for (size_t at = 0; CMSG_LEN(at + sizeof(int)) <= head->cmsg_len; at += sizeof(int)) {
            int fd;
            std::memcpy(&fd, CMSG_DATA(head) + at, sizeof fd);
            if (first < 0) first = fd;
            else close(fd);
        }
    }
    return first < 0 && message.msg_flags & MSG_CTRUNC ? NO_FILE_LEFT : first;
}

}  // namespace

u64 number_of(const Note& note) {
    return std::visit([](const auto& one) -> u64 {
        if constexpr (requires { one.number; }) return one.number;
        else return 0;
    }, note);
}

bool is_good(const Note& note) {
    const AnswerNote* answer = std::get_if<AnswerNote>(&note);
    return answer && answer->good;
}

void send_note(int socket, const Note& note, std::string_view text, int fd) {
    u64 kind = 0;
    iovec parts[3] = {{&kind, sizeof kind}, {}, {const_cast<char*>(text.data()), text.size()}};
    std::visit([&]<class Kind>(const Kind& one) {
        kind = Kind::kind;
        parts[1] = {const_cast<Kind*>(&one), SIZE<Kind>};
    }, note);
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 3;
    if (fd >= 0) {
        message.msg_control = room;
        message.msg_controllen = sizeof room;
        cmsghdr* head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
    }
    ssize_t sent;
    do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    if (sent < 0) fail_os("telling the keeper", errno);
}

bool receive_note(int socket, Note& note, std::string& text, int* fd) {
    u64 kind = 0;
    std::array<char, largest(Kinds{}) + NOTE_MAX> packet;  // not cleared: most notes are short
    iovec parts[2] = {{&kind, sizeof kind}, {packet.data(), packet.size()}};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    message.msg_control = room;
    message.msg_controllen = sizeof room;
    ssize_t got;
    do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
    while (got < 0 && errno == EINTR);
    if (fd) *fd = -1;
    if (got < 0) return false;
    const int came = take_descriptor(message);
    size_t size = 0;
    const std::string_view rest(packet.data(), size_t(got) - std::min(size_t(got), sizeof kind));
    const bool good = size_t(got) >= sizeof kind && !(message.msg_flags & MSG_TRUNC) && decode(kind, rest, note, size, Kinds{});
    if (good) text.assign(rest.substr(size));
    if (good && fd) *fd = came;
    else if (came >= 0) close(came);
    return good;
}

}  // namespace osf::faults

// The keeper's process of a space with a flash tier: faults and notes of its processes, as they come, for the engine.
#include "engine/keeper.hpp"

#include <algorithm>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

#include "base/death.hpp"
#include "faults/faults.hpp"
#include "faults/keeper_process.hpp"
#include "engine/engine.hpp"

namespace osf::engine {

namespace {

constexpr int MOST_PRIORITY = 1'000'000;
struct Refusal { std::string text; };            // of a note; TierClient::refused reads it

class TierKeeper final : public KeeperProcess {
public:
    TierKeeper(const std::string& directory, const std::string& boot_id, double linger_s);
    ~TierKeeper() override;

private:
    struct Process {
        Loop::Watch faults;                      // gone before the engine may close it
        u32 client = NO_SLOT;
    };
    void listen_to(int socket) override;
    void heard(int socket, const Note& note, const std::string& text, int& fd) override;
    void parted(int socket) override;
    int sleep_ms() override { return settled_ ? 50 : 2; }
    void turn(u64 now, bool came) override;
    bool needed() override;

    void attach_for(int socket, const TierAttachNote& note, int& fd);
    void serve(u32 client, const Note& note, const std::string& text);
    void ask_for(u32 client, const AskNote& note, const std::string& text);
    static void answer(int socket, const Note& note, std::string_view text);

    std::unique_ptr<TierEngine> engine_;
    std::shared_ptr<Space> space_;
    std::map<int, Process> attached_;            // by their sockets
    bool settled_ = false;
    u64 asked_ns_ = 0;                           // whether it is settled
};

TierKeeper::TierKeeper(const std::string& directory, const std::string& boot_id, double linger_s)
    : KeeperProcess({directory, "keeper", "of " + directory, "not_permitted:", linger_s}) {
    if (!place_.take()) throw Error(Code::not_permitted, "another keeper of the space at " + directory + " is running");
    take_signals();
    space_ = Space::open(place_.directory(), false, boot_id);  // the one whose lock it is
    space_->map_data();
    engine_ = std::make_unique<TierEngine>(space_, real_disk());
    // While this process came up: its files on flash may be another space's by now, and nobody finds it any more.
    if (space_->removed()) throw Error(Code::closed, "the space at " + directory + " was removed before its keeper was there");
    bind();
    open_door();
}

TierKeeper::~TierKeeper() {
    attached_.clear();
    engine_.reset();                             // its threads answer until then
}

// A process that does not read its answers is parted with: it comes again, and asks again.
void TierKeeper::answer(int socket, const Note& note, std::string_view text) {
    if (!try_send(socket, note, text)) shutdown(socket, SHUT_RDWR);
}

void TierKeeper::parted(int socket) {
    auto found = attached_.find(socket);
    if (found == attached_.end()) return;
    const u32 client = found->second.client;
    attached_.erase(found);                      // its userfaultfd is closed when no thread of the engine uses it
    engine_->detach(client);
}

void TierKeeper::listen_to(int socket) {
    engine_->hold(true);
    pollfd news{socket, POLLIN, 0};
    for (int most = 256; most && knows(socket) && poll(&news, 1, 0) > 0; most--) hear(socket);
    engine_->hold(false);
}

void TierKeeper::heard(int socket, const Note& note, const std::string& text, int& fd) {
    try {
        auto found = attached_.find(socket);
        if (auto* attach = std::get_if<TierAttachNote>(&note)) attach_for(socket, *attach, fd);
        else serve(found == attached_.end() ? NO_SLOT : found->second.client, note, text);
    } catch (const Refusal& why) { answer(socket, AnswerNote{number_of(note), 0}, why.text); }
}

// `fd`, its userfaultfd, is taken from the caller.
void TierKeeper::attach_for(int socket, const TierAttachNote& note, int& fd) {
    if (note.space != space_->id()) throw Refusal{"closed:the space was removed, and another one made under its name; open it again"};
    if (attached_.count(socket)) throw Refusal{"bad_input:it is attached"};
    if (fd == NO_FILE_LEFT) throw Refusal{"not_permitted:the keeper could not take the process's userfaultfd: " + limit_of_files()};
    if (fd >= 0 && bool(note.minor) != abilities().minor)
        throw Refusal{"not_permitted:this process and the keeper of its space have different OPENSHELF_FAULTS; the keeper, process " +
                      std::to_string(getpid()) + ", must end first"};
    try {
        if (fd >= 0) check_pages(place_.directory());
    } catch (const Error& error) { throw Refusal{std::string("not_permitted:") + error.what()}; }
    const int faults = std::exchange(fd, -1);
    TierProcess is;
    if (faults >= 0) is.faults = std::make_shared<Descriptor>(faults);
    is.member = note.slot;
    is.pid = note.pid;
    if (note.member) is.alive = [this, member = note.member] { return space_->members.alive(member); };
    is.read_only = note.read_only;
    is.again = note.again;
    is.pins_to_tell = u32(note.pins);
    is.answer = [socket](u64 number, bool good, const std::string& why) { answer(socket, AnswerNote{number, good}, why); };
    is.arm = [socket](const std::vector<u32>& units, u64 ticket) {
        answer(socket, ArmNote{ticket}, {reinterpret_cast<const char*>(units.data()), units.size() * 4});
    };
    is.lose = [socket](u64 address, u64 bytes) { answer(socket, LostNote{address, bytes}, {}); };
    u32 client = NO_SLOT;
    try {
        client = engine_->attach(std::move(is));
    } catch (const Error& error) { throw Refusal{std::string("not_permitted:") + error.what()}; }
    Process process{{}, client};
    try {
        if (faults >= 0)
            process.faults = loop_.watch(faults, [this, faults, client] {
                Touch touch;
                for (int most = 64; most && read_fault(faults, touch); most--) engine_->touch(client, touch.address, touch.write);
            });
    } catch (const Error&) {
        engine_->detach(client);
        throw Refusal{"bad_input:what came with the note is no userfaultfd"};
    }
    attached_[socket] = std::move(process);
    engine_->settle();
    answer(socket, AnswerNote{0, 1}, {});
}

void TierKeeper::serve(u32 client, const Note& note, const std::string& text) {
    if (client == NO_SLOT) throw Refusal{"bad_input:not attached"};
    std::visit(Overloaded{
        [&](const AskNote& ask) { ask_for(client, ask, text); },
        [&](const CancelNote& cancel) { engine_->cancel(client, cancel.number); },
        [&](const ReorderNote& reorder) {
            engine_->reorder(client, reorder.number, int(std::clamp<std::int64_t>(reorder.priority, -MOST_PRIORITY, MOST_PRIORITY)));
        },
        [&](const ArmedNote& armed) { engine_->armed(client, armed.ticket); },
        [&](const UnpinNote& unpin) { engine_->unpin(client, unpin.number); },
        [](const auto&) { throw Refusal{"bad_input:a note that is not for the keeper of a flash tier"}; },
    }, note);
}

void TierKeeper::ask_for(u32 client, const AskNote& note, const std::string& text) {
    if (note.want < u32(Want::prefetch) || note.want > u32(Want::flush) || !note.number) throw Refusal{"bad_input:nothing that can be asked for"};
    if (text.empty()) {
        const int priority = std::clamp(note.priority, -MOST_PRIORITY, 2 * MOST_PRIORITY);  // what native code itself waits for is above all that users ask
        return engine_->ask(client, note.number, Want(note.want), note.address, note.bytes, priority);
    }
    if (note.want != u32(Want::prefetch) || text.size() % sizeof(UnitRange)) throw Refusal{"bad_input:many ranges can only be prefetched"};
    std::vector<UnitRange> ranges(text.size() / sizeof(UnitRange));
    std::memcpy(ranges.data(), text.data(), text.size());
    engine_->ask_many(client, note.number, std::move(ranges), std::clamp(note.priority, -MOST_PRIORITY, MOST_PRIORITY));
}

void TierKeeper::turn(u64 now, bool) {
    if (stopping_ || (settled_ && now - asked_ns_ <= 20'000'000)) return;
    asked_ns_ = now;
    settled_ = engine_->settle();
}

bool TierKeeper::needed() {
    if (has_guests()) return true;
    if (space_->removed()) stopping_ = true;
    return false;
}

}  // namespace

void tier_keeper_run(const std::string& directory, const std::string& boot_id, double linger_s) {
    report_death("keeper of the space at " + directory);
    TierKeeper(directory, boot_id, linger_s).run();
}

}  // namespace osf::engine

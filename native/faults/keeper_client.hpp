// What a process that hands its faults to a keeper needs, whichever kind of keeper: a connection, starting the next keeper, and a
// place among those that fork and SIGBUS must be told of.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/base.hpp"
#include "faults/faults.hpp"
#include "faults/notes.hpp"

namespace osf::faults {

// A connection to a keeper that is nobody's yet. A child that is forked meanwhile closes its copy; else the keeper would take the
// parent for alive as long as the child is.
class Dialled {
public:
    explicit Dialled(const std::string& path);
    ~Dialled();
    Dialled(const Dialled&) = delete;
    Dialled& operator=(const Dialled&) = delete;
    int fd() const { return fd_; }
    int keep();                              // the caller's from now on, who closes it, in forked children too

private:
    Dialled() = default;
    int fd_ = -1;
};

int listen_at(const std::string& path);      // not listening yet; private
void start_keeper(std::vector<std::string>& command, pid_t& starting);  // unless the one that was started last is still starting

std::string log_beside(const std::string& socket);                      // where the keeper of that socket writes
void say_unattached(const std::string& why);                            // to standard error, of a forked process whose arrays are out of its reach

class FaultOwner {
public:
    virtual ~FaultOwner() = default;
    virtual void fork_prepare() = 0;
    virtual void fork_parent() = 0;
    virtual void fork_child() = 0;
    virtual bool explain(u64 address, char* text, size_t room) const = 0;  // why a touch there ended; for the SIGBUS handler
};
void own_faults(FaultOwner* owner, Dialled& connection);                // keeps the connection, which the owner has by now
void disown_faults(FaultOwner* owner);

// A process's side of a keeper, whichever kind that is: the connection, requests and their answers, the thread that finds the next keeper
// if this one dies and tells it again what matters, and forks.
//
// The process keeps its own userfaultfd open: while no keeper lives, touches wait instead of reading zeros. A child gets its connection
// from its parent's keeper before it is there: not by a path, where another keeper may be by now.
class KeeperClient : public FaultOwner {
public:
    struct Keeping {
        std::string socket;                   // of the keeper
        std::vector<std::string> command;     // that starts one and returns; empty: none is started
        std::string space;                    // its name, for messages
        Code unattached;                      // of the error where there is no keeper, and will be none
        u64 patience_ns;                      // for an answer, while attaching
        int idle_ms;                          // without news, before idle() is called; -1: never
    };
    ~KeeperClient() override;                 // the derived class has called end() in its own
    KeeperClient(const KeeperClient&) = delete;
    KeeperClient& operator=(const KeeperClient&) = delete;

    Faults faults() const { return how_; }
    bool done(u64 number);

    void fork_prepare() override;
    void fork_parent() override;
    void fork_child() override;

protected:
    // What was asked for: until it is answered, every next keeper is told of it. Then until somebody has taken the answer.
    struct Pending { Note note; std::string text = {}; bool done = false, good = false; std::string answer = {}; };

    explicit KeeperClient(Keeping keeping);
    void begin(Dialled& keeper);              // last, when this process is attached: the watcher starts
    void end();                               // no hook is called any more

    // Of a keeper that may be stopped, or no keeper at all. False: no note came in time.
    bool await_note(int socket, Note& note, std::string& text);
    void await_answer(int socket, u64 number, const std::string& doing);   // throws if it is none, or not a good one
    void introduce(int socket, const Note& note, std::string_view text);   // attaches, with the userfaultfd

    void check_attached() const;              // with the mutex
    void tell(const Note& note, std::string_view text = {});               // with the mutex; the next keeper is not told
    template <class Kind> u64 post(Kind note, std::string text = {}) {     // with the mutex: a number to wait for
        check_attached();
        note.number = next_++;
        const Pending& kept = pending_[note.number] = Pending{note, std::move(text)};
        tell(kept.note, kept.text);           // no keeper just now: the watcher sends it to the next one
        return note.number;
    }
    template <class Kind> u64 ask(Kind note) {
        std::lock_guard guard(mutex_);
        return post(note);
    }
    // None: the time is over. forget: then a late answer is for nobody.
    std::optional<Pending> answer(u64 number, long timeout_ns, bool forget = false);

    // What differs. "With the mutex": the caller has it.
    virtual void greet(int socket) = 0;                            // a next keeper: introduce, and what comes with it
    virtual std::vector<u64> to_tell();                            // with the mutex: requests that it is told of then, in this order
    virtual void tell_again(u64 number);                           // with the mutex: one of these; throws if the keeper is gone
    virtual void heard(int, const Note&, const std::string&) {}    // from a keeper, and no answer; perhaps while attaching
    virtual void answered(const AnswerNote&) {}                    // with the mutex: to a request
    virtual void idle(bool) {}                                     // true: a keeper is there, but says nothing
    [[noreturn]] virtual void refused(const std::string& why) = 0; // throws what the keeper's text means
    virtual void check_hope(const Error&) {}                       // throws if after this error no keeper will ever come
    virtual void give_up() {}                                      // none will: returns when this object goes
    virtual void map_again() = 0;                                  // in a forked child, with the mutex: its own userfaultfd and mappings
    virtual void attach_child() = 0;                               // likewise, with socket_
    virtual bool forbid() = 0;                                     // likewise, if that failed: a touch ends this process. False: it need not

    Keeping keeping_;
    Faults how_ = Faults::none;
    int faults_ = -1;
    int socket_ = -1;                         // changed by the watcher only, with the mutex
    std::string unattached_;                  // why there is no keeper, and will be none
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<u64, Pending> pending_;
    u64 next_ = 1;
    bool stop_ = false;

private:
    void watch();
    void hear(const Note& note, std::string& text);
    void take(int socket, const Note& note, const std::string& text);
    bool find_keeper();                       // false: this object goes
    bool adopt(Dialled& next);                // likewise
    void attach_again();

    int for_child_ = -1;                      // while this process is forked: the child's connection
    std::thread watcher_;
};

}  // namespace osf::faults

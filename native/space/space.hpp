// A space as one process sees it: the mapped files, and the operations on arrays.
//
// An array is a Record in the meta heap and a block in the data heap. Its life, in Record::state:
//
//   draft    being filled by the one that made it
//   live     in the index (set after the word is there, left before the word goes)
//   leaving  about to leave the index: whoever finds it like this with no pin must ask the index
//   gone     not in the index; lives as long as somebody's pin
//   dead     being freed
//
// A Held is a pin: while it is held, neither record nor bytes are reused, in any process.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "space/heap.hpp"
#include "space/index.hpp"
#include "base/members.hpp"
#include "base/trusted.hpp"
#include "space/pager.hpp"

namespace osf::space {

struct Held {
    u32 pin = 0;
    u64 record = 0;
    explicit operator bool() const { return record != 0; }
};

struct Spec {
    u64 nbytes = 0;
    u16 dtype = 0;
    u8 kind = 0;
    std::vector<u64> shape;
    std::string descr;      // the dtype in full, where its number is not enough
    std::string name;
};

struct Entry {
    std::string name;
    u64 nbytes, address;
    u16 dtype;
    u8 kind;
    std::vector<u64> shape;
    std::string descr;
};

struct Audit {              // what verification found; all but the first two should be zero
    u64 arrays = 0, bytes = 0;
    u64 leaked_blocks = 0, leaked_bytes = 0;    // taken, but no root leads there
    u64 missing_blocks = 0;                     // a root leads there, but it counts as free
    u64 damaged = 0;                            // records that fail their checksum, slabs that miscount their slots
};

struct MemberStats {
    u32 slot;
    u64 pid, pins;
    bool remote, read_only, alive;
};

struct Stats {
    std::string name, backing;
    u64 base, reserve, created_ns, page_size;
    u64 data_address, bytes, free, largest_free, limit, metadata_bytes, arrays;
    u32 mode;
    bool removed, read_only;
    std::vector<MemberStats> members;
};

struct CreateOptions {
    std::string directory;  // made by the caller, empty
    std::string name, boot_id;
    std::string backing;    // data file or device; empty: in the directory
    u64 bytes = 0, base = 0, reserve = 0, page_size = PAGE;
    u32 mode = 0600;
    bool device = false;    // the backing is a device: it is there, and of a fixed size
    bool tiers = false;     // with a flash tier: `bytes` are of that
};

constexpr char HIDDEN = '\x01';  // first byte of names that users do not see

class Space {
public:
    static void create(const CreateOptions& options);
    static std::shared_ptr<Space> open(const std::string& directory, bool read_only, const std::string& boot_id);
    // The same space as a process on another host has it: a membership and pins of its own on this one's mapping. If a
    // slot bears its uuid (a keeper was killed), that one, with the pins it has. It leaves when the object goes, unless abandoned.
    static std::shared_ptr<Space> proxy(const std::shared_ptr<Space>& home, const Uuid& uuid, bool read_only);
    ~Space();
    Space(const Space&) = delete;
    Space& operator=(const Space&) = delete;

    // Arrays
    Held make(const Spec& spec, bool zero);                  // a draft; anonymous if it has no name: gone at once
    void publish(const Held& held, bool replace);            // the draft under its name
    void mend(u64 record);                                   // pinned, unnamed or with a hidden name, which somebody who was killed was giving or taking
    void name(const Held& held, std::string_view name);      // an anonymous array
    Held find(std::string_view name);
    Held at(u64 address);                                    // the array around an address
    void release(const Held& held) noexcept;
    // only: not if another record has the name by now; careful: not what has arrays of hidden names; throws bad_input then
    bool remove(std::string_view name, u64 only = 0, bool careful = false);
    void rename(std::string_view from, std::string_view to);
    std::vector<Entry> list(std::string_view prefix);

    // Of a proxy
    bool adopted() const { return adopted_; }
    std::vector<Held> pinned() const;                        // what it holds
    void abandon() { abandoned_ = true; }                    // the slot stays for the next keeper to adopt
    // Of a keeper: remote processes that no proxy of this process stands for
    std::vector<Uuid> unclaimed() const;
    u32 clear_unclaimed();                                   // drops their pins; their locks are found dead

    void hand_out(const Held& held) { store(members.pin(held.pin), held.record); }  // to a view: no longer transient

    Record& record(const Held& held) const { return record(held.record); }
    Record& record(u64 offset) const { return *reinterpret_cast<Record*>(base_ + offset); }
    char* bytes(const Held& held) const { return data.pointer(load(record(held).data)); }
    std::string name_of(const Held& held) const { return space::name_of(record(held), meta); }
    std::vector<u64> shape_of(const Held& held) const;
    std::string descr_of(const Held& held) const;

    // The whole
    void grow(u64 bytes);
    void collect();          // frees what nobody holds, dead processes' things included
    void tidy();             // frees what this member let go of and keeps for a larger batch, if nobody else is freeing
    Audit audit();
    Stats stats() const;
    bool removed() const { return load(header().removed) == REMOVED; }
    void check_usable() const {
        if (load(header().removed, std::memory_order_relaxed) || !members.joined()) refuse();
    }

    Header& header() const { return *reinterpret_cast<Header*>(base_); }
    Roots& roots() const { return *reinterpret_cast<Roots*>(base_ + layout.roots_at); }
    char* base() const { return base_; }
    bool read_only() const { return read_only_; }
    const std::string& directory() const { return directory_; }
    u64 id() const;                          // no other space has it, not one that was made later under the same path either

    // A space of several hosts: what answers this process's faults lives as long as the mapping does.
    std::shared_ptr<Companion> companion;
    // A space with a flash tier: its data is mapped when this process has attached to the keeper, or is it.
    std::shared_ptr<Pager> pager;
    bool tiered() const { return header().tiers != 0; }
    void map_data();
    // For what is read at random. Not where bytes come and go by pages: a huge one would bring zeros along.
    void use_huge_pages(const Held& held) {
        if (!tiered() && !companion) data.join_pages(load(record(held).data));
    }
    void write(const Held& held, const void* from, u64 bytes);   // the first bytes of an array that nobody else sees yet

    const Layout layout;
    Members members;
    Heap meta, data;
    Index index;

private:
    Space(std::string directory, const Header& header, bool read_only);
    Space(const std::shared_ptr<Space>& home, bool read_only);
    void attach_parts();
    void leave_home();
    void map_files(const Folder& folder);
    static std::shared_ptr<Space> attach(const std::string& directory, const Folder& folder, int control_fd, bool read_only);
    void unmap();
    bool enter(const std::string& boot_id);      // join; first opener verifies or repairs
    [[noreturn]] void refuse() const;
    void need_write() const;
    void check_name(std::string_view name) const;

    // space/collect.cpp
    void retire(u32 pin, u64 bytes) noexcept;    // a transient pin of a record that may be free now
    void drain(bool wait);
    void drain_locked();
    void reap();
    void sweep_if_needed();
    void sweep();
    bool revive(u64 record);
    void free_record(u32 pin);
    void snapshot(std::vector<u64>& pinned, const std::vector<u32>& except) const;
    void drop(u32 pin);
    void try_make(const Spec& spec, bool zero, Held& held);
    [[noreturn]] void no_room(u64 wanted, const std::string& why);
    void new_name(Record& record, std::string_view name);

    // space/verify.cpp
    struct Marks;
    u64 seal_value() const;
    Marks mark(bool pins) const;
    void verify() const;                         // throws if damaged; for a reader, who repairs nothing
    void repair();
    void repair_commits(u64 limit);

    std::string directory_;
    bool read_only_ = false;
    char* base_ = nullptr;
    int control_fd_ = -1, members_fd_ = -1, data_fd_ = -1;
    std::pair<dev_t, ino_t> identity_{};
    std::mutex limbo_mutex_;
    std::vector<u32> limbo_;                     // transient pins
    u64 limbo_bytes_ = 0;
    std::shared_ptr<Space> home_;                // of a proxy: whose mapping it is
    std::vector<std::weak_ptr<Space>> proxies_;  // guarded by the join gate
    bool adopted_ = false, abandoned_ = false;

    friend void fork_prepare_all();
    friend void fork_after_all(bool child);
};

u64 record_check(const Record& record, u64 offset);
u64 header_check(const Header& header);
Header read_header(const std::string& directory);            // validated
u64 space_id(const std::string& directory);                  // Space::id of what is there now
void mark_removed(const std::string& directory);              // every process that has it open will refuse calls
u32 live_members(const std::string& directory, bool remote = true);   // also of a space that this process has open

}  // namespace osf::space

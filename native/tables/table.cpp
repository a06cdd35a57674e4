// Making, opening, growing and deleting a table.
#include "tables/table.hpp"

#include <pthread.h>
#include <sys/random.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <set>

#include "space/sync.hpp"
#include "tables/cold.hpp"
#include "tables/initial.hpp"
#include "tiers/client.hpp"

namespace osf::tables {

// A forked child has one thread, and a lock that another thread of its parent had would stay locked in it for ever. So a fork waits for all.
static std::mutex& tables_gate() {
    static auto* gate = new std::mutex;
    return *gate;
}
static std::set<Table*>& open_tables() {
    static auto* tables = new std::set<Table*>;
    return *tables;
}

void Table::before_fork() {
    tables_gate().lock();
    for (Table* table : open_tables()) table->mutex_.lock();
}

void Table::after_fork() {
    for (Table* table : open_tables()) table->mutex_.unlock();
    tables_gate().unlock();
}

u64 table_check(const TableHead& head) { return hash_bytes(&head, offsetof(TableHead, check), TABLE_VERSION); }

static std::string hexadecimal(u64 id) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
    return text;
}

std::string hidden_head(u64 id) { return TABLE_HIDDEN + hexadecimal(id); }

std::string hidden_part(u64 id, u32 part, bool state) {
    return hidden_head(id) + "/" + std::to_string(part) + (state ? "/state" : "/rows");
}

TableHead table_head(const TableShape& shape) {
    TableHead head{};
    std::memcpy(head.magic, TABLE_MAGIC, sizeof TABLE_MAGIC);
    head.version = TABLE_VERSION;
    head.row_type = shape.row_type;
    head.dim = shape.dim;
    head.row_bytes = row_bytes(shape.row_type, shape.dim);
    head.optimizer = shape.optimizer;
    head.state_bytes = state_bytes(shape.optimizer, shape.dim);
    head.stripes = u32(std::clamp<u64>(std::bit_ceil(shape.rows), 64, TABLE_STRIPES));
    head.settings = shape.settings;
    head.init = shape.init;
    head.parts_at = PAGE;
    head.undo_at = head.parts_at + TABLE_PARTS * sizeof(TablePart);
    head.undo_stride = align_up(sizeof(TableUndo) + align_up(head.row_bytes, 8) + head.state_bytes, 64);
    head.stripes_at = head.undo_at + TABLE_WRITERS * head.undo_stride;
    head.bytes = head.stripes_at + 8ull * head.stripes;
    return head;
}

std::shared_ptr<Table> Table::make(const std::shared_ptr<Space>& space, const TableShape& shape) {
    sweep(space);
    TableHead head = table_head(shape);
    if (::getrandom(&head.id, sizeof head.id, 0) != sizeof head.id) fail_os("getrandom", errno);
    head.check = table_check(head);
    head.maker = space->members.executor();
    Held held = space->make({head.bytes, 3, kind_table, {head.bytes}, {}, hidden_head(head.id)}, true);
    try {
        std::memcpy(space->bytes(held), &head, sizeof head);
        space->publish(held, false);
    } catch (...) {
        space->release(held);
        throw;
    }
    space->hand_out(held);
    auto table = std::make_shared<Table>(space, held);
    try {
        table->add_part(shape.rows);
        table->fill(0, shape.rows);
        store(table->head_->rows, shape.rows);
    } catch (...) {
        discard(space, held);
        throw;
    }
    return table;
}

void Table::publish(std::string_view name) {
    need_write();
    space->rename(hidden_head(head_->id), name);
}

std::shared_ptr<Table> Table::open(const std::shared_ptr<Space>& space, std::string_view name) {
    Held held = space->find(name);
    if (!held) return nullptr;
    auto table = std::make_shared<Table>(space, held);
    if (!load(table->head_->deleted)) {
        if (!space->read_only()) table->mend();
        return table;
    }
    if (!space->read_only()) discard(space, held);  // by a process that was killed before it had taken all names away
    return nullptr;
}

Table::Table(std::shared_ptr<Space> in, Held held) : space(std::move(in)), held_(held) {
    auto refuse = [&](Code code, const std::string& why) {
        std::string name = space->name_of(held_);
        space->release(held_);
        throw Error(code, "'" + name + "' cannot be used as a table: " + why);
    };
    const u64 nbytes = space->record(held).nbytes;
    base_ = space->bytes(held);
    head_ = reinterpret_cast<TableHead*>(base_);
    if (space->record(held).kind != kind_table || nbytes < PAGE || std::memcmp(head_->magic, TABLE_MAGIC, sizeof TABLE_MAGIC))
        refuse(Code::name_taken, "it is something else; give the table another name");
    if (head_->version != TABLE_VERSION)
        refuse(Code::wrong_version, "it is of version " + std::to_string(head_->version) + ", this Openshelf makes version " +
                                        std::to_string(TABLE_VERSION) + "; export it with the Openshelf that made it, and import it here");
    if (head_->check != table_check(*head_) || head_->bytes > nbytes || !std::has_single_bit(head_->stripes) || load(head_->parts) > TABLE_PARTS)
        refuse(Code::corrupt, "its head is damaged; delete it");
    stripes_ = reinterpret_cast<u64*>(base_ + head_->stripes_at);
    // After those of spaces, whose locks a thread may take while it has a table's: handlers run last to first.
    static const int once = pthread_atfork(before_fork, after_fork, after_fork);
    (void)once;
    std::lock_guard gate(tables_gate());
    open_tables().insert(this);
}

Table::~Table() {
    {
        std::lock_guard gate(tables_gate());
        open_tables().erase(this);
    }
    for (u64 pin : in_memory_) tiers_of(*space)->unpin(pin);
    for (const Held& array : arrays_) space->release(array);
    space->release(held_);
}

void Table::check_usable() const {
    space->check_usable();
    if (load(head_->deleted, std::memory_order_relaxed))
        throw Error(Code::closed, "this table was deleted from the space '" + std::string(space->header().name) + "'; make it again");
}

void Table::need_write() const {
    check_usable();
    if (space->read_only())
        throw Error(Code::not_permitted, "the space '" + std::string(space->header().name) + "' is open read-only (mode=\"r\"): its tables can be read, not changed");
}

// How far ahead rows are asked for: measured, see docs/design/tables.md.
RowShape Table::shape() const {
    return {head_->dim, head_->row_bytes, u32(std::clamp<u64>(16 * KIB / head_->row_bytes, 4, 32))};
}

u64 Table::room() const {
    const u32 count = load(head_->parts);
    return count ? part(count - 1).first + part(count - 1).rows : 0;
}

Held Table::make_array(u32 number, u64 rows, bool state) {
    const std::string name = hidden_part(head_->id, number, state);
    space->remove(name);                         // of a process that was killed while it grew the table
    const u64 bytes = rows * (state ? head_->state_bytes : head_->row_bytes);
    Held held = space->make({bytes, 3, kind_array, {bytes}, {}, name}, true);
    try {
        space->publish(held, false);
    } catch (...) {
        space->release(held);
        throw;
    }
    space->hand_out(held);
    space->use_huge_pages(held);
    return held;
}

char* Table::keep(const Held& array) {
    char* at = space->bytes(array);
    arrays_.push_back(array);
    if (TierClient* tiers = tiers_of(*space); tiers && tiers->plain()) {
        in_memory_.push_back(tiers->ask(Want::pin, at, space->record(array).nbytes, 0));
        tiers->wait(in_memory_.back(), -1);
    }
    return at;
}

// With the lock, or while nobody else has the table.
void Table::add_part(u64 rows) {
    const u32 number = load(head_->parts);
    if (number == TABLE_PARTS)
        throw Error(Code::no_room, "the table '" + name() + "' has " + std::to_string(TABLE_PARTS) + " parts, the most it may; copy it into a new one");
    std::vector<Held> made;
    try {
        made.push_back(make_array(number, rows, false));
        step();
        if (head_->state_bytes) made.push_back(make_array(number, rows, true));
    } catch (...) {
        for (const Held& held : made) {
            space->remove(hidden_part(head_->id, number, false));
            space->release(held);
        }
        throw;
    }
    TablePart& part = this->part(number);
    part = {room(), rows, u64(space->bytes(made[0])), head_->state_bytes ? u64(space->bytes(made[1])) : 0, {}};
    step();
    std::lock_guard guard(mutex_);               // before another thread of this process sees the part and adds it, too
    store(head_->parts, number + 1);
    for (const Held& held : made) keep(held);
    auto next = std::make_shared<Snapshot>(snapshot_ ? *snapshot_ : Snapshot{});
    next->parts.push_back({part.first, reinterpret_cast<char*>(part.rows_address), reinterpret_cast<char*>(part.state_address)});
    snapshot_ = next;
}

void Table::fill(u64 from, u64 to) {
    auto rows = snapshot();
    for (u64 row = from; row < to;) {
        const Snapshot::Part& part = rows->part_of(row);
        const u64 next = &part == &rows->parts.back() ? to : std::min(to, (&part + 1)->first);
        fill_rows(head_->init, head_->row_type, head_->dim, part.rows + (row - part.first) * head_->row_bytes, row, next - row);
        row = next;
    }
}

void Table::grow(u64 more) {
    need_write();
    const u64 most = (1ull << 62) / std::max<u64>(1, head_->row_bytes + head_->state_bytes);
    snapshot();                                  // the parts that others added
    lock_take(head_->lock, space->members);      // what a dead owner left is no part yet, and goes when its name is needed
    try {
        check_usable();
        const u64 rows = load(head_->rows);
        if (more > most || rows > most - more)
            throw Error(Code::no_room, "the table '" + name() + "' of " + std::to_string(rows) + " rows cannot grow by " + std::to_string(more) + ": there are not so many addresses");
        snapshot();
        if (u64 there = room(); there < rows + more) {
            const u64 least = rows + more - there;
            try {
                add_part(std::max(least, there / 16));  // so that many small steps do not make many parts
            } catch (const Error& error) {
                if (error.code != Code::no_room || least >= there / 16) throw;
                add_part(least);
            }
        }
        fill(rows, rows + more);
        step();
        store(head_->rows, rows + more);
    } catch (...) {
        lock_drop(head_->lock);
        throw;
    }
    lock_drop(head_->lock);
}

std::shared_ptr<const Snapshot> Table::snapshot() {
    check_usable();
    const u64 rows = load(head_->rows, std::memory_order_acquire);
    std::lock_guard guard(mutex_);
    const u32 count = load(head_->parts, std::memory_order_acquire);
    if (snapshot_ && snapshot_->rows >= rows && snapshot_->parts.size() == count) return snapshot_;
    auto next = std::make_shared<Snapshot>(snapshot_ ? *snapshot_ : Snapshot{});
    for (u32 number = u32(next->parts.size()); number < count; number++) {
        auto pinned = [&](bool state) {
            Held held = space->find(hidden_part(head_->id, number, state));
            if (!held) throw Error(Code::closed, "the table '" + name() + "' is being deleted");
            space->hand_out(held);
            return keep(held);
        };
        char* first = pinned(false);
        next->parts.push_back({part(number).first, first, head_->state_bytes ? pinned(true) : nullptr});
    }
    next->rows = rows;
    return snapshot_ = next;
}

std::shared_ptr<Cold> Table::cold() {
    TierClient* tiers = tiers_of(*space);
    if (!tiers || tiers->plain()) return nullptr;  // without faults all parts are held in memory
    std::lock_guard guard(mutex_);
    if (!cold_) cold_ = std::make_shared<Cold>(*tiers);
    return cold_;
}

void Table::keep_hot(u64 bytes) {
    auto found = cold();
    if (!found) throw Error(Code::bad_input, "the rows of the table '" + name() + "' are all in memory: there is no flash to keep copies of rows from");
    auto hot = bytes ? std::make_shared<HotRows>(bytes, head_->row_bytes) : nullptr;
    std::lock_guard guard(mutex_);
    cold_ = std::make_shared<Cold>(*tiers_of(*space));  // calls that are under way go on with the old one
    cold_->hot = hot;
}

void Table::discard(const std::shared_ptr<Space>& space, Held held) {
    auto& head = *reinterpret_cast<TableHead*>(space->bytes(held));
    lock_take(head.lock, space->members);
    store(head.deleted, 1u);
    lock_drop(head.lock);
    step();
    for (u32 number = 0; number <= std::min(load(head.parts), TABLE_PARTS - 1); number++)
        for (bool state : {false, true}) {
            space->remove(hidden_part(head.id, number, state));
            step();
        }
    space->remove(hidden_head(head.id) + "/keys");
    step();
    space->remove(space->name_of(held), held.record);
}

void Table::sweep(const std::shared_ptr<Space>& space) {
    for (const Entry& entry : space->list(std::string(1, TABLE_HIDDEN))) {
        if (entry.kind != kind_table) continue;
        Held held = space->find(entry.name);
        if (!held) continue;
        const auto& head = *reinterpret_cast<const TableHead*>(space->bytes(held));
        // Its maker may have published it since it was listed. One that is dead will not any more.
        if (entry.nbytes >= PAGE && head.check == table_check(head) && !space->members.alive(head.maker) && space->name_of(held) == entry.name) discard(space, held);
        space->release(held);
    }
}

TableStats Table::stats() {
    const TableHead& h = *head_;
    auto rows = snapshot();
    return {h.id, rows->rows, room(), h.dim, h.row_bytes, h.state_bytes, h.bytes + room() * (h.row_bytes + h.state_bytes), load(h.steps), load(h.updated_rows),
            load(h.interrupted), load(h.read_rows), u32(rows->parts.size()), h.row_type, h.optimizer, h.settings, h.init};
}

}  // namespace osf::tables

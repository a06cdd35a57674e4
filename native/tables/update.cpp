#include "tables/update.hpp"

#include <algorithm>
#include <cmath>
#include <ctime>

#include "simd/choose.hpp"
#include "tables/order.hpp"
#include "tables/versions.hpp"
#include "tables/workers.hpp"

namespace osf::tables {

// A record for old rows, held by a thread while it writes.
class Writer {
public:
    explicit Writer(Table& table) : table_(table) {
        const u32 self = table.space->members.executor();
        if (!self) throw Error(Code::closed, "this process is no member of the space: it cannot change tables there");
        for (u64 turn = 0;; turn++) {
            for (number_ = 0; number_ < TABLE_WRITERS; number_++)
                if (!load(table.undo(number_).owner, std::memory_order_relaxed) && cas(table.undo(number_).owner, 0u, self)) {
                    join();
                    return;
                }
            if (turn % 32 == 0) table.mend();
            timespec nap{0, 50'000};
            nanosleep(&nap, nullptr);
        }
    }
    ~Writer() {
        std::atomic_ref<u64>(table_.head().writers).fetch_and(~(1ull << number_));
        store(table_.undo(number_).owner, 0u);
    }
    Writer(const Writer&) = delete;
    Writer& operator=(const Writer&) = delete;

    template <class Change>
    void change(u64 row, char* at, char* state, const Guard& guard, u64 position, const Change& work) {
        const TableHead& head = table_.head();
        TableUndo& undo = table_.undo(number_);
        const u64 changes = take_stripe(table_, row);
        if (guard.may && !guard.may(position)) return store(table_.stripe(row), changes);
        step();
        std::memcpy(table_.undo_row(number_), at, head.row_bytes);
        if (state) std::memcpy(table_.undo_state(number_), state, head.state_bytes);
        step();
        store(undo.armed, row + 1);
        store(undo.recent[undo.changes % TABLE_RECENT], row);
        store(undo.changes, undo.changes + 1);
        // No store of the change may come before this one: x86 keeps stores in order, other processors are told so.
        std::atomic_thread_fence(std::memory_order_seq_cst);
        step();
        work();
        step();
        store(undo.armed, 0ull);
        step();
        if (guard.done) guard.done(position);
        step();
        give_stripe(table_, row, changes);
    }

private:
    void join() {                                // the bit first: who sees the number sees the bit
        TableHead& head = table_.head();
        std::atomic_ref<u64>(head.writers).fetch_or(1ull << number_);
        std::atomic_ref<u64>(head.joined).fetch_add(1);
    }
    Table& table_;
    u32 number_ = 0;
};

// It leaves bits of `writers` alone: a record may have its next owner by now, and a bit too many does no harm.
void Table::mend() {
    for (u32 writer = 0; writer < TABLE_WRITERS; writer++) {
        TableUndo& record = undo(writer);
        const u32 owner = load(record.owner);
        if (!owner || space->members.alive(owner)) continue;
        if (const u64 row = load(record.armed) - 1; row != ~0ull) {
            const u64 changes = take_stripe(*this, row);
            roll_back(*this, row & (head_->stripes - 1));
            give_stripe(*this, row, changes);
        }
        if (cas(record.owner, owner, 0u)) std::atomic_ref<u64>(head_->interrupted).fetch_add(1);
    }
}

// The state of a row that is not a float32 one is computed as such, and the row is rounded afterwards.
class Stepper {
public:
    Stepper(Table& table, const Settings& settings)
        : kernels_(kernels()), head_(table.head()), settings_(settings), row_(head_.row_type == RowType::float32 ? 0 : head_.dim) {}

    void operator()(char* row, char* state, const float* gradient) {
        auto* numbers = reinterpret_cast<float*>(row);
        if (!row_.empty()) {
            const char* only[] = {row};
            constexpr u32 END = 1;
            kernels_.bags[u32(head_.row_type)]({head_.dim, head_.row_bytes, 0}, {only, &END, 1, nullptr, reinterpret_cast<char*>(row_.data()), 0}, Pooling::max);
            numbers = row_.data();
        }
        kernels_.step[u32(head_.optimizer)](numbers, reinterpret_cast<float*>(state), gradient, head_.dim, settings_);
        step();
        if (!row_.empty()) kernels_.narrow[u32(head_.row_type)](numbers, row, head_.dim);
    }

private:
    const Kernels& kernels_;
    const TableHead& head_;
    const Settings settings_;
    std::vector<float> row_;
};

// What an update goes by, where the caller's other threads cannot change it after it was checked.
class Own {
public:
    Own(const Update& given, const std::string& title) : update(given) {
        if (given.ids.count > ~0u) throw Error(Code::bad_input, "an update has at most 4294967295 ids");
        ids_ = given.ids.copy();
        update.ids = {ids_.data(), true, ids_.size()};
        if (!given.offsets.at) return;
        offsets_ = given.offsets.copy();
        update.offsets = {offsets_.data(), true, offsets_.size()};
        check_offsets(update.offsets, update.bags, update.ids.count, title);
    }
    Update update;

private:
    std::vector<std::int64_t> ids_, offsets_;
};

Summed sum_gradients(const Update& given, u64 dim, const std::string& title) {
    const Own own(given, title);
    const Update& update = own.update;
    const RowGradients gradients(update, dim, title);
    if (!update.any_number) gradients.check();
    Summed result;
    result.gradients.resize(gradients.rows() * dim);
    for (u64 number = 0; number < gradients.rows(); number++) {
        result.rows.push_back(gradients.row(number));
        gradients.sum(number, result.gradients.data() + number * dim);
    }
    return result;
}

void update_rows(const Update& given, u32 threads, const Guard& guard, Tick tick) {
    Table& table = *given.table;
    TableHead& head = table.head();
    table.need_write();
    if (head.row_type == RowType::int8 || head.row_type == RowType::int4)
        throw Error(Code::bad_input, "the table '" + table.name() + "' has rows of integers, which no optimizer changes: train one of float32, float16 or bfloat16, and write() rows of it here");
    const Own own(given, table.name());
    const Update& update = own.update;
    auto rows = checked(table, update.ids, table.name());
    const RowGradients gradients(update, head.dim, table.name());
    if (!update.any_number) gradients.check();
    Settings settings = update.settings;
    const u64 step_number = tick == Tick::never ? std::max<u64>(1, load(head.steps)) : std::atomic_ref<u64>(head.steps).fetch_add(1) + 1;
    if (head.optimizer == Optimizer::adam) {
        settings.correction1 = float(1 - std::pow(double(settings.beta1), double(step_number)));
        settings.correction2 = float(1 - std::pow(double(settings.beta2), double(step_number)));
    }
    const u64 changed = gradients.rows();
    constexpr u64 PIECE = 512, AHEAD = 4;
    if (!threads && changed <= 2 * PIECE) threads = 1;
    run_pieces(div_up(changed, PIECE), threads, [&](u64 piece) {
        Writer writer(table);
        Stepper stepper(table, settings);
        std::vector<float> gradient(head.dim);
        auto place = [&](u64 number, char*& row, char*& state) {
            const u64 wanted = gradients.row(number);
            const Snapshot::Part& part = rows->part_of(wanted);
            row = part.rows + (wanted - part.first) * head.row_bytes;
            state = head.state_bytes ? part.state + (wanted - part.first) * head.state_bytes : nullptr;
        };
        const u64 last = std::min(changed, (piece + 1) * PIECE);
        for (u64 number = piece * PIECE; number < last; number++) {
            char *row, *state;
            if (number + AHEAD < last) {
                place(number + AHEAD, row, state);
                for (u64 line = 0; line < head.row_bytes; line += 64) __builtin_prefetch(row + line, 1);
                for (u64 line = 0; line < head.state_bytes; line += 64) __builtin_prefetch(state + line, 1);
            }
            place(number, row, state);
            gradients.sum(number, gradient.data());
            writer.change(gradients.row(number), row, state, guard, gradients.position(number), [&] { stepper(row, state, gradient.data()); });
        }
    });
    std::atomic_ref<u64>(head.updated_rows).fetch_add(changed);
}

void write_rows(const std::shared_ptr<Table>& table, const Ids& of, const char* given, bool raw, const char* states, const Guard& guard) {
    table->need_write();
    const TableHead& head = table->head();
    const std::vector<std::int64_t> ids = of.copy();
    auto rows = checked(*table, {ids.data(), true, ids.size()}, table->name());
    Writer writer(*table);
    const u64 bytes = raw ? head.row_bytes : 4 * head.dim;
    for (u64 at = 0; at < ids.size(); at++) {
        const u64 row = u64(ids[at]);
        const Snapshot::Part& part = rows->part_of(row);
        char* to = part.rows + (row - part.first) * head.row_bytes;
        char* state = head.state_bytes ? part.state + (row - part.first) * head.state_bytes : nullptr;
        writer.change(row, to, state, guard, at, [&] {
            if (raw) std::memcpy(to, given + at * bytes, bytes);
            else kernels().narrow[u32(head.row_type)](reinterpret_cast<const float*>(given + at * bytes), to, head.dim);
            step();
            if (states && state) std::memcpy(state, states + at * head.state_bytes, head.state_bytes);
        });
    }
}

void set_steps(Table& table, u64 steps) {
    table.need_write();
    store(table.head().steps, steps);
}

void read_states(const std::shared_ptr<Table>& table, const Ids& of, char* out) {
    const TableHead& head = table->head();
    const std::vector<std::int64_t> ids = of.copy();
    auto rows = checked(*table, {ids.data(), true, ids.size()}, table->name());
    for (u64 at = 0; at < ids.size(); at++) {
        const u64 row = u64(ids[at]);
        const Snapshot::Part& part = rows->part_of(row);
        const char* state = part.state + (row - part.first) * head.state_bytes;
        for (;;) {
            const Whole whole = whole_row(*table, row, state);
            const char* from = whole.row == state ? state : whole.row + align_up(head.row_bytes, 8);  // or of an undo record
            std::memcpy(out + at * head.state_bytes, from, head.state_bytes);
            std::atomic_thread_fence(std::memory_order_acquire);
            if (load(table->stripe(row), std::memory_order_relaxed) == whole.word) break;
        }
    }
}

}  // namespace osf::tables

// Tables whose rows tell how many steps they had: each step has the same gradient, so a row and its state are a pair of a known list.
#pragma once

#include <algorithm>

#include "simd/choose.hpp"
#include "tables/update.hpp"
#include "tests/check.hpp"

namespace osf::test {

constexpr u64 DIM = 20, ROWS = 40;
constexpr Settings SETTINGS{0.5f, 1e-3f, 0, 0, 1, 1};

inline std::shared_ptr<Table> make_table(const std::shared_ptr<Space>& space, const std::string& name = "table") {
    auto table = Table::make(space, {RowType::float32, Optimizer::adagrad, ROWS, DIM, SETTINGS, {}});
    table->publish(name);
    return table;
}

inline Ids ids_of(const std::vector<std::int64_t>& ids) { return {ids.data(), true, ids.size()}; }

inline std::vector<std::int64_t> all_rows(u64 count) {
    std::vector<std::int64_t> ids(count);
    for (u64 at = 0; at < count; at++) ids[at] = std::int64_t(at);
    return ids;
}

inline void step_rows(const std::shared_ptr<Table>& table, const std::vector<std::int64_t>& ids) {
    std::vector<float> gradients(ids.size() * DIM);
    for (u64 at = 0; at < gradients.size(); at++) gradients[at] = float(1 + at % DIM);
    update_rows({table, ids_of(ids), gradients.data(), DIM, ids.size(), {}, 0, false, nullptr, nullptr, SETTINGS, false}, 1);
}

struct Pair {
    std::vector<float> row = std::vector<float>(DIM), state = std::vector<float>(DIM);
    bool operator==(const Pair&) const = default;
};

inline const std::vector<Pair>& pairs() {
    static const std::vector<Pair> known = [] {
        std::vector<Pair> made(1);
        std::vector<float> gradient(DIM);
        for (u64 at = 0; at < DIM; at++) gradient[at] = float(1 + at);
        for (int count = 0; count < 8000; count++) {
            Pair next = made.back();
            kernels().step[u32(Optimizer::adagrad)](next.row.data(), next.state.data(), gradient.data(), DIM, SETTINGS);
            made.push_back(next);
        }
        return made;
    }();
    return known;
}

inline std::vector<Pair> read_pairs(const std::shared_ptr<Table>& table, u64 count) {
    const auto ids = all_rows(count);
    std::vector<float> rows(count * DIM), states(count * DIM);
    const ReadRequest request{table, ids_of(ids), {}, count, 1, Pooling::max, nullptr, reinterpret_cast<char*>(rows.data()), 4 * DIM, false, true, "table", nullptr, nullptr};
    read_rows({&request, 1}, 1);
    read_states(table, ids_of(ids), reinterpret_cast<char*>(states.data()));
    std::vector<Pair> found(count);
    for (u64 row = 0; row < count; row++) {
        std::copy_n(rows.data() + row * DIM, DIM, found[row].row.data());
        std::copy_n(states.data() + row * DIM, DIM, found[row].state.data());
    }
    return found;
}

// The pair with this row; each step makes the first number smaller.
inline const Pair& pair_of(const std::vector<float>& row) {
    auto at = std::lower_bound(pairs().begin(), pairs().end(), row[0], [](const Pair& pair, float number) { return pair.row[0] > number; });
    CHECK(at != pairs().end() && at->row == row);
    return *at;
}

// Every row and its state are a pair that some step made. How many steps all rows had.
inline u64 check_pairs(const std::shared_ptr<Table>& table, u64 count) {
    u64 steps = 0;
    for (const Pair& pair : read_pairs(table, count)) {
        CHECK(pair_of(pair.row) == pair);
        steps += u64(&pair_of(pair.row) - pairs().data());
    }
    return steps;
}

inline void check_quiet(Table& table) {          // no stripe is held, no record armed
    for (u64 row = 0; row < table.head().stripes; row++) CHECK(table.stripe(row) >> 32 == 0);
    for (u32 writer = 0; writer < TABLE_WRITERS; writer++) CHECK(!table.undo(writer).owner && !table.undo(writer).armed);
}

inline u64 hidden_arrays(Space& space) { return space.list(std::string(1, TABLE_HIDDEN)).size(); }

}  // namespace osf::test

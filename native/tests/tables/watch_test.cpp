// Which rows a reader is told of that changed while it read.
#include "tables/watch.hpp"
#include "tests/tables/rows.hpp"

using namespace osf;
using namespace osf::test;

static void nobody_writes() {
    context = "nobody writes";
    Place place;
    auto table = make_table(place.open());
    step_rows(table, {1, 2, 3});
    Watch watch(*table);
    CHECK(watch.begin() && watch.end() && !watch.changed());
}

static void a_writer_that_came_meanwhile_may_have_changed_any_row() {
    context = "a writer comes";
    Place place;
    auto table = make_table(place.open());
    Watch watch(*table);
    CHECK(watch.begin());
    step_rows(table, {1});
    CHECK(!watch.end());
    CHECK(watch.begin() && watch.end());
}

// Wherever a writer is killed: a row that is half changed is named, and no other one.
static void a_dead_writers_row_is_named() {
    bool died = true, named = false;
    for (long k = 0; died; k++) {
        context = "killed at step " + std::to_string(k);
        Place place;
        auto space = place.open();
        auto table = make_table(space);
        died = killed(run([&] {
            step_limit = k;
            step_rows(table, {5});
            step_limit = -1;
        }));
        Watch watch(*table);
        CHECK(watch.begin() && watch.end());
        CHECK(watch.changed(5) == (table->undo(0).armed == 6) && !watch.changed(4) && !watch.changed(5 + 64 * 16));
        named |= watch.changed(5);
        table->mend();
        CHECK(watch.begin() && watch.end() && !watch.changed());
    }
    CHECK(named);
}

// A row counted between begin and end is named; more than the record names, or more writers than are asked, are not.
static void rows_counted_meanwhile_are_named() {
    context = "counted";
    Place place;
    auto table = make_table(place.open());
    TableUndo& undo = table->undo(3);
    auto change = [&](u64 row) {
        store(undo.recent[undo.changes % TABLE_RECENT], row);
        store(undo.changes, undo.changes + 1);
    };
    table->head().writers = 1ull << 3;
    change(7);
    Watch watch(*table);
    CHECK(watch.begin());
    change(8);
    change(9);
    CHECK(watch.end() && watch.changed(8) && watch.changed(9) && !watch.changed(7));
    CHECK(watch.begin());
    for (u64 row = 0; row < TABLE_RECENT; row++) change(row);
    CHECK(!watch.end());
    CHECK(watch.begin() && watch.end() && !watch.changed() && !watch.changed(9));
    table->head().writers = ~0ull;
    CHECK(!watch.begin());
}

int main() {
    std::set_terminate([] { failed(__FILE__, __LINE__, "an exception was not caught"); });
    nobody_writes();
    a_writer_that_came_meanwhile_may_have_changed_any_row();
    rows_counted_meanwhile_are_named();
    if (!UNDER_TSAN) a_dead_writers_row_is_named();
    return 0;
}

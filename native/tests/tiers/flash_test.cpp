// Whoever is killed while a space's flash files are made leaves nothing that stands in the way of the next.
#include "tiers/flash.hpp"
#include "tests/tiers/sim_disk.hpp"

using namespace osf;
using namespace osf::test;

int main() {
    const std::vector<std::string> paths{"/disk/a", "/disk/b"};
    SimDisk whole;
    Flash::create(whole, paths, 64, 7);
    const long operations = whole.operations();
    CHECK(whole.names() == std::set<std::string>({"/disk/a", "/disk/b"}));
    for (long killed = 1; killed <= operations; killed++) {
        SimDisk disk;
        disk.cut_at(killed);
        bool cut = false;
        try {
            Flash::create(disk, paths, 64, 7);
        } catch (const PowerCut&) {
            cut = true;
        }
        CHECK(cut);
        disk.kill();
        Flash::remove(disk, paths, 7);
        CHECK(disk.names().empty());
        Flash::create(disk, paths, 64, 8);
        Flash::remove(disk, paths, 8);
        disk.cut_at(killed);  // the power goes: who knew of it is gone too
        try {
            Flash::create(disk, paths, 64, 9);
        } catch (const PowerCut&) {
        }
        SimDisk::Random random{u64(killed)};
        disk.power_cut(random);
        for (const std::string& path : paths)
            if (disk.exists(path)) disk.remove(path);  // whole, and its user's to remove
        Flash::create(disk, paths, 64, 10);
        CHECK(disk.names() == whole.names());
    }
    SimDisk other;  // a file of somebody else's stays as it is, whenever it comes
    int error = 0;
    other.open("/disk/b", Disk::fresh, false, error);
    other.replace("/disk/b", std::vector<char>(5, 'x'));
    bool refused = false;
    try {
        Flash::create(other, paths, 64, 7);
    } catch (const Error& found) {
        refused = found.code == Code::name_taken;
    }
    CHECK(refused && other.names() == std::set<std::string>({"/disk/b"}) && other.content("/disk/b").size() == 5);
    Flash::remove(other, paths, 7);
    CHECK(other.names().size() == 1);
    std::puts("flash_test: ok");
}

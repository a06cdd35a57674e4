// The label of a device, on a file that stands for one: who may take it, and when it is free again.
#include <fcntl.h>
#include <sys/file.h>

#include "space/device.hpp"
#include "tests/check.hpp"

using namespace osf;
using namespace osf::test;

namespace {

constexpr u64 LABEL_AT = 4 * PAGE;

// A file that stands for a device; every opening is a description of its own, as in another process.
struct Device {
    std::string path = "/tmp/osf-device-XXXXXX";
    Device() {
        const int fd = mkstemp(path.data());
        CHECK(fd >= 0 && ftruncate(fd, off_t(LABEL_AT + PAGE)) == 0);
        ::close(fd);
    }
    ~Device() { ::unlink(path.c_str()); }
    int open() const { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); }
};

LabelPlace on(const Descriptor& device) { return {device.fd, LABEL_AT, PAGE}; }

std::string folder_of(const Place& space) { return space.directory.substr(0, space.directory.rfind('/')); }
std::string name_of(const Place& space) { return space.directory.substr(space.directory.rfind('/') + 1); }

DeviceClaim claim_of(const Place& space, const std::string& boot_id = "boot") {
    return {boot_id, folder_of(space), ".new-" + name_of(space), name_of(space), read_header(space.directory).created_ns};
}

// What it said if the device is not to be had; empty: it was.
std::string attempt(const Device& device, const DeviceClaim& claim) {
    const Descriptor own(device.open());
    try {
        claim_device(on(own), device.path, claim);
        return "";
    } catch (const Error& error) {
        CHECK(error.code == Code::name_taken);
        return error.what();
    }
}
bool says(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

void a_device_that_a_space_has_is_not_given_to_another() {
    context = "taken";
    Device device;
    Place first(16 * MIB), second(16 * MIB, BASE + 64 * GIB);
    CHECK(attempt(device, claim_of(first)).empty());
    CHECK(says(attempt(device, claim_of(second)), "remove that space first"));
    const Descriptor own(device.open());
    hold_device(on(own), device.path, read_header(first.directory));
    bool refused = false;
    try {
        hold_device(on(own), device.path, read_header(second.directory));
    } catch (const Error& error) { refused = error.code == Code::corrupt; }
    CHECK(refused);
}

void a_space_that_is_gone_has_it_no_longer_and_one_that_is_being_made_has_it() {
    context = "gone";
    Device device;
    Place second(16 * MIB, BASE + 64 * GIB);
    {
        Place first(16 * MIB);
        CHECK(attempt(device, claim_of(first)).empty());
        const std::string making = folder_of(first) + "/.new-" + name_of(first);
        CHECK(::rename(first.directory.c_str(), making.c_str()) == 0);
        CHECK(says(attempt(device, claim_of(second)), "remove that space first"));
        CHECK(::rename(making.c_str(), first.directory.c_str()) == 0);
    }
    CHECK(attempt(device, claim_of(second)).empty());
}

void who_maps_the_device_keeps_it_though_the_space_is_gone() {
    context = "mapped";
    Device device;
    Place second(16 * MIB, BASE + 64 * GIB);
    std::optional<Place> first(std::in_place, 16 * MIB);
    CHECK(attempt(device, claim_of(*first)).empty());
    const Header header = read_header(first->directory);
    int ready[2];
    CHECK(pipe(ready) == 0);
    const pid_t viewer = start([&] {
        const Descriptor own(device.open());
        hold_device(on(own), device.path, header);
        CHECK(write(ready[1], "", 1) == 1);
        pause();
    });
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    first.reset();
    CHECK(says(attempt(device, claim_of(second)), "still map the device"));
    kill(viewer, SIGKILL);
    CHECK(killed(finish(viewer)));
    CHECK(attempt(device, claim_of(second)).empty());
}

void another_boot_is_not_known_to_be_over_and_can_be_said_to_be() {
    context = "another boot";
    Device device;
    Place first(16 * MIB), second(16 * MIB, BASE + 64 * GIB);
    CHECK(attempt(device, claim_of(first, "another")).empty());
    CHECK(says(attempt(device, claim_of(second)), "openshelf rm " ) && says(attempt(device, claim_of(second)), "another host"));
    const Descriptor own(device.open());
    free_device(on(own), device.path, "boot");
    flock(own.fd, LOCK_UN);
    CHECK(attempt(device, claim_of(second)).empty());
    bool refused = false;
    try {
        free_device(on(own), device.path, "boot");
    } catch (const Error& error) { refused = error.code == Code::not_permitted && says(error.what(), "by its name"); }
    CHECK(refused);
}

void a_folder_that_cannot_be_looked_at_proves_nothing() {
    context = "another folder";
    Device device;
    Place first(16 * MIB), second(16 * MIB, BASE + 64 * GIB);
    DeviceClaim elsewhere = claim_of(first);
    char folder[] = "/tmp/osf-folder-XXXXXX";
    CHECK(mkdtemp(folder) != nullptr);
    elsewhere.folder = folder;
    CHECK(attempt(device, elsewhere).empty());
    CHECK(::rmdir(folder) == 0);
    CHECK(says(attempt(device, claim_of(second)), "cannot be looked at"));
}

void of_many_that_come_at_once_one_gets_it() {
    context = "at once";
    for (int round = 0; round < 20; round++) {
        Device device;
        Place space(16 * MIB);
        pid_t children[4];
        for (pid_t& child : children) child = start([&] { _exit(attempt(device, claim_of(space)).empty() ? 0 : 3); });
        int won = 0;
        for (pid_t child : children) won += returned(finish(child));
        CHECK(won == 1);
    }
}

// Whatever a killed claimant left: the next one of the same boot takes it, and bytes that are no label are nobody's.
void a_label_that_is_not_whole_is_free_for_the_same_boot() {
    context = "not whole";
    Device device;
    Place first(16 * MIB), second(16 * MIB, BASE + 64 * GIB);
    const Descriptor own(device.open());
    std::string noise(PAGE, '\xa5');
    CHECK(pwrite(own.fd, noise.data(), PAGE, off_t(LABEL_AT)) == ssize_t(PAGE));
    CHECK(attempt(device, claim_of(first)).empty());
    CHECK(pwrite(own.fd, noise.data(), 64, off_t(LABEL_AT + 16)) == 64);
    DeviceClaim other = claim_of(second);
    other.boot_id = "another";
    CHECK(says(attempt(device, other), "was killed meanwhile"));
    CHECK(attempt(device, claim_of(second)).empty());
}

}  // namespace

int main() {
    a_device_that_a_space_has_is_not_given_to_another();
    a_space_that_is_gone_has_it_no_longer_and_one_that_is_being_made_has_it();
    who_maps_the_device_keeps_it_though_the_space_is_gone();
    another_boot_is_not_known_to_be_over_and_can_be_said_to_be();
    a_folder_that_cannot_be_looked_at_proves_nothing();
    of_many_that_come_at_once_one_gets_it();
    a_label_that_is_not_whole_is_free_for_the_same_boot();
}
